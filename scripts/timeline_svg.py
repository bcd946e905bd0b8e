#!/usr/bin/env python3
"""Draws what the lanes did from a trace of `dctms run --trace`, one row a lane, as SVG.

    scripts/timeline_svg.py TRACE.json OUT.svg

Colours tell streams: vision, prefill, decode with sampling. Operations of one stream that follow
each other are one bar; where a lane waited for longer than a pixel, the row is grey. Loading is
left out.
"""

import json
import sys

COLOURS = {"vision": "#3b7dd8", "prefill": "#e08a1e", "decode": "#3f9b57"}
WIDTH, LEFT, ROW, GAP = 960, 60, 34, 14


def stream_of(event):
    """The stream of an operation: its phase, or in a region the first part of its name."""
    phase = event["args"]["phase"]
    name = event["name"].split(".")[0] if "+" in phase else phase
    return {"sample": "decode"}.get(name.split(".")[0], name.split(".")[0])


def bars(events, pixel):
    """(start, end, stream, phase and step) of runs of operations of one stream."""
    merged = []
    for event in sorted(events, key=lambda event: event["ts"]):
        start, end = event["ts"], event["ts"] + event["dur"]
        key = (stream_of(event), event["args"]["phase"], event["args"]["step"])
        if merged and merged[-1][2] == key and start - merged[-1][1] < pixel:
            merged[-1][1] = end
        else:
            merged.append([start, end, key])
    return merged


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        trace = json.load(file)
    work = [event for event in trace["traceEvents"]
            if event.get("cat") == "work" and not event["args"]["phase"].startswith("load")]
    lanes = sorted({event["tid"] for event in work})
    first = min(event["ts"] for event in work)
    last = max(event["ts"] + event["dur"] for event in work)
    scale = (WIDTH - LEFT - 10) / (last - first)
    height = 40 + len(lanes) * (ROW + GAP) + 50
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
           'font-family="sans-serif" font-size="12">',
           f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>']
    x = LEFT
    for stream, colour in COLOURS.items():
        out.append(f'<rect x="{x}" y="10" width="12" height="12" fill="{colour}"/>'
                   f'<text x="{x + 17}" y="20">{stream}</text>')
        x += 90
    out.append(f'<rect x="{x}" y="10" width="12" height="12" fill="#d8d8d8"/>'
               f'<text x="{x + 17}" y="20">waiting</text>')
    for row, lane in enumerate(lanes):
        y = 40 + row * (ROW + GAP)
        out.append(f'<text x="8" y="{y + ROW / 2 + 4}">lane {lane}</text>'
                   f'<rect x="{LEFT}" y="{y}" width="{(last - first) * scale:.1f}" '
                   f'height="{ROW}" fill="#d8d8d8"/>')
        own = [event for event in work if event["tid"] == lane]
        for start, end, (stream, phase, step) in bars(own, 1 / scale):
            left, width = LEFT + (start - first) * scale, max((end - start) * scale, 0.4)
            out.append(f'<rect x="{left:.1f}" y="{y}" width="{width:.1f}" height="{ROW}" '
                       f'fill="{COLOURS.get(stream, "#888888")}"><title>{stream} in {phase}, run '
                       f'{step}: {(end - start) / 1e3:.1f} ms</title></rect>')
    # Where runs of phases begin: a line over all lanes, and the phase's name below.
    y = 40 + len(lanes) * (ROW + GAP)
    runs, drawn = {}, -100
    for event in work:
        key = (event["args"]["phase"], event["args"]["step"])
        runs[key] = min(runs.get(key, last), event["ts"])
    for (phase, _), start in sorted(runs.items(), key=lambda item: item[1]):
        left = LEFT + (start - first) * scale
        out.append(f'<line x1="{left:.1f}" y1="34" x2="{left:.1f}" y2="{y - GAP + 4}" '
                   'stroke="#000000" stroke-width="0.7"/>')
        if left - drawn > 85:
            out.append(f'<text x="{left:.1f}" y="{y + 8}" font-size="11">{phase}</text>')
            drawn = left
    for tick in range(6):
        time = (last - first) * tick / 5
        out.append(f'<text x="{LEFT + time * scale:.1f}" y="{y + 32}" text-anchor="middle" '
                   f'font-size="11" fill="#555555">{time / 1e6:.2f} s</text>')
    out.append("</svg>")
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        file.write("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
