//! A progress bar while loading, on a terminal only.

use std::sync::atomic::{AtomicU64, Ordering};

use dctms_system::output::Stream;

/// Steps of the bar.
const STEPS: u64 = 40;

/// Progress towards a number of bytes.
pub struct Progress {
    listener: Option<Box<dyn Fn(u64) + Sync>>,
}

impl Progress {
    /// A bar when standard error is a terminal, nothing otherwise.
    #[must_use]
    pub fn new(total_bytes: u64) -> Progress {
        if !Stream::Error.is_terminal() || total_bytes == 0 {
            return Progress { listener: None };
        }
        let shown = AtomicU64::new(0);
        Progress {
            listener: Some(Box::new(move |bytes| {
                let step = (bytes.saturating_mul(STEPS) / total_bytes).min(STEPS);
                if shown.fetch_max(step, Ordering::Relaxed) < step {
                    draw(step);
                }
            })),
        }
    }

    /// What hears the bytes.
    #[must_use]
    pub fn listener(&self) -> Option<&(dyn Fn(u64) + Sync)> {
        self.listener.as_deref()
    }

    /// Clears the bar.
    pub fn done(&self) {
        if self.listener.is_some() {
            let _ = Stream::Error.write_all(b"\r\x1b[K");
        }
    }
}

fn draw(step: u64) {
    let mut line = [b' '; 64];
    line[..10].copy_from_slice(b"\rloading [");
    for (index, cell) in line[10..10 + STEPS as usize].iter_mut().enumerate() {
        *cell = if (index as u64) < step { b'=' } else { b' ' };
    }
    line[10 + STEPS as usize] = b']';
    let _ = Stream::Error.write_all(&line[..11 + STEPS as usize]);
}
