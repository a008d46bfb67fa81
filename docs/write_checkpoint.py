#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Copies a p3d checkpoint with other numbers in some arrays, without p3d, and seals the copy. The shapes stay.

usage: write_checkpoint.py FILE COPY KIND/NAME=ARRAY.npy ...        KIND: parameters, first_moment, ...
"""
import shutil
import sys

import h5py
import numpy

GOLDEN = 0x9e3779b97f4a7c15
BLOCK = 1 << 20  # elements at a time


def mix(z):
    """The finaliser of splitmix64, of an array of uint64."""
    z = (z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xbf58476d1ce4e5b9)
    z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94d049bb133111eb)
    return z ^ (z >> numpy.uint64(31))


def checksum(words):
    """Sum of mix((i + 1) G ^ words[i]) modulo 2^64."""
    total = 0
    for begin in range(0, len(words), BLOCK):
        part = words[begin:begin + BLOCK].astype(numpy.uint64)
        places = numpy.arange(begin + 1, begin + 1 + len(part), dtype=numpy.uint64)
        total += int(mix(places * numpy.uint64(GOLDEN) ^ part).sum(dtype=numpy.uint64))
    return total % 2**64


def hash_of(data):
    words = numpy.frombuffer(data + bytes(8 - len(data) % 8), "<u8")
    length = numpy.array([len(data) * GOLDEN % 2**64], numpy.uint64)
    return (checksum(words) + int(mix(length)[0])) % 2**64


def replace(file, name, values):
    array = file[name]
    if values.shape != array.shape:
        sys.exit(f"{name}: expected an array of shape {array.shape}, found {values.shape}")
    array[...] = values
    bits = numpy.ascontiguousarray(array[...]).ravel().view(f"u{array.dtype.itemsize}")
    array.attrs.modify("checksum", numpy.uint64(checksum(bits)))


def seal(path):
    """Makes the hashes of the user block anew; its extents stay."""
    with open(path, "r+b") as file:
        block_bytes = int(file.read(64).split(b"\n")[1].split()[1])
        file.seek(0)
        lines = file.read(block_bytes)[:-17].split(b"\n")
        extents = [tuple(map(int, line.split())) for line in lines[5:] if line]
        others, at = b"", block_bytes
        for begin, size in [*extents, (file.seek(0, 2), 0)]:
            file.seek(at)
            others += file.read(begin - at)
            at = begin + size
        lines[3] = b"other_hash %016x" % hash_of(others)
        body = b"\n".join(lines)
        file.seek(0)
        file.write(body + b"%016x\n" % hash_of(body))


def main():
    source, copy, *changes = sys.argv[1:]
    shutil.copyfile(source, copy)
    with h5py.File(copy, "r+") as file:
        for change in changes:
            name, _, array = change.partition("=")
            replace(file, name, numpy.load(array))
    seal(copy)


if __name__ == "__main__":
    main()
