//! Finding the smallest key over the positions of a long word, with keys that change.
//!
//! A tournament over groups of 16: level 0 holds one key a position, each level above holds the
//! minimum of each group of 16 below. A change touches one group a level; the leftmost minimum is
//! found by walking down. One array of 4.3 bytes a position holds all levels; the usual heap of
//! candidates with stale entries would take six times as much.

/// Children of a node.
const FAN: usize = 16;

/// Most levels: 16^8 positions are more than any text.
const LEVELS_MAX: usize = 8;

/// The levels of a tree inside one array.
pub struct MinTree<'a> {
    keys: &'a mut [u32],
    starts: [usize; LEVELS_MAX],
    level_count: usize,
}

/// Length of the array that a tree over `positions` needs.
pub const fn tree_len(positions: usize) -> usize {
    let (mut count, mut len) = (positions, 0);
    loop {
        let groups = if count == 0 { 1 } else { count.div_ceil(FAN) };
        len += groups * FAN;
        if groups == 1 {
            return len;
        }
        count = groups;
    }
}

impl<'a> MinTree<'a> {
    /// A tree over `positions` in the first [`tree_len`] elements of `keys`, filled from
    /// `key_of`; positions that have no key get `u32::MAX`.
    pub fn new(
        keys: &'a mut [u32],
        positions: usize,
        mut key_of: impl FnMut(usize) -> u32,
    ) -> Self {
        let (mut starts, mut level_count, mut end) = ([0; LEVELS_MAX], 0, 0);
        let mut count = positions;
        loop {
            let groups = count.div_ceil(FAN).max(1);
            (starts[level_count], level_count) = (end, level_count + 1);
            for index in 0..groups * FAN {
                keys[end + index] = if index >= count {
                    u32::MAX
                } else if level_count == 1 {
                    key_of(index)
                } else {
                    group_min(keys, starts[level_count - 2] + index * FAN)
                };
            }
            end += groups * FAN;
            if groups == 1 {
                return Self { keys, starts, level_count };
            }
            count = groups;
        }
    }

    /// The smallest key and its leftmost position, if any position has a key.
    pub fn min(&self) -> Option<(u32, usize)> {
        let top = self.starts[self.level_count - 1];
        let min = group_min(self.keys, top);
        if min == u32::MAX {
            return None;
        }
        let mut index = 0;
        for level in (0..self.level_count).rev() {
            let at = self.starts[level] + index * FAN;
            let child = self.keys[at..at + FAN].iter().position(|&key| key == min);
            index = index * FAN + child.expect("a group holds its minimum");
        }
        Some((min, index))
    }

    /// Gives `position` a new key.
    pub fn set(&mut self, position: usize, key: u32) {
        let mut index = position;
        self.keys[index] = key;
        for level in 1..self.level_count {
            let min = group_min(self.keys, self.starts[level - 1] + index / FAN * FAN);
            index /= FAN;
            let at = self.starts[level] + index;
            if self.keys[at] == min {
                return;
            }
            self.keys[at] = min;
        }
    }
}

#[inline]
fn group_min(keys: &[u32], at: usize) -> u32 {
    keys[at..at + FAN].iter().fold(u32::MAX, |min, &key| min.min(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_a_linear_search() {
        for positions in [0, 1, 15, 16, 17, 255, 257, 5000] {
            let mut state = positions as u64 + 1;
            let mut random = move || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 40) as u32
            };
            let mut plain: Vec<u32> = (0..positions).map(|_| random() % 97).collect();
            let mut keys = vec![7; tree_len(positions)];
            let mut tree = MinTree::new(&mut keys, positions, |at| plain[at]);
            for _ in 0..300 {
                let expected = plain
                    .iter()
                    .min()
                    .filter(|&&key| key != u32::MAX)
                    .map(|&key| (key, plain.iter().position(|&other| other == key).unwrap()));
                assert_eq!(tree.min(), expected);
                if positions > 0 {
                    let at = random() as usize % positions;
                    plain[at] = if random() % 3 == 0 { u32::MAX } else { random() % 97 };
                    tree.set(at, plain[at]);
                }
            }
        }
    }
}
