//! `dctms inspect`: what a model file's header says: metadata, tensors, types.
//!
//! Reads the header only, so a file that ends after its tensor table can be looked at, and needs no
//! architecture that we know. Names come from a stranger and are escaped; long values are clipped.

use std::fmt::Write as _;
use std::path::PathBuf;

use dctms_format::{Checkpoint, Scalar, Tensor, Value as Datum, ValueType};
use dctms_system::heap::Region;
use lexopt::prelude::*;

use super::files::open_reading_heap;
use super::{model_path, say};
use crate::HEAP;
use crate::args::unknown;
use crate::failure::Failure;
use crate::show::{Align, Columns, grouped, mebibytes, printable};

/// Runs the command.
///
/// # Errors
/// Usage; a file that is no model file (exit code 2).
pub fn run(parser: &mut lexopt::Parser) -> Result<(), Failure> {
    let (mut path, mut json) = (None, false);
    while let Some(argument) = parser.next()? {
        match argument {
            Value(value) if path.is_none() => path = Some(PathBuf::from(value)),
            Long("json") => json = true,
            other @ (Value(_) | Long(_) | Short(_)) => return Err(unknown(&other).into()),
        }
    }
    let path = model_path(path.as_deref())?;
    open_reading_heap()?;
    let _scope = HEAP.scope(Region::Compile);
    let checkpoint = dctms_engine::artefact::checkpoint(&path)?;
    say(&if json { as_json(&checkpoint) } else { as_text(&checkpoint) })
}

fn as_text(checkpoint: &Checkpoint) -> String {
    let mut out = String::new();
    for shard in 0..checkpoint.shard_count() {
        let bytes = checkpoint.source(shard).len();
        let _ = writeln!(
            out,
            "{}: {} bytes ({} MiB), header {} bytes, data from {}",
            printable(checkpoint.file_name(shard)),
            grouped(bytes),
            mebibytes(bytes),
            grouped(checkpoint.header_len_bytes(shard)),
            grouped(checkpoint.data_offset(shard)),
        );
    }
    let complete = if checkpoint.file_complete() { "complete" } else { "incomplete" };
    let _ = writeln!(
        out,
        "GGUF version {}, alignment {}, {complete}, {} parameters, header sha256 {}",
        checkpoint.version(),
        checkpoint.alignment(),
        grouped(checkpoint.parameter_count()),
        checkpoint.header_sha256_hex(),
    );
    let _ = writeln!(out, "\nmetadata ({})", checkpoint.metadata().len());
    let mut columns = Columns::new(&[Align::Left, Align::Left, Align::Left]);
    for (key, value_type, value) in checkpoint.metadata() {
        columns.row([printable(key), value_type.to_string(), printable(&value.to_string())]);
    }
    out.push_str(&columns.lines(2));
    let _ = writeln!(out, "\ntensors ({})", checkpoint.tensor_count());
    let mut columns = Columns::new(&[Align::Left, Align::Left, Align::Left]);
    columns.row(["name", "type", "shape", "bytes", "offset"]);
    for tensor in checkpoint.tensors() {
        columns.row([
            printable(tensor.name),
            tensor.ggml_type.name().to_string(),
            shape(&tensor),
            grouped(tensor.len_bytes),
            grouped(tensor.offset),
        ]);
    }
    out.push_str(&columns.lines(2));
    histogram(&mut out, checkpoint);
    out
}

fn histogram(out: &mut String, checkpoint: &Checkpoint) {
    let all: u64 = checkpoint.histogram().iter().map(|row| row.len_bytes).sum();
    let _ = writeln!(out, "\ntypes");
    let mut columns = Columns::new(&[Align::Left]);
    columns.row(["type", "tensors", "elements", "bytes", "bits/weight", "share"]);
    for row in checkpoint.histogram() {
        let bits = u128::from(row.len_bytes) * 8 * 100 / u128::from(row.element_count.max(1));
        let share = u128::from(row.len_bytes) * 1000 / u128::from(all.max(1));
        columns.row([
            row.ggml_type.name().to_string(),
            row.tensor_count.to_string(),
            grouped(row.element_count),
            grouped(row.len_bytes),
            format!("{}.{:02}", bits / 100, bits % 100),
            format!("{}.{} %", share / 10, share % 10),
        ]);
    }
    out.push_str(&columns.lines(2));
}

/// Dimensions outermost first, as programs write them.
fn shape(tensor: &Tensor<'_>) -> String {
    let dims: Vec<String> = tensor.dims.iter().rev().map(u64::to_string).collect();
    format!("[{}]", dims.join(", "))
}

fn as_json(checkpoint: &Checkpoint) -> String {
    let list = |items: Vec<String>| format!("[\n{}\n]", items.join(",\n"));
    let files = (0..checkpoint.shard_count()).map(|shard| {
        format!(
            "{{\"file\":{},\"bytes\":{},\"header_bytes\":{},\"data_offset\":{}}}",
            quoted(checkpoint.file_name(shard)),
            checkpoint.source(shard).len(),
            checkpoint.header_len_bytes(shard),
            checkpoint.data_offset(shard),
        )
    });
    let metadata = checkpoint.metadata().map(|(key, value_type, value)| {
        let (key, value) = (quoted(key), json_value(&value));
        format!("{{\"key\":{key},\"type\":{},{value}}}", quoted(value_type.name()))
    });
    let tensors = checkpoint.tensors().map(|tensor| {
        format!(
            "{{\"name\":{},\"type\":{},\"shape\":{},\"bytes\":{},\"file\":{},\"offset\":{}}}",
            quoted(tensor.name),
            quoted(tensor.ggml_type.name()),
            shape(&tensor),
            tensor.len_bytes,
            tensor.shard,
            tensor.offset,
        )
    });
    let types = checkpoint.histogram().into_iter().map(|row| {
        format!(
            "{{\"type\":{},\"tensors\":{},\"elements\":{},\"bytes\":{}}}",
            quoted(row.ggml_type.name()),
            row.tensor_count,
            row.element_count,
            row.len_bytes,
        )
    });
    format!(
        "{{\"format\":\"gguf\",\"version\":{},\"alignment\":{},\"file_complete\":{},\
         \"parameters\":{},\"header_sha256\":\"{}\",\n\"files\":{},\n\"metadata\":{},\n\
         \"tensors\":{},\n\"types\":{}}}\n",
        checkpoint.version(),
        checkpoint.alignment(),
        checkpoint.file_complete(),
        checkpoint.parameter_count(),
        checkpoint.header_sha256_hex(),
        list(files.collect()),
        list(metadata.collect()),
        list(tensors.collect()),
        list(types.collect()),
    )
}

/// The member that holds a value: `value` where it is whole, its size where it stays in the file.
fn json_value(value: &Datum<'_>) -> String {
    match value {
        Datum::Scalar(scalar) => format!("\"value\":{}", json_scalar(*scalar)),
        Datum::String(bytes) => {
            format!("\"value\":{}", quoted(&String::from_utf8_lossy(bytes)))
        }
        Datum::LongString(bytes) => format!("\"bytes\":{bytes}"),
        Datum::Array(array) => {
            let of: ValueType = array.element_type();
            format!("\"of\":{},\"count\":{}", quoted(of.name()), array.count())
        }
    }
}

/// JSON has no infinities: they are written as text.
fn json_scalar(scalar: Scalar) -> String {
    let finite = match scalar {
        Scalar::F32(value) => value.is_finite(),
        Scalar::F64(value) => value.is_finite(),
        Scalar::Unsigned(_) | Scalar::Signed(_) | Scalar::Bool(_) => true,
    };
    if finite { scalar.to_string() } else { quoted(&scalar.to_string()) }
}

/// A JSON string.
#[must_use]
pub fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
