#!/usr/bin/env python3
"""Makes image encoders with a decoder each, and what Hugging Face transformers says of them.

The models are random and seeded; their files are stored as llama.cpp's converter stores them. The
tiny ones and their answers are the fixtures `vision-*` of tests/fixtures. `--real DIRECTORY` makes
the true configuration of SmolVLM-256M, a model in the style of LFM2-VL and Qwen2.5-VL-3B with fewer
layers instead, in f32, f16 and q8_0, for the ignored tests of engine/tests/vision.rs and qwen25vl.rs.

    pip install torch transformers gguf
    scripts/make_vision_fixtures.py [--real DIRECTORY] [NAME ...]

Matrices hold f16 values, so that f32 and f16 files share one set of answers.
"""

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from gguf import GGUFWriter
from gguf.quants import quantize
from transformers import (
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    LlamaConfig,
    LlamaForCausalLM,
    Siglip2VisionConfig,
    Siglip2VisionModel,
)
from transformers.models.lfm2_vl.configuration_lfm2_vl import Lfm2VlConfig
from transformers.models.lfm2_vl.modeling_lfm2_vl import Lfm2VlMultiModalProjector

import qwen25vl
import reference
from make_fixtures import byte_pair_vocabulary

FIXTURES = Path(__file__).resolve().parent.parent / "tests" / "fixtures"
GREEDY_TOKENS = 32


@dataclass(frozen=True)
class Shape:
    """An encoder and its decoder."""

    projector: str
    patch: int
    image_size: int
    hidden: int
    heads: int
    feed_forward: int
    layers: int
    merge: int
    grid: tuple[int, int]
    mean: tuple[float, float, float]
    deviation: tuple[float, float, float]
    text_hidden: int
    text_heads: int
    text_kv_heads: int
    text_head_dim: int
    text_feed_forward: int
    text_layers: int
    vocabulary: int
    middle: int = 0
    input_norm: bool = True
    swapped: bool = False
    layer_scale: bool = False
    joined: bool = False


HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
TINY_TEXT = (32, 2, 1, 16, 48, 2, 270)

TINY = {
    "vision-idefics3": Shape(
        "idefics3", 8, 64, 48, 3, 80, 2, 4, (8, 8), *HALF, *TINY_TEXT, swapped=True
    ),
    "vision-lfm2": Shape(
        "lfm2", 14, 112, 32, 2, 64, 2, 2, (6, 10), *IMAGENET, *TINY_TEXT, middle=40
    ),
    "vision-lfm2-scale": Shape(
        "lfm2", 4, 16, 32, 1, 48, 2, 2, (8, 4), *HALF, *TINY_TEXT, 40, False, False, True
    ),
    # Heads that are no whole vectors, as SO400M's 72, and one tensor for three projections.
    "vision-joined": Shape(
        "lfm2", 4, 16, 96, 4, 48, 1, 2, (6, 8), *HALF, *TINY_TEXT, 40, joined=True
    ),
}

REAL_TEXT = (576, 9, 3, 64, 1536, 30, 49280)
REAL = {
    "smolvlm-256m": Shape(
        "idefics3", 16, 512, 768, 12, 3072, 12, 4, (32, 32), *HALF, *REAL_TEXT
    ),
    "lfm2-style": Shape(
        "lfm2", 16, 256, 768, 12, 3072, 12, 2, (24, 38), *HALF, *REAL_TEXT, middle=2560
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--real", type=Path, metavar="DIRECTORY", help="the true configurations")
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all")
    arguments = parser.parse_args()
    shapes, folder = (REAL, arguments.real) if arguments.real else (TINY, FIXTURES)
    folder.mkdir(parents=True, exist_ok=True)
    for index, (name, shape) in enumerate(shapes.items()):
        if not arguments.names or name in arguments.names:
            make(name, shape, folder, 4000 + index, arguments.real is not None)
    qwen25vl.make_all(folder, arguments.real is not None, arguments.names)
    return 0


def make(name: str, shape: Shape, folder: Path, seed: int, is_real: bool) -> None:
    torch.manual_seed(seed)
    random = np.random.Generator(np.random.PCG64(seed))
    vision, text, scales = build(shape, random)
    kinds = {"f32": Type.F32, "f16": Type.F16, "q8_0": Type.Q8_0}
    if not is_real:
        del kinds["q8_0"]
    files = []
    for suffix, kind in kinds.items():
        path = folder / f"{name}-mmproj-{suffix}.gguf"
        write_vision(path, shape, vision, scales, kind)
        files.append(path.name)
    text_file = folder / f"{name}-text-f16.gguf"
    write_text = reference.write_gguf
    write_text(text_file, text, "llama", byte_pair_vocabulary("smollm"), lambda _: Type.F16, seed)
    rows, columns = shape.grid
    height, width = rows * shape.patch, columns * shape.patch
    pixels = picture(height, width, random)
    with torch.no_grad():
        layers = encode(shape, vision, scales, pixels)
        record(name, shape, folder, files, text_file.name, text, pixels, layers, random)


def picture(height: int, width: int, random) -> np.ndarray:
    """Smooth colours with noise and edges: neither flat nor pure noise."""
    y, x = np.mgrid[0:height, 0:width] / max(height, width)
    waves = np.stack([np.sin(9 * x + 2 * y), np.cos(7 * y - 3 * x), np.sin(12 * x * y)], -1)
    noise = random.normal(0, 0.2, (height, width, 3))
    blocks = (np.floor(6 * x) + np.floor(5 * y))[..., None] % 2 - 0.5
    return np.clip(128 + 70 * (waves + noise) + 50 * blocks, 0, 255).astype(np.uint8)


# ---------------------------------------------------------------- models


def build(shape: Shape, random):
    """The encoder with its projector, the decoder, and LayerScale factors."""
    text_config = LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.text_hidden,
        intermediate_size=shape.text_feed_forward,
        num_hidden_layers=shape.text_layers,
        num_attention_heads=shape.text_heads,
        num_key_value_heads=shape.text_kv_heads,
        head_dim=shape.text_head_dim,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
        attn_implementation="eager",
    )
    text = LlamaForCausalLM(text_config).float().eval()
    side = shape.image_size // shape.patch
    common = dict(
        hidden_size=shape.hidden,
        intermediate_size=shape.feed_forward,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        patch_size=shape.patch,
        layer_norm_eps=1e-6,
        hidden_act="gelu_pytorch_tanh",
        attn_implementation="eager",
    )
    if shape.projector == "idefics3":
        config = Idefics3Config(
            vision_config=common | {"image_size": shape.image_size},
            text_config=text_config.to_dict() | {"num_hidden_layers": 1, "vocab_size": 64},
            scale_factor=shape.merge,
            image_token_id=63,
            attn_implementation="eager",
        )
        whole = Idefics3ForConditionalGeneration(config).float().eval().model
        vision = torch.nn.ModuleDict({"tower": whole.vision_model, "projector": whole.connector})
    else:
        tower = Siglip2VisionConfig(**common, num_patches=side * side, vision_use_head=False)
        config = Lfm2VlConfig(
            vision_config=tower,
            text_config={"model_type": "lfm2", "hidden_size": shape.text_hidden},
            projector_hidden_act="gelu_pytorch_tanh",
            projector_hidden_size=shape.middle,
            projector_use_layernorm=shape.input_norm,
            downsample_factor=shape.merge,
        )
        tower._attn_implementation = "eager"
        projector = Lfm2VlMultiModalProjector(config)
        vision = torch.nn.ModuleDict({"tower": Siglip2VisionModel(tower), "projector": projector})
    for model in (vision.float().eval(), text):
        fill(model, random)
    draw = lambda: torch.from_numpy(random.normal(0.8, 0.3, shape.hidden)).float()
    scales = [(draw(), draw()) for _ in range(shape.layers)] if shape.layer_scale else None
    return vision, text, scales


def fill(model, random) -> None:
    """Weights that every answer depends on strongly; matrices in f16 values."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = random.standard_normal(tuple(parameter.shape))
            if parameter.ndim == 1:
                is_norm = name.endswith("weight")
                values = values * 0.15 + 1 if is_norm else values * 0.2
            elif "embed" in name and parameter.ndim == 2 and "patch" not in name:
                values *= 0.4
            else:
                gain = 1.6 if "q_proj" in name or "k_proj" in name else 1.0
                values *= gain * np.prod(parameter.shape[1:]) ** -0.5
            values = torch.from_numpy(values).float()
            parameter.copy_(values if parameter.ndim == 1 else values.half().float())


def normalised(shape: Shape, pixels: np.ndarray) -> torch.Tensor:
    x = torch.from_numpy(pixels).float() / 255
    return (x - torch.tensor(shape.mean)) / torch.tensor(shape.deviation)


def encode(shape: Shape, vision, scales, pixels: np.ndarray) -> dict[str, torch.Tensor]:
    """Every layer's output, under the names that the program gives them."""
    tower, kept = vision["tower"], {}
    keep = lambda name: lambda _, __, output: kept.__setitem__(
        name, (output[0] if isinstance(output, tuple) else output)[0]
    )
    handles = [tower.embeddings.register_forward_hook(keep("positions"))]
    for index, layer in enumerate(tower.encoder.layers):
        handles.append(layer.register_forward_hook(keep(f"blk.{index}.ffn_residual")))
        if scales:
            scale = lambda factors: lambda _, __, output: (
                (output[0] * factors, *output[1:])
                if isinstance(output, tuple)
                else output * factors
            )
            handles.append(layer.self_attn.register_forward_hook(scale(scales[index][0])))
            handles.append(layer.mlp.register_forward_hook(scale(scales[index][1])))
    handles.append(tower.post_layernorm.register_forward_hook(keep("post_ln")))
    rows, columns = shape.grid
    x = normalised(shape, pixels)
    if shape.projector == "idefics3":
        states = tower(pixel_values=x.permute(2, 0, 1)[None]).last_hidden_state
        kept["projector.fc"] = vision["projector"](states)[0]
    else:
        p = shape.patch
        patches = x.reshape(rows, p, columns, p, 3).permute(0, 2, 1, 3, 4)
        patches = patches.reshape(1, rows * columns, p * p * 3)
        states = tower(
            pixel_values=patches,
            pixel_attention_mask=torch.ones(1, rows * columns, dtype=torch.long),
            spatial_shapes=torch.tensor([[rows, columns]]),
        ).last_hidden_state
        projected = vision["projector"](states.reshape(1, rows, columns, -1))
        kept["projector.2_bias"] = projected.reshape(-1, shape.text_hidden)
    for handle in handles:
        handle.remove()
    return kept


# ---------------------------------------------------------------- files


def write_vision(path: Path, shape: Shape, vision, scales, kind: Type) -> None:
    writer = GGUFWriter(path, "clip")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", shape.projector)
    writer.add_bool("clip.use_gelu", True)
    put = lambda key, value: writer.add_uint32(f"clip.vision.{key}", value)
    put("image_size", shape.image_size)
    put("patch_size", shape.patch)
    put("embedding_length", shape.hidden)
    put("feed_forward_length", shape.feed_forward)
    put("block_count", shape.layers)
    put("projection_dim", shape.text_hidden)
    put("attention.head_count", shape.heads)
    put("projector.scale_factor", shape.merge)
    if shape.projector == "idefics3":
        put("preproc_image_size", 4 * shape.image_size)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    writer.add_array("clip.vision.image_mean", list(shape.mean))
    writer.add_array("clip.vision.image_std", list(shape.deviation))
    tensors = vision_tensors(shape, vision.state_dict())
    for name, values in join(tensors) if shape.joined else tensors:
        add(writer, name, values.numpy(), kind)
    for index, factors in enumerate(scales or []):
        for number, values in enumerate(factors, 1):
            writer.add_tensor(f"v.blk.{index}.ls{number}.weight", values.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def join(tensors):
    """Query, key and value projections as one tensor, rows in that order."""
    parts = {}
    for name, values in tensors:
        layer, _, part = name.rpartition(".attn_")
        which, _, kind = part.partition(".")
        if not layer or which not in ("q", "k", "v"):
            yield name, values
            continue
        held = parts.setdefault((layer, kind), {})
        held[which] = values
        if len(held) == 3:
            yield f"{layer}.attn_qkv.{kind}", torch.cat([held[key] for key in "qkv"])


def add(writer: GGUFWriter, name: str, values: np.ndarray, kind: Type) -> None:
    """Vectors and positions stay f32, patches at most f16, as the converter does."""
    if values.ndim == 1 or name.startswith("v.position"):
        kind = Type.F32
    elif name.startswith("v.patch") and kind == Type.Q8_0:
        kind = Type.F16
    match kind:
        case Type.F32:
            writer.add_tensor(name, values)
        case Type.F16:
            writer.add_tensor(name, values.astype(np.float16))
        case _:
            writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)


LAYER = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.out_proj": "attn_out",
    "layer_norm1": "ln1",
    "layer_norm2": "ln2",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
}
OUTER = {
    "tower.embeddings.patch_embedding": "v.patch_embd",
    "tower.embeddings.position_embedding": "v.position_embd",
    "tower.post_layernorm": "v.post_ln",
    "projector.modality_projection.proj": "mm.model.fc",
    "projector.layer_norm": "mm.input_norm",
    "projector.linear_1": "mm.1",
    "projector.linear_2": "mm.2",
}


def vision_tensors(shape: Shape, state: dict):
    for name, values in state.items():
        stem, suffix = name.rsplit(".", 1)
        if stem.startswith("tower.encoder.layers."):
            _, _, _, index, part = stem.split(".", 4)
            part = LAYER[part]
            if shape.swapped and part.startswith("ffn"):
                part = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"}[part]
            stored = f"v.blk.{index}.{part}"
        else:
            stored = OUTER[stem]
        if stored == "v.patch_embd" and suffix == "weight" and values.ndim == 2:
            # Linear over (row, column, channel) to a convolution's (channel, row, column).
            p = shape.patch
            values = values.reshape(-1, p, p, 3).permute(0, 3, 1, 2).contiguous()
        yield f"{stored}.{suffix}", values


# ---------------------------------------------------------------- answers


def record(name, shape, folder, files, text_file, text, pixels, layers, random) -> None:
    """The picture, each layer, and the decoder's logits and greedy text after both."""
    image = list(layers.values())[-1]
    before, after = (random.integers(0, 256, length).tolist() for length in (5, 7))
    ids = before + [0] * len(image) + after
    embed = text.get_input_embeddings()
    inputs = embed(torch.tensor(ids))
    inputs[len(before) : len(before) + len(image)] = image
    logits, greedy, margins = answer(text, embed, inputs)
    floats, entries = [], []
    for layer, values in layers.items():
        entries.append(
            {"name": layer, "tokens": len(values), "features": values.shape[1], "offset_f32": sum(map(len, floats))}
        )
        floats.append(values.reshape(-1).numpy())
    offset = sum(map(len, floats))
    floats.append(logits.numpy())
    np.concatenate(floats).astype("<f4").tofile(folder / f"{name}.f32")
    pixels.tofile(folder / f"{name}.rgb")
    about = {
        "mmproj_files": files,
        "text_file": text_file,
        "grid": list(shape.grid),
        "layers": entries,
        "before": before,
        "after": after,
        "logits_offset_f32": offset,
        "vocabulary": shape.vocabulary,
        "greedy": {"token_ids": greedy, "margins": margins},
    }
    (folder / f"{name}.json").write_text(json.dumps(about, indent=1) + "\n")
    print(name, "margin", min(margins), "distinct", len(set(greedy)), flush=True)


def answer(text, embed, inputs):
    """Logits after the prompt, and the tokens of largest logit that follow."""
    greedy, margins, first = [], [], None
    output = text(inputs_embeds=inputs[None], use_cache=True)
    for _ in range(GREEDY_TOKENS):
        logits = output.logits[0, -1]
        first = logits if first is None else first
        best = torch.topk(logits, 2)
        greedy.append(int(best.indices[0]))
        margins.append(float(best.values[0] - best.values[1]))
        output = text(
            inputs_embeds=embed(best.indices[:1])[None],
            past_key_values=output.past_key_values,
            use_cache=True,
        )
    return first, greedy, margins


if __name__ == "__main__":
    sys.exit(main())
