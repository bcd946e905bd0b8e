//! A vision transformer and its projector as a phase of a decoder's program.
//!
//! Each run of the phase `vision` takes one tile: RGB bytes in, embeddings out, which it writes
//! among those of the request's other tiles. `prefill` puts them where the prompt has pictures.
//! Believes a checked [`VisionConfig`]. Writes logical operations only. It must not know metadata.

mod blocks;

use dctms_ir::ids::{PhaseId, TensorId};
use dctms_ir::limits::TILE;
use dctms_ir::op::{Activation, Copies, Epilogue, OpKind, Source};
use dctms_ir::tensor::Term;
use dctms_ir::twin::add_member;
use dctms_ir::vision::{FullAttentionShape, PatchOrder, PatchShape, VisionOp};
use dctms_ir::{Dtype, Program, Residence, Size};

use crate::builder::Builder;
use crate::clip::{Norm, Projector, TileGrid, VisionConfig};
use crate::decoder::{names, phases};
use crate::error::ModelError;
use crate::file::{Lookup, ModelFile};
use crate::options::BuildOptions;

/// Which weights are resident when pictures are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VisionMode {
    /// Both sets, loaded once.
    Serial,
    /// Both sets, and a step of the encoder may run beside one of the decoder.
    Overlapped,
    /// The encoder's while it encodes, the decoder's while it reads and writes: each set is loaded
    /// again when its turn comes, into the bytes of the other.
    PhaseResident,
}

impl VisionMode {
    /// Every mode.
    pub const ALL: [VisionMode; 3] =
        [VisionMode::Serial, VisionMode::Overlapped, VisionMode::PhaseResident];

    /// The name in text forms.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            VisionMode::Serial => "serial",
            VisionMode::Overlapped => "overlapped",
            VisionMode::PhaseResident => "phase-resident",
        }
    }
}

/// A vision file beside a decoder's.
#[derive(Clone, Copy)]
pub struct VisionPart<'a> {
    /// The file.
    pub file: &'a dyn ModelFile,
    /// Its numbers.
    pub config: &'a VisionConfig,
    /// Index of its first file among all files that loading reads: the decoder's shards stand
    /// before it.
    pub first_file: u32,
    /// Patches of the largest tile that requests may have, at most
    /// [`VisionConfig::patches_max`]; that number itself where the grid is fixed.
    pub patches_max: u64,
    /// Which weights are resident when.
    pub mode: VisionMode,
    /// Phases for smaller tiles at most, each for a quarter of the patches of the one before, where
    /// grids vary.
    pub smaller: u32,
}

impl VisionPart<'_> {
    /// Patches of the tiles that the smaller members of the family are for, the largest first: no
    /// fewer than the smallest tile has.
    #[must_use]
    pub fn smaller_patches(&self) -> Vec<u64> {
        let square = self.config.merge * self.config.merge;
        let least = match self.config.grid {
            TileGrid::Fixed => return Vec::new(),
            TileGrid::Variable { tokens_min, .. } => tokens_min * square,
            TileGrid::Whole { pixels_min, .. } => {
                pixels_min / (self.config.patch * self.config.patch)
            }
        };
        let quarter = |patches: &u64| Some((patches / 4).next_multiple_of(square));
        std::iter::successors(Some(self.patches_max), quarter)
            .skip(1)
            .take_while(|patches| *patches >= least.max(4 * square))
            .take(self.smaller as usize)
            .collect()
    }
}

/// Where a decoder finds the embeddings.
#[derive(Clone, Copy, Debug)]
pub struct Images {
    /// Embeddings of a request, `[width/16][rows][16]`.
    pub rows: TensorId,
    /// For each token of a step 0, or 1 + the row that replaces it.
    pub indices: TensorId,
}

/// Adds the weights, the buffers and the phase of an encoder to a decoder's program.
///
/// # Errors
/// Missing or mis-shaped tensors, a decoder of another width, or bounds that make no sense.
pub fn build(
    builder: &mut Builder,
    part: &VisionPart<'_>,
    (options, text_width): (&BuildOptions, u64),
) -> Result<Images, ModelError> {
    check(part, options, text_width)?;
    let config = part.config;
    let (patches, tokens): (Size, Size) = match config.grid {
        TileGrid::Fixed => (part.patches_max.into(), config.tokens(part.patches_max).into()),
        TileGrid::Variable { .. } | TileGrid::Whole { .. } => {
            let least = config.merge * config.merge;
            let most = config.tokens(part.patches_max);
            let patches = builder.program.add_dim(names::PATCHES, least, part.patches_max);
            let tokens = builder.program.add_dim(names::IMAGE_TOKENS, 1, most);
            (patches.into(), tokens.into())
        }
    };
    let (host, images) = buffers(builder, part, options);
    let phase = builder.program.add_phase(phases::VISION);
    match part.mode {
        VisionMode::Serial | VisionMode::Overlapped => {}
        VisionMode::PhaseResident => drop(builder.load_weights_in(phases::LOAD_VISION)),
    }
    let mut lookup = Lookup::new(part.file);
    builder.model = 1;
    let mut encoder = Encoder {
        builder,
        lookup: &mut lookup,
        config,
        first_file: part.first_file,
        phase,
        patches,
        tokens,
    };
    encoder.forward(&host, images.rows, part.patches_max)?;
    builder.model = 0;
    lookup.finish(config.projector.name())?;
    Ok(images)
}

/// Adds the members of the encoder's family for smaller tiles.
pub fn add_smaller(program: &mut Program, part: &VisionPart<'_>) {
    let named = |program: &Program, name: &str| program.dim_named(name);
    let (Some(patches), Some(tokens), Some(vision)) = (
        named(program, names::PATCHES),
        named(program, names::IMAGE_TOKENS),
        program.phase_named(phases::VISION),
    ) else {
        return;
    };
    for most in part.smaller_patches() {
        let bounds = [(patches, most), (tokens, part.config.tokens(most))];
        let member = add_member(program, vision, &bounds);
        for op in &mut program.phases[member.index()].ops {
            if let OpKind::Vision(
                VisionOp::FullAttention(shape) | VisionOp::WindowAttention { shape, .. },
            ) = &mut op.kind
            {
                shape.positions = shape.positions.min(most as u32);
            }
        }
    }
}

fn check(part: &VisionPart<'_>, options: &BuildOptions, text_width: u64) -> Result<(), ModelError> {
    let config = part.config;
    if config.text_width != text_width {
        let expected = format!("{text_width}, the width of this decoder");
        let key = "clip.vision.projection_dim".to_string();
        return Err(ModelError::BadValue { key, value: config.text_width.to_string(), expected });
    }
    let (least, most) = match config.grid {
        TileGrid::Fixed => (config.patches_max(), config.patches_max()),
        TileGrid::Variable { .. } | TileGrid::Whole { .. } => {
            (config.merge * config.merge, config.patches_max())
        }
    };
    if !(least..=most).contains(&part.patches_max) {
        let what = format!("patches of a tile {}: {least} to {most}", part.patches_max);
        return Err(ModelError::Bound { what });
    }
    let tokens = config.tokens(part.patches_max);
    let bound = options.bounds.max_image_tokens;
    if !(tokens..=1 << 20).contains(&bound) {
        let what =
            format!("image tokens {bound}: at least one tile's {tokens}, at most {}", 1 << 20);
        return Err(ModelError::Bound { what });
    }
    Ok(())
}

/// What the host writes before a run.
struct Host {
    pixels: TensorId,
    grid: TensorId,
    first_row: TensorId,
}

fn buffers(builder: &mut Builder, part: &VisionPart<'_>, options: &BuildOptions) -> (Host, Images) {
    let config = part.config;
    let bytes = part.patches_max * config.patch * config.patch * 3;
    let pixels = builder.lasting(
        names::PIXELS,
        Dtype::U8,
        vec![Size::Const(bytes)],
        Size::Const(bytes),
        (Residence::External, Term::Persistent),
    );
    let tiles = config.text_width.div_ceil(TILE);
    let rows = options.bounds.max_image_tokens;
    // A state: what no picture has written yet, no prompt asks for.
    let embeddings = builder.lasting(
        names::IMAGES,
        Dtype::F32,
        [tiles, rows, TILE].map(Size::Const).to_vec(),
        Size::Const(tiles * rows * TILE * 4),
        (Residence::State, Term::Persistent),
    );
    let steps = options.bounds.prefill_chunk.max(options.bounds.sequences);
    let host = Host {
        pixels,
        grid: builder.external_integers(names::GRID, 2),
        first_row: builder.external_integers(names::FIRST_ROW, 1),
    };
    let indices = builder.external_integers(names::IMAGE_ROWS, steps);
    (host, Images { rows: embeddings, indices })
}

/// Writes one pass of an encoder.
pub struct Encoder<'a, 'f> {
    builder: &'a mut Builder,
    lookup: &'a mut Lookup<'f>,
    /// Its numbers.
    pub config: &'a VisionConfig,
    first_file: u32,
    phase: PhaseId,
    patches: Size,
    /// Tokens of a tile.
    pub tokens: Size,
}

impl Encoder<'_, '_> {
    fn forward(
        &mut self,
        host: &Host,
        images: TensorId,
        patches_max: u64,
    ) -> Result<(), ModelError> {
        let mut x = self.embed(host)?;
        let table = self.config.rope_base.map(|base| self.rope_table(base, host.grid));
        for layer in 0..self.config.layers {
            x = self.attention(layer, x, (host.grid, table), patches_max)?;
            x = self.feed_forward(layer, x)?;
        }
        let (hidden, epsilon) = (self.config.hidden, self.config.epsilon);
        let (patches, tokens) = (self.patches.clone(), self.tokens.clone());
        if self.has("v.post_ln.weight") {
            x = self.norm("post_ln", "v.post_ln", x, (hidden, epsilon), &patches)?;
        }
        let (factor, order) = (self.config.merge as u32, self.order());
        let kind = VisionOp::MergePatches { factor, width: hidden, order };
        let merged = self.step("merge", kind, &[x, host.grid], self.merged_width(), &tokens);
        let embeddings = match self.config.projector {
            Projector::Idefics3 => crate::idefics3::project(self, merged)?,
            Projector::Lfm2 => crate::lfm2::project(self, merged)?,
            Projector::Qwen25Vl => crate::qwen25vl::project(self, merged)?,
        };
        let inputs = [embeddings, host.first_row];
        let kind = OpKind::Vision(VisionOp::PlaceRows);
        self.builder.op(self.phase, "place", kind, &inputs, &[images]);
        Ok(())
    }

    /// Pixels to patches with their positions.
    fn embed(&mut self, host: &Host) -> Result<TensorId, ModelError> {
        let config = self.config;
        let patches = self.patches.clone();
        let (hidden, inputs) = (config.hidden, 3 * config.patch * config.patch);
        let shape = PatchShape {
            side: config.patch as u32,
            order: self.order(),
            mean: config.mean,
            deviation: config.deviation,
        };
        let pixels = [host.pixels, host.grid];
        let x = self.step("patches", VisionOp::Patchify(shape), &pixels, inputs, &patches);
        let mut x = self.patch_product(x, inputs)?;
        if self.has("v.patch_embd.bias") {
            x = self.bias("patch_embd", "v.patch_embd.bias", x, hidden, &patches)?;
        }
        if config.positions_side > 0 {
            let points = config.positions_side * config.positions_side;
            let table = self.matrix("v.position_embd.weight", points, hidden)?;
            let kind = VisionOp::AddPositions { side: config.positions_side as u32 };
            x = self.step("positions", kind, &[x, table, host.grid], hidden, &patches);
        }
        if self.has("v.pre_ln.weight") {
            x = self.norm("pre_ln", "v.pre_ln", x, (hidden, config.epsilon), &patches)?;
        }
        Ok(x)
    }

    fn attention(
        &mut self,
        layer: u32,
        x: TensorId,
        (grid, table): (TensorId, Option<TensorId>),
        patches_max: u64,
    ) -> Result<TensorId, ModelError> {
        let config = self.config;
        let (hidden, patches) = (config.hidden, self.patches.clone());
        let at = |part: &str| format!("blk.{layer}.{part}");
        let file = |part: &str| format!("v.blk.{layer}.{part}");
        let normed = self.norm(&at("ln1"), &file("ln1"), x, (hidden, config.epsilon), &patches)?;
        let joined = file("attn_qkv");
        let is_joined = self.has(&format!("{joined}.weight"));
        let mut heads = |index: usize| {
            let part = ["attn_q", "attn_k", "attn_v"][index];
            match is_joined {
                true => self.third(&at(part), (&joined, index as u64), normed, hidden, &patches),
                false => self.linear(&at(part), &file(part), normed, (hidden, hidden), &patches),
            }
        };
        let (mut q, mut k, v) = (heads(0)?, heads(1)?, heads(2)?);
        if let Some(table) = table {
            q = self.rotate(&at("attn_q_rope"), q, table);
            k = self.rotate(&at("attn_k_rope"), k, table);
        }
        let shape = FullAttentionShape {
            heads: config.heads,
            head_dim: config.head_dim,
            positions: patches_max as u32,
            scale: 1.0 / (config.head_dim as f32).sqrt(),
        };
        let (kind, inputs) = match self.window_attention(layer, shape) {
            Some(kind) => (kind, &[q, k, v, grid][..]),
            None => (VisionOp::FullAttention(shape), &[q, k, v][..]),
        };
        let mixed = self.step(&at("attn"), kind, inputs, hidden, &patches);
        let out =
            self.linear(&at("attn_out"), &file("attn_out"), mixed, (hidden, hidden), &patches)?;
        self.residual(&at("attn_residual"), &file("ls1.weight"), x, out)
    }

    fn feed_forward(&mut self, layer: u32, x: TensorId) -> Result<TensorId, ModelError> {
        let config = self.config;
        let (hidden, ff, patches) = (config.hidden, config.feed_forward, self.patches.clone());
        let at = |part: &str| format!("blk.{layer}.{part}");
        let file = |part: &str| format!("v.blk.{layer}.{part}");
        let (up, down) = self.feed_forward_names(layer);
        let normed = self.norm(&at("ln2"), &file("ln2"), x, (hidden, config.epsilon), &patches)?;
        let middle = match self.has(&file("ffn_gate.weight")) {
            true => self.gated(&at("ffn_gated"), (&file("ffn_gate"), &up), normed)?,
            false => {
                let middle = self.linear(&at("ffn_up"), &up, normed, (ff, hidden), &patches)?;
                self.activate(&at("ffn_act"), config.activation, middle, ff, &patches)
            }
        };
        let out = self.linear(&at("ffn_down"), &down, middle, (hidden, ff), &patches)?;
        self.residual(&at("ffn_residual"), &file("ls2.weight"), x, out)
    }

    /// Names of the first and the second product of a feed-forward layer. Older files have them
    /// the other way round: then `ffn_down` takes the embedding's width.
    fn feed_forward_names(&self, layer: u32) -> (String, String) {
        let (up, down) = (format!("v.blk.{layer}.ffn_up"), format!("v.blk.{layer}.ffn_down"));
        let (hidden, ff) = (self.config.hidden, self.config.feed_forward);
        let inputs = self.lookup.dims(&format!("{down}.weight"));
        match inputs.is_some_and(|dims| dims.first() == Some(&hidden)) && hidden != ff {
            true => (down, up),
            false => (up, down),
        }
    }

    /// `x + branch`, the branch scaled feature by feature where the file has factors.
    fn residual(
        &mut self,
        name: &str,
        factors: &str,
        x: TensorId,
        mut branch: TensorId,
    ) -> Result<TensorId, ModelError> {
        let (hidden, patches) = (self.config.hidden, self.patches.clone());
        if self.has(factors) {
            let factors = self.vector(factors, hidden)?;
            let name = format!("{name}_scale");
            branch = self.step(&name, VisionOp::FeatureScale, &[branch, factors], hidden, &patches);
        }
        let output = self.builder.activation(self.phase, name, hidden, &patches);
        self.builder.op(self.phase, name, OpKind::Add, &[x, branch], &[output]);
        Ok(output)
    }

    /// Whether the file has a tensor.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.lookup.has(name)
    }

    /// Features of a square of patches.
    #[must_use]
    pub fn merged_width(&self) -> u64 {
        self.config.hidden * self.config.merge * self.config.merge
    }

    /// Rows that a matrix of the file has.
    ///
    /// # Errors
    /// A missing tensor.
    pub fn rows_of(&self, name: &str) -> Result<u64, ModelError> {
        match self.lookup.dims(name).as_deref() {
            Some([_, rows, ..]) if *rows > 0 => Ok(*rows),
            _ => Err(ModelError::MissingTensor { name: name.to_string(), expected: vec![] }),
        }
    }

    /// A matrix of the file, loaded.
    ///
    /// # Errors
    /// Missing, of another shape, or of an unsupported type.
    pub fn matrix(&mut self, name: &str, rows: u64, cols: u64) -> Result<TensorId, ModelError> {
        let source = self.lookup.matrix(name, rows, cols)?;
        Ok(self.load_matrix(source))
    }

    fn load_matrix(&mut self, source: Source) -> TensorId {
        self.builder.matrix(Source { file: source.file + self.first_file, ..source })
    }

    fn vector(&mut self, name: &str, len: u64) -> Result<TensorId, ModelError> {
        let source = self.lookup.vector(name, len)?;
        Ok(self.builder.vector(Source { file: source.file + self.first_file, ..source }))
    }

    fn step(
        &mut self,
        name: &str,
        op: VisionOp,
        inputs: &[TensorId],
        features: u64,
        tokens: &Size,
    ) -> TensorId {
        let output = self.builder.activation(self.phase, name, features, tokens);
        self.builder.op(self.phase, name, OpKind::Vision(op), inputs, &[output]);
        output
    }

    /// A product; `(rows, cols)` are its outputs and inputs.
    pub fn product(
        &mut self,
        name: &str,
        (x, weight): (TensorId, TensorId),
        (rows, cols): (u64, u64),
        tokens: &Size,
    ) -> TensorId {
        let output = self.builder.activation(self.phase, name, rows, tokens);
        let kind = OpKind::MatMul { rows, cols, epilogue: Epilogue::Store, copies: Copies::Shared };
        self.builder.op(self.phase, name, kind, &[x, weight], &[output]);
        output
    }

    fn bias(
        &mut self,
        name: &str,
        tensor: &str,
        x: TensorId,
        features: u64,
        tokens: &Size,
    ) -> Result<TensorId, ModelError> {
        let bias = self.vector(tensor, features)?;
        Ok(self.add_bias(name, bias, (x, features), tokens))
    }

    fn add_bias(
        &mut self,
        name: &str,
        bias: TensorId,
        (x, features): (TensorId, u64),
        tokens: &Size,
    ) -> TensorId {
        let name = format!("{name}_bias");
        let output = self.builder.activation(self.phase, &name, features, tokens);
        self.builder.op(self.phase, &name, OpKind::BiasAdd, &[x, bias], &[output]);
        output
    }

    /// A product with its bias, where the file has one.
    ///
    /// # Errors
    /// A tensor that is missing or of another shape.
    pub fn linear(
        &mut self,
        name: &str,
        tensor: &str,
        x: TensorId,
        (rows, cols): (u64, u64),
        tokens: &Size,
    ) -> Result<TensorId, ModelError> {
        let weight = self.matrix(&format!("{tensor}.weight"), rows, cols)?;
        let y = self.product(name, (x, weight), (rows, cols), tokens);
        let bias = format!("{tensor}.bias");
        match self.has(&bias) {
            true => self.bias(name, &bias, y, rows, tokens),
            false => Ok(y),
        }
    }

    /// Product `index` of the three whose weights one tensor of the file joins, with its bias
    /// where there is one: the joined rows are in order, so a third of them stands together.
    fn third(
        &mut self,
        name: &str,
        (tensor, index): (&str, u64),
        x: TensorId,
        width: u64,
        tokens: &Size,
    ) -> Result<TensorId, ModelError> {
        let weight = self.lookup.matrix(&format!("{tensor}.weight"), 3 * width, width)?;
        let weight = self.builder.matrix(Source { rows: width, ..self.part(weight, index) });
        let y = self.product(name, (x, weight), (width, width), tokens);
        let bias = format!("{tensor}.bias");
        if !self.has(&bias) {
            return Ok(y);
        }
        let bias = self.lookup.vector(&bias, 3 * width)?;
        let bias = self.builder.vector(Source { cols: width, ..self.part(bias, index) });
        Ok(self.add_bias(name, bias, (y, width), tokens))
    }

    /// A third of a tensor that joins three.
    fn part(&self, source: Source, index: u64) -> Source {
        Source {
            tensor: format!("{}.{}", source.tensor, ["q", "k", "v"][index as usize]),
            file: source.file + self.first_file,
            offset: source.offset + source.bytes / 3 * index,
            bytes: source.bytes / 3,
            ..source
        }
    }

    /// A layer's norm.
    ///
    /// # Errors
    /// A tensor that is missing or of another shape.
    pub fn norm(
        &mut self,
        name: &str,
        tensor: &str,
        x: TensorId,
        (features, epsilon): (u64, f32),
        tokens: &Size,
    ) -> Result<TensorId, ModelError> {
        let weight = self.vector(&format!("{tensor}.weight"), features)?;
        if self.config.norm == Norm::RootMeanSquare {
            let output = self.builder.activation(self.phase, name, features, tokens);
            let kind = OpKind::RmsNorm { epsilon };
            self.builder.op(self.phase, name, kind, &[x, weight], &[output]);
            return Ok(output);
        }
        let bias = self.vector(&format!("{tensor}.bias"), features)?;
        let kind = VisionOp::LayerNorm { epsilon };
        Ok(self.step(name, kind, &[x, weight, bias], features, tokens))
    }

    /// A function of each element.
    pub fn activate(
        &mut self,
        name: &str,
        activation: Activation,
        x: TensorId,
        features: u64,
        tokens: &Size,
    ) -> TensorId {
        self.step(name, VisionOp::Activate(activation), &[x], features, tokens)
    }
}
