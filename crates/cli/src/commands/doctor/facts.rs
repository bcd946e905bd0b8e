//! What the operating system allows this process: no rates, no opinions but one line each where
//! something is in the way.

use dctms_engine::EngineError;
use dctms_system::machine::{MachineMemory, machine_memory};
use dctms_system::process::lockable_bytes;
use dctms_system::processors::{Processors, processor_pressure, processors};

use crate::show::{Align, Columns, grouped, printable};

/// The facts.
pub struct Facts {
    memory: MachineMemory,
    lockable_bytes: Option<u64>,
    huge_pages: Option<String>,
    processors: Processors,
    cpus_allowed: Option<String>,
    cpu_pressure_percent: Option<f32>,
    memory_pressure: Option<String>,
}

/// Takes them now.
///
/// # Errors
/// Where the memory limit or the processors are not stated.
pub fn take() -> Result<Facts, EngineError> {
    Ok(Facts {
        memory: machine_memory()?,
        lockable_bytes: lockable_bytes(),
        huge_pages: chosen("/sys/kernel/mm/transparent_hugepage/enabled"),
        processors: processors()?,
        cpus_allowed: line("/proc/self/status", "Cpus_allowed_list:"),
        cpu_pressure_percent: processor_pressure().ok().map(|facts| facts.average_10_s_percent),
        memory_pressure: line("/proc/pressure/memory", "some "),
    })
}

/// The word in brackets of a file of choices.
fn chosen(path: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']').map(|(word, _)| word.to_string())
}

/// The rest of a file's line that begins so.
fn line(path: &str, start: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    text.lines().find_map(|line| line.strip_prefix(start)).map(|rest| rest.trim().to_string())
}

impl Facts {
    /// As lines.
    #[must_use]
    pub fn text(&self) -> String {
        let mut columns = Columns::new(&[Align::Left, Align::Left]);
        let mut row = |name: &str, value: String| columns.row([name.to_string(), value]);
        let (memory, processors) = (&self.memory, &self.processors);
        let (limit, source) = (grouped(memory.limit_bytes), memory.source.name());
        row("memory limit", format!("{limit} bytes ({source})"));
        row("free of it now", format!("{} bytes", grouped(memory.available_bytes)));
        row(
            "may be locked",
            match self.lockable_bytes {
                None => "all".to_string(),
                Some(bytes) => format!("{} bytes (RLIMIT_MEMLOCK)", grouped(bytes)),
            },
        );
        let unknown = || "unknown".to_string();
        let huge = match self.huge_pages.as_deref() {
            Some("never") => "never: translation misses will cost time".to_string(),
            Some(word) => printable(word),
            None => unknown(),
        };
        row("huge pages", huge);
        let allowed = self.cpus_allowed.as_deref().map_or_else(unknown, printable);
        row("processors", format!("{} (cpuset and affinity: {allowed})", processors.allowed));
        row(
            "processor quota",
            match processors.quota_thousandths {
                None => "none".to_string(),
                Some(quota) => {
                    format!("{}.{:03} processors: lanes sleep", quota / 1000, quota % 1000)
                }
            },
        );
        row("lanes by default", processors.default_lanes().to_string());
        row(
            "processor pressure",
            match self.cpu_pressure_percent {
                None => "not measured by this kernel".to_string(),
                Some(percent) if percent > 10.0 => {
                    format!("{percent:.1} % of the last 10 s: others run, rates will be low")
                }
                Some(percent) => format!("{percent:.1} % of the last 10 s"),
            },
        );
        let pressure = self.memory_pressure.as_deref().map_or_else(unknown, printable);
        row("memory pressure", pressure);
        format!("machine\n{}", columns.lines(2))
    }
}
