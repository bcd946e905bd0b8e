// Listening: pointer, keys and form controls change the view; every change asks for one redraw.
"use strict";

const tip = document.getElementById("tip");
const status = document.getElementById("status");
const liveBody = document.querySelector("#live tbody");
const liveTitle = document.getElementById("live-title");
const control = (id) => document.getElementById(id);

/** Moves the shown steps, inside the chosen phase, at least four steps wide. */
function showSteps(x0, x1) {
  const [low, high] = view.limit;
  const span = Math.min(Math.max(x1 - x0, Math.min(4, high - low)), high - low);
  x0 = Math.min(Math.max((x0 + x1 - span) / 2, low), high - span);
  view.x0 = x0;
  view.x1 = x0 + span;
  redraw();
}

function showBytes(y0, y1) {
  const [low, high] = view.region;
  const span = Math.min(Math.max(y1 - y0, 256), high - low);
  y0 = Math.min(Math.max((y0 + y1 - span) / 2, low), high - span);
  view.y0 = y0;
  view.y1 = y0 + span;
  redraw();
}

function zoom(factor, at) {
  const center = at === undefined ? (view.x0 + view.x1) / 2 : at;
  showSteps(center - (center - view.x0) * factor, center + (view.x1 - center) * factor);
}

function zoomBytes(factor, at) {
  showBytes(at - (at - view.y0) * factor, at + (view.y1 - at) * factor);
}

function pan(fraction) {
  const by = (view.x1 - view.x0) * fraction;
  const span = view.x1 - view.x0;
  const x0 = Math.min(Math.max(view.x0 + by, view.limit[0]), view.limit[1] - span);
  showSteps(x0, x0 + span);
}

function choosePhase(value) {
  view.phase = value === "" ? null : Number(value);
  const phase = view.phase === null ? null : PHASES[view.phase];
  view.limit = phase ? [phase.start, phase.end] : [0, STEPS];
  view.step = null;
  const region = transientRegion(view.phase);
  view.most = region ? Math.max(region[1] - region[0], 1) : 1;
  if (control("region").value === "transient") chooseRegion("transient");
  chooseLayer(control("layer").value);
}

/** A layer is shown alone where the phase has it, and stands out everywhere. */
function chooseLayer(value) {
  view.layer = value === "" ? null : Number(value);
  const phase = view.phase === null ? PHASES[mainPhase()] : PHASES[view.phase];
  const span = view.layer === null ? null : phase.layers.find((s) => s.layer === view.layer);
  if (span && view.phase !== null) showSteps(span.start - 1, span.end + 1);
  else showSteps(view.limit[0], view.limit[1]);
}

function chooseRegion(value) {
  view.region = (value === "transient" ? transientRegion(view.phase) : REGIONS[value]) || REGIONS.arena;
  view.y0 = view.region[0];
  view.y1 = view.region[1];
  redraw();
}

function reset() {
  control("layer").value = "";
  control("search").value = "";
  view.search = "";
  chooseLayer("");
  chooseRegion(control("region").value);
}

/** The phase with the most transients: where memory is decided. */
function mainPhase() {
  const counts = PHASES.map((phase) => phase.name === "load" ? -1 : phase.ops.length);
  const named = PHASES.findIndex((phase) => phase.name === "prefill");
  return named >= 0 ? named : Math.max(0, counts.indexOf(Math.max(...counts)));
}

function liveAt(step) {
  const live = RECTANGLES.filter((r) => r.phase !== null && r.from <= step && r.to > step);
  return live.sort((a, b) => b.low - a.low);
}

/** Makes a step the current one: cursor, status line, table of what is live. */
function chooseStep(step) {
  const [low, high] = view.limit;
  view.step = Math.min(Math.max(Math.floor(step), low), high - 1);
  if (view.step < view.x0 || view.step + 1 > view.x1) {
    const half = (view.x1 - view.x0) / 2;
    showSteps(view.step - half, view.step + half);
  }
  const phase = phaseAt(view.step);
  const op = opAt(view.step);
  const live = liveAt(view.step);
  const where = phase.name + ", step " + (view.step - phase.start);
  const cost = op ? " · " + op.kind + " · " + count(op.flops) + " operations, " + size(op.bytes_moved)
    + " moved, limited by " + op.bound : "";
  liveTitle.textContent = "Live at " + where + (op ? ": " + op.name : "");
  status.textContent = where + (op ? ": " + op.name : "") + cost + " · " + live.length
    + " transients over " + size(COVERED[view.step]);
  liveBody.replaceChildren(...live.map(liveRow));
  redraw();
}

function liveRow(r) {
  const row = document.createElement("tr");
  const phase = PHASES[r.phase];
  const cells = [r.tensor.name, r.tensor.dtype + " " + r.tensor.shape.join("×"), size(r.tensor.bytes),
    count(r.low - REGIONS.transient[0]), (r.from - phase.start) + "–" + (r.to - 1 - phase.start),
    r.lanes(r.phase).join(", ")];
  cells.forEach((text, index) => {
    const cell = document.createElement(index === 0 ? "th" : "td");
    if (index === 0) cell.scope = "row";
    cell.textContent = text;
    row.append(cell);
  });
  if (r === view.selected) row.className = "selected";
  return row;
}

function select(r) {
  view.selected = r;
  if (r && r.phase !== null && view.step !== null) chooseStep(view.step);
  if (r) status.textContent = describe(r).join(" · ");
  redraw();
}

function stepsText(r) {
  if (r.phase === null) return "lives across phases";
  const phase = PHASES[r.phase];
  const name = (step) => step - phase.start + " " + phase.ops[step - phase.start].name;
  return phase.name + " steps " + name(r.from) + " – " + name(r.to - 1);
}

function describe(r) {
  const t = r.tensor;
  const phase = r.phase === null ? PHASES.indexOf(phaseAt(view.x0)) : r.phase;
  const lines = [t.name, t.dtype + " [" + t.shape.join(", ") + "] · " + size(t.bytes) + " (" + count(t.bytes) + " bytes)",
    "offset " + count(t.offset) + " – " + count(t.offset + t.bytes), stepsText(r),
    GROUPS[r.group] + " · " + t.residence + (t.buffer === null ? "" : " · buffer " + t.buffer)];
  const lanes = r.lanes(phase);
  if (lanes.length) lines.push("touched by lane " + lanes.join(", ") + " in " + PHASES[phase].name);
  return lines;
}

function describeTask(found) {
  const { task, lane, phase, op } = found;
  const lines = [op.name, op.kind + " · shard " + (task.shard + 1) + " of " + task.shards + " on lane " + lane,
    phase.name + " step " + task.op + " · " + count(op.flops) + " operations · " + size(op.bytes_moved) + " moved",
    "limited by " + op.bound];
  if (task.waits.length) lines.push("waits for event " + task.waits.join(", "));
  if (task.signals !== null) lines.push("signals event " + task.signals);
  return lines;
}

function showTip(lines, event) {
  tip.replaceChildren(...lines.map((text, index) => {
    const line = document.createElement(index === 0 ? "strong" : "div");
    line.textContent = text;
    return line;
  }));
  tip.hidden = false;
  const room = canvas.parentElement.getBoundingClientRect();
  const x = event.clientX - room.left;
  const y = event.clientY - room.top;
  const left = x + 14 + tip.offsetWidth > room.width ? Math.max(0, x - 14 - tip.offsetWidth) : x + 14;
  tip.style.left = left + "px";
  tip.style.top = Math.max(0, y + 16 + tip.offsetHeight > room.height ? y - 12 - tip.offsetHeight : y + 16) + "px";
}

function pointAt(event) {
  const bounds = canvas.getBoundingClientRect();
  return [event.clientX - bounds.left, event.clientY - bounds.top];
}

function hover(event) {
  const [x, y] = pointAt(event);
  const p = panels();
  const r = tensorAt(x, y, p);
  const found = r ? null : taskAt(x, y, p);
  if (r !== view.hovered) { view.hovered = r; redraw(); }
  if (r) showTip(describe(r), event);
  else if (found) showTip(describeTask(found), event);
  else tip.hidden = true;
}

const pointers = new Map();
let moved = 0;
function down(event) {
  canvas.setPointerCapture(event.pointerId);
  pointers.set(event.pointerId, pointAt(event));
  moved = 0;
}

function move(event) {
  if (!pointers.has(event.pointerId)) { hover(event); return; }
  const [x, y] = pointAt(event);
  const [px, py] = pointers.get(event.pointerId);
  const p = panels();
  if (pointers.size === 1) {
    moved += Math.abs(x - px) + Math.abs(y - py);
    const steps = (px - x) / (p.right - p.left) * (view.x1 - view.x0);
    pan(steps / (view.x1 - view.x0));
    const bytes = (y - py) / p.arena.height * (view.y1 - view.y0);
    const span = view.y1 - view.y0;
    const y0 = Math.min(Math.max(view.y0 + bytes, view.region[0]), view.region[1] - span);
    showBytes(y0, y0 + span);
    if (moved > 6) tip.hidden = true;
  } else {
    const other = [...pointers].find(([id]) => id !== event.pointerId)[1];
    const before = Math.max(10, Math.abs(px - other[0]));
    const after = Math.max(10, Math.abs(x - other[0]));
    zoom(before / after, stepOf((x + other[0]) / 2, p));
    moved += 10;
  }
  pointers.set(event.pointerId, [x, y]);
}

function up(event) {
  if (!pointers.delete(event.pointerId)) return;
  if (moved > 6) return;
  const [x, y] = pointAt(event);
  const p = panels();
  if (x < p.left) return;
  view.selected = tensorAt(x, y, p);
  chooseStep(stepOf(x, p));
  if (view.selected) status.textContent = describe(view.selected).join(" · ");
  if (event.pointerType !== "mouse") hover(event);
}

function wheel(event) {
  if (!event.ctrlKey && !event.metaKey && document.activeElement !== canvas) return;
  event.preventDefault();
  const [x, y] = pointAt(event);
  const p = panels();
  const factor = Math.exp(Math.max(-1, Math.min(1, event.deltaY / 300)));
  if (event.shiftKey) zoomBytes(factor, byteOf(y, p));
  else zoom(factor, stepOf(x, p));
}

function key(event) {
  const step = view.step === null ? Math.floor(view.x0) : view.step;
  const actions = {
    ArrowLeft: () => event.shiftKey ? pan(-0.25) : chooseStep(step - 1),
    ArrowRight: () => event.shiftKey ? pan(0.25) : chooseStep(view.step === null ? step : step + 1),
    ArrowUp: () => nextLive(-1),
    ArrowDown: () => nextLive(1),
    "+": () => zoom(0.6, view.step === null ? undefined : view.step + 0.5),
    "=": () => zoom(0.6, view.step === null ? undefined : view.step + 0.5),
    "-": () => zoom(1 / 0.6, view.step === null ? undefined : view.step + 0.5),
    Home: reset, "0": reset,
    Escape: () => { tip.hidden = true; view.selected = null; redraw(); },
  };
  if (!actions[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  actions[event.key]();
}

function nextLive(by) {
  const live = liveAt(view.step === null ? Math.floor(view.x0) : view.step);
  if (!live.length) return;
  const at = live.indexOf(view.selected);
  select(live[at < 0 ? 0 : (at + by + live.length) % live.length]);
}

function fill(id, options) {
  control(id).replaceChildren(...options.map(([value, text]) => new Option(text, value)));
}

function legend() {
  control("legend").replaceChildren(...Object.entries(GROUPS).map(([group, text]) => {
    const item = document.createElement("li");
    const swatch = document.createElement("span");
    swatch.className = "swatch";
    swatch.style.background = "var(--g-" + group + ")";
    item.append(swatch, text);
    return item;
  }));
}

function start() {
  readColours();
  fill("phase", PHASES.map((phase, index) => [index, phase.name]).concat([["", "all, in order"]]));
  const layers = [...new Set(PHASES.flatMap((phase) => phase.layers.map((s) => s.layer)))];
  const numbers = layers.filter((layer) => layer !== null).sort((a, b) => a - b);
  fill("layer", [["", "all"]].concat(numbers.map((layer) => [layer, "layer " + layer])));
  const regions = { transient: "transients", arena: "whole arena", weights: "weights",
    kv: "keys and values", persistent: "persistent" };
  fill("region", Object.entries(regions).filter(([name]) => REGIONS[name]));
  control("phase").value = String(mainPhase());
  control("phase").onchange = (event) => choosePhase(event.target.value);
  control("layer").onchange = (event) => chooseLayer(event.target.value);
  control("region").onchange = (event) => chooseRegion(event.target.value);
  control("search").oninput = (event) => { view.search = event.target.value.toLowerCase(); redraw(); };
  control("zoom-in").onclick = () => zoom(0.5);
  control("zoom-out").onclick = () => zoom(2);
  control("pan-left").onclick = () => pan(-0.5);
  control("pan-right").onclick = () => pan(0.5);
  control("reset").onclick = reset;
  canvas.addEventListener("pointerdown", down);
  canvas.addEventListener("pointermove", move);
  canvas.addEventListener("pointerup", up);
  canvas.addEventListener("pointercancel", (event) => pointers.delete(event.pointerId));
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; view.hovered = null; redraw(); });
  canvas.addEventListener("wheel", wheel, { passive: false });
  canvas.addEventListener("keydown", key);
  new ResizeObserver(redraw).observe(canvas);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); redraw(); });
  legend();
  chooseRegion(control("region").value);
  choosePhase(control("phase").value);
  document.getElementById("explorer").hidden = false;
}

start();
