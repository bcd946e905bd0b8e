//! The longest gap between tokens as text. Absent from plans without eyes.

use super::JsonError;
use super::parse::Node;
use super::write::{Object, object};
use crate::plan::{Arrival, GapReport, Plan};

/// Writes it, if the plan has one.
pub(super) fn write(o: &mut Object<'_>, plan: &Plan) {
    let Some(gap) = &plan.gap else { return };
    o.with("gap", |out| {
        object(out, |o| {
            o.text("arrival", gap.arrival.name());
            o.number("expected_ns", gap.expected_ns);
            o.number("bound_ns", gap.bound_ns);
            o.number("pause_ns", gap.pause_ns);
            o.number("picture_tiles", gap.picture_tiles);
            o.number("picture_tokens", gap.picture_tokens);
            o.number("picture_ns", gap.picture_ns);
        });
    });
}

/// Reads it.
pub(super) fn read(node: &Node<'_, '_>) -> Result<GapReport, JsonError> {
    let number = |key: &str| node.get(key)?.number();
    Ok(GapReport {
        arrival: super::kinds::pick(&node.get("arrival")?, &Arrival::ALL, Arrival::name)?,
        expected_ns: number("expected_ns")?,
        bound_ns: number("bound_ns")?,
        pause_ns: number("pause_ns")?,
        picture_tiles: number("picture_tiles")?,
        picture_tokens: number("picture_tokens")?,
        picture_ns: number("picture_ns")?,
    })
}
