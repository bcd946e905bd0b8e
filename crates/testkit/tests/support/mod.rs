//! Model files that exist only as tables, at the published shapes of the four architectures, and
//! the plans that the real planner makes of them.
#![allow(dead_code)]

use std::collections::BTreeMap;

use dctms_ir::join::Steps;
use dctms_ir::plan::{Bounds, Machine, Preference, RuntimeBytes};
use dctms_ir::program::ModelInfo;
use dctms_ir::tensor::Term;
use dctms_ir::{Dtype, Plan, Program, Residence};
use dctms_models::{BuildOptions, FileTensor, ModelError, ModelFile, build_program, read_config};
use dctms_planner::{Activations, Balance, PlanOptions};

/// Structural numbers of a model.
#[derive(Clone, Copy)]
pub struct Shape {
    pub architecture: &'static str,
    pub layers: u64,
    pub hidden: u64,
    pub heads: u64,
    pub kv_heads: u64,
    pub head_dim: u64,
    pub feed_forward: u64,
    pub vocabulary: u64,
    pub window: u64,
}

pub const LLAMA: Shape = Shape {
    architecture: "llama",
    layers: 30,
    hidden: 576,
    heads: 9,
    kv_heads: 3,
    head_dim: 64,
    feed_forward: 1536,
    vocabulary: 49152,
    window: 0,
};
pub const QWEN2: Shape = Shape {
    architecture: "qwen2",
    layers: 24,
    hidden: 896,
    heads: 14,
    kv_heads: 2,
    head_dim: 64,
    feed_forward: 4864,
    vocabulary: 151_936,
    window: 0,
};
pub const QWEN2_LARGE: Shape = Shape {
    architecture: "qwen2",
    layers: 28,
    hidden: 1536,
    heads: 12,
    kv_heads: 2,
    head_dim: 128,
    feed_forward: 8960,
    vocabulary: 151_936,
    window: 0,
};
pub const QWEN3: Shape = Shape {
    architecture: "qwen3",
    layers: 28,
    hidden: 1024,
    heads: 16,
    kv_heads: 8,
    head_dim: 128,
    feed_forward: 3072,
    vocabulary: 151_936,
    window: 0,
};
pub const GEMMA3: Shape = Shape {
    architecture: "gemma3",
    layers: 18,
    hidden: 640,
    heads: 4,
    kv_heads: 1,
    head_dim: 256,
    feed_forward: 2048,
    vocabulary: 262_144,
    window: 512,
};
pub const LLAMA_70B: Shape = Shape {
    architecture: "llama",
    layers: 80,
    hidden: 8192,
    heads: 64,
    kv_heads: 8,
    head_dim: 128,
    feed_forward: 28672,
    vocabulary: 128_256,
    window: 0,
};

struct TableFile {
    shape: Shape,
    tensors: BTreeMap<String, FileTensor>,
}

impl TableFile {
    fn new(shape: Shape) -> Self {
        let mut file = TableFile { shape, tensors: BTreeMap::new() };
        let (hidden, ff) = (shape.hidden, shape.feed_forward);
        let (q, kv) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
        file.add("token_embd.weight", &[hidden, shape.vocabulary]);
        file.add("output_norm.weight", &[hidden]);
        for layer in 0..shape.layers {
            let mut add = |part: &str, dims: &[u64]| file.add(&format!("blk.{layer}.{part}"), dims);
            add("attn_norm.weight", &[hidden]);
            add("attn_q.weight", &[hidden, q]);
            add("attn_k.weight", &[hidden, kv]);
            add("attn_v.weight", &[hidden, kv]);
            add("attn_output.weight", &[q, hidden]);
            add("ffn_norm.weight", &[hidden]);
            add("ffn_gate.weight", &[hidden, ff]);
            add("ffn_up.weight", &[hidden, ff]);
            add("ffn_down.weight", &[ff, hidden]);
            if shape.architecture == "qwen2" {
                add("attn_q.bias", &[q]);
                add("attn_k.bias", &[kv]);
                add("attn_v.bias", &[kv]);
            }
            if matches!(shape.architecture, "qwen3" | "gemma3") {
                add("attn_q_norm.weight", &[shape.head_dim]);
                add("attn_k_norm.weight", &[shape.head_dim]);
            }
            if shape.architecture == "gemma3" {
                add("post_attention_norm.weight", &[hidden]);
                add("post_ffw_norm.weight", &[hidden]);
            }
        }
        file
    }

    fn add(&mut self, name: &str, dims: &[u64]) {
        let elements: u64 = dims.iter().product();
        let (dtype, bytes) = match dims {
            [_] => (Dtype::F32, elements * 4),
            _ => (Dtype::Q4_1, elements / 32 * 20),
        };
        let tensor = FileTensor {
            name: name.to_string(),
            dtype: Ok(dtype),
            dims: dims.to_vec(),
            file: 0,
            offset: 4096,
            bytes,
        };
        self.tensors.insert(name.to_string(), tensor);
    }
}

impl ModelFile for TableFile {
    fn integer(&self, key: &str) -> Result<Option<u64>, ModelError> {
        let shape = &self.shape;
        let part = key.strip_prefix(shape.architecture).unwrap_or(key);
        Ok(match part {
            ".block_count" => Some(shape.layers),
            ".embedding_length" => Some(shape.hidden),
            ".attention.head_count" => Some(shape.heads),
            ".attention.head_count_kv" => Some(shape.kv_heads),
            ".attention.key_length" => Some(shape.head_dim),
            ".feed_forward_length" => Some(shape.feed_forward),
            ".context_length" => Some(8192),
            ".attention.sliding_window" if shape.window > 0 => Some(shape.window),
            _ => None,
        })
    }

    fn float(&self, _: &str) -> Result<Option<f32>, ModelError> {
        Ok(None)
    }

    fn text(&self, key: &str) -> Result<Option<String>, ModelError> {
        let name = self.shape.architecture.to_string();
        Ok((key == "general.architecture").then_some(name))
    }

    fn array_len(&self, _: &str) -> Result<Option<u64>, ModelError> {
        Ok(None)
    }

    fn flag(&self, _: &str) -> Result<Option<bool>, ModelError> {
        Ok(None)
    }

    fn floats(&self, _: &str) -> Result<Option<Vec<f32>>, ModelError> {
        Ok(None)
    }

    fn integers(&self, _: &str) -> Result<Option<Vec<u32>>, ModelError> {
        Ok(None)
    }

    fn tensor(&self, name: &str) -> Option<FileTensor> {
        self.tensors.get(name).cloned()
    }

    fn tensor_names(&self) -> Vec<String> {
        self.tensors.keys().cloned().collect()
    }
}

/// Bounds of a small server.
pub fn bounds(sequences: u64) -> Bounds {
    Bounds {
        max_input_tokens: 2048,
        max_output_tokens: 256,
        sequences,
        prefill_chunk: 256,
        logit_rows: 1,
        kv_type: Dtype::F16,
        max_images: 0,
        max_image_tokens: 0,
    }
}

/// The plan of a model on some lanes.
pub fn plan(shape: Shape, lanes: u32, sequences: u64) -> Plan {
    plan_of(&program(shape, sequences), bounds(sequences), lanes, Activations::Quantised)
}

/// The logical program of a model.
pub fn program(shape: Shape, sequences: u64) -> Program {
    let file = TableFile::new(shape);
    let config = read_config(&file).expect("a configuration");
    let options = BuildOptions {
        bounds: bounds(sequences),
        tokenizer_bytes: 100_000,
        vocabulary: (64, 200_000),
        penalty_window: 64,
        smaller_chunks: 0,
    };
    let mut program = build_program(&file, &config, &options).expect("a program");
    program.models.push(ModelInfo {
        file: "table.gguf".to_string(),
        header_sha256: "0".repeat(64),
        sha256: None,
        file_complete: true,
        architecture: shape.architecture.to_string(),
        parameters: 1,
    });
    program
}

/// The plan of any logical program.
pub fn plan_of(program: &Program, bounds: Bounds, lanes: u32, activations: Activations) -> Plan {
    dctms_planner::plan(program, &options(bounds, lanes, activations)).expect("a plan")
}

/// The plan of a model on two lanes by what its user prefers.
pub fn preferred(shape: Shape, preference: Preference) -> Plan {
    let mut options = options(bounds(1), 2, Activations::Quantised);
    options.choices.preference = preference;
    dctms_planner::plan(&program(shape, 1), &options).expect("a plan")
}

/// The plan of several programs that are resident together.
pub fn together(programs: &[Program], lanes: u32, steps: Steps) -> Plan {
    let options = options(bounds(1), lanes, Activations::Quantised);
    dctms_planner::plan_together(programs, steps, &options).expect("a plan")
}

/// Makes carried values weights that come and go, which the planner places otherwise.
pub fn carry_as_weights(program: &mut Program) {
    for tensor in &mut program.tensors {
        if tensor.residence == Residence::Carried {
            tensor.term = Term::Weights;
        }
    }
}

fn options(bounds: Bounds, lanes: u32, activations: Activations) -> PlanOptions {
    PlanOptions {
        bounds,
        machine: Machine {
            memory_bytes: 1 << 34,
            memory_source: "flag".to_string(),
            lanes,
            isa: "avx512".to_string(),
            profile_sha256: "builtin".to_string(),
        },
        balance: Balance::builtin("avx512", lanes),
        activations,
        choices: Default::default(),
        runtime: RuntimeBytes { heap: 1 << 20, stacks: 1 << 20, image: 1 << 20, io: 0 },
        heap_per_task_bytes: 64,
        heap_per_event_bytes: 64,
        compile_heap_bytes: 1 << 20,
        not_covered: vec!["kernel page tables".to_string()],
    }
}
