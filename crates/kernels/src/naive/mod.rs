//! The oracle: the plainest statement of what each kernel answers.
//!
//! Written from the definitions, one element at a time, sharing nothing with the kernels; slow
//! on purpose. Only tests call it.

pub mod dequantise;
pub mod exact;
pub mod float;
pub mod kv;
pub mod layout;
pub mod matmul;
pub mod sample;
