// Drawing: what is occupied, the arena, the lanes; one horizontal axis for all three.
//
// `view` is all that drawing depends on beside the plan. Nothing here listens to anything.
"use strict";

const canvas = document.getElementById("chart");
const paper = canvas.getContext("2d");

const view = {
  x0: 0, x1: STEPS,           // steps shown
  limit: [0, STEPS],          // steps of the chosen phase
  y0: 0, y1: 1,               // bytes shown
  region: [0, 1],             // bytes of the chosen region
  phase: null, layer: null, search: "",
  most: 1,                    // bytes at the top of the strip
  step: null, selected: null, hovered: null,
};

const MARGIN = { left: 66, right: 10 };
const LANE_HEIGHT = 18;

/** Heights of the panels, top to bottom, for the canvas's present size. */
function panels() {
  const lanes = Math.max(1, ...PHASES.map((phase) => phase.lanes.length));
  const laneHeight = Math.max(8, Math.min(LANE_HEIGHT, 120 / lanes));
  const height = canvas.clientHeight;
  const top = 34;
  const strip = { top, height: 40 };
  const lanePanel = { height: lanes * laneHeight, lane: laneHeight, lanes };
  lanePanel.top = height - lanePanel.height - 22;
  const arena = { top: strip.top + strip.height + 20 };
  arena.height = Math.max(60, lanePanel.top - 22 - arena.top);
  return { strip, arena, lanes: lanePanel, left: MARGIN.left, right: canvas.clientWidth - MARGIN.right };
}

const xOf = (step, p) => p.left + (step - view.x0) / (view.x1 - view.x0) * (p.right - p.left);
const stepOf = (x, p) => view.x0 + (x - p.left) / (p.right - p.left) * (view.x1 - view.x0);
/** Offset 0 is at the bottom. */
const yOf = (byte, p) =>
  p.arena.top + p.arena.height - (byte - view.y0) / (view.y1 - view.y0) * p.arena.height;
const byteOf = (y, p) =>
  view.y0 + (p.arena.top + p.arena.height - y) / p.arena.height * (view.y1 - view.y0);

const colours = {};
function readColours() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["ink", "dim", "line", "panel", "accent", "cut", ...Object.keys(GROUPS).map((g) => "g-" + g)]) {
    colours[name] = style.getPropertyValue("--" + name).trim();
  }
}

let pending = false;
function redraw() {
  if (pending) return;
  pending = true;
  requestAnimationFrame(() => { pending = false; draw(); });
}

function draw() {
  const scale = window.devicePixelRatio || 1;
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  if (canvas.width !== Math.round(width * scale)) canvas.width = Math.round(width * scale);
  if (canvas.height !== Math.round(height * scale)) canvas.height = Math.round(height * scale);
  paper.setTransform(scale, 0, 0, scale, 0, 0);
  paper.clearRect(0, 0, width, height);
  paper.font = "11px system-ui, sans-serif";
  const p = panels();
  drawAxis(p);
  drawStrip(p);
  drawArena(p);
  drawLanes(p);
  drawCursor(p);
}

function clip(p, panel, work) {
  paper.save();
  paper.beginPath();
  paper.rect(p.left, panel.top, p.right - p.left, panel.height);
  paper.clip();
  work();
  paper.restore();
}

function shownPhases() {
  return PHASES.filter((phase) => phase.end > view.x0 && phase.start < view.x1
    && phase.end > view.limit[0] && phase.start < view.limit[1]);
}

/** Phase names, then layers as bands with numbers where there is room. */
function drawAxis(p) {
  paper.textBaseline = "middle";
  for (const phase of shownPhases()) {
    const a = Math.max(xOf(phase.start, p), p.left);
    const b = Math.min(xOf(phase.end, p), p.right);
    paper.fillStyle = colours.ink;
    label(phase.name, a + 3, 8, b - a - 6, "left", "600 11px system-ui, sans-serif");
    let free = -Infinity;
    for (const span of phase.layers) {
      if (span.layer === null || span.end <= view.x0 || span.start >= view.x1) continue;
      const from = Math.max(xOf(span.start, p), p.left);
      const to = Math.min(xOf(span.end, p), p.right);
      paper.fillStyle = colours.panel;
      if (span.layer % 2 === 0) paper.fillRect(from, 16, to - from, p.lanes.top + p.lanes.height - 16);
      const text = to - from > 46 ? "layer " + span.layer : String(span.layer);
      const wide = paper.measureText(text).width;
      const middle = (from + to) / 2;
      if (middle - wide / 2 < free || middle + wide / 2 > p.right) continue;
      paper.fillStyle = colours.dim;
      paper.textAlign = "center";
      paper.fillText(text, middle, 24);
      free = middle + wide / 2 + 8;
    }
    paper.strokeStyle = colours.line;
    paper.beginPath();
    paper.moveTo(a + 0.5, 2);
    paper.lineTo(a + 0.5, p.lanes.top + p.lanes.height);
    paper.stroke();
  }
}

function label(text, x, y, room, align, font) {
  if (font) { paper.save(); paper.font = font; }
  paper.textAlign = align;
  if (paper.measureText(text).width <= room) paper.fillText(text, x, y);
  if (font) paper.restore();
}

/** Bytes of the transient region that live tensors cover, against the region's size. */
function drawStrip(p) {
  const most = view.most;
  const panel = p.strip;
  const bottom = panel.top + panel.height;
  frame(p, panel, "occupied", size(most));
  clip(p, panel, () => {
    paper.fillStyle = colours.accent;
    paper.globalAlpha = 0.45;
    const columns = p.right - p.left;
    const from = Math.max(Math.floor(view.x0), view.limit[0]);
    const to = Math.min(Math.ceil(view.x1), view.limit[1], STEPS);
    if (to - from <= columns) {
      for (let step = from; step < to; step++) {
        const h = COVERED[step] / most * panel.height;
        paper.fillRect(xOf(step, p), bottom - h, xOf(step + 1, p) - xOf(step, p) + 0.5, h);
      }
    } else {
      for (let x = 0; x < columns; x++) {
        const a = Math.max(from, Math.floor(stepOf(p.left + x, p)));
        const b = Math.min(to, Math.floor(stepOf(p.left + x + 1, p)) + 1);
        let peak = 0;
        for (let step = a; step < b; step++) peak = Math.max(peak, COVERED[step]);
        paper.fillRect(p.left + x, bottom - peak / most * panel.height, 1, peak / most * panel.height);
      }
    }
    paper.globalAlpha = 1;
  });
}

function frame(p, panel, title, top) {
  paper.strokeStyle = colours.line;
  paper.strokeRect(p.left - 0.5, panel.top - 0.5, p.right - p.left + 1, panel.height + 1);
  paper.fillStyle = colours.dim;
  label(title, p.left - 6, panel.top + panel.height / 2, MARGIN.left, "right");
  if (top) label(top, p.left - 6, panel.top + 5, MARGIN.left, "right");
}

function isDimmed(r) {
  if (view.layer !== null && r.layer !== view.layer) return true;
  return view.search !== "" && !r.tensor.name.toLowerCase().includes(view.search);
}

function isShown(r) {
  return r.to > view.x0 && r.from < view.x1 && r.to > view.limit[0] && r.from < view.limit[1]
    && r.high > view.y0 && r.low < view.y1;
}

/** The pixels of a rectangle, never thinner than can be seen. */
function box(r, p) {
  const x = Math.max(xOf(Math.max(r.from, view.limit[0]), p), p.left - 2);
  const right = Math.min(xOf(Math.min(r.to, view.limit[1]), p), p.right + 2);
  const y = yOf(r.high, p);
  const h = Math.max(yOf(r.low, p) - y, 0.75);
  return { x, y, w: Math.max(right - x, 0.75), h };
}

function drawArena(p) {
  const panel = p.arena;
  frame(p, panel, "", "");
  byteTicks(p);
  clip(p, panel, () => {
    for (const r of RECTANGLES) if (isShown(r)) drawTensor(r, p);
    for (const r of [view.hovered, view.selected]) if (r && isShown(r)) outline(r, p);
  });
  paper.fillStyle = colours.dim;
  label("arena: bytes by offset", p.left + 2, panel.top - 9, 300, "left");
}

function drawTensor(r, p) {
  const b = box(r, p);
  const dimmed = isDimmed(r);
  paper.globalAlpha = dimmed ? 0.13 : 1;
  paper.fillStyle = colours["g-" + r.group];
  paper.fillRect(b.x, b.y, b.w, b.h);
  if (b.w > 4 && b.h > 3) {
    paper.strokeStyle = colours.panel;
    paper.strokeRect(b.x + 0.5, b.y + 0.5, b.w - 1, b.h - 1);
  }
  if (!dimmed && b.h >= 13) {
    const text = r.tensor.name.replace(/^[a-z]+\.(?=blk\.)/, "");
    const short = text.replace(/^blk\.\d+\./, "");
    const middle = Math.max(b.x, p.left) + 4;
    const room = Math.min(b.x + b.w, p.right) - middle - 4;
    paper.fillStyle = "#111";
    if (paper.measureText(text).width <= room) label(text, middle, b.y + b.h / 2, room, "left");
    else label(short, middle, b.y + b.h / 2, room, "left");
  }
  paper.globalAlpha = 1;
}

function outline(r, p) {
  const b = box(r, p);
  paper.strokeStyle = colours.ink;
  paper.lineWidth = 2;
  paper.strokeRect(b.x + 1, b.y + 1, Math.max(b.w - 2, 1), Math.max(b.h - 2, 1));
  paper.lineWidth = 1;
}

function byteTicks(p) {
  const span = view.y1 - view.y0;
  const rough = span / Math.max(2, p.arena.height / 48);
  const step = Math.pow(2, Math.ceil(Math.log2(Math.max(rough, 1))));
  paper.textAlign = "right";
  // Ticks count from the region's start, so that a region reads from 0.
  for (let at = Math.ceil(view.y0 / step) * step; at <= view.y1; at += step) {
    const y = yOf(at, p);
    paper.strokeStyle = colours.line;
    paper.beginPath();
    paper.moveTo(p.left - 4, y);
    paper.lineTo(p.left, y);
    paper.stroke();
    paper.fillStyle = colours.dim;
    if (y > p.arena.top + 4) paper.fillText(size(at).replace(/\.0+ /, " "), p.left - 6, y);
  }
}

/** A cell for each task, a line across all lanes for each event that somebody waits for. */
function drawLanes(p) {
  const panel = p.lanes;
  const per = (p.right - p.left) / (view.x1 - view.x0);
  paper.fillStyle = colours.dim;
  label("lanes: tasks and cuts", p.left + 2, panel.top - 9, 300, "left");
  for (let lane = 0; lane < panel.lanes; lane++) {
    const y = panel.top + lane * panel.lane;
    paper.fillStyle = colours.dim;
    if (panel.lane >= 10) label("lane " + lane, p.left - 6, y + panel.lane / 2, MARGIN.left, "right");
  }
  clip(p, panel, () => shownPhases().forEach((phase) => {
    phase.lanes.forEach((tasks, lane) => drawTasks(phase, tasks, panel.top + lane * panel.lane, p, per));
    if (per < 1.2) return;
    paper.strokeStyle = colours.cut;
    paper.globalAlpha = Math.min(1, per / 8 + 0.25);
    for (const cut of phase.cuts) {
      if (cut.step < view.x0 || cut.step > view.x1) continue;
      const x = Math.round(xOf(cut.step, p)) + 0.5;
      paper.beginPath();
      paper.moveTo(x, panel.top);
      paper.lineTo(x, panel.top + panel.height);
      paper.stroke();
    }
    paper.globalAlpha = 1;
  }));
  frame(p, panel, "", "");
  drawScale(p, panel.top + panel.height + 11);
}

function drawTasks(phase, tasks, y, p, per) {
  const height = p.lanes.lane - 2;
  for (const task of tasks) {
    const step = phase.start + task.op;
    if (step + 1 < view.x0 || step > view.x1) continue;
    const op = phase.ops[task.op];
    const x = xOf(step, p);
    paper.globalAlpha = view.layer !== null && layerOf(op.name) !== view.layer ? 0.2 : 1;
    paper.fillStyle = colours["g-" + (phase.name === "load" ? "weights" : partOf(op.name))];
    paper.fillRect(x, y + 1, Math.max(per - (per > 3 ? 1 : 0), 0.6), height);
    if (per > 40 && height >= 12) {
      paper.fillStyle = "#111";
      label(op.name.replace(/^(load\.)?blk\.\d+\./, ""), x + 4, y + 1 + height / 2, per - 8, "left");
    }
    paper.globalAlpha = 1;
  }
}

/** Steps within the phase below everything. */
function drawScale(p, y) {
  paper.fillStyle = colours.dim;
  const rough = (view.x1 - view.x0) / Math.max(2, (p.right - p.left) / 90);
  const base = Math.pow(10, Math.floor(Math.log10(Math.max(rough, 1))));
  const step = [1, 2, 5, 10].map((k) => k * base).find((s) => s >= rough) || base;
  for (const phase of shownPhases()) {
    for (let at = 0; phase.start + at < phase.end; at += step) {
      const x = xOf(phase.start + at, p);
      if (x < p.left || x > p.right - 10) continue;
      paper.textAlign = "left";
      paper.fillText(at === 0 ? "step 0" : String(at), x + 1, y);
    }
  }
}

function drawCursor(p) {
  if (view.step === null || view.step < view.x0 || view.step >= view.x1) return;
  const a = xOf(view.step, p);
  const b = xOf(view.step + 1, p);
  const top = p.strip.top;
  const bottom = p.lanes.top + p.lanes.height;
  paper.globalAlpha = 0.16;
  paper.fillStyle = colours.ink;
  paper.fillRect(a, top, Math.max(b - a, 1), bottom - top);
  paper.globalAlpha = 1;
  paper.strokeStyle = colours.ink;
  paper.strokeRect(Math.round(a) + 0.5, top + 0.5, Math.max(Math.round(b - a) - 1, 1), bottom - top);
}

/** The tensor under a point, the smallest first, as small ones lie on top of nothing. */
function tensorAt(x, y, p) {
  if (y < p.arena.top || y > p.arena.top + p.arena.height || x < p.left || x > p.right) return null;
  const step = stepOf(x, p);
  const byte = byteOf(y, p);
  const near = (view.y1 - view.y0) / p.arena.height;
  let best = null;
  for (const r of RECTANGLES) {
    if (!isShown(r) || step < r.from || step >= r.to) continue;
    if (byte < r.low - near || byte >= r.high + near) continue;
    if (!best || r.high - r.low < best.high - best.low) best = r;
  }
  return best;
}

/** The task under a point. */
function taskAt(x, y, p) {
  const lane = Math.floor((y - p.lanes.top) / p.lanes.lane);
  if (lane < 0 || lane >= p.lanes.lanes || x < p.left || x > p.right) return null;
  const step = Math.floor(stepOf(x, p));
  const phase = phaseAt(step);
  const task = phase && phase.lanes[lane] && phase.lanes[lane].find((t) => phase.start + t.op === step);
  return task ? { task, lane, phase, op: phase.ops[task.op] } : null;
}
