//! Files that a user names, read and written whole: bounded, with the file in every message.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use dctms_engine::{Class, EngineError};
use dctms_ir::Plan;

use crate::show::printable;

/// Longest plan file that is read, bytes: an 80-layer model on 8 lanes takes a tenth of it.
pub const PLAN_BYTES_MAX: u64 = 64 << 20;
/// Longest table of buffers that is read, bytes.
pub const CSV_BYTES_MAX: u64 = 256 << 20;
/// Heap of commands that read such files, bytes: address space, taken only as used.
const READING_HEAP_BYTES: usize = 4 << 30;
/// The least of it that is worth beginning with, where address space is limited, bytes.
const READING_HEAP_BYTES_MIN: usize = 16 << 20;

/// Opens the heap of a command that only reads, plans and prints.
///
/// # Errors
/// An operating system without room.
pub fn open_reading_heap() -> Result<(), EngineError> {
    Ok(crate::HEAP.open_compile_region_at_most(READING_HEAP_BYTES, READING_HEAP_BYTES_MIN)?)
}

/// A file's name as it may be printed.
#[must_use]
pub fn named(path: &Path) -> String {
    printable(&path.to_string_lossy())
}

/// The text of a file.
///
/// # Errors
/// Class `File`: it cannot be read, is longer than `bytes_max`, or is not UTF-8.
pub fn read_text(path: &Path, bytes_max: u64) -> Result<String, EngineError> {
    let fault = |what: String| EngineError::new(Class::File, format!("{}: {what}", named(path)));
    let bytes = read_at_most(path, bytes_max).map_err(fault)?;
    String::from_utf8(bytes)
        .map_err(|error| fault(format!("byte {} is not UTF-8", error.utf8_error().valid_up_to())))
}

/// The bytes of a file, whatever it is: a pipe or a device may say that it is empty and never
/// end. Takes no more memory than is read.
///
/// # Errors
/// What the operating system said, or that there are more than `bytes_max`.
pub fn read_at_most(path: &Path, bytes_max: u64) -> Result<Vec<u8>, String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    let expected = file.metadata().map_err(|error| error.to_string())?.len();
    if expected > bytes_max {
        return Err(format!("{expected} bytes, at most {bytes_max}"));
    }
    let mut bytes = Vec::with_capacity(expected as usize + 1);
    file.take(bytes_max + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    match bytes.len() as u64 > bytes_max {
        true => Err(format!("more than {bytes_max} bytes")),
        false => Ok(bytes),
    }
}

/// A plan from its JSON, digest checked.
///
/// # Errors
/// Class `File`: as [`read_text`], or the text is not a plan.
pub fn read_plan(path: &Path) -> Result<Plan, EngineError> {
    let text = read_text(path, PLAN_BYTES_MAX)?;
    dctms_ir::json::read(&text).map_err(|error| {
        let message = printable(&error.to_string());
        EngineError::new(Class::File, format!("{}: {message}", named(path)))
    })
}

/// Refuses to write over one of the files that are read: it could not be had back.
///
/// # Errors
/// Class `Usage`, with the name.
pub fn require_other(output: &Path, inputs: &[&Path]) -> Result<(), EngineError> {
    let identity = |path: &Path| std::fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
    let Some(own) = identity(output) else { return Ok(()) };
    match inputs.iter().any(|input| identity(input) == Some(own)) {
        true => {
            let what = format!("{}: is read from, and cannot be written over", named(output));
            Err(EngineError::new(Class::Usage, what))
        }
        false => Ok(()),
    }
}

/// Refuses to replace what is no ordinary file: a device, a pipe, a folder.
///
/// # Errors
/// Class `Usage`, with the name.
pub fn require_replaceable(output: &Path) -> Result<(), EngineError> {
    match std::fs::symlink_metadata(output) {
        Ok(file) if !file.is_file() => {
            let what = format!("{}: is there and is no ordinary file", named(output));
            Err(EngineError::new(Class::Usage, what))
        }
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Refuses a place where no file can be: a folder, or in a folder that is not there.
///
/// # Errors
/// Class `System`, with the name, as [`write()`] would say it later.
pub fn require_place(output: &Path) -> Result<(), EngineError> {
    let fault = |what: &str| {
        Err(EngineError::new(Class::System, format!("writing {}: {what}", named(output))))
    };
    let folder = output.parent().filter(|folder| !folder.as_os_str().is_empty());
    match output.is_dir() || output.as_os_str().is_empty() {
        true => fault("is a folder, or no name"),
        false if folder.is_some_and(|folder| !folder.is_dir()) => fault("its folder is not there"),
        false => Ok(()),
    }
}

/// Writes a file.
///
/// # Errors
/// Class `System`: what the operating system said.
pub fn write(path: &Path, text: &str) -> Result<(), EngineError> {
    std::fs::write(path, text).map_err(|error| {
        EngineError::new(Class::System, format!("writing {}: {error}", named(path)))
    })
}

/// Says something on standard error; nobody listening is no failure.
pub fn note(text: &str) {
    let _ = dctms_system::output::Stream::Error.write_all(text.as_bytes());
}
