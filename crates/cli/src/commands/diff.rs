//! `dctms plan --diff OLD.json NEW.json`: what changed in bytes and why, for review in CI.
//!
//! Both plans are read with their digests checked; nothing is verified again (that is `verify`).
//! Bytes are told by the envelope's terms, then by groups of like tensors: the same name in every
//! layer is one group. Of transients, which share bytes, the groups of the witness are told: they
//! are what the region's size is made of.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use dctms_engine::planning::{mode_of, steps_of};
use dctms_ir::join::Steps;
use dctms_ir::plan::{Bounds, Plan};
use dctms_ir::tensor::Term;
use dctms_ir::{Residence, Tensor, json};

use super::files::{named, read_plan};
use super::inspect::quoted;
use super::say;
use crate::failure::Failure;
use crate::machine::hexadecimal;
use crate::show::{Align, Columns, clipped, grouped, printable, signed};
use crate::table::envelope_rows;

/// A value that differs.
struct Change {
    what: &'static str,
    old: String,
    new: String,
}

/// Bytes before and after.
struct Bytes {
    what: String,
    old: u64,
    new: u64,
}

/// Like tensors of all layers.
#[derive(Clone, Default, PartialEq, Eq)]
struct Group {
    count: u64,
    bytes: u64,
    /// Type and shape of the first.
    form: String,
}

/// A group that differs.
struct GroupChange {
    term: Term,
    name: String,
    old: Option<Group>,
    new: Option<Group>,
}

struct Difference {
    causes: Vec<Change>,
    terms: Vec<Bytes>,
    groups: Vec<GroupChange>,
    counts: Vec<Bytes>,
}

/// Compares two plans and prints what differs.
///
/// # Errors
/// A file that is not a plan (exit code 2).
pub fn run(old_path: &Path, new_path: &Path, is_json: bool) -> Result<(), Failure> {
    let (old, new) = (read_plan(old_path)?, read_plan(new_path)?);
    let difference = difference(&old, &new);
    let text = match is_json {
        true => as_json(&difference, &old, &new),
        false => as_text(&difference, &named(old_path), &named(new_path)),
    };
    say(&text)
}

fn difference(old: &Plan, new: &Plan) -> Difference {
    Difference {
        causes: causes(old, new),
        terms: terms(old, new),
        groups: group_changes(old, new),
        counts: counts(old, new),
    }
}

/// What was decided otherwise: model, bounds, machine.
fn causes(old: &Plan, new: &Plan) -> Vec<Change> {
    let mut changes = Vec::new();
    let mut add = |what: &'static str, old: String, new: String| {
        if old != new {
            changes.push(Change { what, old, new });
        }
    };
    let models = |plan: &Plan, of: fn(&dctms_ir::program::ModelInfo) -> String| {
        plan.program.models.iter().map(of).collect::<Vec<_>>().join(", ")
    };
    add("model file", models(old, |m| m.file.clone()), models(new, |m| m.file.clone()));
    let header = |m: &dctms_ir::program::ModelInfo| m.header_sha256.chars().take(16).collect();
    add("model header", models(old, header), models(new, header));
    let whole = |m: &dctms_ir::program::ModelInfo| m.file_complete.to_string();
    add("file complete", models(old, whole), models(new, whole));
    let steps = |plan: &Plan| match steps_of(plan) {
        Steps::Exclusive => "exclusive".to_string(),
        Steps::Overlapping => "may overlap".to_string(),
    };
    add("steps of different models", steps(old), steps(new));
    let mode = |plan: &Plan| mode_of(plan).name().to_string();
    add("vision mode", mode(old), mode(new));
    for ((what, old), (_, new)) in bounds(&old.bounds).into_iter().zip(bounds(&new.bounds)) {
        add(what, old, new);
    }
    let (a, b) = (&old.machine, &new.machine);
    add("machine memory", a.memory_bytes.to_string(), b.memory_bytes.to_string());
    add("memory source", a.memory_source.clone(), b.memory_source.clone());
    add("lanes", a.lanes.to_string(), b.lanes.to_string());
    add("isa", a.isa.clone(), b.isa.clone());
    add("machine profile", a.profile_sha256.clone(), b.profile_sha256.clone());
    changes
}

fn bounds(bounds: &Bounds) -> [(&'static str, String); 8] {
    let Bounds {
        max_input_tokens,
        max_output_tokens,
        sequences,
        prefill_chunk,
        logit_rows,
        kv_type,
        max_images,
        max_image_tokens,
    } = bounds;
    [
        ("max input tokens", max_input_tokens.to_string()),
        ("max output tokens", max_output_tokens.to_string()),
        ("sequences", sequences.to_string()),
        ("prefill chunk", prefill_chunk.to_string()),
        ("logit rows", logit_rows.to_string()),
        ("kv type", kv_type.name().to_string()),
        ("max images", max_images.to_string()),
        ("max image tokens", max_image_tokens.to_string()),
    ]
}

/// The envelope, line by line, M_max last.
fn terms(old: &Plan, new: &Plan) -> Vec<Bytes> {
    let rows = envelope_rows(&old.envelope).into_iter().zip(envelope_rows(&new.envelope));
    rows.map(|((name, depth, old), (_, _, new))| Bytes {
        what: if depth == 0 { name.to_string() } else { format!("  {name}") },
        old,
        new,
    })
    .chain([Bytes { what: "M_max".into(), old: old.envelope.total, new: new.envelope.total }])
    .collect()
}

fn counts(old: &Plan, new: &Plan) -> Vec<Bytes> {
    let of = |plan: &Plan| {
        let cuts: u64 = plan.schedules.iter().map(|schedule| u64::from(schedule.events)).sum();
        let ops: usize = plan.program.phases.iter().map(|phase| phase.ops.len()).sum();
        [
            ("transient live peak", plan.arena.transient_live_peak_bytes),
            ("tensors", plan.program.tensors.len() as u64),
            ("operations", ops as u64),
            ("cuts", cuts),
            ("physical buffers of one pass", plan.summary.physical_buffers),
        ]
    };
    let rows = of(old).into_iter().zip(of(new));
    rows.map(|((what, old), (_, new))| Bytes { what: what.to_string(), old, new }).collect()
}

fn group_changes(old: &Plan, new: &Plan) -> Vec<GroupChange> {
    let (old, new) = (groups(old), groups(new));
    let mut keys: Vec<&(Term, String)> = old.keys().chain(new.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    let changed = keys.into_iter().filter(|key| old.get(*key) != new.get(*key));
    changed
        .map(|key| GroupChange {
            term: key.0,
            name: key.1.clone(),
            old: old.get(key).cloned(),
            new: new.get(key).cloned(),
        })
        .collect()
}

/// Tensors that bytes are counted for: all that last, and of transients the witness.
fn groups(plan: &Plan) -> BTreeMap<(Term, String), Group> {
    let dims = plan.program.dims_max();
    let mut in_witness = vec![false; plan.program.tensors.len()];
    for id in &plan.arena.witness {
        if let Some(member) = in_witness.get_mut(id.index()) {
            *member = true;
        }
    }
    let mut groups: BTreeMap<(Term, String), Group> = BTreeMap::new();
    for (index, tensor) in plan.program.tensors.iter().enumerate() {
        if tensor.residence == Residence::Transient && !in_witness[index] {
            continue;
        }
        let group = groups.entry((tensor.term, without_layer(&tensor.name))).or_default();
        if group.count == 0 {
            group.form = form(tensor, &dims);
        }
        group.count += 1;
        let bytes = plan.placements.get(index).map_or(0, |placement| placement.bytes);
        group.bytes = group.bytes.saturating_add(bytes);
    }
    groups
}

fn form(tensor: &Tensor, dims: &[u64]) -> String {
    let shape: Vec<String> = tensor
        .shape
        .iter()
        .map(|extent| extent.value(dims).map_or("?".to_string(), |value| value.to_string()))
        .collect();
    format!("{} [{}]", tensor.dtype.name(), shape.join(", "))
}

/// `blk.12.attn_q` as `blk.*.attn_q`: numbers between dots are layers.
fn without_layer(name: &str) -> String {
    let part = |part: &str| match !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()) {
        true => "*".to_string(),
        false => printable(part),
    };
    name.split('.').map(part).collect::<Vec<_>>().join(".")
}

fn delta(old: u64, new: u64) -> i128 {
    i128::from(new) - i128::from(old)
}

fn as_text(difference: &Difference, old: &str, new: &str) -> String {
    let mut out = format!("{old} → {new}\n");
    let is_same = difference.causes.is_empty()
        && difference.groups.is_empty()
        && difference.terms.iter().chain(&difference.counts).all(|row| row.old == row.new);
    if is_same {
        out.push_str("no difference\n");
        return out;
    }
    let _ = writeln!(out, "\nwhy");
    let mut columns = Columns::new(&[Align::Left, Align::Left, Align::Left]);
    for change in &difference.causes {
        let (old, new) = (printable(&change.old), printable(&change.new));
        columns.row([change.what.to_string(), old, format!("→ {new}")]);
    }
    match difference.causes.is_empty() {
        true => out.push_str("  same model, bounds and machine: another planner\n"),
        false => out.push_str(&columns.lines(2)),
    }
    let _ = writeln!(out, "\nbytes");
    let mut columns = Columns::named();
    columns.row(["", "old", "new", "change"]);
    for row in &difference.terms {
        let change = if row.old == row.new { "=".into() } else { signed(delta(row.old, row.new)) };
        columns.row([row.what.clone(), grouped(row.old), grouped(row.new), change]);
    }
    out.push_str(&columns.lines(2));
    groups_text(&mut out, &difference.groups);
    let changed: Vec<&Bytes> = difference.counts.iter().filter(|row| row.old != row.new).collect();
    if !changed.is_empty() {
        let _ = writeln!(out, "\ncounts");
        let mut columns = Columns::named();
        for row in changed {
            let change = signed(delta(row.old, row.new));
            columns.row([row.what.clone(), grouped(row.old), grouped(row.new), change]);
        }
        out.push_str(&columns.lines(2));
    }
    out
}

fn groups_text(out: &mut String, groups: &[GroupChange]) {
    if groups.is_empty() {
        return;
    }
    let _ = writeln!(out, "\ntensors (of intermediates, those that make up the peak)");
    let mut columns = Columns::new(&[Align::Left, Align::Left, Align::Right, Align::Left]);
    for change in groups {
        let bytes = |group: &Option<Group>| group.as_ref().map_or(0, |group| group.bytes);
        let change_bytes = signed(delta(bytes(&change.old), bytes(&change.new)));
        let name = clipped(&change.name, 60);
        columns.row([change.term.name().to_string(), name, change_bytes, what_happened(change)]);
    }
    out.push_str(&columns.lines(2));
}

fn what_happened(change: &GroupChange) -> String {
    match (&change.old, &change.new) {
        (None, Some(new)) => format!("new: {} × {}", new.count, new.form),
        (Some(old), None) => format!("gone: {} × {}", old.count, old.form),
        (Some(old), Some(new)) => {
            let (a, b) = (format!("{} × {}", old.count, old.form), {
                format!("{} × {}", new.count, new.form)
            });
            if a == b { format!("{a}, other bytes") } else { format!("{a} → {b}") }
        }
        (None, None) => String::new(),
    }
}

fn as_json(difference: &Difference, old: &Plan, new: &Plan) -> String {
    let list = |items: Vec<String>| format!("[\n{}\n]", items.join(",\n"));
    let rows = |rows: &[Bytes]| {
        list(
            rows.iter()
                .map(|row| {
                    let (what, change) = (quoted(row.what.trim()), delta(row.old, row.new));
                    let (old, new) = (row.old, row.new);
                    format!("{{\"what\":{what},\"old\":{old},\"new\":{new},\"change\":{change}}}")
                })
                .collect(),
        )
    };
    let causes = difference.causes.iter().map(|change| {
        let (old, new) = (quoted(&change.old), quoted(&change.new));
        format!("{{\"what\":{},\"old\":{old},\"new\":{new}}}", quoted(change.what))
    });
    let group = |group: &Option<Group>| match group {
        None => "null".to_string(),
        Some(Group { count, bytes, form }) => {
            format!("{{\"count\":{count},\"bytes\":{bytes},\"form\":{}}}", quoted(form))
        }
    };
    let groups = difference.groups.iter().map(|change| {
        let (term, name) = (quoted(change.term.name()), quoted(&change.name));
        let (old, new) = (group(&change.old), group(&change.new));
        format!("{{\"term\":{term},\"name\":{name},\"old\":{old},\"new\":{new}}}")
    });
    format!(
        "{{\"format\":\"dctms-plan-diff\",\"version\":1,\"old_digest\":\"{}\",\
         \"new_digest\":\"{}\",\n\"causes\":{},\n\"bytes\":{},\n\"tensors\":{},\n\"counts\":{}}}\n",
        hexadecimal(&json::digest(old)),
        hexadecimal(&json::digest(new)),
        list(causes.collect()),
        rows(&difference.terms),
        list(groups.collect()),
        rows(&difference.counts),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_one_group() {
        assert_eq!(without_layer("prefill.blk.12.attn_q"), "prefill.blk.*.attn_q");
        assert_eq!(without_layer("kv.0.k"), "kv.*.k");
        assert_eq!(without_layer("io.tokens"), "io.tokens");
        assert_eq!(without_layer("a\x1b.1"), "a\\u{1b}.*");
    }
}
