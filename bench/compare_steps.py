#!/usr/bin/env python3
"""Decode steps beside llama.cpp's where steps are hard: deep, shared, disturbed, and how even.

One command for four questions, each answered by runs that alternate within a round, medians over
the rounds, llama.cpp with the better of its two attention settings:

    depth      tokens/s after `--depth` tokens: ours over the peer's, and what is kept of depth 0,
               beside what the bytes of a step allow (weights over weights and keys and values)
    together   `--sequences` sequences in one step over one alone
    disturbed  beside one process that never waits, so that with a lane on every processor one has
               to share: what is kept, and the 99th percentile of a step over the run's median
    evenness   coefficient of variation of the time of a step; the peer's over repeated single tokens

    bench/compare_steps.py --dctms target/release/dctms --llama-bench BIN MODEL [MODEL ...]
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from compare_llama import FLASH, peer_environment, program, rotated, run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dctms", type=program, required=True)
    parser.add_argument("--llama-bench", type=program, required=True)
    parser.add_argument("--peer-lib", type=Path, help="prepended to LD_LIBRARY_PATH for the peer")
    parser.add_argument("--depth", type=int, default=2000)
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--gen-tokens", type=int, default=320,
                        help="steps of a run; a 99th percentile wants some hundreds")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write everything that was measured here")
    parser.add_argument("models", type=Path, nargs="+")
    arguments = parser.parse_args()
    results = {}
    for model in arguments.models:
        rounds = []
        for number in range(arguments.rounds):
            rounds.append(measure(arguments, model, number))
            print(f"{model.name} round {number + 1} of {arguments.rounds}", file=sys.stderr)
        results[model.name] = rounds
        report(arguments, model, rounds)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0


def measure(arguments, model: Path, number: int) -> dict:
    """One round: every run once, each round beginning with another one."""
    runs = {
        "alone": lambda: ours(arguments, model),
        "deep": lambda: ours(arguments, model, "--depth", arguments.depth),
        "together": lambda: ours(arguments, model, "--sequences", arguments.sequences),
        "disturbed": lambda: disturbed(arguments, model),
    }
    for flash in FLASH.values():
        runs[f"peer_deep_{flash}"] = lambda flash=flash: peer_deep(arguments, model, flash)
        runs[f"peer_steps_{flash}"] = lambda flash=flash: peer_steps(arguments, model, flash)
    return {name: runs[name]() for name in rotated(list(runs), number)}


def disturbed(arguments, model: Path) -> dict:
    with busy_neighbour():
        return ours(arguments, model)


def peer_deep(arguments, model: Path, flash: str) -> dict:
    words = ["-p", 0, "-n", arguments.gen_tokens, "-d", arguments.depth, "-r", 1]
    return {"rate": peer(arguments, model, flash, words)[0]}


def peer_steps(arguments, model: Path, flash: str) -> dict:
    steps = peer(arguments, model, flash, ["-p", 0, "-n", 1, "-r", arguments.gen_tokens])
    times = [1 / rate for rate in steps]
    return {"cv": statistics.pstdev(times) / statistics.fmean(times)}


def ours(arguments, model: Path, *options) -> dict:
    words = [arguments.dctms, "bench", model, "--json", "--prompt-tokens", 16, "--repetitions", 1,
             "--gen-tokens", arguments.gen_tokens, "--lanes", arguments.threads, *options]
    report = json.loads(run(words, os.environ))
    return {
        "rate": report["decode_tokens_per_s"],
        "step_ms": report["step_ms"],
        "weight_bytes": report["weight_bytes_per_step"],
        "share_of_buffer_read": report["weight_share_of_buffer_read"] or float("nan"),
        "kv_bytes": report["kv_bytes_per_step"],
    }


def peer(arguments, model: Path, flash: str, words: list) -> list:
    """Tokens/s of each repetition."""
    environment = peer_environment(arguments)
    command = [arguments.llama_bench, "-m", model, "-t", arguments.threads, "-fa", flash,
               "-o", "json", *words]
    return json.loads(run(command, environment))[0]["samples_ts"]


@contextlib.contextmanager
def busy_neighbour():
    """One process that never waits."""
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        busy.kill()
        busy.wait()


def report(arguments, model: Path, rounds: list) -> None:
    def median(*path):
        def figure(measured):
            for key in path:
                measured = measured[key]
            return measured
        return statistics.median(figure(measured) for measured in rounds)

    peer_deep = max(median(f"peer_deep_{flash}", "rate") for flash in FLASH.values())
    peer_cv = min(median(f"peer_steps_{flash}", "cv") for flash in FLASH.values())
    alone, deep = median("alone", "rate"), median("deep", "rate")
    weights, kv = median("deep", "weight_bytes"), median("deep", "kv_bytes")
    disturbed = median("disturbed", "rate")
    tail = median("disturbed", "step_ms", "p99") / median("disturbed", "step_ms", "p50")
    cv = median("alone", "step_ms", "cv")
    print(f"{model.name}: {alone:.1f} tokens/s, weights at"
          f" {median('alone', 'share_of_buffer_read'):.2f} of a buffer's read bandwidth")
    print(f"  depth {arguments.depth}: {deep:.1f} tokens/s, peer {peer_deep:.1f},"
          f" ratio {deep / peer_deep:.2f}; kept {deep / alone:.2f} of {alone:.1f},"
          f" bytes allow {weights / (weights + kv):.2f}")
    together = median("together", "rate")
    print(f"  {arguments.sequences} together: {together:.1f} tokens/s, {together / alone:.2f} of one")
    print(f"  disturbed: {disturbed:.1f} tokens/s, kept {disturbed / alone:.2f};"
          f" p99 {tail:.2f} of the median")
    print(f"  evenness: CV {cv:.3f}, peer {peer_cv:.3f}")


if __name__ == "__main__":
    sys.exit(main())
