//! Every fixed size of this crate in one place, with the relations between them proved here.
//!
//! Believes: 4 KiB is the smallest page of any machine that we run on. Must not know: what a plan
//! or a model is; a limit that depends on a plan is an argument, never a constant.

/// The smallest page size that any supported machine uses, in bytes.
pub const PAGE_BYTES_MIN: usize = 4096;

/// Alignment of every block of the heap and unit of its sizes, in bytes.
pub const HEAP_UNIT_BYTES: usize = 16;

/// Bytes before each heap block that hold its size and its neighbour's.
pub const HEAP_HEADER_BYTES: usize = 8;

/// The largest region that 31-bit block indices of 16 bytes can address, in bytes.
pub const HEAP_REGION_BYTES_MAX: usize = 16 << 30;

/// Blocks of one size class that are looked at when the rounded search found none (best effort
/// before a request is refused; a bound, so that the time stays constant).
pub const HEAP_CLASS_SCAN_BLOCKS_MAX: usize = 64;

/// The most lanes (threads that compute) of one process.
pub const LANES_MAX: usize = 256;

/// The smallest stack of a lane, in bytes: a signal frame with wide vector state (11 KiB at
/// most) and the C library's thread block must fit beside the lane's own frames.
pub const LANE_STACK_BYTES_MIN: usize = 64 << 10;

/// The longest file under `/proc` or `/sys` that is read whole, in bytes.
pub const FACT_FILE_BYTES_MAX: usize = 8 << 10;

/// The deepest cgroup path that is walked, in components.
pub const CGROUP_DEPTH_MAX: usize = 64;

/// The C library's own heap (`[heap]`, grown by `brk`) for a process with few threads, in bytes.
/// It holds the main thread's thread-local storage and block (under 8 KiB), and what `malloc`
/// serves to the C library itself; every Rust allocation goes to `heap`.
pub const C_LIBRARY_HEAP_BYTES: usize = 32 << 10;

/// What each further thread adds to it, in bytes: a vector of thread-local blocks (1.1 KiB) and
/// a cache of free blocks (0.7 KiB).
pub const C_LIBRARY_HEAP_BYTES_PER_THREAD: usize = 2 << 10;

/// The alternate signal stack that the standard library maps for each thread to report an
/// overflow, in bytes: 8 KiB, or the kernel's minimum where vector state is larger (12 KiB with
/// tile registers). Its guard page costs nothing.
pub const SIGNAL_STACK_BYTES: usize = 16 << 10;

/// The main thread's stack after it was cut, in bytes: arguments, environment and start-up
/// frames of up to 32 KiB, and the margin. More arguments add to it.
pub const MAIN_STACK_BYTES: usize = 64 << 10;

/// What is kept below the frame in which the main thread waits, in bytes: the C library's wait
/// and one signal frame with wide vector state.
pub const MAIN_STACK_MARGIN_BYTES: usize = 24 << 10;

/// The kernel's code page(s) `[vdso]`, shared by all processes but counted as resident in each.
pub const VDSO_BYTES: usize = 8 << 10;

const _: () = {
    assert!(HEAP_UNIT_BYTES.is_power_of_two());
    assert!(HEAP_HEADER_BYTES < HEAP_UNIT_BYTES);
    assert!(HEAP_REGION_BYTES_MAX / HEAP_UNIT_BYTES <= 1 << 30);
    assert!(LANE_STACK_BYTES_MIN.is_multiple_of(PAGE_BYTES_MIN));
    assert!(MAIN_STACK_BYTES.is_multiple_of(PAGE_BYTES_MIN));
    assert!(MAIN_STACK_MARGIN_BYTES < MAIN_STACK_BYTES);
};
