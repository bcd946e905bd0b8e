#!/usr/bin/env python3
"""How soon a fresh process answers, beside llama.cpp's: first token and a whole short answer.

Each round starts both programs once, ours from a compiled model (made before anything is timed);
clocks run from the start of the process to the first byte of the answer, and to its end. The files
are in the page cache on both sides, as they are on a machine that serves; `--drop-caches` (root)
empties it before each start. Medians over the rounds; the peer without its warm-up run, which
serves no one who asks once, and with the better of its two attention settings.

    bench/compare_start.py --dctms target/release/dctms --llama-completion BIN MODEL [MODEL ...]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from compare_llama import FLASH, peer_environment, program

PROMPT = ("A harbour silts up although it is dredged every spring. Say in a few words what a "
          "surveyor would measure first, and why.")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dctms", type=program, required=True)
    parser.add_argument("--llama-completion", type=program, required=True)
    parser.add_argument("--peer-lib", type=Path, help="prepended to LD_LIBRARY_PATH for the peer")
    parser.add_argument("--tokens", type=int, default=32, help="of the answer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--drop-caches", action="store_true", help="empty the page cache first")
    parser.add_argument("--json", type=Path, help="write everything that was measured here")
    parser.add_argument("models", type=Path, nargs="+")
    arguments = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        for model in arguments.models:
            compiled = Path(folder) / (model.stem + ".dctms")
            subprocess.run([arguments.dctms, "compile", model, "-o", compiled], check=True,
                           stdout=subprocess.DEVNULL)
            results[model.name] = measure(arguments, model, compiled)
            compiled.unlink()
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0


def measure(arguments, model: Path, compiled: Path) -> dict:
    """All rounds of one model; prints its lines."""
    count, threads = str(arguments.tokens), str(arguments.threads)
    sides = {"ours": [arguments.dctms, "run", compiled, "--raw", "-p", PROMPT, "-n", count,
                      "--ignore-eos", "--lanes", threads, "--max-input", "512"]}
    for flash in FLASH:
        sides[f"peer_{flash}"] = [
            arguments.llama_completion, "-m", model, "-p", PROMPT, "-n", count, "-t", threads,
            "-fa", flash, "-c", "1024", "--temp", "0", "--ignore-eos", "-no-cnv",
            "--no-display-prompt", "--no-warmup", "--no-perf"]
    times = {side: [] for side in sides}
    for _ in range(arguments.rounds):
        for side, words in sides.items():
            times[side].append(start(arguments, words))
    medians = {side: [statistics.median(column) for column in zip(*rows)]
               for side, rows in times.items()}
    print(model.name)
    for index, what in enumerate(("first token", f"{count} tokens")):
        ours = medians["ours"][index]
        peer = min(medians["peer_off"][index], medians["peer_on"][index])
        print(f"  {what}: {ours * 1e3:.0f} ms, peer {peer * 1e3:.0f} ms, {peer / ours:.2f} times"
              " as soon", flush=True)
    return times


def start(arguments, words: list) -> tuple[float, float]:
    """Seconds to the first byte of the answer, and to the end of the process."""
    is_peer = words[0] == arguments.llama_completion
    environment = peer_environment(arguments) if is_peer else None
    if arguments.drop_caches:
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("1\n")
    begun = time.monotonic()
    child = subprocess.Popen([str(word) for word in words], env=environment,
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.DEVNULL)
    first = child.stdout.read(1)
    first_s = time.monotonic() - begun
    rest = child.stdout.read()
    code = child.wait()
    end_s = time.monotonic() - begun
    if code != 0 or not first + rest:
        sys.exit(f"{' '.join(map(str, words))}: exit code {code}, {len(first + rest)} bytes")
    return first_s, end_s


if __name__ == "__main__":
    sys.exit(main())
