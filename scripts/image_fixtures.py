"""Writes crates/image/tests/fixtures: what Pillow and Hugging Face's processors make of pictures.

    pip install pillow torch torchvision transformers
    python3 scripts/image_fixtures.py crates/image/tests/fixtures

- `pictures.bin`: small files of every format and kind, each with Pillow's pixels over white;
- `heavy.bin`: files of one colour and many pixels, in the kinds that cost a decoder most;
- `resize.tsv`: digests of Pillow's resized pictures, at many odd sizes;
- `idefics3.tsv`, `lfm2.tsv`, `qwen2vl.tsv`: grids and sizes that the processors choose.

Source pictures are made by one formula that the tests know too.
"""

import argparse
import io
import pathlib
import struct
import zlib

import numpy as np
from PIL import Image

FILTERS = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


def source(width, height, channels=3, shift=0):
    """Waves, edges and noise, in integers: the tests compute the same."""
    y, x, c = np.indices((height, width, channels), dtype=np.uint64)
    wave = x * 7 + y * 13 + c * 41 + (x * y) // 16 + shift
    noise = ((x * 73856093) ^ (y * 19349663) ^ (c * 83492791)) % 61
    edge = ((x // 9 + y // 7 + c) % 2) * 90
    return ((wave + noise + edge) % 256).astype(np.uint8)


def over_white(image):
    white = Image.new("RGBA", image.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")


def saved(image, kind, **options):
    to = io.BytesIO()
    image.save(to, kind, **options)
    return to.getvalue()


def exif(orientation):
    data = Image.Exif()
    data[0x0112] = orientation
    return data.tobytes()


ADAM7 = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]


def chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(samples, color, depth, interlaced=False, extra=b""):
    """Writes kinds that Pillow does not: `samples` [h][w][channels] of bytes or 16-bit words."""
    height, width = samples.shape[:2]
    samples = samples.astype(">u2" if depth == 16 else np.uint8)
    rows = b""
    for x, y, dx, dy in ADAM7 if interlaced else [(0, 0, 1, 1)]:
        part = samples[y::dy, x::dx]
        if part.size:
            rows += b"".join(b"\0" + row.tobytes() for row in part)
    head = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, int(interlaced))
    data = chunk(b"IHDR", head) + extra + chunk(b"IDAT", zlib.compress(rows, 9))
    return b"\x89PNG\r\n\x1a\n" + data + chunk(b"IEND", b"")


def pictures():
    """Name, tolerance, file, expected picture."""
    rgb = Image.fromarray(source(37, 23))
    rgba_data = source(37, 23, 4)
    rgba = Image.fromarray(rgba_data)
    grey = Image.fromarray(source(37, 23, 1)[:, :, 0])
    palette = rgb.quantize(31)
    yield "png rgb", 0, saved(rgb, "PNG"), rgb
    yield "png rgba", 0, saved(rgba, "PNG"), over_white(rgba)
    yield "png grey", 0, saved(grey, "PNG"), grey.convert("RGB")
    grey_alpha = Image.merge("LA", (grey, rgba.getchannel("A")))
    yield "png grey alpha", 0, saved(grey_alpha, "PNG"), over_white(grey_alpha)
    yield "png palette", 0, saved(palette, "PNG"), palette.convert("RGB")
    clear = palette.copy()
    clear.info["transparency"] = bytes(range(0, 248, 8))
    file = saved(clear, "PNG")
    yield "png palette alpha", 0, file, over_white(Image.open(io.BytesIO(file)))
    small = rgb.quantize(3)
    yield "png palette of two bits", 0, saved(small, "PNG", bits=2), small.convert("RGB")
    bits = grey.point(lambda v: 255 * (v > 99)).convert("1")
    yield "png one bit", 0, saved(bits, "PNG"), bits.convert("RGB")
    keyed = saved(rgb, "PNG", transparency=rgb.getpixel((5, 5)))
    yield "png colour key", 0, keyed, over_white(Image.open(io.BytesIO(keyed)))
    words = source(37, 23, 3).astype(np.uint16) * 256 + source(37, 23, 3, 99)
    yield "png 16 bits", 0, png(words, 2, 16), rgb
    words = source(37, 23, 4).astype(np.uint16) * 256 + source(37, 23, 4, 99)
    yield "png 16 bits alpha", 0, png(words, 6, 16), over_white(rgba)
    yield "png interlaced", 0, png(source(37, 23), 2, 8, True), rgb
    yield "png interlaced rgba", 0, png(rgba_data, 6, 8, True), over_white(rgba)
    for size in [(1, 1), (1, 9), (9, 1), (2, 2), (5, 3), (3, 5)]:
        tiny = source(*size)
        yield f"png interlaced {size}", 0, png(tiny, 2, 8, True), Image.fromarray(tiny)
    turned = rgb.transpose(Image.Transpose.ROTATE_270)
    yield "png turned", 0, saved(rgb, "PNG", exif=exif(6)), turned

    smooth = Image.fromarray(source(60, 44)).resize((75, 55)).resize((53, 41))
    for name, options in [
        ("4:4:4", {"subsampling": 0}),
        ("4:2:2", {"subsampling": 1}),
        ("4:2:0", {"subsampling": 2}),
        ("progressive 4:4:4", {"subsampling": 0, "progressive": True}),
        ("progressive 4:2:0", {"subsampling": 2, "progressive": True}),
        ("restarts", {"subsampling": 2, "restart_marker_blocks": 2}),
    ]:
        file = saved(smooth, "JPEG", quality=88, **options)
        yield f"jpeg {name}", 9, file, Image.open(io.BytesIO(file)).convert("RGB")
    for name, image in [("grey", smooth.convert("L")), ("cmyk", smooth.convert("CMYK"))]:
        for progressive in [False, True]:
            file = saved(image, "JPEG", quality=90, progressive=progressive)
            expected = Image.open(io.BytesIO(file)).convert("RGB")
            yield f"jpeg {name} {progressive}", 9, file, expected
    turns = [None, 0, 3, 1, 5, 4, 6, 2]
    for orientation in range(1, 9):
        file = saved(smooth, "JPEG", quality=92, subsampling=0, exif=exif(orientation))
        plain = Image.open(io.BytesIO(file)).convert("RGB")
        how = turns[orientation - 1]
        expected = plain if how is None else plain.transpose(Image.Transpose(how))
        yield f"jpeg orientation {orientation}", 9, file, expected

    yield "webp lossless", 0, saved(rgb, "WEBP", lossless=True), rgb
    file = saved(rgba, "WEBP", lossless=True, exact=True)
    yield "webp lossless alpha", 0, file, over_white(rgba)
    file = saved(smooth, "WEBP", quality=90)
    yield "webp lossy", 9, file, Image.open(io.BytesIO(file)).convert("RGB")
    soft = smooth.copy().convert("RGBA")
    soft.putalpha(Image.fromarray(source(53, 41, 1)[:, :, 0]))
    file = saved(soft, "WEBP", quality=90, alpha_quality=100)
    yield "webp lossy alpha", 9, file, over_white(Image.open(io.BytesIO(file)))
    file = saved(rgb, "WEBP", lossless=True, exif=exif(8))
    yield "webp turned", 0, file, rgb.transpose(Image.Transpose.ROTATE_90)
    second = rgb.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    file = saved(rgb, "WEBP", lossless=True, save_all=True, append_images=[second])
    yield "webp animated", 0, file, rgb

    yield "gif", 0, saved(palette, "GIF"), palette.convert("RGB")
    yield "gif interlaced", 0, saved(palette, "GIF", interlace=1), palette.convert("RGB")
    file = saved(palette, "GIF", transparency=palette.getpixel((9, 9)))
    yield "gif transparent", 0, file, over_white(Image.open(io.BytesIO(file)))
    others = [palette.transpose(Image.Transpose.FLIP_LEFT_RIGHT)]
    yield "gif animated", 0, saved(palette, "GIF", save_all=True, append_images=others), palette.convert("RGB")


def heavy():
    """Files whose decoders hold much: one colour, so that they are small."""
    for width, height in [(1000, 1000), (2000, 500), (33, 2001), (2001, 33)]:
        plain = Image.new("RGB", (width, height), (200, 30, 90))
        yield "jpeg progressive", saved(plain, "JPEG", progressive=True, subsampling=0)
        yield "jpeg 4:2:0", saved(plain, "JPEG", subsampling=2)
        yield "jpeg progressive 4:2:0", saved(plain, "JPEG", progressive=True, subsampling=2)
        yield "jpeg cmyk", saved(plain.convert("CMYK"), "JPEG", progressive=True)
        clear = plain.copy().convert("RGBA")
        clear.putalpha(128)
        yield "webp lossless", saved(plain, "WEBP", lossless=True)
        yield "webp lossless alpha", saved(clear, "WEBP", lossless=True)
        yield "webp lossy", saved(plain, "WEBP")
        yield "webp lossy alpha", saved(clear, "WEBP")
        flipped = Image.new("RGBA", (width, height), (20, 130, 90, 77))
        for lossless in [False, True]:
            animated = {"save_all": True, "append_images": [flipped], "lossless": lossless}
            yield f"webp animated {lossless}", saved(clear, "WEBP", **animated)
        yield "gif", saved(plain.quantize(7), "GIF")
        yield "png", saved(clear, "PNG", compress_level=9)
        words = np.full((height, width, 4), 51234, np.uint16)
        yield "png 16 bits", png(words, 6, 16, True)


def pack(parts):
    return b"".join(struct.pack("<I", len(part)) + part for part in parts)


def sizes():
    """Over a hundred, odd ones and corners among them."""
    corners = [
        (1, 1), (1, 2), (2, 1), (1, 512), (512, 1), (512, 512), (513, 512), (511, 513), (1024, 1024),
        (2048, 2048), (2049, 2048), (4096, 4096), (4096, 1), (1, 4096), (4095, 17), (640, 480),
        (480, 640), (1920, 1080), (1080, 1920), (4032, 3024), (3024, 4032), (224, 224), (225, 223),
        (28, 28), (27, 29), (14, 1400), (1400, 14), (300, 100), (100, 300), (1000, 800), (723, 723),
        (724, 724), (725, 725), (1280, 1024), (1024, 1280), (1536, 1228), (2560, 2048), (1638, 2048),
    ]
    state = 12345
    drawn = []
    for _ in range(240):
        pair = []
        for _ in range(2):
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            draw = state >> 33
            pair.append(1 + draw % [60, 700, 2500, 4096][(draw >> 20) % 4])
        drawn.append(tuple(pair))
    return corners + drawn


def resize_lines():
    state = 99
    for index in range(150):
        numbers = []
        for _ in range(4):
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            draw = state >> 33
            numbers.append(1 + draw % [9, 60, 200][(draw >> 20) % 3])
        if index % 10 == 0:
            numbers[2] = numbers[0]
        if index % 15 == 0:
            numbers[3] = numbers[1]
        width, height, to_width, to_height = numbers
        image = Image.fromarray(source(width, height, 3, index))
        for name, method in FILTERS.items():
            digest = zlib.crc32(image.resize((to_width, to_height), method).tobytes())
            yield f"{name}\t{index}\t{width}\t{height}\t{to_width}\t{to_height}\t{digest:08x}"


def idefics3_lines():
    """Both sizes on the way, and of a few small pictures the digest of all tiles, else `-`."""
    from transformers.models.idefics3 import image_processing_pil_idefics3 as module

    for longest, tile in [(2048, 512), (1456, 364), (512, 512)]:
        processor = module.Idefics3ImageProcessorPil(
            size={"longest_edge": longest}, max_image_size={"longest_edge": tile}
        )
        for index, (width, height) in enumerate(sizes()):
            first, second = idefics3_sizes(module, width, height, longest, tile)
            digest = idefics3_digest(processor, width, height) if index in (3, 7, 22, 26) else "-"
            yield "\t".join(map(str, [longest, tile, width, height, *first, *second, digest]))


def idefics3_sizes(module, width, height, longest, tile):
    """The sizes that the processor asks its resizer for; pictures themselves would take hours."""
    asked = []

    class Recorder(module.Idefics3ImageProcessorPil):
        def resize(self, image, size, resample=None, **options):
            if size.longest_edge:
                new = module.get_resize_output_image_size(image, resolution_max_side=size.longest_edge)
            else:
                new = (size.height, size.width)
            asked.append(new)
            return np.broadcast_to(np.uint8(0), (3, *new))

    recorder = Recorder(size={"longest_edge": longest}, max_image_size={"longest_edge": tile})
    image = np.broadcast_to(np.uint8(0), (3, height, width))
    image = recorder.resize(image, recorder.size)
    recorder.resize_for_vision_encoder(image, tile, resample=None)
    return [(width, height) for height, width in asked]


def idefics3_digest(processor, width, height):
    image = Image.fromarray(source(width, height))
    answer = processor(image, do_rescale=False, do_normalize=False, do_pad=False, return_tensors="np")
    tiles = np.asarray(answer["pixel_values"])[0].astype(np.uint8).transpose(0, 2, 3, 1)
    return f"{zlib.crc32(np.ascontiguousarray(tiles).tobytes()):08x}"


def lfm2_lines():
    import torch
    from transformers import Lfm2VlImageProcessor

    for patch, tiles, tokens_min, tokens_max in [(16, 10, 64, 256), (14, 1, 64, 256), (16, 10, 16, 100)]:
        processor = Lfm2VlImageProcessor()
        for width, height in sizes():
            image = torch.zeros((1, 3, height, width), dtype=torch.uint8)
            images, rows, columns, shape = processor.resize_and_split(
                image, downsample_factor=2, min_tiles=min(2, tiles), max_tiles=tiles, use_thumbnail=True,
                min_image_tokens=tokens_min, max_image_tokens=tokens_max, encoder_patch_size=patch,
                tile_size=512, max_pixels_tolerance=2.0, resample=Image.Resampling.BILINEAR,
            )
            whole_height, whole_width = shape[0]
            yield "\t".join(map(str, [
                patch, int(tiles > 1), tokens_min, tokens_max, width, height,
                rows[0], columns[0], whole_width, whole_height, len(images[0]),
            ]))


def qwen2vl_lines():
    """The tile's size (0 for a picture that is refused), and of a few small ones its digest."""
    from transformers.models.qwen2_vl import image_processing_pil_qwen2_vl as module

    for least, most in [(3136, 12845056), (6272, 301056), (200704, 1003520)]:
        for index, (width, height) in enumerate(sizes()):
            try:
                to_height, to_width = module.smart_resize(height, width, 28, least, most)
            except ValueError:
                to_height, to_width = 0, 0
            digest = "-"
            if to_width and index in (5, 6, 15, 21, 23) and most < 10**6:
                image = Image.fromarray(source(width, height))
                tile = image.resize((to_width, to_height), Image.Resampling.BICUBIC)
                digest = f"{zlib.crc32(tile.tobytes()):08x}"
            yield "\t".join(map(str, [least, most, width, height, to_width, to_height, digest]))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    parts = []
    for name, tolerance, file, expected in pictures():
        size = struct.pack("<II", *expected.size)
        parts += [name.encode(), bytes([tolerance]), size, file, expected.tobytes()]
    (folder / "pictures.bin").write_bytes(zlib.compress(pack(parts), 9))
    parts = [part for name, file in heavy() for part in (name.encode(), file)]
    (folder / "heavy.bin").write_bytes(zlib.compress(pack(parts), 9))
    tables = [
        ("resize", resize_lines()),
        ("idefics3", idefics3_lines()),
        ("lfm2", lfm2_lines()),
        ("qwen2vl", qwen2vl_lines()),
    ]
    for name, lines in tables:
        (folder / f"{name}.tsv").write_text("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    main()
