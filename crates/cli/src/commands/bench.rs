//! `dctms bench`: how fast a model runs inside its envelope, beside the machine's own limit.
//!
//! Plans, loads and seals as `run` does, then repeats a prompt and a decode of seeded token ids.
//! The machine's limits are measured first, in buffers that are gone before anything is planned, and
//! the peak of the process is counted from there.

mod options;
mod pictures;
mod predicted;
mod report;

use std::time::Instant;

use dctms_engine::bench::{Samples, Work, measure, work};
use dctms_engine::generation::Control;
use dctms_engine::peaks::{self, MEMORY_BUFFER_BYTES, Peaks};
use dctms_engine::planning::resolve_bounds;
use dctms_engine::{EngineError, Model};
use dctms_kernels::isa::Isa;
use dctms_system::SystemError;
use dctms_system::heap::{LatchScope, OnViolation};
use dctms_system::interrupt::{catch_stop_requests, stop_requested};
use dctms_system::lanes::LanesConfig;
use dctms_system::machine::machine_memory;
use dctms_system::process::{FaultScope, faults, reset_peak};
use dctms_system::processors::{ProcessorPressure, processor_pressure, processors};

use crate::HEAP;
use crate::commands::compile::weighted;
use crate::commands::model_path;
use crate::commands::stream::note;
use crate::failure::{Failure, INTERRUPTED};
use crate::machine::{lanes_of, settings};
use crate::process::{self, CompileStage, HeapLimit, LANE_STACK_BYTES, Prepared};

use options::{BenchArgs, Earlier, Format};
use predicted::{Predicted, predicted};
use report::Report;

/// Runs the command.
///
/// # Errors
/// Usage, a defect of the model, no room, or repetitions that differ.
pub fn run(parser: &mut lexopt::Parser) -> Result<(), Failure> {
    let args = BenchArgs::parse(parser)?;
    catch_stop_requests()?;
    if args.plan.vision.is_some() {
        return pictures::run(&args);
    }
    let peaks = measured_peaks(&args)?;
    let started = Instant::now();
    let Ready { mut prepared, name, work, predicted, earlier, isa, lanes } = prepare(&args)?;
    let load_s = started.elapsed().as_secs_f64();
    let settings = args.bench_settings();
    let mut samples = Samples::new(&settings);
    prepared.runner.interrupt_by(stop_requested);
    let (before, pressure) = (faults(FaultScope::Process), processor_pressure().ok());
    let begun = Instant::now();
    let allocations = HEAP.allocations();
    HEAP.close_latch(LatchScope::EveryThread, OnViolation::Count);
    let result =
        measure(&mut prepared.runner, &settings, &mut samples, &mut || match stop_requested() {
            true => Control::Stop,
            false => Control::Continue,
        });
    HEAP.open_latch();
    let allocations = HEAP.allocations() - allocations;
    let after = faults(FaultScope::Process);
    result?;
    if samples.decode_s.is_empty() {
        note(format_args!("dctms: interrupted before a repetition was done\n"));
        return Err(Failure::Reported(INTERRUPTED));
    }
    let report = Report {
        model: &name,
        args: &args,
        settings: &settings,
        isa,
        lanes,
        load_s,
        peaks,
        work,
        predicted,
        envelope: &prepared.envelope,
        pressure: Pressure::new(pressure, begun.elapsed().as_secs_f64()),
        minor_faults: after.minor - before.minor,
        major_faults: after.major - before.major,
        allocations,
        earlier,
    };
    match args.format {
        Format::Text => report.text(&mut samples),
        Format::Json => report.json(&mut samples),
    }
}

/// How much others wanted the processors.
#[derive(Clone, Copy, Debug)]
pub struct Pressure {
    /// Average over 10 s before, percent.
    pub before_percent: f64,
    /// The same after.
    pub after_percent: f64,
    /// Share of the measured time in which something runnable waited, percent.
    pub waited_percent: f64,
}

impl Pressure {
    /// From the facts before, those of now, and the seconds between.
    fn new(before: Option<ProcessorPressure>, seconds: f64) -> Option<Pressure> {
        let (before, after) = (before?, processor_pressure().ok()?);
        let waited_us = after.total_us.saturating_sub(before.total_us);
        Some(Pressure {
            before_percent: f64::from(before.average_10_s_percent),
            after_percent: f64::from(after.average_10_s_percent),
            waited_percent: waited_us as f64 / (seconds * 1e4),
        })
    }
}

/// A loaded model and what the plan says of the work.
struct Ready {
    prepared: Prepared,
    /// File name of the model; a compiled one has that of the file it was made from.
    name: String,
    work: Work,
    predicted: Predicted,
    earlier: Option<Earlier>,
    isa: &'static str,
    lanes: u32,
}

/// The machine's limits with the benchmark's lanes and instruction set; `None` where the buffer
/// has no room.
fn measured_peaks(args: &BenchArgs) -> Result<Option<Peaks>, EngineError> {
    let memory = machine_memory()?;
    if memory.limit_bytes < 4 * MEMORY_BUFFER_BYTES as u64 {
        return Ok(None);
    }
    let processors = processors()?;
    let lanes = args.plan.lanes.map_or(processors.default_lanes(), |lanes| lanes as usize);
    let config = LanesConfig {
        lanes,
        stack_bytes: LANE_STACK_BYTES,
        events: 0,
        spin: processors.spin_policy(lanes),
        pinning: processors.pinning(lanes),
    };
    let isa = args.plan.isa.as_deref().and_then(Isa::from_name);
    let measured = peaks::measure(&config, isa.unwrap_or_else(Isa::detect_best));
    let peaks = match measured {
        Ok(peaks) => Some(peaks),
        Err(SystemError::Call { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    // Where the kernel keeps its peak, the figure that is reported is too high, never too low.
    let _ = reset_peak();
    Ok(peaks)
}

/// Everything before the first token: plan, certify, map, load.
fn prepare(args: &BenchArgs) -> Result<Ready, Failure> {
    let stage = CompileStage::open()?;
    let (started, name, work, predicted, earlier, isa, lanes) = {
        let path = &model_path(args.model.as_deref())?;
        let model = weighted(Model::open(path)?, path, &args.plan)?;
        stage.limit_for(&model, lanes_of(&args.plan)?, 0)?;
        let bench = args.bench_settings();
        let mut plan_args = args.plan.clone();
        let longest = args.prompt_tokens.max(args.depth);
        plan_args.max_input = plan_args.max_input.or(Some(longest));
        plan_args.max_output = plan_args.max_output.or(Some(args.gen_tokens));
        let mut settings = settings(&plan_args)?;
        settings.runtime.heap_fixed_bytes += bench.heap_bytes();
        let bounds = resolve_bounds(&model, &settings, None)?;
        let planned = process::certify(&model, &settings, &bounds)?;
        let work = work(&planned.plan, &bench);
        let predicted = predicted(&planned.plan, &settings.balance, &bench)?;
        let machine = &planned.plan.machine;
        let isa = Isa::from_name(&machine.isa).map_or("unknown", Isa::name);
        let lanes = machine.lanes;
        let name = model.checkpoint.file_name(0);
        let earlier = match &args.compare {
            Some(path) => Some(Earlier::read(path, args, name, (isa, lanes))?),
            None => None,
        };
        let started = process::launch(&stage, &model, &settings, &planned, HeapLimit::Set)?;
        let name = stage.lasting(|| name.to_string());
        (started, name, work, predicted, earlier, isa, lanes)
    };
    stage.close()?;
    let prepared = process::load(started, None)?;
    Ok(Ready { prepared, name, work, predicted, earlier, isa, lanes })
}
