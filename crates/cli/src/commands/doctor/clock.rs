//! Times work that all lanes do at once.
//!
//! A pass takes as long as its slowest lane, as between two cuts of a schedule; the figure is the
//! median of the passes: what a long run gets here, not what a lucky moment gives. Every pass
//! begins at a barrier: the rates are those of lanes that share caches and memory.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use dctms_engine::EngineError;
use dctms_system::lanes::Lanes;

/// Least and most passes, and the time after which no more are begun.
const PASSES: (usize, usize) = (5, 41);
const ENOUGH: Duration = Duration::from_millis(12);

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
        let mut passes: Vec<f64> = Vec::new();
        for slot in &self.slots {
            let slot = slot.lock().expect("no lane has panicked");
            passes.resize(slot.seconds.len(), 0.0);
            for (pass, seconds) in passes.iter_mut().zip(&slot.seconds) {
                *pass = pass.max(*seconds);
            }
        }
        Ok(median(&mut passes))
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
