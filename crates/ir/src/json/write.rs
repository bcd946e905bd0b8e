//! A plan to text. Field order is fixed and nothing momentary is printed, so that equal plans
//! print equal bytes on any machine.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

use super::{gap, kinds, regions};
use crate::contract::{self, Split};
use crate::ids::{OpId, PhaseId, TensorId};
use crate::op::Op;
use crate::plan::{Concurrency, Plan, Schedule};
use crate::program::Program;
use crate::size::Size;

/// The name and version that the first fields state.
pub(super) const FORMAT: &str = "dctms-plan";
pub(super) const VERSION: u64 = 1;

const DIGEST_FIELD: &str = "\n\"digest\":\"";

/// The plan as one JSON object, without a newline after it.
#[must_use]
pub fn write(plan: &Plan) -> String {
    let mut text = body(plan);
    let digest = hexadecimal(&Sha256::digest(text.as_bytes()));
    let end = text.len() - "\"}".len();
    text.insert_str(end, &digest);
    text
}

/// The digest that [`write()`] prints: it binds every field of the plan, its program included.
#[must_use]
pub fn digest(plan: &Plan) -> [u8; 32] {
    Sha256::digest(body(plan).as_bytes()).into()
}

/// The text with the empty string for its digest.
fn body(plan: &Plan) -> String {
    let mut out = String::with_capacity(1 << 20);
    object(&mut out, |o| {
        o.text("format", FORMAT);
        o.number("version", VERSION);
        o.rows("models", &plan.program.models, |o, id, model| {
            o.number("id", id as u64);
            o.text("file", &model.file);
            o.text("header_sha256", &model.header_sha256);
            o.with("sha256", |out| optional_text(out, model.sha256.as_deref()));
            o.flag("file_complete", model.file_complete);
            o.text("architecture", &model.architecture);
            o.number("parameters", model.parameters);
        });
        o.with("bounds", |out| bounds(out, plan));
        o.with("machine", |out| machine(out, plan));
        o.rows("dims", &plan.program.dims, |o, id, dim| {
            o.number("id", id as u64);
            o.text("name", &dim.name);
            o.number("min", dim.min);
            o.number("max", dim.max);
        });
        let dims = plan.program.dims_max();
        let ids: Vec<usize> = (0..plan.program.tensors.len()).collect();
        o.rows("tensors", &ids, |o, id, _| tensor(o, plan, id, &dims));
        o.rows("buffers", &plan.buffers, |o, id, buffer| {
            o.number("id", id as u64);
            o.number("bytes", buffer.bytes);
        });
        let ids: Vec<usize> = (0..plan.program.phases.len()).collect();
        o.rows("phases", &ids, |o, id, _| phase(o, plan, id));
        o.with("flow", |out| flow(out, plan));
        o.with("concurrency", |out| {
            object(out, |o| {
                for (phase, report) in plan.program.phases.iter().zip(&plan.concurrency) {
                    o.with(&phase.name, |out| concurrency(out, report));
                }
            });
        });
        o.with("predictions", |out| predictions(out, plan));
        o.text("preference", plan.preference.name());
        o.with("orders", |out| orders(out, plan));
        o.with("variants", |out| variants(out, plan));
        regions::write(o, plan);
        gap::write(o, plan);
        o.with("arena", |out| arena(out, plan));
        o.with("summary", |out| summary(out, plan));
        o.with("envelope", |out| envelope(out, plan));
    });
    out.pop();
    out.push(',');
    out.push_str(DIGEST_FIELD);
    out.push_str("\"}");
    out
}

fn bounds(out: &mut String, plan: &Plan) {
    let bounds = &plan.bounds;
    object(out, |o| {
        o.number("max_input_tokens", bounds.max_input_tokens);
        o.number("max_output_tokens", bounds.max_output_tokens);
        o.number("sequences", bounds.sequences);
        o.number("prefill_chunk", bounds.prefill_chunk);
        o.number("logit_rows", bounds.logit_rows);
        o.text("kv_type", bounds.kv_type.name());
        o.number("max_images", bounds.max_images);
        o.number("max_image_tokens", bounds.max_image_tokens);
    });
}

fn machine(out: &mut String, plan: &Plan) {
    let machine = &plan.machine;
    object(out, |o| {
        o.number("memory_bytes", machine.memory_bytes);
        o.text("memory_source", &machine.memory_source);
        o.number("lanes", u64::from(machine.lanes));
        o.text("isa", &machine.isa);
        o.text("profile_sha256", &machine.profile_sha256);
    });
}

fn tensor(o: &mut Object<'_>, plan: &Plan, id: usize, dims: &[u64]) {
    let tensor = &plan.program.tensors[id];
    let placement = plan.placements.get(id).copied().unwrap_or_default();
    o.number("id", id as u64);
    o.number("model", u64::from(tensor.model));
    o.text("name", &tensor.name);
    o.text("dtype", tensor.dtype.name());
    o.with("shape", |out| list(out, &tensor.shape, |out, size| optional(out, size.value(dims))));
    o.with("extents", |out| list(out, &tensor.shape, write_size));
    o.with("size", |out| write_size(out, &tensor.size));
    o.number("bytes", placement.bytes);
    o.text("residence", tensor.residence.name());
    o.text("term", tensor.term.name());
    o.with("phase", |out| {
        let phase = tensor.phase.and_then(|id| plan.program.phases.get(id.index()));
        optional_text(out, phase.map(|phase| phase.name.as_str()));
    });
    o.with("state", |out| optional_text(out, tensor.state.as_deref()));
    o.with("first", |out| optional(out, placement.interval.map(|i| u64::from(i.first))));
    o.with("last", |out| optional(out, placement.interval.map(|i| u64::from(i.last))));
    o.with("buffer", |out| optional(out, placement.buffer.map(u64::from)));
    o.with("offset", |out| optional(out, placement.offset));
}

fn phase(o: &mut Object<'_>, plan: &Plan, id: usize) {
    let phase = &plan.program.phases[id];
    let none = Schedule::default();
    let schedule = plan.schedules.get(id).unwrap_or(&none);
    let shards = shard_counts(phase.ops.len(), schedule);
    o.text("name", &phase.name);
    o.rows("ops", &phase.ops, |o, op_id, op| {
        let cost = plan.costs.get(id).and_then(|costs| costs.get(op_id)).copied();
        let cost = cost.unwrap_or_default();
        o.number("id", op_id as u64);
        o.text("name", &op.name);
        o.text("kind", op.kind.name());
        o.with("attributes", |out| kinds::write_attributes(out, &op.kind));
        o.with("inputs", |out| tensors(out, &op.inputs));
        o.with("outputs", |out| tensors(out, &op.outputs));
        o.with("workspace", |out| tensors(out, &op.workspace));
        let required = workspace_bytes_required(&plan.program, op, shards[op_id]);
        o.with("workspace_bytes_required", |out| optional(out, required));
        o.number("grain", op.grain);
        o.with("may_in_place", |out| pairs(out, contract::may_in_place(&op.kind)));
        o.with("in_place", |out| pairs(out, &op.in_place));
        o.with("access", |out| access(out, op));
        o.number("flops", cost.flops);
        o.number("bytes_moved", cost.bytes_moved);
        o.text("bound", if cost.bandwidth_bound { "bandwidth" } else { "compute" });
        o.number("predicted_ns", cost.predicted_ns);
    });
    o.number("events", u64::from(schedule.events));
    o.rows_of("lanes", &schedule.lanes, |out, lane| {
        list(out, lane, |out, task| {
            object(out, |o| {
                o.number("op", u64::from(task.op.0));
                o.number("shard", u64::from(task.shard));
                o.number("shards", u64::from(task.shards));
                o.with("waits", |out| {
                    list(out, &task.waits, |out, event| number(out, u64::from(event.0)));
                });
                o.with("signals", |out| optional(out, task.signals.map(|event| event.0.into())));
            });
        });
    });
}

/// In how many shards each operation runs: one when the schedule does not name it.
pub(super) fn shard_counts(ops: usize, schedule: &Schedule) -> Vec<u32> {
    let mut shards = vec![1; ops];
    for task in schedule.lanes.iter().flatten() {
        if let Some(count) = shards.get_mut(task.op.index()) {
            *count = task.shards.max(*count);
        }
    }
    shards
}

/// Bytes that an operation's workspaces need together: one share for each shard.
pub(super) fn workspace_bytes_required(program: &Program, op: &Op, shards: u32) -> Option<u64> {
    let known = |id: &TensorId| id.index() < program.tensors.len();
    // Unknown operands cannot be asked; the verifier and the reader refuse them.
    if contract::accesses(op).is_err() || !op.inputs.iter().all(known) {
        return None;
    }
    contract::workspace_bytes(program, op).ok()?.checked_mul(u64::from(shards))
}

fn access(out: &mut String, op: &Op) {
    let accesses = contract::accesses(op).unwrap_or_default();
    list(out, &accesses, |out, access| {
        object(out, |o| {
            o.number("tensor", u64::from(access.tensor.0));
            o.text("mode", access.mode.name());
            match access.split {
                Split::Whole => o.text("split", "whole"),
                Split::Even { axis, unit } => {
                    o.text("split", "even");
                    o.number("axis", u64::from(axis));
                    o.number("unit", unit);
                }
            }
        });
    });
}

fn flow(out: &mut String, plan: &Plan) {
    let phases = &plan.program.phases;
    let names = |out: &mut String, ids: &[PhaseId]| {
        list(out, ids, |out, id| match phases.get(id.index()) {
            Some(phase) => quote(out, &phase.name),
            None => out.push_str("null"),
        });
    };
    object(out, |o| {
        o.with("entry", |out| names(out, &plan.program.flow.entry));
        o.with("next", |out| {
            object(out, |o| {
                for (phase, next) in phases.iter().zip(&plan.program.flow.next) {
                    o.with(&phase.name, |out| names(out, next));
                }
            });
        });
        let overlap = &plan.program.flow.overlap;
        if !overlap.is_empty() {
            o.with("overlap", |out| {
                list(out, overlap, |out, (one, other)| names(out, &[*one, *other]));
            });
        }
    });
}

fn concurrency(out: &mut String, report: &Concurrency) {
    let ops =
        |out: &mut String, ids: &[OpId]| list(out, ids, |out, id| number(out, u64::from(id.0)));
    object(out, |o| {
        o.with("concurrent_sets", |out| {
            list(out, &report.concurrent_sets, |out, set| ops(out, set))
        });
        o.number("cuts_unaligned", u64::from(report.cuts_unaligned));
        o.with("complementary", |out| {
            list(out, &report.complementary, |out, (first, second)| ops(out, &[*first, *second]));
        });
        o.with("serialised", |out| {
            list(out, &report.serialised, |out, (first, second, why)| {
                object(out, |o| {
                    o.with("ops", |out| ops(out, &[*first, *second]));
                    o.text("why", why);
                });
            });
        });
    });
}

fn predictions(out: &mut String, plan: &Plan) {
    list(out, &plan.predictions, |out, prediction| {
        object(out, |o| {
            o.with("phase", |out| {
                let phase = plan.program.phases.get(prediction.phase.index());
                optional_text(out, phase.map(|phase| phase.name.as_str()));
            });
            o.number("tokens", prediction.tokens);
            o.number("depth", prediction.depth);
            o.number("nanoseconds", prediction.nanoseconds);
        });
    });
}

fn orders(out: &mut String, plan: &Plan) {
    list(out, &plan.orders, |out, order| {
        object(out, |o| {
            o.with("phase", |out| {
                let phase = plan.program.phases.get(order.phase.index());
                optional_text(out, phase.map(|phase| phase.name.as_str()));
            });
            o.number("plan_bytes", order.plan_bytes);
            o.number("least_bytes", order.least_bytes);
            o.number("states", order.states);
            o.flag("complete", order.complete);
        });
    });
}

fn variants(out: &mut String, plan: &Plan) {
    list(out, &plan.variants, |out, variant| {
        object(out, |o| {
            o.text("name", &variant.name);
            o.number("transient_bytes", variant.transient_bytes);
            o.number("total_bytes", variant.total_bytes);
            o.number("prefill_cuts", u64::from(variant.cuts[0]));
            o.number("decode_cuts", u64::from(variant.cuts[1]));
            o.number("prefill_ns", variant.predicted_ns[0]);
            o.number("decode_ns", variant.predicted_ns[1]);
        });
    });
}

fn arena(out: &mut String, plan: &Plan) {
    let arena = &plan.arena;
    object(out, |o| {
        o.number("bytes", arena.bytes);
        o.number("alignment", arena.alignment);
        o.number("live_peak_bytes", arena.live_peak_bytes);
        o.with("witness", |out| tensors(out, &arena.witness));
        o.number("transient_bytes", arena.transient_bytes);
        o.number("transient_live_peak_bytes", arena.transient_live_peak_bytes);
        o.number("transient_offset", arena.transient_offset);
    });
}

fn summary(out: &mut String, plan: &Plan) {
    let summary = &plan.summary;
    object(out, |o| {
        o.number("logical_tensors", summary.logical_tensors);
        o.number("physical_buffers", summary.physical_buffers);
        o.with("reduction_percent", |out| {
            out.push_str(&reduction_percent(summary.logical_tensors, summary.physical_buffers));
        });
        o.number("sum_of_tensor_bytes", summary.sum_of_tensor_bytes);
    });
}

/// 100·(1 − buffers/tensors) to one decimal, in whole numbers so that no machine rounds otherwise.
pub(super) fn reduction_percent(tensors: u64, buffers: u64) -> String {
    let (tensors, buffers) = (i128::from(tensors), i128::from(buffers));
    let tenths = if tensors == 0 { 0 } else { (tensors - buffers) * 1000 / tensors };
    let sign = if tenths < 0 { "-" } else { "" };
    format!("{sign}{}.{}", tenths.abs() / 10, tenths.abs() % 10)
}

fn envelope(out: &mut String, plan: &Plan) {
    let envelope = &plan.envelope;
    let runtime = &envelope.runtime;
    object(out, |o| {
        o.number("weights", envelope.weights);
        o.number("kv", envelope.kv);
        o.number("persistent", envelope.persistent);
        o.number("intermediate", envelope.intermediate);
        o.with("runtime", |out| {
            object(out, |o| {
                o.number("heap", runtime.heap);
                o.number("stacks", runtime.stacks);
                o.number("image", runtime.image);
                o.number("io", runtime.io);
                o.with("total", |out| optional(out, runtime.total()));
            });
        });
        o.number("total", envelope.total);
        o.number("load_peak", envelope.load_peak);
        o.number("hardware", envelope.hardware);
        o.with("free", |out| {
            let free = i128::from(envelope.hardware) - i128::from(envelope.total);
            let _ = write!(out, "{free}");
        });
        o.flag("fits", envelope.fits());
        o.with("not_covered", |out| list(out, &envelope.not_covered, |out, what| quote(out, what)));
    });
}

fn write_size(out: &mut String, size: &Size) {
    let parts = |out: &mut String, name: &str, parts: &[Size]| {
        object(out, |o| o.with(name, |out| list(out, parts, write_size)));
    };
    match size {
        Size::Const(value) => number(out, *value),
        Size::Dim(dim) => object(out, |o| o.number("dim", u64::from(dim.0))),
        Size::Add(terms) => parts(out, "add", terms),
        Size::Mul(factors) => parts(out, "mul", factors),
        Size::CeilDiv(part, divisor) => object(out, |o| {
            o.with("ceil_div", |out| {
                out.push('[');
                write_size(out, part);
                out.push(',');
                number(out, *divisor);
                out.push(']');
            });
        }),
        Size::Min(sizes) => parts(out, "min", sizes),
        Size::Max(sizes) => parts(out, "max", sizes),
    }
}

fn tensors(out: &mut String, ids: &[TensorId]) {
    list(out, ids, |out, id| number(out, u64::from(id.0)));
}

fn pairs(out: &mut String, pairs: &[(u32, u32)]) {
    list(out, pairs, |out, (output, input)| {
        let _ = write!(out, "[{output},{input}]");
    });
}

pub(super) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The members of an object being printed.
pub(super) struct Object<'o> {
    out: &'o mut String,
    empty: bool,
}

pub(super) fn object(out: &mut String, members: impl FnOnce(&mut Object<'_>)) {
    out.push('{');
    members(&mut Object { out, empty: true });
    out.push('}');
}

impl Object<'_> {
    pub(super) fn with(&mut self, key: &str, value: impl FnOnce(&mut String)) {
        if !self.empty {
            self.out.push(',');
        }
        self.empty = false;
        quote(self.out, key);
        self.out.push(':');
        value(self.out);
    }

    pub(super) fn number(&mut self, key: &str, value: u64) {
        self.with(key, |out| number(out, value));
    }

    pub(super) fn text(&mut self, key: &str, value: &str) {
        self.with(key, |out| quote(out, value));
    }

    pub(super) fn flag(&mut self, key: &str, value: bool) {
        self.with(key, |out| out.push_str(if value { "true" } else { "false" }));
    }

    /// The shortest decimal that reads back as the same float.
    pub(super) fn float(&mut self, key: &str, value: f32) {
        self.with(key, |out| {
            let _ = write!(out, "{value:?}");
        });
    }

    /// An array of objects, one a line, each told its index.
    fn rows<T>(&mut self, key: &str, items: &[T], row: impl Fn(&mut Object<'_>, usize, &T)) {
        let mut index = 0;
        self.rows_of(key, items, |out, item| {
            object(out, |o| row(o, index, item));
            index += 1;
        });
    }

    /// An array with one item a line.
    fn rows_of<T>(&mut self, key: &str, items: &[T], mut row: impl FnMut(&mut String, &T)) {
        if !self.empty {
            self.out.push(',');
        }
        self.empty = true;
        self.out.push('\n');
        self.with(key, |out| {
            list(out, items, |out, item| {
                out.push('\n');
                row(out, item);
            });
        });
    }
}

pub(super) fn list<T>(out: &mut String, items: &[T], mut item: impl FnMut(&mut String, &T)) {
    out.push('[');
    for (i, value) in items.iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        item(out, value);
    }
    out.push(']');
}

fn number(out: &mut String, value: u64) {
    // Twenty digits hold any u64; the formatting machinery costs several times this loop.
    let mut digits = [0u8; 20];
    let mut start = digits.len();
    let mut rest = value;
    loop {
        start -= 1;
        digits[start] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.extend(digits[start..].iter().map(|digit| char::from(*digit)));
}

fn optional(out: &mut String, value: Option<u64>) {
    match value {
        Some(value) => number(out, value),
        None => out.push_str("null"),
    }
}

fn optional_text(out: &mut String, value: Option<&str>) {
    match value {
        Some(value) => quote(out, value),
        None => out.push_str("null"),
    }
}

pub(super) fn quote(out: &mut String, text: &str) {
    out.push('"');
    if text.bytes().all(|byte| byte >= 0x20 && byte != b'"' && byte != b'\\') {
        out.push_str(text);
    } else {
        for letter in text.chars() {
            match letter {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                control if control < ' ' => {
                    let _ = write!(out, "\\u{:04x}", u32::from(control));
                }
                letter => out.push(letter),
            }
        }
    }
    out.push('"');
}
