//! The machine that a plan is for: this one, or one described by a profile or by options.

use std::path::Path;

use dctms_engine::planning::{PlanSettings, RuntimeModel};
use dctms_engine::{Class, EngineError, ImageLimits, VisionMode};
use dctms_ir::plan::Machine;
use dctms_kernels::isa::Isa;
use dctms_planner::{Activations, Balance};
use dctms_system::machine::machine_memory;
use dctms_system::processors::processors;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::args::PlanArgs;
use crate::commands::files::read_at_most;
use crate::process;

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
    Ok(PlanSettings {
        max_input_tokens: args.max_input,
        max_output_tokens: args.max_output,
        sequences: args.sequences.unwrap_or(1),
        prefill_chunk: args.prefill_chunk,
        logit_rows: 1,
        images: images(args),
        mode: args.mode.unwrap_or(VisionMode::Serial),
        kv_type: args.kv_type,
        activations: match args.float_activations {
            true => Activations::Float,
            false => Activations::Quantised,
        },
        machine: described.machine,
        balance: described.balance,
        runtime,
    })
}

/// Bounds of pictures.
fn images(args: &PlanArgs) -> ImageLimits {
    let default = ImageLimits::default();
    let size = args.max_image_size.unwrap_or((default.size.width, default.size.height));
    ImageLimits::new(args.max_images.unwrap_or(default.count), size)
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

/// Longest profile that is read, bytes.
const PROFILE_BYTES_MAX: u64 = 64 * 1024;

fn from_profile(path: &Path, args: &PlanArgs) -> Result<Described, EngineError> {
    let bad = |what: String| {
        EngineError::new(Class::Usage, format!("machine profile {}: {what}", path.display()))
    };
    let text = read_at_most(path, PROFILE_BYTES_MAX).map_err(bad)?;
    let profile: Value = serde_json::from_slice(&text).map_err(|error| bad(error.to_string()))?;
    let integer = |key: &str| profile.get(key).and_then(Value::as_u64);
    let rate = |key: &str, default: f64| -> Result<f64, EngineError> {
        match profile.get(key) {
            None => Ok(default),
            Some(value) => value
                .as_f64()
                .filter(|rate| rate.is_finite() && *rate > 0.0)
                .ok_or_else(|| bad(format!("{key} is {value}, expected a number above 0"))),
        }
    };
    let lanes = match args.lanes.map(u64::from).or_else(|| integer("lanes")) {
        Some(lanes) if (1..=64).contains(&lanes) => lanes as u32,
        Some(lanes) => return Err(bad(format!("lanes {lanes}: 1 to 64"))),
        None => return Err(bad("lanes is missing".to_string())),
    };
    let isa = match (&args.isa, profile.get("isa").and_then(Value::as_str)) {
        (Some(isa), _) => isa.clone(),
        (None, Some(isa @ ("scalar" | "avx2" | "avx512"))) => isa.to_string(),
        (None, other) => {
            return Err(bad(format!("isa is {other:?}, expected scalar, avx2 or avx512")));
        }
    };
    let (memory_bytes, source) = match (args.memory_limit, integer("memory_bytes")) {
        (Some(limit), _) => (limit, "flag"),
        (None, Some(bytes)) => (bytes, "profile"),
        (None, None) => return Err(bad("memory_bytes is missing".to_string())),
    };
    let builtin = Balance::builtin(&isa, lanes);
    Ok(Described {
        balance: Balance {
            integer_ops_per_s: rate("integer_ops_per_s", builtin.integer_ops_per_s)?,
            float_ops_per_s: rate("float_ops_per_s", builtin.float_ops_per_s)?,
            read_bytes_per_s: rate("read_bytes_per_s", builtin.read_bytes_per_s)?,
        },
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
