"""The reference: Hugging Face models over dequantised GGUF weights, and what they answer.

Two directions meet here. `write_gguf` stores a Hugging Face model the way llama.cpp's
converter does (names, llama's interleaved query/key rows, Gemma's `1 + weight` norms);
`load_gguf` reads any GGUF of the four architectures back into a Hugging Face model in f32.
`record` asks such a model for logits and greedy text and stores them as a fixture.

A fixture is a JSON file and one raw file of little-endian f32 beside it; the format is
described in tests/fixtures/README.md. Nothing here is needed by the tests themselves:
only regenerating fixtures needs PyTorch.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, RopeScalingType
from gguf.quants import dequantize
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

CLASSES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "gemma3": (Gemma3TextConfig, Gemma3ForCausalLM),
}

GREEDY_TOKENS = 64
TOP = 20

LAYER_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
}

# What stands after attention differs: Gemma has norms on both sides of each block.
PLAIN_NORMS = {"post_attention_layernorm": "ffn_norm"}
GEMMA_NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def gguf_name(name: str, architecture: str) -> str:
    """The GGUF name of a Hugging Face parameter."""
    outer = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in outer:
        return outer[name]
    _, _, layer, rest = name.split(".", 3)
    stem, suffix = rest.rsplit(".", 1)
    norms = GEMMA_NORMS if architecture == "gemma3" else PLAIN_NORMS
    return f"blk.{layer}.{(LAYER_NAMES | norms)[stem]}.{suffix}"


def interleave(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head from halves (Hugging Face) to pairs (llama's GGUF)."""
    split = rows.reshape(heads, 2, rows.shape[0] // heads // 2, -1)
    return split.swapaxes(1, 2).reshape(rows.shape)


def deinterleave(rows: np.ndarray, heads: int) -> np.ndarray:
    split = rows.reshape(heads, rows.shape[0] // heads // 2, 2, -1)
    return split.swapaxes(1, 2).reshape(rows.shape)


# ---------------------------------------------------------------- Hugging Face to GGUF


def write_gguf(path: Path, model, architecture: str, vocabulary, types, seed: int) -> None:
    """Writes `model` as llama.cpp's converter would.

    `types` maps a GGUF tensor name to the type of a matrix; vectors stay f32. Types other
    than F32, F16 and BF16 are drawn as random blocks, so `model` must be loaded back.
    """
    writer = GGUFWriter(path, architecture)
    config = model.config
    write_parameters(writer, config, architecture)
    vocabulary(writer)
    random = np.random.Generator(np.random.PCG64(seed))
    if (factors := llama3_factors(config)) is not None:
        writer.add_tensor("rope_freqs.weight", factors)
    state = model.state_dict()
    for name, tensor in state.items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor.float().numpy().copy()
        if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
            query = "q_proj" in name
            heads = config.num_attention_heads if query else config.num_key_value_heads
            values = interleave(values, heads)
        if architecture == "gemma3" and name.endswith("norm.weight"):
            values = values + np.float32(1)
        stored = gguf_name(name, architecture)
        kind = types(stored) if values.ndim == 2 else GGMLQuantizationType.F32
        add_tensor(writer, stored, values, kind, random)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tensor(writer: GGUFWriter, name: str, values, kind, random) -> None:
    match kind:
        case GGMLQuantizationType.F32:
            writer.add_tensor(name, values)
        case GGMLQuantizationType.F16:
            writer.add_tensor(name, values.astype(np.float16))
        case GGMLQuantizationType.BF16:
            bits = (values.view(np.uint32) >> 16).astype(np.uint16)
            writer.add_tensor(name, bits.view(np.uint8), raw_dtype=kind)
        case _:
            writer.add_tensor(name, random_blocks(kind, values, random), raw_dtype=kind)


def write_parameters(writer: GGUFWriter, config, architecture: str) -> None:
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters
    rope = rope.get("full_attention", rope)
    writer.add_rope_freq_base(rope["rope_theta"])
    head_dim = head_dim_of(config)
    if architecture == "gemma3":
        writer.add_sliding_window(config.sliding_window)
    if architecture == "llama":
        writer.add_vocab_size(config.vocab_size)
        writer.add_rope_dimension_count(head_dim)
    # Like the published files: elsewhere only where it is not hidden size / heads.
    if architecture == "gemma3" or head_dim * config.num_attention_heads != config.hidden_size:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    match rope["rope_type"]:
        case "default" | "llama3":
            pass
        case "linear":
            writer.add_rope_scaling_type(RopeScalingType.LINEAR)
            writer.add_rope_scaling_factor(rope["factor"])
        case "yarn":
            writer.add_rope_scaling_type(RopeScalingType.YARN)
            writer.add_rope_scaling_factor(rope["factor"])
            writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
            for key, add in (
                ("attention_factor", writer.add_rope_scaling_yarn_attn_factor),
                ("beta_fast", writer.add_rope_scaling_yarn_beta_fast),
                ("beta_slow", writer.add_rope_scaling_yarn_beta_slow),
            ):
                if rope.get(key) is not None:
                    add(rope[key])
        case other:
            raise ValueError(f"rope type {other}")


def llama3_factors(config) -> np.ndarray | None:
    """The divisors of llama3's rope scaling, which a GGUF stores as a tensor."""
    rope = config.rope_parameters
    if rope.get("rope_type") != "llama3":
        return None
    dim = head_dim_of(config)
    frequencies = 1.0 / rope["rope_theta"] ** (np.arange(0, dim, 2, dtype=np.float64) / dim)
    factor, low, high = rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"]
    original = rope["original_max_position_embeddings"]
    factors = []
    for frequency in frequencies:
        length = 2 * math.pi / frequency
        if length < original / high:
            factors.append(1.0)
        elif length > original / low:
            factors.append(factor)
        else:
            smooth = (original / length - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, dtype=np.float32)


def head_dim_of(config) -> int:
    own = getattr(config, "head_dim", None)
    return own or config.hidden_size // config.num_attention_heads


# (bytes of a block, values of a block, byte offsets of its f16 scales)
BLOCKS = {
    GGMLQuantizationType.Q4_0: (18, 32, [0]),
    GGMLQuantizationType.Q4_1: (20, 32, [0, 2]),
    GGMLQuantizationType.Q5_0: (22, 32, [0]),
    GGMLQuantizationType.Q5_1: (24, 32, [0, 2]),
    GGMLQuantizationType.Q8_0: (34, 32, [0]),
    GGMLQuantizationType.Q2_K: (84, 256, [80, 82]),
    GGMLQuantizationType.Q3_K: (110, 256, [108]),
    GGMLQuantizationType.Q4_K: (144, 256, [0, 2]),
    GGMLQuantizationType.Q5_K: (176, 256, [0, 2]),
    GGMLQuantizationType.Q6_K: (210, 256, [208]),
}


def random_blocks(kind, values: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Blocks of random bits whose scales give about the deviation of `values`.

    Random bits reach every code point, six-bit scale and high plane, which quantising
    smooth values does not; scales are of both signs.
    """
    size, length, offsets = BLOCKS[kind]
    rows, columns = values.shape
    count = rows * columns // length
    blocks = random.integers(0, 256, (count, size), dtype=np.uint8)
    scales = random.uniform(0.75, 1.25, (count, len(offsets)))
    scales *= random.choice([-1.0, 1.0], (count, 1))
    if len(offsets) == 2:
        # Additive minima (Q4_1, Q5_1) oppose the scale, subtractive ones share its sign.
        legacy = kind in (GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q5_1)
        middle = {84: 1.5, 144: 7.5, 176: 15.5, 20: 7.5, 24: 15.5}[size]
        scales[:, 1] *= -middle if legacy else middle

    def fill(factor: float) -> np.ndarray:
        for column, offset in enumerate(offsets):
            halves = (scales[:, column : column + 1] * factor).astype(np.float16)
            blocks[:, offset : offset + 2] = halves.view(np.uint8)
        return dequantize(blocks.reshape(rows, -1), kind)

    fill(values.std() / fill(1e-2).std() * 1e-2)
    return blocks.reshape(rows, -1)


# ---------------------------------------------------------------- GGUF to Hugging Face


@dataclass
class Loaded:
    """A reference model and the parts of its file that fixtures need."""

    model: torch.nn.Module
    architecture: str
    fields: dict


def load_gguf(path: Path, dtype: torch.dtype = torch.float32) -> Loaded:
    """A Hugging Face model in f32 over the dequantised weights of a GGUF file."""
    reader = GGUFReader(path)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    architecture = fields["general.architecture"]
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    config = config_of(fields, tensors, architecture)
    with torch.device("meta"):
        model = CLASSES[architecture][1](config)
    model = model.to(dtype).to_empty(device="cpu").eval()
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    state = {}
    for name in model.state_dict():
        stored = gguf_name(name, architecture)
        if stored == "output.weight" and config.tie_word_embeddings:
            stored = "token_embd.weight"
        values = dequantize(tensors[stored].data, tensors[stored].tensor_type)
        values = values.reshape([int(n) for n in reversed(tensors[stored].shape)])
        projection = name.split(".")[-2]
        if architecture == "llama" and projection in heads:
            values = deinterleave(values, heads[projection])
        if architecture == "gemma3" and name.endswith("norm.weight"):
            values = values - np.float32(1)
        state[name] = torch.from_numpy(np.array(values, dtype=np.float32)).to(dtype)
    model.load_state_dict(state, assign=True)
    model.tie_weights()
    # Non-persistent buffers (rope frequencies) were made on the meta device: make them again.
    fresh = type(model.model.rotary_emb)(config)
    model.model.rotary_emb = fresh
    if architecture == "gemma3":
        embed = model.model.embed_tokens
        embed.embed_scale = torch.tensor(config.hidden_size**0.5, dtype=dtype)
    return Loaded(model, architecture, fields)


def config_of(fields: dict, tensors: dict, architecture: str):
    """The Hugging Face configuration that a GGUF's metadata describes."""

    def get(key: str, default=None):
        return fields.get(f"{architecture}.{key}", default)

    heads, hidden = get("attention.head_count"), get("embedding_length")
    head_dim = get("attention.key_length", hidden // heads)
    scaling = rope_of(get, tensors, head_dim)
    arguments = dict(
        vocab_size=int(tensors["token_embd.weight"].shape[1]),
        hidden_size=hidden,
        intermediate_size=get("feed_forward_length"),
        num_hidden_layers=get("block_count"),
        num_attention_heads=heads,
        num_key_value_heads=get("attention.head_count_kv", heads),
        head_dim=head_dim,
        rms_norm_eps=get("attention.layer_norm_rms_epsilon"),
        max_position_embeddings=get("context_length"),
        tie_word_embeddings="output.weight" not in tensors,
        rope_parameters=scaling,
        attn_implementation="eager",
    )
    if architecture == "gemma3":
        local = {"rope_type": "default", "rope_theta": get("rope.freq_base_swa", 10_000.0)}
        arguments |= dict(
            rope_parameters={"full_attention": scaling, "sliding_attention": local},
            sliding_window=get("attention.sliding_window"),
            query_pre_attn_scalar=head_dim,
        )
    return CLASSES[architecture][0](**arguments)


def rope_of(get, tensors: dict, head_dim: int) -> dict:
    rope = {"rope_type": "default", "rope_theta": get("rope.freq_base", 10_000.0)}
    kind = get("rope.scaling.type", "none")
    if "rope_freqs.weight" in tensors:
        raise ValueError("llama3 factors cannot be turned back into a configuration")
    if kind == "linear":
        rope |= {"rope_type": "linear", "factor": get("rope.scaling.factor")}
    if kind == "yarn":
        rope |= {
            "rope_type": "yarn",
            "factor": get("rope.scaling.factor"),
            "original_max_position_embeddings": get("rope.scaling.original_context_length"),
        }
        for key, name in (
            ("yarn_attn_factor", "attention_factor"),
            ("yarn_beta_fast", "beta_fast"),
            ("yarn_beta_slow", "beta_slow"),
        ):
            if (value := get(f"rope.scaling.{key}")) is not None:
                rope[name] = value
    return rope


# ---------------------------------------------------------------- recording


@dataclass(frozen=True)
class Sequence:
    """One prompt: its ids, and the positions whose logits and whose best ids are stored.

    Positions index the prompt followed by the greedy continuation.
    """

    name: str
    ids: list[int]
    positions: list[int]
    top_positions: list[int]
    text: str | None = None


def record(model, sequences: list[Sequence], stride: int, path: Path, about: dict) -> None:
    """Writes `path`.json and `path`.f32: what `model` answers to each sequence."""
    rows, entries, offset = [], [], 0
    for sequence in sequences:
        greedy = continue_greedily(model, sequence.ids)
        logits = all_logits(model, sequence.ids + greedy)
        last = len(sequence.ids) - 1
        own = logits[last : last + GREEDY_TOKENS]
        top = np.sort(own, axis=1)[:, -2:]
        assert own.argmax(axis=1).tolist() == greedy, "one pass and stepwise disagree"
        stored = logits[sequence.positions][:, ::stride]
        rows.append(stored)
        entry = {"name": sequence.name}
        if sequence.text is not None:
            entry["text"] = sequence.text
        entry["token_ids"] = sequence.ids
        entry["greedy"] = {
            "token_ids": greedy,
            "margins": [round(float(high - low), 5) for low, high in top],
        }
        entry["logits"] = {
            "positions": sequence.positions,
            "offset_f32": offset,
            "columns": stored.shape[1],
            "column_stride": stride,
        }
        entry["top"] = [top_of(at, logits[at]) for at in sequence.top_positions]
        offset += stored.size
        entries.append(entry)
    raw = np.concatenate([row.reshape(-1) for row in rows]).astype("<f4")
    raw.tofile(path.with_suffix(".f32"))
    write_json(path.with_suffix(".json"), about | {"sequences": entries})


def top_of(position: int, row: np.ndarray) -> dict:
    """The largest logits of a row, best first."""
    ids = np.argsort(-row, kind="stable")[:TOP]
    logits = [round(float(row[index]), 5) for index in ids]
    return {"position": position, "ids": ids.tolist(), "logits": logits}


@torch.inference_mode()
def continue_greedily(model, ids: list[int]) -> list[int]:
    """The GREEDY_TOKENS tokens that follow, end-of-text tokens included as any other."""
    out = model(torch.tensor([ids]), use_cache=True, logits_to_keep=1)
    tokens = []
    while True:
        tokens.append(int(out.logits[0, -1].argmax()))
        if len(tokens) == GREEDY_TOKENS:
            return tokens
        step = torch.tensor([[tokens[-1]]])
        out = model(step, cache=out.cache, use_cache=True)


@torch.inference_mode()
def all_logits(model, ids: list[int]) -> np.ndarray:
    return model(torch.tensor([ids]), use_cache=False).logits[0].float().numpy()


def write_json(path: Path, value: dict) -> None:
    """JSON with one line for each list of numbers, so that diffs stay readable."""
    path.write_text(render(value, 0) + "\n")


def render(value, depth: int) -> str:
    nested = (list, dict)
    if isinstance(value, dict) and value:
        inner = ",\n".join(
            f"{' ' * (depth + 1)}{json.dumps(key)}: {render(item, depth + 1)}"
            for key, item in value.items()
        )
        return "{\n" + inner + "\n" + " " * depth + "}"
    if isinstance(value, list) and any(isinstance(item, nested) for item in value):
        inner = ",\n".join(" " * (depth + 1) + json.dumps(item) if not isinstance(item, nested)
                           else " " * (depth + 1) + render(item, depth + 1) for item in value)
        return "[\n" + inner + "\n" + " " * depth + "]"
    return json.dumps(value)
