//! Figures of an experiment: what each system did under each condition, prompt by prompt, and how
//! systems differ.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::protocol::{DYNAMIC, PRODUCT};
use crate::record::{Call, HEADER};
use crate::results::Results;
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
    /// Calls whose peak passed M_max.
    pub missed: usize,
    /// Mean pressure on processors, percent.
    pub pressure_percent: f64,
    /// By prompt: its id, and the latency of its calls.
    pub prompts: Vec<(String, Summary)>,
    /// One word and why, where the cell is not simply done.
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
    /// Rounds that both have.
    pub rounds: usize,
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
    let m_max = results.m_max_bytes.filter(|_| system == PRODUCT).unwrap_or(u64::MAX);
    let cell = results.cells.iter().find(|it| it.condition == condition && it.system == system);
    Row {
        condition: condition.to_string(),
        system: system.to_string(),
        latency: summary(&figures(|call| call.latency_ms)),
        cv_within: cv_within(&groups.iter().map(|(_, values)| values.clone()).collect::<Vec<_>>()),
        tokens_per_s: mean(&figures(Call::tokens_per_s)),
        peak_bytes: calls.iter().map(|call| call.peak_bytes).max().unwrap_or(0),
        minor_faults: calls.iter().map(|call| call.minor_faults).sum(),
        major_faults: calls.iter().map(|call| call.major_faults).sum(),
        missed: calls.iter().filter(|call| call.peak_bytes > m_max).count(),
        pressure_percent: mean(&figures(|call| call.pressure_percent)),
        prompts: groups.iter().map(|(id, values)| (id.clone(), summary(values))).collect(),
        status: cell.map(|cell| (cell.status.clone(), cell.detail.clone())),
    }
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
            if let Some(difference) = seen.pair.difference(seed) {
                contrasts.push(Contrast {
                    condition: ours.condition.clone(),
                    ours: ours.system.clone(),
                    theirs: theirs.system.clone(),
                    rounds: seen.rounds,
                    difference,
                    prompts: seen.by_prompt(seed),
                });
            }
        }
    }
    contrasts
}

/// Two systems in the rounds and prompts that both have whole.
struct Seen<'a> {
    prompts: Vec<&'a str>,
    rounds: usize,
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
    let mut latencies: BTreeMap<(&'a str, &'a str, usize), f64> = BTreeMap::new();
    for call in calls.iter().filter(|call| call.condition == condition) {
        if !prompts.contains(&call.prompt.as_str()) {
            prompts.push(&call.prompt);
        }
        latencies.entry((&call.system, &call.prompt, call.round)).or_insert(call.latency_ms);
    }
    let latency = |system: &'a str, prompt: &'a str, round: usize| {
        latencies.get(&(system, prompt, round)).copied()
    };
    let last = latencies.keys().map(|key| key.2 + 1).max().unwrap_or(0);
    let whole = |round: &usize| {
        let has = |system: &'a str| prompts.iter().all(|it| latency(system, it, *round).is_some());
        has(ours) && has(theirs)
    };
    let rounds: Vec<usize> = (0..last).filter(whole).collect();
    let of = |system: &'a str| -> Vec<Vec<f64>> {
        let values = |prompt: &&'a str| {
            rounds.iter().filter_map(|round| latency(system, prompt, *round)).collect()
        };
        prompts.iter().map(values).collect()
    };
    let pair = Pair { ours: of(ours), theirs: of(theirs) };
    Seen { rounds: rounds.len(), pair, prompts }
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
            rounded(call.pressure_percent),
            format!("{:016x}", call.text_hash),
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
            "{},{},{},{:.3},{:.3},{:.5},{:.5},{:.3},{:.3},{:.3},{:.3},{},{},{},{},{:.2},{}",
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
            row.missed,
            row.pressure_percent,
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
    let interval = |it: Interval| json!({ "value": it.value, "low": it.low, "high": it.high });
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
        assert_eq!((rows[0].latency.count, rows[0].missed), (5, 2), "two calls reached 102");
        assert_eq!(rows[1].missed, 0, "the bound is the product's alone");
        assert_eq!(rows[1].prompts.len(), 2);
        let contrasts = contrasts(&rows, &results.calls, 1);
        assert_eq!((contrasts.len(), contrasts[0].rounds), (1, 2));
        let mean = contrasts[0].difference.mean;
        assert!((mean.value + 0.1).abs() < 1e-12 && mean.low <= mean.high, "{mean:?}");
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
}
