#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes float16.reference.txt: values and rounding of bfloat16 and float16 by PyPI's ml-dtypes and NumPy.

    make_float16_reference.py            write the file (needs: pip install ml-dtypes numpy)
    make_float16_reference.py --check    recompute and compare with the committed file, write nothing

bfloat16 is ml-dtypes', float16 NumPy's. Where NumPy keeps the upper bits of a NaN's payload when it rounds to float16,
p3d makes the quiet NaN of its sign, as ml-dtypes does for bfloat16: the reference says so for both.

Format: lines that start with # are comments; the others are words.
    widened TYPE FNV1A64 COUNT    the bits of float(x) for all 2^16 patterns x, in order: the checksum (FNV-1a, 64 bit)
                                  of all of them, little-endian, then every 64th in hexadecimal
    rounded TYPE FNV1A64 COUNT    the bits of TYPE(y) for a million floats y (see `floats`): the same with every 1000th
"""
import pathlib
import sys

import ml_dtypes
import numpy as np

FILE = pathlib.Path(__file__).resolve().parent / "float16.reference.txt"
TYPES = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
FLOATS = 1000000


def splitmix64(n):
    """Outputs 1 to n of the generator that starts at 0."""
    z = np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def floats():
    """Bits of floats: half of them any pattern, the others by i % 8: ties of bfloat16 (4), ties of float16 (5), numbers
    in the range of float16 and around it (6), and infinities, NaNs and numbers below the normal range (7)."""
    word = splitmix64(FLOATS)
    bits = (word >> np.uint64(32)).astype(np.uint32)
    low = word.astype(np.uint32)
    kind = np.arange(FLOATS) % 8
    sign, fraction = bits & np.uint32(0x80000000), bits & np.uint32(0x7FFFFF)
    near = sign | ((np.uint32(97) + low % np.uint32(48)) << np.uint32(23))
    top = sign | np.uint32(0x7F800000)
    special = np.where(low & 1, np.where(low & 2, top | fraction, top), sign | fraction)
    bits = np.where(kind == 4, (bits & np.uint32(0xFFFF0000)) | np.uint32(0x8000), bits)
    bits = np.where(kind == 5, near | (fraction & np.uint32(0x7FE000)) | np.uint32(0x1000), bits)
    bits = np.where(kind == 6, near | fraction, bits)
    return np.where(kind == 7, special, bits).astype(np.uint32)


def fnv1a64(data):
    h = 0xCBF29CE484222325
    for byte in data:
        h = ((h ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return h


def record(what, name, values, every, digits):
    words = [f"{v:0{digits}x}" for v in values[::every]]
    lines = [" ".join(words[i:i + 12]) for i in range(0, len(words), 12)]
    return [f"{what} {name} {fnv1a64(values.tobytes()):016x} {len(words)}", *lines]


def text():
    lines = ["# Values and rounding of the floating-point types of 16 bits. Written by make_float16_reference.py with",
             f"# ml-dtypes {ml_dtypes.__version__} and NumPy {np.__version__}."]
    patterns = np.arange(1 << 16, dtype=np.uint16)
    numbers = floats()
    y = numbers.view(np.float32)
    for name, dtype in TYPES.items():
        widened = patterns.view(dtype).astype(np.float32).view(np.uint32)
        with np.errstate(all="ignore"):
            rounded = y.astype(dtype).view(np.uint16)
        if name == "float16":
            quiet = ((numbers >> np.uint32(16)) & np.uint32(0x8000) | np.uint32(0x7E00)).astype(np.uint16)
            rounded = np.where(np.isnan(y), quiet, rounded)
        lines += record("widened", name, widened.astype("<u4"), 64, 8)
        lines += record("rounded", name, rounded.astype("<u2"), 1000, 4)
    return "\n".join(lines) + "\n"


def main():
    made = text()
    if "--check" not in sys.argv[1:]:
        FILE.write_text(made)
    elif made.split("\n")[2:] != FILE.read_text().split("\n")[2:]:
        sys.exit(f"{FILE.name} differs from what is made here")


if __name__ == "__main__":
    main()
