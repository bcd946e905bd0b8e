//! Lanes: a fixed number of threads that run one step together, lane 0 being the caller.
//!
//! A step is one closure that every lane runs once, between two barriers: no lane starts before
//! the caller publishes the step, and `run` returns after the last lane is done. Between steps
//! the workers look for a while, then sleep. Nothing on this path allocates, and the only system
//! calls are futex waits and wakes.
//!
//! ```text
//! caller  publish ─ start.signal ─ step(0) ───────── done.wait(n−1 more) ─ return
//! worker            start.wait ─── step(i) ─ done.signal ─ start.wait …
//! ```
//!
//! Believes: `events`, `spin`. Must not know: plans, tasks, memory. A panic in a lane poisons: waits end
//! with `Poisoned`, `run` reports the lane, and the lanes can only be dropped.

use crate::affinity::{ask_for_short_slices, pin_this_thread};
use crate::error::SystemError;
use crate::events::{Event, PoisonFlag, SpinPolicy};
use crate::limits::{LANE_STACK_BYTES_MIN, LANES_MAX};
use crate::protocol::Poisoned;
use crate::spin::{Spinner, Waited, looks_per_microsecond};
use crate::stack;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::thread::JoinHandle;

/// How lanes are placed on processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pinning {
    /// Wherever the kernel puts them.
    Free,
    /// Lane i on the i-th processor that this process may use.
    OneProcessorEach,
}

/// What is fixed when the lanes start.
#[derive(Clone, Copy, Debug)]
pub struct LanesConfig {
    /// Lanes in all, the caller included; 1 starts no thread.
    pub lanes: usize,
    /// Stack of each worker, in bytes, a multiple of the page size; touched before its first
    /// step. The caller's stack is the caller's affair.
    pub stack_bytes: usize,
    /// Events that steps may use, ids `0..events`.
    pub events: usize,
    /// How long waiters look before they sleep.
    pub spin: SpinPolicy,
    /// Where the lanes run.
    pub pinning: Pinning,
}

/// The threads, and everything that they share.
#[derive(Debug)]
pub struct Lanes {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    steps: u32,
}

/// One lane's view of the step that it runs.
#[derive(Debug)]
pub struct Lane<'a> {
    /// This lane's number, 0 for the caller.
    pub index: usize,
    shared: &'a Shared,
}

type Step<'a> = &'a (dyn Fn(&Lane<'_>) + Sync + 'a);
type StepPointer = Option<*const (dyn Fn(&Lane<'_>) + Sync)>;

#[derive(Debug)]
struct Shared {
    lanes: usize,
    pinning: Pinning,
    events: Box<[Event]>,
    /// Each lane's budgets of looking: inside a step, and between steps.
    inside: Box<[Spinner]>,
    between: Box<[Spinner]>,
    /// One event all lanes signal at each crossing, and each lane's crossings so far.
    barrier: [Event; 1],
    crossings: Box<[Crossings]>,
    start: Event,
    done: Event,
    stopping: AtomicBool,
    poison: PoisonFlag,
    /// First lane that panicked, plus one.
    panicked: AtomicUsize,
    step: StepCell,
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Crossings(AtomicU32);

#[derive(Debug)]
struct StepCell(UnsafeCell<StepPointer>);

// SAFETY: the cell is written by the caller only, while every worker is between `done.signal`
// and `start.wait` (or not yet past its first `start.wait`); both edges are acquire/release.
// The closure behind the pointer is Sync, so workers may call it through a shared reference.
unsafe impl Sync for StepCell {}
// SAFETY: as above; the pointer is not used by a thread before it was handed to it by an event.
unsafe impl Send for StepCell {}

impl Lanes {
    /// Starts the workers and waits until each has touched its stack.
    ///
    /// # Errors
    /// `Bound` for a number of lanes outside 1..=256 or a stack under 64 KiB; `Call` when a
    /// thread cannot be made.
    pub fn start(config: &LanesConfig) -> Result<Lanes, SystemError> {
        check(config)?;
        let looks = looks_per_microsecond();
        let spinners =
            |longest_us| (0..config.lanes).map(|_| Spinner::new(longest_us, looks)).collect();
        let shared = Arc::new(Shared {
            lanes: config.lanes,
            pinning: config.pinning,
            inside: spinners(config.spin.longest_us),
            between: spinners(config.spin.between_us),
            events: (0..config.events).map(|_| Event::new()).collect(),
            barrier: [Event::new()],
            crossings: (0..config.lanes).map(|_| Crossings::default()).collect(),
            start: Event::new(),
            done: Event::new(),
            stopping: AtomicBool::new(false),
            poison: PoisonFlag::new(),
            panicked: AtomicUsize::new(0),
            step: StepCell(UnsafeCell::new(None)),
        });
        let mut lanes = Lanes { shared, workers: Vec::with_capacity(config.lanes - 1), steps: 0 };
        place(config.pinning, 0);
        for index in 1..config.lanes {
            let shared = Arc::clone(&lanes.shared);
            let worker =
                stack::spawn_with_touched_stack(LANE_NAME, config.stack_bytes, move || {
                    place(shared.pinning, index);
                    work(&shared, index);
                })?;
            lanes.workers.push(worker);
        }
        // The first, empty step returns when every worker has started and touched its stack.
        lanes.run(&|_| ())?;
        Ok(lanes)
    }

    /// Lanes in all.
    pub fn count(&self) -> usize {
        self.shared.lanes
    }

    /// Runs `step` once on every lane, lane 0 on this thread, and returns when all are done.
    /// Allocates nothing.
    ///
    /// # Errors
    /// `LanePanicked` when a worker panicked, now or in an earlier step.
    ///
    /// # Panics
    /// With the caller's own panic, after all workers have come to rest.
    pub fn run(&mut self, step: Step<'_>) -> Result<(), SystemError> {
        self.run_beside(step, |lane| step(lane))
    }

    /// As [`Lanes::run`], but lane 0 runs `own` in place of the step, beside the others. What
    /// `own` captures stays on this thread, so it may be anything.
    ///
    /// # Errors
    /// As [`Lanes::run`].
    ///
    /// # Panics
    /// As [`Lanes::run`].
    pub fn run_beside(
        &mut self,
        step: Step<'_>,
        own: impl FnOnce(&Lane<'_>),
    ) -> Result<(), SystemError> {
        self.check_not_poisoned()?;
        self.steps = self.steps.wrapping_add(1);
        let shared = &*self.shared;
        let pointer = std::ptr::from_ref::<dyn Fn(&Lane<'_>) + Sync>(step);
        // SAFETY: only the lifetime changes. Workers use the pointer only between `start` and
        // `done` of this step, and this function does not return (nor unwind) before `done`.
        let pointer = unsafe {
            std::mem::transmute::<
                *const (dyn Fn(&Lane<'_>) + Sync + '_),
                *const (dyn Fn(&Lane<'_>) + Sync + 'static),
            >(pointer)
        };
        // SAFETY: every worker has signalled `done` of the last step, which we have waited for,
        // and reads the cell only after `start` below; so nobody else accesses it now.
        unsafe { *shared.step.0.get() = Some(pointer) };
        shared.start.signal();
        let own = catch_unwind(AssertUnwindSafe(|| own(&Lane { index: 0, shared })));
        if own.is_err() {
            shared.fail(0);
        }
        let workers = u32::try_from(shared.lanes - 1).unwrap_or(u32::MAX);
        shared.done.wait_always(Event::target(self.steps, workers), &shared.between[0]);
        if let Err(panic) = own {
            resume_unwind(panic);
        }
        self.check_not_poisoned()
    }

    /// Runs `own` on lane 0, which is this thread, and wakes nobody: for a step in which the other
    /// lanes have nothing to do.
    ///
    /// # Errors
    /// `LanePanicked` when a lane panicked in an earlier step.
    ///
    /// # Panics
    /// With the caller's own panic.
    pub fn run_alone(&mut self, own: impl FnOnce(&Lane<'_>)) -> Result<(), SystemError> {
        self.check_not_poisoned()?;
        let shared = &*self.shared;
        match catch_unwind(AssertUnwindSafe(|| own(&Lane { index: 0, shared }))) {
            Ok(()) => Ok(()),
            Err(panic) => {
                shared.fail(0);
                resume_unwind(panic)
            }
        }
    }

    fn check_not_poisoned(&self) -> Result<(), SystemError> {
        match self.shared.panicked.load(Ordering::Acquire) {
            0 => Ok(()),
            lane => Err(SystemError::LanePanicked { lane: lane - 1 }),
        }
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Release);
        self.shared.start.signal();
        for worker in self.workers.drain(..) {
            // A worker catches every panic of a step, so joining cannot fail.
            let _ = worker.join();
        }
    }
}

impl Lane<'_> {
    /// Lanes in all.
    pub fn count(&self) -> usize {
        self.shared.lanes
    }

    /// Signals event `event` once: a task that names it has finished on this lane.
    ///
    /// # Panics
    /// If there is no such event.
    pub fn signal(&self, event: usize) {
        self.shared.events[event].signal();
    }

    /// How often this lane's next wait would look before it sleeps: little where waits have ended
    /// in sleep, none where looking is forbidden.
    pub fn looks(&self) -> u32 {
        self.shared.inside[self.index].looks()
    }

    /// Tells the lane that an event came while it did something else in place of looking: its next
    /// waits look as they would after a look that found it.
    pub fn learn_found(&self) {
        self.shared.inside[self.index].learn(Waited::Looked);
    }

    /// Whether a wait for this would be over at once.
    ///
    /// # Panics
    /// If there is no such event.
    pub fn has_reached(&self, event: usize, target: u32) -> bool {
        self.shared.events[event].has_reached(target)
    }

    /// Waits until event `event` has been signalled `target` times since the start (see
    /// `Event::target`).
    ///
    /// # Errors
    /// `Poisoned` once any lane has panicked: give up this step.
    ///
    /// # Panics
    /// If there is no such event.
    pub fn wait(&self, event: usize, target: u32) -> Result<(), Poisoned> {
        let spinner = &self.shared.inside[self.index];
        self.shared.events[event].wait(target, spinner, &self.shared.poison)
    }

    /// Whether some lane has panicked: what others were to do may never be done.
    #[must_use]
    pub fn is_poisoned(&self) -> bool {
        self.shared.panicked.load(Ordering::Acquire) != 0
    }

    /// Waits until every lane has come to as many barriers as this one.
    ///
    /// # Errors
    /// `Poisoned` once any lane has panicked: give up this step.
    pub fn barrier(&self) -> Result<(), Poisoned> {
        let shared = self.shared;
        // Only this lane writes its own counter.
        let crossing = shared.crossings[self.index].0.load(Ordering::Relaxed).wrapping_add(1);
        shared.crossings[self.index].0.store(crossing, Ordering::Relaxed);
        let lanes = u32::try_from(shared.lanes).unwrap_or(u32::MAX);
        shared.barrier[0].signal();
        let spinner = &shared.inside[self.index];
        shared.barrier[0].wait(Event::target(crossing, lanes), spinner, &shared.poison)
    }
}

impl Shared {
    /// Lane `index` panicked: remembers the first, and ends every wait.
    fn fail(&self, index: usize) {
        let _ = self.panicked.compare_exchange(0, index + 1, Ordering::AcqRel, Ordering::Relaxed);
        self.poison.poison(&self.events);
        self.poison.poison(&self.barrier);
    }
}

const LANE_NAME: &str = "lane";

fn check(config: &LanesConfig) -> Result<(), SystemError> {
    if config.lanes == 0 || config.lanes > LANES_MAX {
        return Err(SystemError::Bound { what: "lanes", bound: LANES_MAX, value: config.lanes });
    }
    if config.stack_bytes < LANE_STACK_BYTES_MIN {
        return Err(SystemError::Bound {
            what: "least stack of a lane in bytes",
            bound: LANE_STACK_BYTES_MIN,
            value: config.stack_bytes,
        });
    }
    Ok(())
}

/// Best effort: a lane that cannot be pinned, or gets long slices, is slower at most.
fn place(pinning: Pinning, index: usize) {
    let _ = ask_for_short_slices();
    match pinning {
        Pinning::Free => {}
        Pinning::OneProcessorEach => {
            let _ = pin_this_thread(index);
        }
    }
}

/// A worker's life: wait for a step, run it, say so.
fn work(shared: &Shared, index: usize) {
    let mut steps = 0_u32;
    loop {
        steps = steps.wrapping_add(1);
        shared.start.wait_always(Event::target(steps, 1), &shared.between[index]);
        if shared.stopping.load(Ordering::Acquire) {
            return;
        }
        // SAFETY: the caller wrote the cell before `start` (acquired above) and writes it again
        // only after `done` below.
        let step = unsafe { *shared.step.0.get() };
        if let Some(step) = step {
            // SAFETY: `run` keeps the closure alive until this lane has signalled `done`.
            let step = unsafe { &*step };
            if catch_unwind(AssertUnwindSafe(|| step(&Lane { index, shared }))).is_err() {
                shared.fail(index);
            }
        }
        shared.done.signal();
    }
}
