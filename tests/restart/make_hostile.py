# SPDX-License-Identifier: Apache-2.0
"""Hostile checkpoints, each with a seal whose hashes are right: what a reader sees behind the seal is not what
p3d writes.

usage: make_hostile.py GOOD FOLDER      needs h5py; prints "FILE<tab>what a refusal must name" for each

Some are not among them, since they may be read: position.h5, from which no run goes on, since its step does not fit its
samples; escapes.h5, whose texts would change a terminal that shows them; vocabulary.h5 and layers.h5, whose input
describes a larger model than the arrays are of.
"""
import pathlib
import re
import shutil
import sys

import h5py
import numpy

MASK = (1 << 64) - 1
GOLDEN = 0x9e3779b97f4a7c15


def mix(z):
    z = ((z ^ (z >> 30)) * 0xbf58476d1ce4e5b9) & MASK
    z = ((z ^ (z >> 27)) * 0x94d049bb133111eb) & MASK
    return z ^ (z >> 31)


def byte_hash(data):
    """ByteHash of src/io/checksum.hpp."""
    words = [int.from_bytes(data[i:i + 8], "little") for i in range(0, len(data), 8)]
    if len(data) % 8 == 0:
        words.append(0)
    total = sum(mix(((i + 1) * GOLDEN & MASK) ^ word) for i, word in enumerate(words))
    return (total + mix(len(data) * GOLDEN & MASK)) & MASK


def extents_of(data):
    text = data[:data.index(b"\x89HDF")].decode("ascii")
    return [(int(at), int(size)) for at, size in re.findall(r"^(\d+) (\d+)$", text, re.M)]


def seal(path, extents, count=None):
    data = bytearray(path.read_bytes())
    block = data.index(b"\x89HDF")
    others, at = b"", block
    for first, size in extents:
        others += data[at:first]
        at = max(at, first + size)
    others += data[at:]
    text = (f"p3d checkpoint 1\nuser_block {block:020}\nfile_bytes {len(data):020}\n"
            f"other_hash {byte_hash(others):016x}\n"
            f"extents {len(extents) if count is None else count}\n" + "".join(f"{a} {b}\n" for a, b in extents))
    body = text.encode().ljust(block - 17, b"\n")
    data[:block] = body + f"{byte_hash(body):016x}\n".encode()
    path.write_bytes(data)


def remake(file, name, **how):
    old = file[name]
    data, attributes = old[()], dict(old.attrs)
    del file[name]
    new = file.create_dataset(name, data=data, **how)
    for key, value in attributes.items():
        new.attrs[key] = value


def main():
    good, folder = map(pathlib.Path, sys.argv[1:])
    extents = extents_of(good.read_bytes())
    weight = "parameters/embed.token.weight"

    def attribute(name, value, dtype, of="/"):
        def change(file):
            del file[of].attrs[name]
            file[of].attrs.create(name, value, dtype=dtype)
        return change

    def tokenizer(name):
        """A command that writes the tokenizer under this name would write elsewhere."""
        def change(file):
            file["/"].attrs.create("tokenizer", numpy.bytes_(name.encode()))
            file["/"].attrs.create("tokenizer_pattern", numpy.bytes_(b" "))
            file["/"].attrs.create("tokenizer_hash", 7, dtype="<u8")
            file["/"].attrs.create("tokenizer_end", -1, dtype="<i8")
            file["tokenizer"] = numpy.bytes_(b"echo owned")
        return change

    def escapes(file):
        texts = {"origin": b"weights 00 of \xc2\x9b2J\x9b2J \xe2\x80\xae", "p3d_version": b"\xc2\x9d0;title"}
        for name, value in texts.items():
            if name in file["/"].attrs:
                del file["/"].attrs[name]
            file["/"].attrs.create(name, numpy.bytes_(value))
        text = b"# \x1b[2J\x1b]0;title\x07\n" + file["input"][()]
        del file["input"]
        file["input"] = numpy.bytes_(text)

    def link(value):
        def change(file):
            del file[weight]
            file[weight] = value
        return change

    def table(file):
        rows = file["table"][()]
        rows["rows"][0] = 1 << 60
        file["table"][...] = rows

    def text(file):
        del file["input"]
        file["input"] = "of variable length"

    changes = {
        "step_array": (attribute("step", numpy.arange(1000), "<i8"), '"step"'),
        "checksum_array": (attribute("checksum", numpy.arange(1000), "<u8", weight), '"checksum"'),
        "step_float": (attribute("step", 3.0, "<f8"), '"step"'),
        "samples_negative": (attribute("samples", -1, "<i8"), '"samples"'),
        "tokens_huge": (attribute("tokens", (1 << 63) - 1, "<i8"), '"tokens"'),
        "soft_link": (link(h5py.SoftLink("/" + weight.replace("embed", "elsewhere"))), weight),
        "other_file": (link(h5py.ExternalLink(str(good), weight)), "parameters"),
        "compressed": (lambda file: remake(file, weight, chunks=True, compression="gzip"), weight),
        "table_rows": (table, "table"),
        "input_variable": (text, "input"),
        "tokenizer_above": (tokenizer("../victim/profile.sh"), '"tokenizer"'),
        "tokenizer_absolute": (tokenizer(str(folder / "victim" / "profile.sh")), '"tokenizer"'),
        "tokenizer_dots": (tokenizer(".."), '"tokenizer"'),
        "tokenizer_escape": (tokenizer("\u009b2J.json"), '"tokenizer"'),
    }
    shutil.copy(good, folder / "position.h5")
    with h5py.File(folder / "position.h5", "r+") as file:
        attribute("step", 1, "<i8")(file)
    seal(folder / "position.h5", extents)
    shutil.copy(good, folder / "escapes.h5")
    with h5py.File(folder / "escapes.h5", "r+") as file:
        escapes(file)
    seal(folder / "escapes.h5", extents)
    for name, key, value in (("vocabulary", "vocab_size", 16 << 20), ("layers", "layers", 1 << 16)):
        path = folder / f"{name}.h5"
        shutil.copy(good, path)
        with h5py.File(path, "r+") as file:
            old = file["input"][()]
            new = re.sub(rb"(?m)^%s = \d+$" % key.encode(), b"%s = %d" % (key.encode(), value), old, count=1)
            comment = b"# The complete input of a run"  # lacks what the value has more
            file["input"][()] = new.replace(comment, comment[:len(old) - len(new)])
        seal(path, extents)
    for name, (change, named) in changes.items():
        path = folder / f"{name}.h5"
        shutil.copy(good, path)
        with h5py.File(path, "r+") as file:
            change(file)
        seal(path, extents)
        print(path.name, named, sep="\t")
    seals = {"seal_count": (extents, 1 << 60), "seal_negative": (extents, -1),
             "seal_outside": (extents + [(1 << 61, 1 << 61)], None),
             "seal_descriptions": ([(extents[0][0] - 600, extents[0][1] + 600)] + extents[1:], None)}
    for name, (given, count) in seals.items():
        path = folder / f"{name}.h5"
        shutil.copy(good, path)
        seal(path, given, count)
        print(path.name, "seal", sep="\t")


if __name__ == "__main__":
    main()
