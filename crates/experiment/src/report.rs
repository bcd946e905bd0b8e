//! The report: one page without network, a PNG of every plot, and the figures as CSV and JSON.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Value, json};

use crate::condition::Condition;
use crate::plot::charts::{Guide, Named, distributions, levels, lines, points};
use crate::plot::{Figure, png, svg};
use crate::protocol::{DYNAMIC, PRODUCT, hashes};
use crate::record::Call;
use crate::results::{CHANGED, Results, replace};
use crate::series::{self, Series};
use crate::settings::shown_limits;
use crate::statistics::{Interval, Summary};
use crate::tables::{Contrast, Row, calls_json, contrasts, csv, json as tables_json, rows};

/// Seed of the bootstrap.
pub const SEED: u64 = 20_261_130;

/// What the report says about the experiment besides its figures.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct About {
    /// The model.
    pub model: String,
    /// Description of the machine, name and value.
    pub machine: Vec<(String, String)>,
    /// The command that repeats it.
    pub command: String,
    /// Bounds and rounds, for people.
    pub settings: Vec<(String, String)>,
}

/// Writes `report.html`, `plots/*.png`, `summary.csv`, `summary.json` and `calls.json`.
///
/// # Errors
/// Files that cannot be written.
pub fn write(out: &Path, about: &About, results: &Results) -> Result<(), String> {
    let fault = |error: std::io::Error| format!("{}: {error}", out.display());
    let rows = rows(results);
    let contrasts = contrasts(&rows, &results.calls, SEED);
    let figures = figures(results, &rows, &series::read(&out.join("rss.csv")));
    std::fs::create_dir_all(out.join("plots")).map_err(fault)?;
    for (name, figure) in &figures {
        replace(&out.join(format!("plots/{name}.png")), &png(figure)).map_err(fault)?;
    }
    replace(&out.join("summary.csv"), csv(&rows).as_bytes()).map_err(fault)?;
    let mut summary = tables_json(&rows, &contrasts);
    summary["model"] = about.model.clone().into();
    summary["command"] = about.command.clone().into();
    summary["m_max_bytes"] = json!(results.m_max_bytes);
    // Of before limits were kept none is known.
    let limits = (!results.limits.is_empty()).then_some(&results.limits);
    summary["group_limits_bytes"] = json!(limits);
    summary["complete"] = results.complete.into();
    let missing = results.not_measured();
    summary["not_measured"] = missing.iter().map(|cell| cell.system.clone()).collect();
    summary["equal_answers"] = json!(equal_answers(&results.calls));
    let object = |pairs: &[(String, String)]| -> Value {
        let pairs = pairs.iter().map(|(name, value)| (name.clone(), value.clone().into()));
        Value::Object(pairs.collect())
    };
    summary["machine"] = object(&about.machine);
    summary["settings"] = object(&about.settings);
    let text = serde_json::to_string_pretty(&summary).unwrap_or_default();
    replace(&out.join("summary.json"), (text + "\n").as_bytes()).map_err(fault)?;
    let calls = calls_json(&results.calls).to_string() + "\n";
    replace(&out.join("calls.json"), calls.as_bytes()).map_err(fault)?;
    let page = page(about, results, &rows, &contrasts, &figures);
    replace(&out.join("report.html"), page.as_bytes()).map_err(fault)
}

/// Whether the systems that share kernels gave the same texts, always; `None` where fewer than two
/// were run.
#[must_use]
pub fn equal_answers(calls: &[Call]) -> Option<bool> {
    let own = [DYNAMIC, "prototype", PRODUCT];
    let mine: Vec<Call> =
        calls.iter().filter(|call| own.contains(&call.system.as_str())).cloned().collect();
    let hashes = hashes(&mine);
    let systems: std::collections::BTreeSet<&str> =
        mine.iter().map(|call| call.system.as_str()).collect();
    let prompts: std::collections::BTreeSet<&str> =
        mine.iter().map(|call| call.prompt.as_str()).collect();
    let one_text = |prompt: &&str| {
        let of = hashes.iter().filter(|((its, _), _)| its == prompt);
        of.flat_map(|(_, hashes)| hashes).collect::<std::collections::BTreeSet<_>>().len() == 1
    };
    (systems.len() > 1).then(|| prompts.iter().all(one_text))
}

/// Every plot with its file's name.
fn figures(results: &Results, rows: &[Row], series: &[Series]) -> Vec<(String, Figure)> {
    let mut figures = Vec::new();
    for condition in conditions(rows) {
        let title = format!("Latency under {condition}: {}", described(condition));
        let groups = latencies(results, condition);
        if !groups.is_empty() {
            figures.push((format!("latency-{condition}"), distributions(&title, "ms", &groups)));
        }
        let over_time = resident(series, condition);
        if !over_time.is_empty() {
            let m_max = results.m_max_bytes.map(|bytes| ("M_max".to_string(), mebibytes(bytes)));
            let limits: Vec<(String, f64)> = m_max.into_iter().collect();
            let title = format!("Resident set over one round under {condition}");
            let names = ("seconds of calls", "MiB");
            figures.push((format!("rss-{condition}"), lines(&title, names, &over_time, &limits)));
        }
    }
    let spreads = spreads(rows);
    if !spreads.is_empty() {
        let title = "Spread of latency against pressure on processors, one point a condition";
        let names = ("time in which something runnable waited, %", "CV within prompts");
        figures.push(("cv-pressure".to_string(), points(title, names, &spreads, Guide::None)));
        let title = "Spread of latency under each condition";
        figures.push((
            "cv-conditions".to_string(),
            levels(title, "CV within prompts", &by_condition(rows)),
        ));
    }
    figures
}

fn conditions(rows: &[Row]) -> Vec<&str> {
    let mut names: Vec<&str> = rows.iter().map(|row| row.condition.as_str()).collect();
    names.dedup();
    names
}

fn described(condition: &str) -> &str {
    Condition::from_name(condition).map_or("", Condition::description)
}

/// For each prompt the latencies of each system.
fn latencies(results: &Results, condition: &str) -> Vec<(String, Vec<Named<f64>>)> {
    let mut groups: Vec<(String, Vec<Named<f64>>)> = Vec::new();
    for call in results.calls.iter().filter(|call| call.condition == condition) {
        let found = groups.iter().position(|(prompt, _)| *prompt == call.prompt);
        let at = found.unwrap_or_else(|| {
            groups.push((call.prompt.clone(), Vec::new()));
            groups.len() - 1
        });
        let systems = &mut groups[at].1;
        match systems.iter_mut().find(|(name, _)| *name == call.system) {
            Some((_, values)) => values.push(call.latency_ms),
            None => systems.push((call.system.clone(), vec![call.latency_ms])),
        }
    }
    groups
}

/// For each system its first round, call after call.
fn resident(series: &[Series], condition: &str) -> Vec<Named<(f64, f64)>> {
    let mut lines: Vec<Named<(f64, f64)>> = Vec::new();
    for one in series.iter().filter(|one| one.of.0 == condition) {
        let found = lines.iter().position(|(name, _)| *name == one.of.1);
        let at = found.unwrap_or_else(|| {
            lines.push((one.of.1.clone(), Vec::new()));
            lines.len() - 1
        });
        let points = &mut lines[at].1;
        let base = points.last().map_or(0.0, |point| point.0);
        points.extend(one.samples.iter().map(|(ms, bytes)| (base + ms / 1e3, mebibytes(*bytes))));
    }
    lines
}

/// For each system its spread against pressure.
fn spreads(rows: &[Row]) -> Vec<Named<(f64, f64)>> {
    let mut series: Vec<Named<(f64, f64)>> = Vec::new();
    for row in rows.iter().filter(|row| row.latency.count > 1) {
        let Some(pressure_percent) = row.pressure_percent else { continue };
        let point = (pressure_percent, row.cv_within);
        match series.iter_mut().find(|(name, _)| *name == row.system) {
            Some((_, points)) => points.push(point),
            None => series.push((row.system.clone(), vec![point])),
        }
    }
    series
}

/// For each condition the spread of each system.
fn by_condition(rows: &[Row]) -> Vec<(String, Vec<(String, f64)>)> {
    let of = |condition: &str| {
        let own = rows.iter().filter(|row| row.condition == condition && row.latency.count > 1);
        let spreads = own.map(|row| (row.system.clone(), row.cv_within)).collect();
        (condition.to_string(), spreads)
    };
    conditions(rows).into_iter().map(of).collect()
}

/// Bytes in units of 1024².
#[must_use]
pub fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// The head of every page: its style, and that it asks nothing of a network.
pub const HEAD: &str = include_str!("../data/head.html");

fn page(
    about: &About,
    results: &Results,
    rows: &[Row],
    contrasts: &[Contrast],
    figures: &[(String, Figure)],
) -> String {
    let mut out = String::new();
    let title = format!("Experiment: {}", escape(&about.model));
    let _ = write!(out, "{HEAD}<title>{title}</title></head>\n<body>\n<h1>{title}</h1>\n");
    verdicts(&mut out, results, rows);
    main_table(&mut out, rows);
    contrast_table(&mut out, &results.calls, contrasts);
    out.push_str("<h2>Plots</h2>\n");
    for (_, figure) in figures {
        out.push_str(&svg(figure));
    }
    prompt_table(&mut out, rows);
    prompt_contrast_table(&mut out, contrasts);
    out.push_str("<h2>How it was run</h2>\n<table>\n");
    let limit = |(condition, bytes): (&String, &u64)| {
        (format!("group of {condition}"), format!("{bytes} bytes"))
    };
    let limits: Vec<(String, String)> = results.limits.iter().map(limit).collect();
    for (name, value) in about.settings.iter().chain(&limits).chain(&about.machine) {
        let (name, value) = (escape(name), escape(value));
        let _ = writeln!(out, "<tr><td>{name}</td><td class=\"words\">{value}</td></tr>");
    }
    let limits = shown_limits(&about.settings);
    let limits = limits.map_or(String::new(), |limits| {
        format!(
            ". Limits that changed between its runs, of which it has the last: {}",
            escape(&limits)
        )
    });
    let _ = write!(
        out,
        "</table>\n<p><code>{}</code>{limits}</p>\n<p>Every call stands in <code>calls.csv</code> and \
         <code>calls.json</code>, the figures above in <code>summary.csv</code> and \
         <code>summary.json</code>.</p>\n</body></html>\n",
        escape(&about.command)
    );
    out
}

fn verdicts(out: &mut String, results: &Results, rows: &[Row]) {
    let ours: Vec<&Row> = rows.iter().filter(|row| row.system == PRODUCT).collect();
    let calls: usize = ours.iter().map(|row| row.latency.count).sum();
    let missed: usize = ours.iter().filter_map(|row| row.missed).sum();
    let major: u64 = ours.iter().map(|row| row.major_faults).sum();
    let peak = ours.iter().map(|row| row.peak_bytes).max().unwrap_or(0);
    out.push_str("<ul>\n");
    match results.m_max_bytes {
        Some(m_max) => {
            let _ = writeln!(
                out,
                "<li>dctms: {calls} calls, {missed} missed envelopes, {major} major faults; greatest \
             peak {:.1} MiB of M_max {:.1} MiB ({:.4})</li>",
                mebibytes(peak),
                mebibytes(m_max),
                peak as f64 / m_max as f64
            );
        }
        None if calls > 0 => out.push_str(
            "<li class=\"bad\">dctms: M_max is not known: no envelope was checked</li>\n",
        ),
        None => {}
    }
    let equal = match equal_answers(&results.calls) {
        Some(true) => "the systems with our kernels gave the same text in every call",
        Some(false) => "<b class=\"bad\">the systems with our kernels gave different texts</b>",
        None => "only one system with our kernels was run",
    };
    let _ = writeln!(out, "<li>{equal}</li>");
    if !results.complete {
        out.push_str("<li>not complete: the same command goes on</li>\n");
    }
    for cell in results.cells.iter().filter(|cell| cell.status == CHANGED) {
        let (condition, why) = (escape(&cell.condition), escape(&cell.detail));
        let _ = writeln!(out, "<li class=\"bad\">{condition}: {why}</li>");
    }
    for cell in results.not_measured() {
        let system = escape(&cell.system);
        let _ = writeln!(out, "<li class=\"bad\">{system} was not measured at all</li>");
    }
    out.push_str("</ul>\n");
}

/// Begins a table; each name is a column.
fn begin_table(out: &mut String, names: &[&str]) {
    out.push_str("<div class=\"wide\"><table>\n<tr>");
    for name in names {
        let _ = write!(out, "<th>{name}</th>");
    }
    out.push_str("</tr>\n");
}

/// A row; `last` is the condition of the row before, since conditions are set apart.
fn table_row(out: &mut String, last: &mut String, condition: &str, fields: &[String]) {
    let class = if last == condition { "" } else { " class=\"first\"" };
    let _ = write!(out, "<tr{class}><td>{condition}</td>");
    for field in fields {
        let _ = write!(out, "<td>{field}</td>");
    }
    out.push_str("</tr>\n");
    condition.clone_into(last);
}

fn end_table(out: &mut String) {
    out.push_str("</table></div>\n");
}

/// Mean, σ, CV, p50, p99 and max; dashes where there is no call.
fn latency_fields(it: &Summary) -> Vec<String> {
    if it.count == 0 {
        return vec!["–".to_string(); 6];
    }
    let one = |value: f64| format!("{value:.1}");
    let cv = format!("{:.4}", it.cv);
    vec![one(it.mean), one(it.sigma), cv, one(it.p50), one(it.p99), one(it.max)]
}

fn main_table(out: &mut String, rows: &[Row]) {
    let _ = writeln!(out, "<h2>Systems</h2>\n<p>{COLUMNS}</p>");
    let names = [
        "condition",
        "system",
        "calls",
        "mean ms",
        "σ",
        "CV",
        "p50",
        "p99",
        "max",
        "CV within<br>prompts",
        "tokens/s",
        "peak<br>MiB",
        "minor<br>faults",
        "major<br>faults",
        "missed<br>envelopes",
        "waited<br>%",
    ];
    begin_table(out, &names);
    let mut last = String::new();
    for row in rows {
        let state = row.status.as_ref().map_or(String::new(), |(it, _)| format!(" {}", escape(it)));
        let mut fields = vec![escape(&row.system), format!("{}{state}", row.latency.count)];
        fields.extend(latency_fields(&row.latency));
        fields.extend(match row.latency.count {
            0 => vec!["–".to_string(); 7],
            _ => vec![
                format!("{:.4}", row.cv_within),
                format!("{:.1}", row.tokens_per_s),
                format!("{:.1}", mebibytes(row.peak_bytes)),
                row.minor_faults.to_string(),
                row.major_faults.to_string(),
                row.missed.map_or("–".to_string(), |missed| missed.to_string()),
                row.pressure_percent.map_or("–".to_string(), |percent| format!("{percent:.1}")),
            ],
        });
        table_row(out, &mut last, &row.condition, &fields);
    }
    end_table(out);
    let over = rows.iter().filter_map(|row| Some((row, row.status.as_ref()?)));
    for (row, (status, why)) in over {
        let (system, status, why) = (escape(&row.system), escape(status), escape(why));
        let condition = &row.condition;
        let _ = writeln!(out, "<p><b>{condition}, {system}: {status}.</b> {why}</p>");
    }
}

/// What the systems are, and the columns.
const COLUMNS: &str = "<b>dynamic</b> allocates for each operation, as common runtimes do; \
                       <b>prototype</b> is the paper's, which allocates its plan's buffers beside \
                       that; <b>dctms</b> runs in its plan's arena. The three compute with the same \
                       kernels; others are as they come. Latencies are of whole calls, in \
                       milliseconds. <b>CV within prompts</b>: σ of each latency over its prompt's \
                       mean. <b>Missed envelopes</b>: calls whose peak passed M_max, what the plan \
                       says the process takes at most. <b>Waited</b>: share of the time in which \
                       something runnable waited for a processor.";

/// What the columns of differences mean.
const DIFFERENCES: &str = "In percent, with the interval of 95 of 100 resamples of whole rounds. \
                           Those of five or a few more rounds are narrower than they should be; \
                           fewer have none. Below zero is faster, or steadier. Rounds whose \
                           calls are of two runs of the program are left out.";

/// What is said beside it of calls that do not tell their run.
const ONE_RUN: &str = " Here it is not known of which run a call is; all are taken for one.";

fn contrast_table(out: &mut String, calls: &[Call], contrasts: &[Contrast]) {
    if contrasts.is_empty() {
        return;
    }
    let unknown = if calls.iter().any(|call| call.session == 0) { ONE_RUN } else { "" };
    let _ = writeln!(out, "<h2>Differences</h2>\n<p>{DIFFERENCES}{unknown}</p>");
    let names =
        ["condition", "system", "compared with", "rounds", "mean latency", "CV within prompts"];
    begin_table(out, &names);
    let mut last = String::new();
    for it in contrasts {
        let fields = [
            escape(&it.ours),
            escape(&it.theirs),
            match it.left_out {
                0 => it.rounds.to_string(),
                left_out => format!("{} ({left_out} left out)", it.rounds),
            },
            percent(it.difference.mean),
            percent(it.difference.cv),
        ];
        table_row(out, &mut last, &it.condition, &fields);
    }
    end_table(out);
}

/// An interval in percent; dashes for what is not known.
#[must_use]
pub fn percent(it: Interval) -> String {
    let one = |value: f64| format!("{:+.1}", value * 100.0);
    match (it.value, it.range) {
        (None, _) => "–".to_string(),
        (Some(value), None) => format!("{} [–]", one(value)),
        (Some(value), Some((low, high))) => format!("{} [{}, {}]", one(value), one(low), one(high)),
    }
}

fn prompt_table(out: &mut String, rows: &[Row]) {
    out.push_str("<h2>By prompt</h2>\n");
    let names =
        ["condition", "system", "prompt", "calls", "mean ms", "σ", "CV", "p50", "p99", "max"];
    begin_table(out, &names);
    let mut last = String::new();
    for row in rows {
        for (prompt, it) in &row.prompts {
            let mut fields = vec![escape(&row.system), escape(prompt), it.count.to_string()];
            fields.extend(latency_fields(it));
            table_row(out, &mut last, &row.condition, &fields);
        }
    }
    end_table(out);
}

fn prompt_contrast_table(out: &mut String, contrasts: &[Contrast]) {
    if contrasts.is_empty() {
        return;
    }
    let _ = writeln!(out, "<h2>Differences by prompt</h2>\n<p>{DIFFERENCES}</p>");
    begin_table(out, &["condition", "system", "compared with", "prompt", "mean latency", "CV"]);
    let mut last = String::new();
    for it in contrasts {
        for (prompt, difference) in &it.prompts {
            let (ours, theirs) = (escape(&it.ours), escape(&it.theirs));
            let figures = [percent(difference.mean), percent(difference.cv)];
            let [mean, cv] = figures;
            let fields = [ours, theirs, escape(prompt), mean, cv];
            table_row(out, &mut last, &it.condition, &fields);
        }
    }
    end_table(out);
}

/// Text that is no markup.
#[must_use]
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
