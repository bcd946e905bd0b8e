//! From what the user gave to token ids.

use std::path::Path;

use dctms_engine::eyes::Placed;
use dctms_engine::model::Vocabulary;
use dctms_engine::{Class, EngineError, Model};
use dctms_text::{
    ChatTemplate, Content, Conversation, EncodeOptions, Ends, GenerationPrompt, Message, Scratch,
    SpecialText, Tokenizer,
};

use dctms_engine::planning::prompt_bytes_max;

use super::images::{self, Marks, Stretch};
use super::options::{Input, RunArgs, usage};
use crate::commands::files::read_at_most;
use crate::failure::on_template;

/// Longest file of prompts or of ids, bytes: within the heap of the stage that reads it.
const PROMPT_FILE_BYTES_MAX: u64 = 1 << 20;

/// The prompts as token ids, one a sequence.
///
/// # Errors
/// A file that cannot be read, a prompt that is empty, a template that fails.
pub fn read(
    args: &RunArgs,
    model: &Model,
    placed: &[Placed],
) -> Result<Vec<Vec<u32>>, EngineError> {
    match &args.input {
        Input::Chat | Input::Requests(_) => {
            Err(usage("a prompt is needed: -p TEXT or -f FILE".to_string()))
        }
        Input::Ids(path) => Ok(vec![ids(&read_file(path, PROMPT_FILE_BYTES_MAX)?, model)?]),
        Input::Text(text) => texts(args, (model, placed), &[text.as_str()]),
        Input::File(path) => {
            let bytes_max = PROMPT_FILE_BYTES_MAX.max(prompt_bytes_max(model));
            texts(args, (model, placed), &[&read_file(path, bytes_max)?])
        }
        Input::Lines(path) => {
            let file = read_file(path, PROMPT_FILE_BYTES_MAX)?;
            let prompts = json_lines(&file)?;
            let prompts: Vec<&str> = prompts.iter().map(String::as_str).collect();
            texts(args, (model, placed), &prompts)
        }
    }
}

fn read_file(path: &Path, bytes_max: u64) -> Result<String, EngineError> {
    let fail = |what: String| EngineError::new(Class::Usage, format!("{}: {what}", path.display()));
    let bytes = read_at_most(path, bytes_max).map_err(fail)?;
    String::from_utf8(bytes)
        .map_err(|error| fail(format!("byte {} is not UTF-8", error.utf8_error().valid_up_to())))
}

/// Token ids separated by white space or commas (a JSON array of numbers is one such text).
fn ids(text: &str, model: &Model) -> Result<Vec<u32>, EngineError> {
    let separators = |c: char| c.is_whitespace() || matches!(c, ',' | '[' | ']');
    let mut ids = Vec::new();
    for word in text.split(separators).filter(|word| !word.is_empty()) {
        match word.parse::<u32>() {
            Ok(id) if u64::from(id) < model.config.vocabulary => ids.push(id),
            _ => {
                return Err(usage(format!(
                    "--prompt-ids: {word} is no token id below {}",
                    model.config.vocabulary
                )));
            }
        }
        check_context(ids.len(), model)?;
    }
    if ids.is_empty() {
        return Err(usage("--prompt-ids: the file has no token ids".to_string()));
    }
    Ok(ids)
}

/// Refuses what no plan of the model can hold, before more of it is kept.
fn check_context(tokens: usize, model: &Model) -> Result<(), EngineError> {
    let context = model.config.context;
    match tokens as u64 > context {
        true => Err(EngineError::new(
            Class::OverBound,
            format!("a prompt of {tokens} tokens or more passes the model's context of {context}"),
        )),
        false => Ok(()),
    }
}

/// One prompt a line: a JSON string, or an object with `prompt`.
fn json_lines(text: &str) -> Result<Vec<String>, EngineError> {
    let mut prompts = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let bad = |what: &str| usage(format!("--prompts, line {}: {what}", index + 1));
        let value: serde_json::Value =
            serde_json::from_str(line).map_err(|error| bad(&error.to_string()))?;
        let prompt = value.as_str().or_else(|| value.get("prompt").and_then(|v| v.as_str()));
        prompts.push(prompt.ok_or_else(|| bad("no string and no \"prompt\""))?.to_string());
    }
    if prompts.is_empty() || prompts.len() > dctms_engine::generation::SEQUENCES_MAX {
        return Err(usage(format!(
            "--prompts: {} prompts, expected 1 to {}",
            prompts.len(),
            dctms_engine::generation::SEQUENCES_MAX
        )));
    }
    Ok(prompts)
}

fn texts(
    args: &RunArgs,
    (model, placed): (&Model, &[Placed]),
    prompts: &[&str],
) -> Result<Vec<Vec<u32>>, EngineError> {
    let vocabulary = model.vocabulary.as_ref().ok_or_else(|| {
        EngineError::new(Class::File, "the model has no tokeniser: give --prompt-ids".to_string())
    })?;
    let mut tables = vec![0; vocabulary.layout.len_bytes()];
    let bytes = model.vocabulary_bytes(vocabulary)?;
    dctms_text::build(&vocabulary.layout, &vocabulary.info.view(&bytes), &mut tables)
        .map_err(|error| EngineError::new(Class::File, error))?;
    drop(bytes);
    let tokenizer = Tokenizer::new(&vocabulary.layout, &tables);
    let one = |prompt: &&str| one_text(args, (model, placed), vocabulary, &tokenizer, prompt);
    prompts.iter().map(one).collect()
}

fn one_text(
    args: &RunArgs,
    (model, placed): (&Model, &[Placed]),
    vocabulary: &Vocabulary,
    tokenizer: &Tokenizer<'_>,
    prompt: &str,
) -> Result<Vec<u32>, EngineError> {
    let longest = prompt_bytes_max(model);
    if prompt.len() as u64 > longest {
        return Err(EngineError::new(
            Class::OverBound,
            format!(
                "the prompt has {} bytes, at most {longest} can be tokens of the model's context \
                 of {}",
                prompt.len(),
                model.config.context
            ),
        ));
    }
    let marks = match args.raw {
        true => Marks::Ours,
        false => Marks::of(model.template.as_deref()),
    };
    let marked;
    let prompt = match placed {
        [] => prompt,
        placed => {
            images::check_text(prompt, marks)?;
            marked = images::MARK.repeat(placed.len()) + prompt;
            marked.as_str()
        }
    };
    let rendered;
    let (text, special_text, ends) = match args.raw {
        true => (prompt, SpecialText::PlainText, Ends::AsMetadata),
        false => {
            let content = images::content(prompt, marks);
            rendered = on_template(|| render(args, model, tokenizer, content))?;
            (rendered.as_str(), SpecialText::Parse, Ends::Template)
        }
    };
    let kind = vocabulary.layout.facts().kind;
    let scratch_bytes = text.len().max(images::PICTURE_TEXT_BYTES_MAX);
    let mut scratch = Scratch::with_text_bytes_max(kind, scratch_bytes);
    let mut ids = Vec::new();
    let mut take = |stretch: Stretch<'_>| -> Result<(), EngineError> {
        let (text, special_text, ends) = match stretch {
            Stretch::Text(text, ends) => (text, special_text, ends),
            Stretch::Picture(text) => (text, SpecialText::Parse, Ends::None),
            Stretch::Token(token) => {
                ids.push(token);
                return Ok(());
            }
        };
        let options = EncodeOptions { special_text, ends };
        tokenizer
            .encode(text.as_bytes(), options, &mut scratch, &mut |id| ids.push(id))
            .map_err(|error| EngineError::new(Class::OverBound, error))?;
        Ok(())
    };
    match model.eyes.as_ref().filter(|_| !placed.is_empty()) {
        None => take(Stretch::Text(text, ends))?,
        Some(eyes) => {
            images::stretches(text, marks.mark(), (&eyes.tiler(), placed), ends, &mut take)?;
        }
    }
    if ids.is_empty() {
        return Err(usage("the prompt is empty".to_string()));
    }
    check_context(ids.len(), model)?;
    Ok(ids)
}

fn render(
    args: &RunArgs,
    model: &Model,
    tokenizer: &Tokenizer<'_>,
    prompt: Content<'_>,
) -> Result<String, EngineError> {
    let file = |error: dctms_text::TemplateError| EngineError::new(Class::File, error);
    let template = ChatTemplate::new(model.template.as_deref(), tokenizer).map_err(file)?;
    let mut messages = Vec::new();
    if let Some(system) = &args.system {
        messages.push(Message {
            role: "system",
            content: Content::Text(system),
            fields: Vec::new(),
        });
    }
    messages.push(Message { role: "user", content: prompt, fields: Vec::new() });
    let conversation = Conversation {
        messages: &messages,
        generation_prompt: GenerationPrompt::Added,
        variables: Vec::new(),
    };
    template.render(&conversation).map_err(file)
}
