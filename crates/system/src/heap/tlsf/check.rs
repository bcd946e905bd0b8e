//! Walks a heap and asserts everything that its module's text promises. For tests.

use super::*;

impl Tlsf {
    /// Panics unless blocks tile the range below the top, no two free neighbours exist, every free
    /// block is in the list of its class and nowhere else, bitmaps say which lists are not empty,
    /// and the live bytes add up.
    pub(in crate::heap) fn check(&self) {
        let (mut block, mut before, mut live, mut free) = (0, 0, 0, 0);
        let mut was_free = false;
        while block < self.top_units {
            // SAFETY: blocks follow each other from the base to the top.
            let (header, is_free) = unsafe { (self.header(block), self.is_free(block)) };
            let units = header.units & !FREE;
            assert_eq!(header.previous_units, before, "block {block} knows its neighbour");
            assert!(units > 0 && !(is_free && was_free), "block {block} is joined");
            match is_free {
                true => free += 1,
                false => live += units,
            }
            (block, before, was_free) = (block + units, units, is_free);
        }
        assert_eq!(block, self.top_units, "blocks end at the top");
        assert_eq!((self.last_units, self.live_units), (before, live));
        assert_eq!(self.listed_blocks(), free, "every free block is in one list");
        assert!(self.top_units <= self.limit_units && self.live_peak_units >= live);
    }

    /// Free blocks in all lists, each checked.
    fn listed_blocks(&self) -> usize {
        let mut listed = 0;
        for (row, heads) in self.heads.iter().enumerate() {
            assert_eq!(self.first_level >> row & 1 == 1, self.second_level[row] != 0);
            for (column, &head) in heads.iter().enumerate() {
                assert_eq!(self.second_level[row] >> column & 1 == 1, head != NONE);
                let (mut at, mut previous) = (head, NONE);
                while let Some(block) = at.checked_sub(1) {
                    // SAFETY: lists hold free blocks below the top.
                    let (links, units, is_free) =
                        unsafe { (self.links(block), self.units(block), self.is_free(block)) };
                    assert!(is_free && links.previous == previous);
                    assert_eq!(class_of(units), (row, column as u32));
                    (previous, at) = (at, links.next);
                    listed += 1;
                }
            }
        }
        listed
    }
}

#[test]
fn classes_cover_every_size_and_the_search_never_finds_a_short_block() {
    let sizes = (1..5000).chain((5..30).flat_map(|log| {
        let power: u32 = 1 << log;
        [power - 1, power, power + 1, power + power / 2]
    }));
    for units in sizes {
        let (row, column) = class_of(units);
        assert!(row < FIRST_LEVEL && column < SECOND_LEVEL);
        let rounded = round_up_to_class(units).unwrap();
        assert!(rounded >= units && rounded - units <= units / 16 + 1);
        // The smallest block of the class that the search begins at is long enough.
        assert!(class_of(rounded) >= class_of(units));
        assert!(class_of(rounded - 1) < class_of(rounded) || rounded == units);
    }
}
