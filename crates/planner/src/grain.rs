//! How fine each operation is cut. Two neighbours that are cut alike need no synchronisation
//! between them; a cut that does not divide evenly over the lanes leaves some of them idle. Heads
//! decide: where the heads divide over the lanes, projections are cut by whole heads too.

use dctms_ir::Program;
use dctms_ir::contract::{accesses, grain_piece};
use dctms_ir::limits::{BLOCK, TILE};
use dctms_ir::op::{AttentionShape, OpKind};
use dctms_ir::vision::VisionOp;

use crate::groups::Group;

/// Sets the grain of every operation of every phase, for the lanes that each phase has.
pub fn assign(program: &mut Program, groups: &[Group]) {
    for (phase, group) in groups.iter().enumerate() {
        let lanes = group.count;
        // Last to first: a producer follows its consumer.
        for index in (0..program.phases[phase].ops.len()).rev() {
            let grain = grain_of(program, phase, index, lanes);
            program.phases[phase].ops[index].grain = grain;
            debug_assert!(accesses(&program.phases[phase].ops[index]).is_ok());
        }
    }
}

fn grain_of(program: &Program, phase: usize, index: usize, lanes: u32) -> u64 {
    let ops = &program.phases[phase].ops;
    let op = &ops[index];
    let piece = grain_piece(&op.kind);
    let follow = || {
        let reader = ops[index + 1..].iter().find(|next| next.inputs.contains(&op.outputs[0]))?;
        let split_alike = match reader.kind {
            OpKind::Rope { .. }
            | OpKind::HeadNorm { .. }
            | OpKind::BiasAdd
            | OpKind::KvAppend(_)
            | OpKind::AttentionPrefill(_)
            | OpKind::GatedMul(_)
            | OpKind::GatedMulQuantise(_)
            | OpKind::Quantise => true,
            OpKind::Vision(ref vision) => vision.follows_its_input(),
            OpKind::LoadMatrix(_)
            | OpKind::LoadVector(_)
            | OpKind::LoadRopeFrequencies { .. }
            | OpKind::LoadTokenizer { .. }
            | OpKind::RopeTable { .. }
            | OpKind::EmbedRows { .. }
            | OpKind::RmsNorm { .. }
            | OpKind::RmsNormQuantise { .. }
            | OpKind::RmsNormAdd { .. }
            | OpKind::MatMul { .. }
            | OpKind::GatedMatMul { .. }
            | OpKind::Add
            | OpKind::Attention(_)
            | OpKind::AttentionDecodePartial(_)
            | OpKind::AttentionDecodeMerge(_)
            | OpKind::AttentionDecodeMergeQuantise { .. }
            | OpKind::SelectRows
            | OpKind::Sample { .. } => false,
        };
        split_alike.then_some(reader.grain)
    };
    match &op.kind {
        OpKind::AttentionPrefill(shape) => attention_grain(shape, lanes),
        OpKind::Vision(vision) => match vision.updates() {
            true => follow().filter(|grain| grain.is_multiple_of(piece)).unwrap_or(piece),
            false => piece,
        },
        OpKind::AttentionDecodeMerge(_)
        | OpKind::AttentionDecodeMergeQuantise { .. }
        | OpKind::KvAppend(_) => piece,
        OpKind::Rope { .. } | OpKind::HeadNorm { .. } => {
            follow().filter(|grain| grain.is_multiple_of(piece)).unwrap_or(piece)
        }
        OpKind::BiasAdd => follow().filter(|grain| grain.is_multiple_of(piece)).unwrap_or(piece),
        OpKind::Quantise => producer_grain(program, phase, index, lanes),
        OpKind::MatMul { rows, .. } => match follow() {
            // By whole heads only where that leaves no lane idle.
            Some(grain) if grain.is_multiple_of(TILE) && rows.is_multiple_of(grain) => {
                match grain <= BLOCK || (rows / grain).is_multiple_of(u64::from(lanes)) {
                    true => grain,
                    false => TILE,
                }
            }
            _ => TILE,
        },
        OpKind::LoadMatrix(_)
        | OpKind::LoadVector(_)
        | OpKind::LoadRopeFrequencies { .. }
        | OpKind::LoadTokenizer { .. }
        | OpKind::RopeTable { .. }
        | OpKind::EmbedRows { .. }
        | OpKind::RmsNorm { .. }
        | OpKind::RmsNormQuantise { .. }
        | OpKind::RmsNormAdd { .. }
        | OpKind::Add
        | OpKind::Attention(_)
        | OpKind::AttentionDecodePartial(_)
        | OpKind::GatedMul(_)
        | OpKind::GatedMulQuantise(_)
        | OpKind::GatedMatMul { .. }
        | OpKind::SelectRows
        | OpKind::Sample { .. } => piece,
    }
}

/// Whole groups when the key/value heads divide over the lanes (a shard then reads only its own
/// caches), else single query heads.
fn attention_grain(shape: &AttentionShape, lanes: u32) -> u64 {
    let head_dim = u64::from(shape.head_dim);
    match shape.kv_heads.is_multiple_of(lanes) {
        true => head_dim * u64::from(shape.heads / shape.kv_heads),
        false => head_dim,
    }
}

/// Quantising follows the attention that it reads, when that is cut in whole blocks.
fn producer_grain(program: &Program, phase: usize, index: usize, lanes: u32) -> u64 {
    let ops = &program.phases[phase].ops;
    let input = ops[index].inputs[0];
    let producer = ops[..index].iter().rev().find(|op| op.outputs.contains(&input));
    let grain = match producer.map(|op| &op.kind) {
        Some(OpKind::AttentionPrefill(shape)) => attention_grain(shape, lanes),
        Some(OpKind::AttentionDecodeMerge(shape)) => u64::from(shape.head_dim),
        Some(
            kind @ OpKind::Vision(VisionOp::FullAttention(_) | VisionOp::WindowAttention { .. }),
        ) => grain_piece(kind),
        _ => BLOCK,
    };
    match grain.is_multiple_of(BLOCK) {
        true => grain,
        false => BLOCK,
    }
}
