//! A byte-pair vocabulary of a given size, grown by seeded merges.
//!
//! The first 256 tokens are the bytes, in the visible alphabet that byte-pair files use: a
//! printable byte stands for itself, the others for code points from 256 on. Each further token
//! joins two that are there, early ones more often, as merges of real vocabularies do. A mark of
//! a space inside a word never survives pre-tokenisation, so it may only stand in front.

use std::collections::HashSet;

use dctms_format::ValueType;
use dctms_format::write::{MetadataValue, Writer};

use crate::random::Random;
use crate::shape::{Architecture, Shape};

const CONTROL_TOKENS: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
/// What follows them where pictures are known, at the published places.
const PICTURE_TOKENS: [&str; 10] = [
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
];
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const UNUSED: i32 = 5;
const TOKEN_CHARS_MAX: usize = 12;
/// Bytes that texts use most, first: where merges begin.
const FREQUENT: &[u8] = b" etaoinshrdlucmfwypvbgkjqxz";

const CHAT_TEMPLATE: &str = "{% for message in messages %}\
{% if loop.first and messages[0]['role'] != 'system' %}\
{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}{% endif %}\
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}\
{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// As the other, but that content may have parts.
const PICTURE_CHAT_TEMPLATE: &str = "{% for message in messages %}\
{% if loop.first and message['role'] != 'system' %}\
{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}{% endif %}\
{{ '<|im_start|>' + message['role'] + '\\n' }}\
{% if message['content'] is string %}{{ message['content'] }}\
{% else %}{% for part in message['content'] %}\
{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>\
{% elif 'text' in part %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}\
{{ '<|im_end|>\\n' }}\
{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// Adds the tokeniser's keys.
pub fn write(writer: Writer<'static>, shape: &Shape, seed: u64) -> Writer<'static> {
    let mut random = Random::named(seed, "vocabulary");
    let (mut tokens, merges) = grow(shape.ordinary_tokens as usize, &mut random);
    let first_control = shape.ordinary_tokens;
    tokens.extend(CONTROL_TOKENS.map(str::to_string));
    let (pictures, template) = match shape.architecture {
        Architecture::Llama | Architecture::Qwen2 | Architecture::Qwen3 => (&[][..], CHAT_TEMPLATE),
        Architecture::Qwen2Vl => (&PICTURE_TOKENS[..], PICTURE_CHAT_TEMPLATE),
    };
    tokens.extend(pictures.iter().map(ToString::to_string));
    let controls = (CONTROL_TOKENS.len() + pictures.len()) as u32;
    tokens.extend((tokens.len()..shape.vocabulary as usize).map(|id| format!("[PAD{id}]")));
    let kinds = (0..shape.vocabulary).map(|id| match id.checked_sub(first_control) {
        None => NORMAL,
        Some(index) if index < controls => CONTROL,
        Some(_) => UNUSED,
    });
    let kinds = MetadataValue::Array(ValueType::I32, kinds.map(MetadataValue::I32).collect());
    writer
        .metadata("tokenizer.ggml.model", "gpt2")
        .metadata("tokenizer.ggml.pre", shape.architecture.pre_tokeniser())
        .metadata("tokenizer.ggml.tokens", MetadataValue::strings(tokens))
        .metadata("tokenizer.ggml.token_type", kinds)
        .metadata("tokenizer.ggml.merges", MetadataValue::strings(merges))
        .metadata("tokenizer.ggml.bos_token_id", first_control)
        .metadata("tokenizer.ggml.eos_token_id", first_control + 2)
        .metadata("tokenizer.ggml.padding_token_id", first_control)
        .metadata("tokenizer.ggml.add_bos_token", false)
        .metadata("tokenizer.chat_template", template)
}

/// `len` tokens and the merges that make those after the bytes.
fn grow(len: usize, random: &mut Random) -> (Vec<String>, Vec<String>) {
    let mut tokens: Vec<String> = (0..=255).map(|byte| visible(byte).to_string()).collect();
    let mut order: Vec<usize> = FREQUENT.iter().map(|byte| usize::from(*byte)).collect();
    order.extend((0..256).filter(|byte| !FREQUENT.contains(&(*byte as u8))));
    let (mut merges, mut known) = (Vec::new(), tokens.iter().cloned().collect::<HashSet<_>>());
    let space = visible(b' ');
    while tokens.len() < len {
        let [left, right] = [(); 2].map(|()| tokens[order[early(order.len(), random)]].as_str());
        let joined = format!("{left}{right}");
        if joined.chars().count() > TOKEN_CHARS_MAX || right.contains(space) {
            continue;
        }
        merges.push(format!("{left} {right}"));
        if !known.insert(joined.clone()) {
            merges.pop();
            continue;
        }
        order.push(tokens.len());
        tokens.push(joined);
    }
    (tokens, merges)
}

/// An index below `len`, early ones more often.
fn early(len: usize, random: &mut Random) -> usize {
    let unit = random.unit();
    ((unit * unit * len as f32) as usize).min(len - 1)
}

/// The character that stands for a byte in byte-pair files (as GPT-2 introduced it).
fn visible(byte: u8) -> char {
    let is_printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    match is_printable(byte) {
        true => char::from(byte),
        false => {
            let hidden_before = (0..byte).filter(|before| !is_printable(*before)).count();
            char::from_u32(256 + hidden_before as u32).expect("below the surrogates")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_become_the_known_visible_characters() {
        assert_eq!([b' ', b'\n', b'a', 0xad].map(visible), ['\u{120}', '\u{10a}', 'a', '\u{143}']);
    }

    #[test]
    fn every_merge_makes_the_token_of_its_rank_and_none_twice() {
        let (tokens, merges) = grow(3000, &mut Random::named(7, "vocabulary"));
        assert_eq!(tokens.len(), 3000);
        assert_eq!(tokens.iter().collect::<HashSet<_>>().len(), 3000);
        for (token, merge) in tokens[256..].iter().zip(&merges) {
            assert_eq!(*token, merge.replace(' ', ""));
        }
    }
}
