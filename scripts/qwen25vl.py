"""Makes Qwen2.5-VL encoders with a decoder each, and what Hugging Face transformers says of them.

Called by `make_vision_fixtures.py`; the models are random and seeded, their files stored as
llama.cpp's converter stores them. A prompt shows several pictures; their sizes leave windows ragged
at both edges, and one is smaller than a window.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from gguf import GGUFWriter, TokenType
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

import reference
from make_fixtures import MERGES, byte_mark

CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
GREEDY_TOKENS = 32
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>"]
MERGE = 2


@dataclass(frozen=True)
class Shape:
    """An encoder and its decoder; every `pattern`th layer sees the whole picture."""

    patch: int
    hidden: int
    heads: int
    feed_forward: int
    layers: int
    window: int
    pattern: int
    grids: tuple[tuple[int, int], ...]
    text_hidden: int
    text_heads: int
    text_kv_heads: int
    text_feed_forward: int
    text_layers: int
    sections: tuple[int, int, int]


TINY = {
    "vision-qwen25vl": Shape(
        4, 48, 3, 84, 3, 32, 2, ((10, 18), (6, 4), (16, 8)), 32, 2, 1, 48, 2, (2, 3, 3)
    ),
}
REAL = {
    "qwen2.5-vl-3b-reduced": Shape(
        14, 1280, 16, 3420, 6, 112, 4, ((22, 34), (8, 16)), 2048, 16, 2, 11008, 3, (16, 24, 24)
    ),
}


def make_all(folder: Path, is_real: bool, names: list[str]) -> None:
    shapes = REAL if is_real else TINY
    for index, (name, shape) in enumerate(shapes.items()):
        if not names or name in names:
            make(name, shape, folder, 5000 + index, is_real)


def make(name: str, shape: Shape, folder: Path, seed: int, is_real: bool) -> None:
    from make_vision_fixtures import fill, picture

    torch.manual_seed(seed)
    random = np.random.Generator(np.random.PCG64(seed))
    model = build(shape)
    fill(model, random)
    with torch.no_grad():
        # Else a token says little but itself.
        embedding = model.get_input_embeddings().weight
        embedding.copy_((embedding * 0.25).half().float())
    kinds = {"f32": Type.F32, "f16": Type.F16, "q8_0": Type.Q8_0}
    if not is_real:
        del kinds["q8_0"]
    files = []
    for suffix, kind in kinds.items():
        path = folder / f"{name}-mmproj-{suffix}.gguf"
        write_vision(path, shape, model.state_dict(), kind)
        files.append(path.name)
    text_file = folder / f"{name}-text-f16.gguf"
    write_text(text_file, shape, model)
    pictures = [picture(r * shape.patch, c * shape.patch, random) for r, c in shape.grids]
    with torch.no_grad():
        record(name, shape, folder, files, text_file.name, model, pictures, random)


def build(shape: Shape):
    full = list(range(shape.pattern - 1, shape.layers, shape.pattern))
    first = len(MERGES) + 256
    ids = {token: first + index for index, token in enumerate(CONTROL)}
    config = Qwen2_5_VLConfig(
        vision_config=dict(
            depth=shape.layers,
            hidden_size=shape.hidden,
            intermediate_size=shape.feed_forward,
            num_heads=shape.heads,
            patch_size=shape.patch,
            spatial_merge_size=MERGE,
            window_size=shape.window,
            out_hidden_size=shape.text_hidden,
            fullatt_block_indexes=full,
        ),
        text_config=dict(
            vocab_size=first + len(CONTROL),
            hidden_size=shape.text_hidden,
            intermediate_size=shape.text_feed_forward,
            num_hidden_layers=shape.text_layers,
            num_attention_heads=shape.text_heads,
            num_key_value_heads=shape.text_kv_heads,
            max_position_embeddings=8192,
            rms_norm_eps=1e-6,
            tie_word_embeddings=True,
            rope_parameters={
                "rope_type": "default",
                "rope_theta": 1_000_000.0,
                "mrope_section": list(shape.sections),
            },
            bos_token_id=ids["<|endoftext|>"],
            eos_token_id=ids["<|im_end|>"],
        ),
        image_token_id=ids["<|image_pad|>"],
        video_token_id=first - 1,
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=True,
        attn_implementation="eager",
    )
    return Qwen2_5_VLForConditionalGeneration(config).float().eval()


# ---------------------------------------------------------------- files


def write_vision(path: Path, shape: Shape, state: dict, kind: Type) -> None:
    from make_vision_fixtures import add

    writer = GGUFWriter(path, "clip")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", "qwen2.5vl_merger")
    writer.add_bool("clip.use_silu", True)
    put = lambda key, value: writer.add_uint32(f"clip.vision.{key}", value)
    put("image_size", 40 * shape.patch)
    put("patch_size", shape.patch)
    put("embedding_length", shape.hidden)
    put("feed_forward_length", shape.feed_forward)
    put("block_count", shape.layers)
    put("projection_dim", shape.text_hidden)
    put("attention.head_count", shape.heads)
    put("n_wa_pattern", shape.pattern)
    if shape.window != 112:
        put("window_size", shape.window)
    put("image_max_pixels", 1024 * (shape.patch * MERGE) ** 2)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    writer.add_array("clip.vision.image_mean", list(CLIP[0]))
    writer.add_array("clip.vision.image_std", list(CLIP[1]))
    for name, values in vision_tensors(state):
        narrow = kind == Type.Q8_0 and values.ndim == 2 and values.shape[1] % 32 != 0
        add(writer, name, values.contiguous().numpy(), Type.F16 if narrow else kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


LAYER = {
    "attn.proj": "attn_out",
    "norm1": "ln1",
    "norm2": "ln2",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
OUTER = {"merger.ln_q": "v.post_ln", "merger.mlp.0": "mm.0", "merger.mlp.2": "mm.2"}


def vision_tensors(state: dict):
    """The encoder's parameters under their names in the file: q, k and v apart, the convolution
    over two frames as two kernels."""
    for name, values in state.items():
        if not name.startswith("model.visual."):
            continue
        stem, suffix = name.removeprefix("model.visual.").rsplit(".", 1)
        if stem == "patch_embed.proj":
            yield "v.patch_embd.weight", values[:, :, 0]
            yield "v.patch_embd.weight.1", values[:, :, 1]
        elif stem.startswith("blocks."):
            _, index, part = stem.split(".", 2)
            if part == "attn.qkv":
                for letter, rows in zip("qkv", values.chunk(3)):
                    yield f"v.blk.{index}.attn_{letter}.{suffix}", rows
            else:
                yield f"v.blk.{index}.{LAYER[part]}.{suffix}", values
        else:
            yield f"{OUTER[stem]}.{suffix}", values


def write_text(path: Path, shape: Shape, model) -> None:
    writer = GGUFWriter(path, "qwen2vl")
    reference.write_parameters(writer, model.config.text_config, "qwen2vl")
    writer.add_rope_dimension_sections([*shape.sections, 0])
    write_vocabulary(writer)
    for name, values in model.state_dict().items():
        if not name.startswith("model.language_model."):
            continue
        stored = reference.gguf_name(name.replace("language_model.", ""), "qwen2")
        kind = Type.F16 if values.ndim == 2 else Type.F32
        reference.add_tensor(writer, stored, values.numpy(), kind, None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_vocabulary(writer: GGUFWriter) -> None:
    tokens = [byte_mark(byte) for byte in range(256)]
    tokens += [merge.replace(" ", "") for merge in MERGES]
    kinds = [TokenType.NORMAL] * len(tokens) + [TokenType.CONTROL] * len(CONTROL)
    tokens += CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(tokens.index("<|endoftext|>"))
    writer.add_eos_token_id(tokens.index("<|im_end|>"))
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


# What Qwen2.5-VL's own template writes for text and pictures.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if loop.first and message['role'] != 'system' %}"
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}"
    "<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}<|im_end|>\n"
    "{% else %}{% for content in message['content'] %}"
    "{% if content['type'] == 'image' or 'image' in content %}"
    "<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif 'text' in content %}{{ content['text'] }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


# ---------------------------------------------------------------- answers


def record(name, shape, folder, files, text_file, model, pictures, random) -> None:
    """The pictures, each layer of each, positions, and the decoder's logits and greedy text."""
    processor = Qwen2VLImageProcessorPil(
        do_resize=False, patch_size=shape.patch, merge_size=MERGE, image_mean=CLIP[0], image_std=CLIP[1]
    )
    floats, images, rows = [], [], 0
    ids, kinds, places = [], [], []

    def text(count):
        ids.extend(random.integers(0, 256, count).tolist())
        kinds.extend([0] * count)
        places.extend([0] * count)

    given, grids = [], []
    for number, (pixels, (height, width)) in enumerate(zip(pictures, shape.grids)):
        answer = processor([pixels], return_tensors="pt")
        grid = answer["image_grid_thw"]
        assert grid.tolist() == [[1, height, width]]
        given.append(answer["pixel_values"])
        grids.append(grid)
        entries = []
        for layer, values in encode(model.model.visual, given[-1], grid).items():
            at = sum(map(len, floats))
            shape_of = {"tokens": len(values), "features": values.shape[1], "offset_f32": at}
            entries.append({"name": layer, **shape_of})
            floats.append(values.reshape(-1).numpy())
        count = height * width // MERGE**2
        images.append({"grid": [height, width], "first_row": rows, "layers": entries})
        # As between the marks of two pictures that stand side by side.
        text(5 if number == 0 else 2)
        ids.extend([model.config.image_token_id] * count)
        kinds.extend([1] * count)
        places.extend(range(rows + 1, rows + count + 1))
        rows += count
    text(7)
    ids, kinds = torch.tensor([ids]), torch.tensor([kinds])
    pixels, grid = torch.cat(given), torch.cat(grids)
    positions, _ = model.model.get_rope_index(ids, kinds, grid)
    logits, greedy, margins = answer_of(model, ids, kinds, pixels, grid)
    offset = sum(map(len, floats))
    floats.append(logits.numpy())
    np.concatenate(floats).astype("<f4").tofile(folder / f"{name}.f32")
    np.concatenate([picture.reshape(-1) for picture in pictures]).tofile(folder / f"{name}.rgb")
    about = {
        "mmproj_files": files,
        "text_file": text_file,
        "images": images,
        "token_ids": ids[0].tolist(),
        "rows": places,
        "positions": positions[:, 0].T.tolist(),
        "logits_offset_f32": offset,
        "vocabulary": len(logits),
        "greedy": {"token_ids": greedy, "margins": margins},
    }
    (folder / f"{name}.json").write_text(json.dumps(about) + "\n")
    print(name, "margin", min(margins), "distinct", len(set(greedy)), flush=True)


def encode(tower, pixels, grid) -> dict[str, torch.Tensor]:
    """Every layer's output, under the names that the program gives them."""
    kept = {}
    first = lambda value: value[0] if isinstance(value, tuple) else value
    keep = lambda name: lambda _, __, output: kept.__setitem__(name, first(output))
    before = lambda _, args, kwargs: kept.__setitem__("patch_sum", first(args))
    handles = [tower.blocks[0].register_forward_pre_hook(before, with_kwargs=True)]
    for index, layer in enumerate(tower.blocks):
        handles.append(layer.register_forward_hook(keep(f"blk.{index}.ffn_residual")))
    handles.append(tower.merger.ln_q.register_forward_hook(keep("post_ln")))
    output = tower(pixels, grid_thw=grid)
    kept["post_ln"] = kept["post_ln"].reshape(len(kept["patch_sum"]), -1)
    kept["projector.2_bias"] = output.pooler_output
    for handle in handles:
        handle.remove()
    return kept


def answer_of(model, ids, kinds, pixels, grid):
    """Logits after the prompt, and the tokens of largest logit that follow."""
    answer = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        mm_token_type_ids=kinds,
        pixel_values=pixels,
        image_grid_thw=grid,
        max_new_tokens=GREEDY_TOKENS,
        min_new_tokens=GREEDY_TOKENS,
        do_sample=False,
        eos_token_id=None,
        return_dict_in_generate=True,
        output_logits=True,
    )
    greedy = answer.sequences[0, ids.shape[1] :].tolist()
    margins = []
    for logits in answer.logits:
        best = torch.topk(logits[0], 2).values
        margins.append(float(best[0] - best[1]))
    return answer.logits[0][0].float(), greedy, margins
