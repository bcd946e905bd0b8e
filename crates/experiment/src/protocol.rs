//! The protocol: conditions, rounds, prompts, systems, in this order, one call at a time.
//!
//! Under each condition all systems are up together; in each round every prompt is asked of one
//! system after the other, each turn beginning with another one (A B C, B C A, …), so that what
//! disturbs a while disturbs all of them. Each call is on disk when it is done: an experiment that
//! is stopped goes on where it was.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, create_dir_all};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use dctms_system::interrupt::stop_requested;

use crate::child::{Failure, System, SystemCommand};
use crate::condition::{Condition, Neighbour, NeighbourSettings};
use crate::group::Group;
use crate::progress::Progress;
use crate::prompts::Prompt;
use crate::record::Call;
use crate::results::{Cell, Results, Retry, SKIPPED, Store, read_results};
use crate::turns::{Turn, order};

mod call;
mod facts;

use call::{Step, status_of};

/// Everything that decides an experiment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Where results go.
    pub out: PathBuf,
    /// The systems, in the order in which they are asked.
    pub systems: Vec<SystemCommand>,
    /// The conditions, in order.
    pub conditions: Vec<Condition>,
    /// The prompts.
    pub prompts: Vec<Prompt>,
    /// Rounds under no disturbance.
    pub rounds: usize,
    /// Rounds under every other condition.
    pub pressure_rounds: usize,
    /// Most tokens of an answer.
    pub max_output: u64,
    /// Longest call.
    pub call_limit: Duration,
    /// Longest sum of the calls of a system under a condition.
    pub cell_limit: Duration,
    /// After so long the program stops; what is left is done the next time.
    pub deadline: Option<Duration>,
    /// How conditions share that time.
    pub sharing: Sharing,
    /// Which cells that are over are tried again.
    pub retry: Retry,
    /// Neighbours.
    pub neighbours: NeighbourSettings,
}

/// How conditions share the time until the deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// One after the other, as long as each takes.
    InOrder,
    /// Each gets an equal part of what is left when it begins, or its first round, so that each is
    /// seen where there is time.
    Equal,
}

/// The name of the system whose memory groups are made after.
pub const DYNAMIC: &str = "dynamic";
/// The name of the product.
pub const PRODUCT: &str = "dctms";

impl Plan {
    fn rounds_of(&self, condition: Condition) -> usize {
        match condition {
            Condition::None => self.rounds,
            _ => self.pressure_rounds,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.out.join(name)
    }
}

/// Runs what is not done yet.
///
/// # Errors
/// Files that cannot be written. What goes wrong with a system is a result.
pub fn run(plan: &Plan, progress: &mut Progress) -> Result<Results, String> {
    let fault = |error: std::io::Error| format!("{}: {error}", plan.out.display());
    create_dir_all(plan.path("logs")).map_err(fault)?;
    let results = read_results(&plan.out).map_err(fault)?;
    crate::group::remove_left_behind();
    let mut runner = Runner::new(plan, results).map_err(fault)?;
    progress.begin(runner.left(), runner.expected_s());
    for (index, condition) in plan.conditions.iter().enumerate() {
        if runner.is_cut {
            break;
        }
        runner.share(plan.conditions.len() - index);
        let done = runner.condition(*condition, progress);
        runner.neighbour = None;
        done.map_err(fault)?;
    }
    runner.results.complete = runner.left() == 0;
    runner.store.keep_facts(&runner.results).map_err(fault)?;
    progress.end();
    Ok(runner.results)
}

struct Runner<'a> {
    plan: &'a Plan,
    results: Results,
    done: BTreeSet<(String, String, String, usize)>,
    store: Store,
    start: Instant,
    /// Since the start, when the condition that runs is over; `None` when it is done.
    until: Option<Duration>,
    /// The same, once its first round is done.
    then_until: Option<Duration>,
    /// A turn was not begun for want of time, and conditions run in order: no other one begins.
    is_cut: bool,
    neighbour: Option<Neighbour>,
    /// Number of this run of the program, from 1.
    session: u64,
    /// Seconds of earlier ones.
    before_s: f64,
}

/// A system under a condition.
struct Running {
    name: String,
    system: System,
    /// What its first answer took, its start included.
    warm_up: Duration,
    spent: Duration,
    /// Keeps the group until the system is gone.
    _group: Option<Group>,
}

impl<'a> Runner<'a> {
    fn new(plan: &'a Plan, mut results: Results) -> std::io::Result<Runner<'a>> {
        let store = Store::open(&plan.out, &mut results, plan.retry)?;
        // Until the end of this run says otherwise: it may be killed, and may have more to do.
        results.complete = false;
        store.keep_facts(&results)?;
        let key = |call: &Call| {
            let (condition, system, prompt, round) = call.key();
            (condition.to_string(), system.to_string(), prompt.to_string(), round)
        };
        let before_s = results.calls.iter().map(|call| call.started_s).fold(0.0, f64::max);
        let session = results.calls.iter().map(|call| call.session).max().unwrap_or(0) + 1;
        Ok(Runner {
            done: results.calls.iter().map(key).collect(),
            store,
            plan,
            results,
            start: Instant::now(),
            until: None,
            then_until: None,
            is_cut: false,
            neighbour: None,
            session,
            before_s,
        })
    }

    /// Gives the next condition its time; it is one of `conditions` that are still to come. Its
    /// first round may take all that is left: on a busy machine a part might be over before there
    /// is a single call.
    fn share(&mut self, conditions: usize) {
        let spent = self.start.elapsed();
        self.until = self.plan.deadline;
        self.then_until = self.plan.deadline.map(|deadline| match self.plan.sharing {
            Sharing::InOrder => deadline,
            Sharing::Equal => {
                let left = deadline.saturating_sub(spent);
                spent + left / u32::try_from(conditions).unwrap_or(u32::MAX).max(1)
            }
        });
    }

    fn is_late(&self) -> bool {
        stop_requested() || self.until.is_some_and(|until| self.start.elapsed() >= until)
    }

    /// Whether calls of these systems, each with its first answer's time, would not be done in
    /// time: then the turn is not begun. But a run makes one turn at least.
    fn would_be_cut(&mut self, turn: Turn, systems: &[(&str, Duration)]) -> bool {
        let calls = &self.results.calls;
        let over = self.start.elapsed() + turn.expected(calls, systems);
        let has_begun = calls.last().is_some_and(|call| call.session == self.session);
        let is_cut = has_begun && self.until.is_some_and(|until| over > until);
        self.is_cut |= is_cut && self.plan.sharing == Sharing::InOrder;
        is_cut
    }

    /// The same of the first turn of a condition whose systems are not started yet.
    fn would_be_cut_at_once(&mut self, condition: Condition) -> bool {
        let plan = self.plan;
        for round in 0..plan.rounds_of(condition) {
            for prompt in &plan.prompts {
                let names = plan.systems.iter().map(|system| system.name.as_str());
                let open: Vec<(&str, Duration)> = names
                    .filter(|name| self.is_open(condition, name, &prompt.id, round))
                    .map(|name| (name, Duration::ZERO))
                    .collect();
                if !open.is_empty() {
                    let turn = Turn { condition: condition.name(), prompt: &prompt.id, round };
                    return self.would_be_cut(turn, &open);
                }
            }
        }
        false
    }

    /// How long a call may take now.
    fn call_limit(&self) -> Duration {
        let left = self.until.map(|until| until.saturating_sub(self.start.elapsed()));
        left.map_or(self.plan.call_limit, |left| left.min(self.plan.call_limit))
    }

    /// Whether a system is over with a condition, or with one prompt of it.
    fn is_over(&self, condition: Condition, system: &str, prompt: Option<&str>) -> bool {
        let same = |cell: &Cell| cell.condition == condition.name() && cell.system == system;
        let mut own = self.results.cells.iter().filter(|cell| same(cell));
        own.any(|cell| cell.prompt.as_deref() == prompt)
    }

    fn is_done(&self, condition: Condition, system: &str, prompt: &str, round: usize) -> bool {
        let key = (condition.name().to_string(), system.to_string(), prompt.to_string(), round);
        self.done.contains(&key)
    }

    /// Whether a call is still to be made.
    fn is_open(&self, condition: Condition, system: &str, prompt: &str, round: usize) -> bool {
        !self.is_done(condition, system, prompt, round)
            && !self.is_over(condition, system, None)
            && !self.is_over(condition, system, Some(prompt))
    }

    /// Calls of a system under a condition that are still to be made.
    fn left_of(&self, condition: Condition, system: &str) -> usize {
        if self.is_over(condition, system, None) {
            return 0;
        }
        let is_open = |prompt: &&Prompt| !self.is_over(condition, system, Some(&prompt.id));
        let prompts = self.plan.prompts.iter().filter(is_open);
        let open = prompts.map(|prompt| {
            let rounds = 0..self.plan.rounds_of(condition);
            rounds.filter(|round| !self.is_done(condition, system, &prompt.id, *round)).count()
        });
        open.sum()
    }

    fn left(&self) -> usize {
        let conditions = self.plan.conditions.iter();
        let of = |condition: &Condition| -> usize {
            self.plan.systems.iter().map(|it| self.left_of(*condition, &it.name)).sum()
        };
        conditions.map(of).sum()
    }

    /// Mean seconds of a call so far.
    fn expected_s(&self) -> Option<f64> {
        let calls = &self.results.calls;
        let sum: f64 = calls.iter().map(|call| call.latency_ms).sum();
        (!calls.is_empty()).then(|| sum / calls.len() as f64 / 1e3)
    }

    fn condition(&mut self, condition: Condition, progress: &mut Progress) -> std::io::Result<()> {
        let plan = self.plan;
        if plan.systems.iter().all(|system| self.left_of(condition, &system.name) == 0) {
            return Ok(());
        }
        if self.is_late() || self.would_be_cut_at_once(condition) {
            return Ok(());
        }
        if matches!(condition, Condition::GroupMMax | Condition::GroupRoom) {
            self.probe()?;
            // That it was not learnt for want of time is no reason to skip what needs it.
            if self.is_late() {
                return Ok(());
            }
        }
        let group_bytes = match self.group_bytes(condition) {
            Ok(bytes) => bytes,
            Err(_) if self.is_to_come(condition) => return Ok(()),
            Err(why) => return self.skip(condition, &why, progress),
        };
        if let Some(bytes) = group_bytes {
            self.results.limits.insert(condition.name().to_string(), bytes);
            self.store.keep_facts(&self.results)?;
        }
        let log = plan.path(&format!("logs/{}.log", condition.name()));
        match Neighbour::start(condition, &plan.neighbours, &log) {
            Ok(neighbour) => self.neighbour = neighbour,
            Err(why) => return self.skip(condition, &why, progress),
        }
        let mut running = Vec::new();
        for command in &plan.systems {
            if self.left_of(condition, &command.name) > 0
                && !self.is_late()
                && let Some(system) = self.start(condition, command, group_bytes, progress)?
            {
                running.push(system);
            }
        }
        self.rounds(condition, running, progress)
    }

    /// What the calls of a cell took that are there.
    fn spent(&self, condition: Condition, system: &str) -> Duration {
        let is_its = |call: &&Call| call.condition == condition.name() && call.system == system;
        let calls = self.results.calls.iter().filter(is_its);
        Duration::from_secs_f64(calls.map(|call| call.latency_ms / 1e3).sum::<f64>().max(0.0))
    }

    /// Starts a system and lets it answer once, which is not counted: weights are paged in. Both
    /// together may take as long as a call. One that takes no prompt at all is over.
    fn start(
        &mut self,
        condition: Condition,
        command: &SystemCommand,
        group_bytes: Option<u64>,
        progress: &mut Progress,
    ) -> std::io::Result<Option<Running>> {
        let group = match group_bytes.map(|bytes| Group::new(&command.name, bytes)).transpose() {
            Ok(group) => group,
            Err(why) => {
                self.end(condition, (&command.name, None), (SKIPPED, &why), progress)?;
                return Ok(None);
            }
        };
        // Pages that others brought into the cache would not be counted to the group.
        if group.is_some() {
            drop_caches_of(command);
        }
        let log = self.plan.path(&format!("logs/{}-{}.log", condition.name(), command.name));
        let folder = group.as_ref().map(Group::path);
        let (begun, limit) = (Instant::now(), self.call_limit());
        let start = || System::start(command, folder, &log, limit);
        let started = command.asked.require_free().and_then(|()| start()).and_then(|mut system| {
            let mut declined = None;
            for prompt in &self.plan.prompts {
                let limit = limit.saturating_sub(begun.elapsed());
                match system.ask(&prompt.text, self.plan.max_output, limit) {
                    Err(failure @ Failure::Declined(_)) => declined = declined.or(Some(failure)),
                    reply => {
                        let reply = reply?;
                        self.require_bound(&command.name, &reply)?;
                        return Ok((system, reply));
                    }
                }
            }
            Err(declined.expect("there is a prompt"))
        });
        match started {
            Ok((system, reply)) => {
                self.learn(&command.name, reply.m_max_bytes)?;
                let (name, warm_up) = (command.name.clone(), begun.elapsed());
                let spent = self.spent(condition, &name);
                Ok(Some(Running { name, system, warm_up, spent, _group: group }))
            }
            // Out of time is the experiment's doing; the system is asked the next time.
            Err(Failure::TimedOut | Failure::Stopped) if self.is_late() => Ok(None),
            Err(failure) => {
                let (status, why) = (status_of(&failure, &command.name), failure.to_string());
                self.end(condition, (&command.name, None), (status, &why), progress)?;
                Ok(None)
            }
        }
    }

    fn rounds(
        &mut self,
        condition: Condition,
        mut running: Vec<Running>,
        progress: &mut Progress,
    ) -> std::io::Result<()> {
        let plan = self.plan;
        for round in 0..plan.rounds_of(condition) {
            if round > 0 {
                self.until = self.then_until;
            }
            for (place, prompt) in plan.prompts.iter().enumerate() {
                let is_open =
                    |one: &&Running| self.is_open(condition, &one.name, &prompt.id, round);
                let open = running.iter().filter(is_open);
                let open: Vec<_> = open.map(|one| (one.name.as_str(), one.warm_up)).collect();
                let turn = Turn { condition: condition.name(), prompt: &prompt.id, round };
                if open.is_empty() {
                    continue;
                }
                if self.would_be_cut(turn, &open) {
                    return Ok(());
                }
                for index in order(round, place, plan.systems.len()) {
                    if self.is_late() {
                        return Ok(());
                    }
                    let name = &plan.systems[index].name;
                    let Some(at) = running.iter().position(|one| one.name == *name) else {
                        continue;
                    };
                    if !self.is_open(condition, name, &prompt.id, round) {
                        continue;
                    }
                    match self.step(condition, &mut running[at], (prompt, round), progress)? {
                        Step::GoOn => {}
                        Step::Late => return Ok(()),
                        Step::Alone(why) => return self.skip(condition, &why, progress),
                        Step::Over(status, why) if self.left_of(condition, name) > 0 => {
                            drop(running.remove(at));
                            self.end(condition, (name, None), (status, &why), progress)?;
                        }
                        Step::Over(..) => {}
                    }
                }
            }
        }
        Ok(())
    }

    fn skip(
        &mut self,
        condition: Condition,
        why: &str,
        progress: &mut Progress,
    ) -> std::io::Result<()> {
        for system in &self.plan.systems {
            if self.left_of(condition, &system.name) > 0 {
                self.end(condition, (&system.name, None), (SKIPPED, why), progress)?;
            }
        }
        Ok(())
    }

    /// Writes down that a cell is over before it is done, or that a system does not take a prompt.
    fn end(
        &mut self,
        condition: Condition,
        (system, prompt): (&str, Option<&str>),
        (status, detail): (&str, &str),
        progress: &mut Progress,
    ) -> std::io::Result<()> {
        let left = self.left_of(condition, system);
        let of = prompt.map_or(String::new(), |prompt| format!(" {prompt}"));
        progress.note(&format!("{} {system}{of}: {status}: {detail}", condition.name()));
        let cell = Cell {
            condition: condition.name().to_string(),
            system: system.to_string(),
            prompt: prompt.map(str::to_string),
            status: status.to_string(),
            detail: detail.to_string(),
        };
        self.store.add_cell(&cell)?;
        self.results.cells.push(cell);
        progress.drop_calls(left - self.left_of(condition, system));
        Ok(())
    }
}

/// Takes the files that a system's words name out of the page cache.
fn drop_caches_of(command: &SystemCommand) {
    for word in command.words.iter().skip(1) {
        let path = Path::new(word);
        if path.is_file()
            && let Ok(file) = File::open(path)
        {
            let _ = dctms_system::output::drop_page_cache(&file, 0, 0);
        }
    }
}

/// The answers' hashes by prompt and system, to compare them.
#[must_use]
pub fn hashes(calls: &[Call]) -> BTreeMap<(String, String), BTreeSet<u64>> {
    let mut hashes: BTreeMap<(String, String), BTreeSet<u64>> = BTreeMap::new();
    for call in calls {
        let key = (call.prompt.clone(), call.system.clone());
        hashes.entry(key).or_default().insert(call.text_hash);
    }
    hashes
}
