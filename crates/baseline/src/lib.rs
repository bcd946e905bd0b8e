//! Systems that the product is compared with: its kernels and its programs under the memory
//! management of common runtimes.
//!
//! | module | holds |
//! |---|---|
//! | `memory` | one block of the C library's allocator |
//! | `pool` | one parallel region for each operation |
//! | `weights` | constants: mapped from a compiled model, in the page cache |
//! | `cache` | keys and values that grow as a request goes on |
//! | `step` | runs an operation list: allocate, compute, free after the last use |
//! | `system` | a request from text to text |
//! | `serve` | requests and answers as lines of JSON |
//! | `neighbour` | processes that disturb others |
//!
//! Two systems share this code. **Dynamic**: every value is allocated when it is computed, with the
//! size that it has just then, and freed after its last reader; caches grow by 256 positions and
//! are copied each time, as mlx-lm's do; weights are pages of a file. **Prototype** is the paper's
//! (§3.6): it pre-allocates the plan's physical buffers and the caches at their bounds, computes
//! in those caches, and leaves intermediates to the allocator as before.
//!
//! Neither is made worse than it need be: operations are the planner's fused ones, a value that
//! dies is overwritten in place where the kernel can, products that do not depend on each other
//! share one parallel region, small operations take none, and waiting lanes look as long as the
//! product's do.
//!
//! **Invariant:** nothing on the product's path depends on this crate; it must not know plans'
//! placements or schedules beyond the distances of constants in a compiled model.

#![deny(unsafe_op_in_unsafe_fn)]

pub mod cache;
pub mod memory;
pub mod neighbour;
mod operands;
pub mod pool;
pub mod serve;
mod step;
pub mod system;
pub mod weights;
