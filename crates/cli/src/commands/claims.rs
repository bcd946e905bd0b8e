//! What a plan claims of itself and the verifier does not ask: that the bounds which a user reads
//! are the bounds of the graph that was proved.
//!
//! The proof is about dims, tensors and tasks. A plan could be right in all of these and still
//! state 4,096 tokens of input where its caches hold 64. Here the stated bounds, the type of the
//! caches, lanes and instruction set are compared with the graph. Joint plans of several models
//! have dims of their own names and are compared with their models only.

use dctms_ir::limits::{KV_BLOCK, SEGMENT};
use dctms_ir::op::{AttentionShape, OpKind};
use dctms_ir::tensor::kv_row_bytes;
use dctms_ir::{Op, Plan};

/// Claims that are printed of one plan at most.
const FOUND_MAX: usize = 100;

/// Every claim that the graph does not bear out.
#[must_use]
pub fn untrue(plan: &Plan) -> Vec<String> {
    let mut found = Vec::new();
    machine(plan, &mut found);
    if plan.program.models.len() <= 1 {
        dims(plan, &mut found);
        for op in plan.program.phases.iter().flat_map(|phase| &phase.ops) {
            operation(plan, op, &mut found);
        }
    }
    found.truncate(FOUND_MAX);
    found
}

fn machine(plan: &Plan, found: &mut Vec<String>) {
    let machine = &plan.machine;
    if !["scalar", "avx2", "avx512", "amx"].contains(&machine.isa.as_str()) {
        found.push(format!("machine.isa is {:?}: scalar, avx2, avx512 or amx", machine.isa));
    }
    for (phase, schedule) in plan.program.phases.iter().zip(&plan.schedules) {
        let lanes = schedule.lanes.len();
        if lanes != machine.lanes as usize {
            let (name, stated) = (&phase.name, machine.lanes);
            found.push(format!("phase {name} has {lanes} lanes, machine.lanes is {stated}"));
        }
    }
}

/// Positions of a sequence, whole blocks.
fn positions(plan: &Plan) -> u64 {
    let bounds = &plan.bounds;
    let sum = bounds.max_input_tokens.saturating_add(bounds.max_output_tokens);
    sum.checked_next_multiple_of(KV_BLOCK).unwrap_or(u64::MAX)
}

fn dims(plan: &Plan, found: &mut Vec<String>) {
    let bounds = &plan.bounds;
    let segments = bounds.sequences.saturating_mul(positions(plan).div_ceil(SEGMENT));
    for (name, stated) in [
        ("tokens", bounds.prefill_chunk),
        ("sequences", bounds.sequences),
        ("rows", bounds.logit_rows.max(bounds.sequences)),
        ("segments", segments),
    ] {
        let dim = plan.program.dims.iter().find(|dim| dim.name == name);
        if let Some(dim) = dim.filter(|dim| dim.max != stated) {
            found.push(format!("dim {name} ends at {}, the bounds make it {stated}", dim.max));
        }
    }
}

fn operation(plan: &Plan, op: &Op, found: &mut Vec<String>) {
    let name = &op.name;
    match &op.kind {
        OpKind::KvAppend(shape) => {
            attention(plan, name, shape, found);
            // Operands: keys, values, positions, slots; then both caches.
            for cache in &op.outputs {
                cache_holds(plan, *cache, shape, found);
            }
        }
        OpKind::Attention(shape)
        | OpKind::AttentionPrefill(shape)
        | OpKind::AttentionDecodePartial(shape)
        | OpKind::AttentionDecodeMerge(shape)
        | OpKind::AttentionDecodeMergeQuantise { shape, .. } => {
            attention(plan, name, shape, found);
        }
        OpKind::LoadMatrix(_)
        | OpKind::LoadVector(_)
        | OpKind::LoadRopeFrequencies { .. }
        | OpKind::LoadTokenizer { .. }
        | OpKind::RopeTable { .. }
        | OpKind::EmbedRows { .. }
        | OpKind::RmsNorm { .. }
        | OpKind::RmsNormQuantise { .. }
        | OpKind::RmsNormAdd { .. }
        | OpKind::HeadNorm { .. }
        | OpKind::Quantise
        | OpKind::MatMul { .. }
        | OpKind::BiasAdd
        | OpKind::Add
        | OpKind::Rope { .. }
        | OpKind::GatedMul(_)
        | OpKind::GatedMulQuantise(_)
        | OpKind::GatedMatMul { .. }
        | OpKind::SelectRows
        | OpKind::Sample { .. }
        | OpKind::Vision(_) => {}
    }
}

/// The shape's caches are of the stated type and hold the stated positions.
fn attention(plan: &Plan, name: &str, shape: &AttentionShape, found: &mut Vec<String>) {
    let bounds = &plan.bounds;
    if shape.kv != bounds.kv_type {
        let (has, stated) = (shape.kv.name(), bounds.kv_type.name());
        found.push(format!("{name} has caches of {has}, bounds.kv_type is {stated}"));
    }
    let all = positions(plan);
    let needed = match u64::from(shape.window) {
        0 => all,
        window => {
            let ring = window.saturating_add(bounds.prefill_chunk.saturating_sub(1));
            ring.checked_next_multiple_of(KV_BLOCK).unwrap_or(u64::MAX).min(all)
        }
    };
    if u64::from(shape.capacity) < needed {
        let capacity = shape.capacity;
        found.push(format!("{name} holds {capacity} positions, the bounds need {needed}"));
    }
}

/// A cache has the bytes of its shape, for every sequence.
fn cache_holds(
    plan: &Plan,
    cache: dctms_ir::TensorId,
    shape: &AttentionShape,
    found: &mut Vec<String>,
) {
    let Some(tensor) = plan.program.tensors.get(cache.index()) else { return };
    let row = kv_row_bytes(shape.kv, u64::from(shape.head_dim));
    let rows = u64::from(shape.kv_heads)
        .checked_mul(plan.bounds.sequences)
        .and_then(|rows| rows.checked_mul(u64::from(shape.capacity)));
    let needed = row.zip(rows).and_then(|(row, rows)| row.checked_mul(rows));
    let bytes = tensor.size.value(&plan.program.dims_max()).unwrap_or(0);
    if needed.is_none_or(|needed| bytes < needed) {
        let needed = needed.map_or("more than can be said".to_string(), |n| n.to_string());
        let sequences = plan.bounds.sequences;
        found.push(format!(
            "{} has {bytes} bytes, {sequences} sequences of its shape need {needed}",
            tensor.name
        ));
    }
}
