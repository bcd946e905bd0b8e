//! `--trace FILE`: the lanes' timeline in the trace format that Chrome and Perfetto read.
//!
//! One thread a lane; one slice a task, and one for each wait that was worth a record. Times are
//! microseconds. Written after the run, through a small buffer.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use dctms_engine::{Class, EngineError};
use dctms_exec::trace::{Kind, Trace, Traced};

/// Records kept of each lane, the last ones: some fifty steps of a model of thirty layers, of
/// which one has about 420 tasks a lane, and up to as many waits.
pub const RECORDS: usize = 1 << 15;
/// Heap of the writer, bytes.
pub const WRITER_HEAP_BYTES: u64 = 16 << 10;

/// Makes the file: before anything is generated, so that a wrong name costs nothing.
///
/// # Errors
/// Class `System`: what the operating system said.
pub fn create(path: &Path) -> Result<File, EngineError> {
    File::create(path).map_err(|error| failed(path, &error))
}

/// Writes the file.
///
/// # Errors
/// Class `System`: what the operating system said.
pub fn write(trace: &Trace, lanes: u32, file: File, path: &Path) -> Result<(), EngineError> {
    let mut out = BufWriter::new(file);
    let written = write_to(trace, lanes, &mut out).and_then(|()| out.flush());
    written.map_err(|error| failed(path, &error))
}

fn failed(path: &Path, error: &io::Error) -> EngineError {
    EngineError::new(Class::System, format!("--trace {}: {error}", path.display()))
}

fn write_to(trace: &Trace, lanes: u32, out: &mut impl Write) -> io::Result<()> {
    write!(out, "{{\"displayTimeUnit\":\"ns\",\"otherData\":{{\"lost\":{}}},", trace.lost())?;
    out.write_all(b"\"traceEvents\":[\n")?;
    for lane in 0..lanes {
        let comma = if lane == 0 { "" } else { ",\n" };
        write!(
            out,
            "{comma}{{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":1,\"tid\":{lane},\
             \"args\":{{\"name\":\"lane {lane}\"}}}}"
        )?;
    }
    for record in trace.records() {
        out.write_all(b",\n")?;
        slice(&record, out)?;
    }
    out.write_all(b"\n]}\n")
}

fn slice(record: &Traced<'_>, out: &mut impl Write) -> io::Result<()> {
    let (category, before) = match record.kind {
        Kind::Work => ("work", ""),
        Kind::Wait => ("wait", "wait for "),
    };
    write!(out, "{{\"ph\":\"X\",\"name\":\"{before}")?;
    text(record.operation, out)?;
    write!(
        out,
        "\",\"cat\":\"{category}\",\"pid\":1,\"tid\":{},\"ts\":{}.{:03},\"dur\":{}.{:03},\"args\":\
         {{\"phase\":\"",
        record.lane,
        record.start_ns / 1000,
        record.start_ns % 1000,
        (record.end_ns - record.start_ns) / 1000,
        (record.end_ns - record.start_ns) % 1000,
    )?;
    text(record.phase, out)?;
    let (shard, shards) = record.shard;
    write!(out, "\",\"step\":{},\"shard\":{shard},\"shards\":{shards}}}}}", record.run)
}

/// Names come from files: whatever JSON must not have inside a string becomes a question mark.
fn text(name: &str, out: &mut impl Write) -> io::Result<()> {
    for character in name.chars() {
        let plain = !character.is_control() && character != '"' && character != '\\';
        write!(out, "{}", if plain { character } else { '?' })?;
    }
    Ok(())
}
