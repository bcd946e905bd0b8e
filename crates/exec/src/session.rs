//! One plan in execution: the arena, the lanes, and the order of phases.
//!
//! What a run checks is small: dims within their bounds, and the phase allowed after the last
//! one. Everything else was proved before. From [`Session::start`] on nothing here allocates.

use std::fs::File;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use dctms_ir::Residence;
use dctms_ir::ids::{DimId, PhaseId, TensorId};
use dctms_ir::plan::Plan;
use dctms_ir::program::{Dim, Flow};
use dctms_kernels::isa::Isa;
use dctms_kernels::peak::{self, Streams};
use dctms_system::SystemError;
use dctms_system::arena::{Arena, ArenaPages};
use dctms_system::lanes::{Lane, Lanes, LanesConfig};
use dctms_verifier::Certificate;

use crate::beside::bit;
use crate::command::Body;
use crate::error::ExecError;
use crate::host::{HostPlace, HostTensor, constants_len_bytes, host_places};
use crate::lane::{Interrupt, run_lane};
use crate::link::{PhaseCode, link};
use crate::load::LoadHost;
use crate::memory::{Memory, Place};
use crate::retired::{RetiredSession, StatePlace, copy_states, states};
use crate::run::Context;
use crate::trace::Trace;

/// A plan whose certificate was checked: the only thing that a session starts from.
#[derive(Clone, Copy, Debug)]
pub struct CertifiedPlan<'a>(&'a Plan);

impl<'a> CertifiedPlan<'a> {
    /// Checks that the certificate is of this plan. (Prints the plan to hash it: takes some
    /// megabytes of heap for a moment.)
    ///
    /// # Errors
    /// A certificate of another plan.
    pub fn new(plan: &'a Plan, certificate: &Certificate) -> Result<Self, ExecError> {
        match certificate.is_of(plan) {
            true => Ok(CertifiedPlan(plan)),
            false => Err(ExecError::WrongCertificate),
        }
    }

    /// The plan.
    #[must_use]
    pub fn plan(&self) -> &'a Plan {
        self.0
    }
}

/// How a session uses the machine.
#[derive(Clone, Copy, Debug)]
pub struct SessionOptions {
    /// Instruction set of the kernels.
    pub isa: Isa,
    /// Threads.
    pub lanes: LanesConfig,
    /// Pages of the arena.
    pub pages: ArenaPages,
}

/// Part of a file that has the first constants as they are to stand in the arena: its pages take
/// the place of the arena's first bytes.
///
/// The file is to stay as it is: one that is shortened ends the process, one that is rewritten
/// changes weights. No session can see to that, so whoever makes this value answers for it; that
/// the bytes are those of constants, [`Session::make_resident`] checks.
#[derive(Clone, Copy, Debug)]
pub struct FilePart<'a> {
    /// The file.
    pub file: &'a File,
    /// First byte, at a whole page.
    pub at: u64,
    /// Bytes, whole pages.
    pub len_bytes: usize,
}

/// Bytes of a constant: they do not change after loading, so they can be read beside any run.
#[derive(Clone, Debug)]
pub struct ConstantBytes {
    arena: Arc<Arena>,
    place: Place,
}

impl ConstantBytes {
    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping lives as long as `arena`, which this value holds.
        let memory = unsafe { Memory::new(self.arena.base(), self.arena.len_bytes()) };
        // SAFETY: one phase writes a constant, and the flow never leads to it again (R3); it had
        // run whole when this value was made (`Session::constant`). Nothing that any phase writes,
        // and nothing that the host is given a place of, shares its bytes (C4). Whoever changes
        // pages needs the arena without this value (`unlent`).
        unsafe { memory.bytes(self.place) }
    }
}

/// How a run that may be interrupted ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ran {
    /// Every task ran.
    Whole,
    /// Some did not. What the phase writes is to be taken for unwritten, state included.
    Interrupted,
}

/// A plan in execution.
pub struct Session {
    // Before the arena, so that the threads have ended when it is unmapped.
    pub(crate) lanes: Lanes,
    arena: Arc<Arena>,
    pub(crate) memory: Memory,
    /// What no other session of this process has.
    pub(crate) number: u64,
    pub(crate) isa: Isa,
    pub(crate) phases: Vec<PhaseState>,
    /// Runs of each phase.
    pub(crate) runs: Vec<u32>,
    pub(crate) flow: Flow,
    pub(crate) dim_bounds: Vec<Dim>,
    pub(crate) dims: Vec<u64>,
    /// Dims of a long run, while the host sets others.
    pub(crate) dims_beside: Vec<u64>,
    /// The event that a long run is prepared, and how often one was.
    pub(crate) prepared_event: usize,
    pub(crate) prepared: u32,
    pub(crate) last: Option<PhaseId>,
    /// A loading phase that failed half way.
    pub(crate) unfinished: Option<PhaseId>,
    /// Phases that have run whole at least once, on all lanes, one bit each.
    finished: u64,
    pub(crate) host_places: Vec<HostPlace>,
    states: Vec<StatePlace>,
    /// First bytes of the arena that hold constants and nothing else.
    constants_len_bytes: usize,
    /// First bytes of the arena that are pages of a file.
    mapped_bytes: usize,
    /// Whether first bytes were taken from the arena and no pages came in their place.
    pub(crate) withheld: bool,
    pub(crate) trace: Option<Trace>,
}

/// The number of the next session.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);

pub(crate) struct PhaseState {
    pub(crate) name: String,
    pub(crate) code: PhaseCode,
    /// First event of the phase among all events.
    pub(crate) event_base: u32,
}

impl Session {
    /// Links a certified plan, maps the arena and starts the lanes. The arena's pages are not
    /// resident yet: see [`Session::make_resident`].
    ///
    /// # Errors
    /// Fewer lanes than the plan has work for, an operating system without room.
    pub fn start(
        certified: CertifiedPlan<'_>,
        options: &SessionOptions,
    ) -> Result<Session, ExecError> {
        let plan = certified.plan();
        let needed = plan.schedules.iter().map(|schedule| schedule.lanes.len()).max().unwrap_or(0);
        if options.lanes.lanes < needed {
            return Err(ExecError::Lanes { needed, value: options.lanes.lanes });
        }
        let arena = Arena::map(plan.arena.bytes as usize, options.pages).map_err(system)?;
        let arena = Arc::new(arena);
        // SAFETY: the mapping is this long, writable and zero, and lives in the same struct; the
        // lanes, which have copies, end before it.
        let memory = unsafe { Memory::new(arena.base(), arena.len_bytes()) };
        let mut phases = Vec::new();
        let mut events = 0;
        for (code, phase) in link(plan).into_iter().zip(&plan.program.phases) {
            let event_base = events;
            events += code.events;
            phases.push(PhaseState { name: phase.name.clone(), code, event_base });
        }
        let prepared_event = events as usize;
        let config = LanesConfig { events: prepared_event + 1, ..options.lanes };
        let lanes = Lanes::start(&config).map_err(system)?;
        Ok(Session {
            lanes,
            arena,
            memory,
            number: NEXT_NUMBER.fetch_add(1, Ordering::Relaxed),
            isa: options.isa,
            runs: vec![0; phases.len()],
            phases,
            flow: plan.program.flow.clone(),
            dim_bounds: plan.program.dims.clone(),
            dims: plan.program.dims.iter().map(|dim| dim.min).collect(),
            dims_beside: plan.program.dims.iter().map(|dim| dim.min).collect(),
            prepared_event,
            prepared: 0,
            last: None,
            unfinished: None,
            finished: 0,
            host_places: host_places(plan),
            states: states(plan),
            constants_len_bytes: constants_len_bytes(plan),
            mapped_bytes: 0,
            withheld: false,
            trace: None,
        })
    }

    /// Records what the lanes do from now on, at most so many records of each.
    pub fn record(&mut self, certified: CertifiedPlan<'_>, records: usize) {
        self.trace = Some(Trace::new(certified.plan(), records));
    }

    /// What was recorded.
    #[must_use]
    pub fn trace(&self) -> Option<&Trace> {
        self.trace.as_ref()
    }

    /// Ends the session: the lanes stop, the commands go, the weights' pages are given back, and
    /// the state stays for a new session to take over.
    ///
    /// # Errors
    /// `Lent` while somebody holds a constant, an operating system that does not take the pages.
    pub fn retire(self) -> Result<RetiredSession, ExecError> {
        let Session { mut arena, lanes, host_places, states, .. } = self;
        drop(lanes);
        let own = unlent(&mut arena)?;
        let weights =
            |host: &&HostPlace| matches!(host.residence, Residence::Constant | Residence::Carried);
        for host in host_places.iter().filter(weights) {
            let Place { offset, len } = host.place;
            // SAFETY: nothing else holds the arena: no constant is lent, the lanes have ended and
            // the session goes. Of what is left only the state is read, which keeps its bytes.
            unsafe { own.discard(offset, len) }.map_err(system)?;
        }
        Ok(RetiredSession { arena, states })
    }

    /// Takes over the first `positions` of every cache. Gives back whether the caches are alike.
    #[must_use]
    pub fn take_over(&mut self, old: &RetiredSession, positions: usize) -> bool {
        // SAFETY: this session is borrowed mutably and the old one has no lanes: no run is under
        // way; the memory is this session's.
        unsafe { copy_states(old, &self.states, self.memory, positions) }
    }

    /// Makes the arena resident, every lane its share, and then does `lock`. What is to be pages
    /// of a file is neither made resident nor within reach of a lock: the pages come last.
    ///
    /// # Errors
    /// Pages in the place of more than constants, after something was loaded, or for the second
    /// time; `Lent` while somebody holds a constant; a lane that panicked, an operating system that
    /// does not map the file. After the last two the first bytes may be gone, and the session
    /// refuses whatever would touch them (`Withheld`).
    pub fn make_resident(
        &mut self,
        mapped: Option<FilePart<'_>>,
        lock: impl FnOnce(),
    ) -> Result<(), ExecError> {
        self.check_pages(mapped)?;
        let own = unlent(&mut self.arena)?;
        let from = mapped.map_or(self.mapped_bytes, |part| part.len_bytes);
        if mapped.is_some() {
            self.withheld = true;
            // SAFETY: the session is borrowed mutably and no constant is lent, so nobody has a
            // slice of the arena. Until pages are mapped, below, nobody gets one of the range:
            // prefaulting begins behind it, only constants stand there (`check_pages`), and while
            // `withheld` is set no phase runs and no constant is lent.
            unsafe { own.withhold(from) }.map_err(system)?;
        }
        let arena = &*own;
        let populated = self.lanes.run(&|lane| {
            arena.prefault_part(from, lane.index, lane.count());
        });
        populated.map_err(system)?;
        lock();
        if let Some(FilePart { file, at, len_bytes }) = mapped {
            // SAFETY: as above, nobody has a slice of the range. Only constants stand there, and
            // only tasks that load have them as outputs (`constants_len_bytes`): so the host has
            // no place there, and these tasks leave out the first `mapped_bytes` (`execute_load`).
            // The file holds the part (`check_pages`); that it stays as it is, `FilePart` asks of
            // its owner.
            unsafe { own.map_file(len_bytes, file, at) }.map_err(system)?;
            (self.mapped_bytes, self.withheld) = (len_bytes, false);
        }
        Ok(())
    }

    /// Whether pages may change: what is left of the arena is whole, and a file's part comes first
    /// of all, once, in the place of nothing but constants.
    fn check_pages(&self, mapped: Option<FilePart<'_>>) -> Result<(), ExecError> {
        if self.withheld {
            return Err(ExecError::Withheld);
        }
        let Some(FilePart { file, at, len_bytes }) = mapped else { return Ok(()) };
        let ran = self.last.is_some() || self.unfinished.is_some() || self.finished != 0;
        if self.mapped_bytes > 0 || ran {
            return Err(ExecError::MappedLate);
        }
        if len_bytes > self.constants_len_bytes {
            return Err(ExecError::Mapped { len_bytes, bound: self.constants_len_bytes });
        }
        let file_len = file.metadata().map_err(|error| ExecError::System {
            message: format!("length of a file to map: {error}"),
        })?;
        match at.checked_add(len_bytes as u64).is_some_and(|end| end <= file_len.len()) {
            true => Ok(()),
            false => Err(ExecError::System {
                message: format!(
                    "{len_bytes} bytes at {at} of a file of {}: cannot be mapped",
                    file_len.len()
                ),
            }),
        }
    }

    /// Runs the loading phase and drops its commands.
    ///
    /// # Errors
    /// The first failure of any lane: then it may be tried again, and nothing else may run.
    pub fn load(&mut self, phase: PhaseId, host: &dyn LoadHost) -> Result<(), ExecError> {
        if self.last.is_some() {
            return Err(self.order_error(phase));
        }
        self.run_with(phase, Some(host), None)?;
        self.phases[phase.index()].code = PhaseCode::default();
        Ok(())
    }

    /// Runs a loading phase that may run again: weights that come and go. What they replace must
    /// not be needed any more; the flow says when that is. After a failure half of what it replaces
    /// is gone, so nothing may run but the same phase, or another such phase that may follow it and
    /// from which no way leads to a use of what is missing but through the phase that failed.
    ///
    /// # Errors
    /// As [`Session::load`]; a phase that may not follow the last one.
    pub fn reload(&mut self, phase: PhaseId, host: &dyn LoadHost) -> Result<(), ExecError> {
        match self.unfinished.filter(|failed| *failed != phase) {
            Some(failed) if self.may_replace(failed, phase) => self.last = Some(failed),
            Some(_) | None => self.check_order(phase)?,
        }
        let before = self.last;
        self.unfinished = Some(phase);
        let ran = self.run_with(phase, Some(host), None);
        if ran.is_err() {
            // So that the phase may be tried again from where it was.
            self.last = before;
        }
        ran.map(|_| ())
    }

    /// Sets a dim for the runs that follow.
    ///
    /// # Errors
    /// A value outside the plan's bounds.
    pub fn set_dim(&mut self, dim: DimId, value: u64) -> Result<(), ExecError> {
        check_dim(&self.dim_bounds[dim.index()], value)?;
        self.dims[dim.index()] = value;
        Ok(())
    }

    /// Runs one phase on all lanes. Allocates nothing.
    ///
    /// # Errors
    /// A phase that may not follow the last one, or a lane that panicked.
    pub fn run(&mut self, phase: PhaseId) -> Result<(), ExecError> {
        self.run_with(phase, None, None).map(|_| ())
    }

    /// As [`Session::run`], but every lane asks `stop` before each task and, once the answer is
    /// yes, only passes its waits and signals on. So a run ends within the longest task.
    ///
    /// A task that was left out is seen by whatever waits for it (its signal comes after the
    /// mark), so what did run never read what was not written. For the order of phases the run has
    /// not been: none may follow that needs it.
    ///
    /// # Errors
    /// As [`Session::run`].
    pub fn run_unless(
        &mut self,
        phase: PhaseId,
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Result<Ran, ExecError> {
        self.run_with(phase, None, Some(stop))
    }

    fn run_with(
        &mut self,
        phase: PhaseId,
        host: Option<&dyn LoadHost>,
        stop: Option<&(dyn Fn() -> bool + Sync)>,
    ) -> Result<Ran, ExecError> {
        self.check_order(phase)?;
        let before = self.last;
        self.last = Some(phase);
        self.runs[phase.index()] = self.runs[phase.index()].wrapping_add(1);
        let (state, run) = (&self.phases[phase.index()], self.runs[phase.index()]);
        let failure = Mutex::new(None);
        let context = Context {
            memory: self.memory,
            isa: self.isa,
            dims: &self.dims,
            mapped_bytes: self.mapped_bytes,
            host,
            failure: &failure,
        };
        let interrupt = Interrupt::new(stop);
        let trace = self.trace.as_ref();
        let step = |lane: &Lane<'_>| {
            let recorder = trace.map(|t| t.recorder(lane.index, phase.index(), run));
            run_lane(lane, (state, run), &context, &interrupt, recorder.as_ref());
        };
        // To choose a token nobody else is woken.
        let ran = match state.code.lanes.iter().skip(1).all(Vec::is_empty) {
            true => self.lanes.run_alone(step),
            false => self.lanes.run(&step),
        };
        ran.map_err(system)?;
        match failure.into_inner() {
            Ok(None) if interrupt.is_set() => {
                self.last = before;
                Ok(Ran::Interrupted)
            }
            Ok(None) => {
                self.unfinished = None;
                self.finished |= bit(phase);
                Ok(Ran::Whole)
            }
            Ok(Some(error)) => {
                (self.last, self.unfinished) = (before, Some(phase));
                Err(error)
            }
            Err(_) => Err(ExecError::System { message: "a lane panicked".to_string() }),
        }
    }

    /// Reads all weights that a phase's products read, each lane its own, and computes nothing:
    /// what the phase would take if arithmetic and waiting were free. Gives the bytes.
    ///
    /// # Errors
    /// A lane that panicked; `Withheld` as after [`Session::make_resident`].
    pub fn read_weights(&mut self, phase: PhaseId, streams: Streams) -> Result<u64, ExecError> {
        if self.withheld {
            return Err(ExecError::Withheld);
        }
        let Session { lanes, phases, memory, .. } = self;
        let (code, memory) = (&phases[phase.index()].code, *memory);
        let places = |lane: usize| {
            let commands = code.lanes.get(lane).into_iter().flatten();
            commands.filter_map(|command| command.body.as_ref()).flat_map(Body::weights).flatten()
        };
        let read = lanes.run(&|lane| {
            for place in places(lane.index) {
                // SAFETY: the session is borrowed mutably, so no task runs that could write; the
                // slice is dropped before the lanes are done.
                black_box(peak::read_bytes(streams, unsafe { memory.bytes(place) }));
            }
        });
        read.map_err(system)?;
        Ok((0..code.lanes.len()).flat_map(places).map(|place| place.len as u64).sum())
    }

    /// Where a tensor stands that lives across phases, for the host to read or write between
    /// runs. `None` for any other tensor, and for a constant, which the host only reads:
    /// [`Session::constant`].
    #[must_use]
    pub fn host_tensor(&self, id: TensorId) -> Option<HostTensor> {
        let found = self.host_places.iter().find(|host| host.tensor == id);
        found.filter(|host| host.residence != Residence::Constant).map(|host| HostTensor {
            session: self.number,
            place: host.place,
            shares: host.shares,
        })
    }

    /// A constant, once the phase that writes it has run whole. `None` before, and for any other
    /// tensor.
    #[must_use]
    pub fn constant(&self, id: TensorId) -> Option<ConstantBytes> {
        let found = self.host_places.iter().find(|host| host.tensor == id)?;
        let is_loaded = found.written != 0 && found.written & !self.finished == 0;
        let is_constant = found.residence == Residence::Constant && is_loaded && !self.withheld;
        is_constant.then(|| ConstantBytes { arena: Arc::clone(&self.arena), place: found.place })
    }

    /// Bytes of a host tensor.
    ///
    /// # Panics
    /// When another session gave the tensor.
    #[must_use]
    pub fn bytes(&self, tensor: HostTensor) -> &[u8] {
        // SAFETY: the place is of this plan (checked) and of no constant, so its pages are the
        // arena's own; no run is under way (`run` borrows the session mutably), and the slice
        // borrows the session, so none can start while it lives.
        unsafe { self.memory.bytes(tensor.place_in(self.number)) }
    }

    /// Floats of a host tensor.
    ///
    /// # Panics
    /// As [`Session::bytes`].
    #[must_use]
    pub fn floats(&self, tensor: HostTensor) -> &[f32] {
        // SAFETY: as in `bytes`.
        unsafe { self.memory.floats(tensor.place_in(self.number)) }
    }

    /// Integers of a host tensor.
    ///
    /// # Panics
    /// As [`Session::bytes`].
    #[must_use]
    pub fn integers(&self, tensor: HostTensor) -> &[u32] {
        // SAFETY: as in `bytes`.
        unsafe { self.memory.integers(tensor.place_in(self.number)) }
    }

    /// Bytes of a host tensor, to write.
    ///
    /// # Panics
    /// As [`Session::bytes`].
    pub fn bytes_mut(&mut self, tensor: HostTensor) -> &mut [u8] {
        // SAFETY: the place is of this plan (checked) and of no constant. The session is borrowed
        // mutably, so no run is under way and no other slice that it lent is alive; those of
        // `ConstantBytes` may be, and constants share no byte with what the host has (C4).
        unsafe { self.memory.bytes_mut(tensor.place_in(self.number)) }
    }

    /// Integers of a host tensor, to write.
    ///
    /// # Panics
    /// As [`Session::bytes`].
    pub fn integers_mut(&mut self, tensor: HostTensor) -> &mut [u32] {
        // SAFETY: as in `bytes_mut`.
        unsafe { self.memory.integers_mut(tensor.place_in(self.number)) }
    }
}

/// The arena, to change its pages.
///
/// # Errors
/// `Lent` while somebody holds bytes of it.
fn unlent(arena: &mut Arc<Arena>) -> Result<&mut Arena, ExecError> {
    Arc::get_mut(arena).ok_or(ExecError::Lent)
}

fn system(error: SystemError) -> ExecError {
    ExecError::System { message: error.to_string() }
}

pub(crate) fn check_dim(bounds: &Dim, value: u64) -> Result<(), ExecError> {
    if value < bounds.min || value > bounds.max {
        return Err(ExecError::Dim {
            name: bounds.name.clone(),
            value,
            min: bounds.min,
            max: bounds.max,
        });
    }
    Ok(())
}
