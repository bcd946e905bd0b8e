//! Systems from words: the product and what it is compared with, llama.cpp's server, and adapters.
//! How words are shown, too: a report names files without their folders.

use std::path::Path;

use crate::child::{Asked, SystemCommand, help_of, require_program};
use crate::protocol::{DYNAMIC, PRODUCT};

/// Own systems by name.
pub(crate) const SYSTEMS: [&str; 3] = [DYNAMIC, "prototype", PRODUCT];
/// llama.cpp's server as it comes, and without mapping.
const LLAMA: &str = "llama.cpp";
const LLAMA_NO_MMAP: &str = "llama.cpp-no-mmap";
/// The first port that servers get.
const FIRST_PORT: u16 = 18_431;

/// What every system is given.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Tokens of a prompt and an answer.
    pub context: u64,
    /// Threads.
    pub lanes: u64,
}

/// llama.cpp's server in its default mode, and without mapping by these words.
pub(crate) fn llama_systems(
    server: &Path,
    model: &Path,
    bounds: Bounds,
    unmapped: &[&str],
) -> Vec<SystemCommand> {
    let system = |name: &str, port: u16, more: &[&str]| {
        let words = [
            server.display().to_string(),
            "-m".to_string(),
            model.display().to_string(),
            "-c".to_string(),
            bounds.context.to_string(),
            "-t".to_string(),
            bounds.lanes.to_string(),
            "-tb".to_string(),
            bounds.lanes.to_string(),
            "-np".to_string(),
            "1".to_string(),
            "--port".to_string(),
            port.to_string(),
        ];
        let words = words.into_iter().chain(more.iter().map(ToString::to_string)).collect();
        SystemCommand { name: name.to_string(), words, asked: Asked::Http { port } }
    };
    vec![system(LLAMA, FIRST_PORT, &[]), system(LLAMA_NO_MMAP, FIRST_PORT + 1, unmapped)]
}

/// The words by which a version of llama.cpp's server does not map its model: an older one has an
/// option for it, a newer one a mode. A server that is not there is told of later.
///
/// # Errors
/// One that says nothing to `--help`, or not in time: with other words than the last time its calls
/// would be of other settings.
pub(crate) fn not_mapped(server: &Path) -> Result<&'static [&'static str], String> {
    if require_program(&server.display().to_string()).is_err() {
        return Ok(NO_MMAP);
    }
    match help_of(server) {
        help if help.is_empty() => {
            Err(format!("--llama-server {}: it says nothing to --help", server.display()))
        }
        help if help.contains("--load-mode") => Ok(&["--load-mode", "none"]),
        _ => Ok(NO_MMAP),
    }
}

/// The option of older ones.
pub(crate) const NO_MMAP: &[&str] = &["--no-mmap"];

/// `NAME=COMMAND`. A name stands in file names and tables.
pub(crate) fn adapter(text: &str) -> Result<SystemCommand, String> {
    let bad = |why: &str| format!("--adapter {text}: {why}");
    let (name, command) = text.split_once('=').ok_or_else(|| bad("NAME=COMMAND"))?;
    let words: Vec<String> = command.split_whitespace().map(str::to_string).collect();
    if words.is_empty() {
        return Err(bad("NAME=COMMAND"));
    }
    let is_plain = |it: char| it.is_ascii_alphanumeric() || "._-".contains(it);
    if !name.starts_with(|it: char| it.is_ascii_alphanumeric()) || !name.chars().all(is_plain) {
        return Err(bad("a name is of letters, digits, \".\", \"_\" and \"-\""));
    }
    if SYSTEMS.contains(&name) || [LLAMA, LLAMA_NO_MMAP].contains(&name) {
        return Err(bad("that is the name of a system that comes with the experiment"));
    }
    Ok(SystemCommand { name: name.to_string(), words, asked: Asked::Lines })
}

/// Refuses two systems of one name, and none at all.
pub(crate) fn require_told_apart(systems: &[SystemCommand]) -> Result<(), String> {
    if systems.is_empty() {
        return Err("no system is asked for".to_string());
    }
    for (index, system) in systems.iter().enumerate() {
        if systems[..index].iter().any(|other| other.name == system.name) {
            return Err(format!("two systems are called {}", system.name));
        }
    }
    Ok(())
}

/// Words as a report shows them and a shell reads them: files by their names, since folders are
/// another machine's affair.
#[must_use]
pub fn shown_words(words: &[String]) -> String {
    let shown = |word: &String| match word.split_once('=') {
        Some((name, value)) if value.contains('/') => {
            quoted(&format!("{name}={}", file_name(value)))
        }
        _ => quoted(file_name(word)),
    };
    words.iter().map(shown).collect::<Vec<_>>().join(" ")
}

/// A word as a shell takes it for one.
fn quoted(word: &str) -> String {
    let is_plain = |it: char| it.is_alphanumeric() || "-_./=,:+@%".contains(it);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_string(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// What stands behind the last slash.
pub(crate) fn file_name(word: &str) -> &str {
    word.trim_end_matches('/').rsplit('/').next().unwrap_or(word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn reports_show_no_folders() {
        let words = ["/opt/x/dctms", "run", "a/b.gguf", "--requests", "-", "mlx=/py/bin/py"];
        let words = words.map(str::to_string);
        assert_eq!(shown_words(&words), "dctms run b.gguf --requests - mlx=py");
    }

    #[test]
    fn a_server_is_asked_how_it_does_not_map_and_has_to_say_it() {
        let folder = std::env::temp_dir().join(format!("experiment-help-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let of = |name: &str, script: &str| {
            let path = folder.join(name);
            std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
            not_mapped(&path)
        };
        assert_eq!(of("old", "echo '--no-mmap'"), Ok(NO_MMAP));
        assert_eq!(of("new", "echo '--load-mode MODE' >&2").unwrap()[0], "--load-mode");
        assert!(of("mute", "exit 0").unwrap_err().contains("mute: it says nothing"));
        assert_eq!(not_mapped(&folder.join("absent")), Ok(NO_MMAP));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
