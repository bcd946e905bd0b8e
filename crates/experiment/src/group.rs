//! Memory control groups: a limit that the kernel holds processes to.
//!
//! Version 1 and 2; making one needs root and a memory controller. Where that is not there, the
//! reason is given, and conditions that need a group are skipped by name. Where our groups are is
//! for `dctms_system` to say, as it does for the product: a system that is in a group of ours finds
//! that group's limit by the same way.

use std::fs::{create_dir, read_dir, read_to_string, remove_dir, write};
use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};

use dctms_system::cgroup::memory_groups;

/// A group that is removed when dropped. What is in it is killed first: systems were, but one may
/// have started processes that are in no group of processes of its own.
#[derive(Debug)]
pub struct Group {
    path: PathBuf,
}

/// Beginning of the names of our groups.
const PREFIX: &str = "dctms-experiment-";

/// Where groups of ours go, and by which version of the interface.
struct Parent {
    folder: PathBuf,
    version: Version,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Group {
    /// Makes a group whose processes may use `limit_bytes` of memory and no swap.
    ///
    /// # Errors
    /// Why it cannot be made, for people.
    pub fn new(name: &str, limit_bytes: u64) -> Result<Group, String> {
        let Parent { folder, version } = parent(Path::new("/"))?;
        let path = folder.join(format!("{PREFIX}{}-{name}", std::process::id()));
        create_dir(&path).map_err(|error| fault("making", &path, &error))?;
        let group = Group { path };
        let put = |file: &str, value: &str| {
            let file = group.path.join(file);
            write(&file, value).map_err(|error| fault("writing", &file, &error))
        };
        let limit = limit_bytes.to_string();
        // Memory with swap is held to the same limit, so that nothing is swapped. Where swap is not
        // counted there is no such file.
        let (limit_file, swap_file, swap_limit) = match version {
            Version::One => ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", &limit[..]),
            Version::Two => ("memory.max", "memory.swap.max", "0"),
        };
        put(limit_file, &limit)?;
        if group.path.join(swap_file).exists() {
            put(swap_file, swap_limit)?;
        }
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
    let Ok(Parent { folder, .. }) = parent(Path::new("/")) else { return };
    let Ok(entries) = read_dir(folder) else { return };
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

/// What cannot be done with a file of a group, for people.
fn fault(what: &str, path: &Path, error: &Error) -> String {
    let needs = if error.kind() == ErrorKind::PermissionDenied { " (needs root)" } else { "" };
    format!("{what} {}: {error}{needs}", path.display())
}

/// Where groups of ours go, under a root directory that tests replace. In version 1 that is our own
/// group. In version 2 it is the nearest one around us that hands memory on to its children: a
/// group that has processes of its own, as ours does, cannot.
///
/// # Errors
/// Why there is no such place.
fn parent(root: &Path) -> Result<Parent, String> {
    let groups = memory_groups(root);
    if let Some(folder) = groups.v1.first() {
        return Ok(Parent { folder: folder.clone(), version: Version::One });
    }
    let hands_on = |folder: &&PathBuf| {
        let controllers = read_to_string(folder.join("cgroup.subtree_control"));
        controllers.unwrap_or_default().split_whitespace().any(|it| it == "memory")
    };
    match (groups.v2.iter().find(hands_on), groups.v2.first()) {
        (Some(folder), _) => Ok(Parent { folder: folder.clone(), version: Version::Two }),
        (None, Some(own)) => Err(format!(
            "no group from {} up has \"memory\" in its cgroup.subtree_control",
            own.display()
        )),
        (None, None) => Err("no memory control groups are mounted".to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where groups go on a machine of these files, below its root; `None` where they cannot.
    fn place(name: &str, files: &[(&str, &str)]) -> Option<(String, Version)> {
        let root = format!("experiment-group-{name}-{}", std::process::id());
        let root = std::env::temp_dir().join(root);
        for (path, text) in files {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            write(path, text).unwrap();
        }
        let found = parent(&root);
        std::fs::remove_dir_all(&root).unwrap();
        let below = |folder: PathBuf| folder.strip_prefix(&root).unwrap().display().to_string();
        found.ok().map(|it| (below(it.folder), it.version))
    }

    const V1: &str = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
    const V2: &str = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
    /// What a container without a namespace of its own sees.
    const V2_PART: &str = "30 23 0:26 /docker/x /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";

    #[test]
    fn groups_of_version_1_go_into_our_own() {
        let files = [
            ("proc/self/mountinfo", V1),
            ("proc/self/cgroup", "5:cpu:/a\n4:memory:/jobs/7\n0::/\n"),
            ("sys/fs/cgroup/memory/jobs/7/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/unified/cgroup.subtree_control", "\n"),
        ];
        let expected = ("sys/fs/cgroup/memory/jobs/7".to_string(), Version::One);
        assert_eq!(place("v1", &files), Some(expected));
    }

    #[test]
    fn groups_of_version_2_go_to_who_hands_memory_on() {
        let own = ("proc/self/cgroup", "0::/user.slice/user-0.slice/session-1.scope\n");
        let files = [
            ("proc/self/mountinfo", V2),
            own,
            ("sys/fs/cgroup/cgroup.subtree_control", "cpu memory pids\n"),
            ("sys/fs/cgroup/user.slice/cgroup.subtree_control", "cpu memory pids\n"),
            ("sys/fs/cgroup/user.slice/user-0.slice/cgroup.subtree_control", "pids\n"),
            ("sys/fs/cgroup/user.slice/user-0.slice/session-1.scope/cgroup.procs", "1\n"),
        ];
        let expected = ("sys/fs/cgroup/user.slice".to_string(), Version::Two);
        assert_eq!(place("v2", &files), Some(expected));
        assert_eq!(place("v2-none", &files[..2]), None, "no group is there");
        let files = [("proc/self/mountinfo", V2), own, ("sys/fs/cgroup/cgroup.procs", "1\n")];
        assert_eq!(place("v2-not-handed-on", &files), None);
    }

    #[test]
    fn a_container_s_groups_are_below_what_its_mount_shows() {
        let files = [
            ("proc/self/mountinfo", V2_PART),
            ("proc/self/cgroup", "0::/docker/x/inner\n"),
            ("sys/fs/cgroup/cgroup.subtree_control", "memory\n"),
            ("sys/fs/cgroup/inner/cgroup.subtree_control", "\n"),
        ];
        let expected = ("sys/fs/cgroup".to_string(), Version::Two);
        assert_eq!(place("container", &files), Some(expected));
    }
}
