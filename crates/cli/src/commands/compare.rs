//! Two programs, field by field: the one in a plan and the one that a model's file gives.
//!
//! Used in-place pairs are the planner's choice and are the verifier's to judge; a file's name and
//! whether it is whole may change. Everything else must be equal.

use std::fmt::Debug;

use dctms_ir::program::{ModelInfo, Phase};
use dctms_ir::{Op, Program, Tensor};

use crate::show::clipped;

/// Differences that are looked for before giving up.
const FOUND_MAX: usize = 200;
/// Characters of a value that are printed.
const VALUE_CHARACTERS_MAX: usize = 120;

/// Every difference, at most some hundreds, each naming where, the plan's value and the model's.
#[must_use]
pub fn differences(plan: &Program, model: &Program) -> Vec<String> {
    let mut found = Found(Vec::new());
    lists(&mut found, "models", &plan.models, &model.models, model_info);
    lists(&mut found, "dims", &plan.dims, &model.dims, |found, at, a, b| {
        found.field(at, "", a, b);
    });
    lists(&mut found, "tensors", &plan.tensors, &model.tensors, tensor);
    lists(&mut found, "phases", &plan.phases, &model.phases, phase);
    found.field("flow", "", &plan.flow, &model.flow);
    found.0
}

struct Found(Vec<String>);

impl Found {
    fn field<T: PartialEq + Debug>(&mut self, at: &str, name: &str, plan: &T, model: &T) {
        if plan != model && self.0.len() < FOUND_MAX {
            let value = |value: &T| clipped(&format!("{value:?}"), VALUE_CHARACTERS_MAX);
            let name = if name.is_empty() { String::new() } else { format!(".{name}") };
            let (plan, model) = (value(plan), value(model));
            self.0.push(format!("{at}{name}: the plan has {plan}, the model gives {model}"));
        }
    }
}

fn lists<T>(
    found: &mut Found,
    name: &str,
    plan: &[T],
    model: &[T],
    each: impl Fn(&mut Found, &str, &T, &T),
) {
    found.field(name, "len", &plan.len(), &model.len());
    for (index, (a, b)) in plan.iter().zip(model).enumerate() {
        each(found, &format!("{name}[{index}]"), a, b);
    }
}

fn model_info(found: &mut Found, at: &str, plan: &ModelInfo, model: &ModelInfo) {
    let ModelInfo { file: _, header_sha256, sha256, file_complete: _, architecture, parameters } =
        plan;
    found.field(at, "header_sha256", header_sha256, &model.header_sha256);
    found.field(at, "sha256", sha256, &model.sha256);
    found.field(at, "architecture", architecture, &model.architecture);
    found.field(at, "parameters", parameters, &model.parameters);
}

fn tensor(found: &mut Found, at: &str, plan: &Tensor, model: &Tensor) {
    let at = &format!("{at} {}", plan.name);
    let Tensor { name, model: owner, dtype, shape, size, residence, term, phase, state } = plan;
    found.field(at, "name", name, &model.name);
    found.field(at, "model", owner, &model.model);
    found.field(at, "dtype", dtype, &model.dtype);
    found.field(at, "shape", shape, &model.shape);
    found.field(at, "size", size, &model.size);
    found.field(at, "residence", residence, &model.residence);
    found.field(at, "term", term, &model.term);
    found.field(at, "phase", phase, &model.phase);
    found.field(at, "state", state, &model.state);
}

fn phase(found: &mut Found, at: &str, plan: &Phase, model: &Phase) {
    found.field(at, "name", &plan.name, &model.name);
    lists(found, &format!("{at}.ops"), &plan.ops, &model.ops, op);
}

fn op(found: &mut Found, at: &str, plan: &Op, model: &Op) {
    let at = &format!("{at} {}", plan.name);
    let Op { name, kind, inputs, outputs, workspace, grain, in_place: _ } = plan;
    found.field(at, "name", name, &model.name);
    found.field(at, "kind", kind, &model.kind);
    found.field(at, "inputs", inputs, &model.inputs);
    found.field(at, "outputs", outputs, &model.outputs);
    found.field(at, "workspace", workspace, &model.workspace);
    found.field(at, "grain", grain, &model.grain);
}
