//! Keys and values that grow while a request goes on.
//!
//! A cache begins empty and is enlarged by whole steps of 256 positions, each time into a new
//! block, with what it held copied: mlx-lm's policy. A ring of a sliding window grows no further
//! than its window needs, which the program says; below that it is filled from the front, so
//! copying keeps every position where it was.

use dctms_kernels::kv::KvShape;

use crate::memory::Block;

/// Positions that a cache grows by.
pub const GROWTH_POSITIONS: usize = 256;

/// How caches come by their memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// In steps, from nothing at each request.
    Reactive,
    /// At their bound, once.
    PreAllocated,
}

/// Keys and values of one layer.
#[derive(Debug)]
pub struct Cache {
    /// Sizes; `capacity` is what is allocated just now.
    pub shape: KvShape,
    /// Keys.
    pub keys: Block,
    /// Values.
    pub values: Block,
}

impl Cache {
    /// A cache that holds nothing. `most` has the capacity at the bound, which matters for
    /// pre-allocated ones and for rings.
    #[must_use]
    pub fn new(most: KvShape, growth: Growth) -> Cache {
        match growth {
            Growth::Reactive => {
                let shape = KvShape { capacity: 0, ..most };
                Cache { shape, keys: Block::new(0), values: Block::new(0) }
            }
            Growth::PreAllocated => Cache {
                shape: most,
                keys: Block::touched(most.heads * most.key_head_bytes()),
                values: Block::touched(most.heads * most.value_head_bytes()),
            },
        }
    }

    /// Makes room for positions below `end`; a ring has at most `ring` of them.
    pub fn reserve(&mut self, end: usize, ring: Option<usize>) {
        let wanted = end.next_multiple_of(GROWTH_POSITIONS);
        let capacity = ring.map_or(wanted, |ring| wanted.min(ring));
        if capacity <= self.shape.capacity {
            return;
        }
        let old = self.shape;
        let new = KvShape { capacity, ..old };
        self.keys = copied(&self.keys, old.heads, old.key_head_bytes(), new.key_head_bytes());
        self.values =
            copied(&self.values, old.heads, old.value_head_bytes(), new.value_head_bytes());
        self.shape = new;
    }
}

/// A larger block with each head's bytes at the beginning of its new part. What is behind them is
/// not cleared: no position is seen before it was appended.
fn copied(old: &Block, heads: usize, old_bytes: usize, new_bytes: usize) -> Block {
    let mut new = Block::new(heads * new_bytes);
    if old_bytes > 0 {
        let parts = new.of_mut::<u8>().chunks_exact_mut(new_bytes);
        for (to, from) in parts.zip(old.of::<u8>().chunks_exact(old_bytes)) {
            to[..old_bytes].copy_from_slice(from);
        }
    }
    new
}

#[cfg(test)]
mod tests {
    use super::*;
    use dctms_kernels::kv::KvType;

    const SHAPE: KvShape =
        KvShape { kind: KvType::F16, heads: 2, slots: 1, capacity: 640, head_dim: 16 };

    #[test]
    fn growing_keeps_every_head() {
        let mut cache = Cache::new(SHAPE, Growth::Reactive);
        cache.reserve(1, None);
        assert_eq!(cache.shape.capacity, 256);
        let bytes = cache.keys.len();
        for (index, byte) in cache.keys.of_mut::<u8>().iter_mut().enumerate() {
            *byte = (index * 2 / bytes) as u8 + 1;
        }
        cache.values.of_mut::<u8>().fill(7);
        cache.reserve(256, None);
        assert_eq!(cache.shape.capacity, 256, "256 positions fit");
        cache.reserve(257, None);
        assert_eq!(cache.shape.capacity, 512);
        let (first, second) = cache.keys.of::<u8>().split_at(bytes);
        assert!(first[..bytes / 2].iter().all(|byte| *byte == 1));
        assert!(second[..bytes / 2].iter().all(|byte| *byte == 2));
    }

    #[test]
    fn a_ring_stops_at_its_window_and_a_bound_is_taken_at_once() {
        let mut cache = Cache::new(SHAPE, Growth::Reactive);
        cache.reserve(1000, Some(640));
        assert_eq!(cache.shape.capacity, 640);
        let cache = Cache::new(SHAPE, Growth::PreAllocated);
        assert_eq!(cache.keys.len(), 2 * 640 * 16 * 2);
    }
}
