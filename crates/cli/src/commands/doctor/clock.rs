//! Times work that all lanes do at once.
//!
//! A pass takes as long as its lanes take on average; the figure is the median of the passes: what a
//! long run gets here, not what a lucky moment gives. Every pass begins at a barrier: the rates are
//! those of lanes that share caches and memory. How much longer the slowest lane takes, as between
//! two cuts of a schedule, is measured apart ([`Clock::meetings`]): lanes that do not meet do not
//! wait for it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dctms_engine::EngineError;
use dctms_system::lanes::Lanes;

/// Least and most passes, and the time after which no more are begun.
const PASSES: (usize, usize) = (5, 41);
const ENOUGH: Duration = Duration::from_millis(12);

/// Passes of lanes that meet again and again, and of a lane beside others.
const MEETINGS: usize = 1000;
const BESIDE_PASSES: usize = 9;

/// What lanes that meet wait for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Meetings {
    /// What the last lane takes more than the lanes on average, as a part of that.
    pub wait_ratio: f64,
    /// Seconds that the longest pass of a lane took more than its median.
    pub pause_s: f64,
}

/// A lane's own room, and the times of its passes.
struct Slot<T> {
    room: T,
    seconds: Vec<f64>,
}

/// The lanes and the room of each.
pub struct Clock<T> {
    lanes: Lanes,
    slots: Vec<Mutex<Slot<T>>>,
}

impl<T: Send> Clock<T> {
    /// Lanes that have started, and room for each.
    #[must_use]
    pub fn new(lanes: Lanes, rooms: Vec<T>) -> Clock<T> {
        assert_eq!(lanes.count(), rooms.len(), "room for each lane");
        let slots = rooms
            .into_iter()
            .map(|room| Mutex::new(Slot { room, seconds: Vec::with_capacity(PASSES.1) }));
        Clock { lanes, slots: slots.collect() }
    }

    /// Seconds that a lane takes for the work while all do it.
    ///
    /// # Errors
    /// A lane that panicked.
    pub fn seconds(&mut self, work: &(dyn Fn(&mut T) + Sync)) -> Result<f64, EngineError> {
        for slot in &self.slots {
            slot.lock().expect("no lane has panicked").seconds.clear();
        }
        let slots = &self.slots;
        let started = Instant::now();
        for pass in 0..PASSES.1 {
            if pass >= PASSES.0 && started.elapsed() > ENOUGH {
                break;
            }
            self.lanes.run(&|lane| {
                let mut slot = slots[lane.index].lock().expect("one lane uses it");
                if lane.barrier().is_err() {
                    return;
                }
                let begun = Instant::now();
                work(&mut slot.room);
                let spent = begun.elapsed().as_secs_f64();
                slot.seconds.push(spent);
            })?;
        }
        Ok(median(&mut self.passes(|sum, seconds| sum + seconds / slots.len() as f64)))
    }

    /// Of each pass what its lanes took, brought together.
    fn passes(&self, together: impl Fn(f64, f64) -> f64) -> Vec<f64> {
        let mut passes: Vec<f64> = Vec::new();
        for slot in &self.slots {
            let slot = slot.lock().expect("no lane has panicked");
            passes.resize(slot.seconds.len(), 0.0);
            for (pass, seconds) in passes.iter_mut().zip(&slot.seconds) {
                *pass = together(*pass, *seconds);
            }
        }
        passes
    }

    /// How unlike the lanes are over passes of `pass_s` seconds, and how long one may stand still.
    ///
    /// # Errors
    /// A lane that panicked.
    pub fn meetings(
        &mut self,
        pass_s: f64,
        work: &(dyn Fn(&mut T) + Sync),
    ) -> Result<Meetings, EngineError> {
        let times = (pass_s / self.seconds(work)?).round().max(1.0) as usize;
        for slot in &self.slots {
            let mut slot = slot.lock().expect("no lane has panicked");
            slot.seconds.clear();
            slot.seconds.reserve(MEETINGS);
        }
        let slots = &self.slots;
        for _ in 0..MEETINGS {
            self.lanes.run(&|lane| {
                let mut slot = slots[lane.index].lock().expect("one lane uses it");
                if lane.barrier().is_err() {
                    return;
                }
                let begun = Instant::now();
                (0..times).for_each(|_| work(&mut slot.room));
                let spent = begun.elapsed().as_secs_f64();
                slot.seconds.push(spent);
            })?;
        }
        let mean = self.passes(|sum, seconds| sum + seconds / slots.len() as f64);
        let mut last = self.passes(f64::max);
        let (mean_s, last_s) = (mean.iter().sum::<f64>(), last.iter().sum::<f64>());
        let longest_s = last.iter().copied().fold(0.0, f64::max);
        let pause_s = longest_s - median(&mut last);
        Ok(Meetings { wait_ratio: (last_s / mean_s - 1.0).max(0.0), pause_s })
    }

    /// Seconds that the first lane takes for `first`, once, while all others do `others` again and
    /// again; and those that they take for it each time. The same of one lane as alone.
    ///
    /// # Errors
    /// A lane that panicked.
    pub fn beside(
        &mut self,
        first: &(dyn Fn(&mut T) + Sync),
        others: &(dyn Fn(&mut T) + Sync),
    ) -> Result<(f64, Option<f64>), EngineError> {
        let slots = &self.slots;
        slots.iter().for_each(|slot| slot.lock().expect("no lane has panicked").seconds.clear());
        for _ in 0..BESIDE_PASSES {
            let over = AtomicBool::new(false);
            self.lanes.run(&|lane| {
                let mut slot = slots[lane.index].lock().expect("one lane uses it");
                if lane.barrier().is_err() {
                    return;
                }
                let (begun, mut count) = (Instant::now(), 0u32);
                if lane.index == 0 {
                    first(&mut slot.room);
                    over.store(true, Ordering::Relaxed);
                    count = 1;
                } else {
                    while !over.load(Ordering::Relaxed) || count == 0 {
                        others(&mut slot.room);
                        count += 1;
                    }
                }
                let spent = begun.elapsed().as_secs_f64() / f64::from(count);
                slot.seconds.push(spent);
            })?;
        }
        let median_of =
            |slot: &Mutex<Slot<T>>| median(&mut slot.lock().expect("no lane has panicked").seconds);
        let (first, others) = slots.split_first().expect("a lane");
        let slowest = others.iter().map(median_of).reduce(f64::max);
        Ok((median_of(first), slowest))
    }

    /// What is to be known of a lane's room.
    pub fn room_of<R>(&self, lane: usize, look: impl Fn(&T) -> R) -> R {
        look(&self.slots[lane].lock().expect("no lane has panicked").room)
    }

    /// Seconds of one barrier of all lanes.
    ///
    /// # Errors
    /// A lane that panicked.
    pub fn barrier_seconds(&mut self) -> Result<f64, EngineError> {
        const CROSSINGS: usize = 200;
        let mut passes = Vec::new();
        for _ in 0..21 {
            let spent = Mutex::new(0.0);
            self.lanes.run(&|lane| {
                let _ = lane.barrier();
                let begun = Instant::now();
                for _ in 0..CROSSINGS {
                    let _ = lane.barrier();
                }
                if lane.index == 0 {
                    *spent.lock().expect("lane 0 alone") = begun.elapsed().as_secs_f64();
                }
            })?;
            passes.push(spent.into_inner().expect("no lane has panicked"));
        }
        Ok(median(&mut passes) / CROSSINGS as f64)
    }

    /// Seconds to start all lanes on nothing and to have them back.
    ///
    /// # Errors
    /// A lane that panicked.
    pub fn run_seconds(&mut self) -> Result<f64, EngineError> {
        let mut passes = Vec::new();
        for _ in 0..51 {
            let begun = Instant::now();
            self.lanes.run(&|_| {})?;
            passes.push(begun.elapsed().as_secs_f64());
        }
        Ok(median(&mut passes))
    }
}

/// The one in the middle.
fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}
