//! A request under dynamic memory: text in, text and times out.
//!
//! Prompt in chunks of the same size as the product's, then one token after another, greedily.
//! Nothing is bounded by a plan: the plan gives operations and the distances of constants, and for
//! the prototype what it pre-allocates.

use std::time::Instant;

use dctms_engine::planning::{PlanSettings, plan_unverified, resolve_bounds};
use dctms_engine::session::{encoded, rendered, session_options};
use dctms_engine::{Class, EngineError, Model};
use dctms_ir::op::OpKind;
use dctms_ir::plan::{Bounds, Plan};
use dctms_ir::{Program, TensorId};
use dctms_kernels::isa::Isa;
use dctms_kernels::sample::{LogitsRow, RandomState, SampleParameters, sample};
use dctms_models::names;
use dctms_text::{ControlTokens, LeadingSpace, StreamDecoder, Tokenizer};
use sha2::{Digest as _, Sha256};

use crate::cache::{Cache, Growth};
use crate::memory::Block;
use crate::operands::{Values, kv_shape};
use crate::pool::Pool;
use crate::step::{Machine, Steps};
use crate::weights::Weights;

/// Stack of each lane beside the caller, bytes.
const LANE_STACK_BYTES: usize = 256 << 10;

/// Which system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Everything when it is needed.
    Dynamic,
    /// The paper's: buffers and caches before the first request, intermediates as ever.
    Prototype,
}

impl Kind {
    /// The kind of a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Kind> {
        match name {
            "dynamic" => Some(Kind::Dynamic),
            "prototype" => Some(Kind::Prototype),
            _ => None,
        }
    }

    fn growth(self) -> Growth {
        match self {
            Kind::Dynamic => Growth::Reactive,
            Kind::Prototype => Growth::PreAllocated,
        }
    }
}

/// What one request took.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// The text.
    pub text: String,
    /// Tokens of the prompt, template included.
    pub prompt_tokens: usize,
    /// Tokens generated.
    pub tokens: Vec<u32>,
    /// Seconds until the first token was chosen.
    pub first_token_s: f64,
    /// Seconds of everything after it.
    pub decode_s: f64,
    /// SHA-256 of the logits of every sampled step, where it was asked for.
    pub logits_sha256: Option<[u8; 32]>,
}

/// What a request wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most tokens generated.
    pub tokens: usize,
    /// Whether logits are hashed.
    pub digest: Digest,
}

/// Whether the logits of sampled steps are hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Digest {
    /// SHA-256 over all rows.
    Computed,
    /// Not.
    Skipped,
}

/// A model that stays up.
pub struct System {
    model: Model,
    program: Program,
    bounds: Bounds,
    isa: Isa,
    weights: Weights,
    pool: Pool,
    prefill: Steps,
    decode: Steps,
    growth: Growth,
    caches: Vec<(TensorId, Cache)>,
    values: Values,
    dims: Vec<u64>,
    /// What the prototype holds beside what it computes in.
    _reserved: Vec<Block>,
}

impl System {
    /// Opens a compiled model and starts the lanes.
    ///
    /// # Errors
    /// Any defect of the model; a model that is not compiled.
    pub fn start(model: Model, settings: &PlanSettings, kind: Kind) -> Result<System, EngineError> {
        let bounds = resolve_bounds(&model, settings, None)?;
        let plan = plan_unverified(&model, settings, &bounds)?;
        let weights = Weights::map(&model, &plan)?;
        let options = session_options(&plan, LANE_STACK_BYTES)?;
        let pool = Pool::start(&options.lanes)?;
        let growth = kind.growth();
        let reserved = match kind {
            Kind::Dynamic => Vec::new(),
            Kind::Prototype => {
                plan.buffers.iter().map(|buffer| Block::touched(buffer.bytes as usize)).collect()
            }
        };
        let caches = caches(&plan, growth);
        let dims = plan.program.dims.iter().map(|dim| dim.min).collect();
        Ok(System {
            prefill: Steps::of(&plan.program, "prefill"),
            decode: Steps::of(&plan.program, "decode"),
            values: Values::new(plan.program.tensors.len()),
            program: plan.program,
            isa: options.isa,
            model,
            bounds,
            weights,
            pool,
            growth,
            caches,
            dims,
            _reserved: reserved,
        })
    }

    /// Answers one user message through the model's chat template.
    ///
    /// # Errors
    /// A prompt beyond the bounds of the experiment; a template that fails.
    pub fn answer(&mut self, message: &str, limits: Limits) -> Result<Answer, EngineError> {
        let vocabulary = self.model.vocabulary.clone();
        let vocabulary = vocabulary.ok_or_else(|| {
            EngineError::new(Class::File, "the model has no tokeniser".to_string())
        })?;
        let id = self.tensor(names::TOKENIZER);
        // The tables are read while weights are borrowed elsewhere: take the text out first.
        let (prompt, mut answer) = {
            let tables = self.weights.bytes(id).unwrap_or_default();
            let tokenizer = Tokenizer::new(&vocabulary.layout, tables);
            let text = rendered(self.model.template.as_deref(), &tokenizer, message)?;
            let prompt = encoded(&tokenizer, &text)?;
            (prompt, Answer::default())
        };
        self.generate(&prompt, limits, &mut answer, &mut |system, token| {
            let tables = system.weights.bytes(id).unwrap_or_default();
            Tokenizer::new(&vocabulary.layout, tables).is_end_of_generation(token)
        })?;
        let tables = self.weights.bytes(id).unwrap_or_default();
        let tokenizer = Tokenizer::new(&vocabulary.layout, tables);
        let mut decoder = StreamDecoder::new(ControlTokens::Hidden, LeadingSpace::Kept);
        let text = &mut answer.text;
        for token in &answer.tokens {
            decoder.push(&tokenizer, *token, &mut |piece| text.push_str(piece));
        }
        decoder.finish(&mut |piece| text.push_str(piece));
        Ok(answer)
    }

    /// Runs a prompt of token ids and generates after it; `ends` says which token ends.
    ///
    /// # Errors
    /// Class `OverBound` beyond the bounds of the experiment.
    pub fn generate(
        &mut self,
        prompt: &[u32],
        limits: Limits,
        answer: &mut Answer,
        ends: &mut dyn FnMut(&System, u32) -> bool,
    ) -> Result<(), EngineError> {
        let most = self.bounds.max_input_tokens;
        if prompt.is_empty() || prompt.len() as u64 > most {
            let what = format!("the prompt has {} tokens, 1 to {most} are held", prompt.len());
            return Err(EngineError::new(Class::OverBound, what));
        }
        let start = Instant::now();
        if self.growth == Growth::Reactive {
            // A new request has new caches, as in mlx-lm.
            for (_, cache) in &mut self.caches {
                *cache = Cache::new(cache.shape, self.growth);
            }
        }
        answer.prompt_tokens = prompt.len();
        let mut hash = (limits.digest == Digest::Computed).then(Sha256::new);
        let chunk = self.bounds.prefill_chunk as usize;
        for (index, part) in prompt.chunks(chunk).enumerate() {
            self.prefill(part, (index * chunk) as u32);
        }
        let mut token = self.choose(hash.as_mut());
        answer.first_token_s = start.elapsed().as_secs_f64();
        let decoding = Instant::now();
        for index in 0..limits.tokens {
            if ends(self, token) {
                break;
            }
            answer.tokens.push(token);
            if index + 1 < limits.tokens {
                self.decode(token, (prompt.len() + index) as u32);
                token = self.choose(hash.as_mut());
            }
        }
        answer.decode_s = decoding.elapsed().as_secs_f64();
        answer.logits_sha256 = hash.map(|hash| hash.finalize().into());
        Ok(())
    }

    fn prefill(&mut self, tokens: &[u32], first: u32) {
        let count = tokens.len() as u32;
        let positions: Vec<u32> = (first..first + count).collect();
        self.place(tokens, &positions, count - 1);
        self.set("tokens", u64::from(count));
        self.set("rows", 1);
        self.run(Phase::Prefill);
    }

    fn decode(&mut self, token: u32, position: u32) {
        self.place(&[token], &[position], 0);
        self.set("sequences", 1);
        self.set("rows", 1);
        self.run(Phase::Decode);
    }

    /// Gives a step its tokens.
    fn place(&mut self, tokens: &[u32], positions: &[u32], row: u32) {
        for (name, integers) in [
            (names::TOKENS, tokens),
            (names::POSITIONS, positions),
            (names::SLOTS, &vec![0; tokens.len()][..]),
            (names::ROWS, &[row]),
        ] {
            let id = self.tensor(name);
            self.values.put_integers(id, integers);
        }
    }

    fn run(&mut self, phase: Phase) {
        let steps = match phase {
            Phase::Prefill => &self.prefill,
            Phase::Decode => &self.decode,
        };
        let mut machine = Machine {
            program: &self.program,
            weights: &self.weights,
            isa: self.isa,
            dims: &self.dims,
            pool: &mut self.pool,
            values: &mut self.values,
            caches: &mut self.caches,
        };
        machine.run(steps);
    }

    /// Picks the token of the greatest logit, and frees the logits.
    fn choose(&mut self, hash: Option<&mut Sha256>) -> u32 {
        let logits = self.values.take(self.tensor(names::LOGITS)).expect("a step made logits");
        let vocabulary = self.model.config.vocabulary as usize;
        if let Some(hash) = hash {
            for value in &logits.of::<f32>()[..vocabulary] {
                hash.update(value.to_le_bytes());
            }
        }
        sample(
            self.isa,
            LogitsRow::new(&logits.of()[..vocabulary.next_multiple_of(16)], 1, 0, vocabulary),
            &SampleParameters::GREEDY,
            &[],
            &mut RandomState::new(0),
            // The greatest needs no scratch.
            &mut [],
        )
    }

    fn tensor(&self, name: &str) -> TensorId {
        self.program.tensor_named(name).expect("a decoder's tensor")
    }

    fn set(&mut self, name: &str, value: u64) {
        let dim = self.program.dim_named(name).expect("a decoder's dim");
        self.dims[dim.index()] = value;
    }
}

#[derive(Clone, Copy)]
enum Phase {
    Prefill,
    Decode,
}

/// A cache for each layer, under the tensor of its keys.
fn caches(plan: &Plan, growth: Growth) -> Vec<(TensorId, Cache)> {
    let decode = plan.program.phase_named("decode").expect("a decoder's phase");
    let ops = &plan.program.phases[decode.index()].ops;
    let of = ops.iter().filter_map(|op| match &op.kind {
        OpKind::KvAppend(shape) => Some((op.outputs[0], Cache::new(kv_shape(shape), growth))),
        _ => None,
    });
    of.collect()
}
