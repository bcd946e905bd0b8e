"""Pictures of one request beside the answer of another: what `overlap.py` measures as (c).

Two processes stand ready with one plan each, mode serial and mode overlapped; batches of the same
requests go to one and then to the other, who begins alternating. A batch is timed from outside, from
its first line in to its last line out. Each request shows one picture of the largest tile and wants
an answer longer than that tile takes beside it, so the longest gap between two tokens is that of an
answer while a maximum picture arrives.
"""

import json
import math
import statistics
import struct
import subprocess
import tempfile
import time
import zlib
from pathlib import Path

MODES = ["serial", "overlapped"]
# What must be the same in every batch.
ANSWER = ["tokens", "logits_sha256", "finish"]


def picture(side: int) -> bytes:
    """A PNG of waves and noise."""

    def chunk(name, body):
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    def pixel(x, y, c):
        return (x * 7 + y * 13 + c * 41 + x * y // 16 + ((x * 73) ^ (y * 193) ^ (c * 834)) % 61) & 255

    rows = (bytes(pixel(x, y, c) for x in range(side) for c in range(3)) for y in range(side))
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + row for row in rows), 1)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


class Process:
    """`dctms run --requests -` in a mode, ready."""

    def __init__(self, words: list[str]):
        self.words = words
        self.child = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def ask(self, lines: list[str]) -> tuple[float, list[dict]]:
        """Seconds of all, and the answers."""
        start = time.monotonic()
        self.child.stdin.write("".join(line + "\n" for line in lines))
        self.child.stdin.flush()
        answers = [json.loads(self.child.stdout.readline()) for _ in lines]
        seconds = time.monotonic() - start
        for answer in answers:
            assert "error" not in answer, answer
            assert answer["peak_bytes"] <= answer["m_max_bytes"], "the envelope was passed"
        return seconds, answers

    def end(self):
        self.child.stdin.close()
        assert self.child.wait() == 0


def measure(args, name: str, text: str, mmproj: str, kept: list[dict]) -> dict:
    """Pairs until there are enough or the time is over, on top of those that were kept."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "picture.png"
        path.write_bytes(picture(args.side))
        line = json.dumps({"prompt": "Describe it.", "images": [str(path)], "max_tokens": args.tokens})
        words = [text, "--mmproj", mmproj, "--max-image-size", str(args.side), "--lanes"]
        words += [str(args.lanes), "--max-output", str(args.tokens)]
        words += ["--machine", args.machine] if args.machine else []

        def process(mode: str, more: list[str]) -> Process:
            own = ["--ignore-eos", "--logits-sha", "--requests", "-", "--mode", mode]
            return Process([args.dctms, "run", *words, *own, *more])

        # The bound of the input is the prompt, so that the plan expects this very prompt.
        first = process("serial", ["--max-input", "4000"])
        _, (answer,) = first.ask([json.dumps(json.loads(line) | {"max_tokens": 1})])
        first.end()
        bound = ["--max-input", str(answer["prompt_tokens"])]
        ready = {mode: process(mode, bound) for mode in MODES}
        for one in ready.values():
            one.ask([line])
        pairs = list(kept)
        while len(pairs) < args.repetitions and time.monotonic() - begun < args.seconds:
            pair = {}
            for mode in MODES[:: 1 if len(pairs) % 2 else -1]:
                seconds, answers = ready[mode].ask([line] * args.batch)
                beside = [answer for answer in answers if answer.get("beside")] or answers
                pair[mode] = {
                    "seconds": seconds,
                    "gaps_ms": [answer["gap_ms"] for answer in beside],
                    "step_p50_ms": [answer["step_ms"]["p50"] for answer in beside],
                    "steps": sum(answer.get("beside", {}).get("steps", 0) for answer in answers),
                    "tiles": sum(answer.get("beside", {}).get("tiles", 0) for answer in answers),
                    "answer": [[answer[key] for key in ANSWER] for answer in answers],
                }
            assert pair["serial"].pop("answer") == pair["overlapped"].pop("answer"), "answers differ"
            pairs.append(pair)
        for one in ready.values():
            one.end()
        plan = [args.dctms, "plan", *words, *bound, "--mode", "overlapped"]
        image = answer["images"][0]
        shape = {"tiles": image["tiles"], "tokens": image["tokens"], "prompt": answer["prompt_tokens"]}
        expected = expectation(args, plan, shape)
    report = {"name": name, "request": "(c)", "pairs": pairs, "shape": shape, "expected": expected}
    return report | figures(pairs, expected)


def expectation(args, plan: list[str], shape: dict) -> dict:
    """What the plan says of a batch: phases one after the other, or as streams run them."""
    told = json.loads(subprocess.run([*plan, "--json"], capture_output=True, text=True, check=True).stdout)

    def seconds(phase: str, tokens=None) -> float:
        known = [one for one in told["predictions"] if one["phase"] == phase]
        known = [one for one in known if tokens in (None, one["tokens"])] or known
        # Of a step at no depth and one at the greatest, the middle.
        return sum(one["nanoseconds"] for one in known) / len(known) / 1e9

    sample, prefill = seconds("sample"), seconds("prefill", shape["prompt"])
    tile, step = seconds("vision"), seconds("decode") + sample
    long, short = seconds("vision.beside"), seconds("decode.beside") + sample
    whole = shape["tiles"] * max(one["tokens"] for one in told["predictions"] if one["phase"] == "vision")
    serial = args.batch * (shape["tiles"] * tile + prefill + sample + (args.tokens - 1) * step)
    overlapped = 0.0
    for index in range(args.batch):
        overlapped += prefill + sample + (shape["tiles"] * tile if index == 0 else 0)
        left = args.tokens - 1
        for _ in range(shape["tiles"] if index + 1 < args.batch else 0):
            steps = min(left, math.ceil(long / short))
            overlapped += max(long, steps * short) if left else tile
            left -= steps
        overlapped += left * step
    gap = told.get("gap", {})
    return {
        "serial_s": serial, "overlapped_s": overlapped, "gain_percent": 100 * (1 - overlapped / serial),
        "gap_ms": gap.get("expected_ns", 0) / 1e6,
        "gap_bound_ms": gap.get("bound_ns", 0) / 1e6,
        # The plan speaks of the largest tile: is this one?
        "is_largest": whole == shape["tokens"],
    }


def figures(pairs: list[dict], expected: dict) -> dict:
    gains = sorted(100 * (1 - pair["overlapped"]["seconds"] / pair["serial"]["seconds"]) for pair in pairs)
    rank, confidence = interval(len(gains))
    result = {"gain_percent": [statistics.median(gains), gains[rank], gains[-1 - rank]]}
    result["confidence_percent"] = confidence
    for mode in MODES:
        seconds = statistics.median(pair[mode]["seconds"] for pair in pairs)
        gaps = sorted(gap for pair in pairs for gap in pair[mode]["gaps_ms"])
        steps = [step for pair in pairs for step in pair[mode]["step_p50_ms"]]
        off = 100 * (expected[f"{mode}_s"] / seconds - 1)
        result[mode] = {"seconds": seconds, "off_percent": off, "gap_ms": [statistics.median(gaps), gaps[-1]]}
        result[mode] |= {"answers": len(gaps), "step_p50_ms": statistics.median(steps)}
        result[mode]["tiles"] = sum(pair[mode]["tiles"] for pair in pairs)
    return result


def interval(count: int) -> tuple[int, float]:
    """The narrowest interval of order statistics about the median that is 95 % sure, else all."""
    outside, rank, sure = 0.0, 0, 100 * (1 - 2 * 0.5**count)
    for index in range((count - 1) // 2 + 1):
        outside += math.comb(count, index) * 0.5**count
        if 1 - 2 * outside < 0.95:
            break
        rank, sure = index, 100 * (1 - 2 * outside)
    return rank, sure


def show(report: dict) -> str:
    serial, overlapped, expected = report["serial"], report["overlapped"], report["expected"]
    gain, shape = report["gain_percent"], report["shape"]
    named = f"(c) {shape['tiles']} tile of {shape['tokens']} tokens beside an answer"
    gap = f"{expected['gap_ms']:.1f}, at most {expected['gap_bound_ms']:.1f} ms"
    largest = "" if expected["is_largest"] else " (of a larger tile)"
    return (
        f"| {report['name']} | {named} | {serial['seconds']:.3f} | {overlapped['seconds']:.3f} | "
        f"{gain[0]:.2f} ({gain[1]:.2f} to {gain[2]:.2f}, {report['confidence_percent']:.1f} % sure, "
        f"n = {len(report['pairs'])}) | {expected['serial_s']:.3f}, {serial['off_percent']:+.1f} %"
        f"{largest} | {expected['overlapped_s']:.3f}, {overlapped['off_percent']:+.1f} %{largest} | "
        f"{expected['gain_percent']:.2f} |\n"
        f"  longest gap between tokens of an answer: beside {overlapped['tiles']} tiles median "
        f"{overlapped['gap_ms'][0]:.1f}, most {overlapped['gap_ms'][1]:.1f} ms of "
        f"{overlapped['answers']} answers (steps {overlapped['step_p50_ms']:.1f} ms), expected {gap}; "
        f"serial median {serial['gap_ms'][0]:.1f}, most {serial['gap_ms'][1]:.1f} ms (steps "
        f"{serial['step_p50_ms']:.1f} ms)"
    )
