//! A plan as one page for a browser: no network, no other files.
//!
//! Words, tables and the envelope's bars are written here and need no script; the arena and the
//! lanes are drawn by a script from the plan itself, which the page carries. The page says
//! nothing that the plan does not.

mod envelope;
mod html;

use std::fmt::Write as _;

use dctms_ir::{Plan, json};

use crate::family;
use crate::modes;
use crate::schedule;
use crate::show::{grouped, mebibytes, ratio};
use crate::streams;
use crate::table::{Shown, bounds_rows, envelope_rows, main_phase, price_rows, reduction};
use crate::together;

use html::{escape, script_safe};

/// Everything before the title: no request may leave the page, whatever is in it.
const HEAD: &str = include_str!("page/head.html");
const STYLE: &str = include_str!("page/report.css");
const EXPLORER: &str = include_str!("page/explorer.html");
const SCRIPTS: [&str; 3] =
    [include_str!("page/data.js"), include_str!("page/chart.js"), include_str!("page/controls.js")];

/// The page.
#[must_use]
pub fn page(shown: &Shown<'_>) -> String {
    let plan_json = json::write(shown.plan);
    let mut out = String::with_capacity(plan_json.len() + (128 << 10));
    let title = title(shown);
    let _ = write!(
        out,
        "{HEAD}<title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n"
    );
    heading(&mut out, shown, &title);
    out.push_str(&envelope::bars(&shown.plan.envelope));
    out.push_str("<div class=\"columns\">\n");
    envelope_section(&mut out, shown);
    out.push_str("<div>\n");
    bounds_section(&mut out, shown);
    prices_section(&mut out, shown);
    out.push_str("</div>\n</div>\n");
    modes_section(&mut out, shown);
    together_section(&mut out, shown);
    out.push_str(EXPLORER);
    out.push_str("<noscript><p>The arena and the lanes are drawn by a script.</p></noscript>\n");
    out.push_str("<div class=\"columns\">\n");
    arena_section(&mut out, shown);
    out.push_str("</div>\n");
    schedule_sections(&mut out, shown.plan);
    second_unit_section(&mut out, shown);
    not_covered_section(&mut out, shown);
    let digest: String =
        json::digest(shown.plan).iter().map(|byte| format!("{byte:02x}")).collect();
    let _ = writeln!(
        out,
        "</main>\n<footer><p>The whole plan is in this page, as <code>dctms plan --json</code> \
         prints it. Digest {digest}</p></footer>"
    );
    let _ = write!(
        out,
        "<script type=\"application/json\" id=\"plan-json\">{}</script>\n<script>\n",
        script_safe(&plan_json)
    );
    for script in SCRIPTS {
        out.push_str(script);
    }
    out.push_str("</script>\n</body>\n</html>\n");
    out
}

fn title(shown: &Shown<'_>) -> String {
    let files: Vec<&str> = shown.plan.program.models.iter().map(|m| m.file.as_str()).collect();
    format!("Memory plan: {}", escape(&files.join(", ")))
}

fn heading(out: &mut String, shown: &Shown<'_>, title: &str) {
    let plan = shown.plan;
    let _ = writeln!(out, "<h1>{title}</h1>");
    for (model, label) in plan.program.models.iter().zip(together::labels(plan)) {
        let label = label.map_or(String::new(), |label| format!("{label} = "));
        let complete = if model.file_complete { "file complete" } else { "file incomplete" };
        let _ = writeln!(
            out,
            "<p class=\"facts\">{label}{}, {} parameters, {complete}; for {} lanes, {}</p>",
            escape(&model.architecture),
            grouped(model.parameters),
            plan.machine.lanes,
            escape(&plan.machine.isa),
        );
    }
    let envelope = &plan.envelope;
    let (class, verdict) = match envelope.fits() {
        true => ("", "fits"),
        false => (" over", "does not fit"),
    };
    let free = i128::from(envelope.hardware) - i128::from(envelope.total);
    let (word, amount) = if free < 0 { ("missing", -free) } else { ("free", free) };
    let _ = writeln!(
        out,
        "<p class=\"verdict{class}\"><strong>M_max {} MiB {verdict}</strong> in {} MiB ({}): {} \
         MiB {word}</p>",
        mebibytes(envelope.total),
        mebibytes(envelope.hardware),
        escape(&plan.machine.memory_source),
        mebibytes(amount),
    );
}

fn envelope_section(out: &mut String, shown: &Shown<'_>) {
    let envelope = &shown.plan.envelope;
    out.push_str("<section aria-labelledby=\"envelope-title\">\n");
    out.push_str("<h2 id=\"envelope-title\">Envelope</h2>\n");
    out.push_str("<div class=\"scroll\"><table>\n<thead><tr><th scope=\"col\">Term</th>");
    out.push_str("<th scope=\"col\" class=\"n\">Bytes</th><th scope=\"col\" class=\"n\">MiB</th>");
    out.push_str("</tr></thead>\n<tbody>\n");
    for (name, depth, bytes) in envelope_rows(envelope) {
        let class = if depth == 0 { "" } else { " class=\"part\"" };
        let swatch = match depth {
            0 => format!("<span class=\"swatch\" style=\"background:{}\"></span>", {
                envelope::colour(name)
            }),
            _ => String::new(),
        };
        row(out, class, &format!("{swatch}{name}"), bytes.into());
    }
    row(out, " class=\"sum\"", "M_max", envelope.total.into());
    let source = escape(&shown.plan.machine.memory_source);
    row(out, "", &format!("machine memory ({source})"), envelope.hardware.into());
    let free = i128::from(envelope.hardware) - i128::from(envelope.total);
    row(out, "", "M_free", free);
    row(out, "", "peak while loading", envelope.load_peak.into());
    out.push_str("</tbody></table></div>\n</section>\n");
}

/// A row of bytes; `name` is HTML.
fn row(out: &mut String, class: &str, name: &str, bytes: i128) {
    let _ = writeln!(
        out,
        "<tr{class}><th scope=\"row\">{name}</th><td class=\"n\">{}</td><td class=\"n\">{}</td>\
         </tr>",
        grouped(bytes),
        mebibytes(bytes),
    );
}

fn bounds_section(out: &mut String, shown: &Shown<'_>) {
    table(out, "bounds", "Bounds", &["Bound", "Value", "Why"]);
    for (name, value, why) in bounds_rows(shown) {
        cells(out, name, &[(&value, "n"), (&why, "")]);
    }
    end(out);
}

fn prices_section(out: &mut String, shown: &Shown<'_>) {
    table(out, "prices", "What one more costs", &["One more", "Bytes", ""]);
    for (name, bytes, note) in price_rows(shown.prices) {
        cells(out, name, &[(&bytes, "n"), (&note, "")]);
    }
    end(out);
}

fn modes_section(out: &mut String, shown: &Shown<'_>) {
    if shown.modes.is_empty() {
        return;
    }
    table(out, "modes", modes::TITLE, &modes::COLUMNS);
    for row in modes::cells(shown.modes) {
        let texts: Vec<(&str, &str)> = row[1..].iter().map(|text| (text.as_str(), "n")).collect();
        cells(out, &row[0], &texts);
    }
    end(out);
}

fn together_section(out: &mut String, shown: &Shown<'_>) {
    if shown.alone.is_empty() {
        return;
    }
    let names = together::columns(shown.alone);
    let names: Vec<&str> =
        std::iter::once("Bytes").chain(names.iter().map(String::as_str)).collect();
    table(out, "together", &together::title(shown.plan), &names);
    for (name, _, bytes) in together::rows(shown.plan, shown.alone) {
        let numbers: Vec<(&str, &str)> = bytes.iter().map(|text| (text.as_str(), "n")).collect();
        cells(out, &name, &numbers);
    }
    end(out);
}

fn arena_section(out: &mut String, shown: &Shown<'_>) {
    let (arena, summary) = (&shown.plan.arena, &shown.plan.summary);
    table(out, "arena", "Packing", &["", "Bytes", "Live peak", "Ratio"]);
    for (name, bytes, peak) in [
        ("arena", arena.bytes, arena.live_peak_bytes),
        ("transients", arena.transient_bytes, arena.transient_live_peak_bytes),
    ] {
        let ratio = ratio(bytes, peak);
        cells(out, name, &[(&grouped(bytes), "n"), (&grouped(peak), "n"), (&ratio, "n")]);
    }
    out.push_str("</tbody></table></div>\n");
    let _ = writeln!(
        out,
        "<p>Of one {} pass: {} logical tensors in {} physical buffers, {} % fewer; {} bytes, were \
         none shared.</p>\n</section>",
        escape(&main_phase(shown.plan)),
        grouped(summary.logical_tensors),
        grouped(summary.physical_buffers),
        reduction(summary.logical_tensors, summary.physical_buffers),
        grouped(summary.sum_of_tensor_bytes),
    );
}

/// The schedule's tables, as the terminal has them.
fn schedule_sections(out: &mut String, plan: &Plan) {
    let mut add = |id: &str, title: &str, heads: &[&str], rows: Vec<Vec<String>>| {
        table(out, id, title, heads);
        for row in rows {
            let numbers: Vec<(&str, &str)> =
                row[1..].iter().map(|cell| (cell.as_str(), "n")).collect();
            cells(out, &row[0], &numbers);
        }
        end(out);
    };
    let points = schedule::synchronisation(plan).map_rows();
    add("synchronisation", "Synchronisation points", &schedule::SYNCHRONISATION, points);
    add("times", "Expected times", &schedule::TIMES, schedule::times(plan).map_rows());
    let members = family::rows(plan).map_rows();
    if !members.is_empty() {
        add("family", family::TITLE, &family::HEADS, members);
    }
    let roofline = schedule::roofline(plan).map_rows();
    add("concurrency", "Concurrency", &schedule::ROOFLINE, roofline);
    for (index, region) in plan.regions.iter().enumerate() {
        let (id, title) = (format!("streams-{index}"), streams::title(plan, region));
        let verdict = streams::verdict(region).join(". ");
        let title = format!("Streams: {}", escape(&title));
        add(&id, &title, &streams::STREAMS, streams::streams(plan, region).map_rows());
        let (id, title) = (format!("segments-{index}"), format!("{}.", escape(&verdict)));
        add(&id, &title, &streams::SEGMENTS, streams::segments(region).map_rows());
    }
    let gap: Vec<Vec<String>> = streams::gap(plan).into_iter().map(|line| vec![line]).collect();
    if !gap.is_empty() {
        add("gap", "While an answer is written", &[streams::GAP], gap);
    }
    add("orders", "Order of operations", &schedule::ORDERS, schedule::orders(plan).map_rows());
    let variants = schedule::variants(plan).map_rows();
    if !variants.is_empty() {
        add("variants", "What else there could be", &schedule::VARIANTS, variants);
    }
}

/// Rows of any width.
trait Rows {
    fn map_rows(self) -> Vec<Vec<String>>;
}

impl<const N: usize> Rows for Vec<[String; N]> {
    fn map_rows(self) -> Vec<Vec<String>> {
        self.into_iter().map(Vec::from).collect()
    }
}

/// What a second unit would do: text and a timeline of blocks.
fn second_unit_section(out: &mut String, shown: &Shown<'_>) {
    let Some(times) = shown.second_unit else { return };
    let _ = write!(
        out,
        "<section aria-labelledby=\"second-unit-title\">\n<h2 id=\"second-unit-title\">{}</h2>\n",
        escape(streams::SECOND_UNIT)
    );
    for line in streams::second_unit(times) {
        let _ = writeln!(out, "<p>{}</p>", escape(&line));
    }
    let lines: Vec<String> = streams::gantt(times).iter().map(|line| escape(line)).collect();
    let _ =
        writeln!(out, "<div class=\"scroll\"><pre>{}</pre></div>\n</section>", lines.join("\n"));
}

fn not_covered_section(out: &mut String, shown: &Shown<'_>) {
    out.push_str("<section aria-labelledby=\"not-covered-title\">\n");
    out.push_str("<h2 id=\"not-covered-title\">Not covered by M_max</h2>\n<ul>\n");
    for what in &shown.plan.envelope.not_covered {
        let _ = writeln!(out, "<li>{}</li>", escape(what));
    }
    out.push_str("</ul>\n</section>\n");
}

fn table(out: &mut String, id: &str, title: &str, columns: &[&str]) {
    let _ = write!(
        out,
        "<section aria-labelledby=\"{id}-title\">\n<h2 id=\"{id}-title\">{title}</h2>\n\
         <div class=\"scroll\"><table>\n<thead><tr>"
    );
    for (index, column) in columns.iter().enumerate() {
        let class = if index > 0 && *column != "Why" { " class=\"n\"" } else { "" };
        match column.is_empty() {
            true => out.push_str("<td></td>"),
            false => {
                let _ = write!(out, "<th scope=\"col\"{class}>{column}</th>");
            }
        }
    }
    out.push_str("</tr></thead>\n<tbody>\n");
}

fn cells(out: &mut String, name: &str, cells: &[(&str, &str)]) {
    let _ = write!(out, "<tr><th scope=\"row\">{}</th>", escape(name));
    for (text, class) in cells {
        let class = if class.is_empty() { String::new() } else { format!(" class=\"{class}\"") };
        let _ = write!(out, "<td{class}>{}</td>", escape(text));
    }
    out.push_str("</tr>\n");
}

fn end(out: &mut String) {
    out.push_str("</tbody></table></div>\n</section>\n");
}
