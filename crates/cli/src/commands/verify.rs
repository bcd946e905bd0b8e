//! `dctms verify`: checks a plan that comes from disk, by the verifier alone, and with `--model`
//! that it is a plan of that model (given again for each model of a joint plan, in order).
//!
//! Believes nothing of the file. Without a model a plan can only be *internally consistent*: it
//! computes what its own graph says; with one, the graph is built again from the file's header,
//! with the plan's bounds and lanes, and compared field by field.

use std::path::{Path, PathBuf};

use dctms_engine::planning::{PhaseSettings, Together, legal_program, plan_unverified, steps_of};
use dctms_engine::{Class, EngineError, Model};
use dctms_ir::op::OpKind;
use dctms_ir::{Plan, Program};
use dctms_planner::{Activations, Choices, Shaping};
use dctms_system::heap::Region;
use lexopt::prelude::*;

use super::compare::differences;
use super::files::{named, note, open_reading_heap, read_plan};
use super::run::open_model;
use super::{claims, hash, say};
use crate::HEAP;
use crate::args::{PlanArgs, UsageError, unknown};
use crate::failure::Failure;
use crate::machine::{hexadecimal, settings};
use crate::show::{grouped, mebibytes, printable};

/// Violations or differences that are printed; the rest are counted.
const LINES_MAX: usize = 50;

/// Runs the command.
///
/// # Errors
/// Usage; a file that is no plan, or a plan that breaks a rule or is of another model (exit
/// code 2).
pub fn run(parser: &mut lexopt::Parser) -> Result<(), Failure> {
    let (path, models, vision) = parse(parser)?;
    open_reading_heap()?;
    let _scope = HEAP.scope(Region::Compile);
    let plan = read_plan(&path)?;
    let certificate = match dctms_verifier::verify(&plan.program, &plan) {
        Ok(certificate) => certificate,
        Err(violations) => {
            let lines: Vec<String> = violations.iter().map(ToString::to_string).collect();
            return Err(refuse(&format!("{} is not a right plan", named(&path)), &lines));
        }
    };
    let untrue = claims::untrue(&plan);
    if !untrue.is_empty() {
        let what = format!("{} states what its graph does not bear out", named(&path));
        return Err(refuse(&what, &untrue));
    }
    let scope = match models.as_slice() {
        [] => "internally consistent only: give --model FILE to compare it with a model".into(),
        paths => {
            let names: Vec<String> = paths.iter().map(|path| named(path)).collect();
            let names = names.join(" and ");
            let found = against_models(&plan, paths, vision.as_deref())?;
            if !found.is_empty() {
                let what = format!("{} is not a plan of {names}", named(&path));
                return Err(refuse(&what, &found));
            }
            format!("the graph is the one of {names}")
        }
    };
    let total = plan.envelope.total;
    say(&format!(
        "{}: verified\n  {scope}\n  M_max {} bytes ({} MiB)\n  digest {}\n",
        named(&path),
        grouped(total),
        mebibytes(total),
        hexadecimal(certificate.digest()),
    ))
}

/// The plan, the models, and the first one's vision file.
type Words = (PathBuf, Vec<PathBuf>, Option<PathBuf>);

fn parse(parser: &mut lexopt::Parser) -> Result<Words, UsageError> {
    let (mut path, mut models, mut vision) = (None, Vec::new(), None);
    while let Some(argument) = parser.next()? {
        match argument {
            Value(value) if path.is_none() => path = Some(PathBuf::from(value)),
            Long("mmproj") => vision = Some(PathBuf::from(parser.value()?)),
            Long("model") => models.push(PathBuf::from(parser.value()?)),
            other @ (Value(_) | Long(_) | Short(_)) => return Err(unknown(&other)),
        }
    }
    let path =
        path.ok_or_else(|| UsageError::Wrong("verify PLAN.json [--model FILE]…".to_string()))?;
    if vision.is_some() && models.is_empty() {
        return Err(UsageError::Wrong("--mmproj goes with --model".to_string()));
    }
    Ok((path, models, vision))
}

fn refuse(what: &str, lines: &[String]) -> Failure {
    let mut text = format!("dctms: {what}\n");
    for line in lines.iter().take(LINES_MAX) {
        text.push_str(&format!("  {}\n", printable(line)));
    }
    if lines.len() > LINES_MAX {
        text.push_str(&format!("  … and {} more\n", lines.len() - LINES_MAX));
    }
    note(&text);
    Failure::Reported(Class::File.exit_code())
}

/// What of the plan is not as the models' files have it.
fn against_models(
    plan: &Plan,
    paths: &[PathBuf],
    vision: Option<&Path>,
) -> Result<Vec<String>, EngineError> {
    let steps = steps_of(plan);
    let open = |(index, path): (usize, &PathBuf)| {
        // A vision file is for the first, as when it was planned.
        open_model(path, vision.filter(|_| index == 0), &[])
    };
    let models = paths.iter().enumerate().map(open).collect::<Result<_, _>>()?;
    let resident = Together { models, steps };
    // Bounds or lanes that make no program are the plan's defect, not the command's.
    let mut built = match rebuilt(plan, &resident) {
        Ok(built) => built,
        Err(error) => return Ok(vec![format!("no program has the plan's bounds: {error}")]),
    };
    let stated = plan.program.models.iter().map(|info| info.sha256.is_some());
    let files = resident.models.iter().flat_map(Model::checkpoints);
    for ((info, file), stated) in built.models.iter_mut().zip(files).zip(stated) {
        if stated {
            info.sha256 = Some(hash::of_files(file)?);
        }
    }
    let mut found = differences(&plan.program, &built);
    found.extend(runtime_differences(plan, &resident)?);
    Ok(found)
}

/// Terms of the process that are below what this program takes: no graph says anything of them,
/// so they are computed again for the plan's lanes.
fn runtime_differences(plan: &Plan, resident: &Together) -> Result<Vec<String>, EngineError> {
    let phases = PhaseSettings::of(plan);
    let args = PlanArgs {
        lanes: Some(plan.machine.lanes),
        isa: Some(plan.machine.isa.clone()),
        memory_limit: Some(plan.machine.memory_bytes),
        float_activations: activations(plan) == Activations::Float,
        preference: plan.preference,
        mode: Some(phases.mode),
        // No graph says how large pictures may be: at least so much is needed for any.
        max_images: Some(plan.bounds.max_images.max(1)),
        max_image_size: Some((1, 1)),
        family: Some(u64::from(phases.smaller_tiles.max(phases.smaller_chunks)) + 1),
        ..PlanArgs::default()
    };
    let own = plan_unverified(resident, &settings(&args)?, &plan.bounds)?.envelope;
    let (stated, needed) = (&plan.envelope.runtime, &own.runtime);
    let terms = [
        ("heap", stated.heap, needed.heap),
        ("stacks", stated.stacks, needed.stacks),
        ("image", stated.image, needed.image),
        ("io", stated.io, needed.io),
    ];
    let below = terms.iter().filter(|(_, stated, needed)| stated < needed).map(|term| {
        let (name, stated, needed) = term;
        format!("envelope.runtime.{name} is {stated} bytes, this program takes {needed}")
    });
    let mut found: Vec<String> = below.collect();
    if plan.envelope.not_covered != own.not_covered {
        found.push("envelope.not_covered is not what this program leaves out".to_string());
    }
    Ok(found)
}

/// The legalised program of the models with a plan's bounds and lanes.
fn rebuilt(plan: &Plan, resident: &Together) -> Result<Program, EngineError> {
    let shape = (&plan.bounds, PhaseSettings::of(plan));
    let choices = Choices { preference: plan.preference, without: Vec::new() };
    let (lanes, activations) = (plan.machine.lanes, activations(plan));
    legal_program(resident, shape, &Shaping { lanes, activations, choices })
}

/// Which path of the products a plan takes: seen from its operations.
fn activations(plan: &Plan) -> Activations {
    let quantises = |kind: &OpKind| {
        matches!(
            kind,
            OpKind::Quantise
                | OpKind::RmsNormQuantise { .. }
                | OpKind::AttentionDecodeMergeQuantise { .. }
                | OpKind::GatedMulQuantise(_)
                | OpKind::GatedMatMul { .. }
        )
    };
    let mut ops = plan.program.phases.iter().flat_map(|phase| &phase.ops);
    match ops.any(|op| quantises(&op.kind)) {
        true => Activations::Quantised,
        false => Activations::Float,
    }
}
