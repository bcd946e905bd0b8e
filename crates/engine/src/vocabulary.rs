//! The vocabulary of a model file as the tokeniser reads it.
//!
//! [`VocabularyInfo`] keeps the small facts and where the arrays stand in the first file's header;
//! a [`VocabularyView`] reads them from the bytes of that range. The range is read once to measure
//! the tables (while planning) and once to build them (while loading): in between it costs
//! nothing.

use std::ops::Range;

use dctms_format::{ArrayRef, Checkpoint, Error, Value, ValueType};
use dctms_text::{Flag, Role, TokenEntry, VocabularySource};

/// Small facts of a vocabulary, and where its arrays are.
#[derive(Clone, Debug)]
pub struct VocabularyInfo {
    model: String,
    pre_tokenizer: Option<String>,
    flags: [Option<bool>; 3],
    roles: [Option<u32>; Role::ALL.len()],
    tokens: ArrayRef,
    types: Option<ArrayRef>,
    scores: Option<ArrayRef>,
    merges: Option<ArrayRef>,
}

impl VocabularyInfo {
    /// The vocabulary of a checkpoint, `None` when it has none.
    ///
    /// # Errors
    /// Metadata of the wrong type.
    pub fn of(checkpoint: &Checkpoint) -> Result<Option<VocabularyInfo>, String> {
        let Some(tokens) = array(checkpoint, "tokenizer.ggml.tokens", &[ValueType::String])? else {
            return Ok(None);
        };
        let say = |error: Error| error.to_string();
        let text = |key: &str| checkpoint.find_str(key).map_err(say);
        let Some(model) = text("tokenizer.ggml.model")? else { return Ok(None) };
        let mut flags = [None; 3];
        for (index, flag) in FLAGS.into_iter().enumerate() {
            flags[index] = checkpoint.find_bool(flag.key()).map_err(say)?;
        }
        let mut roles = [None; Role::ALL.len()];
        for role in Role::ALL {
            roles[role as usize] = checkpoint.find_u32(role.key()).map_err(say)?;
        }
        let integers = [ValueType::I32, ValueType::U32];
        let info = VocabularyInfo {
            model: model.to_string(),
            pre_tokenizer: text("tokenizer.ggml.pre")?.map(str::to_string),
            flags,
            roles,
            tokens,
            types: array(checkpoint, "tokenizer.ggml.token_type", &integers)?,
            scores: array(checkpoint, "tokenizer.ggml.scores", &[ValueType::F32])?,
            merges: array(checkpoint, "tokenizer.ggml.merges", &[ValueType::String])?,
        };
        // Without merges every text would silently become single bytes.
        if info.model == "gpt2" && info.merges.is_none_or(|merges| merges.count() == 0) {
            let what = "metadata tokenizer.ggml.merges is missing or empty";
            return Err(format!("{what}: a byte-pair vocabulary (gpt2) needs it"));
        }
        for (what, array) in [("token_type", info.types), ("scores", info.scores)] {
            if let Some(array) = array.filter(|array| array.count() != info.tokens.count()) {
                return Err(format!(
                    "metadata tokenizer.ggml.{what} has {} elements, expected {} (one a token)",
                    array.count(),
                    info.tokens.count()
                ));
            }
        }
        Ok(Some(info))
    }

    /// The bytes of the first file that hold all arrays.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        let arrays = [Some(self.tokens), self.types, self.scores, self.merges];
        let arrays = arrays.into_iter().flatten();
        let start = arrays.clone().map(|array| array.offset()).min().unwrap_or(0);
        let end = arrays.map(|array| array.offset() + array.len_bytes()).max().unwrap_or(0);
        start..end
    }

    /// Number of tokens.
    #[must_use]
    pub fn token_count(&self) -> u64 {
        self.tokens.count()
    }

    /// A view over the bytes of [`VocabularyInfo::range`].
    #[must_use]
    pub fn view<'a>(&'a self, bytes: &'a [u8]) -> VocabularyView<'a> {
        VocabularyView { info: self, bytes, start: self.range().start }
    }
}

const FLAGS: [Flag; 3] = [Flag::AddBos, Flag::AddEos, Flag::AddSpacePrefix];

fn array(
    checkpoint: &Checkpoint,
    key: &str,
    types: &[ValueType],
) -> Result<Option<ArrayRef>, String> {
    match checkpoint.find(key) {
        None => Ok(None),
        Some(Value::Array(array)) if types.contains(&array.element_type()) => Ok(Some(array)),
        Some(other) => Err(format!("metadata {key} is {other}, expected an array of {types:?}")),
    }
}

/// A vocabulary over its bytes.
#[derive(Clone, Copy)]
pub struct VocabularyView<'a> {
    info: &'a VocabularyInfo,
    bytes: &'a [u8],
    start: u64,
}

impl<'a> VocabularyView<'a> {
    fn array_bytes(&self, array: ArrayRef) -> &'a [u8] {
        let start = (array.offset() - self.start) as usize;
        self.bytes.get(start..start + array.len_bytes() as usize).unwrap_or(&[])
    }

    fn words(&self, array: Option<ArrayRef>) -> impl Iterator<Item = [u8; 4]> + 'a {
        let bytes = array.map_or(&[][..], |array| self.array_bytes(array));
        bytes.as_chunks::<4>().0.iter().copied()
    }
}

impl VocabularySource for VocabularyView<'_> {
    fn model(&self) -> Option<&str> {
        Some(&self.info.model)
    }

    fn pre_tokenizer(&self) -> Option<&str> {
        self.info.pre_tokenizer.as_deref()
    }

    fn flag(&self, flag: Flag) -> Option<bool> {
        let index = FLAGS.iter().position(|other| *other == flag)?;
        self.info.flags[index]
    }

    fn special_token(&self, role: Role) -> Option<u32> {
        self.info.roles[role as usize]
    }

    fn tokens(&self) -> impl Iterator<Item = TokenEntry<'_>> {
        let types = self.words(self.info.types).map(i32::from_le_bytes);
        let types = types.chain(std::iter::repeat(NORMAL_TYPE));
        let scores = self.words(self.info.scores).map(f32::from_le_bytes);
        let scores = scores.chain(std::iter::repeat(0.0));
        Strings(self.array_bytes(self.info.tokens))
            .zip(types.zip(scores))
            .map(|(text, (type_code, score))| TokenEntry { text, type_code, score })
    }

    fn merges(&self) -> impl Iterator<Item = &[u8]> {
        Strings(self.info.merges.map_or(&[][..], |array| self.array_bytes(array)))
    }
}

/// Type of a token when the file gives none.
const NORMAL_TYPE: i32 = 1;

/// Length-prefixed strings, one after the other.
struct Strings<'a>(&'a [u8]);

impl<'a> Iterator for Strings<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let (len, rest) = self.0.split_first_chunk::<8>()?;
        let len = usize::try_from(u64::from_le_bytes(*len)).ok()?;
        let text = rest.get(..len)?;
        self.0 = &rest[len..];
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_end_where_the_bytes_do() {
        let mut bytes = Vec::new();
        for text in ["ab", "", "c"] {
            bytes.extend((text.len() as u64).to_le_bytes());
            bytes.extend(text.as_bytes());
        }
        let read: Vec<&[u8]> = Strings(&bytes).collect();
        assert_eq!(read, [&b"ab"[..], b"", b"c"]);
        assert_eq!(Strings(&bytes[..bytes.len() - 1]).count(), 2);
        assert_eq!(Strings(&u64::MAX.to_le_bytes()).count(), 0);
    }
}
