//! The figures of a benchmark: a table for a person, or one JSON object.
//!
//! Written through a fixed buffer: after sealing the heap has no room for a report. Rates are
//! medians over repetitions, latencies percentiles over all steps of all of them.

use std::fmt::{Display, Formatter, Write as _};

use dctms_engine::bench::{BenchSettings, Samples, Work};
use dctms_engine::peaks::Peaks;
use dctms_ir::plan::Envelope;
use dctms_system::process::memory_facts;

use super::Pressure;
use super::options::{BenchArgs, Earlier, WAITED_PERCENT_MAX};
use super::predicted::Predicted;
use crate::commands::run::mebibytes;
use crate::commands::stream::Output;
use crate::failure::Failure;

/// Everything that a report says beside the times.
pub struct Report<'a> {
    /// File name of the model.
    pub model: &'a str,
    /// What was asked.
    pub args: &'a BenchArgs,
    /// The workload.
    pub settings: &'a BenchSettings,
    /// Instruction set.
    pub isa: &'static str,
    /// Lanes.
    pub lanes: u32,
    /// Seconds to plan, map and load.
    pub load_s: f64,
    /// Limits of the machine.
    pub peaks: Option<Peaks>,
    /// Bytes and operations of the work.
    pub work: Work,
    /// What the plan expects.
    pub predicted: Predicted,
    /// The plan's envelope.
    pub envelope: &'a Envelope,
    /// Pressure on the processors.
    pub pressure: Option<Pressure>,
    /// Faults after sealing.
    pub minor_faults: u64,
    /// Faults after sealing that read storage.
    pub major_faults: u64,
    /// Allocations after sealing.
    pub allocations: u64,
    /// Figures to compare with.
    pub earlier: Option<Earlier>,
}

/// Median, least and greatest.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Spread {
    median: f64,
    min: f64,
    max: f64,
}

/// Figures that are computed from the times.
struct Figures {
    prefill: Spread,
    decode: Spread,
    first_token_ms: f64,
    sampling_ms: f64,
    step_p50_ms: f64,
    step_p99_ms: f64,
    step_max_ms: f64,
    step_cv: f64,
    weight_bytes_per_s: f64,
    read_bytes_per_s: f64,
    read_share: f64,
    kv_bytes_per_s: f64,
    integer_ops_per_s: f64,
    peak_bytes: u64,
    answer: [u8; 32],
}

impl Report<'_> {
    fn figures(&self, samples: &mut Samples) -> Result<Figures, Failure> {
        let settings = self.settings;
        let prompt = settings.prompt_tokens as f64;
        let steps = settings.gen_tokens as f64;
        let step_cv = deviation_by_mean(&samples.step_us);
        samples.step_us.sort_unstable();
        let at = |share: f64| percentile(&samples.step_us, share) / 1000.0;
        let (step_p50_ms, step_p99_ms, step_max_ms) = (at(0.5), at(0.99), at(1.0));
        let work = &self.work;
        samples.fill_read_shares(work.weight_bytes_per_step, settings.gen_tokens);
        let prefill = spread(&mut samples.prefill_s);
        let decode = spread(&mut samples.decode_s);
        Ok(Figures {
            prefill: prefill.rate(prompt),
            decode: decode.rate(steps * settings.sequences as f64),
            first_token_ms: spread(&mut samples.first_token_s).median * 1e3,
            sampling_ms: spread(&mut samples.sampling_s).median * 1e3 / steps,
            step_p50_ms,
            step_p99_ms,
            step_max_ms,
            step_cv,
            weight_bytes_per_s: work.weight_bytes_per_step as f64 * steps / decode.median,
            read_bytes_per_s: spread(&mut samples.read_bytes_per_s).median,
            read_share: spread(&mut samples.read_shares).median,
            kv_bytes_per_s: work.kv_bytes_per_step as f64 * steps / decode.median,
            integer_ops_per_s: work.prompt_integer_ops as f64 / prefill.median,
            peak_bytes: memory_facts()?.peak_resident_bytes,
            answer: samples.answer,
        })
    }

    /// Prints a table.
    ///
    /// # Errors
    /// Output that cannot be written.
    pub fn text(&self, samples: &mut Samples) -> Result<(), Failure> {
        let figures = self.figures(samples)?;
        let mut out = Output::new();
        let _ = self.write_text(&mut out, &figures);
        out.finish()
    }

    fn write_text(&self, out: &mut Output, figures: &Figures) -> std::fmt::Result {
        let (settings, args) = (self.settings, self.args);
        let gigabytes = |bytes: f64| bytes / 1e9;
        writeln!(
            out,
            "{}: {} lanes, {}, kv {}, loaded in {:.2} s",
            self.model,
            self.lanes,
            self.isa,
            args.plan.kv_type.name(),
            self.load_s
        )?;
        writeln!(out, "prefill {:>5}  {} tokens/s", settings.prompt_tokens, figures.prefill)?;
        writeln!(
            out,
            "decode {:>3}@{:<4} {} tokens/s ({} sequences)",
            settings.gen_tokens, settings.depth_tokens, figures.decode, settings.sequences
        )?;
        writeln!(
            out,
            "step           p50 {:.3}  p99 {:.3}  max {:.3} ms  CV {:.4}  (sampling {:.3} ms)",
            figures.step_p50_ms,
            figures.step_p99_ms,
            figures.step_max_ms,
            figures.step_cv,
            figures.sampling_ms
        )?;
        writeln!(out, "first token    {:.2} ms", figures.first_token_ms)?;
        let (expected, [prefill_s, step_s]) = (&self.predicted, self.measured_s(figures));
        for (what, expected_s, measured_s) in
            [("prefill", expected.prefill_s, prefill_s), ("step", expected.step_s, step_s)]
        {
            writeln!(
                out,
                "{what:<8}       predicted {:.3} ms  measured {:.3} ms  ratio {:.3}",
                expected_s * 1e3,
                measured_s * 1e3,
                expected_s / measured_s
            )?;
        }
        write!(
            out,
            "weights read   {:.2} GB/s = {:.3} of {:.2} GB/s, which reading them alone takes",
            gigabytes(figures.weight_bytes_per_s),
            figures.read_share,
            gigabytes(figures.read_bytes_per_s),
        )?;
        if let Some(peaks) = &self.peaks {
            write!(
                out,
                " = {:.3} of a buffer's {:.2} GB/s, read before (the last cache {:.2})",
                figures.weight_bytes_per_s / peaks.memory_bytes_per_s,
                gigabytes(peaks.memory_bytes_per_s),
                gigabytes(peaks.cache_bytes_per_s),
            )?;
        }
        writeln!(out, "; keys and values {:.2} GB/s", gigabytes(figures.kv_bytes_per_s))?;
        let operations = figures.integer_ops_per_s;
        write!(out, "prefill        {:.1} G integer operations/s", operations / 1e9)?;
        if let Some(peaks) = &self.peaks {
            let peak = peaks.integer_ops_per_s;
            write!(out, " = {:.3} of {:.1} G", operations / peak, peak / 1e9)?;
        }
        writeln!(out)?;
        writeln!(
            out,
            "memory         peak {:.2} MiB of M_max {:.2} MiB; {} allocations, {} + {} faults",
            mebibytes(figures.peak_bytes),
            mebibytes(self.envelope.total),
            self.allocations,
            self.minor_faults,
            self.major_faults
        )?;
        if let Some(pressure) = self.pressure {
            writeln!(
                out,
                "pressure       {:.1} % before, {:.1} % after, waited {:.1} % of the run",
                pressure.before_percent, pressure.after_percent, pressure.waited_percent
            )?;
            if pressure.waited_percent > WAITED_PERCENT_MAX {
                out.write_str(
                    "               other work took processors: rates, shares and peaks are \
                     not what this machine can do\n",
                )?;
            }
        }
        if let Some(earlier) = self.earlier {
            writeln!(
                out,
                "now / earlier  prefill {:.3}  decode {:.3}  p99 {:.3}  peak {:.4}",
                figures.prefill.median / earlier.prefill_tokens_per_s,
                figures.decode.median / earlier.decode_tokens_per_s,
                figures.step_p99_ms / earlier.step_p99_ms,
                figures.peak_bytes as f64 / earlier.peak_bytes as f64
            )?;
        }
        Ok(())
    }

    /// Prints one JSON object.
    ///
    /// # Errors
    /// Output that cannot be written.
    pub fn json(&self, samples: &mut Samples) -> Result<(), Failure> {
        let repetitions = samples.decode_s.len();
        let figures = self.figures(samples)?;
        let mut out = Output::new();
        out.bytes(b"{\"model\":\"");
        out.json_piece(self.model);
        let _ = write!(out, "\",\"repetitions\":{repetitions}");
        let _ = self.write_json_speed(&mut out, &figures);
        let _ = self.write_json_machine(&mut out, &figures);
        out.bytes(b"}\n");
        out.finish()
    }

    fn write_json_speed(&self, out: &mut Output, figures: &Figures) -> std::fmt::Result {
        let (settings, args) = (self.settings, self.args);
        write!(
            out,
            ",\"isa\":\"{}\",\"lanes\":{},\"kv_type\":\"{}\",\"prompt_tokens\":{},\
             \"gen_tokens\":{},\"depth\":{},\"sequences\":{},\"prefill_chunk\":{},\
             \"prefill_tokens_per_s\":{:.3},\"decode_tokens_per_s\":{:.3},\
             \"prefill_min_max\":[{:.3},{:.3}],\"decode_min_max\":[{:.3},{:.3}]",
            self.isa,
            self.lanes,
            args.plan.kv_type.name(),
            settings.prompt_tokens,
            settings.gen_tokens,
            settings.depth_tokens,
            settings.sequences,
            args.plan.prefill_chunk,
            figures.prefill.median,
            figures.decode.median,
            figures.prefill.min,
            figures.prefill.max,
            figures.decode.min,
            figures.decode.max,
        )?;
        write!(
            out,
            ",\"load_s\":{:.3},\"ttft_ms\":{:.3},\"sampling_ms\":{:.4},\"step_ms\":\
             {{\"p50\":{:.3},\"p99\":{:.3},\"max\":{:.3},\"cv\":{:.5}}},\"logits_sha256\":\"",
            self.load_s,
            figures.first_token_ms,
            figures.sampling_ms,
            figures.step_p50_ms,
            figures.step_p99_ms,
            figures.step_max_ms,
            figures.step_cv,
        )?;
        for byte in figures.answer {
            write!(out, "{byte:02x}")?;
        }
        out.write_str("\"")
    }

    /// Medians: seconds of the prompt, seconds of a decode step.
    fn measured_s(&self, figures: &Figures) -> [f64; 2] {
        let prompt = self.settings.prompt_tokens as f64;
        [prompt / figures.prefill.median, self.settings.sequences as f64 / figures.decode.median]
    }

    fn write_json_machine(&self, out: &mut Output, figures: &Figures) -> std::fmt::Result {
        let work = &self.work;
        write!(
            out,
            ",\"weight_bytes_per_step\":{},\"kv_bytes_per_step\":{},\"weight_bytes_per_s\":{:.0},\
             \"kv_bytes_per_s\":{:.0},\"prompt_integer_ops\":{},\"integer_ops_per_s\":{:.0}",
            work.weight_bytes_per_step,
            work.kv_bytes_per_step,
            figures.weight_bytes_per_s,
            figures.kv_bytes_per_s,
            work.prompt_integer_ops,
            figures.integer_ops_per_s,
        )?;
        let (expected, [prefill_s, step_s]) = (&self.predicted, self.measured_s(figures));
        write!(
            out,
            ",\"predicted\":{{\"prefill_ms\":{:.4},\"step_ms\":{:.4},\"prefill_ratio\":{:.4},\
             \"step_ratio\":{:.4}}}",
            expected.prefill_s * 1e3,
            expected.step_s * 1e3,
            expected.prefill_s / prefill_s,
            expected.step_s / step_s,
        )?;
        write!(
            out,
            ",\"read_bytes_per_s\":{:.0},\"weight_share_of_read\":{:.4}",
            figures.read_bytes_per_s, figures.read_share,
        )?;
        match &self.peaks {
            None => out.write_str(
                ",\"buffer_read_bytes_per_s\":null,\"weight_share_of_buffer_read\":null,\
                 \"cache_bytes_per_s\":null,\"peak_integer_ops_per_s\":null,\
                 \"integer_share_of_peak\":null,\"peak_float_ops_per_s\":null",
            )?,
            Some(peaks) => write!(
                out,
                ",\"buffer_read_bytes_per_s\":{:.0},\"weight_share_of_buffer_read\":{:.4},\
                 \"cache_bytes_per_s\":{:.0},\"peak_integer_ops_per_s\":{:.0},\
                 \"integer_share_of_peak\":{:.4},\"peak_float_ops_per_s\":{:.0}",
                peaks.memory_bytes_per_s,
                figures.weight_bytes_per_s / peaks.memory_bytes_per_s,
                peaks.cache_bytes_per_s,
                peaks.integer_ops_per_s,
                figures.integer_ops_per_s / peaks.integer_ops_per_s,
                peaks.float_ops_per_s,
            )?,
        }
        write!(
            out,
            ",\"peak_bytes\":{},\"m_max_bytes\":{},\"minor_faults\":{},\"major_faults\":{},\
             \"allocations\":{}",
            figures.peak_bytes,
            self.envelope.total,
            self.minor_faults,
            self.major_faults,
            self.allocations
        )?;
        match self.pressure {
            None => out.write_str(",\"cpu_pressure\":null")?,
            Some(pressure) => write!(
                out,
                ",\"cpu_pressure\":{{\"before_percent\":{:.2},\"after_percent\":{:.2},\
                 \"waited_percent\":{:.2}}}",
                pressure.before_percent, pressure.after_percent, pressure.waited_percent
            )?,
        }
        let Some(earlier) = self.earlier else { return Ok(()) };
        write!(
            out,
            ",\"now_by_earlier\":{{\"prefill\":{:.4},\"decode\":{:.4},\"step_p99\":{:.4},\
             \"peak_bytes\":{:.4}}}",
            figures.prefill.median / earlier.prefill_tokens_per_s,
            figures.decode.median / earlier.decode_tokens_per_s,
            figures.step_p99_ms / earlier.step_p99_ms,
            figures.peak_bytes as f64 / earlier.peak_bytes as f64
        )
    }
}

impl Spread {
    /// The spread of a rate, from that of its seconds.
    fn rate(self, count: f64) -> Spread {
        Spread { median: count / self.median, min: count / self.max, max: count / self.min }
    }
}

impl Display for Spread {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.2} ({:.2} to {:.2})", self.median, self.min, self.max)
    }
}

/// Sorts, and gives median and ends. At least one value is there.
fn spread(values: &mut [f64]) -> Spread {
    values.sort_unstable_by(f64::total_cmp);
    let (middle, last) = (values.len() / 2, values.len() - 1);
    let median = match values.len() % 2 {
        1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    };
    Spread { median, min: values[0], max: values[last] }
}

/// The nearest rank of a sorted list: the least value that a share of all is at or below.
fn percentile(sorted: &[u32], share: f64) -> f64 {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    f64::from(sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0))
}

/// Standard deviation by mean.
fn deviation_by_mean(values: &[u32]) -> f64 {
    let count = values.len().max(1) as f64;
    let mean = values.iter().map(|value| f64::from(*value)).sum::<f64>() / count;
    let square = |value: &u32| (f64::from(*value) - mean).powi(2);
    let variance = values.iter().map(square).sum::<f64>() / count;
    if mean > 0.0 { variance.sqrt() / mean } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_percentiles_and_deviations() {
        let seconds = spread(&mut [4.0, 1.0, 2.0]);
        assert_eq!(seconds, Spread { median: 2.0, min: 1.0, max: 4.0 });
        assert_eq!(seconds.rate(8.0), Spread { median: 4.0, min: 2.0, max: 8.0 });
        assert_eq!(spread(&mut [4.0, 1.0, 2.0, 3.0]).median, 2.5);
        let steps: Vec<u32> = (0..=100).collect();
        assert_eq!(percentile(&steps, 0.5), 50.0);
        assert_eq!(percentile(&steps, 0.99), 99.0);
        assert_eq!(percentile(&steps, 1.0), 100.0);
        assert_eq!(percentile(&[1, 2, 3, 4], 0.5), 2.0);
        assert_eq!(percentile(&[7], 0.99), 7.0);
        assert_eq!(percentile(&[], 0.5), 0.0);
        assert_eq!(deviation_by_mean(&[3, 3, 3]), 0.0);
        assert_eq!(deviation_by_mean(&[1, 3]), 0.5);
    }
}
