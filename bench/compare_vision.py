#!/usr/bin/env python3
"""A question about a picture, ours beside llama.cpp's multimodal tool: same files, same picture,
same words, alternating in one run.

Each round starts both programs once. Compared are the whole question from start to end (loading,
picture, prompt, answer), the processor time that it took, and the encoding of the picture as each
program states it. Processor time stands still while others run, so on a shared machine it is the
figure to trust; ratios above 1 are in our favour.

    bench/compare_vision.py --dctms target/release/dctms --mtmd-cli BIN TEXT.gguf VISION.gguf IMAGE

`--peer-lib DIR` is where the peer's shared libraries are, if not found anyway.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from compare_llama import peer_environment

FIGURES = ["wall_s", "processor_s", "encode_s"]
ENCODED = re.compile(r"(?:encoding done|encoded|slice encoded) in (\d+) ms")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dctms", type=Path, required=True)
    parser.add_argument("--mtmd-cli", type=Path, required=True)
    parser.add_argument("--peer-lib", type=Path, help="prepended to LD_LIBRARY_PATH for the peer")
    parser.add_argument("--prompt", default="What is this?")
    parser.add_argument("--tokens", type=int, default=16, help="of the answer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--mode", default="serial", help="of our plan")
    parser.add_argument("--json", type=Path, help="write everything that was measured here")
    parser.add_argument("text", type=Path)
    parser.add_argument("vision", type=Path)
    parser.add_argument("image", type=Path)
    arguments = parser.parse_args()
    sides = {"ours": [], "peer": []}
    for number in range(arguments.rounds):
        for name, side in [("ours", ours), ("peer", peer)]:
            sides[name].append(side(arguments))
        shown = "  ".join(
            f"{name} " + " ".join(f"{figure} {rows[-1][figure]:.2f}" for figure in FIGURES)
            for name, rows in sides.items()
        )
        print(f"round {number + 1}: {shown}", file=sys.stderr, flush=True)
    print(f"{arguments.text.name} with {arguments.vision.name}, {arguments.threads} threads")
    print(f"{'':14}{'ours':>10}{'peer':>10}{'peer/ours':>11}   by round")
    for figure in FIGURES:
        [mine, theirs] = [statistics.median(row[figure] for row in rows) for rows in sides.values()]
        rounds = [b[figure] / a[figure] for a, b in zip(sides["ours"], sides["peer"])]
        shown = " ".join(f"{ratio:.2f}" for ratio in rounds)
        print(f"{figure:14}{mine:10.2f}{theirs:10.2f}{theirs / mine:11.2f}   {shown}")
    if arguments.json:
        arguments.json.write_text(json.dumps(sides, indent=1) + "\n")
    return 0


def ours(arguments) -> dict:
    words = [arguments.dctms, "run", arguments.text, "--mmproj", arguments.vision]
    words += ["--image", arguments.image, "-p", arguments.prompt, "-n", arguments.tokens]
    words += ["--ignore-eos", "--json", "--lanes", arguments.threads, "--mode", arguments.mode]
    figures, output, _ = measured(words, os.environ)
    report = json.loads(output)
    return figures | {
        "encode_s": sum(image["encode_ms"] for image in report["images"]) / 1000,
        "prompt_tokens": report["prompt_tokens"],
        "peak_bytes": report["peak_bytes"],
        "m_max_bytes": report["m_max_bytes"],
    }


def peer(arguments) -> dict:
    environment = peer_environment(arguments)
    words = [arguments.mtmd_cli, "-m", arguments.text, "--mmproj", arguments.vision]
    words += ["--image", arguments.image, "-p", arguments.prompt, "-n", arguments.tokens]
    words += ["--ignore-eos", "--temp", 0, "-t", arguments.threads, "--no-warmup"]
    figures, output, said = measured(words, environment)
    encoded = [int(found) for found in ENCODED.findall(output + said)]
    if not encoded:
        sys.exit(f"the peer does not say how long it encoded:\n{said[-2000:]}")
    return figures | {"encode_s": sum(encoded) / 1000}


def measured(words: list, environment) -> tuple[dict, str, str]:
    """Runs a program to its end; what it took, and what it wrote."""
    words = [str(word) for word in words]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        start = time.monotonic()
        child = subprocess.Popen(words, env=environment, stdout=out, stderr=err)
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.monotonic() - start
        child.returncode = os.waitstatus_to_exitcode(status)
        texts = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read())
    if child.returncode != 0:
        sys.exit(f"{' '.join(words)}: exit code {child.returncode}\n{texts[1][-2000:]}")
    figures = {
        "wall_s": seconds,
        "processor_s": usage.ru_utime + usage.ru_stime,
        "peak_rss_bytes": usage.ru_maxrss * 1024,
    }
    return figures, texts[0], texts[1]


if __name__ == "__main__":
    sys.exit(main())
