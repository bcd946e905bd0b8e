//! The float kernels' order of arithmetic, one f32 operation at a time: what they must equal bit
//! for bit. Only exp and tanh are shared with them, since those are defined by their code.

use crate::exp::{Function, map_in_place};
use crate::isa::Isa;
use core::ops::Range;

/// The sum of sixteen accumulators by the fixed tree.
fn tree(mut a: [f32; 16]) -> f32 {
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            a[i] += a[i + half];
        }
    }
    a[0]
}

fn apply(function: Function, x: f32) -> f32 {
    let mut value = [x];
    map_in_place(Isa::Scalar, function, &mut value);
    value[0]
}

fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// Root-mean-square norm of each row.
pub fn rms_norm(rows: &[f32], weight: &[f32], epsilon: f32) -> Vec<f32> {
    let mut out = Vec::with_capacity(rows.len());
    for row in rows.chunks_exact(weight.len()) {
        let mut sums = [0.0f32; 16];
        for (i, &x) in row.iter().enumerate() {
            sums[i % 16] = x.mul_add(x, sums[i % 16]);
        }
        let scale = 1.0 / (tree(sums) / weight.len() as f32 + epsilon).sqrt();
        out.extend(row.iter().zip(weight).map(|(&x, &w)| x * scale * w));
    }
    out
}

/// Attention of one query over visible positions; `element` gives key and value of a position
/// and a dimension.
pub fn attend(
    query: &[f32],
    visible: Range<usize>,
    element: impl Fn(usize, usize) -> [f32; 2],
    scale: f32,
    soft_cap: Option<f32>,
) -> Vec<f32> {
    let mut merged: Option<(f32, f32, Vec<f32>)> = None;
    for segment in visible.start / 256..visible.end.div_ceil(256) {
        let seen = visible.start.max(256 * segment)..visible.end.min(256 * segment + 256);
        let score = |p: usize| {
            let dims = query.iter().enumerate();
            let score = dims.fold(0.0, |sum, (d, &q)| q.mul_add(element(p, d)[0], sum)) * scale;
            soft_cap.map_or(score, |cap| cap * apply(Function::Tanh, score / cap))
        };
        let scores: Vec<f32> = seen.clone().map(score).collect();
        let m = scores.iter().copied().fold(f32::NEG_INFINITY, larger);
        let mut sums = [0.0f32; 16];
        let mut o = vec![0.0f32; query.len()];
        for (p, score) in seen.zip(scores) {
            let weight = apply(Function::SoftmaxWeight, score - m);
            sums[p % 16] += weight;
            for (d, o) in o.iter_mut().enumerate() {
                *o = weight.mul_add(element(p, d)[1], *o);
            }
        }
        let l = tree(sums);
        merged = Some(match merged {
            None => (m, l, o),
            Some((m_before, l_before, o_before)) => {
                let largest = larger(m_before, m);
                let a = apply(Function::SoftmaxWeight, m_before - largest);
                let b = apply(Function::SoftmaxWeight, m - largest);
                let sum = |before: f32, next: f32| before.mul_add(a, next * b);
                let o = o_before.iter().zip(&o).map(|(&before, &next)| sum(before, next));
                (largest, sum(l_before, l), o.collect())
            }
        });
    }
    match merged {
        None => vec![0.0; query.len()],
        Some((_, l, o)) => o.iter().map(|o| o * (1.0 / l)).collect(),
    }
}
