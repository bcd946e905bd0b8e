//! Qwen2-VL and Qwen2.5-VL: the whole picture in one tile, both edges brought to multiples of what
//! one token covers, pixels within a least and a most number.
//!
//! Believes: the processor's rule, which its authors call `smart_resize`. Must not know: windows,
//! or how many tokens a plan holds.

use super::{Layout, WholeFrom};
use crate::picture::Size;
use crate::resize::Filter;

/// The settings of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Qwen2Vl {
    /// Pixels that one token covers along an edge.
    pub token_edge: u32,
    /// Least pixels of the tile.
    pub pixels_min: u64,
    /// Most pixels of the tile.
    pub pixels_max: u64,
}

/// A picture whose longer edge is more than so many times the shorter is refused.
pub const ASPECT_MAX: u32 = 200;

impl Qwen2Vl {
    /// The tile of a picture; nothing for one that is longer and thinner than [`ASPECT_MAX`].
    ///
    /// # Panics
    /// For an edge of 0.
    #[must_use]
    pub fn layout(&self, size: Size) -> Option<Layout> {
        assert!(size.pixels() > 0 && self.token_edge > 0);
        let (long, short) = (size.width.max(size.height), size.width.min(size.height));
        if f64::from(long) / f64::from(short) > f64::from(ASPECT_MAX) {
            return None;
        }
        let whole = self.whole(size);
        Some(Layout {
            grid_rows: 0,
            grid_columns: 0,
            cell: whole,
            whole: Some(whole),
            filter: Filter::Bicubic,
            sizes: [whole, whole],
            steps: 0,
            whole_from: WholeFrom::Original,
        })
    }

    /// Most tokens of any picture of at most `pixels` pixels and no longer edge than `edge`: of
    /// each height the widest that is not made smaller, and what becomes of thin and small ones.
    #[must_use]
    pub fn tokens_max(&self, edge: u32, pixels: u64) -> u64 {
        let token = u64::from(self.token_edge);
        let kept = (1..=edge).map(|height| {
            let width = (pixels / u64::from(height)).min(u64::from(edge)) as u32;
            Size::new(self.nearest(width), self.nearest(height)).pixels() / (token * token)
        });
        let (kept, most) = (kept.max().unwrap_or(1), self.pixels_max / (token * token));
        let shrunk = if kept > most { most.max(self.thin_tokens(self.pixels_max)) } else { kept };
        shrunk.max(self.enlarged_tokens_max()).max(1)
    }

    /// Tokens of the longest picture of so many pixels, one token wide.
    fn thin_tokens(&self, pixels: u64) -> u64 {
        let edge = (pixels as f64 * f64::from(ASPECT_MAX)).sqrt();
        (edge / f64::from(self.token_edge)).ceil() as u64
    }

    /// Most tokens of a picture that is enlarged to the least pixels, both edges rounded up: where
    /// the shorter one is `short` tokens, the longer is below what `short − 1` leave of the pixels.
    fn enlarged_tokens_max(&self) -> u64 {
        let token = f64::from(self.token_edge);
        let tokens = self.pixels_min as f64 / (token * token);
        let longest = self.thin_tokens(self.pixels_min) as f64;
        let shorts = 1..=tokens.sqrt().ceil().max(1.0) as u64;
        let product = |short: u64| {
            let long = longest.min((tokens / (short - 1) as f64).ceil());
            short * long as u64
        };
        shorts.map(product).max().unwrap_or(1)
    }

    /// An edge to the nearest multiple of a token's, halves to the even one.
    fn nearest(&self, edge: u32) -> u32 {
        let factor = self.token_edge;
        (f64::from(edge) / f64::from(factor)).round_ties_even() as u32 * factor
    }

    fn whole(&self, size: Size) -> Size {
        let factor = self.token_edge;
        let near = Size::new(self.nearest(size.width), self.nearest(size.height));
        let (pixels, exact) = (size.pixels() as f64, f64::from(factor));
        if near.pixels() > self.pixels_max {
            let beta = (pixels / self.pixels_max as f64).sqrt();
            let down =
                |edge: u32| ((f64::from(edge) / beta / exact).floor() as u32 * factor).max(factor);
            Size::new(down(size.width), down(size.height))
        } else if near.pixels() < self.pixels_min {
            let beta = (self.pixels_min as f64 / pixels).sqrt();
            let up = |edge: u32| (f64::from(edge) * beta / exact).ceil() as u32 * factor;
            Size::new(up(size.width), up(size.height))
        } else {
            near
        }
    }
}
