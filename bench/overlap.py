#!/usr/bin/env python3
"""Measures tiles beside chunks against one step after the other, and writes a table.

    bench/overlap.py --dctms PATH --machine profile.json [--repetitions N] [--json FILE] \
        NAME=TEXT.gguf,MMPROJ.gguf ...

Each request is one `dctms bench --mmproj` run: both ways in one process and under one plan, in
turns, who begins alternating too. Requests: (a) 512 tokens of text before a picture of two tiles,
chunks of 256; (b) a picture of four tiles, chunks of one tile's tokens. The gain is the median of
pairs with its interval of order statistics; `off` is the expected time by the measured one.
"""

import argparse
import json
import subprocess
import sys


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
    args = parser.parse_args()
    reports = []
    print("| model | request | serial s | overlapped s | gain % (interval) | expected serial s, off "
          "| expected overlapped s, off | expected gain % |")
    print("|---|---|---|---|---|---|---|---|")
    for word in args.models:
        name, files = word.split("=", 1)
        text, mmproj = files.split(",", 1)
        requests = {"(a) 512 tokens, then 2 tiles": ["--prompt-tokens", "512", "--tiles", "2"]}
        tile = None
        for request in ("(a) 512 tokens, then 2 tiles", "(b) 4 tiles"):
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
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(reports, file, indent=1)


if __name__ == "__main__":
    main()
