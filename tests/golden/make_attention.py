#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes attention.reference.txt: attention with grouped queries by PyTorch, in fp64, of one window of packed documents
and of one with a sliding window.

    make_attention.py            write attention.reference.txt
    make_attention.py --check    recompute and compare with the committed file, write nothing

What a query sees is said by a boolean mask that is written out; scaled_dot_product_attention and autograd do the rest.

Format: words separated by a space, lines that start with # are comments.
    case NAME TOKENS HEADS KV_HEADS HEAD_DIM WINDOW FIRST...
                                FIRST is the index of the first token of each query's document
    q|k|v|out|dout|dq|dk|dv X...
                                of the case before: [TOKENS, (KV_)HEADS HEAD_DIM], row after row; dout is given
"""

import argparse
import pathlib
import sys

import torch

FILE = pathlib.Path(__file__).resolve().parent / "attention.reference.txt"
HEADS, KV_HEADS, DIM = 4, 2, 3
CASES = {"packed": (0, [1, 6, 4, 5]), "sliding": (5, [17]), "both": (3, [7, 8])}  # window, lengths of documents


def rows(tensor):
    """[1, heads, tokens, dim] as numbers, row after row."""
    return tensor.detach()[0].transpose(0, 1).reshape(-1).tolist()


def run_case(name, seed):
    window, lengths = CASES[name]
    tokens = sum(lengths)
    first = [sum(lengths[:i]) for i, length in enumerate(lengths) for _ in range(length)]
    mask = torch.tensor([[first[i] <= j <= i and (window == 0 or i - j < window) for j in range(tokens)]
                         for i in range(tokens)])
    generator = torch.Generator().manual_seed(seed)

    def random(heads):
        """Multiples of 1/32: short in the file."""
        x = torch.randn(1, heads, tokens, DIM, dtype=torch.float64, generator=generator)
        return (x * 32).round() / 32

    q, k, v, dout = random(HEADS), random(KV_HEADS), random(KV_HEADS), random(HEADS)
    for x in (q, k, v):
        x.requires_grad_()
    group = HEADS // KV_HEADS
    wide = [x.repeat_interleave(group, dim=1) for x in (k, v)]
    out = torch.nn.functional.scaled_dot_product_attention(q, *wide, attn_mask=mask)
    out.backward(dout)
    values = {"q": q, "k": k, "v": v, "out": out, "dout": dout, "dq": q.grad, "dk": k.grad, "dv": v.grad}
    head = f"case {name} {tokens} {HEADS} {KV_HEADS} {DIM} {window} " + " ".join(map(str, first))
    return [head] + [key + " " + " ".join(f"{x:.17g}" for x in rows(value)) for key, value in values.items()]


def gap(found, expected):
    """The largest difference of two lines' numbers, infinite where their words differ."""
    a, b = found.split(), expected.split()
    if len(a) != len(b) or a[0] != b[0] or a[0] == "case" or a[0] == "#":
        return 0.0 if a == b else float("inf")
    return max(abs(float(x) - float(y)) for x, y in zip(a[1:], b[1:]))


def main():
    parser = argparse.ArgumentParser(description="Makes or checks the golden values of attention.")
    parser.add_argument("--check", action="store_true", help="compare with the committed file, write nothing")
    arguments = parser.parse_args()
    lines = ["# Made by make_attention.py, which describes the format; do not edit."]
    for seed, name in enumerate(CASES):
        lines += run_case(name, seed)
    if not arguments.check:
        FILE.write_text("\n".join(lines) + "\n")
        return
    committed = FILE.read_text().splitlines()
    worst = float("inf")
    if len(committed) == len(lines):
        worst = max(gap(a, b) for a, b in zip(committed, lines))
    print(f"attention agrees to {worst:.1e}")
    sys.exit(0 if worst < 1e-13 else 1)


if __name__ == "__main__":
    main()
