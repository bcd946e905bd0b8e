"""Writes unicode_compositions.rs and unicode_decompositions.rs: Unicode's normalisation form C.

Run with any Python whose unicodedata is new enough; the file records the version:
    python3 scripts/unicode_compositions.py crates/text/src
"""

import pathlib
import sys
import unicodedata

LAST = 0x110000


def canonical(code):
    """The first step of the canonical decomposition: one or two code points, or none."""
    text = unicodedata.decomposition(chr(code))
    if not text or text.startswith("<"):
        return None
    return [int(part, 16) for part in text.split()]


def main():
    decompositions = []
    compositions = []
    for code in range(LAST):
        parts = canonical(code)
        if parts is None:
            continue
        recomposes = unicodedata.normalize("NFC", chr(code)) == chr(code)
        second = parts[1] if len(parts) == 2 else 0
        decompositions.append((code, parts[0], second, recomposes))
        if recomposes:
            assert second
            compositions.append((parts[0], second, len(decompositions) - 1))
    compositions.sort()
    seconds = {second for _, second, _ in compositions}
    seconds |= set(range(0x1161, 0x1176)) | set(range(0x11A8, 0x11C3))
    extenders = []
    for code in range(LAST):
        order = unicodedata.combining(chr(code))
        # A few characters of class 0 fall apart into combining marks.
        first = ord(unicodedata.normalize("NFD", chr(code))[0]) if canonical(code) else code
        if order == 0 and code not in seconds and not unicodedata.combining(chr(first)):
            continue
        if extenders and extenders[-1][1] == code - 1 and extenders[-1][2] == order:
            extenders[-1][1] = code
        else:
            extenders.append([code, code, order])

    folder = pathlib.Path(sys.argv[1])
    with open(folder / "unicode_decompositions.rs", "w") as out:
        head(out, "Canonical decompositions by one step")
        print("/// Code point in bits 42 to 62, its one or two parts in bits 21 to 41 and 0 to 20 (0 for", file=out)
        print("/// none); bit 63 when they compose again.", file=out)
        table(out, "DECOMPOSITIONS", "u64", [
            f"0x{again << 63 | code << 42 | first << 21 | second:016X}"
            for code, first, second, again in decompositions
        ])
    with open(folder / "unicode_compositions.rs", "w") as out:
        head(out, "Canonical compositions, and the characters that take part in them")
        print("/// Indices of the decompositions that compose, in the order of their two parts.", file=out)
        table(out, "COMPOSITIONS", "u16", [str(index) for _, _, index in compositions])
        print(file=out)
        print("/// Characters that may change what stands before them: first code point in bits 32 to 52,", file=out)
        print("/// last in bits 8 to 28, combining class in bits 0 to 7 (0: composes all the same).", file=out)
        table(out, "EXTENDERS", "u64", [
            f"0x{first << 32 | last << 8 | order:014X}" for first, last, order in extenders
        ])


def head(out, title):
    print(f"//! {title}:\n//! data only, sorted for binary search.", file=out)
    print("//!", file=out)
    version = unicodedata.unidata_version
    print(f"//! Written by `scripts/unicode_compositions.py` from Unicode {version}.", file=out)
    print("//! Hangul syllables are left out: arithmetic gives them.", file=out)
    print(file=out)


def table(out, name, kind, items):
    print("#[rustfmt::skip]", file=out)
    print(f"pub static {name}: [{kind}; {len(items)}] = [", file=out)
    line = "   "
    for item in items:
        if len(line) + len(item) + 2 > 100:
            print(line, file=out)
            line = "   "
        line += f" {item},"
    print(line, file=out)
    print("];", file=out)


main()
