//! Vision files that are wrong, or of a kind that is not built here: each is refused with a word
//! that says what and where, and nothing panics.

use std::path::{Path, PathBuf};

use dctms_engine::Model;
use dctms_engine::model_file::CheckpointFile;
use dctms_format::Checkpoint;
use dctms_ir::Dtype;
use dctms_ir::plan::Bounds;
use dctms_models::encoder::VisionMode;
use dctms_models::{BuildOptions, VisionPart, build_program_with_vision, read_vision_config};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(name)
}

/// What building says of a vision file beside a decoder with room for so many image tokens.
fn build(vision: &Path, text: &str, image_tokens: u64) -> Result<usize, String> {
    let eyes = Checkpoint::open(vision).map_err(|error| error.to_string())?;
    let file = CheckpointFile(&eyes);
    let config = read_vision_config(&file).map_err(|error| error.to_string())?;
    let text = Model::open(&fixture(text)).expect("a text model");
    let options = BuildOptions {
        bounds: Bounds {
            max_input_tokens: 64,
            max_output_tokens: 8,
            sequences: 1,
            prefill_chunk: 32,
            logit_rows: 1,
            kv_type: Dtype::F32,
            max_images: 1,
            max_image_tokens: image_tokens,
        },
        tokenizer_bytes: 0,
        vocabulary: (0, 0),
        penalty_window: 64,
        smaller_chunks: 0,
    };
    let patches_max = config.patches_max();
    let mode = VisionMode::Serial;
    let part =
        VisionPart { file: &file, config: &config, first_file: 1, patches_max, mode, smaller: 0 };
    let decoder = CheckpointFile(&text.checkpoint);
    build_program_with_vision(&decoder, &text.config, &options, Some(&part))
        .map(|program| program.tensors.len())
        .map_err(|error| error.to_string())
}

/// A copy of a fixture with one text replaced by one of the same length.
fn patched(from: &str, to: &str) -> PathBuf {
    assert_eq!(from.len(), to.len(), "{from} and {to}");
    let mut bytes = std::fs::read(fixture("vision-lfm2-mmproj-f16.gguf")).expect("the fixture");
    let at = bytes.windows(from.len()).position(|window| window == from.as_bytes());
    let at = at.unwrap_or_else(|| panic!("{from} is not in the file"));
    bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
    let name = format!("dctms-vision-{}-{:x}.gguf", std::process::id(), at);
    let path = std::env::temp_dir().join(name);
    std::fs::write(&path, bytes).expect("written");
    path
}

const TEXT: &str = "vision-lfm2-text-f16.gguf";

#[test]
fn what_is_wrong_is_named() {
    let cases = [
        (
            "lfm2",
            "pdrm",
            "clip.projector_type: pdrm is out of range, expected idefics3 or lfm2 or qwen2.5vl_merger",
        ),
        ("v.post_ln.bias", "v.post_lx.bias", "v.post_ln.bias is missing"),
        ("v.blk.1.ffn_up.bias", "v.blk.9.ffn_up.bias", "v.blk.9.ffn_up.bias is not one that"),
        ("v.blk.0.attn_out.weight", "v.blk.0.attn_qkv.weight", "v.blk.0.attn_qkv.weight"),
        ("clip.vision.patch_size", "clip.vision.patch_sizx", "clip.vision.patch_size is missing"),
        ("clip.vision.image_mean", "clip.vision.image_meax", "clip.vision.image_mean is missing"),
        ("clip.vision.image_std", "clip.vision.image_stx", "clip.vision.image_std is missing"),
        ("v.position_embd.weight", "v.positiox_embd.weight", "v.position_embd.weight is missing"),
        ("mm.1.weight", "mm.9.weight", "mm.1.weight is missing"),
        ("clip.has_vision_encoder", "clip.has_audioo_encoder", ""),
    ];
    for (from, to, says) in cases {
        let path = patched(from, to);
        let result = build(&path, TEXT, 300);
        std::fs::remove_file(&path).expect("removed");
        match says {
            "" => assert!(result.is_ok(), "{to}: {result:?}"),
            says => {
                let error = result.expect_err(to);
                assert!(error.contains(says), "{to}: {error}");
            }
        }
    }
}

#[test]
fn files_and_bounds_that_do_not_fit_together() {
    let vision = fixture("vision-lfm2-mmproj-f16.gguf");
    let narrow = build(&vision, TEXT, 255).expect_err("one token less than a tile has");
    assert!(narrow.contains("image tokens 255: at least one tile's 256"), "{narrow}");
    let wide = build(&vision, "llama-f16.gguf", 300).expect_err("64 features, not 32");
    assert!(wide.contains("projection_dim: 32") && wide.contains("expected 64"), "{wide}");
    let text = build(&fixture("llama-f16.gguf"), TEXT, 300).expect_err("no vision file");
    assert!(text.contains("\"llama\" (general.architecture) as a vision file"), "{text}");
    let eyes = Model::open(&vision).err().expect("no text model").to_string();
    assert!(eyes.contains("unsupported architecture \"clip\""), "{eyes}");
}

#[test]
fn damaged_files_never_panic() {
    let whole = std::fs::read(fixture("vision-idefics3-mmproj-f16.gguf")).expect("the fixture");
    let path = std::env::temp_dir().join(format!("dctms-vision-{}.gguf", std::process::id()));
    let mut state = 5u64;
    for _ in 0..300 {
        let mut bytes = whole.clone();
        for _ in 0..3 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = (state >> 33) as usize % 4096;
            bytes[at] = (state >> 20) as u8;
        }
        std::fs::write(&path, bytes).expect("written");
        drop(build(&path, "vision-idefics3-text-f16.gguf", 64));
    }
    std::fs::remove_file(&path).expect("removed");
}
