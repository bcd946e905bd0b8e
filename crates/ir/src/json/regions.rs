//! Concurrent regions as text: lanes of each stream, what is handed over, and which part of a
//! prompt waits for what. Absent from plans without a region.

use super::JsonError;
use super::parse::Node;
use super::read::phase_id;
use super::write::{Object, list, object, quote};
use crate::ids::OpId;
use crate::limits::{ITEMS_MAX, PHASES_MAX};
use crate::plan::{Plan, RegionReport, Segment, StreamReport};
use crate::program::Program;

/// Writes the regions of a plan, if it has any.
pub(super) fn write(o: &mut Object<'_>, plan: &Plan) {
    if plan.regions.is_empty() {
        return;
    }
    let name = |index: usize| plan.program.phases.get(index).map_or("", |phase| &phase.name);
    o.with("regions", |out| {
        list(out, &plan.regions, |out, region| {
            object(out, |o| {
                o.text("phase", name(region.phase.index()));
                o.with("streams", |out| {
                    list(out, &region.streams, |out, stream| {
                        object(out, |o| {
                            o.text("phase", name(stream.phase.index()));
                            o.number("first_lane", stream.first_lane.into());
                            o.number("lanes", stream.lanes.into());
                            o.number("ops_apart", stream.ops_apart.into());
                            o.number("alone_ns", stream.alone_ns);
                            o.number("bandwidth_bound_percent", stream.bandwidth_percent.into());
                        });
                    });
                });
                o.with("hand_overs", |out| {
                    list(out, &region.hand_overs, |out, (earlier, later)| {
                        object(out, |o| {
                            o.number("op", earlier.0.into());
                            o.number("before", later.0.into());
                        });
                    });
                });
                o.number("least_patches", region.least_patches);
                o.number("together_ns", region.together_ns);
                o.with("segments", |out| {
                    list(out, &region.segments, |out, segment| {
                        object(out, |o| {
                            o.text("name", &segment.name);
                            o.with("waits_for", |out| {
                                list(out, &segment.waits_for, |out, text| quote(out, text));
                            });
                        });
                    });
                });
            });
        });
    });
}

/// Reads them.
pub(super) fn read(
    node: &Node<'_, '_>,
    names: &[String],
    program: &Program,
) -> Result<Vec<RegionReport>, JsonError> {
    node.list(PHASES_MAX, |node| {
        let phase = phase_id(&node.get("phase")?, names)?;
        let small = |node: &Node<'_, '_>, key: &str| node.get(key)?.small();
        let ops = program.phases[phase.index()].ops.len();
        Ok(RegionReport {
            phase,
            streams: node.get("streams")?.list(PHASES_MAX, |node| {
                Ok(StreamReport {
                    phase: phase_id(&node.get("phase")?, names)?,
                    first_lane: small(node, "first_lane")?,
                    lanes: small(node, "lanes")?,
                    ops_apart: small(node, "ops_apart")?,
                    alone_ns: node.get("alone_ns")?.number()?,
                    bandwidth_percent: small(node, "bandwidth_bound_percent")?,
                })
            })?,
            hand_overs: node.get("hand_overs")?.list(ITEMS_MAX, |node| {
                let op = |key: &str| Ok(OpId(node.get(key)?.index(ops)?));
                Ok((op("op")?, op("before")?))
            })?,
            least_patches: node.get("least_patches")?.number()?,
            together_ns: node.get("together_ns")?.number()?,
            segments: node.get("segments")?.list(ITEMS_MAX, |node| {
                let texts =
                    node.get("waits_for")?.list(ITEMS_MAX, |node| Ok(node.text()?.to_string()))?;
                Ok(Segment { name: node.get("name")?.text()?.to_string(), waits_for: texts })
            })?,
        })
    })
}
