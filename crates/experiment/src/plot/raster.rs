//! A figure as a PNG of twice its size: shapes are filled pixel by pixel, without smoothing.

use super::font::{GLYPH_ROWS, glyph};
use super::{Anchor, CHARACTER_WIDTH, Colour, Figure, Shape};

/// Pixels for each unit of the figure.
const SCALE: f64 = 2.0;
/// Pixels of a dot of the font.
const DOT: f64 = 2.5;

/// The picture's bytes.
///
/// # Panics
/// For a figure without a pixel.
#[must_use]
pub fn png(figure: &Figure) -> Vec<u8> {
    let mut canvas = Canvas::new(figure);
    for shape in &figure.shapes {
        canvas.draw(shape);
    }
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, canvas.width as u32, canvas.height as u32);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_compression(png::Compression::High);
    let mut writer = encoder.write_header().expect("a picture of some pixels");
    writer.write_image_data(&canvas.pixels).expect("as many bytes as pixels");
    writer.finish().expect("memory takes every byte");
    bytes
}

struct Canvas {
    width: usize,
    height: usize,
    pixels: Vec<u8>,
}

impl Canvas {
    fn new(figure: &Figure) -> Canvas {
        let (width, height) = ((figure.width * SCALE) as usize, (figure.height * SCALE) as usize);
        Canvas { width, height, pixels: vec![255; width * height * 3] }
    }

    fn draw(&mut self, shape: &Shape) {
        match shape {
            Shape::Line { from, to, colour, width } => {
                let (from, to) = (scaled(*from), scaled(*to));
                let steps = (from.0 - to.0).abs().max((from.1 - to.1).abs()).ceil().max(1.0);
                let side = (width * SCALE).round().max(1.0);
                for step in 0..=steps as usize {
                    let share = step as f64 / steps;
                    let at = |a: f64, b: f64| (a + (b - a) * share - side / 2.0).round();
                    self.fill((at(from.0, to.0), at(from.1, to.1)), (side, side), *colour);
                }
            }
            Shape::Box { at, size, colour } => {
                let (from, to) = (scaled(*at), scaled((at.0 + size.0, at.1 + size.1)));
                let size = ((to.0 - from.0).max(1.0), (to.1 - from.1).max(1.0));
                self.fill(from, size, *colour);
            }
            Shape::Disc { at, radius, colour } => {
                let (middle, radius) = (scaled(*at), radius * SCALE);
                let reach = radius.ceil() as i64;
                for row in -reach..=reach {
                    let half = (radius * radius - (row * row) as f64).max(0.0).sqrt();
                    let from = (middle.0 - half, middle.1 + row as f64);
                    self.fill(from, (2.0 * half, 1.0), *colour);
                }
            }
            Shape::Text { at, text, anchor, colour } => self.text(*at, text, *anchor, *colour),
        }
    }

    fn text(&mut self, at: (f64, f64), text: &str, anchor: Anchor, colour: Colour) {
        let width = text.chars().count() as f64 * CHARACTER_WIDTH;
        let left = match anchor {
            Anchor::Start => at.0,
            Anchor::Middle => at.0 - width / 2.0,
            Anchor::End => at.0 - width,
        };
        let (left, base) = scaled((left, at.1));
        for (index, character) in text.chars().enumerate() {
            let x = left + index as f64 * CHARACTER_WIDTH * SCALE;
            for (column, dots) in glyph(character).into_iter().enumerate() {
                for row in (0..GLYPH_ROWS).filter(|row| dots >> row & 1 == 1) {
                    let dot = (x + column as f64 * DOT, base - (7.0 - row as f64) * DOT);
                    self.fill(dot, (DOT, DOT), colour);
                }
            }
        }
    }

    /// Fills pixels `[x, x + width) × [y, y + height)`, rounded, as far as they are inside.
    fn fill(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), colour: Colour) {
        let clamp = |value: f64, most: usize| value.round().clamp(0.0, most as f64) as usize;
        let (left, right) = (clamp(x, self.width), clamp(x + width, self.width));
        for row in clamp(y, self.height)..clamp(y + height, self.height) {
            let part = &mut self.pixels[(row * self.width + left) * 3..];
            for pixel in part.chunks_exact_mut(3).take(right.saturating_sub(left)) {
                pixel.copy_from_slice(&[colour.0, colour.1, colour.2]);
            }
        }
    }
}

fn scaled((x, y): (f64, f64)) -> (f64, f64) {
    (x * SCALE, y * SCALE)
}
