//! A certified plan of a decoder, loaded and running: prefill, decode, sample.
//!
//! Believes that the program has the names of `dctms_models::names`. Token ids in, token ids and
//! logits out; text, requests and bounds of a conversation are for the callers. From
//! [`Runner::load`] on, nothing here allocates.

mod logits;
mod overlap;
mod steps;

use dctms_exec::{
    CertifiedPlan, ConstantBytes, FilePart, HostTensor, LoadHost, Ran, RetiredSession, Session,
    SessionOptions,
};
use dctms_ir::ids::{DimId, PhaseId, TensorId};
use dctms_ir::plan::{Bounds, Plan};
use dctms_ir::program::{Phase, Program};
use dctms_ir::twin;
use dctms_kernels::peak::Streams;
use dctms_models::{names, phases};

use crate::error::{Class, EngineError};
use crate::model::ModelFiles;
use crate::rotary::RotaryPositions;
use crate::turns::{Reloads, Turn, Turns};

pub use overlap::{Chunk, Tile};
use steps::{Core, Dims, HostTensors};
pub use steps::{Runs, Stepper};

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
    core: Core,
    tokenizer: Option<TensorId>,
    eyes: Option<SeeingTensors>,
    /// Phases for smaller chunks, the smallest first.
    chunks: Vec<ChunkMember>,
    /// Where weights come and go.
    turns: Option<Turns>,
    /// Whether a prefill is to stop.
    interrupt: fn() -> bool,
}

/// The plan by which a tile was encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TilePlan {
    /// The one for any tile that the bounds allow.
    Bound,
    /// A smaller member of the family: for at most so many patches.
    Member(u64),
    /// The region of a tile and a chunk.
    Chunk,
    /// The twin that runs beside decode steps.
    Steps,
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
    /// A tile, and a step beside it, where the plan has such twins.
    beside: Option<(PhaseId, PhaseId)>,
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
    /// Where grids vary: patches and tokens of a tile.
    patches: Option<DimId>,
    tokens: Option<DimId>,
    /// Members of the family for smaller tiles, the smallest first.
    smaller: Vec<Member>,
}

/// A phase that encodes tiles of so many patches or fewer.
struct Member {
    phase: PhaseId,
    patches: DimId,
    tokens: DimId,
    patches_max: u64,
}

/// A phase that appends chunks of so many tokens or fewer.
struct ChunkMember {
    phase: PhaseId,
    tokens: DimId,
    tokens_max: usize,
}

/// Members of the decoder's family for smaller chunks, the smallest first.
fn smaller_chunks(program: &Program) -> Vec<ChunkMember> {
    let member = |(index, phase): (usize, &Phase)| {
        let is_member = twin::family(&phase.name) == phases::PREFILL;
        let bound = twin::bound(&phase.name).filter(|_| is_member)?;
        let tokens = program.dim_named(&twin::member("tokens", bound))?;
        Some(ChunkMember { phase: PhaseId::of(index), tokens, tokens_max: bound as usize })
    };
    let phases = program.phases.iter().enumerate();
    let mut members: Vec<ChunkMember> = phases.filter_map(member).collect();
    members.sort_by_key(|member| member.tokens_max);
    members
}

impl SeeingTensors {
    /// The smallest member that a tile fits.
    fn member(&self, patches: u64) -> Option<&Member> {
        self.smaller.iter().find(|member| patches <= member.patches_max)
    }

    /// The phase that encodes a tile alone.
    fn phase_for(&self, patches: u64) -> (PhaseId, TilePlan) {
        match self.member(patches) {
            Some(member) => (member.phase, TilePlan::Member(member.patches_max)),
            None => (self.phase, TilePlan::Bound),
        }
    }
}

/// Members of the encoder's family for smaller tiles, the smallest first.
fn smaller(program: &Program) -> Vec<Member> {
    let member = |(index, phase): (usize, &Phase)| {
        let is_member = twin::family(&phase.name) == phases::VISION;
        let bound = twin::bound(&phase.name).filter(|_| is_member)?;
        let dim = |name: &str| program.dim_named(&twin::member(name, bound));
        let (patches, tokens) = (dim(names::PATCHES)?, dim(names::IMAGE_TOKENS)?);
        Some(Member { phase: PhaseId::of(index), patches, tokens, patches_max: bound })
    };
    let mut members: Vec<Member> = program.phases.iter().enumerate().filter_map(member).collect();
    members.sort_by_key(|member| member.patches_max);
    members
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
                patches: dim(names::PATCHES).ok(),
                tokens: dim(names::IMAGE_TOKENS).ok(),
                smaller: smaller(&plan.program),
            }),
        };
        let bounds = &plan.bounds;
        let rotary = find(names::ROTARY_POSITIONS)
            .map(|place| (place, RotaryPositions::new(bounds.max_images, bounds.sequences)));
        Ok(Runner {
            eyes,
            chunks: smaller_chunks(&plan.program),
            turns: Turns::of(&plan.program),
            phases: Phases {
                load: phase("load")?,
                prefill: phase("prefill")?,
                decode: phase("decode")?,
                // On one lane nothing runs beside anything.
                beside: phase(phases::VISION_BESIDE)
                    .ok()
                    .zip(phase(phases::DECODE_BESIDE).ok())
                    .filter(|_| plan.machine.lanes > 1),
            },
            core: Core {
                sample: phase("sample")?,
                dims: Dims {
                    tokens: dim("tokens")?,
                    sequences: dim("sequences")?,
                    rows: dim("rows")?,
                    segments: dim("segments")?,
                    window_segments: dim("segments.window")?,
                },
                image_rows: find(names::IMAGE_ROWS),
                rotary,
                host,
                bounds: plan.bounds.clone(),
                vocabulary: vocabulary as usize,
                window,
                rows: 0,
            },
            tokenizer: plan.program.tensor_named(names::TOKENIZER),
            session,
            interrupt: || false,
        })
    }

    /// The session, for what it recorded.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Records what the lanes do from now on, at most so many records of each: before loading.
    pub fn record(&mut self, certified: CertifiedPlan<'_>, records: usize) {
        self.session.record(certified, records);
    }

    /// Makes the arena resident, every lane its share, does `lock`, and then puts pages of a file
    /// in the place of the first bytes, so that those are not locked.
    ///
    /// # Errors
    /// As [`Session::make_resident`].
    pub fn make_resident(
        &mut self,
        mapped: Option<FilePart<'_>>,
        lock: impl FnOnce(),
    ) -> Result<(), EngineError> {
        Ok(self.session.make_resident(mapped, lock)?)
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
        &self.core.bounds
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
        self.session.constant(self.tokenizer?)
    }

    /// Encodes a tile, given as its pixels' bytes, its rows and columns of patches, and its tokens;
    /// `write` fills the pixels, RGB row by row. Its embeddings stand from `first_row` on. Gives
    /// the plan that ran: the smallest that the tile fits.
    ///
    /// # Errors
    /// Class `Usage` for a model without eyes, `OverBound` for a tile over the plan's bounds,
    /// `System` for one that was stopped: its rows are then as good as none.
    pub fn encode_tile(
        &mut self,
        tile: (usize, [u32; 2], u32),
        first_row: u32,
        write: impl FnOnce(&mut [u8]),
    ) -> Result<TilePlan, EngineError> {
        let [rows, columns] = tile.1;
        let eyes = self.stage_tile(tile, first_row, write)?;
        let (phase, plan) = eyes.phase_for(u64::from(rows) * u64::from(columns));
        self.take_turn(Turn::Vision)?;
        whole(self.session.run_unless(phase, &self.interrupt)?)?;
        Ok(plan)
    }

    /// Writes a tile's pixels and sizes.
    fn stage_tile(
        &mut self,
        (pixel_bytes, grid, tokens): (usize, [u32; 2], u32),
        first_row: u32,
        write: impl FnOnce(&mut [u8]),
    ) -> Result<&SeeingTensors, EngineError> {
        self.size_tile((pixel_bytes, grid, tokens), first_row)?;
        let eyes = self.eyes.as_ref().expect("or it has no size");
        write(&mut self.session.bytes_mut(eyes.pixels)[..pixel_bytes]);
        self.session.integers_mut(eyes.grid).copy_from_slice(&grid);
        self.session.integers_mut(eyes.first_row)[0] = first_row;
        Ok(eyes)
    }

    /// Checks a tile against the bounds and sets its dims.
    fn size_tile(
        &mut self,
        (pixel_bytes, grid, tokens): (usize, [u32; 2], u32),
        first_row: u32,
    ) -> Result<&SeeingTensors, EngineError> {
        let Some(eyes) = &self.eyes else {
            return Err(EngineError::new(Class::Usage, "this plan has no vision file"));
        };
        let end = u64::from(first_row) + u64::from(tokens);
        let pixels = self.session.bytes(eyes.pixels);
        if end > self.core.bounds.max_image_tokens || pixel_bytes > pixels.len() {
            return Err(EngineError::new(
                Class::OverBound,
                format!(
                    "a tile of {pixel_bytes} bytes that ends at image token {end}: the plan holds \
                     {} bytes and {} image tokens",
                    pixels.len(),
                    self.core.bounds.max_image_tokens
                ),
            ));
        }
        if let Some((_, rotary)) = &mut self.core.rotary {
            let merge = (grid[0] * grid[1] / tokens.max(1)).isqrt().max(1);
            rotary.placed(first_row, (grid[0] / merge, grid[1] / merge));
        }
        let patches = grid[0] * grid[1];
        let member = eyes.member(u64::from(patches));
        let (own_patches, own_tokens) = member.map(|own| (own.patches, own.tokens)).unzip();
        let dims = [
            (eyes.patches, patches),
            (eyes.tokens, tokens),
            (own_patches, patches),
            (own_tokens, tokens),
        ];
        for (dim, value) in dims {
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
        self.core.check_context(position as usize + tokens.len())?;
        self.core.check_slot(slot)?;
        self.core.check_tokens(tokens.iter().copied())?;
        self.show(slot, position, tokens)?;
        let chunk = self.core.bounds.prefill_chunk as usize;
        let mut done = 0;
        for part in tokens.chunks(chunk) {
            self.stage_chunk(Chunk { slot, tokens: part, position: position + done as u32 })?;
            let phase = self.phase_of_chunk(part.len())?;
            self.take_turn(Turn::Text)?;
            let ran = self.session.run_unless(phase, &self.interrupt)?;
            if ran == Ran::Interrupted {
                return Ok(Prefilled::Stopped { done });
            }
            done += part.len();
            if !after_chunk(done) && done < tokens.len() {
                return Ok(Prefilled::Stopped { done });
            }
        }
        self.core.rows = 1;
        Ok(Prefilled::Whole)
    }

    /// The smallest member of the decoder's family that a chunk fits, sized for it.
    fn phase_of_chunk(&mut self, tokens: usize) -> Result<PhaseId, EngineError> {
        let Some(member) = self.chunks.iter().find(|member| tokens <= member.tokens_max) else {
            return Ok(self.phases.prefill);
        };
        self.session.set_dim(member.tokens, tokens as u64)?;
        Ok(member.phase)
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
        self.core.check_context(position as usize + tokens.len())?;
        self.core.check_slot(slot)?;
        self.core.check_tokens(tokens.iter().copied())?;
        self.show(slot, position, tokens)?;
        let rows = wanted.len();
        self.session.set_dim(self.core.dims.tokens, tokens.len() as u64)?;
        self.session.set_dim(self.core.dims.rows, rows as u64)?;
        self.core.place(&mut self.session, tokens.len(), |index| Step {
            slot,
            token: tokens[index],
            position: position + index as u32,
        });
        let targets = self.session.integers_mut(self.core.host.rows);
        for (target, index) in targets.iter_mut().zip(wanted) {
            assert!(index < tokens.len(), "row {index} of {} tokens", tokens.len());
            *target = index as u32;
        }
        self.take_turn(Turn::Text)?;
        let ran = self.session.run_unless(self.phases.prefill, &self.interrupt)?;
        self.core.rows = rows;
        Ok(match ran {
            Ran::Whole => Prefilled::Whole,
            Ran::Interrupted => Prefilled::Stopped { done: 0 },
        })
    }

    /// Takes steps and picks tokens.
    ///
    /// # Errors
    /// Weights that come and go and cannot be read.
    pub fn steps(&mut self) -> Result<Stepper<'_, Session>, EngineError> {
        self.take_turn(Turn::Text)?;
        let Runner { session, core, phases, .. } = self;
        Ok(Stepper { runs: session, core, decode: phases.decode })
    }

    /// The token that was picked for a row.
    #[must_use]
    pub fn sampled(&self, row: usize) -> u32 {
        self.session.integers(self.core.host.sampled)[row]
    }

    /// As [`Stepper::decode`].
    ///
    /// # Errors
    /// As that.
    pub fn decode(&mut self, steps: &[Step]) -> Result<(), EngineError> {
        self.steps()?.decode(steps)
    }

    /// Reads the weights of a decode step and computes nothing; gives the bytes.
    ///
    /// # Errors
    /// As [`Session::read_weights`].
    pub fn read_decode_weights(&mut self, streams: Streams) -> Result<u64, EngineError> {
        Ok(self.session.read_weights(self.phases.decode, streams)?)
    }

    /// Remembers the pictures among tokens that follow in a slot.
    fn show(&mut self, slot: u32, position: u32, tokens: &[u32]) -> Result<(), EngineError> {
        match &mut self.core.rotary {
            Some((_, rotary)) => rotary.read(slot, position, tokens),
            None => Ok(()),
        }
    }
}

/// Patches of the smallest tile that is worth a run of the region, as the plan says.
fn region_patches_least(plan: &Plan) -> u64 {
    plan.regions.iter().map(|region| region.least_patches).max().unwrap_or(0)
}
