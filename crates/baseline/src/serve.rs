//! Requests and answers as lines of JSON, one process for one system: what `dctms run --requests -`
//! understands too.
//!
//! ```text
//! → {"prompt": "…", "max_tokens": 32}
//! ← {"text": "…", "prompt_tokens": 40, "decode_tokens": 32, "ttft_ms": …, "decode_ms": …}
//! ```
//!
//! A request that cannot be answered gets `{"error": "…"}`, and the process lives on.

use std::io::{BufRead, Write};

use dctms_engine::{Class, EngineError};
use serde_json::{Value, json};

use crate::system::{Answer, Digest, Limits, System};

/// Answers every line of `input`, with the digest of logits if wanted; says `{"ready": true}` first.
///
/// # Errors
/// A stream that breaks.
pub fn serve(
    system: &mut System,
    digest: Digest,
    input: &mut dyn BufRead,
    output: &mut dyn Write,
) -> std::io::Result<()> {
    say(output, &json!({ "ready": true }))?;
    let mut line = String::new();
    while input.read_line(&mut line)? > 0 {
        if !line.trim().is_empty() {
            let answer = answer(system, &line, digest);
            let answer = answer.unwrap_or_else(|error| json!({ "error": error.to_string() }));
            say(output, &answer)?;
        }
        line.clear();
    }
    Ok(())
}

fn say(output: &mut dyn Write, value: &Value) -> std::io::Result<()> {
    writeln!(output, "{value}")?;
    output.flush()
}

fn answer(system: &mut System, line: &str, digest: Digest) -> Result<Value, EngineError> {
    let usage = |what: String| EngineError::new(Class::Usage, what);
    let request: Value = serde_json::from_str(line).map_err(|error| usage(error.to_string()))?;
    let prompt = request["prompt"].as_str().ok_or_else(|| usage("no \"prompt\"".to_string()))?;
    let tokens = request["max_tokens"].as_u64().unwrap_or(256) as usize;
    let answer = system.answer(prompt, Limits { tokens, digest })?;
    Ok(described(&answer))
}

fn described(answer: &Answer) -> Value {
    let mut value = json!({
        "text": answer.text,
        "prompt_tokens": answer.prompt_tokens,
        "decode_tokens": answer.tokens.len(),
        "ttft_ms": answer.first_token_s * 1e3,
        "decode_ms": answer.decode_s * 1e3,
    });
    if let Some(digest) = answer.logits_sha256 {
        let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        value["logits_sha256"] = hex.into();
    }
    value
}
