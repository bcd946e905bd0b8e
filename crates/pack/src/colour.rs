//! Colouring of closed intervals with the fewest colours: the paper's buffer assignment (§3.3),
//! reported beside the packing. It minimises the number of buffers, not their bytes.
//!
//! Intervals are taken by first step; each takes the lowest colour that is free, else a new one.
//! A new colour is made only when all others are in use at that step, so the number of colours
//! equals the largest number of intervals that meet in one step, and no colouring has fewer.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Colours closed intervals `[first, last]` so that no two of one colour share a step.
///
/// Returns one colour an interval; colours are `0..n` with the smallest possible `n`. Ties go to
/// the lower index, then the lower colour, so the same input has the same colours everywhere.
///
/// # Panics
/// If an interval has `last < first`.
#[must_use]
pub fn colour_intervals(intervals: &[(u64, u64)]) -> Vec<usize> {
    assert!(intervals.iter().all(|(first, last)| first <= last), "intervals run forwards");
    let mut order: Vec<usize> = (0..intervals.len()).collect();
    order.sort_by_key(|&i| (intervals[i].0, i));
    let mut busy: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
    let mut free: BinaryHeap<Reverse<usize>> = BinaryHeap::new();
    let mut colours = vec![0; intervals.len()];
    let mut count = 0;
    for i in order {
        while let Some(&Reverse((last, colour))) = busy.peek() {
            if last >= intervals[i].0 {
                break;
            }
            busy.pop();
            free.push(Reverse(colour));
        }
        colours[i] = free.pop().map_or(count, |Reverse(colour)| colour);
        count = count.max(colours[i] + 1);
        busy.push(Reverse((intervals[i].1, colours[i])));
    }
    colours
}

#[cfg(test)]
mod tests {
    use super::colour_intervals;

    fn check(intervals: &[(u64, u64)], colours_expected: usize) {
        let colours = colour_intervals(intervals);
        for (i, a) in intervals.iter().enumerate() {
            for (j, b) in intervals.iter().enumerate().skip(i + 1) {
                let meet = a.0 <= b.1 && b.0 <= a.1;
                assert!(!meet || colours[i] != colours[j], "{i} and {j} share a step");
            }
        }
        assert_eq!(colours.iter().max().map_or(0, |c| c + 1), colours_expected);
    }

    #[test]
    fn the_number_is_the_largest_meeting() {
        check(&[], 0);
        check(&[(0, 0), (1, 1), (2, 2)], 1);
        check(&[(0, 1), (1, 2), (2, 3)], 2);
        check(&[(0, 9), (1, 2), (2, 3), (4, 5)], 3);
    }

    #[test]
    fn the_papers_example_needs_three() {
        // Appendix B: Q, K, V, attention, MLP. Attention and MLP meet at step 5, K and attention
        // at step 4, so the paper's own assignment is not legal; three buffers are still right.
        check(&[(2, 3), (2, 4), (2, 4), (4, 5), (5, 6)], 3);
        let colours = colour_intervals(&[(2, 3), (2, 4), (2, 4), (4, 5), (5, 6)]);
        assert_eq!(colours[0], colours[3], "attention takes over Q's buffer");
    }
}
