#!/usr/bin/env python3
"""Gaps between tokens while pictures arrive: what the plan says beside what is measured.

    bench/gap.py --dctms PATH --machine profile.json --requests FILE TEXT.gguf MMPROJ.gguf \
        [--repetitions N] [-- WORDS OF run AND plan]

`dctms plan` states the gap that is expected and the one that none is to pass; then the requests are
answered in mode overlapped, and every answer tells its longest gap, and the mean of those that
were beside a tile. `off` is the expected gap by that mean; `held` says whether the longest of all
is within the bound. Make the profile in the same minute (`dctms doctor --machine-out`): bandwidth
of shared machines changes.
"""

import argparse
import json
import subprocess
import sys


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("text")
    parser.add_argument("mmproj")
    parser.add_argument("words", nargs="*", help="further options of both commands")
    parser.add_argument("--dctms", default="dctms")
    parser.add_argument("--machine", required=True)
    parser.add_argument("--requests", required=True)
    parser.add_argument("--repetitions", type=int, default=3)
    args = parser.parse_args()
    both = [args.text, "--mmproj", args.mmproj, "--mode", "overlapped"] + args.words
    plan = json.loads(run([args.dctms, "plan", "--json", "--machine", args.machine] + both))
    gap = {key: value / 1e6 for key, value in plan["gap"].items() if key.endswith("_ns")}
    gaps, steps, total, tiles = [], [], 0.0, 0
    for _ in range(args.repetitions):
        words = ["--ignore-eos", "--requests", args.requests]
        for line in run([args.dctms, "run"] + both + words).splitlines():
            answer = json.loads(line)
            assert "error" not in answer, answer
            assert answer["peak_bytes"] <= answer["m_max_bytes"], "the envelope was passed"
            gaps.append(answer["gap_ms"])
            beside = answer.get("beside")
            if beside:
                steps.append(beside["steps"])
                total += beside["steps"] * beside["step_ms"]
                tiles += beside["tiles"]
    mean = total / max(sum(steps), 1)
    held = max(gaps) <= gap["bound_ns"]
    print(f"expected {gap['expected_ns']:.2f} ms; {sum(steps)} gaps beside {tiles} tiles, mean "
          f"{mean:.2f} ms, off {100 * (gap['expected_ns'] / mean - 1):+.1f} %")
    print(f"bound {gap['bound_ns']:.2f} ms; longest of {len(gaps)} answers {max(gaps):.2f} ms: "
          f"{'held' if held else 'PASSED'}")
    sys.exit(not held)


if __name__ == "__main__":
    main()
