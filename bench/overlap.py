#!/usr/bin/env python3
"""Measures tiles beside chunks, and beside answers, against one step after the other.

    bench/overlap.py --dctms PATH --machine profile.json [--repetitions N] [--json FILE] \
        [--cases abc] [--seconds S] NAME=TEXT.gguf,MMPROJ.gguf ...

Requests (a) and (b) are one `dctms bench --mmproj` run each: both ways in one process and under one
plan, in turns, who begins alternating too. (a): 512 tokens of text before a picture of two tiles,
chunks of 256; (b): a picture of four tiles, chunks of one tile's tokens. (c) is pictures of requests
beside answers of others: see beside.py. The gain is the median of pairs with its interval of order
statistics; `off` is the expected time by the measured one.

(c) can be measured in slices of --seconds: pairs in the file of --json are kept, and more are added
until there are --repetitions.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import beside


def run(args, text, mmproj, words):
    command = [args.dctms, "bench", text, "--mmproj", mmproj, "--json"]
    command += ["--repetitions", str(args.repetitions), "--lanes", str(args.lanes)]
    command += ["--machine", args.machine] if args.machine else []
    done = subprocess.run(command + words, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command + words)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="+", metavar="NAME=TEXT,MMPROJ")
    parser.add_argument("--dctms", default="dctms")
    parser.add_argument("--machine", help="the rates that times are expected by")
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument("--lanes", type=int, default=2)
    parser.add_argument("--json", help="every report, in one file")
    parser.add_argument("--cases", default="abc", help="of a, b and c")
    parser.add_argument("--side", type=int, default=512, help="of the picture of (c), pixels")
    parser.add_argument("--tokens", type=int, default=128, help="of each answer of (c)")
    parser.add_argument("--batch", type=int, default=4, help="requests of (c) at once")
    parser.add_argument("--seconds", type=float, default=1e9, help="that (c) may take now")
    args = parser.parse_args()
    kept = Path(args.json) if args.json else None
    reports = json.loads(kept.read_text()) if kept and kept.exists() and args.cases == "c" else []
    print("| model | request | serial s | overlapped s | gain % (interval) | expected serial s, off "
          "| expected overlapped s, off | expected gain % |")
    print("|---|---|---|---|---|---|---|---|")
    for word in args.models:
        name, files = word.split("=", 1)
        text, mmproj = files.split(",", 1)
        requests = {"(a) 512 tokens, then 2 tiles": ["--prompt-tokens", "512", "--tiles", "2"]}
        tile = None
        for request in ("(a) 512 tokens, then 2 tiles", "(b) 4 tiles"):
            if request[1] not in args.cases and not (request[1] == "a" and "b" in args.cases):
                continue
            words = requests.get(request) or [
                "--prompt-tokens", "0", "--tiles", "4", "--prefill-chunk", str(tile)]
            report = run(args, text, mmproj, words)
            tile = report["tile_tokens"]
            report.update(name=name, request=request)
            reports.append(report)
            gain, expected = report["gain_percent"], report["expected"]
            assert report["peak_bytes"] <= report["m_max_bytes"], "the envelope was passed"
            print(f"| {name} | {request} | {report['serial_s'][0]:.3f} | "
                  f"{report['overlapped_s'][0]:.3f} | {gain[0]:.2f} ({gain[1]:.2f} to "
                  f"{gain[2]:.2f}, {report['confidence_percent']:.1f} % sure) | "
                  f"{expected['serial_s']:.3f}, {expected['off_percent'][0]:+.1f} % | "
                  f"{expected['overlapped_s']:.3f}, {expected['off_percent'][1]:+.1f} % | "
                  f"{expected['gain_percent']:.2f} |", flush=True)
        if "c" in args.cases:
            of_it = [one for one in reports if (one["name"], one["request"]) == (name, "(c)")]
            reports = [one for one in reports if one not in of_it]
            known = [pair for one in of_it for pair in one["pairs"]]
            reports.append(beside.measure(args, name, text, mmproj, known))
            print(beside.show(reports[-1]), flush=True)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(reports, file, indent=1)


if __name__ == "__main__":
    main()
