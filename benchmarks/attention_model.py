#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The predicted time of attention by GEMMs on a GPU (src/kernels/attention_gemm.cpp), and of a step of a model of a
billion parameters, for docs/gpu_attention.md.

usage: attention_model.py            prints the page's tables
       attention_model.py --check    exit code 1 if the page has others

Nothing here is measured. A block of scores is cut as src/kernels/attention_blocks.hpp cuts it. A kernel takes the
longest of its FLOPs, its instructions and its bytes, and the time of a launch. Bytes of a block that fits the
second-level cache move at its rate, the rest at that of memory. A step is its GEMMs, its attention, and the other
kernels of its layers, which take the time of the bytes that they read and write.
"""
import pathlib
import sys

H100 = {"tensor": 600e12, "instructions": 132 * 128 * 1.7e9 * 0.6, "memory": 2.8e12, "cache": 5.5e12,
        "cache_bytes": 32 << 20, "launch": 2e-6, "host_launch": 3e-6}
BLOCK_BYTES, USUAL, STEP = 1 << 26, 128, 64
SCORE, ELEMENT = 4, 2  # bytes of a sum and of an element of 16 bits


def evenly(n, most):
    parts = 1 if most >= n else n if most <= 1 else -(-n // most)
    return -(-n // parts)


def blocks(tokens, heads, kv_heads, dim):
    """Heads of keys and members at a time, and (queries, keys) of the blocks: AttentionBlocks without a window."""
    def row_bytes(keys):
        return SCORE * (2 * (-(-keys // 16) * 16) + dim + 2) + 2 * ELEMENT * dim
    group = heads // kv_heads
    fit = BLOCK_BYTES // (USUAL * row_bytes(tokens))
    at_once = evenly(kv_heads, min(fit // group, BLOCK_BYTES // (2 * USUAL * SCORE) // tokens))
    members = group if at_once > 1 else evenly(group, fit)
    cut, query = [], 0
    while query < tokens:
        n = min(tokens - query, USUAL)
        while query + n < tokens:
            longer = min(tokens - query, n + STEP)
            if longer > query + 1 or at_once * members * longer * row_bytes(query + longer) > BLOCK_BYTES:
                break
            n = longer
        cut.append((n, query + n))
        query += n
    return at_once, members, cut


def predict(gpu, tokens, heads, kv_heads, dim, samples, backward):
    """Seconds, launches, and scores computed for each that is needed."""
    at_once, members, cut = blocks(tokens, heads, kv_heads, dim)
    packs = 1 if heads > kv_heads else 0
    seconds, launches, scores = 0.0, 0, 0
    for queries, keys in cut:
        rows = at_once * members * queries
        n = rows * keys
        q, kv, sums = rows * dim * ELEMENT, at_once * keys * dim * ELEMENT, at_once * keys * dim * SCORE
        held = n * SCORE * (2 if backward else 1) + q * (6 if backward else 4) + 2 * kv + (2 * sums if backward else 0)

        def kernel(moved, flops=0.0, instructions=0.0):
            near = min(1.0, gpu["cache_bytes"] / held)
            return gpu["launch"] + max(moved * (near / gpu["cache"] + (1 - near) / gpu["memory"]),
                                       flops / gpu["tensor"], instructions / gpu["instructions"])
        flops = 2.0 * n * dim
        seconds += packs * kernel((2 + 2 * backward) * q)
        seconds += (1 + backward) * kernel(n * SCORE + q + kv, flops)  # scores, and their gradients
        seconds += kernel(n * (SCORE + ELEMENT) * (1 + backward), instructions=n * (30 if backward else 25))
        if backward:
            seconds += 2 * kernel(n * ELEMENT + q + 2 * sums, flops)
        seconds += kernel(n * ELEMENT + kv + 2 * q, flops)  # probabilities with v, or their gradients with k
        seconds += kernel(3 * q)
        launches += packs + (8 if backward else 4)
        scores += n
    if backward:  # sums are cleared and rounded into their place
        seconds += 2 * gpu["launch"] + at_once * tokens * dim * (4 * SCORE + 2 * ELEMENT) / gpu["memory"]
        launches += 2
    times = samples * -(-kv_heads // at_once) * -(-(heads // kv_heads) // members)
    needed = at_once * members * tokens * (tokens + 1) / 2
    return times * max(seconds, launches * gpu["host_launch"]), times * launches, scores / needed


SHAPES = [(2048, 32, 32, 64), (2048, 32, 4, 64), (2048, 32, 32, 128), (2048, 32, 8, 128), (8192, 32, 32, 64),
          (8192, 32, 4, 64), (8192, 32, 32, 128), (8192, 32, 8, 128)]


def table():
    lines = ["| tokens | heads, of keys | head_dim | forward TFLOP/s | backward TFLOP/s | both | launches "
             "| scores in vain |",
             "|--:|--:|--:|--:|--:|--:|--:|--:|"]
    for tokens, heads, kv_heads, dim in SHAPES:
        samples = 16384 // tokens
        useful = 4.0 * dim * samples * heads * tokens * (tokens + 1) / 2
        forward, launches, vain = predict(H100, tokens, heads, kv_heads, dim, samples, False)
        backward, more, _ = predict(H100, tokens, heads, kv_heads, dim, samples, True)
        lines.append(f"| {tokens:,} | {heads}, {kv_heads} | {dim} | {useful / forward / 1e12:.0f} | "
                     f"{2.5 * useful / backward / 1e12:.0f} | {3.5 * useful / (forward + backward) / 1e12:.0f} | "
                     f"{launches + more:,} | {100 * (vain - 1):.0f} % |")
    return "\n".join(lines)


PEAK, STREAM, FUSED = 989e12, 0.5 * 3.35e12, 350e12  # the ceiling of MFU, bytes a second, FLOP/s of cuDNN's kernels
LAYERS, HIDDEN, FFN, VOCAB, HEADS, KV_HEADS, DIM = 22, 2048, 5632, 32000, 32, 4, 64


def step(tokens, fused):
    """Seconds a token of attention and of all, and the FLOPs of a token: attention counts its causal half."""
    qkv = (HEADS + 2 * KV_HEADS) * DIM
    weights = LAYERS * (HIDDEN * (qkv + HEADS * DIM) + 3 * HIDDEN * FFN) + HIDDEN * VOCAB
    # Elements read and written, forward and backward: two norms with their residuals, rotation of q and k, SwiGLU.
    moved = LAYERS * (2 * (4 + 5) * HIDDEN + 2 * 2 * (HEADS + KV_HEADS) * DIM + (3 + 5) * FFN) + 3 * VOCAB
    useful = LAYERS * 3.0 * 4 * DIM * HEADS * (tokens + 1) / 2
    samples = 16384 // tokens
    if fused:
        attention = 3.5 / 3 * useful / FUSED  # a backward pass makes the scores again
    else:
        both = [predict(H100, tokens, HEADS, KV_HEADS, DIM, samples, backward)[0] for backward in (False, True)]
        attention = LAYERS * sum(both) / (samples * tokens)
    flops = 6.0 * weights + useful
    return attention, 6.0 * weights / H100["tensor"] + ELEMENT * moved / STREAM + attention, flops


def step_table():
    lines = ["| tokens | attention | microseconds a token: attention, all | tokens/s | MFU, at most |",
             "|--:|---|--:|--:|--:|"]
    for tokens in (2048, 8192):
        for fused in (False, True):
            attention, seconds, flops = step(tokens, fused)
            name = "GEMMs" if not fused else "cuDNN" if tokens < 4096 else "cuDNN, without `run.deterministic`"
            lines.append(f"| {tokens:,} | {name} | {attention * 1e6:.1f}, {seconds * 1e6:.0f} | "
                         f"{round(1e-3 / seconds) * 1000:,} | {flops / seconds / PEAK:.2f} |")
    return "\n".join(lines)


def main():
    if sys.argv[1:] == ["--check"]:
        page = pathlib.Path(__file__).resolve().parent.parent / "docs" / "gpu_attention.md"
        for expected in (table(), step_table()):
            if expected not in page.read_text(encoding="utf-8"):
                print(f"{page.name}: expected the table that attention_model.py prints now:\n{expected}",
                      file=sys.stderr)
                return 1
    elif sys.argv[1:]:
        print(__doc__, file=sys.stderr)
        return 2
    else:
        print(table() + "\n\n" + step_table())
    return 0


if __name__ == "__main__":
    sys.exit(main())
