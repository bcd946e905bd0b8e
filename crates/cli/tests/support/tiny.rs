//! Tiny models for the tests: the committed ones, changed where a test wants it.

use super::fixture;
use super::gguf::Gguf;

/// Tokens of the byte-pair vocabularies of the fixtures.
pub const VOCABULARY: u64 = 270;

/// A llama with a byte-pair vocabulary, a chat template, 2 layers and a context of `context`.
pub fn llama(context: u32) -> Gguf {
    Gguf::read(&fixture("llama-f16.gguf")).set_u32("llama.context_length", context)
}
