//! The operating system: mappings, limits, futexes, memory and processor facts. The one module
//! that talks to it; everything else is given numbers, threads and addresses from here.
//!
//! | module | holds |
//! |---|---|
//! | `heap` | the global allocator: two regions with hard limits, and the latch |
//! | `arena` | one mapping of exact size between guard pages |
//! | `lanes`, `events` | fixed worker threads, steps, epoch counters |
//! | `spin` | how long a waiter looks before it sleeps |
//! | `stack`, `overflow` | threads whose stacks are fixed and resident; an overflow told by name |
//! | `machine` | memory limits: cgroups and the machine itself |
//! | `cgroup` | where the control groups of this process are |
//! | `processors`, `affinity` | lanes by affinity and quota, spinning, pinning, pressure |
//! | `process`, `seal` | what this process uses; making the kernel refuse more |
//! | `image`, `footprint` | the program itself; a bound of everything besides heap and arena |
//! | `child` | programs that this one starts, and leaves none of behind |
//! | `interrupt`, `output` | stopping on a signal; writing to a pipe; the page cache |
//!
//! The order of a process's life:
//!
//! ```text
//! static HEAP: BoundedHeap = BoundedHeap::new(HeapConfig { … });     // #[global_allocator]
//! main:     run_on_control_thread(stack_bytes, control)              // main only joins
//! control:  HEAP.open_compile_region(limit)
//!           { let _stage = HEAP.scope(Region::Compile);  parse, plan, verify;
//!             { let _run = HEAP.scope(Region::Run); copy what lives on } }
//!           HEAP.close_compile_region(); HEAP.set_run_limit(plan.heap)
//!           Arena::map → prefault → lock;  Lanes::start;  load
//!           image::prefault_image, process::lock_all, footprint::check_footprint
//!           seal::seal → HEAP.set_exhaustion(Refuse) → HEAP.close_latch(…)
//!           lanes.run(&|lane| …) for each phase;  HEAP.open_latch() → violations
//! ```
//!
//! Believes: Linux on 64 bits, where all of it was run; other Unix systems get the portable part,
//! which is type-checked and was never run. Must not know: models, plans, tensors, requests. `unsafe` stands in `sys`,
//! `heap`, `arena`, `lanes` and `stack`, and for single calls of the C library in `affinity`,
//! `c_library`, `child`, `image`, `interrupt`, `output`, `overflow`, `process` and `seal`; nowhere else.
#![deny(unsafe_op_in_unsafe_fn)]

pub mod affinity;
pub mod arena;
mod c_library;
pub mod cgroup;
pub mod child;
pub mod error;
pub mod events;
mod facts;
pub mod footprint;
pub mod heap;
pub mod image;
pub mod interrupt;
pub mod lanes;
pub mod limits;
pub mod machine;
pub mod output;
pub mod overflow;
pub mod process;
pub mod processors;
mod protocol;
pub mod seal;
pub mod spin;
pub mod stack;
mod sys;
mod text;

pub use error::SystemError;
pub use protocol::Poisoned;
