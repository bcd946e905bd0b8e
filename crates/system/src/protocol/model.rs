//! A small model checker: runs the real protocol code on real threads, one operation at a time,
//! through every order that the bounds allow.
//!
//! Each operation on a word is a point where any runnable thread may go next; the choices form a
//! tree that is walked depth first by replaying a prefix. Bounds: involuntary switches for each
//! run, and loads for each thread that return an older value than the newest (as far as the
//! happens-before relation lets them). Found: deadlocks (a lost wake leaves a sleeper behind), data
//! races (vector clocks along acquire and release edges), and failed assertions.
//!
//! Believes: read-modify-write operations and the kernel's compare before sleeping see the newest
//! value; fences and other orderings than the protocol's do not occur. Must not know: what the
//! protocol means.

use super::Word;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::sync::atomic::Ordering;
use std::sync::{Condvar, Mutex, MutexGuard};

/// What one exploration may do.
#[derive(Clone, Copy)]
pub(super) struct Bounds {
    pub(super) words: usize,
    pub(super) cells: usize,
    /// Switches away from a thread that could go on, in one run.
    pub(super) preemptions: usize,
    /// Loads of one thread that see an old value, in one run.
    pub(super) stale_loads: usize,
    /// Runs before the exploration gives up as too large.
    pub(super) runs: usize,
}

type Clock = Vec<u32>;

/// One thread of a scenario.
pub(super) type Body<'a> = &'a (dyn Fn(&Handle<'_>) + Sync);

/// A thread's access to the modelled words and cells.
pub(super) struct Handle<'a> {
    machine: &'a Machine,
    thread: usize,
}

/// One modelled word as one thread uses it.
pub(super) struct ModelWord<'a> {
    machine: &'a Machine,
    thread: usize,
    word: usize,
}

struct Machine {
    state: Mutex<State>,
    /// One for each thread: its turn has come, or the run has failed.
    turns: Vec<Condvar>,
}

struct State {
    threads: Vec<Thread>,
    words: Vec<Vec<Value>>,
    cells: Vec<DataCell>,
    current: usize,
    preemptions_left: usize,
    choices: Vec<Choice>,
    depth: usize,
    failure: Option<String>,
}

struct Thread {
    status: Status,
    clock: Clock,
    stale_left: usize,
    /// For each word the oldest value that this thread may still see.
    oldest: Vec<usize>,
}

#[derive(Clone, Copy, PartialEq)]
enum Status {
    Runnable,
    Sleeping(usize),
    Done,
}

struct Value {
    value: u32,
    /// The writer's time.
    written: Clock,
    /// What an acquiring reader learns.
    released: Clock,
}

#[derive(Default)]
struct DataCell {
    written: Clock,
    read: Clock,
}

#[derive(Clone, Copy)]
struct Choice {
    taken: usize,
    of: usize,
}

/// Ends a thread of a run that has failed elsewhere.
struct Stopped;

/// Explores every run of `bodies`; returns the number of runs, or the first failure.
pub(super) fn explore(bounds: Bounds, bodies: &[Body<'_>]) -> Result<usize, String> {
    let mut choices = Vec::new();
    for run in 1..=bounds.runs {
        let state = run_once(bounds, bodies, choices);
        if let Some(failure) = state.failure {
            return Err(format!("run {run}: {failure}"));
        }
        choices = state.choices;
        while choices.last().is_some_and(|choice| choice.taken + 1 == choice.of) {
            choices.pop();
        }
        match choices.last_mut() {
            Some(choice) => choice.taken += 1,
            None => return Ok(run),
        }
    }
    Err(format!("more than {} runs", bounds.runs))
}

fn run_once(bounds: Bounds, bodies: &[Body<'_>], choices: Vec<Choice>) -> State {
    let count = bodies.len();
    let zero = || vec![0; count];
    let thread = |index: usize| {
        let mut clock = zero();
        clock[index] = 1;
        let oldest = vec![0; bounds.words];
        Thread { status: Status::Runnable, clock, stale_left: bounds.stale_loads, oldest }
    };
    let value = || Value { value: 0, written: zero(), released: zero() };
    let mut state = State {
        threads: (0..count).map(thread).collect(),
        words: (0..bounds.words).map(|_| vec![value()]).collect(),
        cells: (0..bounds.cells).map(|_| DataCell { written: zero(), read: zero() }).collect(),
        current: 0,
        preemptions_left: bounds.preemptions,
        choices,
        depth: 0,
        failure: None,
    };
    // Which thread begins is the first choice.
    state.current = state.choose(count);
    let turns = (0..count).map(|_| Condvar::new()).collect();
    let machine = Machine { state: Mutex::new(state), turns };
    std::thread::scope(|scope| {
        for (index, body) in bodies.iter().enumerate() {
            let machine = &machine;
            scope.spawn(move || machine.run_thread(index, body));
        }
    });
    machine.state.into_inner().unwrap()
}

impl Machine {
    fn run_thread(&self, index: usize, body: &Body<'_>) {
        let result = catch_unwind(AssertUnwindSafe(|| {
            drop(self.wait(index, self.state.lock().unwrap()));
            body(&Handle { machine: self, thread: index });
        }));
        let mut state = self.state.lock().unwrap();
        if let Err(panic) = result
            && !panic.is::<Stopped>()
        {
            let text = panic.downcast_ref::<String>().map_or("a panic", String::as_str);
            state.failure.get_or_insert_with(|| text.to_owned());
        }
        state.threads[index].status = Status::Done;
        state.pass_on(index);
        self.call(&state);
    }

    /// Offers the turn to every thread, then goes on once it is ours. The caller's operation is
    /// what comes next, in one piece.
    fn turn(&self, index: usize) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap();
        state.pass_on(index);
        if state.current != index || state.failure.is_some() {
            self.call(&state);
        }
        self.wait(index, state)
    }

    /// Wakes the thread whose turn it is, or all of them after a failure.
    fn call(&self, state: &State) {
        match state.failure {
            None => self.turns[state.current].notify_one(),
            Some(_) => self.turns.iter().for_each(Condvar::notify_one),
        }
    }

    fn wait<'a>(&'a self, index: usize, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let is_waiting = |state: &mut State| state.current != index && state.failure.is_none();
        let state = self.turns[index].wait_while(state, is_waiting).unwrap();
        if state.failure.is_some() {
            drop(state);
            panic_any(Stopped);
        }
        state
    }
}

impl State {
    /// Chooses the thread that goes next.
    fn pass_on(&mut self, from: usize) {
        let goes_on = self.threads[from].status == Status::Runnable;
        let others = (0..self.threads.len()).filter(|&other| other != from);
        let runnable = |&thread: &usize| self.threads[thread].status == Status::Runnable;
        let mut options: Vec<usize> = others.filter(runnable).collect();
        if goes_on {
            options.insert(0, from);
            if self.preemptions_left == 0 {
                options.truncate(1);
            }
        }
        if options.is_empty() {
            let asleep = self.threads.iter().any(|thread| thread.status != Status::Done);
            if asleep {
                self.failure.get_or_insert_with(|| "deadlock: everybody sleeps".to_owned());
            }
            return;
        }
        let next = options[self.choose(options.len())];
        if goes_on && next != from {
            self.preemptions_left -= 1;
        }
        self.current = next;
    }

    fn choose(&mut self, of: usize) -> usize {
        if of == 1 {
            return 0;
        }
        if self.depth == self.choices.len() {
            self.choices.push(Choice { taken: 0, of });
        }
        let choice = self.choices[self.depth];
        assert_eq!(choice.of, of, "the scenario is not deterministic");
        self.depth += 1;
        choice.taken
    }

    fn fail(&mut self, text: String) {
        self.failure.get_or_insert(text);
    }

    fn tick(&mut self, thread: usize) {
        self.threads[thread].clock[thread] += 1;
    }

    fn newest(&self, word: usize) -> usize {
        self.words[word].len() - 1
    }

    fn load(&mut self, thread: usize, word: usize, ordering: Ordering) -> u32 {
        let newest = self.newest(word);
        // A value that happened before us hides all older ones.
        let known = (0..=newest)
            .rev()
            .find(|&at| at_most(&self.words[word][at].written, &self.threads[thread].clock));
        let oldest = known.unwrap_or(0).max(self.threads[thread].oldest[word]);
        let at = match self.threads[thread].stale_left {
            0 => newest,
            _ => newest - self.choose(newest - oldest + 1),
        };
        if at != newest {
            self.threads[thread].stale_left -= 1;
        }
        self.threads[thread].oldest[word] = at;
        self.learn(thread, word, at, ordering);
        self.words[word][at].value
    }

    fn update(&mut self, thread: usize, word: usize, value: u32, ordering: Ordering) -> u32 {
        let newest = self.newest(word);
        let before = self.words[word][newest].value;
        self.learn(thread, word, newest, ordering);
        self.tick(thread);
        let clock = self.threads[thread].clock.clone();
        // An update goes on with the release sequence that it read from.
        let mut released = self.words[word][newest].released.clone();
        if matches!(ordering, Ordering::Release | Ordering::AcqRel) {
            join(&mut released, &clock);
        }
        self.words[word].push(Value { value, written: clock, released });
        self.threads[thread].oldest[word] = newest + 1;
        before
    }

    fn learn(&mut self, thread: usize, word: usize, at: usize, ordering: Ordering) {
        if matches!(ordering, Ordering::Acquire | Ordering::AcqRel) {
            let released = self.words[word][at].released.clone();
            join(&mut self.threads[thread].clock, &released);
        }
    }
}

impl Handle<'_> {
    pub(super) fn word(&self, word: usize) -> ModelWord<'_> {
        ModelWord { machine: self.machine, thread: self.thread, word }
    }

    /// A plain read of a cell: a race unless every write happened before. No point for others to
    /// go on: whether two accesses are ordered does not depend on which came first.
    pub(super) fn read(&self, cell: usize) {
        let mut state = self.machine.state.lock().unwrap();
        let clock = state.threads[self.thread].clock.clone();
        if !at_most(&state.cells[cell].written, &clock) {
            state.fail(format!("race: thread {} reads cell {cell}", self.thread));
        }
        state.cells[cell].read[self.thread] = clock[self.thread];
        state.tick(self.thread);
    }

    /// A plain write of a cell: a race unless every access happened before.
    pub(super) fn write(&self, cell: usize) {
        let mut state = self.machine.state.lock().unwrap();
        let clock = state.threads[self.thread].clock.clone();
        let accesses = &state.cells[cell];
        if !at_most(&accesses.written, &clock) || !at_most(&accesses.read, &clock) {
            state.fail(format!("race: thread {} writes cell {cell}", self.thread));
        }
        state.cells[cell].written[self.thread] = clock[self.thread];
        state.tick(self.thread);
    }
}

impl Word for ModelWord<'_> {
    fn load(&self, ordering: Ordering) -> u32 {
        self.machine.turn(self.thread).load(self.thread, self.word, ordering)
    }
    fn fetch_add(&self, value: u32, ordering: Ordering) -> u32 {
        let mut state = self.machine.turn(self.thread);
        let now = state.words[self.word][state.newest(self.word)].value;
        state.update(self.thread, self.word, now.wrapping_add(value), ordering)
    }
    fn fetch_and(&self, value: u32, ordering: Ordering) -> u32 {
        let mut state = self.machine.turn(self.thread);
        let now = state.words[self.word][state.newest(self.word)].value;
        state.update(self.thread, self.word, now & value, ordering)
    }
    fn compare_exchange(&self, current: u32, new: u32) -> Result<u32, u32> {
        let mut state = self.machine.turn(self.thread);
        let now = state.words[self.word][state.newest(self.word)].value;
        match now == current {
            true => Ok(state.update(self.thread, self.word, new, Ordering::Relaxed)),
            false => Err(now),
        }
    }
    fn sleep(&self, expected: u32) {
        let mut state = self.machine.turn(self.thread);
        let now = state.words[self.word][state.newest(self.word)].value;
        if now == expected {
            state.threads[self.thread].status = Status::Sleeping(self.word);
            state.pass_on(self.thread);
            self.machine.call(&state);
            drop(self.machine.wait(self.thread, state));
        }
    }
    fn wake_all(&self) {
        let mut state = self.machine.turn(self.thread);
        for thread in &mut state.threads {
            if thread.status == Status::Sleeping(self.word) {
                thread.status = Status::Runnable;
            }
        }
    }
    fn pause(&self) {}
}

fn at_most(clock: &Clock, other: &Clock) -> bool {
    clock.iter().zip(other).all(|(a, b)| a <= b)
}

fn join(clock: &mut Clock, other: &Clock) {
    clock.iter_mut().zip(other).for_each(|(a, b)| *a = (*a).max(*b));
}
