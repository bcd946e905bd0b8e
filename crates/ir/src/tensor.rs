//! Tensors: what a value is made of, how many bytes it takes, and how long it lives.

use crate::ids::PhaseId;
use crate::limits::{ACTIVATION_BLOCK_BYTES, BLOCK, TILE};
use crate::size::Size;

/// The element type of a tensor. Packed kinds are weights interleaved by [`TILE`] rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Dtype {
    /// Raw bytes.
    U8,
    /// 32-bit signed integers.
    I32,
    /// 32-bit floats.
    F32,
    /// 16-bit floats.
    F16,
    /// Brain floats.
    Bf16,
    /// Packed blocks of 32: 8 bits and a scale. Also the type of a quantised key/value cache.
    Q8_0,
    /// Packed blocks of 32: 4 bits and a scale.
    Q4_0,
    /// Packed blocks of 32: 4 bits, a scale and a minimum.
    Q4_1,
    /// Packed blocks of 32: 5 bits and a scale.
    Q5_0,
    /// Packed blocks of 32: 5 bits, a scale and a minimum.
    Q5_1,
    /// Packed super-blocks of 256: 2 bits, 4-bit scales and minima for 16.
    Q2K,
    /// Packed super-blocks of 256: 3 bits, 6-bit scales for 16.
    Q3K,
    /// Packed super-blocks of 256: 4 bits, 6-bit scales and minima for 32.
    Q4K,
    /// Packed super-blocks of 256: 5 bits, 6-bit scales and minima for 32.
    Q5K,
    /// Packed super-blocks of 256: 6 bits, 8-bit scales for 16.
    Q6K,
}

impl Dtype {
    /// Every dtype, in declaration order.
    pub const ALL: [Dtype; 15] = [
        Dtype::U8,
        Dtype::I32,
        Dtype::F32,
        Dtype::F16,
        Dtype::Bf16,
        Dtype::Q8_0,
        Dtype::Q4_0,
        Dtype::Q4_1,
        Dtype::Q5_0,
        Dtype::Q5_1,
        Dtype::Q2K,
        Dtype::Q3K,
        Dtype::Q4K,
        Dtype::Q5K,
        Dtype::Q6K,
    ];

    /// The name in text forms.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Dtype::U8 => "u8",
            Dtype::I32 => "i32",
            Dtype::F32 => "f32",
            Dtype::F16 => "f16",
            Dtype::Bf16 => "bf16",
            Dtype::Q8_0 => "q8_0",
            Dtype::Q4_0 => "q4_0",
            Dtype::Q4_1 => "q4_1",
            Dtype::Q5_0 => "q5_0",
            Dtype::Q5_1 => "q5_1",
            Dtype::Q2K => "q2_k",
            Dtype::Q3K => "q3_k",
            Dtype::Q4K => "q4_k",
            Dtype::Q5K => "q5_k",
            Dtype::Q6K => "q6_k",
        }
    }

    /// The dtype of a text name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Dtype> {
        Dtype::ALL.into_iter().find(|dtype| dtype.name() == name)
    }

    /// Elements of a block and bytes that a block takes in the packed form, for one row.
    #[must_use]
    pub fn packed_block(self) -> (u64, u64) {
        match self {
            Dtype::U8 => (1, 1),
            Dtype::I32 | Dtype::F32 => (1, 4),
            Dtype::F16 | Dtype::Bf16 => (1, 2),
            Dtype::Q8_0 => (32, 32 + 2),
            Dtype::Q4_0 => (32, 16 + 2),
            Dtype::Q4_1 => (32, 16 + 4),
            Dtype::Q5_0 => (32, 20 + 2),
            Dtype::Q5_1 => (32, 20 + 4),
            Dtype::Q2K => (256, 4 + 8 * (8 + 4)),
            Dtype::Q3K => (256, 2 + 8 * (12 + 2)),
            Dtype::Q4K => (256, 4 + 8 * (16 + 2)),
            Dtype::Q5K => (256, 4 + 8 * (20 + 2)),
            Dtype::Q6K => (256, 2 + 8 * (24 + 2)),
        }
    }

    /// Whether a product with weights of this type takes quantised activations.
    #[must_use]
    pub fn is_quantised(self) -> bool {
        self.packed_block().0 > 1
    }

    /// Bytes of a packed weight matrix: rows padded to a multiple of [`TILE`]. `None` when the
    /// columns are not whole blocks, or on overflow.
    #[must_use]
    pub fn packed_bytes(self, rows: u64, cols: u64) -> Option<u64> {
        let (elements, bytes) = self.packed_block();
        if !cols.is_multiple_of(elements) {
            return None;
        }
        rows.div_ceil(TILE).checked_mul(TILE)?.checked_mul(cols / elements)?.checked_mul(bytes)
    }

    /// Least bytes that `elements` values can take (an outside checker's view).
    #[must_use]
    pub fn least_bytes(self, elements: u64) -> Option<u64> {
        let (block, bytes) = self.packed_block();
        elements.div_ceil(block).checked_mul(bytes)
    }
}

/// How long a tensor lives, and who writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Residence {
    /// Written once while loading, read for ever: weights and tables.
    Constant,
    /// Written or read by the host between phases: token ids, positions, logits.
    External,
    /// Kept from phase to phase and updated in place: keys, values, the random state.
    State,
    /// Written in one phase and read in a later one.
    Carried,
    /// Lives inside one run of one phase.
    Transient,
}

impl Residence {
    /// Every residence class.
    pub const ALL: [Residence; 5] = [
        Residence::Constant,
        Residence::External,
        Residence::State,
        Residence::Carried,
        Residence::Transient,
    ];

    /// The name in text forms.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Residence::Constant => "constant",
            Residence::External => "external",
            Residence::State => "state",
            Residence::Carried => "carried",
            Residence::Transient => "transient",
        }
    }
}

/// The term of the envelope that a tensor's bytes are counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Term {
    /// Weights as packed.
    Weights,
    /// Keys and values.
    Kv,
    /// Tables, host buffers, small state: everything that lives across phases beside those.
    Persistent,
    /// Transients.
    Intermediate,
}

impl Term {
    /// Every term, in arena order.
    pub const ALL: [Term; 4] = [Term::Weights, Term::Kv, Term::Persistent, Term::Intermediate];

    /// The name in text forms.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Term::Weights => "weights",
            Term::Kv => "kv",
            Term::Persistent => "persistent",
            Term::Intermediate => "intermediate",
        }
    }
}

/// A value of the program.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// A unique name, e.g. `decode.blk.0.attn_q`.
    pub name: String,
    /// The model that it belongs to.
    pub model: u32,
    /// Element type.
    pub dtype: Dtype,
    /// Extent of each axis, outermost first, in elements of the stored layout.
    pub shape: Vec<Size>,
    /// Bytes.
    pub size: Size,
    /// Lifetime class.
    pub residence: Residence,
    /// Envelope term.
    pub term: Term,
    /// The phase that it lives in; `None` when it lives across phases.
    pub phase: Option<PhaseId>,
    /// The state that it is a version of.
    pub state: Option<String>,
}

/// Bytes of a tile-major f32 activation of `features` for `tokens`.
#[must_use]
pub fn activation_bytes(features: u64, tokens: &Size) -> Size {
    Size::product(&[tokens.clone(), Size::Const(features.next_multiple_of(TILE) * 4)])
}

/// Bytes of a quantised activation of `features` for `tokens`.
#[must_use]
pub fn quantised_bytes(features: u64, tokens: &Size) -> Size {
    let blocks = features.div_ceil(BLOCK);
    Size::product(&[tokens.clone(), Size::Const(blocks * ACTIVATION_BLOCK_BYTES)])
}

/// Bytes that one row of `dims` values takes in a key or value cache, `None` when the type cannot
/// be one or the row is not whole blocks.
#[must_use]
pub fn kv_row_bytes(dtype: Dtype, dims: u64) -> Option<u64> {
    match dtype {
        Dtype::F32 => dims.checked_mul(4),
        Dtype::F16 => dims.checked_mul(2),
        Dtype::Q8_0 if dims.is_multiple_of(BLOCK) => (dims / BLOCK).checked_mul(34),
        Dtype::Q8_0
        | Dtype::U8
        | Dtype::I32
        | Dtype::Bf16
        | Dtype::Q4_0
        | Dtype::Q4_1
        | Dtype::Q5_0
        | Dtype::Q5_1
        | Dtype::Q2K
        | Dtype::Q3K
        | Dtype::Q4K
        | Dtype::Q5K
        | Dtype::Q6K => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_bytes_hold_the_file_blocks() {
        // Bytes of a 256-element row segment in the file format (GGUF specification).
        let file = [
            (Dtype::Q4_0, 8 * 18),
            (Dtype::Q4_1, 8 * 20),
            (Dtype::Q5_0, 8 * 22),
            (Dtype::Q5_1, 8 * 24),
            (Dtype::Q8_0, 8 * 34),
            (Dtype::Q2K, 84),
            (Dtype::Q3K, 110),
            (Dtype::Q4K, 144),
            (Dtype::Q5K, 176),
            (Dtype::Q6K, 210),
        ];
        for (dtype, bytes) in file {
            let packed = dtype.packed_bytes(16, 256).expect("whole blocks") / 16;
            assert!(packed >= bytes, "{}", dtype.name());
            assert!(packed * 100 <= bytes * 120, "{}", dtype.name());
        }
        assert_eq!(Dtype::Q4_0.packed_bytes(17, 32), Some(32 * 18));
        assert_eq!(Dtype::Q4K.packed_bytes(16, 128), None);
    }

    #[test]
    fn names_round_trip() {
        for dtype in Dtype::ALL {
            assert_eq!(Dtype::from_name(dtype.name()), Some(dtype));
        }
    }
}
