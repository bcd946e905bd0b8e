//! Loading: the only phase that reads files. Each task streams one tensor through its bounded
//! staging buffer; the files' bytes are read by the host, which alone knows where they are.

use dctms_ir::Dtype;
use dctms_ir::op::{RopeScaling, Source};
use dctms_kernels::half::{bf16_to_f32, f16_to_f32};
use dctms_kernels::packed::PackedKind;

/// What loading asks of the host.
pub trait LoadHost: Sync {
    /// Fills `buffer` from a byte offset of a model file.
    ///
    /// # Errors
    /// What went wrong, with the offset.
    fn read(&self, file: u32, offset: u64, buffer: &mut [u8]) -> Result<(), String>;

    /// Builds the tokeniser's tables into planned bytes from the vocabulary's bytes, which stand
    /// at `offset` of the first file.
    ///
    /// # Errors
    /// What is wrong with the vocabulary.
    fn build_tokenizer(&self, offset: u64, text: &[u8], tables: &mut [u8]) -> Result<(), String>;

    /// Fills a constant, or the rest of one, whose place begins at byte `arena_offset` as it would
    /// be after loading, where the host has it so.
    ///
    /// # Errors
    /// What went wrong.
    fn constant(&self, arena_offset: usize, out: &mut [u8]) -> Result<Constant, String> {
        let _ = (arena_offset, out);
        Ok(Constant::Elsewhere)
    }

    /// Hears that so many more bytes of the files have been loaded.
    fn loaded(&self, bytes: u64);
}

/// Whether a host had a constant ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Constant {
    /// It did, and it stands in its place.
    Filled,
    /// It is to be made from the model's files.
    Elsewhere,
}

/// The packed kind of a weight dtype.
///
/// # Panics
/// For a dtype that no weight has.
#[must_use]
pub fn packed_kind(dtype: Dtype) -> PackedKind {
    match dtype {
        Dtype::F32 => PackedKind::F32,
        Dtype::F16 => PackedKind::F16,
        Dtype::Bf16 => PackedKind::BF16,
        Dtype::Q8_0 => PackedKind::Q8_0,
        Dtype::Q4_0 => PackedKind::Q4_0,
        Dtype::Q4_1 => PackedKind::Q4_1,
        Dtype::Q5_0 => PackedKind::Q5_0,
        Dtype::Q5_1 => PackedKind::Q5_1,
        Dtype::Q2K => PackedKind::Q2K,
        Dtype::Q3K => PackedKind::Q3K,
        Dtype::Q4K => PackedKind::Q4K,
        Dtype::Q5K => PackedKind::Q5K,
        Dtype::Q6K => PackedKind::Q6K,
        Dtype::U8 | Dtype::I32 => unreachable!("no weight is {}", dtype.name()),
    }
}

/// Reads a matrix tile by tile and packs it.
///
/// # Errors
/// What the host said.
pub fn matrix(
    host: &dyn LoadHost,
    source: &Source,
    out: &mut [u8],
    staging: &mut [u8],
) -> Result<(), String> {
    let kind = packed_kind(source.dtype);
    let cols = source.cols as usize;
    let row_bytes = dctms_kernels::raw::row_bytes(kind, cols).ok_or("columns are not blocks")?;
    let tile_bytes = kind.tile_bytes(cols).ok_or("columns are not blocks")?;
    let rows_at_once = (staging.len() / (16 * row_bytes)).max(1) * 16;
    let rows = source.rows as usize;
    let mut row = 0;
    while row < rows {
        let count = rows_at_once.min(rows - row);
        let bytes = &mut staging[..count * row_bytes];
        host.read(source.file, source.offset + (row * row_bytes) as u64, bytes)?;
        for (index, raw) in bytes.chunks(16 * row_bytes).enumerate() {
            let tile = row / 16 + index;
            let packed = &mut out[tile * tile_bytes..(tile + 1) * tile_bytes];
            dctms_kernels::pack::pack_rows(kind, cols, raw, packed);
        }
        host.loaded(bytes.len() as u64);
        row += count;
    }
    Ok(())
}

/// Reads a vector as f32; what the file does not give stays zero.
///
/// # Errors
/// What the host said.
pub fn vector(
    host: &dyn LoadHost,
    source: &Source,
    out: &mut [f32],
    staging: &mut [u8],
) -> Result<(), String> {
    out.fill(0.0);
    let raw = staging.get_mut(..source.bytes as usize).ok_or("staging is too small")?;
    host.read(source.file, source.offset, raw)?;
    let count = source.cols as usize;
    match source.dtype {
        Dtype::F32 => {
            for (value, bytes) in out[..count].iter_mut().zip(raw.chunks_exact(4)) {
                *value = f32::from_le_bytes(bytes.try_into().expect("four bytes"));
            }
        }
        Dtype::F16 | Dtype::Bf16 => {
            let convert = if source.dtype == Dtype::F16 { f16_to_f32 } else { bf16_to_f32 };
            for (value, bytes) in out[..count].iter_mut().zip(raw.chunks_exact(2)) {
                *value = convert(u16::from_le_bytes(bytes.try_into().expect("two bytes")));
            }
        }
        other => return Err(format!("a vector of {}", other.name())),
    }
    host.loaded(source.bytes);
    Ok(())
}

/// Rotary frequencies, rounded to f32 once (Hugging Face's formulas for each scaling).
pub fn rope_frequencies(base: f32, rotary_dim: u32, scaling: &RopeScaling, out: &mut [f32]) {
    let dims = f64::from(rotary_dim);
    for (pair, frequency) in out.iter_mut().enumerate() {
        let plain = 1.0 / libm::pow(f64::from(base), 2.0 * pair as f64 / dims);
        *frequency = match scaling {
            RopeScaling::None => plain,
            RopeScaling::Linear { factor } => plain / f64::from(*factor),
            RopeScaling::Yarn { factor, original_context, beta_fast, beta_slow } => {
                let context = f64::from(*original_context);
                let fast = f64::from(*beta_fast);
                let slow = f64::from(*beta_slow);
                let ramp = yarn_ramp(pair as f64, dims, f64::from(base), context, fast, slow);
                plain / f64::from(*factor) * ramp + plain * (1.0 - ramp)
            }
            RopeScaling::Llama3 {
                factor,
                low_frequency_factor,
                high_frequency_factor,
                original_context,
            } => {
                let context = f64::from(*original_context);
                let (low, high) =
                    (f64::from(*low_frequency_factor), f64::from(*high_frequency_factor));
                let factor = f64::from(*factor);
                llama3(plain, factor, low, high, context)
            }
        } as f32;
    }
}

/// How much of a pair is interpolated: 0 at the fast end, 1 at the slow end.
fn yarn_ramp(pair: f64, dims: f64, base: f64, context: f64, fast: f64, slow: f64) -> f64 {
    let correction = |rotations: f64| {
        let turns = context / (rotations * 2.0 * std::f64::consts::PI);
        dims * libm::log(turns) / (2.0 * libm::log(base))
    };
    let low = libm::floor(correction(fast)).max(0.0);
    let mut high = libm::ceil(correction(slow)).min(dims - 1.0);
    if low == high {
        high += 0.001;
    }
    ((pair - low) / (high - low)).clamp(0.0, 1.0)
}

fn llama3(plain: f64, factor: f64, low: f64, high: f64, context: f64) -> f64 {
    let wavelength = 2.0 * std::f64::consts::PI / plain;
    if wavelength < context / high {
        return plain;
    }
    if wavelength > context / low {
        return plain / factor;
    }
    let smooth = (context / wavelength - low) / (high - low);
    (1.0 - smooth) * plain / factor + smooth * plain
}

/// Divides frequencies by a file's vector (Llama 3's long-context factors).
///
/// # Errors
/// What the host said, or a factor that is not above zero.
pub fn divide(
    host: &dyn LoadHost,
    source: &Source,
    frequencies: &mut [f32],
    staging: &mut [u8],
) -> Result<(), String> {
    let mut factors = [0.0f32; PAIRS_MAX];
    vector(host, source, &mut factors, staging)?;
    for (index, (frequency, factor)) in frequencies.iter_mut().zip(factors).enumerate() {
        if !(factor.is_finite() && factor > 0.0) {
            return Err(format!("factor {index} is {factor}, expected a finite number above 0"));
        }
        *frequency /= factor;
    }
    Ok(())
}

/// Pairs of the widest head that models have (256 features).
const PAIRS_MAX: usize = 128;
