//! Text to a plan, for bytes that nobody vouches for.
//!
//! Every identity is checked against the array that it indexes, every derived field against what
//! it is derived from. The order of keys and the white space are free, and unknown keys are
//! passed over (the format may grow); the digest still covers them.

use sha2::{Digest as _, Sha256};

use super::parse::{Node, parse};
use super::write::{FORMAT, VERSION, hexadecimal, shard_counts, workspace_bytes_required};
use super::{JsonError, gap, kinds, regions};
use crate::contract::{self, Access, Mode, Split};
use crate::ids::{DimId, EventId, OpId, PhaseId, TensorId};
use crate::limits::{ITEMS_MAX, LANES_MAX, PHASES_MAX, SIZE_DEPTH_MAX, SIZE_PARTS_MAX};
use crate::op::Op;
use crate::plan::{
    ArenaFigures, Bounds, ColourBuffer, Concurrency, Cost, Envelope, Interval, Machine,
    OrderReport, Placement, Plan, Prediction, Preference, RuntimeBytes, Schedule, Summary, Task,
    Variant,
};
use crate::program::{Dim, Flow, ModelInfo, Phase, Program};
use crate::size::Size;
use crate::tensor::{Dtype, Residence, Tensor, Term};

type Result<T> = std::result::Result<T, JsonError>;

/// The plan that a text holds, its digest checked.
///
/// # Errors
/// When the text is not JSON, passes a limit, lacks a field, names something unknown, contradicts
/// itself, or does not have the digest that it states.
pub fn read(text: &str) -> Result<Plan> {
    let tree = parse(text)?;
    let root = Node::root(&tree);
    let format = root.get("format")?;
    if format.text()? != FORMAT {
        return Err(format.error(format!("not {FORMAT:?}")));
    }
    root.get("version")?.must_be(VERSION)?;
    check_digest(text, &root)?;
    let names = root.get("phases")?.list(PHASES_MAX, |phase| {
        let name = phase.get("name")?;
        Ok(name.text()?.to_string())
    })?;
    for (i, name) in names.iter().enumerate() {
        if names[..i].contains(name) {
            return Err(root.get("phases")?.error(format!("two phases are named {name:?}")));
        }
    }
    let mut program = Program {
        models: root.get("models")?.list(ITEMS_MAX, model)?,
        dims: root.get("dims")?.list(ITEMS_MAX, dim)?,
        ..Program::default()
    };
    let rows = root.get("tensors")?.list(ITEMS_MAX, |node| tensor(node, &program, &names))?;
    let (tensors, placements) = rows.into_iter().unzip();
    program.tensors = tensors;
    let rows = root.get("phases")?.list(PHASES_MAX, |node| phase(node, &program))?;
    let mut plan = Plan {
        bounds: bounds(&root.get("bounds")?)?,
        machine: machine(&root.get("machine")?)?,
        schedules: Vec::new(),
        concurrency: Vec::new(),
        costs: Vec::new(),
        predictions: Vec::new(),
        preference: Preference::default(),
        orders: Vec::new(),
        variants: Vec::new(),
        regions: Vec::new(),
        gap: None,
        placements,
        buffers: root
            .get("buffers")?
            .list(ITEMS_MAX, |node| Ok(ColourBuffer { bytes: node.get("bytes")?.number()? }))?,
        arena: arena(&root.get("arena")?, program.tensors.len())?,
        summary: summary(&root.get("summary")?)?,
        envelope: envelope(&root.get("envelope")?)?,
        program,
    };
    for (phase, schedule, costs) in rows {
        plan.program.phases.push(phase);
        plan.schedules.push(schedule);
        plan.costs.push(costs);
    }
    plan.program.flow = flow(&root.get("flow")?, &names)?;
    if let Some(node) = root.find("preference")? {
        plan.preference = kinds::pick(&node, &Preference::ALL, Preference::name)?;
    }
    if let Some(node) = root.find("orders")? {
        plan.orders = node.list(PHASES_MAX, |node| order(node, &names))?;
    }
    if let Some(node) = root.find("variants")? {
        plan.variants = node.list(ITEMS_MAX, variant)?;
    }
    if let Some(node) = root.find("regions")? {
        plan.regions = regions::read(&node, &names, &plan.program)?;
    }
    if let Some(node) = root.find("gap")? {
        plan.gap = Some(gap::read(&node)?);
    }
    if let Some(node) = root.find("predictions")? {
        plan.predictions = predictions(&node, &names)?;
    }
    plan.concurrency = concurrency(&root.get("concurrency")?, &plan.program)?;
    check_identities(&root)?;
    Ok(plan)
}

/// The digest covers the text with the digest's own value left empty.
fn check_digest(text: &str, root: &Node<'_, '_>) -> Result<()> {
    let digest = root.get("digest")?;
    let stated = digest.text()?;
    let Some(range) = digest.range() else { return Err(digest.error("not a string")) };
    let of = |end: &str| {
        let mut hash = Sha256::new();
        hash.update(&text.as_bytes()[..range.start]);
        hash.update(end.as_bytes());
        hexadecimal(&hash.finalize())
    };
    let computed = of(&text[range.end..]);
    // Tools like to end a file with a newline that was never printed.
    if computed == stated || of(text[range.end..].trim_end()) == stated {
        return Ok(());
    }
    Err(JsonError::Digest { stated: stated.chars().take(64).collect(), computed })
}

/// Each row of the tables states its own index.
fn check_identities(root: &Node<'_, '_>) -> Result<()> {
    for table in ["models", "dims", "tensors", "buffers"] {
        let mut index = 0;
        root.get(table)?.list(ITEMS_MAX, |row| {
            row.get("id")?.must_be(index)?;
            index += 1;
            Ok(())
        })?;
    }
    Ok(())
}

fn model(node: &Node<'_, '_>) -> Result<ModelInfo> {
    let sha256 = node.get("sha256")?;
    Ok(ModelInfo {
        file: owned(node, "file")?,
        header_sha256: owned(node, "header_sha256")?,
        sha256: if sha256.is_null() { None } else { Some(sha256.text()?.to_string()) },
        file_complete: node.get("file_complete")?.flag()?,
        architecture: owned(node, "architecture")?,
        parameters: node.get("parameters")?.number()?,
    })
}

fn dim(node: &Node<'_, '_>) -> Result<Dim> {
    Ok(Dim {
        name: owned(node, "name")?,
        min: node.get("min")?.number()?,
        max: node.get("max")?.number()?,
    })
}

fn bounds(node: &Node<'_, '_>) -> Result<Bounds> {
    let number = |key| node.get(key)?.number();
    Ok(Bounds {
        max_input_tokens: number("max_input_tokens")?,
        max_output_tokens: number("max_output_tokens")?,
        sequences: number("sequences")?,
        prefill_chunk: number("prefill_chunk")?,
        logit_rows: number("logit_rows")?,
        kv_type: kinds::pick(&node.get("kv_type")?, &Dtype::ALL, Dtype::name)?,
        max_images: number("max_images")?,
        max_image_tokens: number("max_image_tokens")?,
    })
}

fn machine(node: &Node<'_, '_>) -> Result<Machine> {
    Ok(Machine {
        memory_bytes: node.get("memory_bytes")?.number()?,
        memory_source: owned(node, "memory_source")?,
        lanes: node.get("lanes")?.small()?,
        isa: owned(node, "isa")?,
        profile_sha256: owned(node, "profile_sha256")?,
    })
}

fn tensor(
    node: &Node<'_, '_>,
    program: &Program,
    phases: &[String],
) -> Result<(Tensor, Placement)> {
    let dims = program.dims_max();
    let extents = node.get("extents")?;
    let shape = extents.list(SIZE_PARTS_MAX, |size| read_size(size, dims.len(), 1))?;
    let mut axis = 0;
    let stated = node.get("shape")?;
    stated.list(SIZE_PARTS_MAX, |extent| {
        let expected = shape.get(axis).and_then(|size| size.value(&dims));
        axis += 1;
        extent.must_be(expected.ok_or_else(|| extent.error("its extent has no value"))?)
    })?;
    if axis != shape.len() {
        return Err(stated.error(format!("{axis} axes, but {} extents", shape.len())));
    }
    let phase = node.get("phase")?;
    let state = node.get("state")?;
    let tensor = Tensor {
        name: owned(node, "name")?,
        model: node.get("model")?.index(program.models.len())?,
        dtype: kinds::pick(&node.get("dtype")?, &Dtype::ALL, Dtype::name)?,
        shape,
        size: read_size(&node.get("size")?, dims.len(), 1)?,
        residence: kinds::pick(&node.get("residence")?, &Residence::ALL, Residence::name)?,
        term: kinds::pick(&node.get("term")?, &Term::ALL, Term::name)?,
        phase: if phase.is_null() { None } else { Some(phase_id(&phase, phases)?) },
        state: if state.is_null() { None } else { Some(state.text()?.to_string()) },
    };
    let (first, last) = (node.get("first")?, node.get("last")?);
    let buffer = node.get("buffer")?;
    let offset = node.get("offset")?;
    let placement = Placement {
        offset: if offset.is_null() { None } else { Some(offset.number()?) },
        bytes: node.get("bytes")?.number()?,
        interval: if first.is_null() && last.is_null() {
            None
        } else {
            Some(Interval { first: first.small()?, last: last.small()? })
        },
        buffer: if buffer.is_null() { None } else { Some(buffer.small()?) },
    };
    Ok((tensor, placement))
}

/// A size expression; `depth` counts from 1 at its root.
fn read_size(node: &Node<'_, '_>, dims: usize, depth: usize) -> Result<Size> {
    if depth > SIZE_DEPTH_MAX {
        return Err(node.error(format!("nests deeper than {SIZE_DEPTH_MAX}")));
    }
    if node.digits().is_ok() {
        return Ok(Size::Const(node.number()?));
    }
    if node.keys()? != 1 {
        return Err(node.error("a size is a number or an object of one key"));
    }
    let parts = |node: Node<'_, '_>| {
        let parts = node.list(SIZE_PARTS_MAX, |part| read_size(part, dims, depth + 1))?;
        if parts.is_empty() { Err(node.error("has no parts")) } else { Ok(parts) }
    };
    if let Some(dim) = node.find("dim")? {
        return Ok(Size::Dim(DimId(dim.index(dims)?)));
    }
    if let Some(terms) = node.find("add")? {
        return Ok(Size::Add(parts(terms)?));
    }
    if let Some(factors) = node.find("mul")? {
        return Ok(Size::Mul(parts(factors)?));
    }
    if let Some(sizes) = node.find("min")? {
        return Ok(Size::Min(parts(sizes)?));
    }
    if let Some(sizes) = node.find("max")? {
        return Ok(Size::Max(parts(sizes)?));
    }
    let division = node.get("ceil_div")?;
    let mut pair = parts(division)?;
    match (pair.pop(), pair.pop(), pair.is_empty()) {
        (Some(Size::Const(divisor)), Some(part), true) if divisor > 0 => {
            Ok(Size::CeilDiv(Box::new(part), divisor))
        }
        _ => Err(division.error("not a size and a constant above zero")),
    }
}

fn phase(node: &Node<'_, '_>, program: &Program) -> Result<(Phase, Schedule, Vec<Cost>)> {
    let op_count = node.get("ops")?.list(ITEMS_MAX, |_| Ok(()))?.len();
    let events = node.get("events")?.small()?;
    if events as usize > ITEMS_MAX {
        return Err(node.get("events")?.error(format!("more than {ITEMS_MAX}")));
    }
    let lanes = node.get("lanes")?.list(LANES_MAX, |lane| {
        lane.list(ITEMS_MAX, |task| {
            let event = |node: &Node<'_, '_>| Ok(EventId(node.index(events as usize)?));
            let signals = task.get("signals")?;
            Ok(Task {
                op: OpId(task.get("op")?.index(op_count)?),
                shard: task.get("shard")?.small()?,
                shards: task.get("shards")?.small()?,
                waits: task.get("waits")?.list(ITEMS_MAX, event)?,
                signals: if signals.is_null() { None } else { Some(event(&signals)?) },
            })
        })
    })?;
    let schedule = Schedule { lanes, events };
    let shards = shard_counts(op_count, &schedule);
    let mut id = 0;
    let rows = node.get("ops")?.list(ITEMS_MAX, |node| {
        node.get("id")?.must_be(id as u64)?;
        let op = operation(node, program)?;
        check_derived(node, program, &op, shards[id])?;
        id += 1;
        let bounds = [(true, "bandwidth"), (false, "compute")];
        let bound = kinds::pick(&node.get("bound")?, &bounds, |(_, name)| name)?;
        let cost = Cost {
            flops: node.get("flops")?.number()?,
            bytes_moved: node.get("bytes_moved")?.number()?,
            bandwidth_bound: bound.0,
            predicted_ns: match node.find("predicted_ns")? {
                Some(time) => time.number()?,
                None => 0,
            },
        };
        Ok((op, cost))
    })?;
    let (ops, costs) = rows.into_iter().unzip();
    Ok((Phase { name: owned(node, "name")?, ops }, schedule, costs))
}

fn operation(node: &Node<'_, '_>, program: &Program) -> Result<Op> {
    let tensors = |key| {
        node.get(key)?.list(SIZE_PARTS_MAX, |id| Ok(TensorId(id.index(program.tensors.len())?)))
    };
    Ok(Op {
        name: owned(node, "name")?,
        kind: kinds::read_kind(&node.get("kind")?, &node.get("attributes")?)?,
        inputs: tensors("inputs")?,
        outputs: tensors("outputs")?,
        workspace: tensors("workspace")?,
        grain: node.get("grain")?.number()?,
        in_place: pairs(&node.get("in_place")?)?,
    })
}

fn pairs(node: &Node<'_, '_>) -> Result<Vec<(u32, u32)>> {
    node.list(SIZE_PARTS_MAX, |pair| {
        let numbers = pair.list(2, |number| number.small())?;
        match numbers.as_slice() {
            [output, input] => Ok((*output, *input)),
            _ => Err(pair.error("not a pair [output, input]")),
        }
    })
}

/// What the contract fixes must be what the text states.
fn check_derived(node: &Node<'_, '_>, program: &Program, op: &Op, shards: u32) -> Result<()> {
    let accesses = contract::accesses(op).map_err(|error| node.error(error.to_string()))?;
    let stated = node.get("access")?;
    if stated.list(ITEMS_MAX, |node| access(node, program))? != accesses {
        return Err(stated.error("not the accesses of the operation's contract"));
    }
    let allowed = node.get("may_in_place")?;
    if pairs(&allowed)? != contract::may_in_place(&op.kind) {
        return Err(allowed.error("not the pairs of the operation's contract"));
    }
    let required = node.get("workspace_bytes_required")?;
    match workspace_bytes_required(program, op, shards) {
        Some(bytes) => required.must_be(bytes),
        None => Err(required.error("the contract gives no number")),
    }
}

fn access(node: &Node<'_, '_>, program: &Program) -> Result<Access> {
    let modes = [Mode::Read, Mode::Write, Mode::ReadWrite];
    let split = node.get("split")?;
    Ok(Access {
        tensor: TensorId(node.get("tensor")?.index(program.tensors.len())?),
        mode: kinds::pick(&node.get("mode")?, &modes, Mode::name)?,
        split: match split.text()? {
            "whole" => Split::Whole,
            "even" => {
                Split::Even { axis: node.get("axis")?.small()?, unit: node.get("unit")?.number()? }
            }
            _ => return Err(split.error("neither whole nor even")),
        },
    })
}

fn flow(node: &Node<'_, '_>, names: &[String]) -> Result<Flow> {
    let ids = |node: &Node<'_, '_>| node.list(PHASES_MAX, |name| phase_id(name, names));
    let next = node.get("next")?;
    if next.keys()? != names.len() {
        return Err(next.error(format!("{} phases, but there are {}", next.keys()?, names.len())));
    }
    let pair = |node: &Node<'_, '_>| match ids(node)?.as_slice() {
        [one, other] => Ok((*one, *other)),
        _ => Err(node.error("not a pair of phases")),
    };
    Ok(Flow {
        entry: ids(&node.get("entry")?)?,
        next: names.iter().map(|name| ids(&next.get(name)?)).collect::<Result<_>>()?,
        // Absent where no phases overlap.
        overlap: match node.find("overlap")? {
            Some(pairs) => pairs.list(PHASES_MAX * PHASES_MAX, pair)?,
            None => Vec::new(),
        },
    })
}

fn concurrency(node: &Node<'_, '_>, program: &Program) -> Result<Vec<Concurrency>> {
    let read_one = |phase: &Phase| {
        let Some(report) = node.find(&phase.name)? else { return Ok(Concurrency::default()) };
        let ops =
            |node: &Node<'_, '_>| node.list(ITEMS_MAX, |id| Ok(OpId(id.index(phase.ops.len())?)));
        Ok(Concurrency {
            concurrent_sets: report.get("concurrent_sets")?.list(ITEMS_MAX, ops)?,
            complementary: match report.find("complementary")? {
                None => Vec::new(),
                Some(node) => node.list(ITEMS_MAX, |pair| match ops(pair)?.as_slice() {
                    [first, second] => Ok((*first, *second)),
                    _ => Err(pair.error("not a pair of operations")),
                })?,
            },
            cuts_unaligned: match report.find("cuts_unaligned")? {
                None => 0,
                Some(node) => node.small()?,
            },
            serialised: report.get("serialised")?.list(ITEMS_MAX, |entry| {
                let pair = entry.get("ops")?;
                match ops(&pair)?.as_slice() {
                    [first, second] => Ok((*first, *second, owned(entry, "why")?)),
                    _ => Err(pair.error("not a pair of operations")),
                }
            })?,
        })
    };
    program.phases.iter().map(read_one).collect()
}

fn predictions(node: &Node<'_, '_>, names: &[String]) -> Result<Vec<Prediction>> {
    node.list(ITEMS_MAX, |node| {
        Ok(Prediction {
            phase: phase_id(&node.get("phase")?, names)?,
            tokens: node.get("tokens")?.number()?,
            depth: node.get("depth")?.number()?,
            nanoseconds: node.get("nanoseconds")?.number()?,
        })
    })
}

fn order(node: &Node<'_, '_>, names: &[String]) -> Result<OrderReport> {
    Ok(OrderReport {
        phase: phase_id(&node.get("phase")?, names)?,
        plan_bytes: node.get("plan_bytes")?.number()?,
        least_bytes: node.get("least_bytes")?.number()?,
        states: node.get("states")?.number()?,
        complete: node.get("complete")?.flag()?,
    })
}

fn variant(node: &Node<'_, '_>) -> Result<Variant> {
    let number = |key| node.get(key)?.number();
    Ok(Variant {
        name: owned(node, "name")?,
        transient_bytes: number("transient_bytes")?,
        total_bytes: number("total_bytes")?,
        cuts: [node.get("prefill_cuts")?.small()?, node.get("decode_cuts")?.small()?],
        predicted_ns: [number("prefill_ns")?, number("decode_ns")?],
    })
}

fn arena(node: &Node<'_, '_>, tensors: usize) -> Result<ArenaFigures> {
    let number = |key| node.get(key)?.number();
    Ok(ArenaFigures {
        bytes: number("bytes")?,
        alignment: number("alignment")?,
        live_peak_bytes: number("live_peak_bytes")?,
        witness: node.get("witness")?.list(ITEMS_MAX, |id| Ok(TensorId(id.index(tensors)?)))?,
        transient_bytes: number("transient_bytes")?,
        transient_live_peak_bytes: number("transient_live_peak_bytes")?,
        transient_offset: number("transient_offset")?,
    })
}

fn summary(node: &Node<'_, '_>) -> Result<Summary> {
    let summary = Summary {
        logical_tensors: node.get("logical_tensors")?.number()?,
        physical_buffers: node.get("physical_buffers")?.number()?,
        sum_of_tensor_bytes: node.get("sum_of_tensor_bytes")?.number()?,
    };
    let stated = node.get("reduction_percent")?;
    let (tensors, buffers) = (summary.logical_tensors, summary.physical_buffers);
    let expected = super::write::reduction_percent(tensors, buffers);
    // Compared as numbers: another writer may print 50 for 50.0.
    if stated.digits()?.parse::<f64>() != expected.parse::<f64>() {
        return Err(stated.error(format!("the counts give {expected}")));
    }
    Ok(summary)
}

fn envelope(node: &Node<'_, '_>) -> Result<Envelope> {
    let number = |key| node.get(key)?.number();
    let runtime_node = node.get("runtime")?;
    let runtime = RuntimeBytes {
        heap: runtime_node.get("heap")?.number()?,
        stacks: runtime_node.get("stacks")?.number()?,
        image: runtime_node.get("image")?.number()?,
        io: runtime_node.get("io")?.number()?,
    };
    let total = runtime.total().ok_or_else(|| runtime_node.error("its sum passes 2^64"))?;
    runtime_node.get("total")?.must_be(total)?;
    let envelope = Envelope {
        weights: number("weights")?,
        kv: number("kv")?,
        persistent: number("persistent")?,
        intermediate: number("intermediate")?,
        runtime,
        total: number("total")?,
        load_peak: number("load_peak")?,
        hardware: number("hardware")?,
        not_covered: node
            .get("not_covered")?
            .list(ITEMS_MAX, |what| Ok(what.text()?.to_string()))?,
    };
    let free = node.get("free")?;
    let expected = i128::from(envelope.hardware) - i128::from(envelope.total);
    if free.digits()?.parse::<i128>().ok() != Some(expected) {
        return Err(free.error(format!("hardware less total is {expected}")));
    }
    let fits = node.get("fits")?;
    if fits.flag()? != envelope.fits() {
        return Err(fits.error("contradicts total and hardware"));
    }
    Ok(envelope)
}

fn owned(node: &Node<'_, '_>, key: &str) -> Result<String> {
    Ok(node.get(key)?.text()?.to_string())
}

pub(super) fn phase_id(node: &Node<'_, '_>, names: &[String]) -> Result<PhaseId> {
    let name = node.text()?;
    let found = names.iter().position(|known| known == name);
    found.map(PhaseId::of).ok_or_else(|| node.error(format!("no phase is named {name:?}")))
}
