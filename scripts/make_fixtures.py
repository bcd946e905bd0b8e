#!/usr/bin/env python3
"""Makes the tiny models of tests/fixtures and what Hugging Face transformers says of them.

Each model is random, seeded and as small as its special features allow; together they
cover the four architectures, tied and untied heads, query/key/value biases, query/key
norms, head sizes that are not hidden size / heads, three kinds of rope scaling, sliding
windows shorter than the prompt, and every tensor type. Matrices hold f16 values even in
the f32 files, so that both files of a model share one set of expected logits.

    pip install torch transformers gguf
    scripts/make_fixtures.py [NAME ...]

Real models have a script of their own, make_real_fixtures.py.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from gguf import GGUFWriter, TokenType

import reference
from reference import CLASSES, Sequence

FIXTURES = Path(__file__).resolve().parent.parent / "tests" / "fixtures"

# (name, length of the prompt, positions whose logits are stored)
SEQUENCES = [("long", 40, [0, 1, 15, 16, 17, 39, 63, 102]), ("short", 9, [0, 8, 71])]

# ---------------------------------------------------------------- vocabularies

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
    "message['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

MERGES = ["Ġ t", "h e", "Ġt he", "i n", "e r", "Ġ a", "o n", "r e", "Ġ Ġ", "a t", "Ġa n"]


def byte_pair_vocabulary(pre: str) -> Callable[[GGUFWriter], None]:
    """256 byte tokens, a few merges and three control tokens: 270 in all."""

    def write(writer: GGUFWriter) -> None:
        tokens = [byte_mark(byte) for byte in range(256)]
        tokens += [merge.replace(" ", "") for merge in MERGES]
        kinds = [TokenType.NORMAL] * len(tokens)
        tokens += ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
        kinds += [TokenType.CONTROL] * 3
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_list(tokens)
        writer.add_token_types(kinds)
        writer.add_token_merges(MERGES)
        writer.add_bos_token_id(len(tokens) - 3)
        writer.add_eos_token_id(len(tokens) - 1)
        writer.add_add_bos_token(False)
        writer.add_chat_template(CHAT_TEMPLATE)

    return write


def byte_mark(byte: int) -> str:
    """GPT-2's printable stand-in for a byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    if byte in plain:
        return chr(byte)
    return chr(256 + [b for b in range(256) if b not in plain].index(byte))


PIECES = ["▁", "e", "t", "a", "o", "n", "i", "h", "s", "r", "th", "▁t", "▁th", "▁the", "in", "▁a"]


def piece_vocabulary(first: list[str]) -> Callable[[GGUFWriter], None]:
    """SentencePiece: special tokens, 256 byte tokens and a few scored pieces."""

    def write(writer: GGUFWriter) -> None:
        tokens = first + [f"<0x{byte:02X}>" for byte in range(256)] + PIECES
        kinds = [TokenType.CONTROL] * len(first) + [TokenType.BYTE] * 256
        kinds += [TokenType.NORMAL] * len(PIECES)
        kinds[first.index("<unk>")] = TokenType.UNKNOWN
        scores = [0.0] * (len(first) + 256) + [-float(n) for n in range(len(PIECES))]
        writer.add_tokenizer_model("llama")
        writer.add_tokenizer_pre("default")
        writer.add_token_list(tokens)
        writer.add_token_scores(scores)
        writer.add_token_types(kinds)
        writer.add_bos_token_id(first.index(next(t for t in first if t in ("<s>", "<bos>"))))
        writer.add_eos_token_id(first.index(next(t for t in first if t in ("</s>", "<eos>"))))
        writer.add_unk_token_id(first.index("<unk>"))
        writer.add_add_bos_token(True)
        writer.add_add_space_prefix("<s>" in first)

    return write


LLAMA2_FIRST = ["<unk>", "<s>", "</s>"]
GEMMA_FIRST = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]

# ---------------------------------------------------------------- models


def all_of(kind: Type) -> Callable[[str], Type]:
    return lambda _name: kind


def by_name(kinds: dict[str, Type]) -> Callable[[str], Type]:
    """Types by `layer.tensor` or, for the outer matrices, by the tensor's name."""
    return lambda name: kinds[name.removeprefix("blk.").removesuffix(".weight")]


BOTH = {"f32": all_of(Type.F32), "f16": all_of(Type.F16)}
HALF = {"f16": all_of(Type.F16)}

LEGACY = by_name(
    {
        "token_embd": Type.Q8_0,
        "output": Type.Q5_1,
        "0.attn_q": Type.Q4_0,
        "0.attn_k": Type.Q4_1,
        "0.attn_v": Type.Q5_0,
        "0.attn_output": Type.Q5_1,
        "0.ffn_gate": Type.Q8_0,
        "0.ffn_up": Type.BF16,
        "0.ffn_down": Type.F16,
        "1.attn_q": Type.BF16,
        "1.attn_k": Type.Q8_0,
        "1.attn_v": Type.F32,
        "1.attn_output": Type.Q4_0,
        "1.ffn_gate": Type.Q4_1,
        "1.ffn_up": Type.Q5_0,
        "1.ffn_down": Type.Q4_0,
    }
)

K_QUANTS = by_name(
    {
        "token_embd": Type.Q6_K,
        "0.attn_q": Type.Q2_K,
        "0.attn_k": Type.Q3_K,
        "0.attn_v": Type.Q4_K,
        "0.attn_output": Type.Q5_K,
        "0.ffn_gate": Type.Q3_K,
        "0.ffn_up": Type.Q4_K,
        "0.ffn_down": Type.Q6_K,
    }
)


@dataclass(frozen=True)
class Tiny:
    """A tiny model: its configuration, vocabulary and the files it is stored in."""

    architecture: str
    says: str
    vocabulary: Callable[[GGUFWriter], None]
    files: dict[str, Callable[[str], Type]]
    layers: int
    hidden: int
    feed_forward: int
    heads: int
    kv_heads: int
    head_dim: int
    tied: bool
    rope: dict = field(default_factory=dict)
    tokens: int = 270
    exact: bool = True  # the files hold the model's own values, not random blocks


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
YARN_OWN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 128,
    "attention_factor": 1.3,
    "beta_fast": 8.0,
    "beta_slow": 2.0,
}
LINEAR = {"rope_type": "linear", "factor": 4.0}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

SMOL, LLAMA_BPE = byte_pair_vocabulary("smollm"), byte_pair_vocabulary("llama-bpe")
QWEN = byte_pair_vocabulary("qwen2")
LLAMA2, GEMMA = piece_vocabulary(LLAMA2_FIRST), piece_vocabulary(GEMMA_FIRST)

TINY = {
    "llama": Tiny(
        "llama", "grouped queries, tied", SMOL, BOTH, 2, 64, 48, 4, 2, 16, True
    ),
    "llama-llama3": Tiny(
        "llama", "llama3 rope factors, untied, decoupled head size", LLAMA_BPE, HALF,
        2, 48, 48, 2, 1, 32, False, LLAMA3,
    ),
    "llama-linear": Tiny(
        "llama", "linear rope scaling, SentencePiece, one head a group", LLAMA2, HALF,
        2, 48, 64, 3, 3, 16, False, LINEAR, 275,
    ),
    "qwen2": Tiny("qwen2", "biases, tied", QWEN, BOTH, 2, 48, 80, 3, 1, 16, True),
    "qwen2-yarn": Tiny(
        "qwen2", "biases, untied, yarn", QWEN, HALF, 2, 64, 48, 2, 1, 32, False, YARN
    ),
    "qwen3": Tiny(
        "qwen3", "query and key norms, decoupled head size, tied", QWEN, BOTH,
        2, 32, 64, 4, 2, 32, True,
    ),
    "qwen3-yarn": Tiny(
        "qwen3", "yarn with its own factors, untied", QWEN, HALF,
        3, 32, 48, 2, 1, 32, False, YARN_OWN,
    ),
    "gemma3": Tiny(
        "gemma3", "window 16 on layers 0-4 and 6, two rope bases, tied", GEMMA, BOTH,
        7, 32, 32, 2, 1, 16, True, {}, 278,
    ),
    "gemma3-linear": Tiny(
        "gemma3", "linear rope scaling of the global layer only", GEMMA, HALF,
        7, 32, 32, 2, 2, 16, True, LINEAR, 278,
    ),
    "llama-legacy": Tiny(
        "llama", "Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 BF16 F16 F32 in one file", SMOL,
        {"mixed": LEGACY}, 2, 64, 96, 4, 2, 16, False, exact=False,
    ),
    "qwen3-k-quants": Tiny(
        "qwen3", "Q2_K Q3_K Q4_K Q5_K Q6_K in one file", QWEN,
        {"mixed": K_QUANTS}, 1, 256, 256, 8, 2, 32, True, exact=False,
    ),
}

WINDOW = 16
CONTEXT = 512


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all")
    arguments = parser.parse_args()
    FIXTURES.mkdir(parents=True, exist_ok=True)
    for index, (name, tiny) in enumerate(TINY.items()):
        if not arguments.names or name in arguments.names:
            make(name, tiny, seed=1000 + index)
    return 0


def make(model_name: str, tiny: Tiny, seed: int) -> None:
    model = random_model(tiny, seed)
    files = []
    for suffix, types in tiny.files.items():
        path = FIXTURES / f"{model_name}-{suffix}.gguf"
        reference.write_gguf(path, model, tiny.architecture, tiny.vocabulary, types, seed)
        files.append(path.name)
    if not tiny.exact:
        model = reference.load_gguf(path).model
    elif tiny.rope.get("rope_type") != "llama3":
        for file in files:
            check_round_trip(model, FIXTURES / file)
    random = np.random.Generator(np.random.PCG64(seed + 1))
    sequences = [
        Sequence(name, random.integers(0, tiny.tokens, length).tolist(), positions, positions)
        for name, length, positions in SEQUENCES
    ]
    about = {
        "architecture": tiny.architecture,
        "features": tiny.says,
        "model_files": files,
        "vocabulary": tiny.tokens,
        "reference": f"transformers {transformers_version()}, f32, eager attention",
    }
    reference.record(model, sequences, 1, FIXTURES / model_name, about)
    print(model_name, [(FIXTURES / file).stat().st_size for file in files], flush=True)


def random_model(tiny: Tiny, seed: int):
    """A model whose logits depend strongly on every part of it: scores spread by several
    units, so that attention is neither flat nor a single position."""
    rope = {"rope_type": "default", "rope_theta": 10_000.0} | tiny.rope
    arguments = dict(
        vocab_size=tiny.tokens,
        hidden_size=tiny.hidden,
        intermediate_size=tiny.feed_forward,
        num_hidden_layers=tiny.layers,
        num_attention_heads=tiny.heads,
        num_key_value_heads=tiny.kv_heads,
        head_dim=tiny.head_dim,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-6 if tiny.architecture != "llama" else 1e-5,
        tie_word_embeddings=tiny.tied,
        rope_parameters=rope,
        attn_implementation="eager",
    )
    if tiny.architecture == "gemma3":
        arguments |= dict(
            rope_parameters={
                "full_attention": rope | {"rope_theta": 1_000_000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            },
            sliding_window=WINDOW,
            query_pre_attn_scalar=tiny.head_dim,
        )
    config_class, model_class = CLASSES[tiny.architecture]
    model = model_class(config_class(**arguments)).float().eval()
    random = np.random.Generator(np.random.PCG64(seed))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = random.standard_normal(parameter.shape)
            parameter.copy_(torch.from_numpy(values * spread(name, parameter) + mean(name, tiny)))
            if parameter.ndim == 2:
                parameter.copy_(parameter.half().float())
    return model


def spread(name: str, parameter) -> float:
    if parameter.ndim == 1:
        return 0.3 if "bias" in name else 0.15
    if "embed_tokens" in name or "lm_head" in name:
        return 0.4
    gain = 1.8 if "q_proj" in name or "k_proj" in name else 1.0
    return gain * parameter.shape[1] ** -0.5


def mean(name: str, tiny: Tiny) -> float:
    """Norm weights vary about one; Gemma stores them less one."""
    return 1.0 if "norm" in name and tiny.architecture != "gemma3" else 0.0


def check_round_trip(model, path: Path) -> None:
    """The file, read back as any other model's, must give the very same parameters."""
    loaded = reference.load_gguf(path).model.state_dict()
    for name, tensor in model.state_dict().items():
        difference = (tensor - loaded[name]).abs().max().item()
        assert difference <= 1.2e-7, f"{path.name}: {name} differs by {difference}"


def transformers_version() -> str:
    import transformers

    return transformers.__version__


if __name__ == "__main__":
    sys.exit(main())
