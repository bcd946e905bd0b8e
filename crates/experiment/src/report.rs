//! The report: one page without network, a PNG of every plot, and the figures as CSV and JSON.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Value, json};

use crate::condition::Condition;
use crate::plot::charts::{Guide, Named, distributions, lines, points};
use crate::plot::{Figure, png, svg};
use crate::protocol::{DYNAMIC, PRODUCT, Results, hashes};
use crate::record::Call;
use crate::series::{self, Series};
use crate::statistics::Interval;
use crate::tables::{Contrast, Row, contrasts, csv, json as tables_json, rows};

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

/// Writes `report.html`, `plots/*.png`, `summary.csv` and `summary.json`.
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
        std::fs::write(out.join(format!("plots/{name}.png")), png(figure)).map_err(fault)?;
    }
    std::fs::write(out.join("summary.csv"), csv(&rows)).map_err(fault)?;
    let mut summary = tables_json(&rows, &contrasts);
    summary["model"] = about.model.clone().into();
    summary["command"] = about.command.clone().into();
    summary["m_max_bytes"] = json!(results.m_max_bytes);
    summary["complete"] = results.complete.into();
    summary["equal_answers"] = json!(equal_answers(&results.calls));
    let object = |pairs: &[(String, String)]| -> Value {
        let pairs = pairs.iter().map(|(name, value)| (name.clone(), value.clone().into()));
        Value::Object(pairs.collect())
    };
    summary["machine"] = object(&about.machine);
    summary["settings"] = object(&about.settings);
    let text = serde_json::to_string_pretty(&summary).unwrap_or_default();
    std::fs::write(out.join("summary.json"), text + "\n").map_err(fault)?;
    let page = page(about, results, &rows, &contrasts, &figures);
    std::fs::write(out.join("report.html"), page).map_err(fault)
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
        let point = (row.pressure_percent, row.cv_within);
        match series.iter_mut().find(|(name, _)| *name == row.system) {
            Some((_, points)) => points.push(point),
            None => series.push((row.system.clone(), vec![point])),
        }
    }
    series
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
    contrast_table(&mut out, contrasts);
    for (_, figure) in figures {
        out.push_str(&svg(figure));
    }
    prompt_table(&mut out, rows);
    out.push_str("<h2>How it was run</h2>\n<table>\n");
    for (name, value) in about.settings.iter().chain(&about.machine) {
        let _ = writeln!(out, "<tr><td>{}</td><td>{}</td></tr>", escape(name), escape(value));
    }
    let _ =
        writeln!(out, "</table>\n<p><code>{}</code></p>\n</body></html>", escape(&about.command));
    out
}

fn verdicts(out: &mut String, results: &Results, rows: &[Row]) {
    let ours: Vec<&Row> = rows.iter().filter(|row| row.system == PRODUCT).collect();
    let calls: usize = ours.iter().map(|row| row.latency.count).sum();
    let missed: usize = ours.iter().map(|row| row.missed).sum();
    let major: u64 = ours.iter().map(|row| row.major_faults).sum();
    let peak = ours.iter().map(|row| row.peak_bytes).max().unwrap_or(0);
    out.push_str("<ul>\n");
    if let Some(m_max) = results.m_max_bytes {
        let _ = writeln!(
            out,
            "<li>dctms: {calls} calls, {missed} missed envelopes, {major} major faults; greatest \
             peak {:.1} MiB of M_max {:.1} MiB ({:.4})</li>",
            mebibytes(peak),
            mebibytes(m_max),
            peak as f64 / m_max as f64
        );
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
    out.push_str("</ul>\n");
}

fn main_table(out: &mut String, rows: &[Row]) {
    out.push_str(
        "<h2>Systems</h2>\n<table>\n<tr><th>condition</th><th>system</th><th>calls</th>\
         <th>mean ms</th><th>σ</th><th>CV</th><th>CV within prompts</th><th>p50</th><th>p99</th>\
         <th>max</th><th>tokens/s</th><th>peak MiB</th><th>minor</th><th>major</th>\
         <th>waited %</th><th></th></tr>\n",
    );
    for row in rows {
        let l = &row.latency;
        let status = row
            .status
            .as_ref()
            .map_or(String::new(), |(status, why)| format!("{}: {}", escape(status), escape(why)));
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{:.1}</td><td>{:.1}</td><td>{:.4}</td>\
             <td>{:.4}</td><td>{:.1}</td><td>{:.1}</td><td>{:.1}</td><td>{:.1}</td><td>{:.1}</td>\
             <td>{}</td><td>{}</td><td>{:.1}</td><td>{status}</td></tr>",
            row.condition,
            escape(&row.system),
            l.count,
            l.mean,
            l.sigma,
            l.cv,
            row.cv_within,
            l.p50,
            l.p99,
            l.max,
            row.tokens_per_s,
            mebibytes(row.peak_bytes),
            row.minor_faults,
            row.major_faults,
            row.pressure_percent,
        );
    }
    out.push_str("</table>\n");
}

fn contrast_table(out: &mut String, contrasts: &[Contrast]) {
    if contrasts.is_empty() {
        return;
    }
    out.push_str(
        "<h2>Differences</h2>\n<p>In percent, with the interval of 95 of 100 resamples of whole \
         rounds. Below zero is faster, or steadier.</p>\n<table>\n<tr><th>condition</th>\
         <th>system</th><th>compared with</th><th>rounds</th><th>mean latency</th>\
         <th>CV within prompts</th></tr>\n",
    );
    for it in contrasts {
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            it.condition,
            escape(&it.ours),
            escape(&it.theirs),
            it.rounds,
            percent(it.difference.mean),
            percent(it.difference.cv)
        );
    }
    out.push_str("</table>\n");
}

/// An interval in percent.
#[must_use]
pub fn percent(it: Interval) -> String {
    format!("{:+.1} [{:+.1}, {:+.1}]", it.value * 100.0, it.low * 100.0, it.high * 100.0)
}

fn prompt_table(out: &mut String, rows: &[Row]) {
    out.push_str(
        "<h2>By prompt</h2>\n<table>\n<tr><th>condition</th><th>system</th><th>prompt</th>\
         <th>calls</th><th>mean ms</th><th>σ</th><th>CV</th><th>p50</th><th>p99</th><th>max</th>\
         </tr>\n",
    );
    for row in rows {
        for (prompt, l) in &row.prompts {
            let _ = writeln!(
                out,
                "<tr><td>{}</td><td>{}</td><td>{prompt}</td><td>{}</td><td>{:.1}</td>\
                 <td>{:.1}</td><td>{:.4}</td><td>{:.1}</td><td>{:.1}</td><td>{:.1}</td></tr>",
                row.condition,
                escape(&row.system),
                l.count,
                l.mean,
                l.sigma,
                l.cv,
                l.p50,
                l.p99,
                l.max
            );
        }
    }
    out.push_str("</table>\n");
}

/// Text that is no markup.
#[must_use]
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
