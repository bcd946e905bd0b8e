#!/usr/bin/env python3
"""Asks one process about pictures of many sizes, and watches its memory from outside.

Every answer is followed by a look at /proc/PID/status. What must hold: nothing anonymous grows by
a page from the first answer to the last, and the peak (VmHWM) is at most M_max and at least --least
of it. Refused requests (a prompt over the bound, a broken picture among them on purpose) count like
answered ones.

    scripts/flat_requests.py DCTMS TEXT.gguf VISION.gguf [--requests 300] [--sizes 100]
        [--bound 1024] [--mode serial --mode phase-resident] [-- more words for dctms run]

Pictures are PNG, and with Pillow also JPEG (progressive too), WebP and GIF.
"""

import argparse
import json
import random
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

try:
    from PIL import Image
except ImportError:
    Image = None

MODES = ["serial", "phase-resident"]
# An answer to these is an error, and the next request goes on.
BROKEN = b"\x89PNG\r\n\x1a\n" + b"\0" * 64


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dctms")
    parser.add_argument("text")
    parser.add_argument("vision")
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--sizes", type=int, default=100)
    parser.add_argument("--bound", type=int, default=1024, help="longest edge, pixels")
    parser.add_argument("--tokens", type=int, default=4, help="of each answer")
    parser.add_argument("--least", type=float, default=0.95, help="share of M_max that is reached")
    parser.add_argument("--mode", action="append", choices=[*MODES, "overlapped"])
    own = sys.argv[1:].index("--") if "--" in sys.argv else len(sys.argv)
    arguments = parser.parse_args(sys.argv[1:][:own])
    arguments.more = sys.argv[1:][own + 1 :]
    with tempfile.TemporaryDirectory() as folder:
        pictures = make_pictures(Path(folder), arguments.sizes, arguments.bound)
        results = [watch(arguments, mode, pictures) for mode in arguments.mode or MODES]
    return 0 if all(results) else 1


def make_pictures(folder: Path, count: int, bound: int) -> list[Path]:
    """Pictures from 1x1 to the bound, and a broken one."""
    draw = random.Random(7)
    sizes = [(1, 1), (bound, bound), (bound, 1), (1, bound)]
    while len(sizes) < count:
        sizes.append((draw.randint(1, bound), draw.randint(1, bound)))
    kinds = ["png", "jpg", "webp", "gif"] if Image else ["png"]
    paths = []
    for index, (width, height) in enumerate(sizes[:count]):
        path = folder / f"{index}-{width}x{height}.{kinds[index % len(kinds)]}"
        rows = [bytes(draw.randbytes(3) * width) for _ in range(min(height, 64))]
        rows = [rows[y * len(rows) // height] for y in range(height)]
        if path.suffix == ".png":
            path.write_bytes(png(width, rows))
        else:
            image = Image.frombytes("RGB", (width, height), b"".join(rows))
            image.save(path, **({"progressive": index % 8 == 1} if path.suffix == ".jpg" else {}))
        paths.append(path)
    paths[count // 2] = folder / "broken.png"
    paths[count // 2].write_bytes(BROKEN)
    return paths


def png(width: int, rows: list[bytes]) -> bytes:
    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", width, len(rows), 8, 2, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + row for row in rows), 1)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def watch(arguments, mode: str, pictures: list[Path]) -> bool:
    words = [arguments.dctms, "run", arguments.text, "--mmproj", arguments.vision, "--mode", mode]
    words += ["--max-images", "1", "--max-image-size", str(arguments.bound), "--requests", "-"]
    child = subprocess.Popen(
        words + arguments.more, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    m_max, errors, anonymous, resident = 0, 0, [], []
    start = time.monotonic()
    for index in range(arguments.requests):
        image = str(pictures[index % len(pictures)])
        request = {"prompt": "What is it?", "images": [image], "max_tokens": arguments.tokens}
        child.stdin.write(json.dumps(request | {"id": index}) + "\n")
        answer = json.loads(child.stdout.readline())
        assert answer["id"] == index, answer
        errors += "error" in answer
        m_max = answer.get("m_max_bytes", m_max)
        status = status_of(child.pid)
        anonymous.append(status["RssAnon"] + status["VmSwap"])
        resident.append(status["VmRSS"])
    peak = status_of(child.pid)["VmHWM"]
    child.stdin.close()
    code = child.wait()
    share = peak / m_max
    flat = len(set(anonymous)) == 1
    print(
        f"{mode}: {arguments.requests} requests, {len(pictures)} pictures, {errors} refused, "
        f"{time.monotonic() - start:.0f} s; anonymous {min(anonymous)} to {max(anonymous)} bytes, "
        f"resident {min(resident)} to {max(resident)}; peak {peak} of M_max {m_max} ({share:.4f})"
    )
    held = code == 0 and flat and arguments.least <= share <= 1 and errors < arguments.requests
    if not held:
        print(f"{mode}: not as promised (exit code {code})", file=sys.stderr)
    return held


def status_of(process: int) -> dict[str, int]:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    fields = (line.split() for line in lines if line.endswith("kB"))
    return {field[0].rstrip(":"): int(field[1]) * 1024 for field in fields}


if __name__ == "__main__":
    sys.exit(main())
