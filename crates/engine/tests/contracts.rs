//! The contracts in `ir` and the kernels' own formulas are written twice, since neither may know
//! the other: here, where both are known, they are tied.

use dctms_exec::load::packed_kind;
use dctms_ir::contract::{
    attention_workspace_bytes, file_row_bytes, partial_floats, staging_bytes,
};
use dctms_ir::limits::{ACTIVATION_BLOCK_BYTES, BLOCK, KV_BLOCK, SEGMENT, TILE};
use dctms_ir::op::Source;
use dctms_ir::tensor::kv_row_bytes;
use dctms_ir::vision::{FullAttentionShape, full_attention_rows_bytes, packed_head_bytes};
use dctms_ir::{Dtype, Size};
use dctms_kernels::attention::{
    Attention, attention_decode_items_max, attention_full_head_bytes, attention_full_workspace_len,
    attention_partial_len, attention_workspace_len,
};
use dctms_kernels::kv::{KvShape, KvType};
use dctms_kernels::quantise::ActBlock;
use dctms_kernels::rope::rope_table_len;
use dctms_kernels::sample::sample_workspace_len;

const WEIGHTS: [Dtype; 13] = [
    Dtype::F32,
    Dtype::F16,
    Dtype::Bf16,
    Dtype::Q8_0,
    Dtype::Q4_0,
    Dtype::Q4_1,
    Dtype::Q5_0,
    Dtype::Q5_1,
    Dtype::Q2K,
    Dtype::Q3K,
    Dtype::Q4K,
    Dtype::Q5K,
    Dtype::Q6K,
];

#[test]
fn packed_and_file_bytes_agree() {
    for dtype in WEIGHTS {
        let kind = packed_kind(dtype);
        for rows in [1, 15, 16, 17, 576, 49_153] {
            for cols in [32, 64, 100, 256, 576, 768, 8960] {
                let ours = dtype.packed_bytes(rows, cols);
                let theirs = dctms_kernels::packed::bytes(kind, rows as usize, cols as usize);
                assert_eq!(ours, theirs, "{} {rows}x{cols}", dtype.name());
                let row = dctms_kernels::raw::row_bytes(kind, cols as usize);
                let file = file_row_bytes(dtype, cols);
                assert_eq!(file, row.map(|bytes| bytes as u64), "{} {cols}", dtype.name());
            }
        }
    }
}

#[test]
fn activations_and_attention_agree() {
    assert_eq!(ACTIVATION_BLOCK_BYTES, size_of::<ActBlock>() as u64);
    assert_eq!(TILE, dctms_kernels::limits::TILE_ROWS as u64);
    assert_eq!(BLOCK, dctms_kernels::limits::BLOCK_COLS as u64);
    assert_eq!(SEGMENT, dctms_kernels::limits::SEGMENT_POSITIONS as u64);
    assert_eq!(KV_BLOCK, dctms_kernels::limits::KV_BLOCK_POSITIONS as u64);
    for (head_dim, positions) in [(16u32, 1u32), (64, 1024), (72, 100), (256, 1000)] {
        let shape = FullAttentionShape { heads: 1, head_dim, positions, scale: 1.0 };
        let floats = attention_full_workspace_len(head_dim as usize) * size_of::<f32>();
        assert_eq!(full_attention_rows_bytes(shape), floats as u64);
        let bytes = attention_full_head_bytes(head_dim as usize, positions as usize);
        assert_eq!(packed_head_bytes(shape), bytes as u64);
    }
    for head_dim in [16u32, 64, 128, 256] {
        let workspace = attention_workspace_len(head_dim as usize) * size_of::<f32>();
        assert_eq!(attention_workspace_bytes(head_dim), workspace as u64);
        for (heads, kv_heads) in [(9, 3), (14, 2), (4, 1), (8, 8)] {
            let kv = KvShape {
                kind: KvType::F16,
                heads: kv_heads,
                slots: 1,
                capacity: 64,
                head_dim: head_dim as usize,
            };
            let shape = Attention { kv, heads, scale: 1.0, soft_cap: None };
            let group = (heads / kv_heads) as u64;
            let floats = partial_floats(group, u64::from(head_dim));
            assert_eq!(floats, attention_partial_len(&shape) as u64);
        }
    }
}

#[test]
fn caches_agree() {
    let types = [(Dtype::F32, KvType::F32), (Dtype::F16, KvType::F16), (Dtype::Q8_0, KvType::Q8_0)];
    for (dtype, kind) in types {
        for head_dim in [32usize, 64, 128, 256] {
            let shape = KvShape { kind, heads: 3, slots: 2, capacity: 192, head_dim };
            let row = kv_row_bytes(dtype, head_dim as u64).expect("a cache type");
            let head = 2 * 192 * row;
            assert_eq!(head, shape.key_head_bytes() as u64, "{} keys", dtype.name());
            assert_eq!(head, shape.value_head_bytes() as u64, "{} values", dtype.name());
        }
    }
}

#[test]
fn segments_agree_with_what_models_plan() {
    for (context, window) in [(2304u64, 0u32), (2304, 512), (64, 512), (4096, 1), (1000, 257)] {
        let bounds = dctms_ir::plan::Bounds {
            max_input_tokens: context - 1,
            max_output_tokens: 1,
            sequences: 1,
            prefill_chunk: 256,
            logit_rows: 1,
            kv_type: Dtype::F16,
            max_images: 0,
            max_image_tokens: 0,
        };
        let options = dctms_models::BuildOptions {
            bounds,
            tokenizer_bytes: 0,
            vocabulary: (0, 0),
            penalty_window: 64,
            smaller_chunks: 0,
        };
        let capacity = options.capacity().expect("bounds") as usize;
        let window_of = (window > 0).then_some(window as usize);
        let items = attention_decode_items_max(1, 1, capacity, window_of);
        assert_eq!(options.segments(window).expect("bounds"), items as u64, "{context} {window}");
    }
}

#[test]
fn tables_and_samplers_agree() {
    for pairs in [8usize, 32, 40, 64, 128] {
        // As the decoder's program sizes its rotary table.
        let planned = (pairs as u64).div_ceil(TILE) * 5 * 2 * TILE;
        assert_eq!(planned, rope_table_len(pairs, 5) as u64);
    }
    let candidates = sample_workspace_len(49_152) * 8;
    let op = dctms_ir::Op {
        name: "sample".to_string(),
        kind: dctms_ir::OpKind::Sample { vocabulary: 49_152 },
        inputs: Vec::new(),
        outputs: Vec::new(),
        workspace: Vec::new(),
        grain: 1,
        in_place: Vec::new(),
    };
    let planned = dctms_ir::contract::workspace_bytes(&Default::default(), &op).expect("a size");
    assert_eq!(planned, candidates as u64);
}

#[test]
fn staging_holds_whole_tiles_of_the_file() {
    for dtype in WEIGHTS {
        let source = Source {
            tensor: "w".to_string(),
            file: 0,
            offset: 0,
            bytes: 0,
            dtype,
            rows: 4096,
            cols: 768,
        };
        let row = file_row_bytes(dtype, source.cols).expect("whole blocks");
        let staging = staging_bytes(&source).expect("a size");
        assert!(staging >= 16 * row && staging.is_multiple_of(16 * row), "{}", dtype.name());
        assert_eq!(Size::Const(staging).value(&[]), Some(staging));
    }
}
