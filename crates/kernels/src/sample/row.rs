//! A row of logits as a whole: its largest, its softmax, and a draw from all of it.
//!
//! [`Adjusted`] lays the penalised logits of seen tokens over the row while it is read, so that
//! nothing is copied.

use super::{Candidate, tree_sum};
use crate::exp::exp;
use crate::isa::Isa;
use crate::simd::{Kernel, LANES, Simd, Tile, dispatch, tiles};

/// One token's logits in a tile-major tensor `[⌈vocabulary/16⌉][rows][16]`.
#[derive(Clone, Copy, Debug)]
pub struct LogitsRow<'a> {
    tiles: &'a [Tile],
    rows: usize,
    row: usize,
    pub(super) vocabulary: usize,
}

impl<'a> LogitsRow<'a> {
    /// Row `row` of `rows`. Panics unless `logits` has `⌈vocabulary/16⌉ · rows · 16` elements and
    /// there is a token at all.
    pub fn new(logits: &'a [f32], rows: usize, row: usize, vocabulary: usize) -> Self {
        let tiles = tiles(logits);
        assert!(row < rows, "row {row} of {rows}");
        assert!(0 < vocabulary && vocabulary <= TOKENS_MAX, "vocabulary of {vocabulary}");
        assert_eq!(tiles.len(), vocabulary.div_ceil(LANES) * rows, "tiles of the logits");
        Self { tiles, rows, row, vocabulary }
    }

    /// The logit of token `id`.
    pub fn get(&self, id: u32) -> f32 {
        let id = id as usize;
        assert!(id < self.vocabulary, "token {id} of {}", self.vocabulary);
        self.tiles[id / LANES * self.rows + self.row][id % LANES]
    }

    /// The row's tiles, each with the bits of its lanes that are tokens.
    #[inline(always)]
    pub(super) fn tiles(self) -> impl Iterator<Item = (&'a Tile, u16)> {
        let tiles = self.tiles.iter().skip(self.row).step_by(self.rows);
        tiles.enumerate().map(move |(i, tile)| {
            let rest = self.vocabulary - i * LANES;
            (tile, if rest >= LANES { u16::MAX } else { (1 << rest) - 1 })
        })
    }
}

/// Ids are below it.
const TOKENS_MAX: usize = u32::MAX as usize;

/// A row with some of its logits replaced.
#[derive(Clone, Copy)]
pub(super) struct Adjusted<'a> {
    pub logits: LogitsRow<'a>,
    /// Replacements by rising id.
    pub seen: &'a [Candidate],
}

/// The replacements that are still to come.
struct Cursor<'a> {
    seen: &'a [Candidate],
}

impl Cursor<'_> {
    /// Tile `index` with its replacements, which are made in `copy`.
    #[inline(always)]
    fn adjust<'t>(&mut self, index: usize, tile: &'t Tile, copy: &'t mut Tile) -> &'t Tile {
        let first = index * LANES;
        let is_next = |seen: &Candidate| (seen.id as usize) < first + LANES;
        if !self.seen.first().is_some_and(is_next) {
            return tile;
        }
        *copy = *tile;
        while let Some((next, rest)) = self.seen.split_first().filter(|(next, _)| is_next(next)) {
            copy[next.id as usize - first] = next.logit;
            self.seen = rest;
        }
        copy
    }
}

impl<'a> Adjusted<'a> {
    /// Index, tile and token lanes of each tile, and what is to be laid over them.
    #[inline(always)]
    fn tiles(self) -> (impl Iterator<Item = (usize, (&'a Tile, u16))>, Cursor<'a>, Tile) {
        (self.logits.tiles().enumerate(), Cursor { seen: self.seen }, [0.0; LANES])
    }

    /// The largest logit and its lowest id; token 0 and −∞ if there is none.
    pub fn best(self, isa: Isa) -> Candidate {
        dispatch(isa, Best(self))
    }

    /// The sum of the weights that `weight` gives.
    pub fn weight_sum(self, isa: Isa, weight: Weight) -> f64 {
        dispatch(isa, WeightSum { row: self, weight })
    }

    /// The first token at which the sum of the weights exceeds `target`.
    pub fn find(self, isa: Isa, weight: Weight, target: f64) -> Option<u32> {
        dispatch(isa, Find { row: self, weight, target })
    }
}

struct Best<'a>(Adjusted<'a>);

impl Kernel for Best<'_> {
    type Output = Candidate;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Candidate {
        // Several chains of comparisons, since each has to wait for its last one. Which of equal
        // zeros is kept does not matter: the second pass looks for what is not below it.
        let none = s.splat(f32::NEG_INFINITY);
        let mut largest = [none; 4];
        let (mut tiles, mut cursor, mut copy) = self.0.tiles();
        'row: loop {
            for largest in &mut largest {
                let Some((i, (tile, tokens))) = tiles.next() else { break 'row };
                let tile = cursor.adjust(i, tile, &mut copy);
                let mask = s.mask_from_bits(tokens);
                *largest = s.max(s.select(mask, s.load(tile), none), *largest);
            }
        }
        let largest = largest.into_iter().fold(none, |a, b| s.max(a, b));
        let max = s.reduce_max(largest);
        if max == f32::NEG_INFINITY {
            return Candidate { logit: max, id: 0 };
        }
        // Equal to the largest is above its lower neighbour; a NaN is not.
        let below = s.splat(max.next_down());
        let (tiles, mut cursor, mut copy) = self.0.tiles();
        for (i, (tile, tokens)) in tiles {
            let tile = cursor.adjust(i, tile, &mut copy);
            let lanes = s.mask_bits(s.less(below, s.load(tile))) & tokens;
            if lanes != 0 {
                let lane = lanes.trailing_zeros() as usize;
                return Candidate { logit: tile[lane], id: (i * LANES + lane) as u32 };
            }
        }
        unreachable!("the largest logit is one of the logits")
    }
}

/// Weight of a logit: `exp((logit − best) / temperature)`, or 0 below `least` and for a NaN.
#[derive(Clone, Copy)]
pub(super) struct Weight {
    pub best: f32,
    pub temperature: f32,
    pub least: f32,
}

impl Weight {
    #[inline(always)]
    fn of<S: Simd>(self, s: S, logits: &Tile, tokens: u16) -> Tile {
        let zero = s.splat(0.0);
        // An infinite logit is the largest finite one. The constant stands first, so that a NaN
        // stays one, which no comparison below lets through.
        let logits = s.min(s.splat(f32::MAX), s.load(logits));
        let scaled = s.div(s.sub(logits, s.splat(self.best)), s.splat(self.temperature));
        let weight = exp(s, scaled);
        let weight = s.select(s.less(zero, weight), weight, zero);
        let weight = s.select(s.less(logits, s.splat(self.least)), zero, weight);
        let mut out = [0.0; LANES];
        s.store(s.select(s.mask_from_bits(tokens), weight, zero), &mut out);
        out
    }
}

struct WeightSum<'a> {
    row: Adjusted<'a>,
    weight: Weight,
}

impl Kernel for WeightSum<'_> {
    type Output = f64;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f64 {
        let mut sum = 0.0;
        let (tiles, mut cursor, mut copy) = self.row.tiles();
        for (i, (tile, tokens)) in tiles {
            let tile = cursor.adjust(i, tile, &mut copy);
            sum += tree_sum(&self.weight.of(s, tile, tokens));
        }
        sum
    }
}

struct Find<'a> {
    row: Adjusted<'a>,
    weight: Weight,
    target: f64,
}

impl Kernel for Find<'_> {
    type Output = Option<u32>;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Option<u32> {
        let mut sum = 0.0;
        let (tiles, mut cursor, mut copy) = self.row.tiles();
        for (i, (tile, tokens)) in tiles {
            let tile = cursor.adjust(i, tile, &mut copy);
            let weights = self.weight.of(s, tile, tokens);
            let before = sum;
            sum += tree_sum(&weights);
            if sum > self.target {
                let lane = super::lane_at(&weights, self.target - before);
                return Some((i * LANES + lane) as u32);
            }
        }
        None
    }
}

/// The token of the largest logit, the lowest id among equals, and that logit. NaNs are passed
/// over; if nothing else is there, token 0 and −∞.
pub fn argmax(isa: Isa, logits: LogitsRow<'_>) -> (u32, f32) {
    let best = Adjusted { logits, seen: &[] }.best(isa);
    (best.id, best.logit)
}

/// The natural logarithm of the probability of token `id`. NaN if any logit is.
///
/// The exponentials are ours in f32; they are summed in f64, sixteen accumulators and one tree.
pub fn log_softmax_of(isa: Isa, logits: LogitsRow<'_>, id: u32) -> f64 {
    let (_, max) = argmax(isa, logits);
    let sum = dispatch(isa, ExpSum { logits, max });
    f64::from(logits.get(id)) - f64::from(max) - libm::log(sum)
}

struct ExpSum<'a> {
    logits: LogitsRow<'a>,
    max: f32,
}

impl Kernel for ExpSum<'_> {
    type Output = f64;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f64 {
        let max = s.splat(self.max);
        let mut sums = [0.0f64; LANES];
        let mut weights = [0.0; LANES];
        for (tile, tokens) in self.logits.tiles() {
            let weight = exp(s, s.sub(s.load(tile), max));
            let weight = s.select(s.mask_from_bits(tokens), weight, s.splat(0.0));
            s.store(weight, &mut weights);
            for (sum, &weight) in sums.iter_mut().zip(&weights) {
                *sum += f64::from(weight);
            }
        }
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                sums[i] += sums[i + half];
            }
        }
        sums[0]
    }
}
