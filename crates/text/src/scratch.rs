//! The only memory that encoding uses, allocated once for a longest text.
//!
//! ```text
//! tree     4.3 bytes a position   order keys of neighbouring symbols of a long word
//! starts   1 bit a position       where symbols begin
//! symbols  4 bytes a position     their tokens (byte pair)
//! text     1 byte a position      the text with spaces in one spelling, or normalised
//! verdicts 16 KiB                 tokens known to encode as themselves, or not to
//! ```

use crate::limits::{TEXT_LEN_BYTES_MAX, VERDICT_SLOTS};
use crate::source::VocabularyKind;
use crate::tree::tree_len;

/// Reusable working memory of an encoder. Never grows.
///
/// It remembers verdicts about one tokeniser: use one scratch for one tokeniser only.
#[derive(Debug)]
pub struct Scratch {
    pub(crate) word: WordScratch,
    pub(crate) text: Box<[u8]>,
    text_len_bytes_max: usize,
}

/// What merging one word needs.
#[derive(Debug)]
pub(crate) struct WordScratch {
    pub tree: Box<[u32]>,
    pub starts: Box<[u64]>,
    pub symbols: Box<[u32]>,
    pub verdicts: Box<[u32]>,
}

impl Scratch {
    /// Working memory for texts of at most `len_bytes_max` bytes.
    ///
    /// # Panics
    /// When `len_bytes_max` is above [`TEXT_LEN_BYTES_MAX`].
    pub fn with_text_bytes_max(kind: VocabularyKind, len_bytes_max: usize) -> Self {
        assert!(len_bytes_max <= TEXT_LEN_BYTES_MAX, "{len_bytes_max} bytes are no text");
        let lens = Lens::new(kind, len_bytes_max);
        Self {
            word: WordScratch {
                tree: vec![0; lens.tree].into(),
                starts: vec![0; lens.starts].into(),
                symbols: vec![0; lens.symbols].into(),
                verdicts: vec![0; VERDICT_SLOTS].into(),
            },
            text: vec![0; lens.text].into(),
            text_len_bytes_max: len_bytes_max,
        }
    }

    /// How many bytes of heap [`Self::with_text_bytes_max`] takes, in at most five allocations.
    pub fn heap_bytes(kind: VocabularyKind, len_bytes_max: usize) -> usize {
        let lens = Lens::new(kind, len_bytes_max);
        4 * (lens.tree + lens.symbols + VERDICT_SLOTS) + 8 * lens.starts + lens.text
    }

    /// The longest text in bytes.
    pub fn text_len_bytes_max(&self) -> usize {
        self.text_len_bytes_max
    }
}

/// Lengths of the arrays, in elements.
struct Lens {
    tree: usize,
    starts: usize,
    symbols: usize,
    text: usize,
}

impl Lens {
    fn new(kind: VocabularyKind, len_bytes_max: usize) -> Self {
        // SentencePiece may put one space before a text; normalising may lengthen it, and then
        // the bound is on the longer.
        let positions = len_bytes_max + 1;
        let starts = positions.div_ceil(64);
        let tree = tree_len(positions);
        match kind {
            VocabularyKind::BytePair => Self { tree, starts, symbols: positions, text: positions },
            VocabularyKind::SentencePiece => Self { tree, starts, symbols: 0, text: positions },
        }
    }
}
