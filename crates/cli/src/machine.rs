//! The machine that a plan is for: this one, or one described by a profile or by options.

use std::path::Path;

use dctms_engine::planning::{PlanSettings, RuntimeModel};
use dctms_engine::{Class, EngineError, ImageLimits, VisionMode};
use dctms_ir::plan::Machine;
use dctms_kernels::isa::Isa;
use dctms_planner::{Activations, Balance, Choices};
use dctms_system::machine::machine_memory;
use dctms_system::processors::processors;
use sha2::{Digest, Sha256};

use crate::args::{Larger, PlanArgs};
use crate::commands::files::{named, read_at_most};
use crate::process;
use crate::profile::{self, PROFILE_BYTES_MAX};
use crate::show::printable;

/// A machine and its peak rates.
struct Described {
    machine: Machine,
    balance: Balance,
}

/// Lanes that a plan of these options has.
///
/// # Errors
/// A profile that cannot be read, or facts that the operating system does not give.
pub fn lanes_of(args: &PlanArgs) -> Result<u32, EngineError> {
    Ok(settings(args)?.machine.lanes)
}

/// Everything that a plan needs beside the model, from the options.
///
/// # Errors
/// A profile that cannot be read, or facts that the operating system does not give.
pub fn settings(args: &PlanArgs) -> Result<PlanSettings, EngineError> {
    let described = match &args.machine {
        Some(path) => from_profile(path, args)?,
        None => this_machine(args)?,
    };
    let runtime = runtime(described.machine.lanes)?;
    let images = images(args)?;
    Ok(PlanSettings {
        max_input_tokens: args.max_input,
        max_output_tokens: args.max_output,
        sequences: args.sequences.unwrap_or(1),
        prefill_chunk: args.prefill_chunk,
        logit_rows: 1,
        images,
        smaller_chunks: smaller_chunks(args),
        mode: args.mode.unwrap_or(VisionMode::Serial),
        kv_type: args.kv_type,
        choices: Choices { preference: args.preference, without: Vec::new() },
        activations: match args.float_activations {
            true => Activations::Float,
            false => Activations::Quantised,
        },
        machine: described.machine,
        balance: described.balance,
        runtime,
    })
}

/// Members for smaller chunks: as many as for smaller tiles where pictures are looked at; else none
/// unless asked for.
fn smaller_chunks(args: &PlanArgs) -> u32 {
    match (args.family, &args.vision) {
        (Some(members), _) => members as u32 - 1,
        (None, Some(_)) => ImageLimits::default().smaller,
        (None, None) => 0,
    }
}

/// Bounds of pictures.
///
/// # Errors
/// Less to be made smaller than what is looked at as it is: a part of that would be decoded by no
/// bound that was asked for. Or nothing that is made smaller at all.
fn images(args: &PlanArgs) -> Result<ImageLimits, EngineError> {
    let default = ImageLimits::default();
    let size = args.max_image_size.unwrap_or((default.size.width, default.size.height));
    let limits = ImageLimits::new(args.max_images.unwrap_or(default.count), size);
    let smaller = args.family.map_or(default.smaller, |members| members as u32 - 1);
    let limits = ImageLimits { smaller, ..limits };
    if let Some(source) = args.max_source_size {
        let why = match (args.oversize, &args.vision) {
            (Some(Larger::Refused), _) => Some("with --oversize refuse nothing is made smaller"),
            (_, None) => Some("pictures are looked at with a vision file only (--mmproj FILE)"),
            (Some(Larger::Resized) | None, Some(_)) => None,
        };
        if let Some(why) = why {
            let message = format!("--max-source-size {}x{}: {why}", source.0, source.1);
            return Err(EngineError::new(Class::Usage, message));
        }
        let longest = |(width, height): (u32, u32)| width.max(height);
        let pixels = |(width, height): (u32, u32)| u64::from(width) * u64::from(height);
        if longest(source) < longest(size) || pixels(source) < pixels(size) {
            let message = format!(
                "--max-source-size {}x{}: less than the {}x{} of --max-image-size",
                source.0, source.1, size.0, size.1
            );
            return Err(EngineError::new(Class::Usage, message));
        }
    }
    // How much is decoded to be made smaller says that larger ones are.
    let implied = args.max_source_size.map(|_| Larger::Resized);
    Ok(match args.oversize.or(implied) {
        Some(Larger::Resized) => limits.resizing(args.max_source_size),
        Some(Larger::Refused) | None => limits,
    })
}

fn this_machine(args: &PlanArgs) -> Result<Described, EngineError> {
    let memory = machine_memory()?;
    let lanes = match args.lanes {
        Some(lanes) => lanes,
        None => processors()?.default_lanes().min(64) as u32,
    };
    let isa = args.isa.clone().unwrap_or_else(|| Isa::detect_best().name().to_string());
    let (memory_bytes, source) = match args.memory_limit {
        Some(limit) => (limit, "flag"),
        None => (memory.limit_bytes, memory.source.name()),
    };
    Ok(Described {
        balance: Balance::builtin(&isa, lanes),
        machine: Machine {
            memory_bytes,
            memory_source: source.to_string(),
            lanes,
            isa,
            profile_sha256: "builtin".to_string(),
        },
    })
}

fn from_profile(path: &Path, args: &PlanArgs) -> Result<Described, EngineError> {
    let bad = |what: String| {
        let path = named(path);
        EngineError::new(Class::Usage, format!("machine profile {path}: {}", printable(&what)))
    };
    let text = read_at_most(path, PROFILE_BYTES_MAX).map_err(bad)?;
    let profile = profile::read(&text).map_err(bad)?;
    let lanes = args.lanes.unwrap_or(profile.lanes);
    let (isa, balance) = match &args.isa {
        // Rates of other instructions say nothing of these.
        Some(isa) if *isa != profile.isa => (isa.clone(), Balance::builtin(isa, lanes)),
        Some(_) | None => (profile.isa, profile.balance.at_lanes(lanes)),
    };
    let (memory_bytes, source) = match args.memory_limit {
        Some(limit) => (limit, "flag"),
        None => (profile.memory_bytes, "profile"),
    };
    Ok(Described {
        balance,
        machine: Machine {
            memory_bytes,
            memory_source: source.to_string(),
            lanes,
            isa,
            profile_sha256: hexadecimal(&Sha256::digest(&text)),
        },
    })
}

/// Bytes as lower-case hexadecimal.
#[must_use]
pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What the process takes beside the arena.
fn runtime(lanes: u32) -> Result<RuntimeModel, EngineError> {
    let stacks = process::thread_stacks(lanes);
    let footprint = dctms_system::footprint::footprint(&stacks)?;
    Ok(RuntimeModel {
        heap_fixed_bytes: process::HEAP_FIXED_BYTES,
        heap_per_task_bytes: process::HEAP_PER_TASK_BYTES,
        heap_per_event_bytes: process::HEAP_PER_EVENT_BYTES,
        heap_per_sequence_bytes: process::HEAP_PER_SEQUENCE_BYTES,
        heap_per_context_token_bytes: process::HEAP_PER_CONTEXT_TOKEN_BYTES,
        compile_extra_bytes: 0,
        replan_heap_bytes: 0,
        stacks_bytes: footprint.stacks_bytes,
        image_bytes: footprint.image_bytes + footprint.c_library_bytes,
        io_bytes: 0,
        not_covered: process::NOT_COVERED.map(str::to_string).to_vec(),
    })
}
