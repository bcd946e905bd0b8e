//! Where the control groups of this process are, for both versions of the interface.
//!
//! `/proc/self/cgroup` names the group of each hierarchy, `/proc/self/mountinfo` says where the
//! hierarchies are mounted and which group each mount shows as its root. A container sees a mount
//! whose root is its own group, or (with a namespace) a path that is already relative; both end
//! in the mount point itself.
//!
//! Believes: the two files, under any root directory, so that fixtures can stand for machines. Must
//! not know: what the groups limit.

use crate::limits::CGROUP_DEPTH_MAX;
use std::path::{Path, PathBuf};

/// A resource that groups limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Controller {
    Memory,
    Cpu,
}

/// The directories of our group and its ancestors up to the mount, ours first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Groups {
    /// In version 1 of the interface.
    pub v1: Vec<PathBuf>,
    /// In version 2.
    pub v2: Vec<PathBuf>,
}

/// The groups around this process that count its memory, under `root` (`/` on a real machine).
pub fn memory_groups(root: &Path) -> Groups {
    groups(root, Controller::Memory)
}

/// Finds the groups of this process for one resource under `root` (`/` on a real machine). A
/// hierarchy that is not there has no directories.
pub(crate) fn groups(root: &Path, controller: Controller) -> Groups {
    let read = |name: &str| std::fs::read_to_string(root.join(name)).unwrap_or_default();
    let membership = read("proc/self/cgroup");
    let mounts = read("proc/self/mountinfo");
    let directories = |version| {
        let path = group_path(&membership, version);
        let mount = mounts.lines().filter_map(Mount::parse).find(|mount| mount.serves(version));
        match (path, mount) {
            (Some(path), Some(mount)) => ancestors(root, &mount, path),
            (Some(_) | None, Some(_) | None) => Vec::new(),
        }
    };
    Groups { v1: directories(Version::One(controller)), v2: directories(Version::Two) }
}

#[derive(Clone, Copy)]
enum Version {
    One(Controller),
    Two,
}

impl Controller {
    fn name(self) -> &'static str {
        match self {
            Controller::Memory => "memory",
            Controller::Cpu => "cpu",
        }
    }
}

/// The path of our group in one hierarchy: the third field of `id:controllers:path`.
fn group_path(membership: &str, version: Version) -> Option<&str> {
    membership.lines().find_map(|line| {
        let (id, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let ours = match version {
            Version::One(controller) => controllers.split(',').any(|c| c == controller.name()),
            Version::Two => id == "0" && controllers.is_empty(),
        };
        ours.then_some(path)
    })
}

/// One line of `mountinfo`, as far as control groups need it.
struct Mount<'a> {
    /// The group that the mount point shows.
    shown_group: &'a str,
    mount_point: &'a str,
    kind: &'a str,
    options: &'a str,
}

impl<'a> Mount<'a> {
    /// `id parent major:minor root mount_point options [tags…] - kind source super_options`
    fn parse(line: &'a str) -> Option<Mount<'a>> {
        let (front, back) = line.split_once(" - ")?;
        let mut front = front.split(' ').skip(3);
        let (shown_group, mount_point) = (front.next()?, front.next()?);
        let mut back = back.split(' ');
        let (kind, _source) = (back.next()?, back.next()?);
        Some(Mount { shown_group, mount_point, kind, options: back.next().unwrap_or("") })
    }

    fn serves(&self, version: Version) -> bool {
        match version {
            Version::One(controller) => {
                self.kind == "cgroup" && self.options.split(',').any(|o| o == controller.name())
            }
            Version::Two => self.kind == "cgroup2",
        }
    }
}

/// Directories from our group up to the mount point.
fn ancestors(root: &Path, mount: &Mount<'_>, group: &str) -> Vec<PathBuf> {
    let top = root.join(mount.mount_point.trim_start_matches('/'));
    let shown = mount.shown_group.trim_end_matches('/');
    // A group outside what the mount shows is a container's: its own group is the mount point.
    let below = match group.strip_prefix(shown) {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => rest,
        Some(_) | None => "",
    };
    let names: Vec<&str> =
        below.split('/').filter(|name| !name.is_empty()).take(CGROUP_DEPTH_MAX).collect();
    let names = if names.contains(&"..") { Vec::new() } else { names };
    (0..=names.len())
        .rev()
        .map(|depth| names[..depth].iter().fold(top.clone(), |path, name| path.join(name)))
        .filter(|path| path.is_dir())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn membership_lines_are_understood() {
        let text = "12:cpu,cpuacct:/a\n4:memory:/b/c:d\n1:name=systemd:/\n0::/e\n";
        assert_eq!(group_path(text, Version::One(Controller::Memory)), Some("/b/c:d"));
        assert_eq!(group_path(text, Version::One(Controller::Cpu)), Some("/a"));
        assert_eq!(group_path(text, Version::Two), Some("/e"));
        assert_eq!(group_path("nonsense\n1:memory\n", Version::One(Controller::Memory)), None);
    }

    #[test]
    fn mount_lines_are_understood() {
        let line =
            "35 31 0:32 /docker/x /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory";
        let mount = Mount::parse(line).unwrap();
        assert_eq!((mount.shown_group, mount.mount_point), ("/docker/x", "/sys/fs/cgroup/memory"));
        assert!(mount.serves(Version::One(Controller::Memory)));
        assert!(!mount.serves(Version::One(Controller::Cpu)) && !mount.serves(Version::Two));
        assert!(Mount::parse("35 31 0:32 /").is_none());
    }
}
