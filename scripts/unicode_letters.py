"""Writes crates/text/src/unicode_letters.rs: the ranges of Unicode's general category L.

Run with any Python whose unicodedata is new enough; the file records the version:
    python3 scripts/unicode_letters.py > crates/text/src/unicode_letters.rs
"""

import unicodedata


def ranges():
    start = None
    for code in range(0x110000 + 1):
        inside = code < 0x110000 and unicodedata.category(chr(code))[0] == "L"
        if inside and start is None:
            start = code
        if not inside and start is not None:
            yield start, code - 1
            start = None


def main():
    found = list(ranges())
    print("//! The ranges of Unicode's general category L (letters): data only, sorted, inclusive.")
    print("//!")
    print(f"//! Written by `scripts/unicode_letters.py` from Unicode {unicodedata.unidata_version}.")
    print()
    print("/// First and last code point of each maximal range of letters.")
    print("#[rustfmt::skip]")
    print(f"pub static LETTER_RANGES: [(u32, u32); {len(found)}] = [")
    line = "   "
    for first, last in found:
        item = f" (0x{first:X}, 0x{last:X}),"
        if len(line) + len(item) > 100:
            print(line)
            line = "   "
        line += item
    print(line)
    print("];")


main()
