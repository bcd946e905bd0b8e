//! The two 16-bit float formats, converted exactly as the hardware does.
//!
//! Widening is exact. Narrowing rounds to nearest, ties to even, keeps denormals, overflows to
//! infinity and quiets NaNs, so that these functions and F16C give the same bits.

/// IEEE binary16 to f32, exact.
#[inline]
pub fn f16_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits >> 15) << 31;
    let exponent = u32::from(bits >> 10) & 0x1F;
    let mantissa = u32::from(bits) & 0x3FF;
    let magnitude = match exponent {
        // A denormal is mantissa · 2⁻²⁴, which f32 represents as a normal number.
        0 => (mantissa as f32 * (1.0 / 16_777_216.0)).to_bits(),
        31 if mantissa == 0 => 0x7F80_0000,
        31 => 0x7FC0_0000 | mantissa << 13,
        _ => (exponent + 112) << 23 | mantissa << 13,
    };
    f32::from_bits(sign | magnitude)
}

/// f32 to IEEE binary16, nearest even.
#[inline]
pub fn f32_to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 16 & 0x8000) as u16;
    let magnitude = bits & 0x7FFF_FFFF;
    if magnitude > 0x7F80_0000 {
        return sign | 0x7E00 | (magnitude >> 13 & 0x3FF) as u16;
    }
    if magnitude >= 0x4780_0000 {
        return sign | 0x7C00;
    }
    if magnitude < 0x3880_0000 {
        // Denormal result: adding 0.5 puts one unit of 2⁻²⁴ at the last mantissa bit, so the
        // addition itself rounds to nearest even.
        let shifted = f32::from_bits(magnitude) + 0.5;
        return sign | (shifted.to_bits() - 0.5f32.to_bits()) as u16;
    }
    let odd = magnitude >> 13 & 1;
    let rounded = magnitude - (112 << 23) + 0xFFF + odd;
    sign | (rounded >> 13) as u16
}

/// bfloat16 to f32, exact.
#[inline]
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// f32 to bfloat16, nearest even.
#[inline]
pub fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    ((u64::from(bits) + 0x7FFF + u64::from(bits >> 16 & 1)) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_f16_survives_the_round_trip() {
        for bits in 0..=u16::MAX {
            let back = f32_to_f16(f16_to_f32(bits));
            let is_nan = bits & 0x7C00 == 0x7C00 && bits & 0x3FF != 0;
            let want = if is_nan { bits | 0x200 } else { bits };
            assert_eq!(back, want, "{bits:#06x}");
        }
    }

    #[test]
    fn narrowing_rounds_to_nearest_even() {
        let cases = [
            (1.0, 0x3C00),
            (-2.0, 0xC000),
            (65504.0, 0x7BFF),
            (65519.9, 0x7BFF),
            (65520.0, 0x7C00),
            (1e9, 0x7C00),
            (f32::NEG_INFINITY, 0xFC00),
            (5.960_464_5e-8, 0x0001),
            (2.980_232_2e-8, 0x0000),
            (2.980_233e-8, 0x0001),
            (8.940_697e-8, 0x0002),
            (6.103_515_6e-5, 0x0400),
            (1.000_488_3, 0x3C00),
            (1.001_464_8, 0x3C02),
            (0.0, 0x0000),
            (-0.0, 0x8000),
        ];
        for (value, want) in cases {
            assert_eq!(f32_to_f16(value), want, "{value}");
        }
    }

    #[test]
    fn narrowing_picks_the_nearest_neighbour_of_random_values() {
        let mut state = 1u64;
        for _ in 0..200_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let exponent = 100 + (state >> 40) as u32 % 44;
            let value = f32::from_bits(exponent << 23 | (state >> 41) as u32 & 0x7F_FFFF);
            let got = f32_to_f16(value);
            let error = |bits: u16| (f64::from(f16_to_f32(bits)) - f64::from(value)).abs();
            if got < 0x7C00 {
                assert!(error(got) <= error(got + 1), "{value}");
                assert!(got == 0 || error(got) <= error(got - 1), "{value}");
            }
        }
    }

    #[test]
    fn bf16_rounds_to_nearest_even() {
        assert_eq!(f32_to_bf16(1.0), 0x3F80);
        assert_eq!(f32_to_bf16(f32::from_bits(0x3F80_8000)), 0x3F80);
        assert_eq!(f32_to_bf16(f32::from_bits(0x3F81_8000)), 0x3F82);
        assert_eq!(f32_to_bf16(f32::MAX), 0x7F80);
        assert!(bf16_to_f32(f32_to_bf16(f32::NAN)).is_nan());
        assert_eq!(bf16_to_f32(0xC000), -2.0);
    }
}
