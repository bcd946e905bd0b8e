//! One scan for the candidates of a cut.

use super::row::LogitsRow;
use super::{Candidate, falling, finite, keep_best};
use crate::simd::{Kernel, LANES, Simd};

/// Collects candidates above `threshold` behind the `seen` ones: at least the `top_k` best.
/// Returns the number of both.
pub(super) struct Collect<'a> {
    pub logits: LogitsRow<'a>,
    pub top_k: usize,
    pub threshold: f32,
    pub seen: usize,
    pub workspace: &'a mut [Candidate],
}

impl Kernel for Collect<'_> {
    type Output = usize;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> usize {
        let (seen, others) = self.workspace.split_at_mut(self.seen);
        // Room for the k best and as many again, so that cutting back is rare.
        let room = others.len().min(self.top_k.saturating_mul(2).max(self.top_k + 1024));
        let mut threshold = self.threshold;
        let mut found = 0;
        // Ids rise on both sides, so that the seen ones are passed over as they come.
        let mut seen = seen.iter().map(|candidate| candidate.id as usize).peekable();
        for (i, (tile, tokens)) in self.logits.tiles().enumerate() {
            let first = i * LANES;
            let mut lanes = s.mask_bits(s.less(s.splat(threshold), s.load(tile))) & tokens;
            while let Some(id) = seen.next_if(|&id| id < first + LANES) {
                lanes &= !(1 << (id - first));
            }
            if lanes == u16::MAX && found + LANES <= room {
                let out = &mut others[found..found + LANES];
                for (lane, (out, &logit)) in out.iter_mut().zip(tile).enumerate() {
                    *out = Candidate { logit: finite(logit), id: (first + lane) as u32 };
                }
                found += LANES;
                continue;
            }
            while lanes != 0 {
                let lane = lanes.trailing_zeros() as usize;
                lanes &= lanes - 1;
                if found == room {
                    found = keep_best(&mut others[..room], self.top_k).len();
                    let worst = others[..found].iter().max_by(|a, b| falling(a, b));
                    threshold = worst.map_or(threshold, |worst| worst.logit);
                }
                let logit = finite(tile[lane]);
                if logit > threshold {
                    others[found] = Candidate { logit, id: (first + lane) as u32 };
                    found += 1;
                }
            }
        }
        self.seen + found
    }
}
