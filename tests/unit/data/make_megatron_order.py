# SPDX-License-Identifier: Apache-2.0
"""Token files in all types, and the order of Megatron-LM's GPTDataset, written with numpy.

usage: make_megatron_order.py FOLDER     (numpy 1.17 or newer; FOLDER: reference, beside this script)

The order follows the description of the format and numpy's own RandomState.shuffle, not p3d's code. Of each sample the
first token and the FNV-1a hash (64 bit) of its seq_len + 1 tokens (int32, little endian) are written.
"""
import math
import struct
import sys
from pathlib import Path

import numpy as np

CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint16": 8}
SEQ_LEN = 16
SEEDS = [0, 1, 1234, 987654321, 2**32 - 1]


def write_pair(prefix, sizes, tokens, documents=None):
    """`documents`: the first sequence of each, and the number of sequences; by default a document each."""
    tokens.tofile(f"{prefix}.bin")
    documents = documents or list(range(len(sizes) + 1))
    begins = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype("<i8") * tokens.itemsize
    with open(f"{prefix}.idx", "wb") as out:
        out.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, CODES[tokens.dtype.name], len(sizes), len(documents)))
        out.write(np.array(sizes, "<i4").tobytes() + begins.tobytes() + np.array(documents, "<i8").tobytes())


def write_types(folder):
    ids = np.array([0, 1, 2, 100, 127, 5, 6, 7, 8, 9, 10, 11])
    for name in CODES:
        write_pair(folder / f"megatron-{name}", [4, 0, 3, 5], ids.astype(name), [0, 1, 3, 4])
    for name in ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"]:
        np.save(folder / f"{name}.npy", ids.astype(name).reshape((12,) if name.startswith("u") else (3, 4)))
    np.save(folder / "big-endian.npy", ids.astype(">i4"))
    np.save(folder / "float.npy", ids.astype("f4"))
    np.save(folder / "fortran.npy", np.asfortranarray(ids.astype("i4").reshape(3, 4)))
    for magic, version, dtype in [(20240520, 1, "<u2"), (20240801, 7, "<u4")]:
        header = np.zeros(256, "<i4")
        header[:3] = magic, version, len(ids)
        (folder / f"llmc-{version}.bin").write_bytes(header.tobytes() + ids.astype(dtype).tobytes())


class Dataset:
    def __init__(self, sizes, first):
        self.sizes = sizes
        self.tokens = np.arange(first, first + sum(sizes), dtype=np.int32)
        ends = np.cumsum(sizes)
        self.documents = [self.tokens[end - size:end] for size, end in zip(sizes, ends)]

    def samples(self, seed, wanted):
        """All samples that are prepared for `wanted` ones, shuffled."""
        per_epoch, epochs = sum(self.sizes), 1
        while epochs * per_epoch < wanted * SEQ_LEN + 1:
            epochs += 1
        before = ((epochs - 1) * per_epoch - 1) // SEQ_LEN
        apart = epochs > 1 and wanted - before < int(0.80 * ((per_epoch - 1) // SEQ_LEN))
        random = np.random.RandomState(seed)
        numbers = np.arange(len(self.sizes), dtype=np.int32)
        parts = [np.tile(numbers, epochs - 1), numbers.copy()] if apart else [np.tile(numbers, epochs)]
        for part in parts:
            random.shuffle(part)
        stream = np.concatenate([self.documents[i] for i in np.concatenate(parts)])
        count = (len(stream) - 1) // SEQ_LEN
        cuts = [np.arange(before, dtype=np.uint32), np.arange(before, count, dtype=np.uint32)] if apart \
            else [np.arange(count, dtype=np.uint32)]
        for cut in cuts:
            random.shuffle(cut)
        order = np.concatenate(cuts)
        return [stream[i * SEQ_LEN:(i + 1) * SEQ_LEN + 1] for i in order.astype(np.int64)]


def blend(datasets, weights, seed, wanted):
    normalize = lambda w: (np.array(w, np.float64) / np.sum(np.array(w, np.float64))).tolist()
    shares = normalize(weights)
    samples = [d.samples(seed, math.ceil(math.ceil(wanted * w) * (1 + 0.005))) for d, w in zip(datasets, shares)]
    weights, taken, out = normalize(shares), [0] * len(datasets), []
    for i in range(wanted):
        errors = [w * max(float(i), 1.0) - n for w, n in zip(weights, taken)]
        best = errors.index(max(errors))
        out.append(samples[best][taken[best]])
        taken[best] += 1
    return out


def fnv1a(data):
    value = 0xcbf29ce484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001b3 % 2**64
    return value


def write_order(out, name, seed, samples):
    out.write(f"case {name} {seed} {len(samples)}\n")
    for sample in samples:
        assert len(sample) == SEQ_LEN + 1
        out.write(f"{sample[0]} {fnv1a(sample.astype('<i4').tobytes()):016x}\n")


def main(folder):
    write_types(folder)
    sizes = np.random.default_rng(7)
    datasets = []
    for k, documents in enumerate([40, 25, 9]):
        lengths = sizes.integers(1, 60, documents).tolist()
        lengths[documents // 2] = 0
        datasets.append(Dataset(lengths, 10000 * k))
        write_pair(folder / f"order-{k}", lengths, datasets[k].tokens)
    first = datasets[0]
    epoch = (sum(first.sizes) - 1) / SEQ_LEN
    with open(folder / "order.dat", "w") as out:
        for seed in SEEDS:
            for epochs in [1.0, 3.2, 2.9]:  # of the last the last epoch is not apart
                wanted = int(epochs * epoch)
                write_order(out, "0", seed, first.samples(seed, wanted)[:wanted])
            write_order(out, "blend", seed, blend(datasets, [0.3, 1.1, 0.25], seed, 120))
        many = [0.05 * (2 * k + 1) for k in range(10)]  # numpy adds eight and more numbers in another order
        write_order(out, "blend10", 5, blend([datasets[k % 3] for k in range(10)], many, 5, 200))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
