#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes rope.reference.txt: rotary frequencies of Hugging Face transformers (modeling_rope_utils), in fp64.

    make_rope.py                    needs: pip install torch transformers

A line: TYPE HEAD_DIM FRACTION THETA FACTOR ORIGINAL FAST SLOW ATTENTION TRUNCATE RESULT FREQUENCY...
Of longrope: longrope HEAD_DIM FRACTION THETA FACTOR ORIGINAL ATTENTION SEQ_LEN RESULT, then for each pair its numbers
of short_factor and of long_factor and its frequency in a sequence of SEQ_LEN tokens.
FAST and SLOW are beta_fast and beta_slow of yarn, high_freq_factor and low_freq_factor of llama3. ATTENTION is
attention_factor, 0 where it is left out. RESULT is the factor of cosine and sine.
"""
import pathlib

import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

# The shapes of OLMo 3, gpt-oss, DeepSeek-V3's rotary part and Qwen3, then odd ones.
YARN = [(128, 1.0, 5e5, 8.0, 8192, 32, 1, 1.2079441541679836, 1), (64, 1.0, 150000.0, 32.0, 4096, 32, 1, 0, 0),
        (64, 1.0, 1e4, 40.0, 4096, 32, 1, 0, 1), (128, 1.0, 1e6, 4.0, 32768, 32, 1, 0, 1),
        (16, 1.0, 1e4, 2.0, 32, 4, 1, 0, 1), (16, 1.0, 500.0, 16.0, 64, 32, 1, 0.9, 0),
        (10, 1.0, 1e4, 3.0, 50, 8, 2, 0, 1), (24, 0.5, 1e4, 5.5, 100, 16, 0.5, 0, 0),
        (8, 1.0, 2.0, 4.0, 16, 32, 1, 0, 1), (128, 0.25, 1e7, 16.0, 262144, 32, 1, 0, 1)]
LLAMA3 = [(128, 1.0, 5e5, 8.0, 8192, 4, 1, 0, 1), (64, 1.0, 5e5, 32.0, 8192, 4, 1, 0, 1),
          (16, 1.0, 1e4, 32.0, 64, 8, 1.5, 0, 1), (32, 1.0, 1e4, 4.0, 256, 4, 1, 0, 1),
          (10, 1.0, 1e6, 2.0, 1000, 2, 0.5, 0, 1), (26, 1.0, 1e5, 3.5, 333, 6, 2, 0, 1)]
LINEAR = [(128, 1.0, 1e4, 4.0, 1, 2, 1, 0, 1), (10, 1.0, 1e6, 2.5, 1, 2, 1, 0, 1), (64, 1.0, 1e4, 1.0, 1, 2, 1, 0, 1),
          (32, 0.5, 5e5, 8.0, 1, 2, 1, 0, 1)]
# The shape of Phi-4-mini, then odd ones; two lengths of sequences on both sides of the original one.
LONGROPE = [(128, 0.75, 1e4, 32.0, 4096, 0), (96, 1.0, 1e4, 32.0, 4096, 1.190238), (10, 1.0, 500.0, 3.7, 20, 0),
            (16, 0.5, 1e6, 1.0, 64, 0), (24, 0.75, 50.0, 2.5, 7, 0.6)]


def longrope_lines(head_dim, fraction, theta, factor, original, attention):
    pairs = int(head_dim * fraction) // 2
    short = [1.0 + 0.01 * i * i for i in range(pairs)]
    long = [0.7 + 1.3 * i + 0.003 * i * i * i for i in range(pairs)]
    rope = {"rope_type": "longrope", "rope_theta": theta, "factor": factor, "partial_rotary_factor": fraction,
            "original_max_position_embeddings": original, "short_factor": short, "long_factor": long}
    rope |= {"attention_factor": attention} if attention else {}
    config = LlamaConfig(hidden_size=4 * head_dim, num_attention_heads=4, head_dim=head_dim,
                         max_position_embeddings=int(original * factor), rope_parameters=rope)
    for seq_len in (original, original + 1):
        frequencies, result = ROPE_INIT_FUNCTIONS["longrope"](config, "cpu", seq_len=seq_len)
        assert frequencies.dtype == torch.float64
        words = ["longrope", head_dim, fraction, theta, factor, original, attention, seq_len, repr(float(result))]
        for numbers in zip(short, long, frequencies, strict=True):
            words += [repr(float(number)) for number in numbers]
        yield " ".join(str(word) for word in words)


def line(kind, head_dim, fraction, theta, factor, original, fast, slow, attention, truncate):
    rope = {"rope_type": kind, "rope_theta": theta, "factor": factor, "partial_rotary_factor": fraction}
    if kind != "linear":
        rope["original_max_position_embeddings"] = original
    if kind == "yarn":
        rope |= {"beta_fast": fast, "beta_slow": slow}
        rope |= {"attention_factor": attention} if attention else {}
        rope |= {} if truncate else {"truncate": False}
    if kind == "llama3":
        rope |= {"high_freq_factor": fast, "low_freq_factor": slow}
    config = LlamaConfig(hidden_size=4 * head_dim, num_attention_heads=4, head_dim=head_dim,
                         max_position_embeddings=int(original * factor), rope_parameters=rope)
    frequencies, result = ROPE_INIT_FUNCTIONS[kind](config, "cpu")
    assert frequencies.dtype == torch.float64
    words = [kind, head_dim, fraction, theta, factor, original, fast, slow, attention, truncate]
    return " ".join(str(word) for word in words + [repr(float(result)), *(repr(float(f)) for f in frequencies)])


def main():
    torch.float = torch.float32 = torch.float64
    torch.Tensor.float = torch.Tensor.double
    rows = [line(kind, *row) for kind, all_ in (("yarn", YARN), ("llama3", LLAMA3), ("linear", LINEAR)) for row in all_]
    rows += [text for row in LONGROPE for text in longrope_lines(*row)]
    path = pathlib.Path(__file__).resolve().parent / "rope.reference.txt"
    path.write_text("# Made by make_rope.py, which describes the format; do not edit.\n" + "\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
