//! What tests of the protocol share: a folder, systems that are small scripts, the program.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use dctms_experiment::record::{Call, parse_calls};

/// The program.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_dctms-experiment");

/// An answer, as a line of a script.
pub const ANSWER: &str =
    r#"echo '{"text": "yes", "prompt_tokens": 3, "decode_tokens": 2, "ttft_ms": 0.001}'"#;

/// A folder of the test's own, removed at its end.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Folder {
        let folder = std::env::temp_dir().join(format!("experiment-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        Folder(folder)
    }

    /// A script that reads requests; `$n` is the number of the request, from 1.
    pub fn script(&self, name: &str, on_request: &str) -> String {
        let text = format!(
            "echo '{{\"ready\": true}}'\nn=0\nwhile read -r line; do\nn=$((n + 1))\n\
             {on_request}\ndone"
        );
        self.program(name, &text)
    }

    /// A script that does what it says.
    pub fn program(&self, name: &str, text: &str) -> String {
        use std::os::unix::fs::PermissionsExt;
        let path = self.0.join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path.display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The program with no systems of ours.
pub fn experiment(out: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(["--systems", "", "--model", "none.gguf", "--out"]);
    command.arg(out).args(words).stdin(Stdio::null()).stdout(Stdio::piped());
    // One runs on a machine at a time; tests beside each other are on machines of their own.
    command.env("TMPDIR", out.parent().unwrap());
    if !words.contains(&"--conditions") && !words.contains(&"--quick") {
        command.args(["--conditions", "none"]);
    }
    command.stderr(Stdio::piped());
    command
}

/// Exit code, standard output, standard error.
#[allow(dead_code, reason = "not every test file looks at all of it")]
pub fn ended(command: &mut Command) -> (Option<i32>, String, String) {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// The calls that are on disk.
pub fn calls(out: &Path) -> Vec<Call> {
    parse_calls(&std::fs::read_to_string(out.join("calls.csv")).unwrap_or_default())
}

/// Waits until something is so.
#[allow(dead_code, reason = "not every test file waits")]
pub fn wait(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(60), "not in time: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
