//! Figures of an experiment: what each system did under each condition, prompt by prompt, and how
//! systems differ.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::protocol::{DYNAMIC, PRODUCT};
use crate::record::{Call, HEADER};
use crate::results::{Cell, Results};
use crate::statistics::{Difference, Interval, Pair, Summary, cv_within, mean, summary};

/// A system under a condition.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    /// Condition.
    pub condition: String,
    /// System.
    pub system: String,
    /// Latency of all calls, milliseconds.
    pub latency: Summary,
    /// Spread within prompts.
    pub cv_within: f64,
    /// Mean tokens a second.
    pub tokens_per_s: f64,
    /// Greatest peak of the resident set, bytes.
    pub peak_bytes: u64,
    /// Faults of all calls that did not read storage.
    pub minor_faults: u64,
    /// Faults of all calls that did.
    pub major_faults: u64,
    /// Calls whose peak passed M_max; `None` where the system has no such bound, or it is not known,
    /// or there is no call.
    pub missed: Option<usize>,
    /// Mean pressure on processors, percent; `None` where the kernel does not count it.
    pub pressure_percent: Option<f64>,
    /// By prompt: its id, and the latency of its calls.
    pub prompts: Vec<(String, Summary)>,
    /// What became of the cell and why, where it is not simply done: one word, or `without` and the
    /// prompts that the system does not take.
    pub status: Option<(String, String)>,
}

/// How two systems differ under a condition.
#[derive(Clone, Debug, PartialEq)]
pub struct Contrast {
    /// Condition.
    pub condition: String,
    /// The system that is compared.
    pub ours: String,
    /// The one that it is compared with.
    pub theirs: String,
    /// Rounds that both have, made in turn.
    pub rounds: usize,
    /// Rounds that both have, but of different runs of the program.
    pub left_out: usize,
    /// The differences.
    pub difference: Difference,
    /// The same for each prompt alone.
    pub prompts: Vec<(String, Difference)>,
}

/// Rows in the order in which they were run.
#[must_use]
pub fn rows(results: &Results) -> Vec<Row> {
    let mut keys: Vec<(&str, &str)> = Vec::new();
    let calls = results.calls.iter().map(|call| (&call.condition[..], &call.system[..]));
    let cells = results.cells.iter().map(|cell| (&cell.condition[..], &cell.system[..]));
    for key in calls.chain(cells) {
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    // By condition as first met, systems within.
    let conditions: Vec<&str> = keys.iter().map(|key| key.0).collect();
    keys.sort_by_key(|key| conditions.iter().position(|condition| *condition == key.0));
    keys.into_iter().map(|key| row(results, key)).collect()
}

fn row(results: &Results, (condition, system): (&str, &str)) -> Row {
    let is_own = |call: &&Call| call.condition == condition && call.system == system;
    let calls: Vec<&Call> = results.calls.iter().filter(is_own).collect();
    let figures =
        |figure: fn(&Call) -> f64| -> Vec<f64> { calls.iter().map(|call| figure(call)).collect() };
    let groups = by_prompt(&calls);
    let m_max = results.m_max_bytes.filter(|_| system == PRODUCT && !calls.is_empty());
    let passed = |m_max: u64| calls.iter().filter(|call| call.peak_bytes > m_max).count();
    let waited: Vec<f64> = calls.iter().filter_map(|call| call.pressure_percent).collect();
    Row {
        condition: condition.to_string(),
        system: system.to_string(),
        latency: summary(&figures(|call| call.latency_ms)),
        cv_within: cv_within(&groups.iter().map(|(_, values)| values.clone()).collect::<Vec<_>>()),
        tokens_per_s: mean(&figures(Call::tokens_per_s)),
        peak_bytes: calls.iter().map(|call| call.peak_bytes).max().unwrap_or(0),
        minor_faults: calls.iter().map(|call| call.minor_faults).sum(),
        major_faults: calls.iter().map(|call| call.major_faults).sum(),
        missed: m_max.map(passed),
        pressure_percent: (!waited.is_empty()).then(|| mean(&waited)),
        prompts: groups.iter().map(|(id, values)| (id.clone(), summary(values))).collect(),
        status: status(results, (condition, system)),
    }
}

/// What became of a cell; `None` where it is simply done, or not yet.
fn status(results: &Results, (condition, system): (&str, &str)) -> Option<(String, String)> {
    let is_own = |cell: &&Cell| cell.condition == condition && cell.system == system;
    let own: Vec<&Cell> = results.cells.iter().filter(is_own).collect();
    if let Some(cell) = own.iter().find(|cell| cell.prompt.is_none()) {
        return Some((cell.status.clone(), cell.detail.clone()));
    }
    let prompts: Vec<&str> = own.iter().filter_map(|cell| cell.prompt.as_deref()).collect();
    let why: Vec<&str> = own.iter().map(|cell| cell.detail.as_str()).collect();
    let is_whole = prompts.is_empty();
    (!is_whole).then(|| (format!("without {}", prompts.join(" ")), why.join("; ")))
}

/// Latencies by prompt.
fn by_prompt(calls: &[&Call]) -> Vec<(String, Vec<f64>)> {
    let mut groups: Vec<(String, Vec<f64>)> = Vec::new();
    for call in calls {
        match groups.iter_mut().find(|(id, _)| *id == call.prompt) {
            Some((_, values)) => values.push(call.latency_ms),
            None => groups.push((call.prompt.clone(), vec![call.latency_ms])),
        }
    }
    groups
}

/// Every contrast that says something: the product with each other system, and the prototype with
/// the dynamic one, which is the comparison of the paper.
#[must_use]
pub fn contrasts(rows: &[Row], calls: &[Call], seed: u64) -> Vec<Contrast> {
    let mut contrasts = Vec::new();
    for ours in rows {
        for theirs in rows.iter().filter(|row| row.condition == ours.condition) {
            let asked = (ours.system == PRODUCT && theirs.system != PRODUCT)
                || (ours.system == "prototype" && theirs.system == DYNAMIC);
            if !asked {
                continue;
            }
            let seen = pair(calls, &ours.condition, (&ours.system, &theirs.system));
            let difference = seen.pair.difference(seed);
            // Where no rounds are left, that some were left out is still told.
            if difference.is_some() || seen.left_out > 0 {
                contrasts.push(Contrast {
                    condition: ours.condition.clone(),
                    ours: ours.system.clone(),
                    theirs: theirs.system.clone(),
                    rounds: seen.rounds,
                    left_out: seen.left_out,
                    difference: difference.unwrap_or_default(),
                    prompts: seen.by_prompt(seed),
                });
            }
        }
    }
    contrasts
}

/// Two systems in the rounds that both have whole, of the prompts that both take.
struct Seen<'a> {
    prompts: Vec<&'a str>,
    rounds: usize,
    left_out: usize,
    pair: Pair,
}

impl Seen<'_> {
    fn by_prompt(&self, seed: u64) -> Vec<(String, Difference)> {
        let one = |(index, prompt): (usize, &&str)| {
            let only = |latencies: &[Vec<f64>]| vec![latencies[index].clone()];
            let pair = Pair { ours: only(&self.pair.ours), theirs: only(&self.pair.theirs) };
            Some((prompt.to_string(), pair.difference(seed)?))
        };
        self.prompts.iter().enumerate().filter_map(one).collect()
    }
}

fn pair<'a>(calls: &'a [Call], condition: &str, (ours, theirs): (&'a str, &'a str)) -> Seen<'a> {
    let mut prompts: Vec<&'a str> = Vec::new();
    let mut seen: BTreeMap<(&'a str, &'a str, usize), &'a Call> = BTreeMap::new();
    for call in calls.iter().filter(|call| call.condition == condition) {
        if !prompts.contains(&call.prompt.as_str()) {
            prompts.push(&call.prompt);
        }
        seen.entry((&call.system, &call.prompt, call.round)).or_insert(call);
    }
    let call = |system: &'a str, prompt: &'a str, round: usize| {
        seen.get(&(system, prompt, round)).copied()
    };
    let last = seen.keys().map(|key| key.2 + 1).max().unwrap_or(0);
    prompts.retain(|prompt| {
        let takes = |system: &'a str| (0..last).any(|round| call(system, prompt, round).is_some());
        takes(ours) && takes(theirs)
    });
    let whole = |round: &usize| {
        let has = |system: &'a str| prompts.iter().all(|it| call(system, it, *round).is_some());
        has(ours) && has(theirs)
    };
    // What disturbed one run of the program did not disturb another: only calls that were made in
    // turn are compared.
    let in_turn = |round: &usize| {
        let session =
            |system: &'a str, prompt: &'a str| Some(call(system, prompt, *round)?.session);
        prompts.iter().all(|prompt| session(ours, prompt) == session(theirs, prompt))
    };
    let (rounds, apart): (Vec<usize>, Vec<usize>) = (0..last).filter(whole).partition(in_turn);
    let of = |system: &'a str| -> Vec<Vec<f64>> {
        let values = |prompt: &&'a str| {
            let calls = rounds.iter().filter_map(|round| call(system, prompt, *round));
            calls.map(|call| call.latency_ms).collect()
        };
        prompts.iter().map(values).collect()
    };
    let pair = Pair { ours: of(ours), theirs: of(theirs) };
    Seen { rounds: rounds.len(), left_out: apart.len(), pair, prompts }
}

/// Every call, as columns and rows.
#[must_use]
pub fn calls_json(calls: &[Call]) -> Value {
    let columns: Vec<&str> = HEADER.split(',').chain(["tokens_per_s"]).collect();
    let row = |call: &Call| {
        json!([
            call.condition,
            call.system,
            call.prompt,
            call.round,
            rounded(call.latency_ms),
            rounded(call.first_token_ms),
            call.prompt_tokens,
            call.output_tokens,
            call.peak_bytes,
            call.minor_faults,
            call.major_faults,
            call.pressure_percent.map(rounded),
            format!("{:016x}", call.text_hash),
            call.session,
            rounded(call.started_s),
            rounded(call.tokens_per_s()),
        ])
    };
    json!({ "columns": columns, "rows": calls.iter().map(row).collect::<Vec<_>>() })
}

/// To thousandths.
fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

/// Rows as CSV.
#[must_use]
pub fn csv(rows: &[Row]) -> String {
    let mut out = "condition,system,calls,mean_ms,sigma_ms,cv,cv_within_prompts,p50_ms,p99_ms,\
                   max_ms,tokens_per_s,peak_bytes,minor_faults,major_faults,missed_envelopes,\
                   pressure_percent,status\n"
        .to_string();
    for row in rows {
        let l = &row.latency;
        let _ = writeln!(
            out,
            "{},{},{},{:.3},{:.3},{:.5},{:.5},{:.3},{:.3},{:.3},{:.3},{},{},{},{},{},{}",
            row.condition,
            row.system,
            l.count,
            l.mean,
            l.sigma,
            l.cv,
            row.cv_within,
            l.p50,
            l.p99,
            l.max,
            row.tokens_per_s,
            row.peak_bytes,
            row.minor_faults,
            row.major_faults,
            row.missed.map_or(String::new(), |missed| missed.to_string()),
            row.pressure_percent.map_or(String::new(), |percent| format!("{percent:.2}")),
            row.status.as_ref().map_or("done", |status| &status.0)
        );
    }
    out
}

/// Everything as JSON.
#[must_use]
pub fn json(rows: &[Row], contrasts: &[Contrast]) -> Value {
    let summary = |it: &Summary| {
        json!({
            "calls": it.count, "mean_ms": it.mean, "sigma_ms": it.sigma, "cv": it.cv,
            "p50_ms": it.p50, "p99_ms": it.p99, "min_ms": it.min, "max_ms": it.max,
        })
    };
    let row = |row: &Row| {
        let prompts = row.prompts.iter().map(|(id, it)| (id.clone(), summary(it)));
        let prompts: serde_json::Map<String, Value> = prompts.collect();
        let status = row.status.as_ref();
        json!({
            "condition": row.condition,
            "system": row.system,
            "latency": summary(&row.latency),
            "cv_within_prompts": row.cv_within,
            "tokens_per_s": row.tokens_per_s,
            "peak_bytes": row.peak_bytes,
            "minor_faults": row.minor_faults,
            "major_faults": row.major_faults,
            "missed_envelopes": row.missed,
            "pressure_percent": row.pressure_percent,
            "prompts": prompts,
            "status": status.map_or("done", |status| &status.0),
            "detail": status.map_or("", |status| &status.1),
        })
    };
    let interval = |it: Interval| {
        let (low, high) = it.range.unzip();
        json!({ "value": it.value, "low": low, "high": high })
    };
    let contrast = |it: &Contrast| {
        let prompt = |(id, it): &(String, Difference)| {
            let both = json!({
                "mean_latency": interval(it.mean), "cv": interval(it.cv),
            });
            (id.clone(), both)
        };
        let prompts: serde_json::Map<String, Value> = it.prompts.iter().map(prompt).collect();
        json!({
            "condition": it.condition, "system": it.ours, "compared_with": it.theirs,
            "rounds": it.rounds,
            "rounds_left_out": it.left_out,
            "mean_latency": interval(it.difference.mean),
            "cv_within_prompts": interval(it.difference.cv),
            "prompts": prompts,
        })
    };
    json!({
        "rows": rows.iter().map(row).collect::<Vec<_>>(),
        "differences": contrasts.iter().map(contrast).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(system: &str, prompt: &str, round: usize, latency_ms: f64) -> Call {
        Call {
            condition: "none".to_string(),
            system: system.to_string(),
            prompt: prompt.to_string(),
            round,
            latency_ms,
            peak_bytes: 100 + round as u64,
            ..Call::default()
        }
    }

    #[test]
    fn rounds_that_one_system_lacks_are_not_compared() {
        let mut calls = Vec::new();
        for round in 0..3 {
            calls.push(call(PRODUCT, "P1", round, 90.0));
            calls.push(call(DYNAMIC, "P1", round, 100.0));
            calls.push(call(DYNAMIC, "P2", round, 50.0));
        }
        calls.extend([call(PRODUCT, "P2", 0, 45.0), call(PRODUCT, "P2", 2, 45.0)]);
        let results = Results { calls, m_max_bytes: Some(101), ..Results::default() };
        let rows = rows(&results);
        assert_eq!(rows.len(), 2);
        assert_eq!((rows[0].latency.count, rows[0].missed), (5, Some(2)), "two reached 102");
        assert_eq!(rows[1].missed, None, "the bound is the product's alone");
        assert_eq!(rows[1].prompts.len(), 2);
        let contrasts = contrasts(&rows, &results.calls, 1);
        assert_eq!((contrasts.len(), contrasts[0].rounds), (1, 2));
        let mean = contrasts[0].difference.mean;
        assert!((mean.value.unwrap() + 0.1).abs() < 1e-12 && mean.range.is_none(), "{mean:?}");
        assert_eq!(csv(&rows).lines().count(), 3);
        let one = &json(&rows, &contrasts)["differences"][0];
        assert_eq!((&one["rounds"], &one["compared_with"]), (&json!(2), &json!(DYNAMIC)));
        let of_prompt = one["prompts"]["P2"]["mean_latency"]["value"].as_f64().unwrap();
        assert!((of_prompt + 0.1).abs() < 1e-12, "{of_prompt}");
        let all = calls_json(&results.calls);
        let width = all["columns"].as_array().unwrap().len();
        assert!(
            all["rows"].as_array().unwrap().iter().all(|it| it.as_array().unwrap().len() == width)
        );
    }

    #[test]
    fn an_unknown_bound_is_not_zero_misses() {
        let calls = vec![call(PRODUCT, "P1", 0, 1.0), call(DYNAMIC, "P1", 0, 1.0)];
        let refused = Cell {
            condition: "burner".to_string(),
            system: PRODUCT.to_string(),
            prompt: None,
            status: "refused".to_string(),
            detail: String::new(),
        };
        let of = |m_max_bytes: Option<u64>| {
            let (calls, cells) = (calls.clone(), vec![refused.clone()]);
            let rows = rows(&Results { calls, cells, m_max_bytes, ..Results::default() });
            let json = json(&rows, &[]);
            let json: Vec<Value> =
                (0..3).map(|row| json["rows"][row]["missed_envelopes"].clone()).collect();
            let field = |line: &str| line.split(',').nth(14).map(str::to_string);
            let csv: Vec<String> = csv(&rows).lines().skip(1).filter_map(field).collect();
            (json, csv)
        };
        let (json, csv) = of(Some(1000));
        assert_eq!((json, csv[0].as_str()), (vec![json!(0), Value::Null, Value::Null], "0"));
        assert_eq!(csv[1..], ["", ""], "no bound of its own; no call");
        let (json, csv) = of(None);
        assert_eq!((json, csv), (vec![Value::Null; 3], vec![String::new(); 3]));
    }

    #[test]
    fn rounds_of_different_runs_are_not_compared() {
        let mut calls = Vec::new();
        for round in 0..5 {
            for (system, late) in [(PRODUCT, 3), (DYNAMIC, 4)] {
                let session = 1 + u64::from(round >= late);
                calls.push(Call { session, ..call(system, "P1", round, 100.0) });
            }
        }
        let seen = pair(&calls, "none", (PRODUCT, DYNAMIC));
        assert_eq!((seen.rounds, seen.left_out), (4, 1), "the systems were cut off in round 3");
        // A system that was added later has no round in turn with the others.
        calls.iter_mut().filter(|call| call.system == PRODUCT).for_each(|call| call.session = 7);
        let results = Results { calls, ..Results::default() };
        let contrasts = contrasts(&rows(&results), &results.calls, 1);
        assert_eq!((contrasts[0].rounds, contrasts[0].left_out), (0, 5));
        assert_eq!(contrasts[0].difference, Difference::default());
    }

    #[test]
    fn a_prompt_that_one_system_does_not_take_is_left_out() {
        let mut calls = Vec::new();
        for round in 0..2 {
            calls.push(call(PRODUCT, "P1", round, 90.0));
            calls.extend(["P1", "P2"].map(|prompt| call(DYNAMIC, prompt, round, 100.0)));
        }
        let seen = pair(&calls, "none", (PRODUCT, DYNAMIC));
        assert_eq!((seen.rounds, seen.prompts), (2, vec!["P1"]));
        let cell = |system: &str, prompt: Option<&str>| Cell {
            condition: "none".to_string(),
            system: system.to_string(),
            prompt: prompt.map(str::to_string),
            status: "refused".to_string(),
            detail: "too long".to_string(),
        };
        let cells = vec![cell(PRODUCT, Some("P2")), cell(PRODUCT, Some("P3"))];
        let mut results = Results { calls, cells, ..Results::default() };
        let of = |results: &Results| status(results, ("none", PRODUCT)).unwrap().0;
        assert_eq!(of(&results), "without P2 P3");
        results.cells.push(cell(PRODUCT, None));
        assert_eq!(of(&results), "refused");
        assert_eq!(status(&results, ("none", DYNAMIC)), None);
    }
}
