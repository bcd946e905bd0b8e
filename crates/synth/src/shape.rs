//! The published configurations, and which tensor types a mix gives them.

use dctms_format::GgmlType;

/// A family of decoders, as files name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// Llama: no biases.
    Llama,
    /// Qwen2: biases on queries, keys and values.
    Qwen2,
    /// The decoder of Qwen2.5-VL: as Qwen2, three positions a token.
    Qwen2Vl,
    /// Qwen3: norms on the heads of queries and keys.
    Qwen3,
}

impl Architecture {
    /// The value of `general.architecture`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen2Vl => "qwen2vl",
            Self::Qwen3 => "qwen3",
        }
    }

    /// The pre-tokeniser that published files of the family name.
    pub(crate) const fn pre_tokeniser(self) -> &'static str {
        match self {
            Self::Llama => "smollm",
            Self::Qwen2 | Self::Qwen2Vl | Self::Qwen3 => "qwen2",
        }
    }

    /// Whether queries, keys and values have biases.
    pub(crate) const fn has_biases(self) -> bool {
        match self {
            Self::Qwen2 | Self::Qwen2Vl => true,
            Self::Llama | Self::Qwen3 => false,
        }
    }
}

/// Which tensor types the matrices get; vectors are always f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// All f16.
    F16,
    /// All Q8_0.
    Q8_0,
    /// Q4_0, the output matrix Q6_K.
    Q4_0,
    /// Q4_K with Q6_K where `llama-quantize` gives more bits; narrow rows fall back.
    Q4KM,
}

impl Mix {
    /// Every mix.
    pub const ALL: [Self; 4] = [Self::F16, Self::Q8_0, Self::Q4_0, Self::Q4KM];

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::Q8_0 => "q8_0",
            Self::Q4_0 => "q4_0",
            Self::Q4KM => "q4_k_m",
        }
    }

    /// `general.file_type`, llama.cpp's numbers.
    pub(crate) const fn file_type(self) -> u32 {
        match self {
            Self::F16 => 1,
            Self::Q4_0 => 2,
            Self::Q8_0 => 7,
            Self::Q4KM => 15,
        }
    }

    pub(crate) const fn base(self) -> GgmlType {
        match self {
            Self::F16 => GgmlType::F16,
            Self::Q8_0 => GgmlType::Q8_0,
            Self::Q4_0 => GgmlType::Q4_0,
            Self::Q4KM => GgmlType::Q4_K,
        }
    }

    /// The type of the matrix that makes logits.
    pub(crate) const fn head(self) -> GgmlType {
        match self {
            Self::F16 => GgmlType::F16,
            Self::Q8_0 => GgmlType::Q8_0,
            Self::Q4_0 | Self::Q4KM => GgmlType::Q6_K,
        }
    }

    /// The type of a layer's value and down matrices.
    pub(crate) const fn rich(self, layer: u32, layers: u32) -> GgmlType {
        match self {
            Self::Q4KM if more_bits(layer, layers) => GgmlType::Q6_K,
            Self::F16 | Self::Q8_0 | Self::Q4_0 | Self::Q4KM => self.base(),
        }
    }
}

/// `llama-quantize`'s choice of the layers that get more bits: the first and last eighth, and
/// every third one between.
const fn more_bits(layer: u32, layers: u32) -> bool {
    let eighth = layers / 8;
    layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2
}

/// The published configuration of one model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Its name on the command line.
    pub name: &'static str,
    /// Its family.
    pub architecture: Architecture,
    /// Layers.
    pub layers: u32,
    /// Width of the residual stream.
    pub hidden: u32,
    /// Width inside the feed-forward part.
    pub feed_forward: u32,
    /// Query heads.
    pub heads: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Elements of a head.
    pub head_dim: u32,
    /// Tokens of the vocabulary.
    pub vocabulary: u32,
    /// Tokens before the control tokens; what follows those is padding.
    pub ordinary_tokens: u32,
    /// Whether the embedding is the output matrix too.
    pub tied: bool,
    /// Base of the rotary frequencies.
    pub rope_base: f32,
    /// Longest context, tokens.
    pub context: u32,
    /// Added to the mean square in norms.
    pub epsilon: f32,
}

/// What can be written.
pub const SHAPES: [Shape; 8] = [
    llama("smollm2-135m", [30, 576, 1536, 9, 3], 49_152),
    llama("smollm2-360m", [32, 960, 2560, 15, 5], 49_152),
    qwen2("qwen2.5-0.5b", [24, 896, 4864, 14, 2], 64, 151_936),
    qwen2("qwen2.5-1.5b", [28, 1536, 8960, 12, 2], 128, 151_936),
    qwen2("qwen2.5-3b", [36, 2048, 11_008, 16, 2], 128, 151_936),
    Shape { tied: false, ..qwen2("qwen2.5-7b", [28, 3584, 18_944, 28, 4], 128, 152_064) },
    Shape {
        architecture: Architecture::Qwen2Vl,
        context: 128_000,
        ..qwen2("qwen2.5-vl-3b", [36, 2048, 11_008, 16, 2], 128, 151_936)
    },
    Shape {
        architecture: Architecture::Qwen3,
        context: 40_960,
        ..qwen2("qwen3-0.6b", [28, 1024, 3072, 16, 8], 128, 151_936)
    },
];

const fn llama(name: &'static str, shape: [u32; 5], vocabulary: u32) -> Shape {
    let [layers, hidden, feed_forward, heads, kv_heads] = shape;
    Shape {
        name,
        architecture: Architecture::Llama,
        layers,
        hidden,
        feed_forward,
        heads,
        kv_heads,
        head_dim: 64,
        vocabulary,
        ordinary_tokens: vocabulary - 3,
        tied: true,
        rope_base: 100_000.0,
        context: 8192,
        epsilon: 1e-5,
    }
}

const fn qwen2(name: &'static str, shape: [u32; 5], head_dim: u32, vocabulary: u32) -> Shape {
    let [layers, hidden, feed_forward, heads, kv_heads] = shape;
    Shape {
        name,
        architecture: Architecture::Qwen2,
        layers,
        hidden,
        feed_forward,
        heads,
        kv_heads,
        head_dim,
        vocabulary,
        ordinary_tokens: 151_643,
        tied: true,
        rope_base: 1_000_000.0,
        context: 32_768,
        epsilon: 1e-6,
    }
}

/// The published configuration of one image encoder.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VisionShape {
    /// Its name on the command line.
    pub name: &'static str,
    /// Layers.
    pub layers: u32,
    /// Width of the residual stream.
    pub hidden: u32,
    /// Width inside the feed-forward part.
    pub feed_forward: u32,
    /// Heads.
    pub heads: u32,
    /// Pixels of a side of a patch.
    pub patch: u32,
    /// Patches of a side of the square that becomes a token.
    pub merge: u32,
    /// Every so-manieth layer sees the whole picture.
    pub pattern: u32,
    /// Width of the decoder.
    pub text_hidden: u32,
    /// Added to the mean square in norms.
    pub epsilon: f32,
    /// Mean of each channel of pixels in 0 to 1.
    pub mean: [f32; 3],
    /// Standard deviation of each channel.
    pub deviation: [f32; 3],
}

/// Image encoders that can be written.
pub const VISION_SHAPES: [VisionShape; 1] = [VisionShape {
    name: "qwen2.5-vl-3b-mmproj",
    layers: 32,
    hidden: 1280,
    feed_forward: 3420,
    heads: 16,
    patch: 14,
    merge: 2,
    pattern: 8,
    text_hidden: 2048,
    epsilon: 1e-6,
    mean: [0.481_454_66, 0.457_827_5, 0.408_210_73],
    deviation: [0.268_629_54, 0.261_302_6, 0.275_777_1],
}];
