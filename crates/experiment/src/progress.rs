//! How far an experiment is, on standard error: a bar with the time left, or now and then a line
//! where nobody watches.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Time between two lines where standard error is no terminal.
const LINE_PERIOD: Duration = Duration::from_secs(15);
const BAR_CHARACTERS: usize = 24;

/// Where progress goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Voice {
    /// Standard error.
    Loud,
    /// Nowhere.
    Silent,
}

/// The bar.
pub struct Progress {
    voice: Voice,
    is_terminal: bool,
    total: usize,
    done: usize,
    spent: Duration,
    expected_s: Option<f64>,
    last_line: Option<Instant>,
}

impl Progress {
    /// A bar at its beginning.
    #[must_use]
    pub fn new(voice: Voice) -> Progress {
        Progress {
            voice,
            is_terminal: std::io::stderr().is_terminal(),
            total: 0,
            done: 0,
            spent: Duration::ZERO,
            expected_s: None,
            last_line: None,
        }
    }

    /// So many calls are to be made, each about so long if that is known.
    pub fn begin(&mut self, calls: usize, expected_s: Option<f64>) {
        (self.total, self.expected_s) = (calls, expected_s);
        let left = self.left().map_or(String::new(), |left| format!(", {}", time(left)));
        self.note(&format!("{calls} calls{left}"));
    }

    /// One call is done.
    pub fn step(&mut self, what: &str, latency: Duration) {
        self.done += 1;
        self.spent += latency;
        let due = self.last_line.is_none_or(|last| last.elapsed() > LINE_PERIOD);
        if self.voice == Voice::Silent || !(self.is_terminal || due) {
            return;
        }
        self.last_line = Some(Instant::now());
        let full = BAR_CHARACTERS * self.done / self.total.max(1);
        let bar = format!(
            "{}{}",
            "#".repeat(full),
            ".".repeat(BAR_CHARACTERS - full.min(BAR_CHARACTERS))
        );
        let left = self.left().map_or(String::new(), |left| format!(", {} left", time(left)));
        let (done, total, ms) = (self.done, self.total, latency.as_millis());
        let text = format!("[{bar}] {done}/{total}{left}: {what} {ms} ms");
        let _ = match self.is_terminal {
            true => write!(std::io::stderr(), "\r\x1b[K{text}"),
            false => writeln!(std::io::stderr(), "{text}"),
        };
    }

    /// So many calls will not be made.
    pub fn drop_calls(&mut self, calls: usize) {
        self.total = self.total.saturating_sub(calls).max(self.done);
    }

    /// Says something.
    pub fn note(&self, text: &str) {
        if self.voice == Voice::Loud {
            let start = if self.is_terminal { "\r\x1b[K" } else { "" };
            let _ = writeln!(std::io::stderr(), "{start}dctms-experiment: {text}");
        }
    }

    /// Ends the bar.
    pub fn end(&self) {
        if self.voice == Voice::Loud && self.is_terminal && self.done > 0 {
            let _ = writeln!(std::io::stderr());
        }
    }

    /// Expected time of what is left.
    fn left(&self) -> Option<Duration> {
        let mean = match self.done {
            0 => self.expected_s?,
            done => self.spent.as_secs_f64() / done as f64,
        };
        Some(Duration::from_secs_f64(mean * (self.total - self.done.min(self.total)) as f64))
    }
}

/// A time for people.
fn time(time: Duration) -> String {
    match time.as_secs() {
        short if short < 100 => format!("{short} s"),
        long if long < 100 * 60 => format!("{} min", long.div_ceil(60)),
        long => format!("{:.1} h", long as f64 / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_left_follows_from_what_was_spent() {
        let mut progress = Progress::new(Voice::Silent);
        progress.begin(10, Some(3.0));
        assert_eq!(progress.left(), Some(Duration::from_secs(30)));
        progress.step("x", Duration::from_secs(2));
        assert_eq!(progress.left(), Some(Duration::from_secs(18)));
        progress.drop_calls(4);
        assert_eq!(progress.left(), Some(Duration::from_secs(10)));
        let texts = [59, 600, 36_000].map(|s| time(Duration::from_secs(s)));
        assert_eq!(texts, ["59 s", "10 min", "10.0 h"]);
    }
}
