//! What a generation shows: text as it comes, or one JSON object at the end.

use std::fmt::Write as _;

use dctms_engine::EngineError;
use dctms_engine::generation::{Control, GenerationOptions, LogitsDigest, Sequence, Timing};
use dctms_ir::plan::Envelope;
use dctms_system::heap::Region;
use dctms_system::interrupt::stop_requested;
use dctms_system::output::Stream;
use dctms_system::process::memory_facts;
use dctms_text::{ControlTokens, LeadingSpace, StreamDecoder, Tokenizer};

use super::options::Format;
use crate::HEAP;
use crate::commands::say;
use crate::failure::Failure;
use crate::machine::hexadecimal;

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
    pub fn finish(&self, report: &Report<'_>) -> Result<(), Failure> {
        match (self.format, self.sequences) {
            (Format::Json, _) => say(&report.json()?),
            (Format::Text, 1) => say("\n"),
            (Format::Text, _) => {
                let mut text = String::new();
                for (index, sequence) in report.sequences.iter().enumerate() {
                    let _ = writeln!(text, "[{index}] {}", report.text(sequence));
                }
                say(&text)
            }
        }
    }
}

/// Everything that a report says.
pub struct Report<'a> {
    /// Sequences, done.
    pub sequences: &'a [Sequence],
    /// Times.
    pub timing: &'a Timing,
    /// Tokeniser, when there is one.
    pub tokenizer: Option<&'a Tokenizer<'a>>,
    /// The plan's envelope.
    pub envelope: &'a Envelope,
    /// Faults after sealing.
    pub minor_faults: u64,
    /// Faults after sealing that read storage.
    pub major_faults: u64,
    /// Allocations after sealing.
    pub allocations: u64,
    /// What was asked.
    pub options: &'a GenerationOptions,
}

impl Report<'_> {
    /// The output text of a sequence, decoded again from its tokens.
    fn text(&self, sequence: &Sequence) -> String {
        let mut text = String::new();
        let Some(tokenizer) = self.tokenizer else { return text };
        let mut decoder = StreamDecoder::new(ControlTokens::Hidden, LeadingSpace::Kept);
        for token in sequence.generated() {
            decoder.push(tokenizer, *token, &mut |piece| text.push_str(piece));
        }
        decoder.finish(&mut |piece| text.push_str(piece));
        text.truncate(sequence.shown_bytes());
        text
    }

    fn json(&self) -> Result<String, EngineError> {
        let memory = memory_facts()?;
        let heap = HEAP.figures(Region::Run);
        let timing = self.timing;
        let mut steps = timing.step_us.clone();
        steps.sort_unstable();
        let millisecond = |us: u32| f64::from(us) / 1000.0;
        let at = |share: f64| {
            let last = steps.len().saturating_sub(1);
            steps.get((last as f64 * share).round() as usize).copied().map_or(0.0, millisecond)
        };
        let rate = |count: usize, seconds: f64| match seconds > 0.0 {
            true => count as f64 / seconds,
            false => 0.0,
        };
        let mut out = String::from("{");
        let texts: Vec<String> =
            self.sequences.iter().map(|sequence| quoted(&self.text(sequence))).collect();
        let hashes: Vec<String> = match self.options.digest {
            LogitsDigest::Skipped => Vec::new(),
            LogitsDigest::Computed => self
                .sequences
                .iter()
                .map(|sequence| format!("\"{}\"", hexadecimal(&sequence.logits_sha256())))
                .collect(),
        };
        let finish = |sequence: &Sequence| {
            format!("\"{}\"", sequence.finish().map_or("none", |finish| finish.name()))
        };
        let finishes: Vec<String> = self.sequences.iter().map(finish).collect();
        let tokens = |sequence: &Sequence| {
            let ids: Vec<String> = sequence.generated().iter().map(u32::to_string).collect();
            format!("[{}]", ids.join(","))
        };
        let ids: Vec<String> = self.sequences.iter().map(tokens).collect();
        let one_or_list = |items: &[String]| match items {
            [one] => one.clone(),
            items => format!("[{}]", items.join(",")),
        };
        let _ = write!(
            out,
            "\"text\":{},\"tokens\":{},\"finish\":{},\"prompt_tokens\":{},\"decode_tokens\":{},\
             \"prefill_tokens_per_s\":{:.3},\"decode_tokens_per_s\":{:.3},\"ttft_ms\":{:.3},\
             \"step_ms\":{{\"p50\":{:.3},\"p99\":{:.3},\"max\":{:.3}}},",
            one_or_list(&texts),
            one_or_list(&ids),
            one_or_list(&finishes),
            timing.prompt_tokens,
            self.sequences.iter().map(|sequence| sequence.generated().len()).sum::<usize>(),
            rate(timing.prompt_tokens, timing.prefill_s),
            rate(timing.decode_tokens, timing.decode_s),
            timing.first_token_s * 1000.0,
            at(0.5),
            at(0.99),
            at(1.0),
        );
        let _ = writeln!(
            out,
            "\"peak_bytes\":{},\"m_max_bytes\":{},\"heap_peak_bytes\":{},\"heap_bytes\":{},\
             \"minor_faults\":{},\"major_faults\":{},\"allocations\":{},\"logits_sha256\":{}}}",
            memory.peak_resident_bytes,
            self.envelope.total,
            heap.live_peak_bytes,
            self.envelope.runtime.heap,
            self.minor_faults,
            self.major_faults,
            self.allocations,
            match hashes.is_empty() {
                true => "null".to_string(),
                false => one_or_list(&hashes),
            },
        );
        Ok(out)
    }
}

/// A JSON string.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
