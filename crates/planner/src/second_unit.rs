//! What a second compute unit would do: **predicted**, for a machine that nobody has measured.
//!
//! The paper's machine has one memory that several units share. Here the lanes keep the decoder,
//! and a unit of its own takes the encoder: tile after tile, while the lanes append what is ready of
//! the prompt. The same schedule, costs and rates as everywhere; of the unit only two things are
//! assumed, and both are said: its peak, as a multiple of the lanes' f32 peak, and the share of the
//! memory's bandwidth that it takes while both work.
//!
//! ```text
//! unit    vision 1 ████│ vision 2 ████│ vision 3 ████
//! lanes   text ████████│· chunk 1 ██│···chunk 2 ██│···
//! ```
//!
//! A step of the unit takes, operation by operation, max(arithmetic / peak, bytes / bandwidth). A
//! step of either side advances at its shared rate while the other works, else at its own.
//! Pure: no clock, no machine.

use dctms_ir::ids::PhaseId;
use dctms_ir::plan::Plan;

use crate::error::PlanError;
use crate::predict::{Scene, Step, step_ps};
use crate::rates::Balance;

/// A unit beside the lanes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SecondUnit {
    /// Its peak: how many times the lanes' f32 peak.
    pub peak_ratio: f64,
    /// Part of the memory's bandwidth that it takes while the lanes work too, above 0, below 1.
    pub bandwidth_share: f64,
}

impl Default for SecondUnit {
    /// Four times the lanes, half of the bandwidth: a small integrated accelerator.
    fn default() -> Self {
        SecondUnit { peak_ratio: 4.0, bandwidth_share: 0.5 }
    }
}

/// A prompt with a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Tokens of text before the picture.
    pub text_tokens: u64,
    /// Tiles of the picture.
    pub tiles: u64,
    /// Tokens of a tile.
    pub tile_tokens: u64,
    /// Tokens of text behind it.
    pub question_tokens: u64,
}

/// Who does a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The lanes.
    Lanes,
    /// The second unit.
    Unit,
}

/// A step on the timeline, nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// What it is.
    pub name: String,
    /// Who does it.
    pub side: Side,
    /// Start.
    pub start_ns: u64,
    /// End.
    pub end_ns: u64,
}

/// The predicted timeline of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct SecondUnitTimes {
    /// What was assumed.
    pub unit: SecondUnit,
    /// The steps, by their start.
    pub jobs: Vec<Job>,
    /// The whole with the unit, nanoseconds.
    pub together_ns: u64,
    /// The whole on the lanes alone, one step after the other, nanoseconds.
    pub lanes_alone_ns: u64,
}

impl SecondUnitTimes {
    /// Part of the whole in which a side works, percent.
    #[must_use]
    pub fn busy_percent(&self, side: Side) -> u64 {
        let own = self.jobs.iter().filter(|job| job.side == side);
        let busy: u64 = own.map(|job| job.end_ns - job.start_ns).sum();
        100 * busy / self.together_ns.max(1)
    }
}

/// The timeline of a request with a unit beside the lanes; `None` for a plan without eyes, or of
/// several models.
///
/// # Errors
/// An operation that breaks its contract.
pub fn predict(
    plan: &Plan,
    balance: &Balance,
    unit: SecondUnit,
    request: Request,
) -> Result<Option<SecondUnitTimes>, PlanError> {
    let phase = |name: &str| plan.program.phase_named(name);
    let (Some(vision), Some(prefill)) = (phase("vision"), phase("prefill")) else {
        return Ok(None);
    };
    let tile_ps = step_ps(&Scene::of(plan, vision), balance, Step { tokens: 1, depth: 0 })?;
    let tiles: Vec<Work> = (0..request.tiles)
        .map(|index| Work {
            name: format!("vision of tile {}", index + 1),
            alone_ps: unit_ps(plan, vision, balance, (unit, 1.0)),
            shared_ps: unit_ps(plan, vision, balance, (unit, unit.bandwidth_share)),
            needs_tiles: 0,
        })
        .collect();
    let chunks = chunks(plan, prefill, (balance, unit), request)?;
    let lanes_ps = tile_ps * request.tiles as f64 + chunks.iter().map(|c| c.alone_ps).sum::<f64>();
    let (jobs, end_ps) = run(&tiles, &chunks);
    Ok(Some(SecondUnitTimes {
        unit,
        jobs,
        together_ns: (end_ps / 1e3) as u64,
        lanes_alone_ns: (lanes_ps / 1e3) as u64,
    }))
}

/// A step: its time when its side works alone, its time while the other works too, and the tiles
/// that must be encoded before it.
struct Work {
    name: String,
    alone_ps: f64,
    shared_ps: f64,
    needs_tiles: usize,
}

/// A phase on the unit, with a part of the bandwidth.
fn unit_ps(
    plan: &Plan,
    phase: PhaseId,
    balance: &Balance,
    (unit, share): (SecondUnit, f64),
) -> f64 {
    let peak = balance.float_ops_per_s * unit.peak_ratio;
    let bandwidth = balance.read_bytes_per_s * share;
    let costs = plan.costs[phase.index()].iter();
    let seconds =
        costs.map(|cost| (cost.flops as f64 / peak).max(cost.bytes_moved as f64 / bandwidth));
    seconds.sum::<f64>() * 1e12
}

/// The chunks of the prompt on the lanes.
fn chunks(
    plan: &Plan,
    prefill: PhaseId,
    (balance, unit): (&Balance, SecondUnit),
    request: Request,
) -> Result<Vec<Work>, PlanError> {
    let scene = Scene::of(plan, prefill);
    let shared = balance.with_bandwidth(1.0 - unit.bandwidth_share);
    let chunk = plan.bounds.prefill_chunk.max(1);
    let pictures = request.tiles * request.tile_tokens;
    let total = request.text_tokens + pictures + request.question_tokens;
    let mut chunks = Vec::new();
    for from in (0..total).step_by(chunk as usize) {
        let end = (from + chunk).min(total);
        let step = Step { tokens: end - from, depth: from };
        let rows = end.saturating_sub(request.text_tokens).min(pictures);
        chunks.push(Work {
            name: format!("tokens {from} to {}", end - 1),
            alone_ps: step_ps(&scene, balance, step)?,
            shared_ps: step_ps(&scene, &shared, step)?,
            needs_tiles: rows.div_ceil(request.tile_tokens.max(1)) as usize,
        });
    }
    Ok(chunks)
}

/// Both sides, each through its list in order. What is left of a step is a part of one.
fn run(tiles: &[Work], chunks: &[Work]) -> (Vec<Job>, f64) {
    let (mut now, mut next) = (0.0f64, [0usize; 2]);
    let mut left = [1.0f64; 2];
    let mut begun = [0.0f64; 2];
    let mut jobs = Vec::new();
    let sides = [(tiles, Side::Unit), (chunks, Side::Lanes)];
    loop {
        let ready = [0, 1].map(|side| {
            let work = sides[side].0.get(next[side]);
            work.filter(|work| work.needs_tiles <= next[0])
        });
        let both = ready.iter().all(Option::is_some);
        let whole = |work: &Work| if both { work.shared_ps } else { work.alone_ps };
        let times = [0, 1].map(|side| ready[side].map(|work| whole(work) * left[side]));
        let Some(step) = times.iter().flatten().copied().min_by(f64::total_cmp) else { break };
        for side in 0..2 {
            let Some(work) = ready[side] else { continue };
            if left[side] == 1.0 {
                begun[side] = now;
            }
            left[side] -= step / whole(work).max(1.0);
            if times[side] == Some(step) {
                let (start, end) = (begun[side], now + step);
                let (start_ns, end_ns) = ((start / 1e3) as u64, (end / 1e3) as u64);
                jobs.push(Job { name: work.name.clone(), side: sides[side].1, start_ns, end_ns });
                next[side] += 1;
                left[side] = 1.0;
            }
        }
        now += step;
    }
    jobs.sort_by_key(|job| (job.start_ns, job.end_ns));
    (jobs, now)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(alone_ps: f64, shared_ps: f64, needs_tiles: usize) -> Work {
        Work { name: String::new(), alone_ps, shared_ps, needs_tiles }
    }

    #[test]
    fn sides_slow_each_other_only_while_both_work() {
        // 4 alone, 8 beside the other: the second half of the longer one runs at its own rate.
        let (jobs, end) = run(&[work(4e6, 8e6, 0)], &[work(2e6, 4e6, 0)]);
        assert_eq!(jobs.len(), 2);
        assert!((end - (4e6 + 2e6)).abs() < 1.0, "{end}");
    }

    #[test]
    fn a_chunk_waits_for_its_tiles() {
        let tiles = [work(5e6, 5e6, 0), work(5e6, 5e6, 0)];
        let chunks = [work(1e6, 1e6, 0), work(1e6, 1e6, 1), work(1e6, 1e6, 2)];
        let (jobs, end) = run(&tiles, &chunks);
        let starts: Vec<u64> =
            jobs.iter().filter(|job| job.side == Side::Lanes).map(|job| job.start_ns).collect();
        assert_eq!(starts, [0, 5000, 10_000]);
        assert_eq!(end, 11e6);
    }
}
