//! Processors: how many lanes make sense here, whether waiting may spin, and how contended the
//! machine is.
//!
//! Believes: affinity (which the kernel has already intersected with the cpuset), the quota of every
//! control group around the process, `/proc/pressure/cpu`; under a root directory that tests
//! replace. Must not know: what lanes compute.

use crate::affinity::allowed_processor_count;
use crate::cgroup::{self, Controller};
use crate::error::SystemError;
use crate::events::SpinPolicy;
use crate::facts::FactFile;
use crate::limits::LANES_MAX;
use std::path::Path;

/// The processors that this process may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Processors {
    /// By affinity and cpuset, at least 1.
    pub allowed: usize,
    /// Processor time in thousandths of a processor, the least quota around the process.
    pub quota_thousandths: Option<u64>,
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
}

/// The processors of this machine.
///
/// # Errors
/// `Call` when the kernel does not state the affinity.
pub fn processors() -> Result<Processors, SystemError> {
    let quota_thousandths = quota_thousandths_under(Path::new("/"));
    Ok(Processors { allowed: allowed_processor_count()?, quota_thousandths })
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
            (2, Some(64_000), 2),
            (1000, None, LANES_MAX),
        ] {
            let processors = Processors { allowed, quota_thousandths };
            assert_eq!(processors.default_lanes(), lanes, "{processors:?}");
        }
    }

    #[test]
    fn spinning_needs_a_processor_for_each_lane_and_no_quota() {
        let free = Processors { allowed: 2, quota_thousandths: None };
        assert_eq!(free.spin_policy(2), SpinPolicy::SPIN);
        assert_eq!(free.spin_policy(3), SpinPolicy::SLEEP);
        let limited = Processors { allowed: 2, quota_thousandths: Some(2000) };
        assert_eq!(limited.spin_policy(1), SpinPolicy::SLEEP);
    }

    #[test]
    fn pressure_is_understood() {
        let text = "some avg10=1.25 avg60=0.10 avg300=0.00 total=4711\nfull avg10=0.00 total=0\n";
        let pressure = parse_pressure(text).unwrap();
        assert_eq!((pressure.average_10_s_percent, pressure.total_us), (1.25, 4711));
        assert_eq!(parse_pressure("full avg10=0"), None);
    }
}
