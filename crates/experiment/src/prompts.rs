//! The five prompts, one for each category of the paper (§3.6). They stand in a data file, so that
//! an experiment with other prompts is an experiment with another file.

use std::path::Path;

use serde_json::Value;

/// A prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// `P1` to `P5`.
    pub id: String,
    /// What kind of task it is.
    pub category: String,
    /// The text.
    pub text: String,
}

/// The prompts that come with the program.
const BUILT_IN: &str = include_str!("../data/prompts.json");

/// The prompts of a file, or the program's own.
///
/// # Errors
/// A file that cannot be read, or that is not a list of prompts.
pub fn prompts(path: Option<&Path>) -> Result<Vec<Prompt>, String> {
    match path {
        None => parse(BUILT_IN),
        Some(path) => {
            let text = std::fs::read_to_string(path);
            let text = text.map_err(|error| format!("{}: {error}", path.display()))?;
            parse(&text).map_err(|what| format!("{}: {what}", path.display()))
        }
    }
}

fn parse(text: &str) -> Result<Vec<Prompt>, String> {
    let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let list = value.as_array().filter(|list| !list.is_empty());
    let list = list.ok_or("expected a list of prompts")?;
    let field = |value: &Value, name: &str| {
        let text = value[name].as_str().filter(|text| !text.is_empty());
        text.map(str::to_string).ok_or_else(|| format!("a prompt without \"{name}\""))
    };
    let prompt = |value: &Value| -> Result<Prompt, String> {
        let id = field(value, "id")?;
        if !id.chars().all(|it| it.is_ascii_alphanumeric()) {
            return Err(format!("id {id:?}: letters and digits only"));
        }
        Ok(Prompt { id, category: field(value, "category")?, text: field(value, "prompt")? })
    };
    let prompts: Vec<Prompt> = list.iter().map(prompt).collect::<Result<_, _>>()?;
    for (index, prompt) in prompts.iter().enumerate() {
        if prompts[..index].iter().any(|other| other.id == prompt.id) {
            return Err(format!("two prompts are called {}", prompt.id));
        }
    }
    Ok(prompts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_prompt_for_each_category_of_the_paper() {
        let prompts = prompts(None).unwrap();
        let ids: Vec<&str> = prompts.iter().map(|prompt| prompt.id.as_str()).collect();
        assert_eq!(ids, ["P1", "P2", "P3", "P4", "P5"]);
        let lengths: Vec<usize> = prompts.iter().map(|prompt| prompt.text.len()).collect();
        assert!(lengths[4] > 2 * lengths[2] && lengths[2] > 2 * lengths[1], "{lengths:?}");
        let twice = r#"{"id": "a", "category": "c", "prompt": "p"}"#;
        assert!(parse(&format!("[{twice}, {twice}]")).unwrap_err().contains("two prompts"));
        assert!(parse("[]").is_err() && parse(r#"[{"id": "a,b"}]"#).is_err());
    }
}
