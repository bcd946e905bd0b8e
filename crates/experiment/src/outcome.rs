//! How an experiment ends: its exit code, and what it says. Codes mean what they mean for every
//! command of the product.

use std::fmt;

use crate::protocol::PRODUCT;
use crate::record::Call;
use crate::report::equal_answers;
use crate::results::{CHANGED, Cell, Results, SKIPPED};

/// What kind of end it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The operating system refused something, or a system gave no answer.
    System,
    /// A file is defective.
    File,
    /// Does not fit.
    DoesNotFit,
    /// Over a bound.
    OverBound,
    /// The words are wrong.
    Usage,
    /// Stopped by a signal.
    Interrupted,
}

impl Class {
    /// The exit code.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            Class::System => 1,
            Class::File => 2,
            Class::DoesNotFit => 3,
            Class::OverBound => 4,
            Class::Usage => 64,
            Class::Interrupted => 130,
        }
    }

    /// The class of a program of ours that ended with a code.
    #[must_use]
    pub fn of_code(code: Option<i32>) -> Class {
        match code {
            Some(2) => Class::File,
            Some(3) => Class::DoesNotFit,
            Some(4) => Class::OverBound,
            _ => Class::System,
        }
    }
}

/// An error of an experiment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Its class.
    pub class: Class,
    /// What, for people.
    pub what: String,
}

impl Fault {
    /// A fault of a class.
    #[must_use]
    pub fn new(class: Class, what: impl Into<String>) -> Fault {
        Fault { class, what: what.into() }
    }
}

/// What only says what it is was the operating system's doing.
impl From<String> for Fault {
    fn from(what: String) -> Fault {
        Fault::new(Class::System, what)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

/// Whether a run was asked to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It ran to its end.
    None,
    /// By a signal, at whichever moment.
    Requested,
}

/// How a run ended, for the systems that were asked for.
///
/// # Errors
/// That it was stopped before all was done; that the product broke what it promises (a call passed
/// M_max, the bound changed, texts differ); that a system has no call under any condition, if only
/// for want of time; that there is no call at all. A system that was measured under one condition
/// and not under another is a result.
pub fn judge(results: &Results, systems: &[&str], stop: Stop) -> Result<(), Fault> {
    // A stop that came after the last call stopped nothing.
    if stop == Stop::Requested && !results.complete {
        return Err(Fault::new(Class::Interrupted, "stopped; the same command goes on"));
    }
    let broken = broken_promises(results);
    if !broken.is_empty() {
        return Err(Fault::new(Class::System, broken.join("; ")));
    }
    let is_measured = |system: &str| results.calls.iter().any(|call| call.system == system);
    let missing: Vec<&str> = systems.iter().copied().filter(|it| !is_measured(it)).collect();
    match (missing.is_empty(), results.calls.is_empty()) {
        (true, true) => return Err(Fault::new(Class::System, "there is no call")),
        (true, false) => return Ok(()),
        (false, _) => {}
    }
    let cells = results.not_measured();
    let cell = |system: &str| cells.iter().copied().find(|cell| cell.system == system);
    let why = |system: &&str| match cell(system) {
        Some(cell) => format!("{system} ({}: {})", cell.status, cell.detail),
        None => format!("{system} (stopped before its first call was made)"),
    };
    let list: Vec<String> = missing.iter().map(why).collect();
    let mut classes: Vec<Class> =
        missing.iter().map(|system| cell(system).map_or(Class::System, class_of)).collect();
    classes.dedup();
    let class = if classes.len() == 1 { classes[0] } else { Class::System };
    Err(Fault::new(class, format!("not measured at all: {}", list.join("; "))))
}

/// What the product promises and did not keep, for people.
fn broken_promises(results: &Results) -> Vec<String> {
    let mut broken = Vec::new();
    if let Some(m_max) = results.m_max_bytes {
        let passed = |call: &&Call| call.system == PRODUCT && call.peak_bytes > m_max;
        let passed: Vec<u64> =
            results.calls.iter().filter(passed).map(|it| it.peak_bytes).collect();
        if let Some(greatest) = passed.iter().max() {
            let count = passed.len();
            broken.push(format!("{count} calls passed M_max: {greatest} of {m_max} bytes"));
        }
    }
    let changed = results.cells.iter().filter(|cell| cell.status == CHANGED);
    broken.extend(changed.map(|it| format!("{} {}: {}", it.condition, it.system, it.detail)));
    if equal_answers(&results.calls) == Some(false) {
        broken.push("the systems with our kernels gave different texts".to_string());
    }
    broken
}

/// What a system of ours said with its exit code; of others nobody knows what codes mean.
fn class_of(cell: &Cell) -> Class {
    if cell.system != PRODUCT || cell.status == SKIPPED {
        return Class::System;
    }
    let code = cell.detail.strip_prefix("exit status: ").and_then(|rest| rest.split(':').next());
    Class::of_code(code.and_then(|code| code.parse().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(system: &str, status: &str, detail: &str) -> Cell {
        let text = |text: &str| text.to_string();
        let (system, status, detail) = (text(system), text(status), text(detail));
        Cell { condition: text("none"), system, prompt: None, status, detail }
    }

    #[test]
    fn a_system_without_a_call_is_an_error_and_an_unmeasured_cell_is_none() {
        let call = |system: &str| Call { system: system.to_string(), ..Call::default() };
        let of = |systems: &[&str], cells: Vec<Cell>| {
            let calls = systems.iter().map(|it| call(it)).collect();
            let results = Results { calls, cells, ..Results::default() };
            judge(&results, &["dynamic", PRODUCT], Stop::None).map_err(|fault| fault.class)
        };
        let refused = cell(PRODUCT, "refused", "exit status: 3: does not fit");
        let broken = cell(PRODUCT, "ended", "exit status: 2: no model file");
        let other = cell("dynamic", "ended", "exit status: 2: what it means is its affair");
        assert_eq!(of(&["dynamic", PRODUCT], vec![refused.clone()]), Ok(()));
        assert_eq!(of(&["dynamic"], vec![refused.clone()]), Err(Class::DoesNotFit));
        assert_eq!(of(&["dynamic"], vec![broken.clone()]), Err(Class::File));
        assert_eq!(of(&[PRODUCT], vec![other.clone()]), Err(Class::System));
        assert_eq!(of(&[], vec![broken, other]), Err(Class::System));
        assert_eq!(of(&[], vec![]), Err(Class::System));
        // Of a system that was not asked for nothing is expected.
        assert_eq!(of(&["dynamic", PRODUCT], vec![cell("gone", "ended", "")]), Ok(()));
        assert_eq!(of(&["gone"], vec![]), Err(Class::System));
        // One that was never started has no cell, and was not measured all the same.
        assert_eq!(of(&["dynamic"], vec![]), Err(Class::System));
        assert_eq!(of(&[], vec![refused]), Err(Class::System), "one does not fit, one is late");
    }

    #[test]
    fn a_stop_after_the_last_call_stopped_nothing() {
        let of = |complete: bool, stop: Stop| {
            let calls = vec![Call { system: PRODUCT.to_string(), ..Call::default() }];
            let results = Results { calls, complete, ..Results::default() };
            judge(&results, &[PRODUCT], stop).map_err(|fault| fault.class)
        };
        assert_eq!(of(false, Stop::Requested), Err(Class::Interrupted));
        assert_eq!(of(true, Stop::Requested), Ok(()));
        assert_eq!(of(false, Stop::None), Ok(()), "the deadline's doing");
    }

    #[test]
    fn a_broken_promise_is_an_error() {
        let call = |system: &str, peak_bytes: u64, text_hash: u64| Call {
            system: system.to_string(),
            peak_bytes,
            text_hash,
            ..Call::default()
        };
        let of = |calls: Vec<Call>, m_max_bytes: Option<u64>, cells: Vec<Cell>| {
            let results = Results { calls, m_max_bytes, cells, ..Results::default() };
            let judged = judge(&results, &["dynamic", PRODUCT], Stop::None);
            judged.map_err(|fault| (fault.class.exit_code(), fault.what))
        };
        let calls = || vec![call("dynamic", 900, 1), call(PRODUCT, 100, 1), call(PRODUCT, 101, 1)];
        assert_eq!(of(calls(), Some(101), vec![]), Ok(()), "the bound is the product's alone");
        let (code, what) = of(calls(), Some(100), vec![]).unwrap_err();
        assert!(code == 1 && what.contains("1 calls passed M_max: 101 of 100"), "{what}");
        assert_eq!(of(calls(), None, vec![]), Ok(()), "nothing is known to be passed");
        let (code, what) = of(calls(), None, vec![cell(PRODUCT, CHANGED, "two")]).unwrap_err();
        assert!(code == 1 && what.contains("none dctms: two"), "{what}");
        let texts = [calls(), vec![call(PRODUCT, 1, 2)]].concat();
        let (code, what) = of(texts, Some(101), vec![]).unwrap_err();
        assert!(code == 1 && what.contains("different texts"), "{what}");
        // Of a system that is not ours, nobody expects our texts.
        assert_eq!(of([calls(), vec![call("peer", 1, 2)]].concat(), None, vec![]), Ok(()));
    }

    #[test]
    fn codes_are_the_products() {
        for class in [Class::System, Class::File, Class::DoesNotFit, Class::OverBound] {
            assert_eq!(Class::of_code(Some(i32::from(class.exit_code()))), class);
        }
        assert_eq!(Class::of_code(None), Class::System);
        assert_eq!((Class::Usage.exit_code(), Class::Interrupted.exit_code()), (64, 130));
    }
}
