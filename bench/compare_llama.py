#!/usr/bin/env python3
"""Our speed beside llama.cpp's, on the same file, alternating in one run.

Shared machines drift by tens of percent within minutes, so that figures of two runs say little.
Here each round runs ours, and llama-bench without and with flash attention, each round in another
order; medians over the rounds are compared, against llama.cpp's better setting for each figure.

    bench/compare_llama.py --dctms target/release/dctms --llama-bench BIN MODEL [MODEL ...]

Both sides measure the same: `pp` runs a prompt from an empty cache, `tg` decodes after `--depth`
tokens. llama-bench feeds random tokens and chooses none; ours chooses each next token, and
that time counts. The pressure on the processors stands beside every figure; above a few percent
somebody else was running and the ratio is worth little. `of read` is ours alone: the bytes of
weights that its steps read in a second, over the read bandwidth of a large buffer that it measured
itself when it started.

`--peer-lib DIR` is where the peer's shared libraries are, if not found anyway.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

FLASH = {"off": "0", "on": "1"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dctms", type=program, required=True)
    parser.add_argument("--llama-bench", type=program, required=True)
    parser.add_argument("--peer-lib", type=Path, help="prepended to LD_LIBRARY_PATH for the peer")
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--gen-tokens", type=int, default=128)
    parser.add_argument("--depth", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=5, help="of ours, peer, peer with flash")
    parser.add_argument("--repetitions", type=int, default=1, help="within one process")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quiet-percent", type=float, default=0.0,
                        help="wait before each round until the pressure is under this")
    parser.add_argument("--wait-s", type=float, default=60.0, help="but no longer than this")
    parser.add_argument("--json", type=Path, help="write everything that was measured here")
    parser.add_argument("models", type=Path, nargs="+")
    arguments = parser.parse_args()
    results = [compare(arguments, model) for model in arguments.models]
    print(table(results, arguments))
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0


def program(path: str) -> Path:
    """A path that stays one when it names a file of this folder."""
    return Path(path).absolute()


def compare(arguments, model: Path) -> dict:
    """Measures one model, round by round."""
    sides = {"ours": [], "peer_off": [], "peer_on": []}
    for number in range(arguments.rounds):
        wait_until_quiet(arguments)
        for name, measured in rotated(list(sides.items()), number):
            before = pressure_us()
            start = time.monotonic()
            if name == "ours":
                sample = ours(arguments, model)
            else:
                sample = peer(arguments, model, FLASH[name.removeprefix("peer_")])
            seconds = time.monotonic() - start
            sample["waited_percent"] = waited_percent(before, pressure_us(), seconds)
            measured.append(sample)
        line = "  ".join(
            f"{name} {measured[-1]['pp']:.1f}/{measured[-1]['tg']:.2f}"
            for name, measured in sides.items()
        )
        print(f"{model.name} round {number + 1}: {line}", file=sys.stderr, flush=True)
    return {"model": model.name, "samples": sides, **summary(sides)}


def rotated(runs: list, number: int) -> list:
    """The runs of a round, each round beginning with the next one."""
    first = number % len(runs)
    return runs[first:] + runs[:first]


def ours(arguments, model: Path) -> dict:
    output = run([
        arguments.dctms, "bench", model, "--json",
        "--prompt-tokens", arguments.prompt_tokens, "--gen-tokens", arguments.gen_tokens,
        "--depth", arguments.depth, "--repetitions", arguments.repetitions,
        "--lanes", arguments.threads,
    ], os.environ)
    report = json.loads(output)
    return {
        "pp": report["prefill_tokens_per_s"],
        "tg": report["decode_tokens_per_s"],
        "step_cv": report["step_ms"]["cv"],
        "weight_share_of_read": report["weight_share_of_read"],
        "read_bytes_per_s": report["read_bytes_per_s"],
        "weight_share_of_buffer_read": report["weight_share_of_buffer_read"],
        "buffer_read_bytes_per_s": report["buffer_read_bytes_per_s"],
        "integer_share_of_peak": report["integer_share_of_peak"],
        "integer_ops_per_s": report["integer_ops_per_s"],
        "peak_bytes": report["peak_bytes"],
        "m_max_bytes": report["m_max_bytes"],
    }


def peer(arguments, model: Path, flash: str) -> dict:
    """One llama-bench process for the prompt and the generation; the prompt from an empty cache."""
    environment = peer_environment(arguments)
    common = [arguments.llama_bench, "-m", model, "-t", arguments.threads, "-fa", flash,
              "-r", arguments.repetitions, "-o", "json"]
    figures = {}
    if arguments.depth == 0:
        jobs = [["-p", arguments.prompt_tokens, "-n", arguments.gen_tokens]]
    else:
        jobs = [["-p", arguments.prompt_tokens, "-n", 0],
                ["-p", 0, "-n", arguments.gen_tokens, "-d", arguments.depth]]
    for job in jobs:
        for test in json.loads(run(common + job, environment)):
            kind = "pp" if test["n_prompt"] > 0 else "tg"
            rates = test.get("samples_ts") or [test["avg_ts"]]
            figures[kind] = statistics.median(rates)
    return figures


def peer_environment(arguments) -> dict:
    """The environment in which the peer finds its shared libraries."""
    environment = dict(os.environ)
    if arguments.peer_lib:
        known = environment.get("LD_LIBRARY_PATH")
        paths = [str(arguments.peer_lib.absolute())] + ([known] if known else [])
        environment["LD_LIBRARY_PATH"] = ":".join(paths)
    return environment


def run(command: list, environment) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def summary(sides: dict) -> dict:
    """Medians, and ours over the better of the peer's."""
    median = {
        name: {kind: statistics.median(sample[kind] for sample in measured)
               for kind in ("pp", "tg", "waited_percent")}
        for name, measured in sides.items()
    }
    better = {kind: max(median["peer_off"][kind], median["peer_on"][kind])
              for kind in ("pp", "tg")}
    ratio = {kind: median["ours"][kind] / better[kind] for kind in better}
    # The same of each round: how far the ratio can be trusted.
    by_round = {
        kind: [ours[kind] / max(off[kind], on[kind])
               for ours, off, on in zip(sides["ours"], sides["peer_off"], sides["peer_on"])]
        for kind in better
    }
    return {"median": median, "ratio": ratio, "ratio_by_round": by_round}


def table(results: list, arguments) -> str:
    pp = f"pp{arguments.prompt_tokens}"
    tg = f"tg{arguments.gen_tokens}@{arguments.depth}"
    rows = [["model", "figure", "ours", "peer fa 0", "peer fa 1", "ratio", "rounds", "of read",
             "waited %"]]
    for result in results:
        median = result["median"]
        waited = "/".join(f"{side['waited_percent']:.0f}" for side in median.values())
        shares = [sample["weight_share_of_buffer_read"] for sample in result["samples"]["ours"]]
        share = "-" if None in shares else f"{statistics.median(shares):.2f}"
        for kind, label in (("pp", pp), ("tg", tg)):
            spread = result["ratio_by_round"][kind]
            rows.append([
                result["model"], label,
                *(f"{median[name][kind]:.2f}" for name in ("ours", "peer_off", "peer_on")),
                f"{result['ratio'][kind]:.2f}", f"{min(spread):.2f}-{max(spread):.2f}",
                share if kind == "tg" else "-", waited,
            ])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()
             for row in rows]
    return "\n".join(lines)


def wait_until_quiet(arguments) -> None:
    """Waits for the machine, if asked to, but not for ever."""
    end = time.monotonic() + arguments.wait_s
    while arguments.quiet_percent > 0 and time.monotonic() < end:
        before, start = pressure_us(), time.monotonic()
        time.sleep(1.0)
        percent = waited_percent(before, pressure_us(), time.monotonic() - start)
        if before is None or percent < arguments.quiet_percent:
            return


def pressure_us() -> int | None:
    """Microseconds in which something runnable waited for a processor, since the start."""
    try:
        for line in Path("/proc/pressure/cpu").read_text().splitlines():
            if line.startswith("some "):
                return int(line.rsplit("total=", 1)[1])
    except OSError:
        pass
    return None


def waited_percent(before: int | None, after: int | None, seconds: float) -> float:
    if before is None or after is None:
        return float("nan")
    return (after - before) / (seconds * 1e4)


if __name__ == "__main__":
    sys.exit(main())
