//! How much memory there is for us: the least of the machine and of every control group around
//! the process, and where that figure came from.
//!
//! The *limit* is a property of the machine and goes into plans. What is *available* just now is
//! the least headroom over the same levels, where file cache that the kernel can drop is not in
//! use; it only decides whether to start.
//!
//! Believes: the kernel's files, under a root directory that tests replace by fixtures. A file that
//! is missing or cannot be read sets no limit. Must not know: plans.

use crate::cgroup::{self, Controller};
use crate::error::SystemError;
use crate::facts::{FactFile, kib_field_bytes, plain_field};
use crate::limits::FACT_FILE_BYTES_MAX;
use std::path::Path;

pub use crate::sys::page_bytes;

/// Where a memory limit came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemorySource {
    /// `memory.max` of a version 2 group.
    CgroupV2,
    /// `memory.limit_in_bytes` of a version 1 group.
    CgroupV1,
    /// `MemTotal` of `/proc/meminfo`.
    Meminfo,
}

impl MemorySource {
    /// The name in plans.
    pub fn name(self) -> &'static str {
        match self {
            MemorySource::CgroupV2 => "cgroup-v2",
            MemorySource::CgroupV1 => "cgroup-v1",
            MemorySource::Meminfo => "meminfo",
        }
    }
}

/// The memory that this process may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineMemory {
    /// The least limit around the process, in bytes.
    pub limit_bytes: u64,
    /// Which limit it is.
    pub source: MemorySource,
    /// The least headroom just now over all levels, in bytes: limit less what is used and cannot
    /// be dropped.
    pub available_bytes: u64,
}

/// One level that limits: a group or the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Level {
    limit_bytes: u64,
    used_bytes: u64,
    source: MemorySource,
}

/// Version 1 says "no limit" with the largest multiple of the page size in 63 bits; anything of
/// that order is no limit.
const UNLIMITED_BYTES_MIN: u64 = 1 << 62;

/// The memory of this machine.
///
/// # Errors
/// `Fact` when not even `/proc/meminfo` states a size.
pub fn machine_memory() -> Result<MachineMemory, SystemError> {
    machine_memory_under(Path::new("/"))
}

/// As `machine_memory`, reading `root/proc/…` and the mounts under `root`.
///
/// # Errors
/// `Fact` when no level states a limit.
pub fn machine_memory_under(root: &Path) -> Result<MachineMemory, SystemError> {
    let groups = cgroup::groups(root, Controller::Memory);
    let v2 = groups.v2.iter().filter_map(|group| level_v2(group));
    let v1 = levels_v1(&groups.v1);
    // At equal limits the first level is named: the innermost group, then the machine.
    let levels = v2.chain(v1).chain(level_machine(root));
    levels
        .fold(None, |least: Option<MachineMemory>, level| {
            let available_bytes = level.limit_bytes.saturating_sub(level.used_bytes);
            let own = MachineMemory {
                limit_bytes: level.limit_bytes,
                source: level.source,
                available_bytes,
            };
            let Some(least) = least else { return Some(own) };
            let tighter = if own.limit_bytes < least.limit_bytes { own } else { least };
            Some(MachineMemory {
                available_bytes: available_bytes.min(least.available_bytes),
                ..tighter
            })
        })
        .ok_or(SystemError::Fact { file: "/proc/meminfo", what: "MemTotal" })
}

fn level_machine(root: &Path) -> Option<Level> {
    let file = read(root, "proc/meminfo")?;
    let limit_bytes = kib_field_bytes(file.text(), "MemTotal")?;
    let available = kib_field_bytes(file.text(), "MemAvailable").unwrap_or(limit_bytes);
    let used_bytes = limit_bytes.saturating_sub(available);
    Some(Level { limit_bytes, used_bytes, source: MemorySource::Meminfo })
}

fn level_v2(group: &Path) -> Option<Level> {
    let limit_bytes = number(group, "memory.max")?;
    let used = number(group, "memory.current").unwrap_or(0);
    let droppable = droppable_bytes(group, ["active_file", "inactive_file", "slab_reclaimable"]);
    let used_bytes = used.saturating_sub(droppable);
    Some(Level { limit_bytes, used_bytes, source: MemorySource::CgroupV2 })
}

/// Levels from our group up, as far as each parent counts its children.
fn levels_v1(groups: &[std::path::PathBuf]) -> impl Iterator<Item = Level> {
    let counting = groups.iter().enumerate().take_while(|(index, group)| {
        *index == 0 || number(group, "memory.use_hierarchy") != Some(0)
    });
    counting.filter_map(|(_, group)| {
        let limit_bytes = number(group, "memory.limit_in_bytes")?;
        let used = number(group, "memory.usage_in_bytes").unwrap_or(0);
        let droppable = droppable_bytes(group, ["total_active_file", "total_inactive_file", ""]);
        let used_bytes = used.saturating_sub(droppable);
        Some(Level { limit_bytes, used_bytes, source: MemorySource::CgroupV1 })
    })
}

/// Bytes of a group that the kernel can drop, by the fields of its `memory.stat`.
fn droppable_bytes(group: &Path, fields: [&str; 3]) -> u64 {
    let Some(file) = read(group, "memory.stat") else { return 0 };
    fields.iter().filter_map(|field| plain_field(file.text(), field)).fold(0, u64::saturating_add)
}

/// A limit or a use in bytes; `max` and the sentinel are none.
fn number(group: &Path, name: &str) -> Option<u64> {
    let file = read(group, name)?;
    let value = file.text().trim().parse::<u64>().ok()?;
    (value < UNLIMITED_BYTES_MIN).then_some(value)
}

fn read(directory: &Path, name: &str) -> Option<FactFile<FACT_FILE_BYTES_MAX>> {
    FactFile::read(directory.join(name))
}
