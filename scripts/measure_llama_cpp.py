#!/usr/bin/env python3
"""Measures llama.cpp against the same references, and writes its figures into the fixtures.

For each sequence of a fixture the prompt is evaluated in one batch, as a server would,
and the reference's greedy tokens one at a time. Logits at the stored positions give

    nmse                    sum (x - reference)^2 / sum reference^2 over the stored logits
    max_difference          the largest |x - reference| among them
    greedy_agreement        how many of the 64 forced greedy steps have the same best token
    disagreement_margins    the reference's top-2 margin at the others

and `llama_cpp_nmse` is the NMSE over all sequences together. They bound what our own
quantised-activation path may do. The key-value cache is f16 and flash attention is left to
its default, as in llama.cpp's own tools.

    scripts/measure_llama_cpp.py --python DIR --library DIR FIXTURE.json MODEL.gguf

`--python` holds the `llama_cpp` package of llama-cpp-python's source, `--library` the
built libllama.
"""

import argparse
import ctypes
import json
import os
import sys
from pathlib import Path

import numpy as np

from reference import GREEDY_TOKENS, write_json

THREADS = 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", type=Path, required=True)
    parser.add_argument("--library", type=Path, required=True)
    parser.add_argument("--dry-run", action="store_true", help="print, write nothing")
    parser.add_argument("fixture", type=Path)
    parser.add_argument("model", type=Path)
    arguments = parser.parse_args()
    os.environ["LLAMA_CPP_LIB_PATH"] = str(arguments.library)
    sys.path.insert(0, str(arguments.python))
    fixture = json.loads(arguments.fixture.read_text())
    expected = np.fromfile(arguments.fixture.with_suffix(".f32"), dtype="<f4")
    answers = Answers(arguments.model)
    errors = squares = 0.0
    for sequence in fixture["sequences"]:
        figures, error, square = compare(answers, sequence, expected)
        errors, squares = errors + error, squares + square
        sequence.setdefault("llama_cpp", {})[arguments.model.name] = figures
        print(arguments.model.name, sequence["name"], figures, flush=True)
    pooled = float(f"{errors / squares:.4e}")
    fixture.setdefault("llama_cpp_nmse", {})[arguments.model.name] = pooled
    print(arguments.model.name, "all", pooled)
    if not arguments.dry_run:
        write_json(arguments.fixture, fixture)
    return 0


def compare(answers, sequence: dict, expected: np.ndarray) -> tuple[dict, float, float]:
    prompt, greedy = sequence["token_ids"], sequence["greedy"]["token_ids"]
    logits = answers.logits(prompt, greedy)
    layout = sequence["logits"]
    count = len(layout["positions"]) * layout["columns"]
    wanted = expected[layout["offset_f32"] :][:count].reshape(-1, layout["columns"])
    stride = layout["column_stride"]
    error = logits[layout["positions"]][:, ::stride].astype(np.float64) - wanted
    last = len(prompt) - 1
    best = logits[last : last + GREEDY_TOKENS].argmax(axis=1)
    missed = [step for step in range(GREEDY_TOKENS) if best[step] != greedy[step]]
    sum_error, sum_square = (error**2).sum(), (wanted.astype(np.float64) ** 2).sum()
    figures = {
        "nmse": float(f"{sum_error / sum_square:.4e}"),
        "max_difference": round(float(np.abs(error).max()), 6),
        "greedy_agreement": GREEDY_TOKENS - len(missed),
        "disagreement_margins": [sequence["greedy"]["margins"][step] for step in missed],
    }
    return figures, sum_error, sum_square


class Answers:
    """One llama.cpp context, emptied before each sequence."""

    def __init__(self, path: Path) -> None:
        import llama_cpp

        self.api = llama_cpp
        llama_cpp.llama_backend_init()
        silent = llama_cpp.llama_log_callback(lambda level, text, data: None)
        self.keep = silent
        llama_cpp.llama_log_set(silent, ctypes.c_void_p(0))
        self.model = llama_cpp.llama_model_load_from_file(
            str(path).encode(), llama_cpp.llama_model_default_params()
        )
        assert self.model, f"llama.cpp cannot load {path}"
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx = parameters.n_batch = 2048
        parameters.n_threads = parameters.n_threads_batch = THREADS
        self.context = llama_cpp.llama_init_from_model(self.model, parameters)
        vocabulary = llama_cpp.llama_model_get_vocab(self.model)
        self.columns = llama_cpp.llama_vocab_n_tokens(vocabulary)

    def logits(self, prompt: list[int], forced: list[int]) -> np.ndarray:
        """Rows for the whole prompt (one batch), then for each forced token (one each)."""
        api = self.api
        api.llama_memory_clear(api.llama_get_memory(self.context), True)
        rows = self.evaluate(prompt, 0)
        steps = [self.evaluate([token], len(prompt) + n) for n, token in enumerate(forced)]
        return np.concatenate([rows, *steps])

    def evaluate(self, tokens: list[int], first: int) -> np.ndarray:
        api = self.api
        batch = api.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for index, token in enumerate(tokens):
            batch.token[index] = token
            batch.pos[index] = first + index
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = 0
            batch.logits[index] = 1
        assert api.llama_decode(self.context, batch) == 0
        out = api.llama_get_logits(self.context)
        rows = np.ctypeslib.as_array(out, shape=(len(tokens), self.columns)).copy()
        api.llama_batch_free(batch)
        return rows


if __name__ == "__main__":
    sys.exit(main())
