//! A written file, read back by the reader that models are read with.

use std::io;

use dctms_format::{Checkpoint, Source};
use dctms_synth::{Architecture, Mix, SHAPES, Shape, VISION_SHAPES, write, write_vision};

fn small(architecture: Architecture) -> Shape {
    Shape {
        architecture,
        layers: 2,
        hidden: 256,
        feed_forward: 512,
        heads: 4,
        kv_heads: 2,
        head_dim: 64,
        vocabulary: 512,
        ordinary_tokens: 500,
        ..SHAPES[0]
    }
}

fn file(shape: &Shape, mix: Mix, seed: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(shape, mix, seed, &mut bytes).expect("a vector takes all");
    bytes
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_another_one_others() {
    let shape = small(Architecture::Qwen2);
    for mix in Mix::ALL {
        assert_eq!(file(&shape, mix, 1), file(&shape, mix, 1));
        assert_ne!(file(&shape, mix, 1), file(&shape, mix, 2));
    }
}

#[test]
fn every_family_and_mix_is_a_whole_file_with_the_tensors_of_its_shape() {
    let tensors = [
        (Architecture::Llama, 2 + 2 * 9),
        (Architecture::Qwen2, 2 + 2 * 12),
        (Architecture::Qwen2Vl, 2 + 2 * 12),
        (Architecture::Qwen3, 2 + 2 * 11),
    ];
    for (architecture, count) in tensors {
        for mix in Mix::ALL {
            let bytes = file(&small(architecture), mix, 3);
            let checkpoint = open(bytes);
            assert!(checkpoint.file_complete(), "{architecture:?} {mix:?}");
            assert_eq!(checkpoint.tensor_count(), count, "{architecture:?} {mix:?}");
        }
    }
}

#[test]
fn published_shapes_have_the_published_numbers_of_parameters() {
    let millions = [135, 362, 494, 1544, 3086, 7616, 3086, 596];
    for (shape, millions) in SHAPES.iter().zip(millions) {
        assert_eq!((parameters(shape) + 500_000) / 1_000_000, millions, "{}", shape.name);
    }
}

#[test]
fn an_image_encoder_has_the_tensors_of_its_layers() {
    let [shape] = VISION_SHAPES;
    let small = dctms_synth::VisionShape { layers: 2, hidden: 64, feed_forward: 84, ..shape };
    for mix in Mix::ALL {
        let mut bytes = Vec::new();
        write_vision(&small, mix, 3, &mut bytes).expect("a vector takes all");
        let checkpoint = open(bytes);
        assert!(checkpoint.file_complete(), "{mix:?}");
        assert_eq!(checkpoint.tensor_count(), 2 + 2 * 16 + 1 + 4, "{mix:?}");
    }
}

struct Bytes(Vec<u8>);

impl Source for Bytes {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let piece = self.0.get(offset as usize..offset as usize + buffer.len());
        buffer.copy_from_slice(piece.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

fn open(bytes: Vec<u8>) -> Checkpoint {
    let source: (String, Box<dyn Source>) = ("random.gguf".to_string(), Box::new(Bytes(bytes)));
    Checkpoint::from_sources([source]).expect("what we write can be read")
}

/// Elements of all tensors, from the configuration alone.
fn parameters(shape: &Shape) -> u64 {
    let [hidden, feed_forward] = [shape.hidden, shape.feed_forward].map(u64::from);
    let width = u64::from(shape.heads * shape.head_dim);
    let kv_width = u64::from(shape.kv_heads * shape.head_dim);
    let extra = match shape.architecture {
        Architecture::Llama => 0,
        Architecture::Qwen2 | Architecture::Qwen2Vl => width + 2 * kv_width,
        Architecture::Qwen3 => 2 * u64::from(shape.head_dim),
    };
    let attention = 2 * hidden * width + 2 * hidden * kv_width + extra;
    let layer = attention + 3 * hidden * feed_forward + 2 * hidden;
    let embeddings = u64::from(shape.vocabulary) * hidden * if shape.tied { 1 } else { 2 };
    u64::from(shape.layers) * layer + embeddings + hidden
}
