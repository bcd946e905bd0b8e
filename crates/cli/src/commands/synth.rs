//! `dctms synth`: writes a model file of random weights at a published shape; all of the
//! thinking is in the `dctms-synth` crate.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;

use dctms_engine::{Class, EngineError};
use dctms_synth::{Mix, SHAPES, Shape};
use dctms_system::heap::Region;
use lexopt::prelude::*;

use super::files::{named, note, require_replaceable};
use crate::HEAP;
use crate::args::{UsageError, count, unknown};
use crate::failure::Failure;

/// Heap of the command, bytes: the vocabulary's texts and merges, and one row of a matrix.
const SYNTH_HEAP_BYTES: usize = 256 << 20;
const WRITE_BUFFER_BYTES: usize = 1 << 20;
const SEED_DEFAULT: u64 = 20_260_101;

/// Runs the command. A file that could not be finished is removed.
///
/// # Errors
/// Usage; what the operating system said while writing (exit code 1).
pub fn run(parser: &mut lexopt::Parser) -> Result<(), Failure> {
    let (shape, mix, seed, path) = parse(parser)?;
    require_replaceable(&path)?;
    HEAP.open_compile_region(SYNTH_HEAP_BYTES)?;
    let _scope = HEAP.scope(Region::Compile);
    let fault = |error: std::io::Error| {
        EngineError::new(Class::System, format!("writing {}: {error}", named(&path)))
    };
    let file = File::create(&path).map_err(fault)?;
    let mut out = BufWriter::with_capacity(WRITE_BUFFER_BYTES, file);
    if let Err(error) = dctms_synth::write(shape, mix, seed, &mut out).and_then(|()| out.flush()) {
        let _ = std::fs::remove_file(&path);
        return Err(fault(error).into());
    }
    let len_bytes = std::fs::metadata(&path).map_err(fault)?.len();
    note(&format!("{}: {} {}, {len_bytes} bytes\n", named(&path), shape.name, mix.name()));
    Ok(())
}

fn parse(parser: &mut lexopt::Parser) -> Result<(&'static Shape, Mix, u64, PathBuf), UsageError> {
    let (mut shape, mut mix, mut seed, mut path) = (None, None, SEED_DEFAULT, None);
    while let Some(argument) = parser.next()? {
        match argument {
            Value(value) if shape.is_none() => shape = Some(shape_named(&value.string()?)?),
            Value(value) if mix.is_none() => mix = Some(mix_named(&value.string()?)?),
            Long("seed") => seed = count(parser, "seed")?,
            Short('o') | Long("output") => path = Some(PathBuf::from(parser.value()?)),
            other @ (Value(_) | Long(_) | Short(_)) => return Err(unknown(&other)),
        }
    }
    match (shape, mix, path) {
        (Some(shape), Some(mix), Some(path)) => Ok((shape, mix, seed, path)),
        _ => Err(UsageError::Wrong(format!(
            "synth SHAPE MIX -o FILE [--seed N]\n  shapes: {}\n  mixes: {}",
            names(SHAPES.iter().map(|shape| shape.name)),
            names(Mix::ALL.iter().map(|mix| mix.name()))
        ))),
    }
}

fn shape_named(name: &str) -> Result<&'static Shape, UsageError> {
    SHAPES.iter().find(|shape| shape.name == name).ok_or_else(|| {
        let known = names(SHAPES.iter().map(|shape| shape.name));
        UsageError::Wrong(format!("no shape {name:?}: {known}"))
    })
}

fn mix_named(name: &str) -> Result<Mix, UsageError> {
    Mix::ALL.into_iter().find(|mix| mix.name() == name).ok_or_else(|| {
        let known = names(Mix::ALL.iter().map(|mix| mix.name()));
        UsageError::Wrong(format!("no mix {name:?}: {known}"))
    })
}

fn names(names: impl Iterator<Item = &'static str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}
