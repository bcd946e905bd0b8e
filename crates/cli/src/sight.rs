//! Whether the prompts of a plan hold the pictures that its bounds allow: nobody who gives the size
//! of a picture should have to know how many tokens it takes.

use dctms_engine::ImageLimits;
use dctms_engine::bench::pictures::QUESTION_TOKENS;
use dctms_engine::eyes::{Piece, Tiler};
use dctms_engine::planning::{Resident, context};
use dctms_ir::plan::Bounds;

use crate::show::grouped;

/// Tokens of a chat template and of a question that are left room for in what is proposed.
const TEXT_TOKENS: u64 = 64;

/// What is over the bound and what would do, where the largest pictures are; no line's end.
#[must_use]
pub fn over(resident: &dyn Resident, images: &ImageLimits, bounds: &Bounds) -> Option<String> {
    let models = resident.models();
    let tilers = models.iter().filter_map(|model| Some(model.eyes.as_ref()?.tiler()));
    let tilers: Vec<Tiler> = tilers.collect();
    let marks = tilers.iter().map(|tiler| marks(tiler, images)).max()?;
    let tokens = bounds.max_image_tokens + bounds.max_images * marks;
    if bounds.max_input_tokens >= tokens + QUESTION_TOKENS as u64 {
        return None;
    }
    let (width, height) = (images.size.width, images.size.height);
    let (what, them) = match bounds.max_images {
        1 => (format!("the largest picture of {width}x{height} pixels takes"), "it"),
        count => (format!("{count} pictures of the largest size, {width}x{height}, take"), "them"),
    };
    let room = context(resident).saturating_sub(bounds.max_output_tokens);
    let wanted = (tokens + TEXT_TOKENS).next_multiple_of(64).min(room);
    let fewer = room.saturating_sub(TEXT_TOKENS) / (tokens / bounds.max_images).max(1);
    let small = ImageLimits::new(1, (1, 1)).size;
    let is_smaller = |tiler: &Tiler| tiler.tokens_max(small) < tiler.tokens_max(images.size);
    let help = if wanted >= tokens + QUESTION_TOKENS as u64 {
        format!("--max-input {wanted} holds {them}")
    } else if fewer > 0 {
        format!(
            "--max-images {fewer} --max-input {room} is the most that the model's context holds"
        )
    } else {
        let less = match tilers.iter().any(is_smaller) {
            true => ", a smaller --max-image-size takes less",
            false => "",
        };
        format!("the model's context holds no more than --max-input {room}{less}")
    };
    let (tokens, input) = (grouped(tokens), grouped(bounds.max_input_tokens));
    Some(format!("{what} {tokens} tokens, a prompt of this plan has at most {input}: {help}"))
}

/// Tokens of the marks round a picture's tiles, where the vocabulary has each as one.
fn marks(tiler: &Tiler, images: &ImageLimits) -> u64 {
    let Ok(placed) = tiler.place(images.size, 0) else { return 0 };
    let mut count = 0;
    tiler.pieces(&placed, &mut |piece| match piece {
        Piece::Text(text) => count += text.matches(['<', '\n']).count() as u64,
        Piece::Rows(..) => {}
    });
    count
}
