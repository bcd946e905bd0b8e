//! The paper's view of a plan (§3.2, §3.3, Table 1): step intervals over program order and their
//! colouring with as few buffers as possible. Reported beside the packing; nothing is executed by
//! it.

use dctms_ir::contract::accesses;
use dctms_ir::plan::{ColourBuffer, Interval, Placement, Summary};
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
        if !phase.is_loading() && members.len() as u64 > summary.logical_tensors {
            summary = Summary {
                logical_tensors: members.len() as u64,
                physical_buffers: (buffers.len() - base) as u64,
                sum_of_tensor_bytes: sum,
            };
        }
    }
    Ok((buffers, summary))
}
