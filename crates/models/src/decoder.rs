//! A decoder-only transformer as a program: load, prefill, decode, sample.
//!
//! Believes a checked [`DecoderConfig`]. Writes logical operations only: how they are fused,
//! quantised or cut is for the planner. It must not know metadata keys.

mod pass;

use dctms_ir::ids::{PhaseId, TensorId};
use dctms_ir::limits::TILE;
use dctms_ir::op::{AttentionShape, Copies, Epilogue, OpKind};
use dctms_ir::region::add_region;
use dctms_ir::tensor::{Term, kv_row_bytes};
use dctms_ir::twin::{add_member, add_twin};
use dctms_ir::vision::VisionOp;
use dctms_ir::{Dtype, Program, Residence, Size};

use crate::builder::Builder;
use crate::config::{DecoderConfig, RopeConfig};
use crate::encoder::{self, Images, VisionMode, VisionPart};
use crate::error::ModelError;
use crate::file::Lookup;
use crate::options::BuildOptions;

use pass::Pass;

/// Names of what the host exchanges with a program.
pub mod names {
    /// Token ids of the step, i32 `[max(C, B)]`.
    pub const TOKENS: &str = "io.tokens";
    /// Position of each token, i32.
    pub const POSITIONS: &str = "io.positions";
    /// Cache slot of each token, i32.
    pub const SLOTS: &str = "io.slots";
    /// Tokens whose logits are wanted, i32 `[R]`.
    pub const ROWS: &str = "io.rows";
    /// Logits, f32 `[V/16, rows, 16]` (tile-major, rows of the step).
    pub const LOGITS: &str = "io.logits";
    /// Sampling parameters, one record a row.
    pub const SAMPLER_PARAMETERS: &str = "io.sampler.parameters";
    /// Recent tokens of each row, i32 `[rows, window]`, −1 where none.
    pub const SAMPLER_HISTORY: &str = "io.sampler.history";
    /// Picked token of each row, i32.
    pub const SAMPLED: &str = "io.sampled";
    /// Random state of each row, u64.
    pub const RANDOM: &str = "sampler.random";
    /// Tokeniser tables.
    pub const TOKENIZER: &str = "tokenizer.tables";
    /// A tile's pixels, RGB bytes, row by row: rows·patch by columns·patch of the tile's grid.
    pub const PIXELS: &str = "io.vision.pixels";
    /// The tile's grid, i32: rows and columns of patches.
    pub const GRID: &str = "io.vision.grid";
    /// Row of the embeddings that the tile's first token goes to, i32.
    pub const FIRST_ROW: &str = "io.vision.first_row";
    /// For each token of a step 0 (text) or 1 + the row of the embeddings that it is, i32.
    pub const IMAGE_ROWS: &str = "io.image_rows";
    /// Three positions of each token (time, row, column), i32, where the decoder rotates by them.
    pub const ROTARY_POSITIONS: &str = "io.rotary_positions";
    /// Embeddings of a request's tiles, f32 `[d/16, max image tokens, 16]`.
    pub const IMAGES: &str = "vision.images";
    /// The frequencies of an encoder's own rotation, which no file holds.
    pub const VISION_FREQUENCIES: &str = "vision.rope.frequencies";
    /// Dim: patches of the tile, where the grid is not fixed.
    pub const PATCHES: &str = "vision.patches";
    /// Dim: tokens of the tile, where the grid is not fixed.
    pub const IMAGE_TOKENS: &str = "vision.tokens";
}

/// Names of a program's phases.
pub mod phases {
    /// Loads what stays for ever.
    pub const LOAD: &str = "load";
    /// Loads the decoder's weights, where they come and go.
    pub const LOAD_TEXT: &str = "load.text";
    /// Loads the encoder's weights, where they come and go.
    pub const LOAD_VISION: &str = "load.vision";
    /// Encodes a tile.
    pub const VISION: &str = "vision";
    /// Appends tokens of a prompt.
    pub const PREFILL: &str = "prefill";
    /// Both at once: a tile, and tokens of a prompt that need no tile beyond those before it.
    pub const VISION_AND_PREFILL: &str = "vision+prefill";
    /// One token of each sequence.
    pub const DECODE: &str = "decode";
    /// Picks tokens.
    pub const SAMPLE: &str = "sample";
    /// Encodes a tile while sequences go on, on lanes of its own.
    pub const VISION_BESIDE: &str = "vision.beside";
    /// One token of each sequence while a tile is encoded, on lanes of its own.
    pub const DECODE_BESIDE: &str = "decode.beside";
}

/// Bytes of one sampling parameter record.
pub const SAMPLER_RECORD_BYTES: u64 = 64;

struct LayerWeights {
    attn_norm: TensorId,
    q: TensorId,
    k: TensorId,
    v: TensorId,
    biases: Option<[TensorId; 3]>,
    q_norm: Option<TensorId>,
    k_norm: Option<TensorId>,
    attn_output: TensorId,
    post_attention_norm: Option<TensorId>,
    ffn_norm: TensorId,
    gate: TensorId,
    up: TensorId,
    down: TensorId,
    post_ffn_norm: Option<TensorId>,
    keys: TensorId,
    values: TensorId,
    shape: AttentionShape,
    local: bool,
}

struct Weights {
    embedding: TensorId,
    output: TensorId,
    output_norm: TensorId,
    rope: TensorId,
    local_rope: Option<TensorId>,
    layers: Vec<LayerWeights>,
}

struct HostBuffers {
    tokens: TensorId,
    positions: TensorId,
    slots: TensorId,
    rows: TensorId,
    logits: TensorId,
    images: Option<Images>,
    /// Where tokens in pictures have three positions: those, and the frequencies that each turns.
    rotary: Option<(TensorId, [u32; 3])>,
}

/// Builds the program of a decoder.
///
/// # Errors
/// Missing or mis-shaped tensors, or bounds that make no sense.
pub fn build(
    config: &DecoderConfig,
    lookup: &mut Lookup<'_>,
    options: &BuildOptions,
    vision: Option<&VisionPart<'_>>,
) -> Result<Program, ModelError> {
    options.check()?;
    let mut builder = Builder::new();
    let bounds = &options.bounds;
    let tokens = builder.program.add_dim("tokens", 1, bounds.prefill_chunk);
    let sequences = builder.program.add_dim("sequences", 1, bounds.sequences);
    let rows = builder.program.add_dim("rows", 1, bounds.logit_rows.max(bounds.sequences));
    let segments = bounds.sequences * options.segments(0)?;
    builder.program.add_dim("segments", 1, segments);
    let window = config.windows.iter().copied().find(|window| *window > 0);
    let local_segments = bounds.sequences * options.segments(window.unwrap_or(0))?;
    builder.program.add_dim("segments.window", 1, local_segments);

    let comes_and_goes = vision.is_some_and(|part| part.mode == VisionMode::PhaseResident);
    if comes_and_goes {
        builder.load_weights_in(phases::LOAD_TEXT);
    }
    let weights = weights(config, lookup, options, &mut builder)?;
    let mut host = host_buffers(config, options, &mut builder);
    let prefill = builder.program.add_phase(phases::PREFILL);
    let decode = builder.program.add_phase(phases::DECODE);
    let sample = builder.program.add_phase(phases::SAMPLE);
    if let Some(part) = vision {
        host.images = Some(encoder::build(&mut builder, part, (options, config.hidden))?);
        host.rotary = config.rope_sections.map(|sections| {
            let steps = bounds.prefill_chunk.max(bounds.sequences);
            (builder.external_integers(names::ROTARY_POSITIONS, 3 * steps), sections)
        });
    }
    forward(&mut builder, config, &weights, &host, (prefill, &tokens.into(), Some(&rows.into())));
    forward(&mut builder, config, &weights, &host, (decode, &sequences.into(), None));
    sampling(&mut builder, config, options, &host, sample);
    flow(&mut builder.program, [prefill, decode, sample]);
    for most in options.smaller_chunk_tokens() {
        add_member(&mut builder.program, prefill, &[(tokens, most)]);
    }
    if let Some(part) = vision {
        encoder::add_smaller(&mut builder.program, part);
    }
    if let (Some(VisionMode::Overlapped), Some(vision)) =
        (vision.map(|part| part.mode), builder.program.phase_named(phases::VISION))
    {
        add_region(&mut builder.program, vision, prefill);
        beside(&mut builder.program, (vision, decode, sample));
    }
    Ok(builder.program)
}

/// Which phase may follow which: any step any other. Where weights come and go, a set is loaded
/// before the steps that need it, and again after those of the other.
fn flow(program: &mut Program, text: [PhaseId; 3]) {
    let named = |name: &str| program.phase_named(name);
    let vision = named(phases::VISION);
    let loads = named(phases::LOAD_TEXT).zip(named(phases::LOAD_VISION)).zip(vision);
    let load = program.flow.entry[0];
    let next = &mut program.flow.next;
    match loads {
        None => {
            let steps = [&text[..], vision.as_slice()].concat();
            next[load.index()] = [&text[..1], vision.as_slice()].concat();
            steps.iter().for_each(|step| next[step.index()].clone_from(&steps));
        }
        Some(((load_text, load_vision), vision)) => {
            next[load.index()] = vec![load_text, load_vision];
            next[load_text.index()] = vec![text[0], load_vision];
            next[load_vision.index()] = vec![vision, load_text];
            next[vision.index()] = vec![vision, load_text];
            for step in text {
                next[step.index()] = [&text[..], &[load_vision]].concat();
            }
        }
    }
}

/// Encoding beside decoding: twins of both, which follow what their originals follow, and may run
/// at the same time; so may the sampling of what was decoded. The pictures' embeddings are read by
/// `prefill` alone, so neither of the two touches what encoding writes.
fn beside(program: &mut Program, (vision, decode, sample): (PhaseId, PhaseId, PhaseId)) {
    let long = add_twin(program, vision, phases::VISION_BESIDE);
    let short = add_twin(program, decode, phases::DECODE_BESIDE);
    for (phase, twin) in [(vision, long), (decode, short)] {
        program.flow.add_like(phase, twin);
    }
    program.flow.overlap = vec![(long, short), (long, sample)];
}

fn weights(
    config: &DecoderConfig,
    lookup: &mut Lookup<'_>,
    options: &BuildOptions,
    builder: &mut Builder,
) -> Result<Weights, ModelError> {
    if options.tokenizer_bytes > 0 {
        let bytes = options.tokenizer_bytes;
        let (offset, len) = options.vocabulary;
        let kind = OpKind::LoadTokenizer { offset, bytes: len };
        builder.table(names::TOKENIZER, (Dtype::U8, bytes), bytes, kind);
    }
    let rope = frequencies(config, &config.rope, lookup, builder, "rope.frequencies")?;
    let local_rope = match &config.local_rope {
        Some(local) => Some(frequencies(config, local, lookup, builder, "rope.local.frequencies")?),
        None => None,
    };
    let embedding =
        builder.matrix(lookup.matrix("token_embd.weight", config.vocabulary, config.hidden)?);
    let output_norm = builder.vector(lookup.vector("output_norm.weight", config.hidden)?);
    let output = match lookup.has("output.weight") {
        true => builder.matrix(lookup.matrix("output.weight", config.vocabulary, config.hidden)?),
        false => embedding,
    };
    let layers = (0..config.layers)
        .map(|layer| layer_weights(config, lookup, options, builder, layer))
        .collect::<Result<_, _>>()?;
    Ok(Weights { embedding, output, output_norm, rope, local_rope, layers })
}

fn frequencies(
    config: &DecoderConfig,
    rope: &RopeConfig,
    lookup: &mut Lookup<'_>,
    builder: &mut Builder,
    name: &str,
) -> Result<TensorId, ModelError> {
    let pairs = u64::from(rope.rotary_dim / 2);
    let factors = match rope.file_factors {
        true => Some(lookup.vector("rope_freqs.weight", pairs)?),
        false => None,
    };
    let kind = OpKind::LoadRopeFrequencies {
        base: rope.base,
        rotary_dim: rope.rotary_dim,
        scaling: rope.scaling.clone(),
        factors,
    };
    debug_assert!(rope.rotary_dim <= config.head_dim);
    Ok(builder.table(name, (Dtype::F32, pairs), pairs * 4, kind))
}

fn layer_weights(
    config: &DecoderConfig,
    lookup: &mut Lookup<'_>,
    options: &BuildOptions,
    builder: &mut Builder,
    layer: u32,
) -> Result<LayerWeights, ModelError> {
    let name = |part: &str| format!("blk.{layer}.{part}");
    let hidden = config.hidden;
    let head_dim = u64::from(config.head_dim);
    let q_rows = u64::from(config.heads) * head_dim;
    let kv_rows = u64::from(config.kv_heads) * head_dim;
    let ff = config.feed_forward;
    let biases = match config.biases && lookup.has(&name("attn_q.bias")) {
        true => Some([
            builder.vector(lookup.vector(&name("attn_q.bias"), q_rows)?),
            builder.vector(lookup.vector(&name("attn_k.bias"), kv_rows)?),
            builder.vector(lookup.vector(&name("attn_v.bias"), kv_rows)?),
        ]),
        false => None,
    };
    let optional = |wanted: bool,
                    part: &str,
                    len: u64,
                    lookup: &mut Lookup<'_>,
                    builder: &mut Builder|
     -> Result<Option<TensorId>, ModelError> {
        match wanted {
            true => Ok(Some(builder.vector(lookup.vector(&name(part), len)?))),
            false => Ok(None),
        }
    };
    let (keys, values, shape) = cache(config, options, builder, layer)?;
    Ok(LayerWeights {
        attn_norm: builder.vector(lookup.vector(&name("attn_norm.weight"), hidden)?),
        q: builder.matrix(lookup.matrix(&name("attn_q.weight"), q_rows, hidden)?),
        k: builder.matrix(lookup.matrix(&name("attn_k.weight"), kv_rows, hidden)?),
        v: builder.matrix(lookup.matrix(&name("attn_v.weight"), kv_rows, hidden)?),
        biases,
        q_norm: optional(config.head_norms, "attn_q_norm.weight", head_dim, lookup, builder)?,
        k_norm: optional(config.head_norms, "attn_k_norm.weight", head_dim, lookup, builder)?,
        attn_output: builder.matrix(lookup.matrix(&name("attn_output.weight"), hidden, q_rows)?),
        post_attention_norm: optional(
            config.post_norms,
            "post_attention_norm.weight",
            hidden,
            lookup,
            builder,
        )?,
        ffn_norm: builder.vector(lookup.vector(&name("ffn_norm.weight"), hidden)?),
        gate: builder.matrix(lookup.matrix(&name("ffn_gate.weight"), ff, hidden)?),
        up: builder.matrix(lookup.matrix(&name("ffn_up.weight"), ff, hidden)?),
        down: builder.matrix(lookup.matrix(&name("ffn_down.weight"), hidden, ff)?),
        post_ffn_norm: optional(
            config.post_norms,
            "post_ffw_norm.weight",
            hidden,
            lookup,
            builder,
        )?,
        keys,
        values,
        shape,
        local: config.windows[layer as usize] > 0,
    })
}

fn cache(
    config: &DecoderConfig,
    options: &BuildOptions,
    builder: &mut Builder,
    layer: u32,
) -> Result<(TensorId, TensorId, AttentionShape), ModelError> {
    let window = config.windows[layer as usize];
    let capacity = options.layer_capacity(window)?;
    let kv = options.bounds.kv_type;
    let slots = options.bounds.sequences;
    let head_dim = u64::from(config.head_dim);
    let overflow = || ModelError::Overflow { what: format!("cache of layer {layer}") };
    let row = kv_row_bytes(kv, head_dim).ok_or_else(|| ModelError::Bound {
        what: format!("key/value type {} needs heads of a multiple of 32 features", kv.name()),
    })?;
    let bytes = u64::from(config.kv_heads)
        .checked_mul(slots)
        .and_then(|count| count.checked_mul(capacity))
        .and_then(|count| count.checked_mul(row))
        .ok_or_else(overflow)?;
    let shape: Vec<Size> =
        [u64::from(config.kv_heads), slots, capacity, head_dim].map(Size::Const).to_vec();
    let mut state = |part: &str| {
        builder.lasting(
            &format!("kv.{layer}.{part}"),
            kv,
            shape.clone(),
            Size::Const(bytes),
            (Residence::State, Term::Kv),
        )
    };
    let (keys, values) = (state("k"), state("v"));
    let shape = AttentionShape {
        heads: config.heads,
        kv_heads: config.kv_heads,
        head_dim: config.head_dim,
        capacity: u32::try_from(capacity).map_err(|_| overflow())?,
        window,
        scale: config.attention_scale,
        kv,
    };
    Ok((keys, values, shape))
}

fn host_buffers(
    config: &DecoderConfig,
    options: &BuildOptions,
    builder: &mut Builder,
) -> HostBuffers {
    let bounds = &options.bounds;
    let steps = bounds.prefill_chunk.max(bounds.sequences);
    let rows = bounds.logit_rows.max(bounds.sequences);
    let tiles = config.vocabulary.div_ceil(TILE);
    HostBuffers {
        tokens: builder.external_integers(names::TOKENS, steps),
        positions: builder.external_integers(names::POSITIONS, steps),
        slots: builder.external_integers(names::SLOTS, steps),
        rows: builder.external_integers(names::ROWS, rows),
        logits: builder.lasting(
            names::LOGITS,
            Dtype::F32,
            [tiles, rows, TILE].map(Size::Const).to_vec(),
            Size::Const(tiles * rows * TILE * 4),
            (builder.residence_of_logits(), Term::Persistent),
        ),
        images: None,
        rotary: None,
    }
}

/// Writes the operations of one pass. `rows` is the number of tokens whose logits are wanted;
/// `None` for all of them. What follows the last layer's attention is of those tokens only.
fn forward(
    builder: &mut Builder,
    config: &DecoderConfig,
    weights: &Weights,
    host: &HostBuffers,
    (phase, tokens, rows): (PhaseId, &Size, Option<&Size>),
) {
    let rope = rope_table(builder, &config.rope, host, (phase, tokens), weights.rope, "rope");
    let local_rope = match (&config.local_rope, weights.local_rope) {
        (Some(local), Some(frequencies)) => {
            rope_table(builder, local, host, (phase, tokens), frequencies, "rope.local")
        }
        _ => rope,
    };
    let mut x = builder.activation(phase, "embedding", config.hidden, tokens);
    builder.op(
        phase,
        "embedding",
        OpKind::EmbedRows { scale: config.embedding_scale },
        &[host.tokens, weights.embedding],
        &[x],
    );
    // Only a prompt has pictures: what is decoded is text.
    if let (Some(images), Some(_)) = (host.images, rows) {
        let spliced = builder.activation(phase, "images", config.hidden, tokens);
        let inputs = [x, images.rows, images.indices];
        builder.op(phase, "images", OpKind::Vision(VisionOp::SpliceRows), &inputs, &[spliced]);
        x = spliced;
    }
    for (index, layer) in weights.layers.iter().enumerate() {
        let table = if layer.local { local_rope } else { rope };
        let mut pass =
            Pass { builder, config, host, phase, tokens, prefix: format!("blk.{index}") };
        let mut mixed = pass.attention(layer, x, table);
        if let (Some(rows), true) = (rows, index + 1 == weights.layers.len()) {
            // Behind the last caches nothing meets another token any more.
            pass.tokens = rows;
            mixed = pass.select("attn_rows", mixed, attention_features(config));
            x = pass.select("rows", x, config.hidden);
        }
        x = pass.attention_residual(layer, x, mixed);
        x = pass.feed_forward(layer, x);
    }
    let rows = rows.unwrap_or(tokens);
    let normed = builder.activation(phase, "output_norm", config.hidden, rows);
    let epsilon = config.epsilon;
    builder.op(
        phase,
        "output_norm",
        OpKind::RmsNorm { epsilon },
        &[x, weights.output_norm],
        &[normed],
    );
    let (rows, cols) = (config.vocabulary, config.hidden);
    let kind = OpKind::MatMul { rows, cols, epilogue: Epilogue::Store, copies: Copies::Shared };
    builder.op(phase, "output", kind, &[normed, weights.output], &[host.logits]);
}

/// Features of all query heads.
fn attention_features(config: &DecoderConfig) -> u64 {
    u64::from(config.heads) * u64::from(config.head_dim)
}

fn rope_table(
    builder: &mut Builder,
    rope: &RopeConfig,
    host: &HostBuffers,
    (phase, tokens): (PhaseId, &Size),
    frequencies: TensorId,
    name: &str,
) -> TensorId {
    let pairs = u64::from(rope.rotary_dim / 2);
    let prefix = builder.program.phases[phase.index()].name.clone();
    let table = builder.program.add_tensor(dctms_ir::Tensor {
        name: format!("{prefix}.{name}"),
        model: 0,
        dtype: Dtype::F32,
        shape: vec![Size::Const(pairs.div_ceil(TILE)), tokens.clone(), Size::Const(2 * TILE)],
        size: Size::product(&[tokens.clone(), Size::Const(pairs.div_ceil(TILE) * 2 * TILE * 4)]),
        residence: Residence::Transient,
        term: Term::Intermediate,
        phase: Some(phase),
        state: None,
    });
    let magnitude = rope.magnitude;
    let (kind, positions) = match host.rotary {
        None => (OpKind::RopeTable { magnitude }, host.positions),
        Some((positions, sections)) => {
            (OpKind::Vision(VisionOp::SectionedRopeTable { sections, magnitude }), positions)
        }
    };
    builder.op(phase, name, kind, &[positions, frequencies], &[table]);
    table
}

fn sampling(
    builder: &mut Builder,
    config: &DecoderConfig,
    options: &BuildOptions,
    host: &HostBuffers,
    phase: PhaseId,
) {
    let rows = options.bounds.logit_rows.max(options.bounds.sequences);
    let external = (Residence::External, Term::Persistent);
    let parameters = builder.lasting(
        names::SAMPLER_PARAMETERS,
        Dtype::U8,
        [rows, SAMPLER_RECORD_BYTES].map(Size::Const).to_vec(),
        Size::Const(rows * SAMPLER_RECORD_BYTES),
        external,
    );
    let history = builder.external_integers(names::SAMPLER_HISTORY, rows * options.penalty_window);
    let sampled = builder.external_integers(names::SAMPLED, rows);
    let random = builder.lasting(
        names::RANDOM,
        Dtype::U8,
        [rows, 32].map(Size::Const).to_vec(),
        Size::Const(rows * 32),
        (Residence::State, Term::Persistent),
    );
    builder.op(
        phase,
        "sample",
        OpKind::Sample { vocabulary: config.vocabulary },
        &[host.logits, parameters, history],
        &[sampled, random],
    );
}
