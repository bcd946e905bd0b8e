//! Chat templates: what models' templates make of conversations, and how hostile ones fail.

mod common;

use common::PlainSource;
use dctms_text::{
    ChatTemplate, Content, Conversation, GenerationPrompt, Message, TemplateError, TemplateOrigin,
    Tokenizer,
};

const SMOLLM2: &str = "{% for message in messages %}{% if loop.first and messages[0]['role'] != \
    'system' %}{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by \
    Hugging Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + \
    message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}\
    {{ '<|im_start|>assistant\n' }}{% endif %}";

#[test]
fn smollm2() {
    let text = render(Some(SMOLLM2), &[], &[("user", "Hi <there> & you")]).unwrap();
    assert_eq!(
        text,
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging \
         Face<|im_end|>\n<|im_start|>user\nHi <there> & you<|im_end|>\n<|im_start|>assistant\n"
    );
}

#[test]
fn fallbacks_follow_the_vocabulary() {
    let messages = [("system", "S"), ("user", " U "), ("assistant", "A"), ("user", "V")];
    let check = |specials: &[&str], origin, expected: &str| {
        let (layout, table) = source(specials).tables();
        let template = ChatTemplate::new(None, &Tokenizer::new(&layout, &table)).unwrap();
        assert_eq!(template.origin(), origin);
        assert_eq!(render(None, specials, &messages).unwrap(), expected);
    };
    check(
        &["<|im_start|>"],
        TemplateOrigin::ChatMl,
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\n U <|im_end|>\n\
         <|im_start|>assistant\nA<|im_end|>\n<|im_start|>user\nV<|im_end|>\n\
         <|im_start|>assistant\n",
    );
    check(
        &["<start_of_turn>"],
        TemplateOrigin::GemmaTurns,
        "<start_of_turn>user\nS<end_of_turn>\n<start_of_turn>user\nU<end_of_turn>\n\
         <start_of_turn>model\nA<end_of_turn>\n<start_of_turn>user\nV<end_of_turn>\n\
         <start_of_turn>model\n",
    );
    check(&[], TemplateOrigin::Plain, "S\n U \nA\nV\n");
}

#[test]
fn errors_carry_the_line() {
    let fails = |template: &str| render(Some(template), &[], &[("user", "x")]).unwrap_err();
    assert!(matches!(fails("a\n{% if %}"), TemplateError::Syntax { line: 2, .. }));
    assert!(matches!(fails("a\n\n{{ 1 / 0 }}"), TemplateError::Render { line: 3, .. }));
    assert_eq!(
        fails("a\n{{ raise_exception('only users') }}"),
        TemplateError::Refused { line: 2, message: "only users".into() }
    );
    let endless = "{% for a in range(9999) %}{% for b in range(9999) %}x{% endfor %}{% endfor %}";
    assert!(matches!(fails(endless), TemplateError::TooMuchWork { .. }));
    let large = "{% set x = 'aaaaaaaaaaaaaaaa' * 99999999 %}{{ x }}";
    assert!(matches!(fails(large), TemplateError::TooMuchWork { .. }));
    let recursive = "{% macro m(n) %}{{ m(n) }}{% endmacro %}{{ m(1) }}";
    assert!(matches!(fails(recursive), TemplateError::Render { .. }));
    let long = "x".repeat(dctms_text::limits::TEMPLATE_LEN_BYTES_MAX + 1);
    assert!(matches!(fails(&long), TemplateError::TooLong { .. }));
}

fn render(
    template: Option<&str>,
    specials: &[&str],
    messages: &[(&str, &str)],
) -> Result<String, TemplateError> {
    let (layout, table) = source(specials).tables();
    let messages: Vec<Message<'_>> = messages
        .iter()
        .map(|(role, content)| Message { role, content: Content::Text(content) })
        .collect();
    ChatTemplate::new(template, &Tokenizer::new(&layout, &table))?.render(&Conversation {
        messages: &messages,
        generation_prompt: GenerationPrompt::Added,
        variables: Vec::new(),
    })
}

fn source(specials: &[&str]) -> PlainSource {
    let mut tokens = vec![(b"a".to_vec(), 1, 0.0)];
    tokens.extend(specials.iter().map(|text| (text.as_bytes().to_vec(), 3, 0.0)));
    PlainSource { model: "gpt2".into(), tokens, ..PlainSource::default() }
}
