//! Whole processes with the bounded heap as their allocator: what they cost, how they stop when
//! a limit is reached, and that nothing moves on the step path.
//!
//! This program runs itself: without arguments it starts one child for each case and judges it.

use dctms_system::arena::{Arena, ArenaPages};
use dctms_system::events::SpinPolicy;
use dctms_system::footprint::{check_footprint, footprint};
use dctms_system::heap::{
    BoundedHeap, Exhaustion, HeapConfig, LatchScope, OnViolation, Region, watch_this_thread,
};
use dctms_system::image::prefault_image;
use dctms_system::lanes::{Lanes, LanesConfig, Pinning};
use dctms_system::process::{FaultScope, faults, lock_all, memory_facts};
use dctms_system::seal::seal;
use dctms_system::stack::run_on_control_thread;
use std::process::Command;

const KIB: usize = 1 << 10;
const CONTROL_STACK_BYTES: usize = 256 * KIB;
const LANE_STACK_BYTES: usize = 128 * KIB;
const HEAP_BYTES: usize = 32 * KIB;

#[global_allocator]
static HEAP: BoundedHeap = BoundedHeap::new(HeapConfig {
    boot_limit_bytes: HEAP_BYTES,
    run_reserve_bytes: 1 << 30,
    exit_code: 3,
});

/// One child: what it does, and what its parent expects.
struct Case {
    name: &'static str,
    child: fn(),
    exit_code: Option<i32>,
    /// A part of its standard error.
    says: &'static str,
}

const fn case(name: &'static str, child: fn(), exit_code: Option<i32>, says: &'static str) -> Case {
    Case { name, child, exit_code, says }
}

const CASES: &[Case] = &[
    case("footprint-1-free", || cost(1, Residence::Free), Some(0), ""),
    case("footprint-2-free", || cost(2, Residence::Free), Some(0), ""),
    case("footprint-4-free", || cost(4, Residence::Free), Some(0), ""),
    case("footprint-1-locked", || cost(1, Residence::Locked), Some(0), ""),
    case("footprint-2-locked", || cost(2, Residence::Locked), Some(0), ""),
    case("footprint-4-locked", || cost(4, Residence::Locked), Some(0), ""),
    case(
        "run-heap-exhausted",
        exhaust_run,
        Some(3),
        "heap limit reached while loading or running: ",
    ),
    case("compile-heap-exhausted", exhaust_compile, Some(3), "heap limit reached while planning: "),
    case("refused-after-sealing", refuse_when_sealed, Some(0), ""),
    case(
        "latched",
        allocate_latched,
        None,
        "heap allocation of 77 bytes while the latch is closed",
    ),
    case("compile-region-is-given-back", give_back, Some(0), ""),
    case("steps-are-still", step_quietly, Some(0), ""),
];

enum Residence {
    Free,
    Locked,
}

fn main() {
    // `cargo test` passes its own flags; only a case's name makes a child.
    let argument = std::env::args().nth(1).unwrap_or_default();
    if let Some(case) = CASES.iter().find(|case| case.name == argument) {
        return run_on_control_thread(CONTROL_STACK_BYTES, case.child).unwrap();
    }
    // The parent collects output: it gets room.
    HEAP.set_run_limit(16 << 20).unwrap();
    for Case { name, exit_code, says, .. } in CASES {
        let output = Command::new(std::env::current_exe().unwrap()).arg(name).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        print!("{name}: {}", String::from_utf8_lossy(&output.stdout));
        println!("{} {}", output.status, errors.trim_end());
        assert_eq!(output.status.code(), *exit_code, "{name}: {errors}");
        assert!(errors.contains(says), "{name}: {errors}");
    }
}

fn lanes(lanes: usize) -> Lanes {
    Lanes::start(&LanesConfig {
        lanes,
        stack_bytes: LANE_STACK_BYTES,
        events: 4,
        spin: SpinPolicy::SPIN,
        pinning: Pinning::Free,
    })
    .unwrap()
}

/// An otherwise empty program: its peak is under the bound, and not far.
fn cost(count: usize, residence: Residence) {
    HEAP.set_run_limit(HEAP_BYTES).unwrap();
    let mut lanes = lanes(count);
    lanes.run(&|_| ()).unwrap();
    prefault_image().unwrap();
    match residence {
        Residence::Free => {}
        Residence::Locked => lock_all().unwrap(),
    }
    check_footprint(count).unwrap();
    let sealed = seal().unwrap();
    lanes.run(&|_| ()).unwrap();
    let mut stacks = vec![CONTROL_STACK_BYTES];
    stacks.resize(count, LANE_STACK_BYTES);
    let terms = footprint(&stacks).unwrap();
    let heap_bytes = match residence {
        Residence::Free => HEAP.figures(Region::Run).touched_bytes.next_multiple_of(4096),
        Residence::Locked => HEAP.figures(Region::Run).limit_bytes,
    };
    let bound = terms.total_bytes() + heap_bytes as u64;
    let peak = memory_facts().unwrap().peak_resident_bytes;
    let share = peak as f64 / bound as f64;
    println!("peak {peak} of {bound} ({share:.3}); address space {}", sealed.mapped_bytes);
    assert!(peak <= bound && share >= 0.9);
}

fn exhaust_run() {
    HEAP.set_run_limit(64 * KIB).unwrap();
    std::hint::black_box(vec![1_u8; 65 * KIB]);
}

fn exhaust_compile() {
    HEAP.open_compile_region(1 << 20).unwrap();
    let _stage = HEAP.scope(Region::Compile);
    let mut grows = Vec::new();
    loop {
        grows.push(0_u64);
        std::hint::black_box(&mut grows);
    }
}

fn refuse_when_sealed() {
    HEAP.set_run_limit(256 * KIB).unwrap();
    let sealed = seal().unwrap();
    HEAP.set_exhaustion(Exhaustion::Refuse);
    assert!(Vec::<u8>::new().try_reserve_exact(300 * KIB).is_err());
    assert!(Arena::map(1 << 20, ArenaPages::Small).is_err(), "the kernel refuses mappings");
    assert!(std::thread::Builder::new().spawn(|| ()).is_err(), "and threads");
    sealed.lift().unwrap();
    Arena::map(1 << 20, ArenaPages::Small).unwrap();
}

fn allocate_latched() {
    watch_this_thread();
    HEAP.close_latch(LatchScope::WatchedThreads, OnViolation::Abort);
    std::hint::black_box(vec![1_u8; 77]);
}

/// The peak of planning is no part of what the process holds afterwards.
fn give_back() {
    HEAP.open_compile_region(64 << 20).unwrap();
    let kept = {
        let _stage = HEAP.scope(Region::Compile);
        let large = std::hint::black_box(vec![1_u8; 32 << 20]);
        let _result = HEAP.scope(Region::Run);
        large[..100].to_vec()
    };
    let during = memory_facts().unwrap();
    assert!(during.resident_bytes > 32 << 20);
    let last = HEAP.close_compile_region().unwrap();
    assert!(last.live_peak_bytes >= 32 << 20 && last.touched_bytes < 33 << 20);
    let after = memory_facts().unwrap();
    assert!(after.resident_bytes < 4 << 20 && after.mapped_bytes < during.mapped_bytes);
    assert_eq!(kept.len(), 100);
}

/// Thousands of steps with events and barriers: no allocation, no fault, nothing mapped.
fn step_quietly() {
    HEAP.set_run_limit(HEAP_BYTES).unwrap();
    let arena = Arena::map(1 << 20, ArenaPages::Huge).unwrap();
    arena.prefault();
    let mut lanes = lanes(2);
    prefault_image().unwrap();
    if let Err(error) = arena.lock() {
        println!("not locked: {error}");
    }
    lanes
        .run(&|_| {
            watch_this_thread();
        })
        .unwrap();
    let sealed = seal().unwrap();
    let mut steps = 0;
    let mut step = |count: u32| {
        for _ in 0..count {
            steps += 1;
            lanes
                .run(&|lane| {
                    let other = 1 - lane.index;
                    lane.signal(lane.index);
                    lane.wait(other, steps).unwrap();
                    lane.barrier().unwrap();
                })
                .unwrap();
        }
    };
    step(10);
    HEAP.close_latch(LatchScope::WatchedThreads, OnViolation::Count);
    let before = (faults(FaultScope::Process), memory_facts().unwrap(), HEAP.allocations());
    step(3000);
    let after = (faults(FaultScope::Process), memory_facts().unwrap(), HEAP.allocations());
    assert_eq!(HEAP.open_latch(), 0);
    assert_eq!(before.2, after.2, "allocations");
    assert!(after.0.minor - before.0.minor <= 2, "faults: {before:?} {after:?}");
    assert_eq!(before.1.mapped_bytes, after.1.mapped_bytes);
    sealed.lift().unwrap();
}
