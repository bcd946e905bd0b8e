//! `dctms bench MODEL --mmproj FILE`: a prompt with a picture, tiles beside chunks against one step
//! after the other, and what the plan expected of both.
//!
//! The gain is of pairs that ran one after the other: the share of the first way's time that the
//! second one saves. Its interval is of order statistics, which asks nothing of how the times are
//! distributed.

use std::fmt::Write as _;

use dctms_engine::bench::pictures::{
    Expected, PictureSamples, PictureSettings, Tile, expected, measure,
};
use dctms_engine::generation::Control;
use dctms_engine::planning::resolve_bounds;
use dctms_engine::{Class, EngineError, VisionMode};
use dctms_system::interrupt::stop_requested;
use dctms_system::process::memory_facts;

use super::options::{BenchArgs, Format};
use crate::commands::model_path;
use crate::commands::run::{mebibytes, open_model};
use crate::commands::stream::Output;
use crate::failure::Failure;
use crate::machine::{hexadecimal, lanes_of, settings};
use crate::process::{self, CompileStage, HeapLimit, Prepared};

/// Runs the benchmark.
///
/// # Errors
/// A defect of the files, no room, or answers that differ.
pub fn run(args: &BenchArgs) -> Result<(), Failure> {
    let (mut prepared, told) = prepare(args)?;
    let mut between = || match stop_requested() {
        true => Control::Stop,
        false => Control::Continue,
    };
    let samples = measure(&mut prepared.runner, &told.settings, &told.tile, &mut between)?;
    let figures = Figures::of(&samples, &told.expected);
    let peak_bytes = memory_facts()?.peak_resident_bytes;
    let mut out = Output::new();
    let _ = match args.format {
        Format::Text => told.text(&mut out, &figures, (peak_bytes, prepared.envelope.total)),
        Format::Json => {
            told.json(&mut out, &figures, &samples, (peak_bytes, prepared.envelope.total))
        }
    };
    out.finish()
}

/// What is known before anything runs.
struct Told {
    name: String,
    settings: PictureSettings,
    tile: Tile,
    chunk: u64,
    lanes: u32,
    profile: String,
    expected: Expected,
}

fn prepare(args: &BenchArgs) -> Result<(Prepared, Told), Failure> {
    let stage = CompileStage::open()?;
    let (started, told) = {
        let path = &model_path(args.model.as_deref())?;
        let model = open_model(path, args.plan.vision.as_deref(), &[])?;
        stage.limit_for(&model, lanes_of(&args.plan)?, 0)?;
        model.require_complete()?;
        let eyes = model.eyes.as_ref();
        let eyes = eyes.ok_or_else(|| EngineError::new(Class::Usage, "no vision file"))?;
        let tile = Tile::largest(eyes);
        let bench = PictureSettings {
            text_tokens: args.prompt_tokens as usize,
            tiles: args.picture_tiles() as usize,
            repetitions: args.repetitions as usize,
        };
        let mut plan_args = args.plan.clone();
        plan_args.mode = Some(VisionMode::Overlapped);
        let prompt = bench.prompt_tokens(&tile) as u64;
        plan_args.max_input = plan_args.max_input.or(Some(prompt));
        plan_args.max_output = plan_args.max_output.or(Some(1));
        let rows = bench.tiles as u64 * u64::from(tile.tokens);
        let one = resolve_bounds(&model, &settings(&plan_args)?, None)?;
        if one.max_image_tokens < rows {
            // Each picture has room for a tile.
            plan_args.max_images = Some(args.picture_tiles());
        }
        let mut settings = settings(&plan_args)?;
        settings.runtime.heap_fixed_bytes += bench.heap_bytes(&tile);
        let bounds = resolve_bounds(&model, &settings, None)?;
        let planned = process::certify(&model, &settings, &bounds)?;
        let machine = &planned.plan.machine;
        let told = Told {
            name: model.checkpoint.file_name(0).to_string(),
            settings: bench,
            tile,
            chunk: bounds.prefill_chunk,
            lanes: machine.lanes,
            profile: machine.profile_sha256.clone(),
            expected: expected(&planned.plan, &settings.balance, &bench, &tile)?,
        };
        let started = process::launch(&stage, &model, &settings, &planned, HeapLimit::Set)?;
        (started, stage.lasting(|| told.lasting()))
    };
    stage.close()?;
    Ok((process::load(started, None)?, told))
}

/// Median, least and greatest of seconds, and a gain with its interval.
struct Figures {
    serial: [f64; 3],
    overlapped: [f64; 3],
    tiles_s: f64,
    /// Percent: median, low, high.
    gain: [f64; 3],
    /// Confidence of the interval, percent.
    confidence: f64,
    /// Percent by which the expected time of each way is off what was measured.
    off: [f64; 2],
    expected_gain: f64,
}

impl Figures {
    fn of(samples: &PictureSamples, expected: &Expected) -> Figures {
        let pairs = samples.serial_s.iter().zip(&samples.overlapped_s);
        let gains = sorted(pairs.map(|(serial, overlapped)| 100.0 * (1.0 - overlapped / serial)));
        let (serial, overlapped) = (
            sorted(samples.serial_s.iter().copied()),
            sorted(samples.overlapped_s.iter().copied()),
        );
        let (rank, confidence) = interval(gains.len());
        let spread = |sorted: &[f64]| [median(sorted), sorted[0], sorted[sorted.len() - 1]];
        let off = |expected: f64, measured: f64| 100.0 * (expected / measured - 1.0);
        Figures {
            gain: [median(&gains), gains[rank], gains[gains.len() - 1 - rank]],
            confidence,
            off: [
                off(expected.serial_s, median(&serial)),
                off(expected.overlapped_s, median(&overlapped)),
            ],
            expected_gain: 100.0 * (1.0 - expected.overlapped_s / expected.serial_s),
            serial: spread(&serial),
            overlapped: spread(&overlapped),
            tiles_s: median(&sorted(samples.tiles_s.iter().copied())),
        }
    }
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values
}

fn median(sorted: &[f64]) -> f64 {
    (sorted[(sorted.len() - 1) / 2] + sorted[sorted.len() / 2]) / 2.0
}

/// The innermost pair of order statistics (counted from each end) that holds the median with at
/// least 95 %, and how surely it does: 1 − 2·P(binomial(n, ½) ≤ rank).
fn interval(count: usize) -> (usize, f64) {
    let sure = |rank: usize| {
        let mut term = 0.5f64.powi(count as i32);
        let mut below = term;
        for k in 1..=rank {
            term *= (count + 1 - k) as f64 / k as f64;
            below += term;
        }
        100.0 * (1.0 - 2.0 * below)
    };
    let rank = (0..count / 2).take_while(|rank| sure(*rank) >= 95.0).last().unwrap_or(0);
    (rank, sure(rank).max(0.0))
}

impl Told {
    /// A copy in the heap of what is alive.
    fn lasting(&self) -> Told {
        Told { name: self.name.clone(), profile: self.profile.clone(), ..*self }
    }

    fn text(
        &self,
        out: &mut Output,
        figures: &Figures,
        (peak_bytes, m_max_bytes): (u64, u64),
    ) -> std::fmt::Result {
        let PictureSettings { text_tokens, tiles, repetitions } = self.settings;
        let beside = "tiles beside chunks";
        writeln!(
            out,
            "{}: {text_tokens} tokens of text, a picture of {tiles} tiles ({} tokens each), chunks \
             of {}, {} lanes, {repetitions} repetitions",
            self.name, self.tile.tokens, self.chunk, self.lanes
        )?;
        writeln!(out, "                      median      min      max   expected      off")?;
        let expected = [self.expected.serial_s, self.expected.overlapped_s];
        let rows = [("one after the other", figures.serial), (beside, figures.overlapped)];
        for (((name, seconds), expected), off) in rows.into_iter().zip(expected).zip(figures.off) {
            let [median, least, greatest] = seconds;
            writeln!(
                out,
                "{name:<19}  {median:>7.3} {least:>8.3} {greatest:>8.3}   {expected:>8.3}  {off:>6.1} %"
            )?;
        }
        writeln!(
            out,
            "tiles of the first   {:>7.3}                     {:>8.3}",
            figures.tiles_s, self.expected.tiles_s
        )?;
        let [gain, low, high] = figures.gain;
        writeln!(
            out,
            "gain {gain:.2} % of the time, {low:.2} to {high:.2} % ({:.1} % sure); expected {:.2} %",
            figures.confidence, figures.expected_gain
        )?;
        writeln!(
            out,
            "peak {:.1} MiB of M_max {:.1} MiB; the same logits each time",
            mebibytes(peak_bytes),
            mebibytes(m_max_bytes)
        )
    }

    fn json(
        &self,
        out: &mut Output,
        figures: &Figures,
        samples: &PictureSamples,
        (peak_bytes, m_max_bytes): (u64, u64),
    ) -> std::fmt::Result {
        let PictureSettings { text_tokens, tiles, repetitions } = self.settings;
        let three = |[a, b, c]: [f64; 3]| format!("[{a:.6},{b:.6},{c:.6}]");
        write!(out, "{{\"model\":\"")?;
        out.json_piece(&self.name);
        write!(
            out,
            "\",\"text_tokens\":{text_tokens},\"tiles\":{tiles},\"tile_tokens\":{},\"chunk\":{},\
             \"lanes\":{},\"repetitions\":{repetitions},\"profile_sha256\":\"{}\",\
             \"serial_s\":{},\"overlapped_s\":{},\"serial_tiles_s\":{:.6},\"chunks_beside\":{}",
            self.tile.tokens,
            self.chunk,
            self.lanes,
            self.profile,
            three(figures.serial),
            three(figures.overlapped),
            figures.tiles_s,
            samples.chunks_beside,
        )?;
        write!(
            out,
            ",\"gain_percent\":{},\"confidence_percent\":{:.2},\"expected\":{{\"serial_s\":{:.6},\
             \"overlapped_s\":{:.6},\"tiles_s\":{:.6},\"gain_percent\":{:.3},\
             \"off_percent\":[{:.2},{:.2}]}}",
            three(figures.gain),
            figures.confidence,
            self.expected.serial_s,
            self.expected.overlapped_s,
            self.expected.tiles_s,
            figures.expected_gain,
            figures.off[0],
            figures.off[1],
        )?;
        writeln!(
            out,
            ",\"peak_bytes\":{peak_bytes},\"m_max_bytes\":{m_max_bytes},\"logits_sha256\":\"{}\"}}",
            hexadecimal(&samples.answer)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_hold_the_median_as_surely_as_they_say() {
        // Of 10 values the second and the ninth: 1 − 2·11/1024.
        let (rank, confidence) = interval(10);
        assert_eq!(rank, 1);
        assert!((confidence - 97.85).abs() < 0.01);
        assert_eq!(interval(20).0, 5);
        // Five values cannot do it: their ends, and less than asked.
        assert_eq!(interval(5), (0, 93.75));
        assert_eq!(median(&[1.0, 2.0, 4.0, 8.0]), 3.0);
    }
}
