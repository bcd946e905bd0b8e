//! Which instruction set a kernel may use, and the proof that this processor has it.
//!
//! An [`Isa`] other than [`Isa::Scalar`] carries a token that only detection can make. A shell
//! that enables target features therefore takes a token instead of a promise, and calling it is
//! sound wherever the token came from. All of them answer with the same bits.

/// Proof that this processor has AVX2, FMA and F16C.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx2Token(());

/// Proof that this processor has AVX-VNNI beside AVX2: a faster integer dot product that kernels
/// for [`Isa::Avx2`] choose on their own, since the bits are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AvxVnniToken(());

/// Proof that this processor has AVX-512 F, BW, VL, DQ and VNNI, and all of [`Avx2Token`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx512Token(());

/// Proof that this processor has AMX tiles of 8-bit integers, that the operating system lets this
/// process use them, and all of [`Avx512Token`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AmxToken(Avx512Token);

impl Avx2Token {
    /// The token, if the processor (and the operating system) supports the instruction set.
    pub fn detect() -> Option<Self> {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
        {
            return Some(Self(()));
        }
        None
    }
}

impl AvxVnniToken {
    /// The token, if the processor (and the operating system) supports the instruction set.
    pub fn detect() -> Option<Self> {
        Avx2Token::detect()?;
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avxvnni") {
            return Some(Self(()));
        }
        None
    }
}

impl Avx512Token {
    /// The token, if the processor (and the operating system) supports the instruction set.
    pub fn detect() -> Option<Self> {
        Avx2Token::detect()?;
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vnni")
        {
            return Some(Self(()));
        }
        None
    }

    /// Every processor with this instruction set has AVX2 too.
    pub fn avx2(self) -> Avx2Token {
        Avx2Token(())
    }
}

impl AmxToken {
    /// The token, if the processor supports the instruction set and the operating system lets this
    /// process use it, which it is asked for once.
    pub fn detect() -> Option<Self> {
        let avx512 = Avx512Token::detect()?;
        crate::permission::tiles().then_some(Self(avx512))
    }

    /// Every processor with this instruction set has AVX-512 too.
    pub fn avx512(self) -> Avx512Token {
        self.0
    }
}

/// The instruction set that a kernel runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// Portable code: `f32::mul_add` and integers. Slow, and the same bits.
    Scalar,
    /// 256-bit vectors.
    Avx2(Avx2Token),
    /// 512-bit vectors with integer dot products.
    Avx512(Avx512Token),
    /// As [`Isa::Avx512`], and products of many tokens in tile registers.
    Amx(AmxToken),
}

impl Isa {
    /// The fastest instruction set of this processor.
    pub fn detect_best() -> Self {
        if let Some(token) = AmxToken::detect() {
            Self::Amx(token)
        } else if let Some(token) = Avx512Token::detect() {
            Self::Avx512(token)
        } else if let Some(token) = Avx2Token::detect() {
            Self::Avx2(token)
        } else {
            Self::Scalar
        }
    }

    /// Every instruction set of this processor, slowest first. Tests compare them all.
    pub fn available() -> impl Iterator<Item = Self> {
        [
            Some(Self::Scalar),
            Avx2Token::detect().map(Self::Avx2),
            Avx512Token::detect().map(Self::Avx512),
            AmxToken::detect().map(Self::Amx),
        ]
        .into_iter()
        .flatten()
    }

    /// The name used in options and reports: `scalar`, `avx2`, `avx512` or `amx`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2(_) => "avx2",
            Self::Avx512(_) => "avx512",
            Self::Amx(_) => "amx",
        }
    }

    /// The instruction set of that name, if this processor has it.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::available().find(|isa| isa.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_is_the_last_available_and_names_are_a_bijection() {
        assert_eq!(Isa::available().last(), Some(Isa::detect_best()));
        for isa in Isa::available() {
            assert_eq!(Isa::from_name(isa.name()), Some(isa));
        }
        assert_eq!(Isa::from_name("avx1024"), None);
    }
}
