//! What is asked of any text that may be a plan: the fuzz target and the seeded test share it.

use dctms_ir::{Plan, json};
use dctms_verifier::verify;
use sha2::{Digest as _, Sha256};

/// Reads a text as it is and with its digest mended. What is read must print and read back as
/// itself, and the checker must come to a verdict. The plan, when there is one.
pub fn read_and_ask(text: &str) -> Option<Plan> {
    let read = json::read(text).or_else(|_| json::read(&mended(text))).ok()?;
    let again = json::read(&json::write(&read)).expect("what was read prints as a plan");
    assert!(again == read, "a plan changes when it is printed and read");
    if let Ok(certificate) = verify(&read.program, &read) {
        assert!(certificate.is_of(&again));
    }
    Some(read)
}

/// The text with the digest that its bytes have, so that edits are looked at past the digest.
pub fn mended(text: &str) -> String {
    const KEY: &str = "\"digest\":\"";
    let Some(start) = text.rfind(KEY).map(|at| at + KEY.len()) else { return text.to_string() };
    let Some(end) = text[start..].find('"').map(|length| start + length) else {
        return text.to_string();
    };
    let mut hash = Sha256::new();
    hash.update(&text[..start]);
    hash.update(&text[end..]);
    let digest: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}{digest}{}", &text[..start], &text[end..])
}
