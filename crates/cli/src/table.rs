//! A plan as a table for a terminal.
//!
//! Every figure is the plan's own; the lines of the envelope add up to M_max as printed. The text
//! depends on the plan, the reasons of its bounds and the prices alone.

use dctms_engine::ImageLimits;
use dctms_engine::eyes::Oversize;
use dctms_ir::plan::Envelope;
use dctms_ir::region::Streams;
use dctms_ir::{Plan, Residence};

use dctms_planner::second_unit::SecondUnitTimes;

use crate::choice::Choice;
use crate::costs::{Price, Prices};
use crate::family;
use crate::modes::{self, ModeRow};
use crate::schedule;
use crate::show::{Align, Columns, grouped, mebibytes, printable, ratio};
use crate::streams;
use crate::together;
use crate::variants::WITHOUT;

/// What is shown beside the plan itself.
pub struct Shown<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// Where its bounds came from.
    pub choice: &'a Choice,
    /// What one more of each would cost.
    pub prices: &'a Prices,
    /// The envelope of each model in a process of its own; empty for a single model.
    pub alone: &'a [Envelope],
    /// Every mode of a model with eyes; empty for others.
    pub modes: &'a [ModeRow],
    /// What a second unit would do, where it was asked for.
    pub second_unit: Option<&'a SecondUnitTimes>,
    /// Bounds of pictures.
    pub images: &'a ImageLimits,
}

/// The whole table.
#[must_use]
pub fn text(shown: &Shown<'_>) -> String {
    let plan = shown.plan;
    let mut out = heading(plan);
    section(&mut out, "bounds", &bounds(shown));
    section(&mut out, "envelope", &envelope(plan));
    if !shown.modes.is_empty() {
        section(&mut out, modes::TITLE, &modes::text(shown.modes));
    }
    if !shown.alone.is_empty() {
        section(&mut out, &together::title(plan), &together::text(plan, shown.alone));
    }
    section(&mut out, "arena", &arena(plan));
    section(&mut out, &format!("tensors of one pass ({})", main_phase(plan)), &summary(plan));
    section(&mut out, "what one more costs", &prices(shown.prices));
    let points = rows(schedule::SYNCHRONISATION, schedule::synchronisation(plan));
    section(&mut out, "synchronisation points", &points);
    section(&mut out, "expected times", &rows(schedule::TIMES, schedule::times(plan)));
    let members = family::rows(plan);
    if !members.is_empty() {
        section(&mut out, family::TITLE, &rows(family::HEADS, members));
    }
    section(&mut out, "concurrency", &rows(schedule::ROOFLINE, schedule::roofline(plan)));
    for region in &plan.regions {
        let mut lines = rows(streams::STREAMS, streams::streams(plan, region));
        for line in streams::verdict(region) {
            lines.push_str(&format!("  {line}\n"));
        }
        if !region.segments.is_empty() {
            lines.push_str(&rows(streams::SEGMENTS, streams::segments(region)));
        }
        section(&mut out, &streams::title(plan, region), &lines);
    }
    let gap = streams::gap(plan);
    if !gap.is_empty() {
        let lines: String = gap.iter().map(|line| format!("  {line}\n")).collect();
        section(&mut out, streams::GAP, &lines);
    }
    if let Some(times) = shown.second_unit {
        let lines = streams::second_unit(times).into_iter().chain(streams::gantt(times));
        let lines: String = lines.map(|line| format!("  {line}\n")).collect();
        section(&mut out, streams::SECOND_UNIT, &lines);
    }
    section(&mut out, "order of operations", &rows(schedule::ORDERS, schedule::orders(plan)));
    if !plan.variants.is_empty() {
        let variants = rows(schedule::VARIANTS, schedule::variants(plan));
        section(&mut out, "what else there could be", &variants);
    }
    if plan.variants.iter().any(|variant| variant.name.starts_with(WITHOUT)) {
        let title = "colouring of the paper's configuration (28 layers of 16 tensors)";
        section(&mut out, title, &rows(schedule::PAPER, schedule::paper()));
    }
    out.push_str("\nnot covered by M_max\n");
    for what in &plan.envelope.not_covered {
        out.push_str(&format!("  {}\n", printable(what)));
    }
    out
}

/// Rows of the envelope: name, depth below the sum that it is part of, bytes.
#[must_use]
pub fn envelope_rows(envelope: &Envelope) -> Vec<(&'static str, usize, u64)> {
    let runtime = &envelope.runtime;
    vec![
        ("weights (as packed)", 0, envelope.weights),
        ("keys and values", 0, envelope.kv),
        ("persistent", 0, envelope.persistent),
        ("intermediate", 0, envelope.intermediate),
        ("runtime", 0, runtime.total().unwrap_or(u64::MAX)),
        ("heap", 1, runtime.heap),
        ("stacks", 1, runtime.stacks),
        ("image", 1, runtime.image),
        ("io", 1, runtime.io),
    ]
}

/// Rows of the bounds: name, value, reason.
#[must_use]
pub fn bounds_rows(shown: &Shown<'_>) -> Vec<(&'static str, String, String)> {
    let (bounds, choice) = (&shown.plan.bounds, shown.choice);
    let mut rows = vec![
        ("max input tokens", grouped(bounds.max_input_tokens), choice.input.text()),
        ("max output tokens", grouped(bounds.max_output_tokens), choice.output.text()),
        ("sequences", grouped(bounds.sequences), choice.sequences.text()),
        ("prefill chunk", grouped(bounds.prefill_chunk), choice.chunk.text()),
        ("kv type", bounds.kv_type.name().to_string(), choice.kv_type.text()),
    ];
    if bounds.max_images > 0 {
        let note = match bounds.max_image_tokens >= bounds.max_input_tokens {
            true => "of all pictures together: more than a prompt may have".to_string(),
            false => "of all pictures together".to_string(),
        };
        rows.push(("max pictures", grouped(bounds.max_images), "--max-images".to_string()));
        rows.push(("max picture tokens", grouped(bounds.max_image_tokens), note));
        let size = |width: u32, height: u32| format!("{width}x{height}");
        let seen = shown.images.size;
        let flag = "--max-image-size".to_string();
        rows.push(("max picture size", size(seen.width, seen.height), flag));
        if let Oversize::Resized(source) = shown.images.oversize {
            let note = "decoded and made smaller (--max-source-size)".to_string();
            rows.push(("max source size", size(source.width, source.height), note));
        }
    }
    rows
}

/// Rows of the prices: of what, bytes, how they were taken.
#[must_use]
pub fn price_rows(prices: &Prices) -> [(&'static str, String, String); 4] {
    let row = |name, price: Option<Price>| {
        let (bytes, note) = match price {
            None => ("-".to_string(), "beyond a limit".to_string()),
            Some(price) if price.units == 1 => (grouped(price.bytes), String::new()),
            Some(price) => {
                let note = format!("mean over the next {}", price.units);
                (grouped(price.bytes_per_unit()), note)
            }
        };
        (name, bytes, note)
    };
    [
        row("token of context", prices.context_token),
        row("token of a prefill chunk", prices.chunk_token),
        row("sequence", prices.sequence),
        row("lane", prices.lane),
    ]
}

fn section(out: &mut String, title: &str, lines: &str) {
    out.push('\n');
    out.push_str(title);
    out.push('\n');
    out.push_str(lines);
}

fn heading(plan: &Plan) -> String {
    let mut out = String::new();
    for (model, label) in plan.program.models.iter().zip(together::labels(plan)) {
        let label = label.map_or(String::new(), |label| format!("{label} = "));
        let state = match model.file_complete {
            true => "file complete",
            false => "file incomplete (its header is whole: it can be planned, not run)",
        };
        out.push_str(&format!(
            "{label}{}: {}, {} parameters, {state}\n",
            printable(&model.file),
            printable(&model.architecture),
            grouped(model.parameters),
        ));
    }
    let machine = &plan.machine;
    let lanes = if machine.lanes == 1 { "lane" } else { "lanes" };
    let profile: String = machine.profile_sha256.chars().take(12).collect();
    let isa = printable(&machine.isa);
    out.push_str(&format!("for {} {lanes}, {isa}, machine profile {profile}\n", machine.lanes));
    out
}

fn bounds(shown: &Shown<'_>) -> String {
    let mut columns = Columns::new(&[Align::Left, Align::Right, Align::Left]);
    for (name, value, why) in bounds_rows(shown) {
        columns.row([name.to_string(), value, why]);
    }
    columns.lines(2)
}

fn envelope(plan: &Plan) -> String {
    let envelope = &plan.envelope;
    let free = i128::from(envelope.hardware) - i128::from(envelope.total);
    let mut columns = Columns::named();
    columns.row(["", "bytes", "MiB"]);
    for (name, depth, bytes) in envelope_rows(envelope) {
        let name = format!("{}{name}", "  ".repeat(depth));
        columns.row([name, grouped(bytes), mebibytes(bytes)]);
    }
    let rule = "-".repeat(10);
    columns.row(["", rule.as_str(), rule.as_str()]);
    columns.row(["M_max".to_string(), grouped(envelope.total), mebibytes(envelope.total)]);
    let machine = format!("machine memory ({})", printable(&plan.machine.memory_source));
    columns.row([machine, grouped(envelope.hardware), mebibytes(envelope.hardware)]);
    columns.row(["M_free".to_string(), grouped(free), mebibytes(free)]);
    let peak = envelope.load_peak;
    columns.row(["peak while loading".to_string(), grouped(peak), mebibytes(peak)]);
    let verdict = if envelope.fits() { "fits" } else { "does not fit" };
    format!("{}  {verdict}\n", columns.lines(2))
}

fn arena(plan: &Plan) -> String {
    let arena = &plan.arena;
    let mut columns = Columns::named();
    columns.row(["", "bytes", "live peak", "ratio"]);
    for (name, bytes, peak) in [
        ("arena", arena.bytes, arena.live_peak_bytes),
        ("transients", arena.transient_bytes, arena.transient_live_peak_bytes),
    ] {
        columns.row([name.to_string(), grouped(bytes), grouped(peak), ratio(bytes, peak)]);
    }
    let mut lines = columns.lines(2);
    if !plan.program.flow.overlap.is_empty() {
        lines
            .push_str("  (the live peak is of one step: steps that may run together need a sum)\n");
    }
    lines
}

/// 100·(1 − buffers/tensors) to one decimal, cut off.
#[must_use]
pub fn reduction(tensors: u64, buffers: u64) -> String {
    if tensors == 0 {
        return "0.0".to_string();
    }
    let tenths = (i128::from(tensors) - i128::from(buffers)) * 1000 / i128::from(tensors);
    format!("{}.{}", tenths / 10, (tenths % 10).abs())
}

/// The phase that the counts of one pass are of: the one with most transients.
#[must_use]
pub fn main_phase(plan: &Plan) -> String {
    let mut counts = vec![0u64; plan.program.phases.len()];
    for tensor in plan.program.tensors.iter().filter(|t| t.residence == Residence::Transient) {
        if let Some(count) = tensor.phase.and_then(|phase| counts.get_mut(phase.index())) {
            *count += 1;
        }
    }
    for (count, phase) in counts.iter_mut().zip(&plan.program.phases) {
        // A region is two passes.
        *count = if phase.is_loading() || Streams::of(phase).is_some() { 0 } else { *count };
    }
    // The first of equals, as the planner counts.
    let most = counts.iter().max().copied().unwrap_or(0);
    let phase = counts.iter().position(|count| *count == most);
    phase.map_or(String::new(), |index| printable(&plan.program.phases[index].name))
}

fn summary(plan: &Plan) -> String {
    let summary = &plan.summary;
    let mut columns = Columns::named();
    columns.row(["logical tensors".to_string(), grouped(summary.logical_tensors)]);
    columns.row(["physical buffers".to_string(), grouped(summary.physical_buffers)]);
    let percent = reduction(summary.logical_tensors, summary.physical_buffers);
    columns.row(["reduction".to_string(), format!("{percent} %")]);
    columns.row(["their bytes, none shared".to_string(), grouped(summary.sum_of_tensor_bytes)]);
    columns.lines(2)
}

fn prices(prices: &Prices) -> String {
    let mut columns = Columns::new(&[Align::Left, Align::Right, Align::Left]);
    columns.row(["", "bytes"]);
    for (name, bytes, note) in price_rows(prices) {
        columns.row([name.to_string(), bytes, note]);
    }
    columns.lines(2)
}

/// A table of a schedule; columns of numbers stand right.
fn rows<const N: usize>(heads: [&str; N], rows: Vec<[String; N]>) -> String {
    let mut columns = Columns::named();
    columns.row(heads);
    for row in rows {
        columns.row(row);
    }
    columns.lines(2)
}
