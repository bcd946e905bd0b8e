//! One experiment at a time: in a folder, since two would write one file, and on a machine, since
//! each would be measured beside the other, which no figure shows.
//!
//! Locks are the kernel's, on an open file: they are gone with the process, however it ends.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::outcome::{Class, Fault};

/// What is locked, until it is dropped.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

/// Takes the folder of results.
///
/// # Errors
/// Class `Usage` where another process has it; else that it cannot be opened.
pub fn lock_folder(out: &Path) -> Result<Lock, Fault> {
    let fault = |error: std::io::Error| Fault::from(format!("{}: {error}", out.display()));
    let folder = File::open(out).map_err(fault)?;
    let taken =
        || Fault::new(Class::Usage, format!("{}: another experiment writes there", out.display()));
    take(folder, out, taken)
}

/// Takes the machine: a file of this name in the folder of temporary files.
///
/// # Errors
/// Class `Usage` where another experiment has it; else that the file cannot be opened.
pub fn lock_machine() -> Result<Lock, Fault> {
    lock_machine_in(&std::env::temp_dir())
}

/// The file's name.
const MACHINE: &str = "dctms-experiment.lock";

fn lock_machine_in(folder: &Path) -> Result<Lock, Fault> {
    let path: PathBuf = folder.join(MACHINE);
    let file = open_or_make(&path);
    let file = file.map_err(|error| Fault::from(format!("{}: {error}", path.display())))?;
    let taken = || {
        let what = format!(
            "another experiment is running on this machine (it holds {}): each would be measured \
             beside the other; start this one when that one is done",
            path.display()
        );
        Fault::new(Class::Usage, what)
    };
    take(file, &path, taken)
}

/// Another user's file is opened too: to lock it, reading is enough.
fn open_or_make(path: &Path) -> std::io::Result<File> {
    match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            OpenOptions::new().create(true).append(true).open(path)
        }
        other => other,
    }
}

fn take(file: File, path: &Path, taken: impl Fn() -> Fault) -> Result<Lock, Fault> {
    match file.try_lock() {
        Ok(()) => Ok(Lock { _file: file }),
        Err(TryLockError::WouldBlock) => Err(taken()),
        Err(TryLockError::Error(error)) => Err(Fault::from(format!("{}: {error}", path.display()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_and_a_machine_are_for_one_at_a_time() {
        let out = std::env::temp_dir().join(format!("experiment-lock-{}", std::process::id()));
        std::fs::create_dir_all(&out).unwrap();
        for (lock, part) in [
            (lock_folder as fn(&Path) -> Result<Lock, Fault>, "another experiment writes"),
            (lock_machine_in, "another experiment is running on this machine"),
        ] {
            let first = lock(&out).unwrap();
            let refused = lock(&out).unwrap_err();
            assert!(refused.class == Class::Usage && refused.what.contains(part), "{refused}");
            drop(first);
            drop(lock(&out).unwrap());
        }
        std::fs::remove_dir_all(&out).unwrap();
        for lock in [lock_folder as fn(&Path) -> Result<Lock, Fault>, lock_machine_in] {
            assert_eq!(lock(&out).unwrap_err().class, Class::System);
        }
    }
}
