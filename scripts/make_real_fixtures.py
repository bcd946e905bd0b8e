#!/usr/bin/env python3
"""Makes the fixtures of the two real models: logits and greedy text of the reference.

The reference is Hugging Face transformers in f32 on the weights as dequantised from the
GGUF, so that what is compared is arithmetic and not quantisation. Full rows of 49,152 or
262,144 logits would be megabytes. The noise of quantised activations differs far more from
position to position than from logit to logit, so nearly all positions are stored, each with
64 evenly spaced logits; some also with their 20 best.

    pip install torch transformers gguf tokenizers
    scripts/make_real_fixtures.py smollm2 SmolLM2-135M-Instruct.Q4_1.gguf
    scripts/make_real_fixtures.py gemma3-270m gemma-3-270m-q4_k_m.gguf

Ids come from `llama-tokenize` (`--tokenize PROGRAM`), not from us.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import reference
from reference import GREEDY_TOKENS, Sequence

FIXTURES = Path(__file__).resolve().parent.parent / "tests" / "fixtures"
TEXT = FIXTURES / "alice.txt"

CHAT = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n<|im_start|>user\nWhy is the sky blue? Answer in two sentences.<|im_end|>\n"
    "<|im_start|>assistant\n"
)
GEMMA_CHAT = (
    "<start_of_turn>user\nWhy is the sky blue? Answer in two sentences.<end_of_turn>\n"
    "<start_of_turn>model\n"
)
CODE = "def fibonacci(n: int) -> int:\n    \"\"\"Returns the n-th Fibonacci number.\"\"\"\n"
MIXED = "Le chat dort. Die Katze schläft. 猫は眠っている。 The cat is sleeping. 2 + 2 = 4; 17 * 3 ="

# Characters of TEXT that the longer prompts take: about 300 tokens, and (for Gemma, whose
# window is 512) about 700.
LONG_CHARS, WINDOW_CHARS = 1150, 2650
LONG_FROM = 13_000

# Of a row, every n-th logit is stored; of a sequence, evenly spaced positions, at most so many.
COLUMN_STRIDE = {"smollm2": 768, "gemma3-270m": 4096}
POSITIONS_MAX = 110
PROMPTS = {
    "smollm2": {"chat": CHAT, "code": CODE, "mixed": MIXED, "long": LONG_CHARS},
    "gemma3-270m": {"chat": GEMMA_CHAT, "code": CODE, "mixed": MIXED, "window": WINDOW_CHARS},
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=sorted(PROMPTS))
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokenize", default="llama-tokenize")
    arguments = parser.parse_args()
    loaded = reference.load_gguf(arguments.model)
    sequences = []
    for name, prompt in PROMPTS[arguments.name].items():
        if isinstance(prompt, int):
            prompt = TEXT.read_text()[LONG_FROM:][:prompt]
        ids = tokenize(arguments.tokenize, arguments.model, prompt)
        sequences.append(Sequence(name, ids, spaced(len(ids)), notable(len(ids)), prompt))
        print(name, len(ids), file=sys.stderr)
    import transformers

    about = {
        "architecture": loaded.architecture,
        "model_files": [arguments.model.name],
        "vocabulary": loaded.model.config.vocab_size,
        "reference": f"transformers {transformers.__version__}, f32, eager attention",
    }
    path = FIXTURES / arguments.name
    kept = {}
    if path.with_suffix(".json").exists():
        old = json.loads(path.with_suffix(".json").read_text())
        kept = {key: old[key] for key in ("perplexity",) if key in old}
    reference.record(
        loaded.model, sequences, COLUMN_STRIDE[arguments.name], path, about | kept
    )
    return 0


def spaced(length: int) -> list[int]:
    """Evenly spaced positions over prompt and continuation, all of them where they are few."""
    count = length + GREEDY_TOKENS
    return list(range(0, count, -(-count // POSITIONS_MAX)))


def notable(length: int) -> list[int]:
    """The start, the middle and the end of the prompt, and steps of the continuation."""
    chosen = {0, length // 4, length // 2, 3 * length // 4, length - 2, length - 1}
    chosen |= {length + step for step in (0, 20, 41, GREEDY_TOKENS - 1)}
    return sorted(chosen)


def tokenize(program: str, model: Path, text: str) -> list[int]:
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(text)
        file.flush()
        command = [program, "-m", str(model), "-f", file.name, "--ids", "--log-disable"]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(output.strip().splitlines()[-1])


if __name__ == "__main__":
    sys.exit(main())
