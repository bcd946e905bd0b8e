//! Norms, gates, rotations and attention in f64, on plain rows `[tokens][features]`.

use crate::rope::RopeStyle;

/// x / (1 + e⁻ˣ).
pub fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// ½ x (1 + tanh(√(2/π) (x + 0.044715 x³))).
pub fn gelu_tanh(x: f64) -> f64 {
    let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
    0.5 * x * (1.0 + u.tanh())
}

/// GELU, by the C library's error function.
pub fn gelu_erf(x: f64) -> f64 {
    0.5 * x * (1.0 + libm::erf(x / std::f64::consts::SQRT_2))
}

/// Root-mean-square norm of each row.
pub fn rms_norm(rows: &[f32], weight: &[f32], epsilon: f32) -> Vec<f64> {
    let mut out = Vec::with_capacity(rows.len());
    for row in rows.chunks_exact(weight.len()) {
        let sum: f64 = row.iter().map(|&x| f64::from(x).powi(2)).sum();
        let root = (sum / weight.len() as f64 + f64::from(epsilon)).sqrt();
        out.extend(row.iter().zip(weight).map(|(&x, &w)| f64::from(x) / root * f64::from(w)));
    }
    out
}

/// Layer norm of each row.
pub fn layer_norm(rows: &[f32], weight: &[f32], bias: &[f32], epsilon: f32) -> Vec<f64> {
    let features = weight.len() as f64;
    let mut out = Vec::with_capacity(rows.len());
    for row in rows.chunks_exact(weight.len()) {
        let mean = row.iter().map(|&x| f64::from(x)).sum::<f64>() / features;
        let sum: f64 = row.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum();
        let root = (sum / features + f64::from(epsilon)).sqrt();
        let parameters = weight.iter().zip(bias);
        out.extend(
            row.iter()
                .zip(parameters)
                .map(|(&x, (&w, &b))| (f64::from(x) - mean) / root * f64::from(w) + f64::from(b)),
        );
    }
    out
}

/// Rotates the first `2 · frequencies.len()` features of each head of each row.
pub fn rope(
    rows: &[f32],
    positions: &[u32],
    frequencies: &[f32],
    magnitude: f32,
    style: RopeStyle,
    head_dim: usize,
) -> Vec<f64> {
    let mut out: Vec<f64> = rows.iter().map(|&x| f64::from(x)).collect();
    let pairs = frequencies.len();
    for (row, &position) in out.chunks_exact_mut(rows.len() / positions.len()).zip(positions) {
        for head in row.chunks_exact_mut(head_dim) {
            for (i, &frequency) in frequencies.iter().enumerate() {
                // The angle is rounded to f32 by definition, not by accident.
                let (sine, cosine) = f64::from(position as f32 * frequency).sin_cos();
                let (low, high) = match style {
                    RopeStyle::Halves => (i, i + pairs),
                    RopeStyle::Interleaved => (2 * i, 2 * i + 1),
                };
                let (a, b) = (head[low], head[high]);
                head[low] = f64::from(magnitude) * (a * cosine - b * sine);
                head[high] = f64::from(magnitude) * (b * cosine + a * sine);
            }
        }
    }
    out
}

/// Attention of one query over visible keys and values, each `[head_dim]`.
pub fn attend(
    query: &[f32],
    keys: &[Vec<f32>],
    values: &[Vec<f32>],
    scale: f64,
    soft_cap: Option<f64>,
) -> Vec<f64> {
    let dot = |k: &Vec<f32>| -> f64 {
        query.iter().zip(k).map(|(&q, &k)| f64::from(q) * f64::from(k)).sum()
    };
    let scores: Vec<f64> = keys
        .iter()
        .map(|k| match soft_cap {
            None => dot(k) * scale,
            Some(cap) => (dot(k) * scale / cap).tanh() * cap,
        })
        .collect();
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|s| (s - largest).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let mut out = vec![0.0; query.len()];
    for (weight, value) in weights.iter().zip(values) {
        for (o, &v) in out.iter_mut().zip(value) {
            *o += weight / sum * f64::from(v);
        }
    }
    out
}
