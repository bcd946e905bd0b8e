//! Processors: how many lanes make sense here, whether waiting may spin and lanes be pinned, and
//! how contended the machine is.
//!
//! Believes: affinity (which the kernel has already intersected with the cpuset), the quota of every
//! control group around the process, `/proc/pressure/cpu`; under a root directory that tests
//! replace. Must not know: what lanes compute.

use crate::affinity::{PROCESSOR_NUMBERS_MAX, allowed_processor_count, is_allowed_processor};
use crate::cgroup::{self, Controller};
use crate::error::SystemError;
use crate::events::SpinPolicy;
use crate::facts::FactFile;
use crate::lanes::Pinning;
use crate::limits::LANES_MAX;
use std::path::Path;

/// The processors that this process may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Processors {
    /// By affinity and cpuset, at least 1.
    pub allowed: usize,
    /// Processor time in thousandths of a processor, the least quota around the process.
    pub quota_thousandths: Option<u64>,
    /// Whether somebody else may run there.
    pub tenure: Tenure,
}

/// Who runs on the processors that this process may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tenure {
    /// Whoever the kernel puts there.
    Shared,
    /// Only we: every processor is isolated, or our control group is a partition of its own.
    Ours,
}

/// How long runnable work waited for a processor (`some` of `/proc/pressure/cpu`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProcessorPressure {
    /// Share of the last 10 seconds, in percent.
    pub average_10_s_percent: f32,
    /// Sum since the machine started, in microseconds; take the difference of two.
    pub total_us: u64,
}

impl Processors {
    /// Lanes to use when nothing is asked for: allowed processors, no more than whole processors
    /// of the quota, at least 1.
    pub fn default_lanes(&self) -> usize {
        let by_quota = self
            .quota_thousandths
            .map_or(LANES_MAX, |quota| usize::try_from(quota / 1000).unwrap_or(LANES_MAX));
        self.allowed.min(by_quota).clamp(1, LANES_MAX)
    }

    /// Spinning is right only where every lane has a processor of its own and no quota counts the
    /// time that it burns.
    pub fn spin_policy(&self, lanes: usize) -> SpinPolicy {
        match self.quota_thousandths {
            None if lanes <= self.allowed => SpinPolicy::SPIN,
            None | Some(_) => SpinPolicy::SLEEP,
        }
    }

    /// Lanes are pinned only to processors that are ours, one to each. Where others run too, a
    /// pinned lane waits for its processor while another is free; and isolated processors are
    /// not balanced by the kernel, so that free lanes would stay where they began.
    pub fn pinning(&self, lanes: usize) -> Pinning {
        match (self.tenure, self.quota_thousandths) {
            (Tenure::Ours, None) if lanes <= self.allowed => Pinning::OneProcessorEach,
            (Tenure::Ours | Tenure::Shared, None | Some(_)) => Pinning::Free,
        }
    }
}

/// The processors of this machine.
///
/// # Errors
/// `Call` when the kernel does not state the affinity.
pub fn processors() -> Result<Processors, SystemError> {
    let root = Path::new("/");
    let quota_thousandths = quota_thousandths_under(root);
    let tenure = tenure_under(root, is_allowed_processor()?);
    Ok(Processors { allowed: allowed_processor_count()?, quota_thousandths, tenure })
}

/// The least quota of the groups around the process, in thousandths of a processor, reading the
/// files under `root`.
pub fn quota_thousandths_under(root: &Path) -> Option<u64> {
    let groups = cgroup::groups(root, Controller::Cpu);
    let v2 = groups.v2.iter().filter_map(|group| {
        let file = FactFile::<128>::read(group.join("cpu.max"))?;
        let (quota, period) = file.text().trim().split_once(' ')?;
        thousandths(quota, period)
    });
    let v1 = groups.v1.iter().filter_map(|group| {
        let quota = FactFile::<128>::read(group.join("cpu.cfs_quota_us"))?;
        let period = FactFile::<128>::read(group.join("cpu.cfs_period_us"))?;
        thousandths(quota.text(), period.text())
    });
    v2.chain(v1).min()
}

/// Whether the allowed processors are ours alone, reading the files under `root`.
fn tenure_under(root: &Path, is_allowed: impl Fn(usize) -> bool) -> Tenure {
    let isolated = FactFile::<512>::read(root.join("sys/devices/system/cpu/isolated"));
    let isolated = isolated.as_ref().map_or("", FactFile::text).trim();
    let mut allowed = (0..PROCESSOR_NUMBERS_MAX).filter(|number| is_allowed(*number)).peekable();
    if allowed.peek().is_some() && allowed.all(|number| lists(isolated, number)) {
        return Tenure::Ours;
    }
    let groups = cgroup::groups(root, Controller::Cpu);
    let own = groups.v2.first();
    let partition = own.and_then(|own| FactFile::<64>::read(own.join("cpuset.cpus.partition")));
    match partition.as_ref().map_or("", FactFile::text).trim() {
        "root" | "isolated" => Tenure::Ours,
        _ => Tenure::Shared,
    }
}

/// Whether a list of the form `0-3,8` names a processor.
fn lists(list: &str, number: usize) -> bool {
    list.split(',').any(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        match (first.parse::<usize>(), last.parse::<usize>()) {
            (Ok(first), Ok(last)) => (first..=last).contains(&number),
            (Ok(_) | Err(_), Ok(_) | Err(_)) => false,
        }
    })
}

/// Bytes of the first processor's largest cache, where the kernel tells.
pub fn last_cache_bytes() -> Option<usize> {
    let sizes = (0..8).filter_map(|index| {
        let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size");
        let file = FactFile::<32>::read(path)?;
        let text = file.text().trim();
        let (number, unit) = match text.strip_suffix('K') {
            Some(number) => (number, 1 << 10),
            None => (text.strip_suffix('M')?, 1 << 20),
        };
        number.parse::<usize>().ok()?.checked_mul(unit)
    });
    sizes.max()
}

/// The pressure on processors now.
///
/// # Errors
/// `Fact` where the kernel does not measure it.
pub fn processor_pressure() -> Result<ProcessorPressure, SystemError> {
    let file = FactFile::<512>::read("/proc/pressure/cpu");
    let missing = SystemError::Fact { file: "/proc/pressure/cpu", what: "the line some" };
    parse_pressure(file.as_ref().map_or("", FactFile::text)).ok_or(missing)
}

/// Quota over period; `max`, `-1` and nonsense are no quota.
fn thousandths(quota: &str, period: &str) -> Option<u64> {
    let quota = quota.trim().parse::<u64>().ok()?;
    quota.checked_mul(1000)?.checked_div(period.trim().parse().ok()?)
}

/// `some avg10=0.00 avg60=0.00 avg300=0.00 total=0`
fn parse_pressure(text: &str) -> Option<ProcessorPressure> {
    let line = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let field = |key| line.split(' ').find_map(|word| word.strip_prefix(key));
    Some(ProcessorPressure {
        average_10_s_percent: field("avg10=")?.parse().ok()?,
        total_us: field("total=")?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_follow_the_least_of_affinity_and_quota() {
        for (allowed, quota_thousandths, lanes) in [
            (8, None, 8),
            (8, Some(2500), 2),
            (8, Some(300), 1),
            (2, Some(1500), 1),
            (2, Some(64_000), 2),
            (1000, None, LANES_MAX),
        ] {
            let processors = Processors { allowed, quota_thousandths, tenure: Tenure::Shared };
            assert_eq!(processors.default_lanes(), lanes, "{processors:?}");
        }
    }

    #[test]
    fn spinning_needs_a_processor_for_each_lane_and_no_quota() {
        let free = Processors { allowed: 2, quota_thousandths: None, tenure: Tenure::Shared };
        assert_eq!(free.spin_policy(2), SpinPolicy::SPIN);
        assert_eq!(free.spin_policy(3), SpinPolicy::SLEEP);
        let limited = Processors { quota_thousandths: Some(2000), ..free };
        assert_eq!(limited.spin_policy(1), SpinPolicy::SLEEP);
    }

    #[test]
    fn lanes_are_pinned_only_to_processors_of_our_own() {
        let shared = Processors { allowed: 2, quota_thousandths: None, tenure: Tenure::Shared };
        let ours = Processors { tenure: Tenure::Ours, ..shared };
        let limited = Processors { quota_thousandths: Some(2000), ..ours };
        assert_eq!(shared.pinning(2), Pinning::Free);
        assert_eq!(ours.pinning(2), Pinning::OneProcessorEach);
        assert_eq!(ours.pinning(3), Pinning::Free);
        assert_eq!(limited.pinning(2), Pinning::Free);
    }

    #[test]
    fn isolated_processors_and_partitions_are_ours() {
        let root = std::env::temp_dir().join(format!("dctms-tenure-{}", std::process::id()));
        let write = |name: &str, text: &str| {
            let path = root.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let tenure = |first, last| tenure_under(&root, |n| (first..=last).contains(&n));
        assert_eq!(tenure(0, 1), Tenure::Shared, "no files at all");
        write("sys/devices/system/cpu/isolated", "\n");
        assert_eq!(tenure(0, 1), Tenure::Shared);
        write("sys/devices/system/cpu/isolated", "2-3,6\n");
        for (first, last, expected) in
            [(2, 3, Tenure::Ours), (6, 6, Tenure::Ours), (1, 2, Tenure::Shared)]
        {
            assert_eq!(tenure(first, last), expected, "{first}-{last}");
        }
        write("proc/self/cgroup", "0::/job\n");
        write("proc/self/mountinfo", "1 0 0:1 / /cg rw - cgroup2 cgroup2 rw\n");
        for (text, expected) in
            [("member\n", Tenure::Shared), ("root\n", Tenure::Ours), ("isolated\n", Tenure::Ours)]
        {
            write("cg/job/cpuset.cpus.partition", text);
            assert_eq!(tenure(0, 1), expected, "{text}");
        }
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn pressure_is_understood() {
        let text = "some avg10=1.25 avg60=0.10 avg300=0.00 total=4711\nfull avg10=0.00 total=0\n";
        let pressure = parse_pressure(text).unwrap();
        assert_eq!((pressure.average_10_s_percent, pressure.total_us), (1.25, 4711));
        assert_eq!(parse_pressure("full avg10=0"), None);
    }
}
