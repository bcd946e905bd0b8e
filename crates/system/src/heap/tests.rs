//! Tests of the heap against what callers believe: blocks are aligned, disjoint, keep their
//! bytes, and everything freed is one block again.

use super::*;

const PAGE: usize = 4096;

fn heap(boot_limit_bytes: usize, run_reserve_bytes: usize) -> BoundedHeap {
    let heap = BoundedHeap::new(HeapConfig { boot_limit_bytes, run_reserve_bytes, exit_code: 3 });
    heap.set_exhaustion(Exhaustion::Refuse);
    heap
}

/// SplitMix64.
struct Seeded(u64);

impl Seeded {
    fn next(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) as usize % below
    }
}

/// A block that knows what must stand in it.
struct Filled {
    block: *mut u8,
    layout: Layout,
    byte: u8,
}

impl Filled {
    fn new(heap: &BoundedHeap, layout: Layout, byte: u8) -> Option<Filled> {
        // SAFETY: sizes are never zero here.
        let block = unsafe { heap.alloc(layout) };
        if block.is_null() {
            return None;
        }
        assert!(block.addr().is_multiple_of(layout.align()));
        // SAFETY: the block has layout.size() bytes.
        unsafe { block.write_bytes(byte, layout.size()) };
        Some(Filled { block, layout, byte })
    }

    fn check(&self, len_bytes: usize) {
        // SAFETY: the block has at least len_bytes bytes, all written.
        let bytes = unsafe { std::slice::from_raw_parts(self.block, len_bytes) };
        assert!(bytes.iter().all(|&byte| byte == self.byte), "bytes of a live block changed");
    }

    fn resize(&mut self, heap: &BoundedHeap, size: usize) {
        // SAFETY: the block is live, with this layout, and size is not zero.
        let moved = unsafe { heap.realloc(self.block, self.layout, size) };
        if moved.is_null() {
            return self.check(self.layout.size());
        }
        let kept = self.layout.size().min(size);
        self.block = moved;
        self.layout = Layout::from_size_align(size, self.layout.align()).unwrap();
        self.check(kept);
        // SAFETY: the block has size bytes.
        unsafe { moved.write_bytes(self.byte, size) };
    }

    fn free(self, heap: &BoundedHeap) {
        self.check(self.layout.size());
        // SAFETY: the block is live and has this layout.
        unsafe { heap.dealloc(self.block, self.layout) };
    }
}

fn random_layout(seeded: &mut Seeded) -> Layout {
    let size = match seeded.next(10) {
        0..7 => 1 + seeded.next(200),
        7..9 => 1 + seeded.next(5000),
        _ => 1 + seeded.next(100_000),
    };
    let align = match seeded.next(8) {
        0 => 1 << seeded.next(13),
        _ => 1 << seeded.next(5),
    };
    Layout::from_size_align(size, align).unwrap()
}

#[test]
fn random_blocks_stay_disjoint_and_come_back_as_one() {
    for seed in 0..20 {
        let limit = 1 << 20;
        let heap = heap(limit, limit);
        let mut seeded = Seeded(seed);
        let mut blocks: Vec<Filled> = Vec::new();
        let mut refused = 0;
        for turn in 0..4000 {
            match seeded.next(10) {
                0..5 => match Filled::new(&heap, random_layout(&mut seeded), turn as u8) {
                    Some(block) => blocks.push(block),
                    None => refused += 1,
                },
                5..7 if !blocks.is_empty() => {
                    let at = seeded.next(blocks.len());
                    let size = random_layout(&mut seeded).size();
                    blocks[at].resize(&heap, size);
                }
                _ if !blocks.is_empty() => {
                    let at = seeded.next(blocks.len());
                    blocks.swap_remove(at).free(&heap);
                }
                _ => {}
            }
            if turn % 16 == 0 {
                heap.with_regions(|regions| regions.run.heap.check());
            }
            let figures = heap.figures(Region::Run);
            assert!(figures.live_bytes <= figures.touched_bytes);
            assert!(figures.touched_bytes <= figures.limit_bytes);
        }
        let full = heap.figures(Region::Run);
        assert!(refused == 0 || full.live_peak_bytes > limit * 3 / 4, "wasteful: {full:?}");
        blocks.into_iter().for_each(|block| block.free(&heap));
        assert_eq!(heap.figures(Region::Run).live_bytes, 0);
        let all = Layout::from_size_align(limit - 24, 16).unwrap();
        Filled::new(&heap, all, 1).expect("everything freed is one block again").free(&heap);
    }
}

#[test]
fn a_heap_can_be_filled_to_its_last_unit() {
    let heap = heap(PAGE, PAGE);
    let layout = Layout::from_size_align(24, 8).unwrap();
    let blocks: Vec<_> = std::iter::from_fn(|| Filled::new(&heap, layout, 7)).collect();
    assert_eq!(blocks.len(), (PAGE - 8) / 32);
    blocks.into_iter().for_each(|block| block.free(&heap));
}

#[test]
fn growing_at_the_top_needs_no_copy() {
    let heap = heap(1 << 20, 1 << 20);
    let mut block = Filled::new(&heap, Layout::from_size_align(100, 8).unwrap(), 3).unwrap();
    let start = block.block;
    for size in [1000, 10_000, 1_000_000, 50, 70] {
        block.resize(&heap, size);
        assert_eq!((block.block, block.layout.size()), (start, size));
    }
    assert!(heap.figures(Region::Run).live_peak_bytes < 1_000_100);
    block.free(&heap);
}

#[test]
fn absurd_sizes_are_refused() {
    let heap = heap(1 << 20, 1 << 20);
    for size in [1 << 20, 1 << 31, 1 << 40, isize::MAX as usize - 4096] {
        for align in [1, 16, 4096] {
            let layout = Layout::from_size_align(size, align).unwrap();
            assert!(Filled::new(&heap, layout, 0).is_none(), "{size} {align}");
        }
    }
    assert_eq!(heap.figures(Region::Run).touched_bytes, 0);
}

#[test]
fn the_run_limit_is_set_once_and_holds() {
    let heap = heap(4 * PAGE, 1 << 24);
    let big = Layout::from_size_align(5 * PAGE, 8).unwrap();
    assert!(Filled::new(&heap, big, 1).is_none(), "over the boot limit");
    let kept = Filled::new(&heap, Layout::new::<[u64; 100]>(), 9).unwrap();
    assert!(matches!(heap.set_run_limit(1 << 25), Err(SystemError::Bound { .. })));
    heap.set_run_limit(10 * PAGE - 5).unwrap();
    assert_eq!(heap.figures(Region::Run).limit_bytes, 10 * PAGE);
    assert!(heap.set_run_limit(11 * PAGE).is_err(), "once only");
    let block = Filled::new(&heap, big, 1).unwrap();
    assert!(Filled::new(&heap, big, 1).is_none(), "two do not fit");
    block.free(&heap);
    kept.free(&heap);
}

#[test]
fn a_final_limit_below_what_is_touched_is_refused() {
    let heap = heap(4 * PAGE, 1 << 20);
    let block = Filled::new(&heap, Layout::new::<[u64; 1000]>(), 9).unwrap();
    assert!(matches!(heap.set_run_limit(PAGE), Err(SystemError::Bound { .. })));
    heap.set_run_limit(2 * PAGE).unwrap();
    block.free(&heap);
}

#[test]
fn the_compile_region_is_given_back_only_when_empty() {
    let heap = heap(PAGE, PAGE);
    heap.open_compile_region(1 << 20).unwrap();
    assert!(heap.open_compile_region(1 << 20).is_err(), "one at a time");
    let layout = Layout::from_size_align(100_000, 8).unwrap();
    let (large, small) = {
        let _compile = heap.scope(Region::Compile);
        let large = Filled::new(&heap, layout, 1).unwrap();
        let _run = heap.scope(Region::Run);
        (large, Filled::new(&heap, Layout::new::<u64>(), 2).unwrap())
    };
    assert!(Filled::new(&heap, layout, 1).is_none(), "outside the scope: the run region");
    assert!(heap.figures(Region::Run).live_bytes < PAGE);
    let live = heap.close_compile_region().unwrap_err();
    assert!(matches!(live, SystemError::CompileRegionInUse { live_bytes } if live_bytes > 100_000));
    large.free(&heap);
    let last = heap.close_compile_region().unwrap();
    assert!(last.live_peak_bytes > 100_000 && last.live_bytes == 0);
    assert_eq!(heap.figures(Region::Compile), HeapFigures::default());
    small.free(&heap);
    heap.open_compile_region(PAGE).unwrap();
    heap.close_compile_region().unwrap();
}

#[test]
fn the_latch_counts_and_refuses() {
    let heap = heap(PAGE, PAGE);
    let allocate = || Filled::new(&heap, Layout::new::<u64>(), 2);
    let block = allocate().unwrap();
    let before = heap.allocations();
    heap.close_latch(LatchScope::EveryThread, OnViolation::Count);
    allocate().unwrap().free(&heap);
    assert_eq!((heap.violations(), heap.open_latch()), (1, 1));
    heap.close_latch(LatchScope::EveryThread, OnViolation::Refuse);
    assert!(allocate().is_none());
    block.free(&heap);
    assert_eq!(heap.open_latch(), 1);
    assert_eq!(heap.allocations() - before, 2);
    heap.close_latch(LatchScope::WatchedThreads, OnViolation::Refuse);
    allocate().expect("this thread is not watched").free(&heap);
    let watched = std::thread::scope(|scope| {
        let heap = &heap;
        let thread = scope.spawn(move || {
            watch_this_thread();
            Filled::new(heap, Layout::new::<u64>(), 2).is_none()
        });
        thread.join().unwrap()
    });
    assert!(watched);
    assert_eq!(heap.open_latch(), 1);
    heap.close_latch(LatchScope::EveryThread, OnViolation::Refuse);
    {
        let _away = look_away();
        allocate().expect("not minded").free(&heap);
    }
    assert!(allocate().is_none());
    assert_eq!(heap.open_latch(), 1);
}

#[test]
fn threads_share_the_heap() {
    let heap = heap(1 << 22, 1 << 22);
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let heap = &heap;
            scope.spawn(move || {
                let mut seeded = Seeded(seed);
                let mut blocks: Vec<Filled> = Vec::new();
                for turn in 0..5000 {
                    if seeded.next(2) == 0 || blocks.len() > 50 {
                        if !blocks.is_empty() {
                            let at = seeded.next(blocks.len());
                            blocks.swap_remove(at).free(heap);
                        }
                    } else {
                        let size = 1 + seeded.next(2000);
                        let layout = Layout::from_size_align(size, 16).unwrap();
                        blocks.extend(Filled::new(heap, layout, turn as u8));
                    }
                }
                blocks.into_iter().for_each(|block| block.free(heap));
            });
        }
    });
    assert_eq!(heap.figures(Region::Run).live_bytes, 0);
}
