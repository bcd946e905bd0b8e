//! What one lane does in a run: waits, tasks, signals, in the order of its list.
//!
//! **Waiting is used.** A lane that has come to a cut before the others has nothing to compute,
//! but memory need not stand still: the weights of its next product are constants, at a place that
//! is known. So it asks for their first bytes, which then stand in its cache when the cut is
//! passed. That changes when bytes move, never what is computed.
//!
//! Believes: the linked commands. Must not know: plans, names.

use std::sync::atomic::{AtomicBool, Ordering};

use dctms_system::Poisoned;
use dctms_system::events::Event;
use dctms_system::lanes::Lane;

use crate::command::Command;
use crate::memory::{Memory, Place};
use crate::run::{Context, execute};
use crate::session::PhaseState;
use crate::trace::{Kind, Recorder};

/// The question whether to stop, and whether some lane was told yes.
pub(crate) struct Interrupt<'a> {
    stop: Option<&'a (dyn Fn() -> bool + Sync)>,
    seen: AtomicBool,
}

impl<'a> Interrupt<'a> {
    pub(crate) fn new(stop: Option<&'a (dyn Fn() -> bool + Sync)>) -> Interrupt<'a> {
        Interrupt { stop, seen: AtomicBool::new(false) }
    }

    /// The answer is yes from now on.
    pub(crate) fn set(&self) {
        self.seen.store(true, Ordering::Relaxed);
    }

    /// Whether it was yes; for after the run.
    pub(crate) fn is_set(&self) -> bool {
        self.seen.load(Ordering::Relaxed)
    }

    /// Whether the next task is left out. Relaxed is enough: of a task that was left out, whoever
    /// waits for it learns by the event, which orders the mark too.
    fn is_on(&self) -> bool {
        if self.is_set() {
            return true;
        }
        let told = self.stop.is_some_and(|stop| stop());
        if told {
            self.set();
        }
        told
    }
}

/// Runs the lane's list; ends early once another lane has panicked.
pub(crate) fn run_lane(
    lane: &Lane<'_>,
    (state, run): (&PhaseState, u32),
    context: &Context<'_>,
    interrupt: &Interrupt<'_>,
    recorder: Option<&Recorder<'_>>,
) {
    let Some(commands) = state.code.lanes.get(lane.index) else { return };
    let mut ahead = Ahead { memory: context.memory, weights: None, asked: 0 };
    let mut time_ns = recorder.map_or(0, Recorder::now_ns);
    for (index, command) in commands.iter().enumerate() {
        if wait_for(lane, (state, run), &commands[index..], &mut ahead).is_err() {
            return;
        }
        if let Some(recorder) = recorder {
            time_ns = recorder.record(Kind::Wait, index, time_ns);
        }
        if let Some(body) = &command.body
            && !interrupt.is_on()
        {
            execute(body, command.tokens.of(context.dims), context);
            if let Some(recorder) = recorder {
                time_ns = recorder.record(Kind::Work, index, time_ns);
            }
        }
        if let Some(event) = command.signals {
            lane.signal((state.event_base + event) as usize);
        }
    }
}

/// Waits for all events of the first of `commands`.
fn wait_for(
    lane: &Lane<'_>,
    (state, run): (&PhaseState, u32),
    commands: &[Command],
    ahead: &mut Ahead,
) -> Result<(), Poisoned> {
    let (first, last) = commands[0].waits;
    for (event, signals) in &state.code.waits[first as usize..last as usize] {
        let (event, target) = ((state.event_base + event) as usize, Event::target(run, *signals));
        if !lane.has_reached(event, target) {
            ahead.aim(commands);
            // No longer than looking would take: where somebody else needs the processor, it gets
            // it. An event that comes meanwhile was found as if by looking.
            let asks = lane.looks() / LOOKS_OF_ASK;
            let found = || lane.has_reached(event, target);
            let asked = (0..asks).take_while(|_| !found() && ahead.ask()).count();
            if asked > 0 && found() {
                lane.learn_found();
            }
        }
        lane.wait(event, target)?;
    }
    Ok(())
}

/// Bytes that are asked for between two looks at an event: some tens of nanoseconds' worth.
const ASK_BYTES: usize = 512;

/// An ask takes about as long as so many looks.
const LOOKS_OF_ASK: u32 = 4;

/// Bytes that a lane asks for before it needs them, at most: a part of its second-level cache.
const AHEAD_BYTES_MAX: usize = 256 << 10;

/// How far a lane has asked for the weights of its next product.
struct Ahead {
    memory: Memory,
    weights: Option<Place>,
    asked: usize,
}

impl Ahead {
    /// Turns to the weights that the lane meets next.
    fn aim(&mut self, commands: &[Command]) {
        let next = commands.iter().find_map(|command| command.body.as_ref()?.weights()[0]);
        if self.weights != next {
            (self.weights, self.asked) = (next, 0);
        }
    }

    /// Asks for some more bytes; whether there were any.
    fn ask(&mut self) -> bool {
        let Some(weights) = self.weights else { return false };
        let bytes = ASK_BYTES.min(weights.len.min(AHEAD_BYTES_MAX) - self.asked);
        self.memory.prefetch(weights.part(self.asked, bytes));
        self.asked += bytes;
        bytes > 0
    }
}
