//! What a generation shows: text as it comes, or one JSON object at the end.
//!
//! After sealing the heap has no room for a report, so everything is written through a fixed
//! buffer; the output text is decoded again from its tokens.

use std::fmt::Write as _;

use dctms_engine::EngineError;
use dctms_engine::eyes::Placed;
use dctms_engine::generation::{
    BesideCounts, Control, GenerationOptions, LogitsDigest, Sequence, Timing,
};
use dctms_engine::pictures::EncodeTimes;
use dctms_engine::runner::TilePlan;
use dctms_engine::turns::Reloads;
use dctms_ir::plan::Envelope;
use dctms_models::phases;
use dctms_system::heap::Region;
use dctms_system::interrupt::stop_requested;
use dctms_system::output::Stream;
use dctms_system::process::memory_facts;
use dctms_text::{ControlTokens, LeadingSpace, StreamDecoder, Tokenizer};

use super::options::Format;
use crate::HEAP;
use crate::commands::stream::Output;
use crate::failure::Failure;

/// Where pieces of text go.
pub struct Sink {
    format: Format,
    sequences: usize,
    reader_gone: bool,
}

impl Sink {
    /// A sink for so many sequences.
    #[must_use]
    pub fn new(format: Format, sequences: usize) -> Sink {
        Sink { format, sequences, reader_gone: false }
    }

    /// Takes a piece; says stop after Ctrl-C or when nobody reads. Allocates nothing.
    pub fn emit(&mut self, _: usize, piece: &str) -> Control {
        // Several sequences would mix on one stream: they are printed when all are done.
        if self.format == Format::Text && self.sequences == 1 && !piece.is_empty() {
            self.reader_gone |= Stream::Output.write_all(piece.as_bytes()).is_err();
        }
        match self.reader_gone || stop_requested() {
            true => Control::Stop,
            false => Control::Continue,
        }
    }

    /// Prints the end.
    ///
    /// # Errors
    /// Output that cannot be written.
    pub fn finish(&self, report: &mut Report<'_>) -> Result<(), Failure> {
        let mut output = Output::new();
        match (self.format, self.sequences) {
            (Format::Json, _) => {
                output.bytes(b"{");
                report.json(&mut output)?;
                output.bytes(b"}\n");
            }
            (Format::Text, 1) => output.bytes(b"\n"),
            (Format::Text, _) => {
                for (index, sequence) in report.sequences.iter().enumerate() {
                    let _ = write!(output, "[{index}] ");
                    report.text(sequence, &mut |piece| output.bytes(piece.as_bytes()));
                    output.bytes(b"\n");
                }
            }
        }
        output.finish()
    }
}

/// Everything that a report says.
pub struct Report<'a> {
    /// Sequences, done.
    pub sequences: &'a [Sequence],
    /// Pictures, and what encoding each took.
    pub pictures: &'a [(Placed, EncodeTimes)],
    /// What loading weights again took, where they come and go.
    pub reloads: Option<Reloads>,
    /// Times.
    pub timing: &'a mut Timing,
    /// Tokeniser, when there is one.
    pub tokenizer: Option<&'a Tokenizer<'a>>,
    /// The plan's envelope.
    pub envelope: &'a Envelope,
    /// Most heap that was alive before the arena was touched, bytes.
    pub compile_heap_peak_bytes: usize,
    /// Faults after sealing.
    pub minor_faults: u64,
    /// Faults after sealing that read storage.
    pub major_faults: u64,
    /// Allocations after sealing.
    pub allocations: u64,
    /// Whether memory is locked, so that no page faults.
    pub locked: bool,
    /// What was asked.
    pub options: &'a GenerationOptions,
}

impl Report<'_> {
    /// The output text of a sequence, decoded again from its tokens.
    fn text(&self, sequence: &Sequence, emit: &mut dyn FnMut(&str)) {
        let Some(tokenizer) = self.tokenizer else { return };
        let mut decoder = StreamDecoder::new(ControlTokens::Hidden, LeadingSpace::Kept);
        let mut left = sequence.shown_bytes();
        // A stop text cuts the output at a character's boundary, so a piece is cut at one too.
        let mut cut = |piece: &str| {
            let count = left.min(piece.len());
            emit(piece.get(..count).unwrap_or_default());
            left -= count;
        };
        for token in sequence.generated() {
            decoder.push(tokenizer, *token, &mut cut);
        }
        decoder.finish(&mut cut);
    }

    /// One value for one sequence, a list for several.
    fn each(&self, out: &mut Output, write: &dyn Fn(&mut Output, &Sequence)) {
        if let [sequence] = self.sequences {
            return write(out, sequence);
        }
        out.bytes(b"[");
        for (index, sequence) in self.sequences.iter().enumerate() {
            out.bytes(if index > 0 { b"," } else { b"" });
            write(out, sequence);
        }
        out.bytes(b"]");
    }

    /// Writes the fields of an object.
    ///
    /// # Errors
    /// An operating system that tells no facts.
    pub fn json(&mut self, out: &mut Output) -> Result<(), EngineError> {
        self.timing.step_us.sort_unstable();
        out.bytes(b"\"text\":");
        self.each(out, &|out, sequence| {
            out.bytes(b"\"");
            self.text(sequence, &mut |piece| out.json_piece(piece));
            out.bytes(b"\"");
        });
        out.bytes(b",\"tokens\":");
        self.each(out, &|out, sequence| {
            out.bytes(b"[");
            for (index, token) in sequence.generated().iter().enumerate() {
                let comma = if index > 0 { "," } else { "" };
                let _ = write!(out, "{comma}{token}");
            }
            out.bytes(b"]");
        });
        out.bytes(b",\"finish\":");
        self.each(out, &|out, sequence| {
            let _ = write!(out, "\"{}\"", sequence.finish().map_or("none", |why| why.name()));
        });
        self.json_times(out);
        self.json_pictures(out);
        if let Some(Reloads { count, bytes, seconds }) = self.reloads {
            let _ = write!(
                out,
                ",\"reloads\":{{\"count\":{count},\"bytes\":{bytes},\"ms\":{:.3}}}",
                seconds * 1000.0
            );
        }
        self.json_memory(out)?;
        out.bytes(b",\"logits_sha256\":");
        match self.options.digest {
            LogitsDigest::Skipped => out.bytes(b"null"),
            LogitsDigest::Computed => self.each(out, &|out, sequence| {
                out.bytes(b"\"");
                for byte in sequence.logits_sha256() {
                    let _ = write!(out, "{byte:02x}");
                }
                out.bytes(b"\"");
            }),
        }
        Ok(())
    }

    fn json_times(&self, out: &mut Output) {
        let timing = &self.timing;
        let steps = &timing.step_us;
        let at = |share: f64| {
            let last = steps.len().saturating_sub(1);
            let step = steps.get((last as f64 * share).round() as usize).copied();
            f64::from(step.unwrap_or(0)) / 1000.0
        };
        let rate = |count: usize, seconds: f64| match seconds > 0.0 {
            true => count as f64 / seconds,
            false => 0.0,
        };
        let generated: usize = self.sequences.iter().map(|one| one.generated().len()).sum();
        // Every context began empty. (What was read beside pictures is no time of prefill.)
        let context: usize = self.sequences.iter().map(|one| one.context().0.len()).sum();
        let _ = write!(
            out,
            ",\"prompt_tokens\":{},\"decode_tokens\":{generated},\
             \"prefill_tokens_per_s\":{:.3},\"decode_tokens_per_s\":{:.3},\"prefill_ms\":{:.3},\
             \"decode_ms\":{:.3},\"ttft_ms\":{:.3},\
             \"step_ms\":{{\"p50\":{:.3},\"p99\":{:.3},\"max\":{:.3}}},\"gap_ms\":{:.3}",
            context - generated,
            rate(timing.prompt_tokens, timing.prefill_s),
            rate(timing.decode_tokens, timing.decode_s),
            timing.prefill_s * 1000.0,
            timing.decode_s * 1000.0,
            timing.first_token_s * 1000.0,
            at(0.5),
            at(0.99),
            at(1.0),
            timing.gap_s * 1000.0,
        );
        let BesideCounts { steps, steps_s, tiles, waited_s } = timing.beside;
        if tiles > 0 || steps > 0 {
            let waited_ms = waited_s * 1000.0;
            let step_ms = steps_s * 1000.0 / steps.max(1) as f64;
            let _ = write!(
                out,
                ",\"beside\":{{\"steps\":{steps},\"step_ms\":{step_ms:.3},\"tiles\":{tiles},\
                 \"waited_ms\":{waited_ms:.3}}}"
            );
        }
    }

    /// Nothing for a model without eyes: its report stays as it was.
    fn json_pictures(&self, out: &mut Output) {
        if self.pictures.is_empty() {
            return;
        }
        let seconds = |times: &EncodeTimes| times.decode_s + times.render_s + times.encode_s;
        let total: f64 = self.pictures.iter().map(|(_, times)| seconds(times)).sum();
        let _ = write!(out, ",\"vision_ms\":{:.3},\"images\":[", total * 1000.0);
        for (index, (placed, times)) in self.pictures.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            let _ = write!(
                out,
                "{comma}{{\"width\":{},\"height\":{},\"tiles\":{},\"tokens\":{},\
                 \"decode_ms\":{:.3},\"resize_ms\":{:.3},\"encode_ms\":{:.3},\
                 \"chunks_beside\":{},\"plans\":{{",
                placed.size.width,
                placed.size.height,
                times.tiles,
                placed.rows,
                times.decode_s * 1000.0,
                times.render_s * 1000.0,
                times.encode_s * 1000.0,
                times.chunks,
            );
            for (index, (plan, tiles)) in times.plans.counts().enumerate() {
                let _ = out.write_str(if index > 0 { "," } else { "" });
                // The names of the phases, as the plan and a trace have them.
                let _ = match plan {
                    TilePlan::Bound => write!(out, "\"{}\":{tiles}", phases::VISION),
                    TilePlan::Member(bound) => {
                        write!(out, "\"{}@{bound}\":{tiles}", phases::VISION)
                    }
                    TilePlan::Chunk => write!(out, "\"{}\":{tiles}", phases::VISION_AND_PREFILL),
                    TilePlan::Steps => write!(out, "\"{}\":{tiles}", phases::VISION_BESIDE),
                };
            }
            out.bytes(b"}}");
        }
        let heap = HEAP.figures(Region::Image);
        let _ = write!(
            out,
            "],\"image_heap_peak_bytes\":{},\"image_heap_bytes\":{}",
            heap.live_peak_bytes, heap.limit_bytes
        );
    }

    fn json_memory(&self, out: &mut Output) -> Result<(), EngineError> {
        let memory = memory_facts()?;
        let heap = HEAP.figures(Region::Run);
        let _ = write!(
            out,
            ",\"peak_bytes\":{},\"m_max_bytes\":{},\"heap_peak_bytes\":{},\"heap_bytes\":{},\
             \"compile_heap_peak_bytes\":{},\"minor_faults\":{},\"major_faults\":{},\
             \"allocations\":{},\"locked\":{}",
            memory.peak_resident_bytes,
            self.envelope.total,
            heap.live_peak_bytes,
            self.envelope.runtime.heap,
            self.compile_heap_peak_bytes,
            self.minor_faults,
            self.major_faults,
            self.allocations,
            self.locked,
        );
        Ok(())
    }
}
