//! Chat templates: what models' templates make of conversations, and how hostile ones fail.

mod common;

use common::{PlainSource, Random, fixture};
use dctms_text::{
    ChatTemplate, Content, Conversation, GenerationPrompt, Message, Part, TemplateError,
    TemplateOrigin, TemplateValue, Tokenizer, ordered_map,
};
use serde_json::Value;

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

/// `scripts/template_fixtures.py` writes what Jinja2 makes of each template and conversation.
#[test]
fn templates_render_as_in_python() {
    let parsed: Value = serde_json::from_str(&fixture("templates.json")).expect("JSON");
    let conversations = parsed["conversations"].as_array().unwrap();
    let mut failures = 0;
    for case in parsed["cases"].as_array().unwrap() {
        let name = case["template"].as_str().unwrap();
        let template = match std::env::var_os("DCTMS_TEMPLATES") {
            Some(folder) => std::fs::read_to_string(std::path::Path::new(&folder).join(name)),
            None => Ok(fixture(&format!("templates/{name}"))),
        };
        let template = template.expect("the template");
        for (conversation, expected) in
            conversations.iter().zip(case["results"].as_array().unwrap())
        {
            let got = render_json(&template, conversation);
            let is_equal = match (&got, expected["text"].as_str()) {
                (Ok(got), Some(text)) => got == text,
                (Err(_), None) => true,
                (Ok(_), None) | (Err(_), Some(_)) => false,
            };
            if !is_equal {
                println!("{name} {conversation}\n  got  {got:?}\n  want {expected}");
                failures += 1;
            }
        }
    }
    assert_eq!(failures, 0, "renderings that differ");
}

fn render_json(template: &str, conversation: &Value) -> Result<String, TemplateError> {
    let mut source = source(&["<bos>", "<eos>"]);
    source.roles = vec![("tokenizer.ggml.bos_token_id", 1), ("tokenizer.ggml.eos_token_id", 2)];
    let (layout, table) = source.tables();
    let messages: Vec<Message<'_>> =
        conversation["messages"].as_array().unwrap().iter().map(message).collect();
    let generation_prompt = match conversation["add_generation_prompt"].as_bool() {
        Some(false) => GenerationPrompt::None,
        Some(true) | None => GenerationPrompt::Added,
    };
    let is_variable = |key: &str| key != "messages" && key != "add_generation_prompt";
    let variables = conversation.as_object().unwrap().iter();
    ChatTemplate::new(Some(template), &Tokenizer::new(&layout, &table))?.render(&Conversation {
        messages: &messages,
        generation_prompt,
        variables: variables
            .filter(|(key, _)| is_variable(key))
            .map(|(key, value)| (key.clone(), template_value(value)))
            .collect(),
    })
}

fn message(message: &Value) -> Message<'_> {
    let content = match &message["content"] {
        Value::Array(parts) => Content::Parts(
            parts
                .iter()
                .map(|part| match part["text"].as_str() {
                    Some(text) => Part::Text(text),
                    None => Part::Image,
                })
                .collect(),
        ),
        text => Content::Text(text.as_str().unwrap()),
    };
    let fields = message.as_object().unwrap().iter();
    Message {
        role: message["role"].as_str().unwrap(),
        content,
        fields: fields
            .filter(|(key, _)| *key != "role" && *key != "content")
            .map(|(key, value)| (key.clone(), template_value(value)))
            .collect(),
    }
}

fn template_value(value: &Value) -> TemplateValue {
    match value {
        Value::Null => TemplateValue::from(()),
        Value::Bool(value) => TemplateValue::from(*value),
        Value::Number(number) => match number.as_i64() {
            Some(number) => TemplateValue::from(number),
            None => TemplateValue::from(number.as_f64().unwrap()),
        },
        Value::String(text) => TemplateValue::from(text.as_str()),
        Value::Array(items) => {
            TemplateValue::from(items.iter().map(template_value).collect::<Vec<_>>())
        }
        Value::Object(entries) => ordered_map(
            entries.iter().map(|(key, value)| (key.clone(), template_value(value))).collect(),
        ),
    }
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

#[test]
fn damaged_templates_fail_or_render() {
    let names = ["qwen2_style", "qwen3_style", "gemma3_style", "llama3_style", "python_methods"];
    let sources = names.map(|name| fixture(&format!("templates/{name}.jinja")));
    let (layout, table) = source(&["<bos>"]).tables();
    let tokenizer = Tokenizer::new(&layout, &table);
    let mut random = Random(7);
    let (mut failed, mut rendered) = (0, 0);
    let start = std::time::Instant::now();
    for _ in 0..1500 {
        let mut text = sources[random.below(sources.len())].clone().into_bytes();
        for _ in 0..1 + random.below(4) {
            let at = random.below(text.len());
            let from = random.below(text.len());
            let len = random.below(40).min(text.len() - from);
            match random.below(3) {
                0 => drop(text.drain(from..from + len)),
                1 => text[at] = b"{}%()[]'\"+-|.~ 0n"[random.below(17)],
                _ => {
                    let piece = text[from..from + len].to_vec();
                    text.splice(at..at, piece);
                }
            }
        }
        let text = String::from_utf8_lossy(&text).into_owned();
        let messages = [Message::text("user", "Hi"), Message::text("assistant", "Ho")];
        let result = ChatTemplate::new(Some(&text), &tokenizer).and_then(|template| {
            template.render(&Conversation {
                messages: &messages,
                generation_prompt: GenerationPrompt::Added,
                variables: Vec::new(),
            })
        });
        match result {
            Ok(_) => rendered += 1,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                failed += 1;
            }
        }
    }
    println!("{failed} failed, {rendered} rendered in {:?}", start.elapsed());
    assert!(failed > 100 && rendered > 100);
}

#[test]
fn rendering_into_a_buffer_stops_at_its_end() {
    let (layout, table) = source(&["<|im_start|>"]).tables();
    let template = ChatTemplate::new(None, &Tokenizer::new(&layout, &table)).unwrap();
    let messages = [Message::text("user", "Hi")];
    let conversation = Conversation {
        messages: &messages,
        generation_prompt: GenerationPrompt::None,
        variables: Vec::new(),
    };
    let expected = "<|im_start|>user\nHi<|im_end|>\n";
    let mut out = [0; 30];
    let len_bytes = template.render_into(&conversation, &mut out).unwrap();
    assert_eq!(&out[..len_bytes], expected.as_bytes());
    for len_bytes_max in 0..expected.len() {
        let got = template.render_into(&conversation, &mut out[..len_bytes_max]);
        assert_eq!(got, Err(TemplateError::OutputTooLong { len_bytes_max }));
    }
}

fn render(
    template: Option<&str>,
    specials: &[&str],
    messages: &[(&str, &str)],
) -> Result<String, TemplateError> {
    let (layout, table) = source(specials).tables();
    let messages: Vec<Message<'_>> =
        messages.iter().map(|(role, content)| Message::text(role, content)).collect();
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
