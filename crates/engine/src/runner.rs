//! A certified plan of a decoder, loaded and running: prefill, decode, sample.
//!
//! Believes that the program has the names of `dctms_models::names`. Token ids in, token ids and
//! logits out; text, requests and bounds of a conversation are for the callers. From
//! [`Runner::load`] on, nothing here allocates.

mod logits;
mod overlap;

use dctms_exec::sample::SamplerRecord;
use dctms_exec::{
    CertifiedPlan, ConstantBytes, HostTensor, LoadHost, Ran, RetiredSession, Session,
    SessionOptions,
};
use dctms_ir::ids::{DimId, PhaseId, TensorId};
use dctms_ir::limits::SEGMENT;
use dctms_ir::plan::{Bounds, Plan};
use dctms_models::{names, phases};

use crate::error::{Class, EngineError};
use crate::model::ModelFiles;
use crate::planning::PENALTY_WINDOW;
use crate::rotary::RotaryPositions;
use crate::turns::{Reloads, Turn, Turns};

pub use overlap::Chunk;

/// Marks a token of a prompt that is no token: the rest of its bits are a row of the pictures'
/// embeddings.
pub const IMAGE_ROW: u32 = 1 << 31;

/// One sequence of a decode step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Its slot of the caches.
    pub slot: u32,
    /// The token.
    pub token: u32,
    /// The token's position.
    pub position: u32,
}

/// How a prefill ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefilled {
    /// Every token was appended.
    Whole,
    /// It was stopped. The caches hold the first `done` tokens, whole chunks; from there on they
    /// are to be run again. (Not from earlier: in the ring of a sliding window, what the last
    /// chunks saw may be overwritten.)
    Stopped {
        /// Tokens.
        done: usize,
    },
}

/// A loaded decoder.
pub struct Runner {
    session: Session,
    phases: Phases,
    dims: Dims,
    host: HostTensors,
    eyes: Option<SeeingTensors>,
    /// Where tokens in pictures have three positions.
    rotary: Option<(HostTensor, RotaryPositions)>,
    /// Where weights come and go.
    turns: Option<Turns>,
    bounds: Bounds,
    vocabulary: usize,
    window: u32,
    /// Rows of the logits of the last step.
    rows: usize,
    /// Whether a prefill is to stop.
    interrupt: fn() -> bool,
}

/// What became of a tile.
fn whole(ran: Ran) -> Result<(), EngineError> {
    match ran {
        Ran::Whole => Ok(()),
        Ran::Interrupted => {
            Err(EngineError::new(Class::System, "stopped before the picture was seen"))
        }
    }
}

struct Phases {
    load: PhaseId,
    prefill: PhaseId,
    decode: PhaseId,
    sample: PhaseId,
}

struct Dims {
    tokens: DimId,
    sequences: DimId,
    rows: DimId,
    segments: DimId,
    window_segments: DimId,
}

/// What only a model with eyes has.
struct SeeingTensors {
    phase: PhaseId,
    /// A tile beside a chunk, where the plan has such a region.
    region: Option<PhaseId>,
    /// Patches of the smallest tile that is worth it.
    region_patches_least: u64,
    pixels: HostTensor,
    grid: HostTensor,
    first_row: HostTensor,
    /// For each token of a step: 0, or 1 + the row that it is.
    rows: HostTensor,
    /// Where grids vary: patches and tokens of a tile.
    patches: Option<DimId>,
    tokens: Option<DimId>,
}

struct HostTensors {
    tokens: HostTensor,
    positions: HostTensor,
    slots: HostTensor,
    rows: HostTensor,
    logits: HostTensor,
    parameters: HostTensor,
    history: HostTensor,
    sampled: HostTensor,
    random: HostTensor,
    tokenizer: Option<TensorId>,
}

impl Runner {
    /// Maps the arena and starts the lanes.
    ///
    /// # Errors
    /// A plan that is not a decoder's, or an operating system without room.
    pub fn start(
        certified: CertifiedPlan<'_>,
        options: &SessionOptions,
        (vocabulary, window): (u64, u32),
    ) -> Result<Runner, EngineError> {
        let plan = certified.plan();
        let session = Session::start(certified, options)?;
        let missing =
            |what: &str| EngineError::new(Class::System, format!("the plan has no {what}"));
        let phase = |name: &str| plan.program.phase_named(name).ok_or_else(|| missing(name));
        let dim = |name: &str| plan.program.dim_named(name).ok_or_else(|| missing(name));
        let find =
            |name: &str| plan.program.tensor_named(name).and_then(|id| session.host_tensor(id));
        let tensor = |name: &str| find(name).ok_or_else(|| missing(name));
        let host = HostTensors {
            tokens: tensor(names::TOKENS)?,
            positions: tensor(names::POSITIONS)?,
            slots: tensor(names::SLOTS)?,
            rows: tensor(names::ROWS)?,
            logits: tensor(names::LOGITS)?,
            parameters: tensor(names::SAMPLER_PARAMETERS)?,
            history: tensor(names::SAMPLER_HISTORY)?,
            sampled: tensor(names::SAMPLED)?,
            random: tensor(names::RANDOM)?,
            tokenizer: plan.program.tensor_named(names::TOKENIZER),
        };
        let eyes = match phase(phases::VISION) {
            Err(_) => None,
            Ok(vision) => Some(SeeingTensors {
                phase: vision,
                region: plan.program.phase_named(phases::VISION_AND_PREFILL),
                region_patches_least: region_patches_least(plan),
                pixels: tensor(names::PIXELS)?,
                grid: tensor(names::GRID)?,
                first_row: tensor(names::FIRST_ROW)?,
                rows: tensor(names::IMAGE_ROWS)?,
                patches: dim(names::PATCHES).ok(),
                tokens: dim(names::IMAGE_TOKENS).ok(),
            }),
        };
        let bounds = &plan.bounds;
        let rotary = find(names::ROTARY_POSITIONS)
            .map(|place| (place, RotaryPositions::new(bounds.max_images, bounds.sequences)));
        Ok(Runner {
            eyes,
            rotary,
            turns: Turns::of(&plan.program),
            phases: Phases {
                load: phase("load")?,
                prefill: phase("prefill")?,
                decode: phase("decode")?,
                sample: phase("sample")?,
            },
            dims: Dims {
                tokens: dim("tokens")?,
                sequences: dim("sequences")?,
                rows: dim("rows")?,
                segments: dim("segments")?,
                window_segments: dim("segments.window")?,
            },
            host,
            session,
            bounds: plan.bounds.clone(),
            vocabulary: vocabulary as usize,
            window,
            rows: 0,
            interrupt: || false,
        })
    }

    /// The session, for its arena.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Records what the lanes do from now on, at most so many records of each: before loading.
    pub fn record(&mut self, certified: CertifiedPlan<'_>, records: usize) {
        self.session.record(certified, records);
    }

    /// Makes the arena resident from byte `from` on, every lane its share.
    ///
    /// # Errors
    /// A lane that panicked.
    pub fn prefault(&mut self, from: usize) -> Result<(), EngineError> {
        Ok(self.session.prefault(from)?)
    }

    /// Ends it; its caches stay for a runner of a larger plan.
    ///
    /// # Errors
    /// An operating system that does not take pages back.
    pub fn retire(self) -> Result<RetiredSession, EngineError> {
        Ok(self.session.retire()?)
    }

    /// Takes over the first `positions` of every cache.
    #[must_use]
    pub fn take_over(&mut self, old: &RetiredSession, positions: usize) -> bool {
        self.session.take_over(old, positions)
    }

    /// From now on every lane asks this before each task of a prefill or of a tile, which stops
    /// within the longest task once the answer is yes. (A decode step is short: it is always whole.)
    pub fn interrupt_by(&mut self, interrupt: fn() -> bool) {
        self.interrupt = interrupt;
    }

    /// The bounds of the plan.
    #[must_use]
    pub fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    /// Reads and packs the weights, builds the tokeniser's tables.
    ///
    /// # Errors
    /// A file that cannot be read, a vocabulary that is wrong.
    pub fn load(&mut self, host: &dyn LoadHost) -> Result<(), EngineError> {
        Ok(self.session.load(self.phases.load, host)?)
    }

    /// Keeps the files open where weights come and go; closes them where all stay.
    pub fn keep(&mut self, files: ModelFiles) {
        if let Some(turns) = &mut self.turns {
            turns.keep(files);
        }
    }

    /// What loading weights again took so far; nothing where all stay.
    #[must_use]
    pub fn reloads(&self) -> Option<Reloads> {
        self.turns.as_ref().map(Turns::reloads)
    }

    /// Makes a set of weights resident, if it is not.
    fn take_turn(&mut self, turn: Turn) -> Result<(), EngineError> {
        match &mut self.turns {
            Some(turns) => turns.take(turn, &mut self.session),
            None => Ok(()),
        }
    }

    /// The tokeniser's tables, once loaded.
    #[must_use]
    pub fn tokenizer_tables(&self) -> Option<ConstantBytes> {
        self.session.constant(self.host.tokenizer?)
    }

    /// Encodes a tile, given as its pixels' bytes, its rows and columns of patches, and its tokens;
    /// `write` fills the pixels, RGB row by row. Its embeddings stand from `first_row` on.
    ///
    /// # Errors
    /// Class `Usage` for a model without eyes, `OverBound` for a tile over the plan's bounds,
    /// `System` for one that was stopped: its rows are then as good as none.
    pub fn encode_tile(
        &mut self,
        tile: (usize, [u32; 2], u32),
        first_row: u32,
        write: impl FnOnce(&mut [u8]),
    ) -> Result<(), EngineError> {
        let phase = self.stage_tile(tile, first_row, write)?.phase;
        self.take_turn(Turn::Vision)?;
        whole(self.session.run_unless(phase, &self.interrupt)?)
    }

    /// Writes a tile's pixels and sizes.
    fn stage_tile(
        &mut self,
        (pixel_bytes, grid, tokens): (usize, [u32; 2], u32),
        first_row: u32,
        write: impl FnOnce(&mut [u8]),
    ) -> Result<&SeeingTensors, EngineError> {
        let Some(eyes) = &self.eyes else {
            return Err(EngineError::new(Class::Usage, "this plan has no vision file"));
        };
        let end = u64::from(first_row) + u64::from(tokens);
        let pixels = self.session.bytes_mut(eyes.pixels);
        if end > self.bounds.max_image_tokens || pixel_bytes > pixels.len() {
            return Err(EngineError::new(
                Class::OverBound,
                format!(
                    "a tile of {pixel_bytes} bytes that ends at image token {end}: the plan holds \
                     {} bytes and {} image tokens",
                    pixels.len(),
                    self.bounds.max_image_tokens
                ),
            ));
        }
        if let Some((_, rotary)) = &mut self.rotary {
            let merge = (grid[0] * grid[1] / tokens.max(1)).isqrt().max(1);
            rotary.placed(first_row, (grid[0] / merge, grid[1] / merge));
        }
        write(&mut pixels[..pixel_bytes]);
        self.session.integers_mut(eyes.grid).copy_from_slice(&grid);
        self.session.integers_mut(eyes.first_row)[0] = first_row;
        for (dim, value) in [(eyes.patches, grid[0] * grid[1]), (eyes.tokens, tokens)] {
            if let Some(dim) = dim {
                self.session.set_dim(dim, u64::from(value))?;
            }
        }
        Ok(eyes)
    }

    /// A constant, once loaded.
    #[must_use]
    pub fn constant(&self, id: TensorId) -> Option<ConstantBytes> {
        self.session.constant(id)
    }

    /// Appends `tokens` to a slot from `position` on, chunk by chunk; the logits of the last one
    /// are then row 0. `after_chunk` may stop it between chunks, the interrupt inside of one.
    ///
    /// # Errors
    /// Class `OverBound` when the positions pass N + M.
    pub fn prefill(
        &mut self,
        slot: u32,
        tokens: &[u32],
        position: u32,
        after_chunk: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Prefilled, EngineError> {
        self.check_context(position as usize + tokens.len())?;
        self.check_slot(slot)?;
        self.check_tokens(tokens.iter().copied())?;
        self.show(slot, position, tokens)?;
        let chunk = self.bounds.prefill_chunk as usize;
        let mut done = 0;
        for part in tokens.chunks(chunk) {
            self.stage_chunk(Chunk { slot, tokens: part, position: position + done as u32 })?;
            self.take_turn(Turn::Text)?;
            let ran = self.session.run_unless(self.phases.prefill, &self.interrupt)?;
            if ran == Ran::Interrupted {
                return Ok(Prefilled::Stopped { done });
            }
            done += part.len();
            if !after_chunk(done) && done < tokens.len() {
                return Ok(Prefilled::Stopped { done });
            }
        }
        self.rows = 1;
        Ok(Prefilled::Whole)
    }

    /// As [`Runner::prefill`] of at most one chunk, with the logits of the tokens at the indices
    /// `wanted`, at least one (for perplexity; the plan's `logit_rows` bound how many).
    ///
    /// # Errors
    /// Class `OverBound` when a bound is passed, `Usage` for an unknown token.
    pub fn prefill_with_rows(
        &mut self,
        slot: u32,
        tokens: &[u32],
        position: u32,
        wanted: impl ExactSizeIterator<Item = usize>,
    ) -> Result<Prefilled, EngineError> {
        self.check_context(position as usize + tokens.len())?;
        self.check_slot(slot)?;
        self.check_tokens(tokens.iter().copied())?;
        self.show(slot, position, tokens)?;
        let rows = wanted.len();
        self.session.set_dim(self.dims.tokens, tokens.len() as u64)?;
        self.session.set_dim(self.dims.rows, rows as u64)?;
        self.place(tokens.len(), |index| Step {
            slot,
            token: tokens[index],
            position: position + index as u32,
        });
        let targets = self.session.integers_mut(self.host.rows);
        for (target, index) in targets.iter_mut().zip(wanted) {
            assert!(index < tokens.len(), "row {index} of {} tokens", tokens.len());
            *target = index as u32;
        }
        self.take_turn(Turn::Text)?;
        let ran = self.session.run_unless(self.phases.prefill, &self.interrupt)?;
        self.rows = rows;
        Ok(match ran {
            Ran::Whole => Prefilled::Whole,
            Ran::Interrupted => Prefilled::Stopped { done: 0 },
        })
    }

    /// One token of each sequence; the logits' rows are in the order of `steps`.
    ///
    /// # Errors
    /// Class `OverBound` when there are more sequences than planned, or positions pass N + M.
    pub fn decode(&mut self, steps: &[Step]) -> Result<(), EngineError> {
        for step in steps {
            self.check_context(step.position as usize + 1)?;
            self.check_slot(step.slot)?;
        }
        self.check_tokens(steps.iter().map(|step| step.token))?;
        self.session.set_dim(self.dims.sequences, steps.len() as u64)?;
        self.session.set_dim(self.dims.rows, steps.len() as u64)?;
        let segments = |window: u32| -> u64 {
            steps.iter().map(|step| segments_of(step.position, window)).sum()
        };
        self.session.set_dim(self.dims.segments, segments(0))?;
        self.session.set_dim(self.dims.window_segments, segments(self.window))?;
        self.place(steps.len(), |index| steps[index]);
        self.take_turn(Turn::Text)?;
        self.session.run(self.phases.decode)?;
        self.rows = steps.len();
        Ok(())
    }

    /// Picks the next token of each row of the last step.
    ///
    /// # Errors
    /// Only if a lane panicked.
    pub fn sample(&mut self) -> Result<(), EngineError> {
        self.session.set_dim(self.dims.rows, self.rows as u64)?;
        self.session.run(self.phases.sample)?;
        Ok(())
    }

    /// Sets the sampling of a row.
    pub fn set_sampler(&mut self, row: usize, record: SamplerRecord) {
        let size = SamplerRecord::BYTES;
        let bytes = self.session.bytes_mut(self.host.parameters);
        bytes[row * size..(row + 1) * size].copy_from_slice(&record.to_bytes());
    }

    /// Sets the random state of a row.
    pub fn set_random(&mut self, row: usize, state: &[u8; 32]) {
        let bytes = self.session.bytes_mut(self.host.random);
        bytes[row * 32..(row + 1) * 32].copy_from_slice(state);
    }

    /// The random state of a row.
    #[must_use]
    pub fn random(&self, row: usize) -> [u8; 32] {
        let bytes = self.session.bytes(self.host.random);
        bytes[row * 32..(row + 1) * 32].try_into().expect("32 bytes")
    }

    /// The token that was picked for a row.
    #[must_use]
    pub fn sampled(&self, row: usize) -> u32 {
        self.session.integers(self.host.sampled)[row]
    }

    /// Sets the recent tokens of a row, the last ones of `tokens`.
    pub fn set_history(&mut self, row: usize, tokens: &[u32]) {
        let window = PENALTY_WINDOW as usize;
        let history = self.session.integers_mut(self.host.history);
        let history = &mut history[row * window..(row + 1) * window];
        history.fill(dctms_exec::sample::NO_TOKEN);
        let recent = &tokens[tokens.len().saturating_sub(window)..];
        // A picture is no token that could be said again.
        let said = recent.iter().filter(|token| **token & IMAGE_ROW == 0);
        history.iter_mut().zip(said).for_each(|(place, token)| *place = *token);
    }

    /// Remembers the pictures among tokens that follow in a slot.
    fn show(&mut self, slot: u32, position: u32, tokens: &[u32]) -> Result<(), EngineError> {
        match &mut self.rotary {
            Some((_, rotary)) => rotary.read(slot, position, tokens),
            None => Ok(()),
        }
    }

    fn place(&mut self, count: usize, step: impl Fn(usize) -> Step) {
        for index in 0..count {
            let step = step(index);
            let image = step.token & IMAGE_ROW != 0;
            if let Some(eyes) = &self.eyes {
                let row = if image { (step.token ^ IMAGE_ROW) + 1 } else { 0 };
                self.session.integers_mut(eyes.rows)[index] = row;
            }
            let token = if image { 0 } else { step.token };
            self.session.integers_mut(self.host.tokens)[index] = token;
            self.session.integers_mut(self.host.positions)[index] = step.position;
            self.session.integers_mut(self.host.slots)[index] = step.slot;
            if let Some((place, rotary)) = &self.rotary {
                let three = rotary.at(step.slot, step.position);
                self.session.integers_mut(*place)[3 * index..][..3].copy_from_slice(&three);
            }
        }
    }

    fn check_slot(&self, slot: u32) -> Result<(), EngineError> {
        if u64::from(slot) >= self.bounds.sequences {
            return Err(EngineError::new(
                Class::OverBound,
                format!("slot {slot}, the plan holds {} sequences", self.bounds.sequences),
            ));
        }
        Ok(())
    }

    fn check_tokens(&self, tokens: impl Iterator<Item = u32>) -> Result<(), EngineError> {
        for token in tokens {
            if token & IMAGE_ROW != 0 {
                let (row, rows) = (token ^ IMAGE_ROW, self.bounds.max_image_tokens);
                if u64::from(row) >= rows {
                    let message = format!("row {row} of {rows} image tokens");
                    return Err(EngineError::new(Class::OverBound, message));
                }
                continue;
            }
            if token as usize >= self.vocabulary {
                let count = self.vocabulary;
                let message = format!("token {token} of a vocabulary of {count}");
                return Err(EngineError::new(Class::Usage, message));
            }
        }
        Ok(())
    }

    fn check_context(&self, end: usize) -> Result<(), EngineError> {
        let bound = self.bounds.max_input_tokens + self.bounds.max_output_tokens;
        if end as u64 > bound {
            return Err(EngineError::new(
                Class::OverBound,
                format!(
                    "{end} positions pass the plan's bound of {bound} (input {} + output {})",
                    self.bounds.max_input_tokens, self.bounds.max_output_tokens
                ),
            ));
        }
        Ok(())
    }
}

/// Patches of the smallest tile that is worth a run of the region, as the plan says.
fn region_patches_least(plan: &Plan) -> u64 {
    plan.regions.iter().map(|region| region.least_patches).max().unwrap_or(0)
}

/// Segments of 256 absolute positions that a token at `position` sees (`window` 0: all).
fn segments_of(position: u32, window: u32) -> u64 {
    let end = u64::from(position) + 1;
    let start = match window {
        0 => 0,
        window => end.saturating_sub(u64::from(window)),
    };
    (end - 1) / SEGMENT - start / SEGMENT + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_counted_at_absolute_boundaries() {
        assert_eq!(segments_of(0, 0), 1);
        assert_eq!(segments_of(255, 0), 1);
        assert_eq!(segments_of(256, 0), 2);
        assert_eq!(segments_of(600, 512), 3);
        assert_eq!(segments_of(767, 512), 2);
        assert_eq!(segments_of(3, 512), 1);
    }
}
