#!/usr/bin/env python3
"""Asks a process a thousand mixed questions and holds every answer against a fresh process.

For each model, each mode and each setting one process is asked the same seeded requests: texts, one
picture, several, in four formats, of one pixel, of extreme shape, of exactly as many patches as a
member of the family of plans takes, one token more and one less, over the bound (refused, or made
smaller), and requests that are none. What must hold, seen from outside:

- the peak (VmHWM) is at most M_max, and nothing anonymous changes by a page between two answers;
- an answer has the tokens and the digest of logits that a fresh process in mode serial gives for
  that request alone; a refusal is the same refusal;
- a tile runs in the smallest plan that it fits, and every plan that encodes tiles ran at least once.

    scripts/mixed_requests.py DCTMS [--requests 1000] [--mode serial ...] [--least 0.95]
        [--model NAME=TEXT.gguf,VISION.gguf,PATCH,MERGE,BOUND,MAX_INPUT ...]

Without a model: the tiny ones of tests/fixtures, one of each projector. Needs Pillow for other
formats than PNG.
"""

import argparse
import json
import math
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from flat_requests import BROKEN, Image, png, status_of

FIXTURES = Path(__file__).resolve().parent.parent / "tests" / "fixtures"
MODES = ["serial", "overlapped", "phase-resident"]
# What is bounded and how tokens are picked: each process has one of these.
SETTINGS = {
    "greedy, refused": [],
    "sampled, resized": [
        "--oversize", "resize", "--temp", "0.9", "--top-p", "0.95", "--seed", "5",
        "--repeat-penalty", "1.1",
    ],
}
TINY = [("vision-idefics3", 8, 4, 150), ("vision-lfm2", 14, 2, 460), ("vision-qwen25vl", 4, 2, 256)]
IMAGES_MAX = 3
CHUNK = 64
SEED = 11


@dataclass(frozen=True)
class Model:
    name: str
    text: Path
    vision: Path
    patch: int
    merge: int
    bound: int
    max_input: int

    def words(self, setting: str, tokens: int) -> list[str]:
        words = [str(self.text), "--mmproj", str(self.vision), "--max-images", str(IMAGES_MAX)]
        words += ["--max-image-size", str(self.bound), "--max-input", str(self.max_input)]
        words += ["--max-output", str(tokens), "--prefill-chunk", str(CHUNK), "--lanes", "2"]
        return words + ["--ignore-eos", *SETTINGS[setting]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dctms")
    words = "NAME=TEXT,VISION,PATCH,MERGE,BOUND,INPUT"
    parser.add_argument("--model", action="append", default=[], metavar=words)
    parser.add_argument("--requests", type=int, default=1000, help="of all processes together")
    parser.add_argument("--mode", action="append", choices=MODES)
    parser.add_argument("--tokens", type=int, default=24, help="of an answer at most")
    parser.add_argument("--least", type=float, default=0.0, help="share of M_max that is reached")
    arguments = parser.parse_args()
    models = [model_of(word) for word in arguments.model] or [
        Model(name, FIXTURES / f"{name}-text-f16.gguf", FIXTURES / f"{name}-mmproj-f16.gguf", patch,
              merge, bound, 2600)
        for name, patch, merge, bound in TINY
    ]
    modes = arguments.mode or MODES
    each = math.ceil(arguments.requests / (len(models) * len(modes) * len(SETTINGS)))
    if Image is None:
        print("without Pillow all pictures are PNG", file=sys.stderr)
    total, held = Counter(), True
    for index, model in enumerate(models):
        with tempfile.TemporaryDirectory() as folder:
            members, least = members_of(arguments.dctms, model)
            pictures = make_pictures(Path(folder), model, members)
            ran, largest = {mode: set() for mode in modes}, 0
            for setting in SETTINGS:
                draw = random.Random(f"{SEED} {index} {setting}")
                requests = [request(draw, pictures, arguments.tokens) for _ in range(each)]
                alone = {}
                for mode in modes:
                    one = Watched(arguments, model, mode, setting)
                    held &= one.run(requests, alone, members)
                    total += one.total
                    ran[mode] |= set(one.plans)
                    largest = max(largest, one.largest)
        for mode in modes:
            wanted = {"vision", *(f"vision@{member}" for member in members)}
            if mode == "overlapped":
                wanted |= {"vision.beside"} | ({"vision+prefill"} if largest >= least else set())
            if missing := wanted - ran[mode]:
                print(f"{model.name}, {mode}: {', '.join(sorted(missing))} never ran", file=sys.stderr)
                held = False
    print(f"{total['requests']} requests, {total['refused']} refused, {total['fresh']} fresh "
          f"processes to compare with; {total['wrong']} answers differ")
    return 0 if held else 1


def model_of(word: str) -> Model:
    name, rest = word.split("=", 1)
    text, vision, *numbers = rest.split(",")
    return Model(name, Path(text), Path(vision), *map(int, numbers))


def members_of(dctms: str, model: Model) -> tuple[list[int], int]:
    """Patches of the smaller members of the family, and of the least tile beside a chunk."""
    words = [dctms, "plan", *model.words("greedy, refused", 8), "--mode", "overlapped", "--json"]
    words.remove("--ignore-eos")
    plan = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    names = [phase["name"] for phase in plan["phases"]]
    members = sorted(int(name.split("@")[1]) for name in names if name.startswith("vision@"))
    return members, max((region["least_patches"] for region in plan["regions"]), default=0)


def make_pictures(folder: Path, model: Model, members: list[int]) -> dict[str, list[Path]]:
    """Pictures by kind: those that are looked at, larger ones, and files that are none."""
    draw = random.Random(SEED)
    bound, edge = model.bound, model.patch * model.merge
    sizes = [(1, 1), (bound, bound), (bound, 1), (1, bound), (bound, 2), (edge, edge)]
    sizes += [(bound, max(1, bound // 200)), (max(1, bound // 190), bound)]
    for patches in members:
        tokens = patches // model.merge**2
        rows = next(rows for rows in range(math.isqrt(tokens), 0, -1) if tokens % rows == 0)
        sizes += [((tokens // rows + more) * edge, rows * edge) for more in (-1, 0, 1)]
    sizes += [(draw.randint(1, bound), draw.randint(1, bound)) for _ in range(14)]
    over = [(bound + 1, bound), (2 * bound - 3, bound + 7), (2 * bound, 2 * bound)]
    over += [(2 * bound + 1, 5), (3 * bound, 3 * bound)]
    kinds = ["png", "jpg", "webp", "gif"] if Image else ["png"]

    def make(index: int, size: tuple[int, int]) -> Path:
        width, height = size
        path = folder / f"{index}-{width}x{height}.{kinds[index % len(kinds)]}"
        rows = [draw.randbytes(3 * width) for _ in range(min(height, 64))]
        rows = [rows[y * len(rows) // height] for y in range(height)]
        if path.suffix == ".png":
            path.write_bytes(png(width, rows))
        else:
            image = Image.frombytes("RGB", size, b"".join(rows))
            image.save(path, **({"progressive": index % 8 == 1} if path.suffix == ".jpg" else {}))
        return path

    fitting = [size for size in sizes if max(size) <= bound and size[0] * size[1] <= bound**2]
    seen = [make(index, size) for index, size in enumerate(fitting)]
    larger = [make(100 + index, size) for index, size in enumerate(over)]
    none = [folder / "broken.png", folder / "cut.png", folder / "missing.png", folder]
    none[0].write_bytes(BROKEN)
    none[1].write_bytes(seen[1].read_bytes()[:-40])
    return {"seen": seen, "larger": larger, "none": none}


def request(draw: random.Random, pictures: dict[str, list[Path]], tokens: int) -> str:
    """A line. Long texts stand before some pictures, so that chunks are ready beside tiles."""
    words = " ".join(draw.choice(["what", "is", "it", "sea", "é", "7"]) for _ in range(9))
    text = draw.choice(["", words, words * 3, words * 8])
    body = {"max_tokens": draw.randint(1, tokens)}
    path = lambda kind: str(draw.choice(pictures[kind]))
    match draw.choices(["text", "one", "several", "larger", "none", "wrong"], [4, 9, 5, 3, 1, 1])[0]:
        case "text":
            body["prompt"] = text + "?"
        case "one":
            body |= {"prompt": text + "?", "images": [path("seen")]}
        case "several":
            parts = [{"type": "text", "text": text + ":"}]
            for _ in range(draw.randint(2, IMAGES_MAX)):
                parts += [{"type": "image", "image": path("seen")}, {"type": "text", "text": "and"}]
            body["messages"] = [{"role": "user", "content": parts}]
        case "larger":
            body |= {"prompt": text + "?", "images": [path("larger")]}
        case "none":
            body |= {"prompt": "?", "images": [path("seen"), path("none")]}
        case "wrong":
            body |= draw.choice([
                {"prompt": text * 40 + "too long " * 400},
                {"prompt": "?", "images": [path("seen")] * (IMAGES_MAX + 1)},
                {"prompt": "?", "max_tokens": tokens + 1},
                {"prompt": "?", "image": "misspelt"},
            ])
    return json.dumps(body)


class Watched:
    """A process that is asked and looked at."""

    def __init__(self, arguments, model: Model, mode: str, setting: str):
        self.arguments, self.model, self.mode, self.setting = arguments, model, mode, setting
        self.total, self.plans, self.complaints = Counter(), Counter(), []
        self.largest = 0

    def words(self, mode: str) -> list[str]:
        own = self.model.words(self.setting, self.arguments.tokens)
        return [self.arguments.dctms, "run", *own, "--logits-sha", "--mode", mode]

    def run(self, requests: list[str], alone: dict[str, dict], members: list[int]) -> bool:
        start = time.monotonic()
        child = subprocess.Popen(
            [*self.words(self.mode), "--requests", "-"], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1,
        )
        # Most requests stand in the pipe while the one before is answered, a few come after it.
        draw = random.Random(SEED)
        answers, anonymous, sent = [], [], 0
        while len(answers) < len(requests):
            ahead = 1 if draw.random() < 0.3 else 2
            while sent < min(len(answers) + ahead, len(requests)):
                child.stdin.write(requests[sent] + "\n")
                sent += 1
            line = child.stdout.readline()
            if not line:
                self.complaints.append(f"the process ended: {child.stderr.read().strip()}")
                break
            answers.append(json.loads(line))
            status = status_of(child.pid)
            anonymous.append(status["RssAnon"] + status["VmSwap"])
        peak = status_of(child.pid)["VmHWM"] if answers else 0
        child.stdin.close()
        if child.wait() != 0:
            self.complaints.append(f"exit code {child.returncode}")
        for line, answer in zip(requests, answers):
            self.compare(line, answer, alone, members)
        m_max = {answer["m_max_bytes"] for answer in answers if "m_max_bytes" in answer}
        share = peak / min(m_max, default=1)
        if not self.arguments.least <= share <= 1:
            self.complaints.append(f"peak {peak} of M_max {m_max}")
        if len(set(anonymous)) > 1:
            self.complaints.append(f"anonymous {sorted(set(anonymous))} bytes")
        plans = ", ".join(f"{count} {plan}" for plan, count in sorted(self.plans.items()))
        print(f"{self.model.name}, {self.mode}, {self.setting}: {len(answers)} requests, "
              f"{self.total['refused']} refused, tiles by plan: {plans}; anonymous "
              f"{min(anonymous)} to {max(anonymous)} bytes, peak {peak} of M_max {min(m_max)} "
              f"({share:.4f}), {time.monotonic() - start:.0f} s", flush=True)
        for complaint in self.complaints:
            print(f"  not as promised: {complaint}", file=sys.stderr)
        return not self.complaints

    def compare(self, line: str, answer: dict, alone: dict[str, dict], members: list[int]):
        self.total["requests"] += 1
        if line not in alone:
            done = subprocess.run(
                [*self.words("serial"), "--requests", "-"], input=line + "\n", text=True,
                capture_output=True, check=True,
            )
            alone[line] = json.loads(done.stdout)
            self.total["fresh"] += 1
        keys = ["text", "tokens", "finish", "logits_sha256", "prompt_tokens", "error"]
        if wrong := [key for key in keys if answer.get(key) != alone[line].get(key)]:
            self.total["wrong"] += 1
            self.complaints.append(f"{line}: {wrong} of {answer} and not of {alone[line]}")
        self.total["refused"] += "error" in answer
        for image in answer.get("images", []):
            self.plans += Counter(image["plans"])
            if sum(image["plans"].values()) != image["tiles"]:
                self.complaints.append(f"{image}: not a plan for each tile")
            patches = image["tokens"] // image["tiles"] * self.model.merge**2
            self.largest = max(self.largest, patches)
            fits = [f"vision@{member}" for member in members if patches <= member]
            others = {(fits or ["vision"])[0], "vision.beside", "vision+prefill"}
            if image["tiles"] == 1 and not set(image["plans"]) <= others:
                self.complaints.append(f"{image}: not the smallest plan that it fits, {others}")


if __name__ == "__main__":
    sys.exit(main())
