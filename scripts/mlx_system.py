#!/usr/bin/env python3
"""mlx-lm as a system of the experiment: a GGUF's weights in MLX's form, asked by lines of JSON.

    mlx_system.py MODEL.gguf FOLDER            converts where FOLDER has nothing yet, then serves
    mlx_system.py MODEL.gguf FOLDER --convert  converts only

Needs `mlx-lm`, `mlx[cpu]` and `gguf` from PyPI. Weights are not quantised anew where MLX's own form
can hold them: Q4_0 and Q4_1 are 4-bit groups of 32 with a scale and an offset, Q8_0 is 8-bit groups
of 32, both exact. Other types (K-quants) become 8-bit groups of 32, the nearest that MLX has.
Everything else is float32: on x86 processors MLX computes float16 in software.

A request is {"prompt": …, "max_tokens": …}; the answer has text, prompt_tokens, decode_tokens and
ttft_ms. Decoding is greedy; caches and allocation are mlx-lm's defaults.
"""

import json
import sys
import time
from pathlib import Path

import mlx.core as mx
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import GGUFReader, dequantize

GROUP = 32
# Names of a decoder's tensors: GGUF's, and those of mlx-lm's models.
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
GEMMA_NAMES = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
OUTER_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}


def field(reader: GGUFReader, name: str, default=None):
    """A value of the metadata."""
    entry = reader.fields.get(name)
    return default if entry is None else entry.contents()


def mlx_name(name: str, architecture: str) -> str:
    """The name in mlx-lm of a tensor of the file."""
    stem, end = name.rsplit(".", 1)
    if not stem.startswith("blk."):
        return f"{OUTER_NAMES[stem]}.{end}"
    _, layer, part = stem.split(".", 2)
    names = {**LAYER_NAMES, **GEMMA_NAMES} if architecture == "gemma3" else LAYER_NAMES
    return f"model.layers.{layer}.{names[part]}.{end}"


def pack(q: np.ndarray, bits: int) -> mx.array:
    """Integers [rows, cols] as MLX packs them: the first in the lowest bits of 32."""
    each = 32 // bits
    rows, cols = q.shape
    words = np.zeros((rows, cols // each), dtype=np.uint32)
    for index in range(each):
        words |= q[:, index::each].astype(np.uint32) << np.uint32(bits * index)
    return mx.array(words)


def scale32(values: np.ndarray) -> mx.array:
    return mx.array(values.astype(np.float32))


def exact(data: np.ndarray, kind: Type, rows: int, cols: int):
    """Integers, scales and offsets of a type that MLX can hold, and its bits."""
    sizes = {Type.Q4_0: 18, Type.Q4_1: 20, Type.Q8_0: 34}
    blocks = np.ascontiguousarray(data).view(np.uint8).reshape(rows, cols // GROUP, sizes[kind])
    scale = blocks[:, :, :2].copy().view(np.float16)[:, :, 0]
    if kind == Type.Q8_0:
        q = blocks[:, :, 2:].view(np.int8).astype(np.int16) + 128
        return q.reshape(rows, cols), scale, (scale * np.float16(-128)), 8
    nibbles = blocks[:, :, 4 if kind == Type.Q4_1 else 2 :]
    q = np.concatenate([nibbles & 15, nibbles >> 4], axis=2).reshape(rows, cols)
    offset = scale * np.float16(-8)
    if kind == Type.Q4_1:
        offset = blocks[:, :, 2:4].copy().view(np.float16)[:, :, 0]
    return q, scale, offset, 4


# How the two byte-level families cut a text before merging.
QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
NORMAL = 1


def tokenizer(reader: GGUFReader):
    """The file's byte-level vocabulary as transformers keeps it."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    get = lambda name, default=None: field(reader, f"tokenizer.ggml.{name}", default)
    if get("model") != "gpt2":
        raise SystemExit(f"tokeniser {get('model')}: only byte-level vocabularies are converted")
    tokens = get("tokens")
    merges = [tuple(merge.split(" ", 1)) for merge in get("merges")]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    bytes_alone = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if get("pre") == "qwen2":
        split = pre_tokenizers.Split(Regex(QWEN2_SPLIT), "isolated")
        inner.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_alone])
    else:
        digits = pre_tokenizers.Digits(individual_digits=True)
        words = pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.pre_tokenizer = pre_tokenizers.Sequence([digits, words])
    inner.decoder = decoders.ByteLevel()
    kinds = get("token_type")
    special = [token for token, kind in zip(tokens, kinds) if kind != NORMAL]
    inner.add_special_tokens([AddedToken(token, special=True) for token in special])
    eos = tokens[get("eos_token_id")]
    outer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=eos)
    outer.chat_template = field(reader, "tokenizer.chat_template")
    return outer


def convert(gguf: Path, folder: Path) -> None:
    """Writes config, tokeniser and weights."""
    reader = GGUFReader(gguf)
    architecture = field(reader, "general.architecture")
    get = lambda name, default=None: field(reader, f"{architecture}.{name}", default)
    weights, quantization = {}, {"group_size": GROUP, "bits": 4}
    for tensor in reader.tensors:
        name = mlx_name(tensor.name, architecture)
        shape = [int(size) for size in reversed(tensor.shape)]
        if len(shape) == 1:
            vector = dequantize(tensor.data, tensor.tensor_type).reshape(shape)
            if architecture == "gemma3" and "norm" in name:
                vector = vector - 1  # the file has 1 + w, the model adds the 1 itself
            weights[name] = mx.array(vector.astype(np.float32))
            continue
        stem = name.removesuffix(".weight")
        if tensor.tensor_type in (Type.Q4_0, Type.Q4_1, Type.Q8_0):
            q, scale, offset, bits = exact(tensor.data, tensor.tensor_type, *shape)
            packed, scale, offset = pack(q, bits), scale32(scale), scale32(offset)
        else:
            dense = dequantize(tensor.data, tensor.tensor_type).reshape(shape)
            bits = 8
            dense = mx.array(dense.astype(np.float32))
            packed, scale, offset = mx.quantize(dense, group_size=GROUP, bits=bits)
        if bits != 4:
            quantization[stem] = {"group_size": GROUP, "bits": bits}
        weights |= {f"{stem}.weight": packed, f"{stem}.scales": scale, f"{stem}.biases": offset}
        mx.eval(packed, scale, offset)
    heads = get("attention.head_count")
    config = {
        "model_type": {"gemma3": "gemma3_text"}.get(architecture, architecture),
        "hidden_size": get("embedding_length"),
        "num_hidden_layers": get("block_count"),
        "intermediate_size": get("feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": get("attention.head_count_kv"),
        "head_dim": get("attention.key_length", get("embedding_length") // heads),
        "rms_norm_eps": get("attention.layer_norm_rms_epsilon"),
        "rope_theta": get("rope.freq_base", 10000.0),
        "vocab_size": len(field(reader, "tokenizer.ggml.tokens")),
        "max_position_embeddings": get("context_length"),
        "tie_word_embeddings": "lm_head.weight" not in weights,
        # Files of the llama family have their heads in the order of the original code.
        "rope_traditional": architecture == "llama",
        "quantization": quantization,
        "eos_token_id": field(reader, "tokenizer.ggml.eos_token_id"),
    }
    if architecture == "gemma3":
        config["sliding_window"] = get("attention.sliding_window")
        config["query_pre_attn_scalar"] = config["head_dim"]
    rows = next(t for t in reader.tensors if t.name == "token_embd.weight").shape[1]
    config["vocab_size"] = int(rows)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer(reader).save_pretrained(folder)
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    # Last, so that a folder with it is whole.
    (folder / "config.json").write_text(json.dumps(config, indent=1))


def serve(folder: Path) -> None:
    """Answers every line of standard input."""
    from mlx_lm import load, stream_generate

    model, tokenizer = load(str(folder))
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        if not line.strip():
            continue
        request = json.loads(line)
        start = time.perf_counter()
        messages = [{"role": "user", "content": request["prompt"]}]
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
        first, text, last = 0.0, "", None
        for last in stream_generate(model, tokenizer, ids, max_tokens=request["max_tokens"]):
            first = first or time.perf_counter() - start
            text += last.text
        answer = {
            "text": text,
            "prompt_tokens": len(ids),
            "decode_tokens": last.generation_tokens if last else 0,
            "ttft_ms": first * 1e3,
        }
        print(json.dumps(answer), flush=True)


def main() -> None:
    gguf, folder = Path(sys.argv[1]), Path(sys.argv[2])
    if not (folder / "config.json").exists():
        print(f"converting {gguf} to {folder}", file=sys.stderr)
        convert(gguf, folder)
    if "--convert" not in sys.argv:
        serve(folder)


if __name__ == "__main__":
    main()
