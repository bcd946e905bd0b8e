// The plan, read from the page itself, as flat lists that drawing can walk quickly.
//
// Time is a row of steps: the operations of every phase in program order, phases one after the
// other. A tensor is a rectangle: steps × bytes of the arena. Nothing here draws or listens.
"use strict";

const PLAN = JSON.parse(document.getElementById("plan-json").textContent);

/** Colour groups; their CSS variables are `--g-NAME`. */
const GROUPS = {
  weights: "weights",
  kv: "keys and values",
  persistent: "persistent",
  attention: "attention",
  ffn: "feed-forward",
  other: "embedding and output",
  workspace: "workspace",
};

/** The layer that a name belongs to, or null. */
function layerOf(name) {
  const found = /(?:^|[.:])(?:blk|kv)\.(\d+)\./.exec(name);
  return found ? Number(found[1]) : null;
}

function partOf(name) {
  if (/workspace$/.test(name)) return "workspace";
  if (/ffn/.test(name)) return "ffn";
  if (/attn|kv_append|kv\./.test(name)) return "attention";
  return "other";
}

function groupOf(tensor) {
  return tensor.term === "intermediate" ? partOf(tensor.name) : tensor.term;
}

/** Phases with the steps that they take: [start, end). */
function readPhases(plan) {
  let start = 0;
  return plan.phases.map((phase) => {
    const end = start + Math.max(phase.ops.length, 1);
    const result = { name: phase.name, ops: phase.ops, lanes: phase.lanes, start, end };
    result.layers = layerSpans(phase.ops, start);
    result.cuts = cutsOf(phase, start);
    start = end;
    return result;
  });
}

/** Runs of neighbouring operations of one layer. */
function layerSpans(ops, start) {
  const spans = [];
  ops.forEach((op, index) => {
    const layer = layerOf(op.name);
    const last = spans[spans.length - 1];
    if (last && last.layer === layer) last.end = start + index + 1;
    else spans.push({ layer, start: start + index, end: start + index + 1 });
  });
  return spans;
}

/** Steps at which some lane waits, with the event's number. */
function cutsOf(phase, start) {
  const cuts = new Map();
  phase.lanes.forEach((lane) => lane.forEach((task) => task.waits.forEach((event) => {
    const step = start + task.op;
    if (!cuts.has(event) || cuts.get(event) > step) cuts.set(event, step);
  })));
  return [...cuts].map(([event, step]) => ({ event, step })).sort((a, b) => a.step - b.step);
}

/** Which lanes touch each tensor in each phase, and which operation writes it while loading. */
function touches(plan) {
  const lanes = new Map();
  const loadedAt = new Map();
  plan.phases.forEach((phase, index) => {
    const lanesOfOp = phase.ops.map(() => new Set());
    phase.lanes.forEach((lane, number) => lane.forEach((task) => lanesOfOp[task.op].add(number)));
    phase.ops.forEach((op, step) => {
      for (const id of [...op.inputs, ...op.outputs, ...op.workspace]) {
        const key = index + ":" + id;
        if (!lanes.has(key)) lanes.set(key, new Set());
        lanesOfOp[step].forEach((lane) => lanes.get(key).add(lane));
      }
      if (phase.name === "load") op.outputs.forEach((id) => loadedAt.set(id, step));
    });
  });
  return { lanes, loadedAt };
}

/** Rectangles of every tensor in the arena, in the order in which they are drawn. */
function readRectangles(plan, phases) {
  const { lanes, loadedAt } = touches(plan);
  const byName = new Map(phases.map((phase, index) => [phase.name, index]));
  const end = phases.length ? phases[phases.length - 1].end : 1;
  const rectangles = [];
  for (const tensor of plan.tensors) {
    if (tensor.offset === null) continue;
    const phase = tensor.phase === null ? null : byName.get(tensor.phase);
    let from = 0;
    let to = end;
    if (phase !== null) {
      if (tensor.first === null) continue;
      from = phases[phase].start + tensor.first;
      to = phases[phase].start + tensor.last + 1;
    } else if (loadedAt.has(tensor.id)) {
      from = phases[byName.get("load")].start + loadedAt.get(tensor.id);
    }
    rectangles.push({
      tensor, phase, from, to,
      low: tensor.offset, high: tensor.offset + tensor.bytes,
      group: groupOf(tensor), layer: layerOf(tensor.name),
      lanes: (index) => [...(lanes.get(index + ":" + tensor.id) || [])].sort((a, b) => a - b),
    });
  }
  return rectangles;
}

/** For each step the bytes of the transient region that some live tensor covers. */
function coverage(rectangles, steps) {
  const starts = Array.from({ length: steps + 1 }, () => []);
  for (const r of rectangles) if (r.phase !== null) starts[r.from].push(r);
  const covered = new Float64Array(steps);
  let live = [];
  for (let step = 0; step < steps; step++) {
    live = live.filter((r) => r.to > step).concat(starts[step]);
    live.sort((a, b) => a.low - b.low);
    let reached = 0;
    let sum = 0;
    for (const r of live) {
      if (r.high > reached) sum += r.high - Math.max(r.low, reached);
      reached = Math.max(reached, r.high);
    }
    covered[step] = sum;
  }
  return covered;
}

const PHASES = readPhases(PLAN);
const STEPS = PHASES.length ? PHASES[PHASES.length - 1].end : 1;
const RECTANGLES = readRectangles(PLAN, PHASES);
const COVERED = coverage(RECTANGLES, STEPS);

/** Parts of the arena that the vertical axis can show: [low, high) in bytes. */
const REGIONS = (() => {
  const of = (test) => {
    const chosen = RECTANGLES.filter(test);
    if (!chosen.length) return null;
    return [
      chosen.reduce((low, r) => Math.min(low, r.low), Infinity),
      chosen.reduce((high, r) => Math.max(high, r.high), 0),
    ];
  };
  const term = (name) => of((r) => r.tensor.term === name);
  return {
    transient: term("intermediate"),
    weights: term("weights"),
    kv: term("kv"),
    persistent: term("persistent"),
    arena: [0, Math.max(PLAN.arena.bytes, 1)],
  };
})();

/** The part of the transient region that one phase uses; all of it for no phase. */
function transientRegion(phase) {
  const whole = REGIONS.transient;
  if (phase === null || !whole) return whole;
  const own = RECTANGLES.filter((r) => r.phase === phase);
  return own.length ? [whole[0], own.reduce((high, r) => Math.max(high, r.high), 0)] : whole;
}

function phaseAt(step) {
  return PHASES.find((phase) => step >= phase.start && step < phase.end) || PHASES[0];
}

function opAt(step) {
  const phase = phaseAt(step);
  return phase ? phase.ops[Math.floor(step) - phase.start] || null : null;
}

/** Bytes for people: MiB, or KiB where MiB would be all zeros. */
function size(bytes) {
  if (bytes >= 100 * 1048576) return (bytes / 1048576).toFixed(1) + " MiB";
  if (bytes >= 1048576 / 2) return (bytes / 1048576).toFixed(2) + " MiB";
  if (bytes >= 1024) return (bytes / 1024).toFixed(1) + " KiB";
  return bytes + " B";
}

function count(number) {
  return number.toLocaleString("en-US");
}
