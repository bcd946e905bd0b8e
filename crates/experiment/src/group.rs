//! Memory control groups: a limit that the kernel holds processes to.
//!
//! Version 1 and 2; making one needs root and a memory controller. Where that is not there, the
//! reason is given, and conditions that need a group are skipped by name.

use std::fs::{create_dir, read_dir, read_to_string, remove_dir, write};
use std::path::{Path, PathBuf};

/// A group that is removed when dropped. What is in it is killed first: systems were, but one may
/// have started processes that are in no group of processes of its own.
#[derive(Debug)]
pub struct Group {
    path: PathBuf,
}

/// Beginning of the names of our groups.
const PREFIX: &str = "dctms-experiment-";

/// The mounted controller: where groups of ours go, and what its files are called.
struct Controller {
    folder: PathBuf,
    limit_file: &'static str,
    swap_file: &'static str,
}

impl Group {
    /// Makes a group whose processes may use `limit_bytes` of memory and no swap.
    ///
    /// # Errors
    /// Why it cannot be made, for people.
    pub fn new(name: &str, limit_bytes: u64) -> Result<Group, String> {
        let controller = controller(
            &read_to_string("/proc/mounts").unwrap_or_default(),
            &read_to_string("/proc/self/cgroup").unwrap_or_default(),
        )?;
        let path = controller.folder.join(format!("{PREFIX}{}-{name}", std::process::id()));
        let fault = |what: &str, error: std::io::Error| {
            format!("{what} {}: {error} (needs root)", path.display())
        };
        create_dir(&path).map_err(|error| fault("making", error))?;
        let group = Group { path: path.clone() };
        write(path.join(controller.limit_file), limit_bytes.to_string())
            .map_err(|error| fault("no memory controller in", error))?;
        // Where there is no swap there is no such file, or nothing to forbid.
        let _ = write(path.join(controller.swap_file), "0");
        Ok(group)
    }

    /// The folder, for a process to enter.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A process that was just killed leaves a moment later.
        for _ in 0..50 {
            if remove_dir(&self.path).is_ok() {
                return;
            }
            empty(&self.path);
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

/// Kills what is in a group.
fn empty(group: &Path) {
    let pids = read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    pids.lines().filter_map(|pid| pid.parse().ok()).for_each(dctms_system::child::kill_process);
}

/// Removes groups that an earlier experiment left behind when it was killed.
pub fn remove_left_behind() {
    let controller = controller(
        &read_to_string("/proc/mounts").unwrap_or_default(),
        &read_to_string("/proc/self/cgroup").unwrap_or_default(),
    );
    let Ok(entries) = controller.and_then(|it| read_dir(it.folder).map_err(|e| e.to_string()))
    else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(rest) = name.strip_prefix(PREFIX) else { continue };
        // Another experiment's is in use: its number is that of a process that is there.
        let owner: Option<u32> = rest.split('-').next().and_then(|pid| pid.parse().ok());
        if owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            drop(Group { path: entry.path() });
        }
    }
}

/// The memory controller, from the texts of `/proc/mounts` and `/proc/self/cgroup`.
fn controller(mounts: &str, own: &str) -> Result<Controller, String> {
    let mount = |kind: &str, option: Option<&str>| {
        mounts.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            let [_, folder, its_kind, options, ..] = fields[..] else { return None };
            let has = option.is_none_or(|option| options.split(',').any(|it| it == option));
            (its_kind == kind && has).then(|| folder.to_string())
        })
    };
    let own_path = |controller: &str| {
        own.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let (names, path) = (fields.next()?, fields.next()?);
            names.split(',').any(|name| name == controller).then(|| path.to_string())
        })
    };
    let inside = |mount: String, path: Option<String>| {
        PathBuf::from(mount).join(path.unwrap_or_default().trim_start_matches('/'))
    };
    if let Some(folder) = mount("cgroup", Some("memory")) {
        return Ok(Controller {
            folder: inside(folder, own_path("memory")),
            limit_file: "memory.limit_in_bytes",
            swap_file: "memory.swappiness",
        });
    }
    match mount("cgroup2", None) {
        Some(folder) => Ok(Controller {
            folder: inside(folder, own_path("")),
            limit_file: "memory.max",
            swap_file: "memory.swap.max",
        }),
        None => Err("no memory control groups are mounted".to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_are_found_in_recorded_mounts() {
        let mounts = "proc /proc proc rw 0 0\ncgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n";
        let found = controller(mounts, "5:cpu:/a\n4:memory:/jobs/7\n").unwrap();
        assert_eq!(found.folder, Path::new("/sys/fs/cgroup/memory/jobs/7"));
        assert_eq!(found.limit_file, "memory.limit_in_bytes");
        let mounts = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n";
        let found = controller(mounts, "0::/user.slice\n").unwrap();
        assert_eq!(found.folder, Path::new("/sys/fs/cgroup/user.slice"));
        assert_eq!(found.limit_file, "memory.max");
        assert!(controller("proc /proc proc rw 0 0\n", "").is_err());
    }
}
