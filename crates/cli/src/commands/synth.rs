//! `dctms synth`: writes a model file, or a vision file, of random weights at a published shape,
//! with fewer layers where that is asked for; all of the thinking is in the `dctms-synth` crate.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;

use dctms_engine::{Class, EngineError};
use dctms_synth::{Mix, SHAPES, Shape, VISION_SHAPES, VisionShape};
use dctms_system::heap::Region;
use lexopt::prelude::*;

use super::files::{named, note, require_replaceable};
use crate::HEAP;
use crate::args::{UsageError, count, unknown, within};
use crate::failure::Failure;

/// Heap of the command, bytes: the vocabulary's texts and merges, and one row of a matrix.
const SYNTH_HEAP_BYTES: usize = 256 << 20;
const WRITE_BUFFER_BYTES: usize = 1 << 20;
/// Most layers that may be asked for.
const LAYERS_MAX: u64 = 256;
const SEED_DEFAULT: u64 = 20_260_101;

/// Runs the command. A file that could not be finished is removed.
///
/// # Errors
/// Usage; what the operating system said while writing (exit code 1).
pub fn run(parser: &mut lexopt::Parser) -> Result<(), Failure> {
    let Asked { what, mix, seed, path } = parse(parser)?;
    require_replaceable(&path)?;
    HEAP.open_compile_region(SYNTH_HEAP_BYTES)?;
    let _scope = HEAP.scope(Region::Compile);
    let fault = |error: std::io::Error| {
        EngineError::new(Class::System, format!("writing {}: {error}", named(&path)))
    };
    let file = File::create(&path).map_err(fault)?;
    let mut out = BufWriter::with_capacity(WRITE_BUFFER_BYTES, file);
    let written = match &what {
        What::Decoder(shape) => dctms_synth::write(shape, mix, seed, &mut out),
        What::Encoder(shape) => dctms_synth::write_vision(shape, mix, seed, &mut out),
    };
    if let Err(error) = written.and_then(|()| out.flush()) {
        let _ = std::fs::remove_file(&path);
        return Err(fault(error).into());
    }
    let len_bytes = std::fs::metadata(&path).map_err(fault)?.len();
    note(&format!("{}: {} {}, {len_bytes} bytes\n", named(&path), what.name(), mix.name()));
    Ok(())
}

/// What is written.
enum What {
    Decoder(Shape),
    Encoder(VisionShape),
}

impl What {
    fn name(&self) -> &'static str {
        match self {
            What::Decoder(shape) => shape.name,
            What::Encoder(shape) => shape.name,
        }
    }

    fn with_layers(self, layers: u32) -> What {
        match self {
            What::Decoder(shape) => What::Decoder(Shape { layers, ..shape }),
            What::Encoder(shape) => What::Encoder(VisionShape { layers, ..shape }),
        }
    }
}

struct Asked {
    what: What,
    mix: Mix,
    seed: u64,
    path: PathBuf,
}

fn parse(parser: &mut lexopt::Parser) -> Result<Asked, UsageError> {
    let (mut what, mut mix, mut seed, mut path) = (None, None, SEED_DEFAULT, None);
    let mut layers = None;
    while let Some(argument) = parser.next()? {
        match argument {
            Value(value) if what.is_none() => what = Some(shape_named(&value.string()?)?),
            Value(value) if mix.is_none() => mix = Some(mix_named(&value.string()?)?),
            Long("seed") => seed = count(parser, "seed")?,
            Long("layers") => {
                let asked = within(count(parser, "layers")?, "layers", 1, LAYERS_MAX)?;
                layers = Some(asked as u32);
            }
            Short('o') | Long("output") => path = Some(PathBuf::from(parser.value()?)),
            other @ (Value(_) | Long(_) | Short(_)) => return Err(unknown(&other)),
        }
    }
    let what = match (what, layers) {
        (Some(what), Some(layers)) => Some(what.with_layers(layers)),
        (what, _) => what,
    };
    match (what, mix, path) {
        (Some(what), Some(mix), Some(path)) => Ok(Asked { what, mix, seed, path }),
        _ => Err(UsageError::Wrong(format!(
            "synth SHAPE MIX -o FILE [--seed N] [--layers N]\n  shapes: {}\n  mixes: {}",
            shape_names(),
            names(Mix::ALL.iter().map(|mix| mix.name()))
        ))),
    }
}

fn shape_names() -> String {
    let vision = VISION_SHAPES.iter().map(|shape| shape.name);
    names(SHAPES.iter().map(|shape| shape.name).chain(vision))
}

fn shape_named(name: &str) -> Result<What, UsageError> {
    let decoder = SHAPES.iter().find(|shape| shape.name == name);
    let encoder = || VISION_SHAPES.iter().find(|shape| shape.name == name);
    let found = decoder.map(|shape| What::Decoder(*shape));
    found
        .or_else(|| encoder().map(|shape| What::Encoder(*shape)))
        .ok_or_else(|| UsageError::Wrong(format!("no shape {name:?}: {}", shape_names())))
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
