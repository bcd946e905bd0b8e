//! Round trips over every kind, and texts that must be refused with the right path.

use super::{JsonError, digest, read, write};
use crate::contract::{arity, grain_piece};
use crate::ids::{EventId, OpId, PhaseId, TensorId};
use crate::op::{
    Activation, AttentionShape, Copies, Epilogue, Op, OpKind, RopeScaling, RopeStyle, Source,
};
use crate::plan::{
    ArenaFigures, Arrival, Bounds, ColourBuffer, Concurrency, Cost, Envelope, GapReport, Interval,
    Machine, OrderReport, Placement, Plan, Prediction, Preference, RegionReport, RuntimeBytes,
    Schedule, Segment, StreamReport, Summary, Task, Variant,
};
use crate::program::{ModelInfo, Program};
use crate::size::Size;
use crate::tensor::{Dtype, Residence, Tensor, Term};
use crate::vision::{FullAttentionShape, PatchOrder, PatchShape, VisionOp};

fn source() -> Source {
    Source {
        tensor: "blk.0.\"odd\"\\\n\u{7}é".to_string(),
        file: 1,
        offset: u64::MAX,
        bytes: 12,
        dtype: Dtype::Q4K,
        rows: 3,
        cols: 256,
    }
}

fn kinds() -> Vec<OpKind> {
    let shape = AttentionShape {
        heads: 9,
        kv_heads: 3,
        head_dim: 64,
        capacity: 4096,
        window: 512,
        scale: 0.1,
        kv: Dtype::Q8_0,
    };
    let windows = PatchOrder::Windows { square: 2, window: 4 };
    let own = Copies::Own { blocks: 24 };
    let frequencies = |scaling, factors| OpKind::LoadRopeFrequencies {
        base: 1e6,
        rotary_dim: 64,
        scaling,
        factors,
    };
    vec![
        OpKind::LoadMatrix(source()),
        OpKind::LoadVector(source()),
        frequencies(RopeScaling::None, None),
        frequencies(RopeScaling::Linear { factor: 1.0 / 3.0 }, Some(source())),
        frequencies(
            RopeScaling::Yarn {
                factor: f32::MIN_POSITIVE,
                original_context: 8192,
                beta_fast: f32::MAX,
                beta_slow: -0.0,
            },
            None,
        ),
        frequencies(
            RopeScaling::Llama3 {
                factor: 8.0,
                low_frequency_factor: 1.1,
                high_frequency_factor: f32::from_bits(1),
                original_context: 8192,
            },
            None,
        ),
        OpKind::LoadTokenizer { offset: 96, bytes: 4096 },
        OpKind::RopeTable { magnitude: 1.0 },
        OpKind::EmbedRows { scale: 25.298_222 },
        OpKind::RmsNorm { epsilon: 1e-6 },
        OpKind::RmsNormQuantise { epsilon: 9.999_999e-6, copies: Copies::Shared },
        OpKind::RmsNormQuantise { epsilon: 1e-6, copies: own },
        OpKind::RmsNormAdd { epsilon: 1e-5 },
        OpKind::HeadNorm { epsilon: 1e-6, head_dim: 128 },
        OpKind::Quantise,
        OpKind::MatMul { rows: 49152, cols: 576, epilogue: Epilogue::Store, copies: own },
        OpKind::MatMul { rows: 576, cols: 576, epilogue: Epilogue::Add, copies: Copies::Shared },
        OpKind::BiasAdd,
        OpKind::Add,
        OpKind::Rope { style: RopeStyle::Halves, head_dim: 64, rotary_dim: 32 },
        OpKind::Rope { style: RopeStyle::Interleaved, head_dim: 64, rotary_dim: 64 },
        OpKind::KvAppend(shape),
        OpKind::Attention(shape),
        OpKind::AttentionPrefill(shape),
        OpKind::AttentionDecodePartial(shape),
        OpKind::AttentionDecodeMerge(shape),
        OpKind::AttentionDecodeMergeQuantise { shape, copies: own },
        OpKind::GatedMul(Activation::Silu),
        OpKind::GatedMulQuantise(Activation::GeluTanh),
        OpKind::GatedMatMul {
            rows: 8960,
            cols: 1536,
            activation: Activation::Silu,
            block_rows: 64,
            copies: own,
        },
        OpKind::SelectRows,
        OpKind::Sample { vocabulary: 49152 },
        OpKind::Vision(VisionOp::LayerNorm { epsilon: 1e-6 }),
        OpKind::Vision(VisionOp::Activate(Activation::GeluErf)),
        OpKind::Vision(VisionOp::Activate(Activation::GeluQuick)),
        OpKind::Vision(VisionOp::FeatureScale),
        OpKind::Vision(VisionOp::Patchify(PatchShape {
            side: 14,
            order: PatchOrder::Rows,
            mean: [0.485, 0.456, 0.406],
            deviation: [0.229, 0.224, 0.225],
        })),
        OpKind::Vision(VisionOp::AddPositions { side: 16 }),
        OpKind::Vision(VisionOp::FullAttention(FullAttentionShape {
            heads: 12,
            head_dim: 64,
            positions: 1024,
            scale: 0.125,
        })),
        OpKind::Vision(VisionOp::MergePatches { factor: 4, width: 768, order: PatchOrder::Rows }),
        OpKind::Vision(VisionOp::MergePatches { factor: 2, width: 1280, order: windows }),
        OpKind::Vision(VisionOp::WindowAttention {
            shape: FullAttentionShape {
                heads: 16,
                head_dim: 80,
                positions: 64,
                scale: 0.111_803_4,
            },
            square: 2,
            window: 4,
        }),
        OpKind::Vision(VisionOp::PatchRopeTable { order: windows }),
        OpKind::Vision(VisionOp::SectionedRopeTable { sections: [16, 24, 23], magnitude: 1.0 }),
        OpKind::Vision(VisionOp::GatedProducts {
            rows: 3420,
            cols: 1280,
            activation: Activation::Silu,
        }),
        OpKind::Vision(VisionOp::PlaceRows),
        OpKind::Vision(VisionOp::SpliceRows),
    ]
}

/// A plan that no verifier would accept, but that holds every kind and every field.
fn sample() -> Plan {
    let mut program = Program::default();
    program.models.push(ModelInfo {
        file: "tiny.gguf".to_string(),
        header_sha256: "00ff".to_string(),
        sha256: Some("11".to_string()),
        file_complete: true,
        architecture: "llama".to_string(),
        parameters: 7,
    });
    let tokens = Size::Dim(program.add_dim("tokens", 1, 256));
    let load = program.add_phase("load");
    let step = program.add_phase("a \"step\"");
    program.flow.entry.push(load);
    program.flow.next = vec![vec![step], vec![step, load]];
    let tensor = |name: &str, size: Size, phase: Option<PhaseId>| Tensor {
        name: name.to_string(),
        model: 0,
        dtype: Dtype::F32,
        shape: vec![Size::Const(36), tokens.clone(), Size::Const(16)],
        size,
        residence: if phase.is_some() { Residence::Transient } else { Residence::State },
        term: if phase.is_some() { Term::Intermediate } else { Term::Kv },
        phase,
        state: phase.is_none().then(|| "kv.0".to_string()),
    };
    let sizes = [
        tokens.times(2304),
        Size::CeilDiv(Box::new(tokens.clone()), 64),
        Size::Min(vec![tokens.clone(), Size::Const(9)]),
        Size::Max(vec![Size::Add(vec![tokens.clone(), Size::Const(1)]), Size::Const(9)]),
        Size::Const(u64::MAX),
        Size::Const(0),
        Size::Const(64),
        Size::Const(65),
    ];
    for (i, size) in sizes.into_iter().enumerate() {
        program.add_tensor(tensor(&format!("t{i}"), size, (i % 2 == 0).then_some(step)));
    }
    for (i, kind) in kinds().into_iter().enumerate() {
        let (inputs, outputs, workspaces) = arity(&kind);
        let operands = |from: usize, count| (from..from + count).map(TensorId::of).collect();
        program.phases[1].ops.push(Op {
            name: format!("op.{i}"),
            grain: 4 * grain_piece(&kind),
            inputs: operands(0, inputs),
            outputs: operands(5, outputs),
            workspace: operands(7, workspaces),
            kind,
            in_place: if i % 3 == 0 { vec![(0, 0)] } else { vec![] },
        });
    }
    let ops = program.phases[1].ops.len();
    let task = |op: usize, shard, waits: &[u32], signals: Option<u32>| Task {
        op: OpId::of(op),
        shard,
        shards: 2,
        waits: waits.iter().map(|event| EventId(*event)).collect(),
        signals: signals.map(EventId),
    };
    let lanes = vec![
        (0..ops).map(|op| task(op, 0, &[], Some(0))).collect(),
        (0..ops).map(|op| task(op, 1, &[0, 1], None)).collect(),
    ];
    let placement = |i: usize| Placement {
        offset: (i != 3).then_some(i as u64 * 64),
        bytes: 64,
        interval: (i == 2).then_some(Interval { first: 1, last: 4 }),
        buffer: (i == 2).then_some(0),
    };
    Plan {
        bounds: Bounds {
            max_input_tokens: 2048,
            max_output_tokens: 256,
            sequences: 1,
            prefill_chunk: 256,
            logit_rows: 1,
            kv_type: Dtype::F16,
            max_images: 0,
            max_image_tokens: 0,
        },
        machine: Machine {
            memory_bytes: 1 << 33,
            memory_source: "flag".to_string(),
            lanes: 2,
            isa: "avx512-vnni".to_string(),
            profile_sha256: "builtin".to_string(),
        },
        schedules: vec![Schedule::default(), Schedule { lanes, events: 2 }],
        concurrency: vec![
            Concurrency::default(),
            Concurrency {
                concurrent_sets: vec![vec![OpId(1), OpId(2)]],
                serialised: vec![(OpId(3), OpId(4), "bandwidth".to_string())],
                complementary: vec![(OpId(5), OpId(6))],
                cuts_unaligned: 9,
            },
        ],
        costs: vec![
            Vec::new(),
            vec![Cost { flops: 1, bytes_moved: 2, bandwidth_bound: true, predicted_ns: 5 }; ops],
        ],
        preference: Preference::MemoryFirst,
        orders: vec![OrderReport {
            phase: PhaseId(1),
            plan_bytes: 3,
            least_bytes: 2,
            states: 77,
            complete: true,
        }],
        variants: vec![Variant {
            name: "one \"lane\"".to_string(),
            transient_bytes: 1,
            total_bytes: 2,
            cuts: [3, 4],
            predicted_ns: [5, 6],
        }],
        regions: vec![RegionReport {
            phase: PhaseId(1),
            streams: vec![StreamReport {
                phase: PhaseId(0),
                first_lane: 1,
                lanes: 2,
                ops_apart: 3,
                alone_ns: 4,
                bandwidth_percent: 5,
            }],
            hand_overs: vec![(OpId(1), OpId(2))],
            least_patches: 7,
            together_ns: 6,
            segments: vec![Segment {
                name: "text \"1\"".to_string(),
                waits_for: vec!["picture 1".to_string()],
            }],
        }],
        gap: Some(GapReport {
            arrival: Arrival::Beside,
            expected_ns: 1,
            bound_ns: 2,
            pause_ns: 3,
            picture_tiles: 4,
            picture_tokens: 5,
            picture_ns: 6,
        }),
        predictions: vec![Prediction {
            phase: PhaseId(1),
            tokens: 300,
            depth: 7,
            nanoseconds: 12_345,
        }],
        placements: (0..8).map(placement).collect(),
        buffers: vec![ColourBuffer { bytes: 64 }],
        arena: ArenaFigures {
            bytes: 4096,
            alignment: 64,
            live_peak_bytes: 128,
            witness: vec![TensorId(1), TensorId(2)],
            transient_bytes: 64,
            transient_live_peak_bytes: 64,
            transient_offset: 1024,
        },
        summary: Summary { logical_tensors: 448, physical_buffers: 122, sum_of_tensor_bytes: 9 },
        envelope: Envelope {
            weights: 1,
            kv: 2,
            persistent: 3,
            intermediate: 4,
            runtime: RuntimeBytes { heap: 5, stacks: 6, image: 7, io: 8 },
            total: 36,
            load_peak: 30,
            hardware: 20,
            not_covered: vec!["sockets".to_string()],
        },
        program,
    }
}

#[test]
fn a_plan_round_trips() {
    let plan = sample();
    let text = write(&plan);
    assert!(read(&text).expect("reads back") == plan);
    assert!(write(&plan) == text);
    assert!(text.ends_with(&format!("{}\"}}", super::write::hexadecimal(&digest(&plan)))));
    // A newline that an editor adds is not a forgery.
    assert!(read(&format!("{text}\n")).is_ok());
}

#[test]
fn the_sample_has_every_kind() {
    // A new kind must be added to the sample: this match and the list stay in step.
    let mut seen = [false; 39];
    for kind in kinds() {
        let index = match kind {
            OpKind::LoadMatrix(_) => 0,
            OpKind::LoadVector(_) => 1,
            OpKind::LoadRopeFrequencies { .. } => 2,
            OpKind::LoadTokenizer { .. } => 3,
            OpKind::RopeTable { .. } => 4,
            OpKind::EmbedRows { .. } => 5,
            OpKind::RmsNorm { .. } => 6,
            OpKind::RmsNormQuantise { .. } => 7,
            OpKind::RmsNormAdd { .. } => 8,
            OpKind::HeadNorm { .. } => 9,
            OpKind::Quantise => 10,
            OpKind::MatMul { .. } => 11,
            OpKind::BiasAdd => 12,
            OpKind::Add => 13,
            OpKind::Rope { .. } => 14,
            OpKind::KvAppend(_) => 15,
            OpKind::Attention(_) => 16,
            OpKind::AttentionPrefill(_) => 17,
            OpKind::AttentionDecodePartial(_) => 18,
            OpKind::AttentionDecodeMerge(_) => 19,
            OpKind::GatedMul(_) => 20,
            OpKind::GatedMulQuantise(_) => 21,
            OpKind::SelectRows => 22,
            OpKind::Sample { .. } => 23,
            OpKind::Vision(VisionOp::LayerNorm { .. }) => 24,
            OpKind::Vision(VisionOp::Activate(_)) => 25,
            OpKind::Vision(VisionOp::FeatureScale) => 26,
            OpKind::Vision(VisionOp::Patchify(_)) => 27,
            OpKind::Vision(VisionOp::AddPositions { .. }) => 28,
            OpKind::Vision(VisionOp::FullAttention(_)) => 29,
            OpKind::Vision(VisionOp::MergePatches { .. }) => 30,
            OpKind::Vision(VisionOp::PlaceRows) => 31,
            OpKind::Vision(VisionOp::SpliceRows) => 32,
            OpKind::GatedMatMul { .. } => 33,
            OpKind::Vision(VisionOp::WindowAttention { .. }) => 34,
            OpKind::Vision(VisionOp::PatchRopeTable { .. }) => 35,
            OpKind::Vision(VisionOp::SectionedRopeTable { .. }) => 36,
            OpKind::Vision(VisionOp::GatedProducts { .. }) => 37,
            OpKind::AttentionDecodeMergeQuantise { .. } => 38,
        };
        seen[index] = true;
    }
    assert_eq!(seen, [true; 39]);
}

/// Replaces a part of the sample's text, mends the digest, and reads it.
fn read_with(from: &str, to: &str) -> Result<Plan, JsonError> {
    use sha2::{Digest as _, Sha256};
    let text = write(&sample());
    let (head, _) = text.rsplit_once("\"digest\":\"").expect("a digest");
    let head = head.replacen(from, to, 1);
    assert!(!text.starts_with(&head), "{from} is not in the text");
    let empty = format!("{head}\"digest\":\"\"}}");
    let digest = super::write::hexadecimal(&Sha256::digest(empty.as_bytes()));
    read(&format!("{head}\"digest\":\"{digest}\"}}"))
}

#[test]
fn contradictions_name_their_path() {
    let cases = [
        ("\"format\":\"dctms-plan\"", "\"format\":\"other\"", "$.format"),
        ("\"version\":1", "\"version\":2", "$.version"),
        ("{\"id\":1,\"model\"", "{\"id\":2,\"model\"", "$.tensors[1].id"),
        ("\"model\":0", "\"model\":9", "$.tensors[0].model"),
        ("\"shape\":[36,256,16]", "\"shape\":[36,255,16]", "$.tensors[0].shape[1]"),
        ("\"shape\":[36,256,16]", "\"shape\":[36,256]", "$.tensors[0].shape"),
        ("{\"dim\":0}", "{\"dim\":1}", "$.tensors[0].extents[1].dim"),
        ("{\"dim\":0}", "{\"log\":0}", "$.tensors[0].extents[1]"),
        (
            "{\"ceil_div\":[{\"dim\":0},64]}",
            "{\"ceil_div\":[{\"dim\":0},0]}",
            "$.tensors[1].size.ceil_div",
        ),
        ("\"dtype\":\"f32\"", "\"dtype\":\"f31\"", "$.tensors[0].dtype"),
        ("\"phase\":\"a \\\"step\\\"\"", "\"phase\":\"b\"", "$.tensors[0].phase"),
        ("\"bytes\":64", "\"bytes\":-64", "$.tensors[0].bytes"),
        ("\"bytes\":64", "\"bytes\":18446744073709551616", "$.tensors[0].bytes"),
        ("\"kind\":\"Quantise\"", "\"kind\":\"Dequantise\"", "$.phases[1].ops[14].kind"),
        ("\"epsilon\":1e-6", "\"epsilon\":1e999", "$.phases[1].ops[9].attributes.epsilon"),
        ("\"mode\":\"write\"", "\"mode\":\"read\"", "$.phases[1].ops[0].access"),
        ("\"may_in_place\":[]", "\"may_in_place\":[[0,0]]", "$.phases[1].ops[0].may_in_place"),
        ("\"lanes\":[\n[{\"op\":0", "\"lanes\":[\n[{\"op\":99", "$.phases[1].lanes[0][0].op"),
        ("\"waits\":[0,1]", "\"waits\":[0,2]", "$.phases[1].lanes[1][0].waits[1]"),
        ("\"reduction_percent\":72.7", "\"reduction_percent\":99.9", "$.summary.reduction_percent"),
        ("\"total\":26", "\"total\":27", "$.envelope.runtime.total"),
        ("\"free\":-16", "\"free\":16", "$.envelope.free"),
        ("\"fits\":false", "\"fits\":true", "$.envelope.fits"),
        ("\"witness\":[1,2]", "\"witness\":[1,8]", "$.arena.witness[1]"),
        ("\"load\":[\"a", "\"lead\":[\"a", "$.flow.next"),
        ("\"hardware\":20,", "", "$.envelope"),
    ];
    for (from, to, expected) in cases {
        match read_with(from, to) {
            Err(JsonError::Field { path, .. }) => assert_eq!(path, expected, "{from} → {to}"),
            other => panic!("{from} → {to}: {:?}", other.map(|_| "accepted")),
        }
    }
}

#[test]
fn forged_bytes_do_not_have_the_digest() {
    let text = write(&sample()).replacen("\"parameters\":7", "\"parameters\":8", 1);
    assert!(matches!(read(&text), Err(JsonError::Digest { .. })));
}

#[test]
fn unknown_keys_and_white_space_are_free() {
    let read = read_with("\"version\":1", "\"later\": [{}] ,\t\"version\" : 1");
    assert!(read.expect("reads back") == sample());
}

#[test]
fn what_is_not_json_is_refused() {
    let deep = "[".repeat(100_000);
    let cases = [
        "",
        "{",
        "[1,]",
        "{\"a\" 1}",
        "{\"a\":1,\"a\":2}",
        "01",
        "1.",
        "-",
        "1e",
        "tru",
        "\"\\x\"",
        "\"\\ud800\"",
        "\"\\u12",
        "\"\n\"",
        "\"a",
        "{} {}",
        "nul",
        "'a'",
        "{a:1}",
        &deep,
    ];
    for text in cases {
        assert!(matches!(read(text), Err(JsonError::Syntax { .. })), "{text:.40}");
    }
    assert!(matches!(read("{}"), Err(JsonError::Field { .. })));
}

/// Every prefix, and many random edits, end in an error or an equal plan, never in a panic.
#[test]
fn damaged_texts_never_panic() {
    let plan = sample();
    let text = write(&plan);
    for end in (0..text.len()).filter(|end| text.is_char_boundary(*end)) {
        if end % 37 == 0 || end > text.len() - 200 {
            assert!(read(&text[..end]).is_err());
        }
    }
    let mut state = 7u64;
    let mut random = |bound: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize % bound
    };
    let bytes = text.as_bytes();
    let marks = b"{}[]\",:0189-.eE\\ntfu ";
    for _ in 0..400 {
        let mut bytes = bytes.to_vec();
        for _ in 0..=random(3) {
            let at = random(bytes.len());
            match random(3) {
                0 => bytes[at] = marks[random(marks.len())],
                1 => drop(bytes.remove(at)),
                _ => bytes.insert(at, marks[random(marks.len())]),
            }
        }
        if let Ok(text) = String::from_utf8(bytes) {
            // An edit of the digest's tail or of white space may leave an equal plan.
            if let Ok(read) = read(&text) {
                assert!(read == plan);
            }
        }
    }
}
