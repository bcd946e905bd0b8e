//! A process watched from outside: its memory, its faults, and how much others want processors.
//!
//! Believes what `/proc` says. Nothing of it runs in the process that is watched.

use std::fs::{read_to_string, write};
use std::io::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dctms_system::machine::page_bytes;

/// Time between two samples of a series.
pub const SAMPLE_PERIOD: Duration = Duration::from_millis(10);

/// Memory of a process, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// The most that was resident since the peak was reset.
    pub peak_bytes: u64,
    /// Resident now.
    pub resident_bytes: u64,
}

/// Page faults of a process so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Served without storage.
    pub minor: u64,
    /// Served by reading storage.
    pub major: u64,
}

/// Makes the peak of a process what is resident now. A kernel without that leaves the peak of an
/// earlier call, so it is an error like a process that is gone.
fn reset_peak(pid: u32) -> Result<()> {
    write(format!("/proc/{pid}/clear_refs"), "5")
}

/// Memory of a process; `None` when it is gone.
#[must_use]
pub fn memory(pid: u32) -> Option<Memory> {
    parse_status(&read_to_string(format!("/proc/{pid}/status")).ok()?)
}

fn parse_status(text: &str) -> Option<Memory> {
    let bytes = |name: &str| -> Option<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
    };
    Some(Memory { peak_bytes: bytes("VmHWM:")?, resident_bytes: bytes("VmRSS:")? })
}

/// Faults of all threads of a process; `None` when it is gone.
#[must_use]
pub fn faults(pid: u32) -> Option<Faults> {
    parse_stat(&read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn parse_stat(text: &str) -> Option<Faults> {
    // The name in brackets may hold anything; fields are counted after it.
    let (_, fields) = text.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    Some(Faults { minor: fields.get(7)?.parse().ok()?, major: fields.get(9)?.parse().ok()? })
}

/// Microseconds in which something runnable waited for a processor, since the machine started.
#[must_use]
pub fn processor_pressure_us() -> Option<u64> {
    parse_pressure(&read_to_string("/proc/pressure/cpu").ok()?)
}

fn parse_pressure(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with("some "))?;
    line.split("total=").nth(1)?.trim().parse().ok()
}

/// A call as it is watched, from before its request until after its answer.
pub struct Watch {
    pid: u32,
    start: Instant,
    pressure_us: Option<u64>,
    faults: Faults,
    sampler: Sampler,
}

/// What was seen of a call.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// Greatest resident set, bytes: the kernel's peak, or a sample above it. Threads count for
    /// themselves and tell the kernel now and then, so neither is always the greater.
    pub peak_bytes: u64,
    /// Its faults.
    pub faults: Faults,
    /// Share of the time in which something runnable waited for a processor, percent; `None` where
    /// the kernel does not count that.
    pub pressure_percent: Option<f64>,
    /// The resident set over time.
    pub samples: Vec<Sample>,
}

impl Watch {
    /// Begins.
    ///
    /// # Errors
    /// A process that is gone; a peak that cannot be reset.
    pub fn start(pid: u32) -> Result<Watch> {
        reset_peak(pid)?;
        let faults = faults(pid).ok_or_else(|| Error::from(ErrorKind::NotFound))?;
        let (start, pressure_us) = (Instant::now(), processor_pressure_us());
        Ok(Watch { pid, start, pressure_us, faults, sampler: Sampler::start(pid) })
    }

    /// Ends; `None` when the process was gone before it was measured.
    #[must_use]
    pub fn end(self) -> Option<Seen> {
        let (pressure_us, time) = (processor_pressure_us(), self.start.elapsed());
        let (faults, memory) = (faults(self.pid), memory(self.pid));
        // Last, since it takes until the next sample is due.
        let samples = self.sampler.stop();
        let (faults, memory) = (faults?, memory?);
        let sampled = samples.iter().map(|sample| sample.1).max().unwrap_or(0);
        let waited_us = pressure_us.zip(self.pressure_us);
        let waited_us = waited_us.map(|(after, before)| after.saturating_sub(before));
        Some(Seen {
            peak_bytes: memory.peak_bytes.max(sampled),
            faults: Faults {
                minor: faults.minor.saturating_sub(self.faults.minor),
                major: faults.major.saturating_sub(self.faults.major),
            },
            pressure_percent: waited_us.map(|us| us as f64 / (time.as_secs_f64() * 1e4)),
            samples,
        })
    }
}

/// A sample of a series: milliseconds since its beginning, bytes resident.
pub type Sample = (f64, u64);

/// A thread that samples the resident set of a process every [`SAMPLE_PERIOD`].
pub struct Sampler {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Sample>>,
}

impl Sampler {
    /// Starts sampling.
    #[must_use]
    pub fn start(pid: u32) -> Sampler {
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let start = Instant::now();
            let mut samples = Vec::new();
            let mut due = SAMPLE_PERIOD;
            while !told.load(Ordering::Relaxed) {
                let Some(resident_bytes) = resident(pid) else { break };
                samples.push((start.elapsed().as_secs_f64() * 1e3, resident_bytes));
                std::thread::sleep(due.saturating_sub(start.elapsed()));
                due += SAMPLE_PERIOD;
            }
            samples
        });
        Sampler { stop, thread }
    }

    /// Ends sampling and gives the series.
    #[must_use]
    pub fn stop(self) -> Vec<Sample> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_default()
    }
}

/// From the file that is cheapest to read.
fn resident(pid: u32) -> Option<u64> {
    let text = read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let pages: u64 = text.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * page_bytes() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_texts_are_read() {
        let status = "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n";
        let memory = parse_status(status).unwrap();
        assert_eq!((memory.peak_bytes, memory.resident_bytes), (2 << 20, 1 << 20));
        assert_eq!(parse_status("Name:\tx\n"), None);
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194560 1234 0 56 0 9 8 0 0 20 0 1 0 5 6 7";
        assert_eq!(parse_stat(stat), Some(Faults { minor: 1234, major: 56 }));
        let pressure = "some avg10=0.00 avg60=0.10 avg300=0.20 total=99\nfull avg10=0 total=5\n";
        assert_eq!(parse_pressure(pressure), Some(99));
    }

    #[test]
    fn this_process_can_be_watched() {
        let pid = std::process::id();
        let watch = Watch::start(pid).unwrap();
        let grown = std::hint::black_box(vec![1u8; 32 << 20]);
        // Long, because the thread that samples may have to wait for a processor.
        std::thread::sleep(50 * SAMPLE_PERIOD);
        let Seen { peak_bytes, faults, pressure_percent, samples } = watch.end().unwrap();
        assert!(samples.len() >= 3, "{samples:?}");
        assert!(samples.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert!(samples.iter().any(|sample| sample.1 as usize > grown.len()));
        assert!(samples.iter().all(|sample| sample.1 <= peak_bytes), "{peak_bytes}: {samples:?}");
        assert!(memory(pid).unwrap().peak_bytes > 32 << 20 && faults.minor > 0);
        // The window is the one that pressure was counted in; clocks differ by a little.
        assert!(pressure_percent.is_none_or(|it| (0.0..102.0).contains(&it)));
        assert!(Watch::start(u32::MAX).is_err(), "nobody is there");
    }
}
