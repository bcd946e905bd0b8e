#!/usr/bin/env python3
"""Writes seeded random-weight GGUF files at the true shapes of published models.

Speed and memory depend on shapes, tensor types and the size of the vocabulary, never on
what the weights say; so a benchmark or an envelope test needs no download. Blocks are
drawn directly in their quantised form (uniform integers, one scale that gives each matrix
the standard deviation 1/sqrt(k)), so that activations neither vanish nor explode. Types
follow what `llama-quantize` would choose: a tied embedding is the output matrix too and
becomes Q6_K; K-quants whose rows are no multiple of 256 fall back to Q5_0 or Q8_0.

The vocabulary is that of a real byte-pair model (SmolLM2), grown by seeded merges of its
own tokens to the published size: it has the published number of tokens and merges.

    pip install gguf numpy
    scripts/synth_gguf.py qwen2.5-0.5b q4_0 --vocabulary SmolLM2.gguf --output out.gguf
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import GGUFReader, GGUFWriter, LlamaFileType, TokenType

SEED = 20_260_101


@dataclass(frozen=True)
class Shape:
    """The published configuration of one model."""

    layers: int
    hidden: int
    feed_forward: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool
    rope_base: float = 1_000_000.0
    context: int = 32_768
    epsilon: float = 1e-6


SHAPES = {
    "qwen2.5-0.5b": Shape(24, 896, 4864, 14, 2, 64, 151_936, True),
    "qwen2.5-1.5b": Shape(28, 1536, 8960, 12, 2, 128, 151_936, True),
    "qwen2.5-7b": Shape(28, 3584, 18_944, 28, 4, 128, 152_064, False),
}

FILE_TYPES = {
    "q4_0": LlamaFileType.MOSTLY_Q4_0,
    "q8_0": LlamaFileType.MOSTLY_Q8_0,
    "q4_k_m": LlamaFileType.MOSTLY_Q4_K_M,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shape", choices=sorted(SHAPES))
    parser.add_argument("type", choices=sorted(FILE_TYPES))
    parser.add_argument("--vocabulary", type=Path, required=True, help="a gpt2-BPE GGUF")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=SEED)
    arguments = parser.parse_args()
    shape = SHAPES[arguments.shape]
    random = np.random.Generator(np.random.PCG64(arguments.seed))
    writer = GGUFWriter(arguments.output, "qwen2")
    write_parameters(writer, shape, arguments.shape, FILE_TYPES[arguments.type])
    write_vocabulary(writer, shape, arguments.vocabulary, random)
    write_tensors(writer, shape, arguments.type, random)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(arguments.output, arguments.output.stat().st_size)
    return 0


def write_parameters(writer: GGUFWriter, shape: Shape, name: str, ftype: LlamaFileType) -> None:
    writer.add_name(f"Random {name}")
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_layer_norm_rms_eps(shape.epsilon)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_file_type(ftype)
    writer.add_quantization_version(2)


CONTROL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]

CHAT_TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

TOKENS_BEFORE_CONTROL = 151_643
GROWN_TOKEN_CHARS_MAX = 12


def write_vocabulary(
    writer: GGUFWriter, shape: Shape, source: Path, random: np.random.Generator
) -> None:
    tokens, merges = grow_vocabulary(source, random)
    kinds = [TokenType.NORMAL] * len(tokens)
    first_control = len(tokens)
    tokens += CONTROL_TOKENS
    kinds += [TokenType.CONTROL] * len(CONTROL_TOKENS)
    while len(tokens) < shape.vocabulary:
        tokens.append(f"[PAD{len(tokens)}]")
        kinds.append(TokenType.UNUSED)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(first_control)
    writer.add_eos_token_id(first_control + 2)
    writer.add_pad_token_id(first_control)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def grow_vocabulary(source: Path, random: np.random.Generator) -> tuple[list[str], list[str]]:
    """The normal tokens and merges of `source`, grown to the published number."""
    fields = GGUFReader(source).fields
    kinds = fields["tokenizer.ggml.token_type"].contents()
    tokens = fields["tokenizer.ggml.tokens"].contents()
    tokens = [t for t, kind in zip(tokens, kinds) if kind == TokenType.NORMAL]
    merges = fields["tokenizer.ggml.merges"].contents()
    known = set(tokens)
    while len(tokens) < TOKENS_BEFORE_CONTROL:
        left, right = (tokens[i] for i in random.integers(0, len(tokens), 2))
        # A space mark inside a word never survives pre-tokenisation: such a merge is dead.
        if len(left + right) > GROWN_TOKEN_CHARS_MAX or "Ġ" in right or left + right in known:
            continue
        known.add(left + right)
        tokens.append(left + right)
        merges.append(f"{left} {right}")
    return tokens, merges


def write_tensors(
    writer: GGUFWriter, shape: Shape, mix: str, random: np.random.Generator
) -> None:
    kv_width = shape.kv_heads * shape.head_dim
    width = shape.heads * shape.head_dim

    def matrix(name: str, rows: int, columns: int, wanted: Type) -> None:
        kind = fall_back(wanted, columns)
        writer.add_tensor(name, draw(kind, rows, columns, random), raw_dtype=kind)

    def vector(name: str, length: int, mean: float, spread: float) -> None:
        values = mean + spread * random.standard_normal(length, dtype=np.float32)
        writer.add_tensor(name, values.astype(np.float32))

    base = {"q4_0": Type.Q4_0, "q8_0": Type.Q8_0, "q4_k_m": Type.Q4_K}[mix]
    head = Type.Q8_0 if mix == "q8_0" else Type.Q6_K
    embedding = head if shape.tied else base
    matrix("token_embd.weight", shape.vocabulary, shape.hidden, embedding)
    for layer in range(shape.layers):
        rich = Type.Q6_K if mix == "q4_k_m" and more_bits(layer, shape.layers) else base
        block = f"blk.{layer}"
        vector(f"{block}.attn_norm.weight", shape.hidden, 1.0, 0.1)
        for letter, rows in (("q", width), ("k", kv_width), ("v", kv_width)):
            kind = rich if letter == "v" else base
            matrix(f"{block}.attn_{letter}.weight", rows, shape.hidden, kind)
            vector(f"{block}.attn_{letter}.bias", rows, 0.0, 0.2)
        matrix(f"{block}.attn_output.weight", shape.hidden, width, base)
        vector(f"{block}.ffn_norm.weight", shape.hidden, 1.0, 0.1)
        matrix(f"{block}.ffn_gate.weight", shape.feed_forward, shape.hidden, base)
        matrix(f"{block}.ffn_up.weight", shape.feed_forward, shape.hidden, base)
        matrix(f"{block}.ffn_down.weight", shape.hidden, shape.feed_forward, rich)
    vector("output_norm.weight", shape.hidden, 1.0, 0.1)
    if not shape.tied:
        matrix("output.weight", shape.vocabulary, shape.hidden, head)


def more_bits(layer: int, layers: int) -> bool:
    """llama-quantize's choice of the layers whose value and down matrices get more bits."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def fall_back(kind: Type, columns: int) -> Type:
    if columns % 256 == 0:
        return kind
    return {Type.Q4_K: Type.Q5_0, Type.Q6_K: Type.Q8_0}.get(kind, kind)


def draw(kind: Type, rows: int, columns: int, random: np.random.Generator) -> np.ndarray:
    """Random blocks of `kind`, as bytes `[rows][row bytes]`, with deviation 1/sqrt(columns)."""
    deviation = columns**-0.5
    blocks = rows * (columns // (256 if kind in (Type.Q4_K, Type.Q6_K) else 32))

    def half(value: float) -> np.ndarray:
        # A spread of the scale keeps a kernel from getting away with one scale for all.
        values = value * (0.75 + 0.5 * random.random(blocks, dtype=np.float32))
        return values.astype(np.float16)[:, None].view(np.uint8)

    def raw(count: int) -> np.ndarray:
        words = random.integers(0, 2**64, (blocks * count + 7) // 8, dtype=np.uint64)
        return words.view(np.uint8)[: blocks * count].reshape(blocks, count)

    match kind:
        case Type.Q4_0:  # uniform 0..15 less 8: deviation 4.61
            parts = [half(deviation / 4.61), raw(16)]
        case Type.Q5_0:  # uniform 0..31 less 16: deviation 9.23
            parts = [half(deviation / 9.23), raw(4), raw(16)]
        case Type.Q8_0:  # uniform int8: deviation 73.9
            parts = [half(deviation / 73.9), raw(32)]
        case Type.Q4_K:
            # Scales 32..63 and minima 32..63 (6 bits each): 8-block super-blocks whose
            # mean scale is 47; the minimum cancels the mean of the nibbles.
            scale = deviation / (4.61 * 47.5)
            parts = [half(scale), half(scale * 7.5), full_scales(blocks, random), raw(128)]
        case Type.Q6_K:  # uniform 0..63 less 32: deviation 18.5; scales -64..63
            signed = random.integers(-64, 64, (blocks, 16), dtype=np.int8).view(np.uint8)
            parts = [raw(128), raw(64), signed, half(deviation / (18.5 * 37.0))]
        case _:
            raise ValueError(f"no random blocks for {kind.name}")
    return np.concatenate(parts, axis=1).reshape(rows, -1)


def full_scales(blocks: int, random: np.random.Generator) -> np.ndarray:
    """The 12 packed bytes of 8 six-bit scales and 8 six-bit minima, all in 32..63."""
    scales = random.integers(32, 64, (blocks, 8), dtype=np.uint8)
    minima = random.integers(32, 64, (blocks, 8), dtype=np.uint8)
    low = scales[:, :4] | (scales[:, 4:] >> 4) << 6
    middle = minima[:, :4] | (minima[:, 4:] >> 4) << 6
    high = (scales[:, 4:] & 15) | (minima[:, 4:] & 15) << 4
    return np.concatenate([low, middle, high], axis=1)


if __name__ == "__main__":
    sys.exit(main())
