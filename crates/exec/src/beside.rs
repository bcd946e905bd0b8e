//! One long run of a phase with short ones beside it.
//!
//! ```text
//! lane 0     host · short · host · short · …                      │ waits
//! lane 1     prepare · task · task · task · task · task · task · ─┘
//! lanes 2…   (wait)  · task · task · …
//! ```
//!
//! The lanes that the long phase is planned on run it once; lane 0, on which it has nothing, runs
//! the host's closure, which may run phases of its own there. Before the long phase its first lane
//! runs another closure of the host's, which fills what the phase reads: work that would otherwise
//! stand between two short phases.
//!
//! Believes the certificate: phases that the flow pairs to overlap touch no common byte that either
//! writes (R2), whatever lanes they are on. What this file adds is the *host*: each of the two
//! closures is lent only what it cannot share with anybody who is running (see `Shares`).

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use dctms_ir::ids::{DimId, PhaseId};
use dctms_ir::program::{Dim, Flow};
use dctms_kernels::isa::Isa;
use dctms_system::events::Event;
use dctms_system::lanes::Lane;

use crate::error::ExecError;
use crate::host::HostTensor;
use crate::lane::{Interrupt, run_lane};
use crate::memory::{Memory, Place};
use crate::order::follows;
use crate::run::Context;
use crate::session::{PhaseState, Session, check_dim};
use crate::trace::Trace;

/// Which phases have to do with a host tensor: one bit a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Shares {
    /// Those with an operation that names it.
    pub named: u64,
    /// Those that touch any of its bytes, under whatever name.
    pub touched: u64,
}

/// The bit of a phase.
pub(crate) fn bit(phase: PhaseId) -> u64 {
    1 << phase.index()
}

/// How a long run ended.
#[derive(Debug, PartialEq, Eq)]
pub enum LongRun<E> {
    /// Every task ran.
    Whole,
    /// It was stopped: what the phase writes is to be taken for unwritten.
    Interrupted,
    /// What was to be done before it failed; no task ran.
    Unprepared(E),
}

impl Session {
    /// Runs `long` once, on its lanes, while this thread runs `host`, which may run short phases.
    /// Ends when both have ended. Every lane asks `stop` before each task of the long phase. `prepare`
    /// runs before it, on its first lane, and may write what the phase reads. Dims of the long
    /// phase are those that are set now; `host` may set others. Allocates nothing itself.
    ///
    /// # Errors
    /// A phase that may not follow the last one, or that has work for lane 0, or that loads; a lane
    /// that panicked.
    pub fn run_beside<E: Send, R>(
        &mut self,
        (long, stop): (PhaseId, &(dyn Fn() -> bool + Sync)),
        prepare: impl FnOnce(&mut Preparing) -> Result<(), E> + Send,
        host: impl FnOnce(&mut Beside<'_>) -> R,
    ) -> Result<(LongRun<E>, R), ExecError> {
        self.check_order(long)?;
        let first_lane = self.first_lane_beside_host(long)?;
        let before = self.last;
        self.runs[long.index()] = self.runs[long.index()].wrapping_add(1);
        self.prepared = self.prepared.wrapping_add(1);
        self.dims_beside.copy_from_slice(&self.dims);
        let run = self.runs[long.index()];
        let (state, trace) = (&self.phases[long.index()], self.trace.as_ref());
        let (memory, isa, session) = (self.memory, self.isa, self.number);
        let failure = Mutex::new(None);
        let dims = &self.dims_beside;
        let context = Context { memory, isa, dims, mapped_bytes: 0, host: None, failure: &failure };
        let interrupt = Interrupt::new(Some(stop));
        let prepared_event = self.prepared_event;
        let target = Event::target(self.prepared, 1);
        let partners = partners(&self.flow, long);
        let prepare = Mutex::new(Some(prepare));
        let unprepared = Mutex::new(None);
        let running = AtomicUsize::new(self.lanes.count() - 1);
        let step = |lane: &Lane<'_>| {
            let _over = Over(&running);
            if lane.index == first_lane {
                let prepare = prepare.lock().ok().and_then(|mut prepare| prepare.take());
                let mut preparing = Preparing { memory, session, long: bit(long), partners };
                let done = prepare.map_or(Ok(()), |prepare| prepare(&mut preparing));
                if let (Err(error), Ok(mut slot)) = (done, unprepared.lock()) {
                    *slot = Some(error);
                    interrupt.set();
                }
                lane.signal(prepared_event);
            } else if lane.wait(prepared_event, target).is_err() {
                return;
            }
            let recorder = trace.map(|trace| trace.recorder(lane.index, long.index(), run));
            run_lane(lane, (state, run), &context, &interrupt, recorder.as_ref());
        };
        let mut answer = None;
        let mut last = None;
        let ran = self.lanes.run_beside(&step, |lane| {
            let mut beside = Beside {
                lane,
                memory,
                session,
                isa,
                begun: [Some(long), before],
                long,
                partners,
                phases: &self.phases,
                flow: &self.flow,
                dim_bounds: &self.dim_bounds,
                runs: &mut self.runs,
                dims: &mut self.dims,
                trace,
                running: &running,
                last: &mut last,
            };
            answer = Some(host(&mut beside));
        });
        ran.map_err(|error| ExecError::System { message: error.to_string() })?;
        let failure = failure.into_inner().map_err(|_| panicked())?;
        let stopped = interrupt.is_set() || failure.is_some();
        self.last = last.or(if stopped { before } else { Some(long) });
        if let Some(error) = failure {
            return Err(error);
        }
        let long = match unprepared.into_inner() {
            Ok(Some(error)) => LongRun::Unprepared(error),
            Ok(None) if stopped => LongRun::Interrupted,
            Ok(None) => LongRun::Whole,
            Err(_) => return Err(panicked()),
        };
        Ok((long, answer.expect("lane 0 ran it")))
    }
}

/// What is lent to whoever prepares a long phase: what that phase names, and no phase that may run
/// beside it.
pub struct Preparing {
    memory: Memory,
    session: u64,
    long: u64,
    partners: u64,
}

impl Preparing {
    /// Bytes of a host tensor, to write.
    ///
    /// # Panics
    /// When the long phase does not name it, a phase that may run beside touches its bytes, or
    /// another session gave it.
    pub fn bytes_mut(&mut self, tensor: HostTensor) -> &mut [u8] {
        let place = self.check(tensor);
        // SAFETY: the place is of this plan (checked). The long phase has begun no task (its lanes
        // wait for whoever prepares); phases beside it touch none of these bytes (checked); the
        // host beside is lent no tensor with bytes that the long phase touches. The slice borrows
        // this value, the only one of its run; slices of constants may be alive, and constants
        // share no byte with what the host has (C4).
        unsafe { self.memory.bytes_mut(place) }
    }

    /// Integers of a host tensor, to write.
    ///
    /// # Panics
    /// As [`Preparing::bytes_mut`].
    pub fn integers_mut(&mut self, tensor: HostTensor) -> &mut [u32] {
        let place = self.check(tensor);
        // SAFETY: as in `bytes_mut`.
        unsafe { self.memory.integers_mut(place) }
    }

    fn check(&self, tensor: HostTensor) -> Place {
        let (place, Shares { named, touched }) = (tensor.place_in(self.session), tensor.shares);
        let own = named & self.long != 0 && touched & self.partners == 0;
        assert!(own, "{place:?} is not for the long phase alone");
        place
    }
}

/// The host's side of a long run: short phases, and host tensors that the long phase has nothing
/// to do with.
pub struct Beside<'s> {
    lane: &'s Lane<'s>,
    memory: Memory,
    session: u64,
    isa: Isa,
    long: PhaseId,
    /// What a first short phase follows: the long one, or, should that be interrupted, the one
    /// before it.
    begun: [Option<PhaseId>; 2],
    partners: u64,
    phases: &'s [PhaseState],
    flow: &'s Flow,
    dim_bounds: &'s [Dim],
    runs: &'s mut [u32],
    dims: &'s mut [u64],
    trace: Option<&'s Trace>,
    running: &'s AtomicUsize,
    last: &'s mut Option<PhaseId>,
}

impl Beside<'_> {
    /// Whether the long phase is over: nothing is gained by staying.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.running.load(Ordering::Acquire) == 0 || self.lane.is_poisoned()
    }

    /// Sets a dim for the short runs that follow, and for whatever comes after the long one.
    ///
    /// # Errors
    /// A value outside the plan's bounds.
    pub fn set_dim(&mut self, dim: DimId, value: u64) -> Result<(), ExecError> {
        check_dim(&self.dim_bounds[dim.index()], value)?;
        self.dims[dim.index()] = value;
        Ok(())
    }

    /// Runs a short phase on this lane. Allocates nothing.
    ///
    /// # Errors
    /// A phase that may not run beside the long one or not follow the last short one, that has work
    /// for other lanes, or that loads; a lane that panicked.
    pub fn run(&mut self, phase: PhaseId) -> Result<(), ExecError> {
        let state = &self.phases[phase.index()];
        let alone = state.code.lanes.iter().skip(1).all(Vec::is_empty);
        if self.partners & bit(phase) == 0 || !alone {
            let beside = self.phases[self.long.index()].name.clone();
            return Err(ExecError::Beside { phase: state.name.clone(), beside: Some(beside) });
        }
        let begun = match *self.last {
            Some(last) => [Some(last); 2],
            None => self.begun,
        };
        if let Some(after) = begun.into_iter().find(|after| !follows(self.flow, *after, phase)) {
            let after = after.map(|after| self.phases[after.index()].name.clone());
            return Err(ExecError::Order { phase: state.name.clone(), after });
        }
        let before = self.last.replace(phase);
        self.runs[phase.index()] = self.runs[phase.index()].wrapping_add(1);
        let run = self.runs[phase.index()];
        let failure = Mutex::new(None);
        let (memory, isa) = (self.memory, self.isa);
        let dims = &*self.dims;
        let context = Context { memory, isa, dims, mapped_bytes: 0, host: None, failure: &failure };
        let trace = self.trace;
        let recorder = trace.map(|trace| trace.recorder(0, phase.index(), run));
        run_lane(self.lane, (state, run), &context, &Interrupt::new(None), recorder.as_ref());
        match failure.into_inner() {
            Ok(None) if !self.lane.is_poisoned() => Ok(()),
            Ok(Some(error)) => {
                *self.last = before;
                Err(error)
            }
            Ok(None) | Err(_) => Err(panicked()),
        }
    }

    /// Bytes of a host tensor.
    ///
    /// # Panics
    /// When the long phase touches any of them, or another session gave the tensor.
    #[must_use]
    pub fn bytes(&self, tensor: HostTensor) -> &[u8] {
        let place = self.check(tensor);
        // SAFETY: the place is of this plan (checked). The long phase and whoever prepares it touch
        // none of these bytes (checked), short phases run on this thread in `run`, which borrows
        // this value mutably.
        unsafe { self.memory.bytes(place) }
    }

    /// Floats of a host tensor.
    ///
    /// # Panics
    /// As [`Beside::bytes`].
    #[must_use]
    pub fn floats(&self, tensor: HostTensor) -> &[f32] {
        let place = self.check(tensor);
        // SAFETY: as in `bytes`.
        unsafe { self.memory.floats(place) }
    }

    /// Integers of a host tensor.
    ///
    /// # Panics
    /// As [`Beside::bytes`].
    #[must_use]
    pub fn integers(&self, tensor: HostTensor) -> &[u32] {
        let place = self.check(tensor);
        // SAFETY: as in `bytes`.
        unsafe { self.memory.integers(place) }
    }

    /// Bytes of a host tensor, to write.
    ///
    /// # Panics
    /// As [`Beside::bytes`].
    pub fn bytes_mut(&mut self, tensor: HostTensor) -> &mut [u8] {
        let place = self.check(tensor);
        // SAFETY: as in `bytes`; this value is borrowed mutably, so no other slice that it lent is
        // alive, and constants share no byte with what the host has (C4).
        unsafe { self.memory.bytes_mut(place) }
    }

    /// Integers of a host tensor, to write.
    ///
    /// # Panics
    /// As [`Beside::bytes`].
    pub fn integers_mut(&mut self, tensor: HostTensor) -> &mut [u32] {
        let place = self.check(tensor);
        // SAFETY: as in `bytes_mut`.
        unsafe { self.memory.integers_mut(place) }
    }

    fn check(&self, tensor: HostTensor) -> Place {
        let place = tensor.place_in(self.session);
        let apart = tensor.shares.touched & bit(self.long) == 0;
        assert!(apart, "{place:?} is the long phase's");
        place
    }
}

impl Session {
    /// The first lane of a phase that has nothing for lane 0.
    fn first_lane_beside_host(&self, phase: PhaseId) -> Result<usize, ExecError> {
        let PhaseState { name, code, .. } = &self.phases[phase.index()];
        match code.lanes.iter().position(|commands| !commands.is_empty()) {
            Some(lane) if lane > 0 => Ok(lane),
            Some(_) | None => Err(ExecError::Beside { phase: name.clone(), beside: None }),
        }
    }
}

/// Counts a lane off when it is done, or gives up.
struct Over<'a>(&'a AtomicUsize);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// The phases that may run beside one.
fn partners(flow: &Flow, phase: PhaseId) -> u64 {
    let partner = |(one, other): &(PhaseId, PhaseId)| match (*one == phase, *other == phase) {
        (true, _) => bit(*other),
        (false, true) => bit(*one),
        (false, false) => 0,
    };
    flow.overlap.iter().map(partner).fold(0, |all, one| all | one)
}

fn panicked() -> ExecError {
    ExecError::System { message: "a lane panicked".to_string() }
}
