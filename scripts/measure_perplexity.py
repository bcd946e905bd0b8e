#!/usr/bin/env python3
"""Puts the perplexity of the fixtures' text into a real model's fixture.

Two values: llama-perplexity's, which ours must match within 0.5 %, and the reference's by
the same definition, which shows how much of a difference is the quantised activations.
The definition is llama-perplexity's: the text's ids, with BOS in front if the model asks
for it, are cut into whole chunks of `ctx_size`; BOS then replaces the first id of every
chunk; each chunk is evaluated on its own, and the predictions of its second half count.

    pip install torch transformers gguf
    scripts/measure_perplexity.py FIXTURE.json MODEL.gguf [--programs DIR]

`--programs` is the directory of llama-tokenize and llama-perplexity.
"""

import argparse
import json
import math
import re
import subprocess
import sys
from pathlib import Path

import torch

import reference

TEXT = Path(__file__).resolve().parent.parent / "tests" / "fixtures" / "alice.txt"
CONTEXT = 512


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("fixture", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--programs", type=Path, default=Path())
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--log", type=Path, help="use this output of llama-perplexity")
    arguments = parser.parse_args()
    log = arguments.log.read_text() if arguments.log else run_llama_cpp(arguments)
    found = re.search(r"Final estimate: PPL = ([0-9.]+) \+/- ([0-9.]+)", log)
    figures = {
        "text": TEXT.name,
        "ctx_size": CONTEXT,
        "llama_cpp": float(found[1]),
        "llama_cpp_deviation": float(found[2]),
    }
    ids = tokenize(arguments.programs / "llama-tokenize", arguments.model)
    figures |= of_reference(reference.load_gguf(arguments.model), ids)
    fixture = json.loads(arguments.fixture.read_text())
    sequences = fixture.pop("sequences")
    fixture |= {"perplexity": figures, "sequences": sequences}
    reference.write_json(arguments.fixture, fixture)
    print(arguments.model.name, figures)
    return 0


def run_llama_cpp(arguments) -> str:
    command = [arguments.programs / "llama-perplexity", "-m", arguments.model, "-f", TEXT]
    command += ["-c", str(CONTEXT), "-t", str(arguments.threads)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout + done.stderr


def tokenize(program: Path, model: Path) -> list[int]:
    command = [program, "-m", model, "-f", TEXT, "--ids", "--log-disable"]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(output.strip().splitlines()[-1])


@torch.inference_mode()
def of_reference(loaded: reference.Loaded, ids: list[int]) -> dict:
    add_bos = loaded.fields.get("tokenizer.ggml.add_bos_token", False)
    bos = loaded.fields.get("tokenizer.ggml.bos_token_id")
    chunks, first = len(ids) // CONTEXT, CONTEXT // 2
    total, count = 0.0, 0
    for chunk in range(chunks):
        own = ids[chunk * CONTEXT :][:CONTEXT]
        given = [bos, *own[1:]] if add_bos else own
        logits = loaded.model(torch.tensor([given]), use_cache=False).logits[0, first:-1]
        chosen = torch.tensor(own[first + 1 :]).unsqueeze(1)
        scores = logits.double().log_softmax(dim=1).gather(1, chosen)
        total, count = total - scores.sum().item(), count + len(chosen)
        print(chunk, math.exp(total / count), file=sys.stderr, flush=True)
    return {
        "tokens": len(ids),
        "chunks": chunks,
        "predictions": count,
        "reference": round(math.exp(total / count), 4),
    }


if __name__ == "__main__":
    sys.exit(main())
