//! The paper's view of a plan (§3.2, §3.3, Table 1): step intervals over program order and their
//! colouring with as few buffers as possible. Reported beside the packing; nothing is executed by
//! it.

use dctms_ir::contract::accesses;
use dctms_ir::plan::{ColourBuffer, Interval, Placement, Summary};
use dctms_ir::region::Streams;
use dctms_ir::{Program, Residence};

use crate::error::PlanError;

/// Fills in intervals and buffers, and counts.
///
/// # Errors
/// An operation that breaks its contract.
pub fn colour(
    program: &Program,
    placements: &mut [Placement],
) -> Result<(Vec<ColourBuffer>, Summary), PlanError> {
    let mut buffers: Vec<ColourBuffer> = Vec::new();
    let mut summary = Summary::default();
    for phase in &program.phases {
        let mut members: Vec<usize> = Vec::new();
        for (index, op) in phase.ops.iter().enumerate() {
            for access in accesses(op)? {
                let id = access.tensor.index();
                if program.tensors[id].residence != Residence::Transient {
                    continue;
                }
                let step = index as u32;
                match &mut placements[id].interval {
                    Some(interval) => interval.last = step,
                    none => {
                        *none = Some(Interval { first: step, last: step });
                        members.push(id);
                    }
                }
            }
        }
        let intervals: Vec<(u64, u64)> = members
            .iter()
            .map(|id| placements[*id].interval.expect("set above"))
            .map(|interval| (interval.first.into(), interval.last.into()))
            .collect();
        let colours = dctms_pack::colour_intervals(&intervals);
        let base = buffers.len();
        let mut sum = 0u64;
        for (id, colour) in members.iter().zip(&colours) {
            let buffer = base + colour;
            if buffers.len() <= buffer {
                buffers.resize(buffer + 1, ColourBuffer { bytes: 0 });
            }
            buffers[buffer].bytes = buffers[buffer].bytes.max(placements[*id].bytes);
            placements[*id].buffer = Some(buffer as u32);
            sum = sum.saturating_add(placements[*id].bytes);
        }
        // Of one pass: a region is two.
        let one_pass = !phase.is_loading() && Streams::of(phase).is_none();
        if one_pass && members.len() as u64 > summary.logical_tensors {
            summary = Summary {
                logical_tensors: members.len() as u64,
                physical_buffers: (buffers.len() - base) as u64,
                sum_of_tensor_bytes: sum,
            };
        }
    }
    Ok((buffers, summary))
}

/// A count of the paper's Table 1 for its own configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Logical tensors.
    pub logical: u64,
    /// Buffers of the optimal colouring.
    pub physical: u64,
}

/// What becomes of the keys and values of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeysAndValues {
    /// Copied into caches that are counted elsewhere, then forgotten.
    Passing,
    /// Kept to the end of the pass, as caches of their own.
    Kept,
}

/// The sixteen tensors of a layer, each with the steps (of the sixteen) in which it is written and
/// last read; 16 is the first step of the next layer.
const LAYER: [(&str, u64, u64); 16] = [
    ("input norm", 0, 3),
    ("queries", 1, 4),
    ("keys", 2, 5),
    ("values", 3, 7),
    ("rotated queries", 4, 6),
    ("rotated keys", 5, 6),
    ("scores", 6, 7),
    ("mixed values", 7, 8),
    ("attention output", 8, 9),
    ("first sum", 9, 15),
    ("second norm", 10, 12),
    ("gate", 11, 13),
    ("up", 12, 13),
    ("gated product", 13, 14),
    ("down", 14, 15),
    ("second sum", 15, 16 + 9),
];

/// The paper's configuration, `layers` layers of sixteen tensors, through the colouring that plans
/// are reported with.
#[must_use]
pub fn configuration(layers: u64, keys_and_values: KeysAndValues) -> Counts {
    let steps = LAYER.len() as u64;
    let end = layers * steps;
    let mut intervals = Vec::new();
    for layer in 0..layers {
        for (name, first, last) in LAYER {
            let (first, mut last) = (layer * steps + first, (layer * steps + last).min(end));
            let cached = name == "rotated keys" || name == "values";
            if cached && keys_and_values == KeysAndValues::Kept {
                last = end;
            }
            intervals.push((first, last));
        }
    }
    let colours = dctms_pack::colour_intervals(&intervals);
    let physical = colours.iter().max().map_or(0, |last| *last as u64 + 1);
    Counts { logical: intervals.len() as u64, physical }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_configuration() {
        // Table 1: 448 → 122. With the caches counted among the buffers, two for each layer, the
        // optimal colouring needs half of that; without them a handful.
        let passing = configuration(28, KeysAndValues::Passing);
        let kept = configuration(28, KeysAndValues::Kept);
        assert_eq!((passing.logical, passing.physical), (448, 5));
        assert_eq!((kept.logical, kept.physical), (448, 60));
        // Depth costs nothing but caches.
        for layers in 2..60 {
            assert_eq!(configuration(layers, KeysAndValues::Passing).physical, 5);
        }
    }
}
