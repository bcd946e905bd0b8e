//! The plan: when and where. Data only; whether it is right is for the verifier to say.

use crate::ids::{EventId, OpId, PhaseId, TensorId};
use crate::program::Program;
use crate::tensor::Dtype;

/// One shard of an operation on one lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// The operation.
    pub op: OpId,
    /// Which shard.
    pub shard: u32,
    /// Of how many.
    pub shards: u32,
    /// Events that must have been signalled before it starts.
    pub waits: Vec<EventId>,
    /// The event that is signalled when it, and every other task that names the event, is done.
    pub signals: Option<EventId>,
}

/// The schedule of one phase.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Schedule {
    /// For each lane its tasks, in order.
    pub lanes: Vec<Vec<Task>>,
    /// Number of events.
    pub events: u32,
}

/// What the user asked the plan to hold for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Tokens of a prompt, N.
    pub max_input_tokens: u64,
    /// Tokens generated, M.
    pub max_output_tokens: u64,
    /// Sequences decoded together, B.
    pub sequences: u64,
    /// Tokens of one prefill step, C.
    pub prefill_chunk: u64,
    /// Rows of logits that one step may give.
    pub logit_rows: u64,
    /// Element type of keys and values.
    pub kv_type: Dtype,
    /// Images of a request.
    pub max_images: u64,
    /// Tokens of all images of a request.
    pub max_image_tokens: u64,
}

/// The machine that the plan is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Memory limit, bytes.
    pub memory_bytes: u64,
    /// Where that figure came from: `cgroup-v2`, `cgroup-v1`, `meminfo`, `flag` or `profile`.
    pub memory_source: String,
    /// Lanes.
    pub lanes: u32,
    /// Instruction set name.
    pub isa: String,
    /// Digest of the machine profile, or `builtin`.
    pub profile_sha256: String,
}

/// A physical buffer of the interval colouring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ColourBuffer {
    /// Bytes: the largest tenant's.
    pub bytes: u64,
}

/// Step interval of a tensor: indices into its phase's operations, closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    /// First operation that touches it.
    pub first: u32,
    /// Last operation that touches it.
    pub last: u32,
}

/// Where a tensor stands, and the paper's view of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Placement {
    /// Byte offset in the arena; `None` for a tensor outside it.
    pub offset: Option<u64>,
    /// Bytes at the bounds' maximum.
    pub bytes: u64,
    /// Lifetime in its phase; `None` across phases.
    pub interval: Option<Interval>,
    /// Buffer of the colouring; `None` when not coloured.
    pub buffer: Option<u32>,
}

/// Figures of the arena.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ArenaFigures {
    /// Bytes of the arena, whole pages.
    pub bytes: u64,
    /// Alignment of placements.
    pub alignment: u64,
    /// Least bytes that any placement needs: the weight of `witness`.
    pub live_peak_bytes: u64,
    /// Tensors live at once whose aligned bytes add up to `live_peak_bytes`.
    pub witness: Vec<TensorId>,
    /// Span of the transient region.
    pub transient_bytes: u64,
    /// Least span that it could have.
    pub transient_live_peak_bytes: u64,
    /// Offset at which the transient region starts.
    pub transient_offset: u64,
}

/// The paper's Table 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Summary {
    /// Transient tensors of one pass (the phase with most of them).
    pub logical_tensors: u64,
    /// Buffers that its interval colouring needs.
    pub physical_buffers: u64,
    /// Bytes of all those tensors, were none shared.
    pub sum_of_tensor_bytes: u64,
}

/// Memory that is neither weights nor tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RuntimeBytes {
    /// Limit of the process's heap.
    pub heap: u64,
    /// Stacks of all threads.
    pub stacks: u64,
    /// The program and every other file-backed mapping.
    pub image: u64,
    /// Fixed input/output buffers.
    pub io: u64,
}

impl RuntimeBytes {
    /// The sum, `None` on overflow.
    #[must_use]
    pub fn total(&self) -> Option<u64> {
        self.heap.checked_add(self.stacks)?.checked_add(self.image)?.checked_add(self.io)
    }
}

/// The memory envelope, bytes.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Envelope {
    /// Packed weights.
    pub weights: u64,
    /// Keys and values.
    pub kv: u64,
    /// Tables, host buffers and small state.
    pub persistent: u64,
    /// Transients.
    pub intermediate: u64,
    /// Everything else of the process.
    pub runtime: RuntimeBytes,
    /// M_max.
    pub total: u64,
    /// Greatest sum while loading.
    pub load_peak: u64,
    /// The machine's limit.
    pub hardware: u64,
    /// What the sum does not cover.
    pub not_covered: Vec<String>,
}

impl Envelope {
    /// Whether M_max is within the machine's limit.
    #[must_use]
    pub fn fits(&self) -> bool {
        self.total <= self.hardware
    }
}

/// What a plan gives up where memory and time pull apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Preference {
    /// No synchronisation beyond what the data ask for.
    #[default]
    LatencyFirst,
    /// Synchronisation where it lets bytes be used again and costs no time that shows, and the
    /// smallest blocks of rows.
    MemoryFirst,
}

impl Preference {
    /// Every preference.
    pub const ALL: [Preference; 2] = [Preference::LatencyFirst, Preference::MemoryFirst];

    /// The name in text forms.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Preference::LatencyFirst => "latency-first",
            Preference::MemoryFirst => "memory-first",
        }
    }
}

/// The exact search for the order of a phase's operations that needs the fewest bytes at once, as
/// on one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrderReport {
    /// The phase.
    pub phase: PhaseId,
    /// Peak of the order that the plan has.
    pub plan_bytes: u64,
    /// Least peak of all orders.
    pub least_bytes: u64,
    /// Sets of operations that the search looked at.
    pub states: u64,
    /// Whether it went to its end: then the least peak is proven.
    pub complete: bool,
}

/// What another plan of the same request would be: fewer lanes, another preference, a choice of
/// the planner switched off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variant {
    /// What is different.
    pub name: String,
    /// Its transients, bytes.
    pub transient_bytes: u64,
    /// Its M_max, bytes.
    pub total_bytes: u64,
    /// Its synchronisation points in a chunk of a prompt and in a decode step.
    pub cuts: [u32; 2],
    /// Its expected times of a first chunk and of a first decode step, nanoseconds.
    pub predicted_ns: [u64; 2],
}

/// Sets of operations of a phase that may run at the same time, and pairs kept apart.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Concurrency {
    /// Maximal sets of pairwise independent operations of more than one member.
    pub concurrent_sets: Vec<Vec<OpId>>,
    /// Independent operations that are run one after the other, and why.
    pub serialised: Vec<(OpId, OpId, String)>,
    /// Independent operations, one bound by arithmetic and one by bandwidth, with no cut between:
    /// lanes that come to the second early overlap it with the first.
    pub complementary: Vec<(OpId, OpId)>,
    /// Cuts that the same dependencies would ask for if no two slices lined up.
    pub cuts_unaligned: u32,
}

/// Cost of an operation at the bounds' maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Cost {
    /// Arithmetic operations (a multiply and an add count as two).
    pub flops: u64,
    /// Bytes read and written.
    pub bytes_moved: u64,
    /// Whether bandwidth limits it on the plan's machine.
    pub bandwidth_bound: bool,
    /// Time that it is expected to take with all lanes, nanoseconds.
    pub predicted_ns: u64,
}

/// How long some tokens are expected to take on the plan's machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prediction {
    /// The phase.
    pub phase: PhaseId,
    /// Tokens: of a prompt (in as many runs as its chunks), or the sequences of a decode step.
    pub tokens: u64,
    /// Position of the first one.
    pub depth: u64,
    /// Nanoseconds.
    pub nanoseconds: u64,
}

/// How a concurrent region shares the lanes, and what that is worth. See [`crate::region`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionReport {
    /// The region.
    pub phase: PhaseId,
    /// Its streams: the one behind, then the one ahead. None where all operations run over all
    /// lanes.
    pub streams: Vec<StreamReport>,
    /// Pairs of its operations, the first of one stream and the second of the other, that are in
    /// order by an event of their own.
    pub hand_overs: Vec<(OpId, OpId)>,
    /// Patches of the smallest tile that is worth a run of it; 0 where tiles have one size.
    pub least_patches: u64,
    /// Time that a run of it is expected to take, nanoseconds.
    pub together_ns: u64,
    /// Parts of a prompt with pictures, and what each waits for.
    pub segments: Vec<Segment>,
}

/// One stream of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamReport {
    /// The phase that it is when it runs alone.
    pub phase: PhaseId,
    /// The first of the lanes that are its own.
    pub first_lane: u32,
    /// How many are.
    pub lanes: u32,
    /// Operations that run on them; those after run on all lanes.
    pub ops_apart: u32,
    /// Time that it is expected to take alone, on all lanes, nanoseconds.
    pub alone_ns: u64,
    /// Part of that time in operations that are bound by bandwidth, percent.
    pub bandwidth_percent: u32,
}

/// When a picture is looked at that comes while an answer is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// At once, beside the steps of the answer.
    Beside,
    /// When the answer is done.
    AfterAnswer,
}

impl Arrival {
    /// Both.
    pub const ALL: [Arrival; 2] = [Arrival::Beside, Arrival::AfterAnswer];

    /// The name in text forms.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Arrival::Beside => "beside",
            Arrival::AfterAnswer => "after-answer",
        }
    }
}

/// The longest gap between two tokens of an answer while the largest picture arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GapReport {
    /// When the picture is looked at.
    pub arrival: Arrival,
    /// The longest gap that is expected, nanoseconds.
    pub expected_ns: u64,
    /// The gap that none is to pass, nanoseconds, where no lane stands still for longer than
    /// `pause_ns` at a time.
    pub bound_ns: u64,
    /// The longest time that a lane of the machine was seen to stand still, nanoseconds.
    pub pause_ns: u64,
    /// Tiles of the largest picture.
    pub picture_tiles: u64,
    /// Tokens of the largest picture.
    pub picture_tokens: u64,
    /// What encoding and reading it takes on all lanes, one after the other, nanoseconds: the gap
    /// that there would be if all of it stood between two tokens.
    pub picture_ns: u64,
}

/// A part of the work on a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// What it is.
    pub name: String,
    /// Names of the parts that must be over before it begins.
    pub waits_for: Vec<String>,
}

/// A plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The legalised program.
    pub program: Program,
    /// Bounds.
    pub bounds: Bounds,
    /// Machine.
    pub machine: Machine,
    /// One schedule a phase.
    pub schedules: Vec<Schedule>,
    /// One concurrency report a phase.
    pub concurrency: Vec<Concurrency>,
    /// For each phase, the cost of each operation.
    pub costs: Vec<Vec<Cost>>,
    /// Expected times.
    pub predictions: Vec<Prediction>,
    /// What was preferred.
    pub preference: Preference,
    /// The order of each phase beside the best.
    pub orders: Vec<OrderReport>,
    /// Plans beside this one, where they were asked for: itself first.
    pub variants: Vec<Variant>,
    /// Concurrent regions.
    pub regions: Vec<RegionReport>,
    /// The longest gap between tokens while a picture arrives, of a model with eyes.
    pub gap: Option<GapReport>,
    /// One placement a tensor.
    pub placements: Vec<Placement>,
    /// Buffers of the colouring.
    pub buffers: Vec<ColourBuffer>,
    /// Arena figures.
    pub arena: ArenaFigures,
    /// Table 1.
    pub summary: Summary,
    /// Envelope.
    pub envelope: Envelope,
}
