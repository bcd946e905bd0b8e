//! The limits of this machine, measured: how fast the lanes read memory and the last cache, and
//! how many operations they do in registers.
//!
//! All lanes work at once, each on its own share, and the best of several passes (and numbers of
//! streams) counts: whatever disturbs a pass makes it slower, never faster. Buffers are given back before this
//! returns; they count in the process's peak unless the caller resets that.
//!
//! Believes: `kernels::peak` does nothing but what is counted. Must not know: models, plans.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use dctms_kernels::isa::Isa;
use dctms_kernels::peak::{self, Streams};
use dctms_system::SystemError;
use dctms_system::arena::{Arena, ArenaPages};
use dctms_system::lanes::{Lanes, LanesConfig};
use dctms_system::processors::last_cache_bytes;

/// Limits of all lanes together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peaks {
    /// Bytes a second read from memory: a buffer that no cache holds.
    pub memory_bytes_per_s: f64,
    /// Bytes a second read from the last cache: a buffer of half its size.
    pub cache_bytes_per_s: f64,
    /// Integer operations a second in the products that matmul is made of.
    pub integer_ops_per_s: f64,
    /// Float operations a second in fused multiply-adds.
    pub float_ops_per_s: f64,
}

/// The buffer that no cache holds, bytes.
pub const MEMORY_BUFFER_BYTES: usize = 512 << 20;
/// What is read in a pass over the last cache, bytes.
const CACHE_PASS_BYTES: usize = 256 << 20;
/// The last cache where the system does not tell, bytes.
const CACHE_BYTES_UNKNOWN: usize = 16 << 20;
/// Passes over memory, and of each other measurement.
const MEMORY_PASSES: usize = 6;
const PASSES: usize = 12;
/// Rounds of a pass of arithmetic: some milliseconds.
const ROUNDS: usize = 200_000;

/// Measures all of them, in about a second.
///
/// # Errors
/// As `Arena::map` and `Lanes::start`.
pub fn measure(config: &LanesConfig, isa: Isa) -> Result<Peaks, SystemError> {
    let mut lanes = Lanes::start(config)?;
    let memory_bytes_per_s = {
        let mut arena = Arena::map(MEMORY_BUFFER_BYTES, ArenaPages::Huge)?;
        arena.prefault();
        read_bytes_per_s(&mut lanes, isa, filled(&mut arena), 1, MEMORY_PASSES)?
    };
    let cache_bytes = last_cache_bytes().unwrap_or(CACHE_BYTES_UNKNOWN) / 2;
    let cache_bytes_per_s = {
        let mut arena = Arena::map(cache_bytes, ArenaPages::Huge)?;
        arena.prefault();
        let times = (CACHE_PASS_BYTES / cache_bytes).max(1);
        read_bytes_per_s(&mut lanes, isa, filled(&mut arena), times, PASSES)?
    };
    let integer_ops_per_s =
        operations_per_s(&mut lanes, &|rounds| peak::integer_operations(isa, black_box(rounds)))?;
    let float_ops_per_s =
        operations_per_s(&mut lanes, &|rounds| peak::float_operations(isa, black_box(rounds)))?;
    Ok(Peaks { memory_bytes_per_s, cache_bytes_per_s, integer_ops_per_s, float_ops_per_s })
}

/// Floats that sum up without rounding, and are no denormals.
fn filled(arena: &mut Arena) -> &[f32] {
    let floats = arena.floats_mut();
    floats.fill(1.0);
    floats
}

/// Bytes a second of the best pass, each of which reads the floats `times` times.
fn read_bytes_per_s(
    lanes: &mut Lanes,
    isa: Isa,
    floats: &[f32],
    times: usize,
    passes: usize,
) -> Result<f64, SystemError> {
    let share = (floats.len() / lanes.count()).next_multiple_of(16);
    let mut best_s = f64::INFINITY;
    for streams in Streams::ALL {
        let seconds = best_seconds(lanes, passes, &|lane| {
            let Some(own) = floats.chunks(share).nth(lane) else { return };
            for _ in 0..times {
                black_box(peak::read(isa, streams, black_box(own)));
            }
        })?;
        best_s = best_s.min(seconds);
    }
    Ok((size_of_val(floats) * times) as f64 / best_s)
}

fn operations_per_s(
    lanes: &mut Lanes,
    work: &(dyn Fn(usize) -> u64 + Sync),
) -> Result<f64, SystemError> {
    let done = AtomicU64::new(0);
    let best_s = best_seconds(lanes, PASSES, &|_| {
        done.fetch_add(work(ROUNDS), Ordering::Relaxed);
    })?;
    Ok(done.into_inner() as f64 / PASSES as f64 / best_s)
}

/// Seconds of the best pass of all lanes.
fn best_seconds(
    lanes: &mut Lanes,
    passes: usize,
    work: &(dyn Fn(usize) + Sync),
) -> Result<f64, SystemError> {
    let mut best_s = f64::INFINITY;
    for _ in 0..passes {
        let start = Instant::now();
        lanes.run(&|lane| work(lane.index))?;
        best_s = best_s.min(start.elapsed().as_secs_f64());
    }
    Ok(best_s)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dctms_system::events::SpinPolicy;
    use dctms_system::lanes::Pinning;

    #[test]
    fn rates_are_those_of_a_machine() {
        let config = LanesConfig {
            lanes: 2,
            stack_bytes: 128 << 10,
            events: 0,
            spin: SpinPolicy::SLEEP,
            pinning: Pinning::Free,
        };
        let mut lanes = Lanes::start(&config).unwrap();
        let floats = vec![1.0; 1 << 20];
        for isa in Isa::available() {
            let read = read_bytes_per_s(&mut lanes, isa, &floats, 2, 3).unwrap();
            assert!((1e6..1e13).contains(&read), "{read} bytes/s on {}", isa.name());
            for work in [peak::integer_operations, peak::float_operations] {
                let ops = operations_per_s(&mut lanes, &|_| work(isa, 1000)).unwrap();
                assert!((1e6..1e15).contains(&ops), "{ops} operations/s on {}", isa.name());
            }
        }
    }
}
