//! `dctms doctor`: what this machine allows and how fast it is.
//!
//! Facts first (memory limit and its source, locks, huge pages, processors, pressure), then rates
//! by calling the kernels that run models. `--machine-out` writes the rates as a profile that
//! `--machine` plans with. Nothing here is a plan: two runs measure different numbers, and a plan
//! names the digest of the profile that it was made with.

mod clock;
mod facts;
mod kernels;

use std::path::PathBuf;

use dctms_engine::peaks::{self, MEMORY_BUFFER_BYTES};
use dctms_engine::{Class, EngineError};
use dctms_kernels::isa::Isa;
use dctms_planner::Balance;
use dctms_planner::rates::{Element, TOKEN_POINTS};
use dctms_system::arena::{Arena, ArenaPages};
use dctms_system::heap::Region;
use dctms_system::lanes::{Lanes, LanesConfig};
use dctms_system::machine::machine_memory;
use dctms_system::processors::{last_cache_bytes, processors};
use lexopt::prelude::*;

use super::files::{note, open_reading_heap, require_place, write};
use super::say;
use crate::HEAP;
use crate::args::{PlanArgs, UsageError, unknown};
use crate::failure::Failure;
use crate::machine::settings;
use crate::process::LANE_STACK_BYTES;
use crate::profile::{self, Profile, is_weight};
use crate::show::{Align, Columns};

use clock::Clock;
use kernels::Room;

/// Weights that each lane streams, bytes: many times a last-level cache together, less where
/// memory is short.
const STREAM_BYTES_MAX: usize = 128 << 20;

/// Runs the command.
///
/// # Errors
/// Usage; facts that the operating system does not give; a profile that cannot be written.
pub fn run(parser: &mut lexopt::Parser) -> Result<(), Failure> {
    let (args, path) = parse(parser)?;
    // Before seconds of measuring, not after.
    path.as_deref().map_or(Ok(()), require_place)?;
    open_reading_heap()?;
    let _scope = HEAP.scope(Region::Compile);
    let facts = facts::take()?;
    say(&facts.text())?;
    let settings = settings(&args)?;
    let lanes = settings.machine.lanes;
    let isa = Isa::from_name(&settings.machine.isa).ok_or_else(|| {
        UsageError::Wrong(format!("--isa {}: not on this processor", settings.machine.isa))
    })?;
    note("dctms: measuring; anything else that runs makes the rates lower\n");
    let measured = measure(isa, lanes as usize)?;
    say(&text(&measured, isa))?;
    if let Some(path) = path {
        let machine = &settings.machine;
        let profile = Profile {
            lanes,
            isa: machine.isa.clone(),
            memory_bytes: machine.memory_bytes,
            balance: measured.balance,
        };
        write(&path, &profile::write(&profile))?;
    }
    Ok(())
}

fn parse(parser: &mut lexopt::Parser) -> Result<(PlanArgs, Option<PathBuf>), UsageError> {
    let (mut args, mut path) = (PlanArgs::default(), None);
    while let Some(argument) = parser.next()? {
        match argument {
            Long("machine-out") => path = Some(PathBuf::from(parser.value()?)),
            Long(name @ ("lanes" | "isa" | "memory-limit")) => {
                let name = name.to_string();
                args.take(&name, parser)?;
            }
            other @ (Value(_) | Long(_) | Short(_)) => return Err(unknown(&other)),
        }
    }
    Ok((args, path))
}

/// Rates, and the peaks of each instruction set.
struct Measured {
    balance: Balance,
    /// Name, integer and f32 operations a second of all lanes.
    peaks: Vec<(&'static str, f64, f64)>,
}

fn config(lanes: usize) -> Result<LanesConfig, EngineError> {
    let processors = processors()?;
    Ok(LanesConfig {
        lanes,
        stack_bytes: LANE_STACK_BYTES,
        events: 0,
        spin: processors.spin_policy(lanes),
        pinning: processors.pinning(lanes),
    })
}

fn measure(isa: Isa, lanes: usize) -> Result<Measured, EngineError> {
    let room = machine_memory()?.available_bytes;
    let share = (room / 4) as usize / lanes;
    let lane_bytes = STREAM_BYTES_MAX.min(share - share % (1 << 20));
    if room < 2 * MEMORY_BUFFER_BYTES as u64 || lane_bytes < 8 << 20 {
        return Err(EngineError::new(
            Class::DoesNotFit,
            format!("{room} bytes of memory are free: too few to measure what no cache holds"),
        ));
    }
    let mut balance = Balance::builtin(isa.name(), lanes as u32);
    let mut all_peaks = Vec::new();
    for known in Isa::available() {
        let peaks = peaks::measure(&config(lanes)?, known)?;
        all_peaks.push((known.name(), peaks.integer_ops_per_s, peaks.float_ops_per_s));
        if known == isa {
            balance.integer_ops_per_s = peaks.integer_ops_per_s;
            balance.float_ops_per_s = peaks.float_ops_per_s;
            balance.read_bytes_per_s = peaks.memory_bytes_per_s;
            balance.cache_read_bytes_per_s = peaks.cache_bytes_per_s;
        }
    }
    balance.cache_bytes = last_cache_bytes().unwrap_or(1) as f64;
    balance.lane_read_bytes_per_s = match lanes {
        1 => balance.read_bytes_per_s,
        _ => peaks::measure(&config(1)?, isa)?.memory_bytes_per_s,
    };
    let mut arena = Arena::map(lanes * lane_bytes, ArenaPages::Huge)?;
    arena.prefault();
    arena.floats_mut().fill(f32::from_bits(PATTERN));
    let rooms = arena.bytes().chunks(lane_bytes).take(lanes).map(|part| Room::new(isa, part));
    let mut clock = Clock::new(Lanes::start(&config(lanes)?)?, rooms.collect());
    balance.run_ps = clock.run_seconds()? * 1e12;
    balance.cut_ps = if lanes == 1 { 0.0 } else { clock.barrier_seconds()? * 1e12 };
    balance.task_ps = kernels::task_seconds(&mut clock)? * 1e12;
    kernels::elements(&mut clock, &mut balance.element_ps)?;
    // Without vector instructions everything takes longer than any memory: less of it will do.
    let slowness = if isa == Isa::Scalar { 32 } else { 1 };
    let sizes = (lanes, lane_bytes, slowness);
    kernels::products(&mut clock, sizes, &mut balance.products, true)?;
    kernels::products(&mut clock, sizes, &mut balance.float_products, false)?;
    kernels::together(&mut clock, slowness, &mut balance)?;
    if lanes == 1 {
        balance.wait_ratio = 0.0;
    }
    Ok(Measured { balance, peaks: all_peaks })
}

/// Halves and scales of value one (or small ones), whatever the layout takes them for.
const PATTERN: u32 = 0x3c00_3c00;

fn text(measured: &Measured, isa: Isa) -> String {
    let balance = &measured.balance;
    let giga = |rate: f64| format!("{:.1}", rate / 1e9);
    let micro = |ps: f64| format!("{:.2}", ps / 1e6);
    let mut out = format!("\nmemory, read ({} lanes unless stated)\n", balance.lanes);
    let mut columns = Columns::new(&[Align::Left, Align::Right, Align::Left]);
    columns.row(["one lane".to_string(), giga(balance.lane_read_bytes_per_s), "GB/s".to_string()]);
    let beside = giga(balance.beside_read_bytes_per_s);
    columns.row(["one lane, others at products".to_string(), beside, "GB/s".to_string()]);
    columns.row(["all lanes".to_string(), giga(balance.read_bytes_per_s), "GB/s".to_string()]);
    let cache = format!("last-level cache ({:.0} MiB)", balance.cache_bytes / 1048576.0);
    columns.row([cache, giga(balance.cache_read_bytes_per_s), "GB/s".to_string()]);
    out.push_str(&columns.lines(2));
    out.push_str("\npeaks of each instruction set, in registers (all lanes)\n");
    let mut columns = Columns::named();
    columns.row(["", "integer Gop/s", "f32 Gflop/s"]);
    for (name, integer, float) in &measured.peaks {
        columns.row([name.to_string(), giga(*integer), giga(*float)]);
    }
    out.push_str(&columns.lines(2));
    out.push_str("\nsynchronisation\n");
    let mut columns = Columns::new(&[Align::Left, Align::Right, Align::Left]);
    for (name, ps) in [
        ("a point that all lanes wait at", balance.cut_ps),
        ("starting and ending a phase", balance.run_ps),
        ("a task beside its work", balance.task_ps),
    ] {
        columns.row([name.to_string(), micro(ps), "µs".to_string()]);
    }
    let percent = |ratio: f64| format!("{:.2}", 100.0 * ratio);
    let wait = percent(balance.wait_ratio);
    columns.row(["waiting for the last lane, of 5 ms".to_string(), wait, "%".to_string()]);
    let longer = percent(balance.beside_products_ratio - 1.0);
    columns.row(["products beside a lane that reads take longer".to_string(), longer, "%".into()]);
    let pause = micro(balance.pause_ps);
    columns.row(["longest pause of a lane".to_string(), pause, "µs".to_string()]);
    out.push_str(&columns.lines(2));
    out.push_str(&format!("\nproducts ({}, one lane while all work), ps a weight\n", isa.name()));
    let mut columns = Columns::named();
    let heads = TOKEN_POINTS.iter().map(|tokens| format!("{tokens} tok"));
    columns
        .row(std::iter::once(String::new()).chain(heads).chain(["from memory, GB/s".to_string()]));
    for (dtype, rates) in dctms_ir::Dtype::ALL.iter().zip(&balance.products) {
        if !is_weight(*dtype, true) {
            continue;
        }
        let points = rates.weight_ps.iter().map(|ps| format!("{ps:.1}"));
        columns.row(
            std::iter::once(dtype.name().to_string())
                .chain(points)
                .chain([giga(rates.stream_bytes_per_s)]),
        );
    }
    out.push_str(&columns.lines(2));
    out.push_str("\nother work (one lane while all work), ps an element\n");
    let mut columns = Columns::named();
    for element in Element::ALL {
        columns.row([element.name().to_string(), format!("{:.1}", balance.element(element))]);
    }
    out.push_str(&columns.lines(2));
    out
}
