//! The workload of a benchmark: seeded token ids in, times and an answer out.
//!
//! A repetition runs the prompt from position 0, then decodes after `depth_tokens` of context
//! (none: from position 0, as llama-bench's `tg` does). A decode step is what a user waits for: the
//! pass and the choice of the token, which is then the next input; end tokens mean nothing. All
//! room is made before the first token. The logits of the last step are hashed, because a
//! benchmark carries its answer: repetitions that differ are an error, not a figure.

pub mod pictures;

use std::time::Instant;

use dctms_exec::sample::{SamplerRecord, random_state};
use dctms_ir::op::{AttentionShape, OpKind};
use dctms_ir::plan::Plan;
use dctms_ir::{Dtype, Residence, TensorId};
use dctms_kernels::peak::Streams;
use sha2::{Digest, Sha256};

use crate::error::{Class, EngineError};
use crate::generation::{Control, SEQUENCES_MAX};
use crate::runner::{Prefilled, Runner, Step};

/// What is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BenchSettings {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Decode steps.
    pub gen_tokens: usize,
    /// Tokens of context before the first decode step.
    pub depth_tokens: usize,
    /// Sequences decoded together.
    pub sequences: usize,
    /// Repetitions.
    pub repetitions: usize,
}

impl BenchSettings {
    /// Heap that a benchmark takes beside any run's, bytes.
    #[must_use]
    pub fn heap_bytes(&self) -> u64 {
        let tokens = self.prompt_tokens.max(self.depth_tokens) * size_of::<u32>();
        let repetitions = 6 * self.repetitions * size_of::<f64>();
        let steps = self.repetitions * self.gen_tokens * size_of::<u32>();
        (tokens + repetitions + steps) as u64
    }
}

/// Times, in order of measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Samples {
    /// Seconds of the prompt, one for each repetition.
    pub prefill_s: Vec<f64>,
    /// Seconds until the first token was chosen.
    pub first_token_s: Vec<f64>,
    /// Seconds of all decode steps.
    pub decode_s: Vec<f64>,
    /// Seconds of those that choosing tokens took.
    pub sampling_s: Vec<f64>,
    /// Microseconds of each decode step of all repetitions.
    pub step_us: Vec<u32>,
    /// Bytes a second at which the lanes read the weights of a step and do nothing else: the best
    /// of some passes after each repetition, over the same pages and in the same minute as its steps.
    pub read_bytes_per_s: Vec<f64>,
    /// What share of it the weights of each repetition's steps were read at: filled by
    /// [`Samples::fill_read_shares`].
    pub read_shares: Vec<f64>,
    /// SHA-256 of the first sequence's logits of the last step, the same in each repetition.
    pub answer: [u8; 32],
    tokens: Vec<u32>,
}

impl Samples {
    /// Room for everything.
    #[must_use]
    pub fn new(settings: &BenchSettings) -> Samples {
        let each = || Vec::with_capacity(settings.repetitions);
        Samples {
            prefill_s: each(),
            first_token_s: each(),
            decode_s: each(),
            sampling_s: each(),
            step_us: Vec::with_capacity(settings.repetitions * settings.gen_tokens),
            read_bytes_per_s: each(),
            read_shares: each(),
            answer: [0; 32],
            tokens: Vec::with_capacity(settings.prompt_tokens.max(settings.depth_tokens)),
        }
    }
}

impl Samples {
    /// Forgets all but the first repetitions.
    fn keep(&mut self, repetitions: usize, steps: usize) {
        for times in [
            &mut self.prefill_s,
            &mut self.first_token_s,
            &mut self.decode_s,
            &mut self.sampling_s,
            &mut self.read_bytes_per_s,
        ] {
            times.truncate(repetitions);
        }
        self.step_us.truncate(repetitions * steps);
    }

    /// Compares each repetition's steps with the reading that followed them, before the times are
    /// sorted. `step_bytes` is what a step reads of weights, of which a repetition has `steps`.
    pub fn fill_read_shares(&mut self, step_bytes: u64, steps: usize) {
        let bytes = step_bytes as f64 * steps as f64;
        self.read_shares.clear();
        let pairs = self.decode_s.iter().zip(&self.read_bytes_per_s);
        self.read_shares.extend(pairs.map(|(seconds, read)| bytes / seconds / read));
    }
}

/// Runs every repetition, after a short one that is not measured. `between` is asked between
/// steps whether to go on; a prompt stops where the runner is told to. Of a repetition that was not
/// finished nothing is kept, so there may be none.
///
/// # Errors
/// Bounds, a lane that panicked, or repetitions with different answers (class `System`).
pub fn measure(
    runner: &mut Runner,
    settings: &BenchSettings,
    samples: &mut Samples,
    between: &mut dyn FnMut() -> Control,
) -> Result<(), EngineError> {
    assert!(settings.sequences <= SEQUENCES_MAX, "{} sequences", settings.sequences);
    let count = settings.prompt_tokens.max(settings.depth_tokens);
    fill_tokens(&mut samples.tokens, count, runner.vocabulary() as u32);
    warm_up(runner, settings, &samples.tokens)?;
    for repetition in 0..settings.repetitions {
        let finished = match prompt(runner, settings, samples)? {
            Prefilled::Whole => decode(runner, settings, samples, between)?,
            Prefilled::Stopped { .. } => None,
        };
        let Some(answer) = finished else {
            samples.keep(repetition, settings.gen_tokens);
            break;
        };
        if repetition > 0 && answer != samples.answer {
            let what = format!("repetition {repetition} gave other logits than those before");
            return Err(EngineError::new(Class::System, what));
        }
        samples.answer = answer;
        samples.read_bytes_per_s.push(read_weights(runner)?);
        if between() == Control::Stop {
            break;
        }
    }
    Ok(())
}

/// Seed of the token ids.
const SEED: u64 = 0x0bad_cafe;

/// Token ids by SplitMix64: the same in every run, without a tokeniser.
fn fill_tokens(tokens: &mut Vec<u32>, count: usize, vocabulary: u32) {
    let mut state = SEED;
    tokens.clear();
    tokens.extend((0..count).map(|_| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (((z ^ (z >> 31)) >> 32) % u64::from(vocabulary)) as u32
    }));
}

/// Tokens and steps that are run before anything is measured.
const WARM_TOKENS: usize = 64;
const WARM_STEPS: usize = 4;

fn warm_up(
    runner: &mut Runner,
    settings: &BenchSettings,
    tokens: &[u32],
) -> Result<(), EngineError> {
    runner.prefill(0, &tokens[..tokens.len().min(WARM_TOKENS)], 0, &mut |_| true)?;
    choose(runner, 1)?;
    for position in 0..WARM_STEPS.min(settings.gen_tokens) {
        runner.decode(&[Step { slot: 0, token: tokens[0], position: position as u32 }])?;
        choose(runner, 1)?;
    }
    Ok(())
}

fn prompt(
    runner: &mut Runner,
    settings: &BenchSettings,
    samples: &mut Samples,
) -> Result<Prefilled, EngineError> {
    let start = Instant::now();
    let tokens = &samples.tokens[..settings.prompt_tokens];
    let prefilled = runner.prefill(0, tokens, 0, &mut |_| true)?;
    if prefilled != Prefilled::Whole {
        return Ok(prefilled);
    }
    samples.prefill_s.push(start.elapsed().as_secs_f64());
    choose(runner, 1)?;
    samples.first_token_s.push(start.elapsed().as_secs_f64());
    Ok(Prefilled::Whole)
}

/// All decode steps of a repetition; gives the digest of the last logits, or nothing where it was
/// stopped.
fn decode(
    runner: &mut Runner,
    settings: &BenchSettings,
    samples: &mut Samples,
    between: &mut dyn FnMut() -> Control,
) -> Result<Option<[u8; 32]>, EngineError> {
    let (depth, count) = (settings.depth_tokens, settings.sequences);
    let mut steps = [Step { slot: 0, token: 0, position: depth as u32 }; SEQUENCES_MAX];
    let steps = &mut steps[..count];
    for (slot, step) in steps.iter_mut().enumerate() {
        step.slot = slot as u32;
        step.token = samples.tokens[slot % samples.tokens.len()];
        if depth > 0 {
            let tokens = &samples.tokens[..depth];
            if runner.prefill(step.slot, tokens, 0, &mut |_| true)? != Prefilled::Whole {
                return Ok(None);
            }
        }
    }
    let mut sampling_s = 0.0;
    let start = Instant::now();
    for _ in 0..settings.gen_tokens {
        if between() == Control::Stop {
            return Ok(None);
        }
        let begun = Instant::now();
        runner.decode(steps)?;
        let computed = Instant::now();
        choose(runner, count)?;
        for (row, step) in steps.iter_mut().enumerate() {
            step.token = runner.sampled(row);
            step.position += 1;
        }
        sampling_s += computed.elapsed().as_secs_f64();
        samples.step_us.push(begun.elapsed().as_micros() as u32);
    }
    samples.decode_s.push(start.elapsed().as_secs_f64());
    samples.sampling_s.push(sampling_s);
    let mut hash = Sha256::new();
    runner.hash_logits(0, &mut hash);
    Ok(Some(hash.finalize().into()))
}

/// Passes over the weights for each number of streams.
const READ_PASSES: usize = 3;

/// Bytes a second of the best pass.
fn read_weights(runner: &mut Runner) -> Result<f64, EngineError> {
    let mut best = 0.0_f64;
    for streams in Streams::ALL {
        for _ in 0..READ_PASSES {
            let start = Instant::now();
            let bytes = runner.read_decode_weights(streams)?;
            best = best.max(bytes as f64 / start.elapsed().as_secs_f64());
        }
    }
    Ok(best)
}

/// Chooses the next token of each row, greedily.
fn choose(runner: &mut Runner, rows: usize) -> Result<(), EngineError> {
    let mut stepper = runner.steps()?;
    for row in 0..rows {
        stepper.set_sampler(row, SamplerRecord::GREEDY);
        stepper.set_random(row, &random_state(row as u64));
        stepper.set_history(row, &[]);
    }
    stepper.sample()
}

/// What the measured work reads and computes, from the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Bytes of packed weights that a decode step reads: every matrix of a product, once.
    pub weight_bytes_per_step: u64,
    /// Bytes of keys and values that a decode step reads, on average over the steps.
    pub kv_bytes_per_step: u64,
    /// Multiplications and additions of the prompt's products with quantised activations.
    pub prompt_integer_ops: u64,
}

/// The work of a benchmark under a plan.
///
/// # Panics
/// For a plan that is not a decoder's.
#[must_use]
pub fn work(plan: &Plan, settings: &BenchSettings) -> Work {
    let program = &plan.program;
    let phase = |name: &str| {
        let found = program.phase_named(name);
        &program.phases[found.expect("a decoder's phase").index()]
    };
    let mut read: Vec<TensorId> = Vec::new();
    let mut kv_bytes = 0u64;
    for op in &phase("decode").ops {
        match &op.kind {
            OpKind::MatMul { .. } => read.push(op.inputs[1]),
            OpKind::GatedMatMul { .. } => read.extend(&op.inputs[1..3]),
            OpKind::Attention(shape)
            | OpKind::AttentionPrefill(shape)
            | OpKind::AttentionDecodePartial(shape) => {
                kv_bytes += kv_bytes_of(plan, shape, &op.inputs[1..3], settings);
            }
            _ => {}
        }
    }
    read.retain(|id| program.tensor(*id).residence == Residence::Constant);
    read.sort_unstable();
    read.dedup();
    Work {
        weight_bytes_per_step: read.iter().map(|id| plan.placements[id.index()].bytes).sum(),
        kv_bytes_per_step: kv_bytes,
        prompt_integer_ops: prompt_integer_ops(plan, settings),
    }
}

/// Bytes of one layer's caches that a decode step of all sequences reads, on average.
fn kv_bytes_of(
    plan: &Plan,
    shape: &AttentionShape,
    caches: &[TensorId],
    settings: &BenchSettings,
) -> u64 {
    let bytes: u64 = caches.iter().map(|id| plan.placements[id.index()].bytes).sum();
    let positions = u64::from(shape.capacity) * plan.bounds.sequences;
    let bytes_per_position = bytes / positions.max(1);
    let most = if shape.window == 0 { u64::MAX } else { u64::from(shape.window) };
    let steps = settings.gen_tokens as u64;
    let seen: u64 = (1..=steps).map(|step| (settings.depth_tokens as u64 + step).min(most)).sum();
    bytes_per_position * settings.sequences as u64 * seen / steps.max(1)
}

fn prompt_integer_ops(plan: &Plan, settings: &BenchSettings) -> u64 {
    let program = &plan.program;
    let Some(prefill) = program.phase_named("prefill") else { return 0 };
    let (tokens, rows) = (program.dim_named("tokens"), program.dim_named("rows"));
    let mut dims: Vec<u64> = program.dims.iter().map(|dim| dim.min).collect();
    let chunk = plan.bounds.prefill_chunk as usize;
    let mut ops = 0u64;
    let mut left = settings.prompt_tokens;
    while left > 0 {
        let count = left.min(chunk);
        left -= count;
        for (dim, value) in [(tokens, count as u64), (rows, 1)] {
            if let Some(dim) = dim {
                dims[dim.index()] = value;
            }
        }
        for op in &program.phases[prefill.index()].ops {
            let (rows, cols) = match op.kind {
                OpKind::MatMul { rows, cols, .. } => (rows, cols),
                OpKind::GatedMatMul { rows, cols, .. } => (2 * rows, cols),
                _ => continue,
            };
            let input = program.tensor(op.inputs[0]);
            if input.dtype == Dtype::U8 {
                let tokens = input.shape.get(1).and_then(|size| size.value(&dims)).unwrap_or(0);
                ops += 2 * rows * cols * tokens;
            }
        }
    }
    ops
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_ids_are_seeded_and_within_the_vocabulary() {
        let (mut first, mut second) = (Vec::new(), Vec::new());
        fill_tokens(&mut first, 500, 97);
        fill_tokens(&mut second, 300, 97);
        assert_eq!(first[..300], second[..]);
        assert!(first.iter().all(|token| *token < 97));
        assert!((0..97).filter(|id| first.contains(id)).count() > 80, "ids are spread");
    }
}
