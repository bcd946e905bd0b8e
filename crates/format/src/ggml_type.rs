//! The element types that a GGUF tensor may have, with their block sizes.
//!
//! A quantised row is a sequence of blocks: `block_len` consecutive elements of the first
//! dimension stored in `block_len_bytes`. The table covers every type that ggml has ever given a
//! number and not withdrawn, so that a file of a type that the engine cannot run is still
//! listed, sized and refused by name. How a block decodes is not known here.

use std::fmt;

/// Defines the closed set once: number in the file, name, elements and bytes of a block.
macro_rules! ggml_types {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $elements:literal, $bytes:literal;)*) => {
        /// Element type of a tensor, by ggml's names.
        #[allow(non_camel_case_types)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum GgmlType { $($(#[$doc])* $name = $number,)* }

        impl GgmlType {
            /// Every type, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The type with this number in the file, if there is one.
            pub const fn from_number(number: u32) -> Option<Self> {
                match number { $($number => Some(Self::$name),)* _ => None }
            }

            /// ggml's name.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }

            /// Elements of one block, along a tensor's first dimension.
            pub const fn block_len(self) -> u64 {
                match self { $(Self::$name => $elements,)* }
            }

            /// Bytes of one block.
            pub const fn block_len_bytes(self) -> u64 {
                match self { $(Self::$name => $bytes,)* }
            }
        }
    };
}

ggml_types! {
    /// IEEE binary32.
    F32 = 0, 1, 4;
    /// IEEE binary16.
    F16 = 1, 1, 2;
    /// 4 bits, scale.
    Q4_0 = 2, 32, 18;
    /// 4 bits, scale and minimum.
    Q4_1 = 3, 32, 20;
    /// 5 bits, scale.
    Q5_0 = 6, 32, 22;
    /// 5 bits, scale and minimum.
    Q5_1 = 7, 32, 24;
    /// 8 bits, scale.
    Q8_0 = 8, 32, 34;
    /// 8 bits, scale and sum: activations, never weights.
    Q8_1 = 9, 32, 36;
    /// 2 bits in super-blocks of 256.
    Q2_K = 10, 256, 84;
    /// 3 bits in super-blocks of 256.
    Q3_K = 11, 256, 110;
    /// 4 bits in super-blocks of 256.
    Q4_K = 12, 256, 144;
    /// 5 bits in super-blocks of 256.
    Q5_K = 13, 256, 176;
    /// 6 bits in super-blocks of 256.
    Q6_K = 14, 256, 210;
    /// 8 bits in super-blocks of 256: activations, never weights.
    Q8_K = 15, 256, 292;
    /// Codebook, 2.06 bits.
    IQ2_XXS = 16, 256, 66;
    /// Codebook, 2.31 bits.
    IQ2_XS = 17, 256, 74;
    /// Codebook, 3.06 bits.
    IQ3_XXS = 18, 256, 98;
    /// Codebook, 1.56 bits.
    IQ1_S = 19, 256, 50;
    /// Non-linear 4 bits.
    IQ4_NL = 20, 32, 18;
    /// Codebook, 3.44 bits.
    IQ3_S = 21, 256, 110;
    /// Codebook, 2.56 bits.
    IQ2_S = 22, 256, 82;
    /// Non-linear 4 bits in super-blocks.
    IQ4_XS = 23, 256, 136;
    /// Signed 8-bit integers.
    I8 = 24, 1, 1;
    /// Signed 16-bit integers.
    I16 = 25, 1, 2;
    /// Signed 32-bit integers.
    I32 = 26, 1, 4;
    /// Signed 64-bit integers.
    I64 = 27, 1, 8;
    /// IEEE binary64.
    F64 = 28, 1, 8;
    /// Codebook, 1.75 bits.
    IQ1_M = 29, 256, 56;
    /// The upper half of a binary32.
    BF16 = 30, 1, 2;
    /// Ternary, 1.69 bits.
    TQ1_0 = 34, 256, 54;
    /// Ternary, 2.06 bits.
    TQ2_0 = 35, 256, 66;
    /// OCP microscaling 4-bit floats.
    MXFP4 = 39, 32, 17;
    /// 4-bit floats with 8-bit float scales.
    NVFP4 = 40, 64, 36;
    /// Sign bits, scale.
    Q1_0 = 41, 128, 18;
    /// 2 bits, scale.
    Q2_0 = 42, 64, 18;
}

impl GgmlType {
    /// The number in the file.
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// Whether the engine can compute with weights of this type.
    pub const fn is_supported(self) -> bool {
        match self {
            Self::F32
            | Self::F16
            | Self::BF16
            | Self::Q8_0
            | Self::Q4_0
            | Self::Q4_1
            | Self::Q5_0
            | Self::Q5_1
            | Self::Q2_K
            | Self::Q3_K
            | Self::Q4_K
            | Self::Q5_K
            | Self::Q6_K => true,
            Self::Q8_1
            | Self::Q8_K
            | Self::IQ2_XXS
            | Self::IQ2_XS
            | Self::IQ3_XXS
            | Self::IQ1_S
            | Self::IQ4_NL
            | Self::IQ3_S
            | Self::IQ2_S
            | Self::IQ4_XS
            | Self::I8
            | Self::I16
            | Self::I32
            | Self::I64
            | Self::F64
            | Self::IQ1_M
            | Self::TQ1_0
            | Self::TQ2_0
            | Self::MXFP4
            | Self::NVFP4
            | Self::Q1_0
            | Self::Q2_0 => false,
        }
    }

    /// Bytes of a tensor of these dimensions (innermost first; none is a single element).
    /// `None` when the first is not a whole number of blocks or the product overflows.
    pub fn tensor_len_bytes(self, dims: &[u64]) -> Option<u64> {
        let row_len = dims.first().copied().unwrap_or(1);
        if !row_len.is_multiple_of(self.block_len()) {
            return None;
        }
        let row_len_bytes = (row_len / self.block_len()).checked_mul(self.block_len_bytes())?;
        dims.iter().skip(1).try_fold(row_len_bytes, |bytes, &dim| bytes.checked_mul(dim))
    }

    /// What became of a number that [`GgmlType::from_number`] does not know, if it was a type.
    pub(crate) const fn withdrawn_name(number: u32) -> Option<&'static str> {
        match number {
            4 => Some("Q4_2"),
            5 => Some("Q4_3"),
            31 => Some("Q4_0_4_4"),
            32 => Some("Q4_0_4_8"),
            33 => Some("Q4_0_8_8"),
            36 => Some("IQ4_NL_4_4"),
            37 => Some("IQ4_NL_4_8"),
            38 => Some("IQ4_NL_8_8"),
            _ => None,
        }
    }
}

impl fmt::Display for GgmlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_both_ways_and_names_are_unique() {
        for (index, &kind) in GgmlType::ALL.iter().enumerate() {
            assert_eq!(GgmlType::from_number(kind.number()), Some(kind));
            assert_eq!(GgmlType::withdrawn_name(kind.number()), None);
            assert!(GgmlType::ALL[..index].iter().all(|other| other.name() != kind.name()));
        }
        let known = (0..100).filter(|&n| GgmlType::from_number(n).is_some()).count();
        assert_eq!(known, GgmlType::ALL.len());
        assert_eq!(GgmlType::ALL.iter().filter(|kind| kind.is_supported()).count(), 13);
    }

    #[test]
    fn lengths_are_whole_blocks_and_checked() {
        assert_eq!(GgmlType::Q4_K.tensor_len_bytes(&[512, 3]), Some(2 * 144 * 3));
        assert_eq!(GgmlType::Q4_K.tensor_len_bytes(&[128]), None);
        assert_eq!(GgmlType::F32.tensor_len_bytes(&[]), Some(4));
        assert_eq!(GgmlType::Q8_0.tensor_len_bytes(&[]), None);
        assert_eq!(GgmlType::F32.tensor_len_bytes(&[1 << 62]), None);
        assert_eq!(GgmlType::F16.tensor_len_bytes(&[1 << 31, 1 << 31, 2]), None);
    }
}
