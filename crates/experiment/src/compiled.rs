//! Compiled models: the files that the compared systems map. One is made by the product, the
//! others are copies, since pages of the cache belong to the group of whoever reads them first.
//!
//! A file appears under its name when it is whole. Beside it stands what it was made of, and by
//! which program, so that a folder which is used for another model or build is noticed.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use dctms_system::child::bind_to_parent;
use dctms_system::interrupt::stop_requested;

use crate::child::{end, tail};
use crate::outcome::{Class, Fault};
use crate::progress::Progress;

/// What is made of what.
#[derive(Clone, Copy, Debug)]
pub struct Compilation<'a> {
    /// The product.
    pub dctms: &'a Path,
    /// The model.
    pub model: &'a Path,
    /// The compiled forms that are wanted.
    pub to: &'a [PathBuf],
    /// Longest time for all of it.
    pub limit: Option<Duration>,
}

/// Makes the compiled forms that are not there.
///
/// # Errors
/// What the product says of the model, with its class; files that cannot be written; `Interrupted`
/// by a signal. What was begun is removed.
pub fn compile_all(what: &Compilation, progress: &Progress) -> Result<(), Fault> {
    let start = Instant::now();
    let of = origin(what.model) + &origin(what.dctms);
    for (index, to) in what.to.iter().enumerate() {
        if is_made(to, &of) {
            continue;
        }
        let fault = |error: std::io::Error| Fault::from(format!("{}: {error}", to.display()));
        let path = to.parent().map_or(Ok(()), std::fs::create_dir_all);
        path.map_err(fault)?;
        progress.note(&format!("compiling {} to {}", what.model.display(), to.display()));
        let part = beside(to, "part");
        let made = match index {
            0 => compile(what, &part, start),
            _ => copy(what, &part, start),
        };
        let named = made.and_then(|()| std::fs::rename(&part, to).map_err(fault));
        let named = named.and_then(|()| std::fs::write(beside(to, "of"), &of).map_err(fault));
        if let Err(fault) = named {
            let _ = std::fs::remove_file(&part);
            return Err(fault);
        }
    }
    Ok(())
}

/// The path with one more ending.
fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(end);
    PathBuf::from(name)
}

/// What tells a file from another: name, length, and when it was written.
fn origin(file: &Path) -> String {
    let facts = std::fs::metadata(file).ok();
    let bytes = facts.as_ref().map_or(0, std::fs::Metadata::len);
    let since = |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).ok();
    let changed = facts.and_then(|facts| facts.modified().ok()).and_then(since);
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    format!("{name}\t{bytes}\t{}\n", changed.map_or(0, |time| time.as_nanos()))
}

/// Whether a compiled form is there that was made of this.
fn is_made(to: &Path, of: &str) -> bool {
    to.is_file() && std::fs::read_to_string(beside(to, "of")).is_ok_and(|text| text == of)
}

fn compile(what: &Compilation, to: &Path, start: Instant) -> Result<(), Fault> {
    let fault = |text: String| format!("compiling {}: {text}", what.model.display());
    let log = beside(to, "log");
    let stderr = std::fs::File::create(&log).map_err(|error| fault(error.to_string()))?;
    let mut command = Command::new(what.dctms);
    command.arg("compile").arg(what.model).arg("-o").arg(to);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
    let mut child = bind_to_parent(&mut command)
        .spawn()
        .map_err(|error| Fault::from(fault(format!("{}: {error}", what.dctms.display()))))?;
    let done = await_end(&mut child, what, start);
    let said = tail(&log);
    let _ = std::fs::remove_file(&log);
    let status = done?;
    match status.success() {
        true => Ok(()),
        false => Err(Fault::new(
            Class::of_code(status.code()),
            fault(if said.is_empty() { status.to_string() } else { said }),
        )),
    }
}

fn await_end(
    child: &mut Child,
    what: &Compilation,
    start: Instant,
) -> Result<std::process::ExitStatus, Fault> {
    loop {
        match (child.try_wait(), in_time(what, start)) {
            (Ok(Some(status)), _) => return Ok(status),
            (Ok(None), Ok(())) => std::thread::sleep(Duration::from_millis(20)),
            (Ok(None), Err(fault)) => {
                end(child);
                return Err(fault);
            }
            (Err(error), _) => return Err(Fault::from(error.to_string())),
        }
    }
}

/// Bytes that are copied between two looks at the clock.
const PIECE_BYTES: usize = 8 << 20;

fn copy(what: &Compilation, to: &Path, start: Instant) -> Result<(), Fault> {
    let from = &what.to[0];
    let fault = |error: std::io::Error| Fault::from(format!("copying {}: {error}", from.display()));
    let mut input = std::fs::File::open(from).map_err(fault)?;
    let mut output = std::fs::File::create(to).map_err(fault)?;
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        in_time(what, start)?;
        match input.read(&mut piece).map_err(fault)? {
            // Pages that are not written yet cannot be dropped from the cache, and would be charged
            // to this program instead of the system that reads them.
            0 => return output.sync_all().map_err(fault),
            count => output.write_all(&piece[..count]).map_err(fault)?,
        }
    }
}

fn in_time(what: &Compilation, start: Instant) -> Result<(), Fault> {
    if stop_requested() {
        return Err(Fault::new(Class::Interrupted, "stopped; the same command goes on"));
    }
    match what.limit.is_some_and(|limit| start.elapsed() > limit) {
        true => Err(Fault::from("no time is left after compiling the model".to_string())),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::Voice;
    use std::os::unix::fs::PermissionsExt;

    /// A product that compiles by copying, or does what `script` says.
    fn product(folder: &Path, script: &str) -> PathBuf {
        let path = folder.join("product");
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn files_are_whole_and_of_this_model_or_not_there() {
        let folder = std::env::temp_dir().join(format!("experiment-made-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let model = folder.join("model");
        std::fs::write(&model, "one").unwrap();
        let to = [folder.join("work/a"), folder.join("work/b")];
        let progress = Progress::new(Voice::Silent);
        let all = |script: &str, limit: Option<Duration>| {
            let dctms = product(&folder, script);
            let what = Compilation { dctms: &dctms, model: &model, to: &to, limit };
            compile_all(&what, &progress)
        };
        let there = || -> Vec<String> {
            let entries = std::fs::read_dir(folder.join("work")).unwrap();
            let mut names: Vec<String> =
                entries.map(|it| it.unwrap().file_name().to_string_lossy().into_owned()).collect();
            names.sort();
            names
        };
        let broken = all("echo half > \"$4\"; echo 'field x is broken' >&2; exit 2", None);
        let broken = broken.unwrap_err();
        assert!(broken.class == Class::File && broken.what.contains("field x"), "{broken}");
        assert_eq!(there(), [""; 0], "nothing is left of it");
        let late = all("echo half > \"$4\"; sleep 60", Some(Duration::from_millis(300)));
        assert!(late.unwrap_err().what.contains("no time"), "it is cut off");
        assert_eq!(there(), [""; 0]);
        // What is there is not made again, until the model or the product is another one.
        let dctms = product(&folder, "cp \"$2\" \"$4\"; echo run >> \"$0.runs\"");
        let what = Compilation { dctms: &dctms, model: &model, to: &to, limit: None };
        let runs = || std::fs::read_to_string(folder.join("product.runs")).unwrap().lines().count();
        compile_all(&what, &progress).unwrap();
        assert_eq!(there(), ["a", "a.of", "b", "b.of"]);
        compile_all(&what, &progress).unwrap();
        assert_eq!(runs(), 1);
        std::fs::write(&model, "another").unwrap();
        compile_all(&what, &progress).unwrap();
        assert_eq!((runs(), &std::fs::read_to_string(&to[1]).unwrap()[..]), (2, "another"));
        all("echo otherwise > \"$4\"", None).unwrap();
        assert_eq!(std::fs::read_to_string(&to[1]).unwrap(), "otherwise\n");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
