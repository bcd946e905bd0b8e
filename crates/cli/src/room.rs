//! The room of a conversation, and of requests: how much text they may hold, and the heap that
//! this takes.
//!
//! A conversation keeps its messages, the rendered text that the caches hold, and encodes the next
//! turn beside them, all in the sealed process. A request keeps its line, and is rendered and
//! encoded beside it. Everything here grows by the position of the context, so that a plan for
//! either can be priced like any other. The same bounds are enforced turn by turn
//! (`commands/run/chat/`) and request by request (`commands/run/requests/`); what they refuse is
//! refused by name.

use dctms_engine::planning::{PlanSettings, compile_heap_bytes};
use dctms_engine::{Model, VisionMode};
use dctms_text::{ChatTemplate, Scratch, VocabularyKind};

use crate::commands::run::requests::order::Order;

/// Bytes of a conversation's text for each position of its context. Usual text has 3 to 5 bytes
/// a token, scripts of long characters up to 8.
pub const TEXT_BYTES_PER_POSITION: usize = 8;
/// Positions that a message takes at least, of which its marks alone are four or more.
const POSITIONS_PER_MESSAGE: usize = 8;
/// Heap of a message beside its text: its place in lists, its block, its value when rendered.
const HEAP_PER_MESSAGE_BYTES: usize = 160;
/// Heap of a conversation that neither its context nor its template changes: the scratch's
/// verdicts, and rounding.
const HEAP_FIXED_BYTES: usize = 40 << 10;
/// Rendered text that templates may add before the first message, beside their own length.
const PREAMBLE_BYTES: usize = 1024;

/// Bytes of a request's line beside its text and its pictures.
const LINE_FIXED_BYTES: usize = 4 << 10;
/// Bytes of a request's line for each picture: its path.
const LINE_BYTES_PER_IMAGE: usize = 1 << 10;
/// Heap of a picture of a request beside what every plan counts: its mark, its part of a message.
const HEAP_PER_PICTURE_BYTES: usize = 256;

/// Whether a conversation may outgrow its plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// By larger plans (`--replan`), up to the model's context.
    Replanned,
    /// It ends at the bounds of its plan.
    Bounded,
}

/// How much a conversation holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChatRoom {
    /// Bytes of all messages' texts.
    pub text_bytes_max: usize,
    /// Bytes of the rendered conversation.
    pub rendered_bytes_max: usize,
    /// Messages.
    pub messages_max: usize,
}

impl ChatRoom {
    /// The room of a context of so many positions, with a template of so many bytes.
    #[must_use]
    pub fn of(positions: usize, template_bytes: usize) -> ChatRoom {
        let text_bytes_max = positions.saturating_mul(TEXT_BYTES_PER_POSITION);
        ChatRoom {
            text_bytes_max,
            rendered_bytes_max: text_bytes_max + template_bytes + PREAMBLE_BYTES,
            // One more, so that the smallest context holds a question and its answer.
            messages_max: positions / POSITIONS_PER_MESSAGE + 2,
        }
    }

    /// Bytes of the longest line of a request with so many pictures: its text with escapes, of
    /// which three bytes for one are the usual worst, and the names round it.
    #[must_use]
    pub fn line_bytes_max(&self, images: usize) -> usize {
        3 * self.text_bytes_max + LINE_FIXED_BYTES + images * LINE_BYTES_PER_IMAGE
    }

    /// Heap of requests of this room, one after another. Linear like a conversation's.
    fn requests_heap_bytes(
        &self,
        (template_bytes, images): (usize, usize),
        (kind, orders): (VocabularyKind, usize),
    ) -> usize {
        let rendering = ChatTemplate::heap_bytes_usual_into(
            template_bytes,
            self.messages_max,
            self.text_bytes_max,
        );
        // The texts with their marks of pictures, and what is rendered of them.
        let texts = self.text_bytes_max + self.rendered_bytes_max;
        let line = self.line_bytes_max(images);
        let tokens = self.text_bytes_max / TEXT_BYTES_PER_POSITION * size_of::<u32>();
        rendering
            + texts
            + tokens
            + scratch_bytes_per_byte(kind) * self.rendered_bytes_max
            + orders * Order::heap_bytes(line, self.messages_max, images)
            + HEAP_PER_MESSAGE_BYTES * self.messages_max
            + HEAP_PER_PICTURE_BYTES * images
            + HEAP_FIXED_BYTES
    }

    /// Heap of a conversation of this room. Exactly linear in the positions, so that prices and
    /// searches over bounds see what a plan will take.
    #[must_use]
    fn heap_bytes(&self, template_bytes: usize, kind: VocabularyKind) -> usize {
        let rendering = ChatTemplate::heap_bytes_usual_into(
            template_bytes,
            self.messages_max,
            self.text_bytes_max,
        );
        // The messages, and the line that is read; the text of the caches, and the next one.
        let texts = 2 * self.text_bytes_max + 2 * self.rendered_bytes_max;
        let tokens = self.text_bytes_max / TEXT_BYTES_PER_POSITION * size_of::<u32>();
        rendering
            + texts
            + tokens
            + scratch_bytes_per_byte(kind) * self.rendered_bytes_max
            + HEAP_PER_MESSAGE_BYTES * self.messages_max
            + HEAP_FIXED_BYTES
    }
}

/// Encoding scratch for each byte of the longest text, rounded up.
fn scratch_bytes_per_byte(kind: VocabularyKind) -> usize {
    match kind {
        VocabularyKind::BytePair => 10,
        VocabularyKind::SentencePiece => 6,
    }
}

/// The template's length, or that of the one that is chosen where a file has none.
#[must_use]
pub fn template_bytes(template: Option<&str>) -> usize {
    template.map_or(1024, str::len)
}

/// The settings of a plan for a conversation: its heap is a part of the envelope.
#[must_use]
pub fn for_conversation(mut settings: PlanSettings, model: &Model, growth: Growth) -> PlanSettings {
    let template_bytes = template_bytes(model.template.as_deref());
    let kind = kind_of(model);
    let heap = |positions: usize| {
        ChatRoom::of(positions, template_bytes).heap_bytes(template_bytes, kind) as u64
    };
    let runtime = &mut settings.runtime;
    match growth {
        Growth::Bounded => {
            // Linear: two points say it all.
            let per_step = heap(POSITIONS_PER_MESSAGE) - heap(0);
            runtime.heap_per_context_token_bytes += per_step.div_ceil(POSITIONS_PER_MESSAGE as u64);
            runtime.heap_fixed_bytes += heap(0);
        }
        Growth::Replanned => {
            // Texts have room for the longest context from the start; and a new plan is made
            // while the arena is resident: its heap is room of its own.
            runtime.heap_fixed_bytes += heap(model.config.context as usize);
            runtime.replan_heap_bytes = compile_heap_bytes(model, settings.machine.lanes);
        }
    }
    settings
}

/// The settings of a plan for requests, one after another.
#[must_use]
pub fn for_requests(mut settings: PlanSettings, model: &Model) -> PlanSettings {
    let template_bytes = template_bytes(model.template.as_deref());
    let kind = kind_of(model);
    let images = request_images(model, &settings);
    // The one that is answered; where the plan overlaps the two, the next one.
    let orders = match settings.mode {
        VisionMode::Overlapped => 2,
        VisionMode::Serial | VisionMode::PhaseResident => 1,
    };
    let heap = |positions: usize| {
        let room = ChatRoom::of(positions, template_bytes);
        room.requests_heap_bytes((template_bytes, images), (kind, orders)) as u64
    };
    let per_step = heap(POSITIONS_PER_MESSAGE) - heap(0);
    let runtime = &mut settings.runtime;
    runtime.heap_per_context_token_bytes += per_step.div_ceil(POSITIONS_PER_MESSAGE as u64);
    runtime.heap_fixed_bytes += heap(0);
    settings
}

/// Pictures that a request may have.
#[must_use]
pub fn request_images(model: &Model, settings: &PlanSettings) -> usize {
    match model.eyes {
        Some(_) => settings.images.count as usize,
        None => 0,
    }
}

fn kind_of(model: &Model) -> VocabularyKind {
    model
        .vocabulary
        .as_ref()
        .map_or(VocabularyKind::BytePair, |vocabulary| vocabulary.layout.facts().kind)
}

/// What a scratch for a room's rendered text takes: for the test that holds the rates above.
#[must_use]
pub fn scratch(room: &ChatRoom, kind: VocabularyKind) -> Scratch {
    Scratch::with_text_bytes_max(kind, room.rendered_bytes_max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scratch_stays_below_its_rate() {
        for kind in [VocabularyKind::BytePair, VocabularyKind::SentencePiece] {
            for bytes in [0, 1, 100, 1023, 4096, 65_537, 1 << 20, (1 << 24) + 3] {
                let rate = scratch_bytes_per_byte(kind) * bytes + HEAP_FIXED_BYTES / 2;
                let needed = Scratch::heap_bytes(kind, bytes);
                assert!(needed <= rate, "{kind:?}, {bytes} bytes: {needed} of {rate}");
            }
        }
    }

    #[test]
    fn the_heap_is_linear_in_the_positions() {
        let heap =
            |positions| ChatRoom::of(positions, 300).heap_bytes(300, VocabularyKind::BytePair);
        let (step, none) = (heap(8) - heap(0), heap(0));
        for steps in [1, 2, 288, 4096] {
            assert_eq!(heap(8 * steps), none + step * steps);
            assert!(heap(8 * steps + 7) <= none + (8 * steps + 7) * step.div_ceil(8));
        }
    }
}
