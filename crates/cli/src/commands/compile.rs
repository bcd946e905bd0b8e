//! `dctms compile`: a model's packed weights in a file that loads in a fraction of the time.
//!
//! The model is loaded as for a run, within the envelope of the least bounds, and its constants
//! are written from the arena. The plan is not in the file: a plan is of bounds and a machine,
//! takes less time to make than to read, and is the same for the compiled model as for the one
//! it was made from.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use dctms_engine::artefact::write::Outline;
use dctms_engine::artefact::{Verify, Weights};
use dctms_engine::planning::resolve_bounds;
use dctms_engine::{Class, EngineError, Model};
use dctms_system::interrupt::catch_stop_requests;
use lexopt::prelude::*;

use super::files::{named, require_other, require_replaceable};
use super::stream::note;
use crate::args::{PlanArgs, UsageError, unknown};
use crate::commands::run::mebibytes;
use crate::failure::Failure;
use crate::machine::{lanes_of, settings};
use crate::process::{self, CompileStage, HeapLimit};

/// Runs the command.
///
/// # Errors
/// Usage, a defect of the model, no room, or a file that cannot be written.
pub fn run(parser: &mut lexopt::Parser) -> Result<(), Failure> {
    let CompileArgs { model, output, plan } = CompileArgs::parse(parser)?;
    require_replaceable(&output)?;
    require_other(&output, &[&model])?;
    catch_stop_requests()?;
    let stage = CompileStage::open()?;
    let (started, outline) = {
        let path = model;
        let model = Model::open(&path)?;
        if model.is_compiled() {
            let what = "is a compiled model already: compile the files that it was made from";
            let message = format!("{}: {what}", named(&path));
            return Err(EngineError::new(Class::Usage, message).into());
        }
        stage.limit_for(&model, lanes_of(&plan)?, 0)?;
        let mut settings = settings(&plan)?;
        settings.runtime.heap_fixed_bytes += Outline::heap_bytes(&model.checkpoint);
        let bounds = resolve_bounds(&model, &settings, None)?;
        let planned = process::certify(&model, &settings, &bounds)?;
        let started = process::launch(&stage, &model, &settings, &planned, HeapLimit::Set)?;
        let outline = stage.lasting(|| Outline::new(&model.checkpoint, &planned.plan))?;
        (started, outline)
    };
    stage.close()?;
    let prepared = process::load(started, None)?;
    let bytes = outline.write(&prepared.runner, &output)?;
    note(format_args!("dctms: {} written, {:.1} MiB\n", output.display(), mebibytes(bytes)));
    Ok(())
}

/// An opened model with its weights where the options want them. Weights can be mapped only from a
/// compiled model: of another file one is made, once, and used again.
///
/// # Errors
/// A compiled model that cannot be made or read.
pub fn weighted(model: Model, path: &Path, args: &PlanArgs) -> Result<Model, EngineError> {
    let model = match args.weights {
        Weights::Mapped if !model.is_compiled() => {
            let kept = kept_path(&model, path)?;
            let found = kept.is_file().then(|| kept_model(&model, &kept));
            if let Some(Err(error)) = &found {
                note(format_args!("dctms: made again: {error}\n"));
            }
            let mut compiled = match found {
                Some(Ok(compiled)) => {
                    note(format_args!("dctms: weights are mapped from {}\n", kept.display()));
                    compiled
                }
                Some(Err(_)) | None => {
                    make(path, &kept)?;
                    kept_model(&model, &kept)?
                }
            };
            compiled.eyes = model.eyes;
            compiled
        }
        Weights::Mapped | Weights::Resident => model,
    };
    if args.weights == Weights::Mapped && args.verify == Verify::All {
        let what = "--verify reads every byte of the weights: not with --weights mapped";
        return Err(EngineError::new(Class::Usage, what));
    }
    Ok(model.verified(args.verify).weighted(args.weights))
}

/// The compiled form of `model` that is kept at a path.
///
/// # Errors
/// A damaged file, or one that was made from another model.
fn kept_model(model: &Model, kept: &Path) -> Result<Model, EngineError> {
    let compiled = Model::open(kept)?;
    match compiled.checkpoint.header_sha256() == model.checkpoint.header_sha256() {
        true => Ok(compiled),
        false => {
            let what = format!("{}: was made from another model", kept.display());
            Err(EngineError::new(Class::File, what))
        }
    }
}

/// Where the compiled form of a file is kept: named by its header, length and time of change.
fn kept_path(model: &Model, path: &Path) -> Result<PathBuf, EngineError> {
    let system = |error: std::io::Error| {
        EngineError::new(Class::System, format!("{}: {error}", path.display()))
    };
    let facts = std::fs::metadata(path).map_err(system)?;
    let changed = facts.modified().map_err(system)?;
    let changed = changed.duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_nanos();
    let digest = model.checkpoint.header_sha256_hex();
    let name = format!("{}-{}-{changed}.dctms", &digest[..16], facts.len());
    // As the base directory specification has it, what is not absolute is as good as not set. No
    // folder that others may write to will do: its files would be believed.
    let folder = |name: &str| {
        std::env::var_os(name).map(PathBuf::from).filter(|folder| folder.is_absolute())
    };
    let home = || folder("HOME").map(|home| home.join(".cache"));
    let cache = folder("XDG_CACHE_HOME").or_else(home).ok_or_else(|| {
        let what = "--weights mapped keeps a compiled model in XDG_CACHE_HOME or HOME/.cache, and \
                    neither is set: compile the model, and give the compiled one";
        EngineError::new(Class::Usage, what)
    })?;
    Ok(cache.join("dctms/compiled").join(name))
}

/// Compiles in a process of its own, whose memory has its own envelope.
fn make(path: &Path, kept: &Path) -> Result<(), EngineError> {
    let failed = |what: String| {
        EngineError::new(Class::System, format!("compiling {}: {what}", path.display()))
    };
    note(format_args!("dctms: compiling {}, once, to map its weights\n", path.display()));
    if let Some(folder) = kept.parent() {
        std::fs::create_dir_all(folder).map_err(|error| failed(error.to_string()))?;
    }
    let program = std::env::current_exe().map_err(|error| failed(error.to_string()))?;
    let mut child = std::process::Command::new(program);
    child.arg("compile").arg("-m").arg(path).arg("-o").arg(kept).stdin(Stdio::null());
    // Nothing of this process's output may be the child's.
    let status = child.stdout(Stdio::null()).status().map_err(|error| failed(error.to_string()))?;
    match status.success() {
        true => Ok(()),
        false => Err(failed(status.to_string())),
    }
}

/// The options.
struct CompileArgs {
    model: PathBuf,
    output: PathBuf,
    plan: PlanArgs,
}

impl CompileArgs {
    fn parse(parser: &mut lexopt::Parser) -> Result<CompileArgs, UsageError> {
        let (mut model, mut output) = (None, None);
        // Weights are packed alike for all bounds: the least take the least memory.
        let mut plan = PlanArgs { max_input: Some(1), max_output: Some(1), ..PlanArgs::default() };
        while let Some(argument) = parser.next()? {
            match argument {
                Short('o') | Long("output") => output = Some(PathBuf::from(parser.value()?)),
                Short('m') => model = Some(PathBuf::from(parser.value()?)),
                Long(name) => {
                    let name = name.to_string();
                    if !plan.take(&name, parser)? {
                        return Err(unknown(&Long(&name)));
                    }
                }
                Value(value) if model.is_none() => model = Some(PathBuf::from(value)),
                other => return Err(unknown(&other)),
            }
        }
        plan.require_blind("compile")?;
        let usage = || UsageError::Wrong("compile MODEL.gguf -o MODEL.dctms".to_string());
        let model = model.ok_or_else(usage)?;
        Ok(CompileArgs { model, output: output.ok_or_else(usage)?, plan })
    }
}
