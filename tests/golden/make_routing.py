#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes routing.reference.txt: the routers of transformers' mixture-of-experts models, in fp64, random weights.

    make_routing.py            write routing.reference.txt (transformers 5, torch)
    make_routing.py --check    recompute and compare with the committed file, write nothing

The routers convert to float32; here float32 is float64 while they run. They do not order the experts of a token by the
same rule: the slots are put in the order of score + bias, largest first.

Format: words separated by a space, lines that start with # are comments.
    case NAME TOKENS EXPERTS TOP_K softmax|sigmoid GROUPS GROUP_TOP_K NORMALIZE SCALE
    logits|bias|choice|gates|d_gates|d_logits X...
                     of the case before, row after row; bias may be missing, d_gates is given, d_logits its gradient
"""

import argparse
import pathlib
import sys
from types import SimpleNamespace
from unittest import mock

import torch
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2TopkRouter
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter
from transformers.models.mixtral.modeling_mixtral import MixtralTopKRouter
from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeTopKRouter

FILE = pathlib.Path(__file__).resolve().parent / "routing.reference.txt"
TOKENS, HIDDEN = 7, 5
# router, experts, top_k, score, groups, group_top_k, normalize, scale
CASES = {
    "mixtral": (MixtralTopKRouter, 8, 2, "softmax", 1, 1, True, 1.0),
    "qwen2_moe": (Qwen2MoeTopKRouter, 12, 4, "softmax", 1, 1, False, 1.0),
    "qwen2_moe_normalized": (Qwen2MoeTopKRouter, 12, 4, "softmax", 1, 1, True, 1.0),
    "deepseek_v2": (DeepseekV2TopkRouter, 16, 3, "softmax", 4, 2, False, 16.0),
    "deepseek_v3": (DeepseekV3TopkRouter, 16, 4, "sigmoid", 4, 2, True, 2.5),
    "deepseek_v3_not_normalized": (DeepseekV3TopkRouter, 16, 4, "sigmoid", 8, 3, False, 2.5),
}


def config(experts, top_k, groups, group_top_k, normalize, scale):
    """The names that the models' configurations have for the same things."""
    return SimpleNamespace(
        num_experts_per_tok=top_k, num_local_experts=experts, num_experts=experts, n_routed_experts=experts,
        hidden_size=HIDDEN, norm_topk_prob=normalize, n_group=groups, topk_group=group_top_k, num_group=groups,
        routed_scaling_factor=scale, topk_method="group_limited_greedy")


def run_case(name, seed):
    router_class, experts, top_k, score, groups, group_top_k, normalize, scale = CASES[name]
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        """Multiples of 1/32: short in the file."""
        return (torch.randn(*shape, dtype=torch.float64, generator=generator) * 32).round() / 32

    router = router_class(config(experts, top_k, groups, group_top_k, normalize, scale)).double()
    router.weight.data = random(experts, HIDDEN)
    bias = None
    if hasattr(router, "e_score_correction_bias"):
        bias = random(experts) / 4
        router.e_score_correction_bias.data = bias
    x, d_gates = random(TOKENS, HIDDEN), random(TOKENS, top_k)
    with mock.patch.object(torch, "float32", torch.float64), mock.patch.object(torch, "float", torch.float64), \
            mock.patch.object(torch.Tensor, "float", torch.Tensor.double):
        logits, gates, choice = router(x)
    assert logits.dtype == gates.dtype == torch.float64
    logits.retain_grad()
    keys = logits.softmax(-1) if score == "softmax" else logits.sigmoid() + bias
    order = keys.gather(1, choice).argsort(dim=1, descending=True)
    choice, gates = choice.gather(1, order), gates.gather(1, order)
    gates.backward(d_gates)
    values = {"logits": logits, "choice": choice, "gates": gates, "d_gates": d_gates, "d_logits": logits.grad}
    if bias is not None:
        values["bias"] = bias
    head = f"case {name} {TOKENS} {experts} {top_k} {score} {groups} {group_top_k} {int(normalize)} {scale}"
    return [head] + [key + " " + " ".join(f"{x:.17g}" for x in value.detach().reshape(-1).tolist())
                     for key, value in values.items()]


def gap(found, expected):
    """The largest difference of two lines' numbers, infinite where their words differ."""
    a, b = found.split(), expected.split()
    if len(a) != len(b) or a[0] != b[0] or a[0] == "case" or a[0] == "#":
        return 0.0 if a == b else float("inf")
    return max(abs(float(x) - float(y)) for x, y in zip(a[1:], b[1:]))


def main():
    parser = argparse.ArgumentParser(description="Makes or checks the golden values of routers.")
    parser.add_argument("--check", action="store_true", help="compare with the committed file, write nothing")
    arguments = parser.parse_args()
    lines = ["# Made by make_routing.py, which describes the format; do not edit."]
    for seed, name in enumerate(CASES):
        lines += run_case(name, seed)
    if not arguments.check:
        FILE.write_text("\n".join(lines) + "\n")
        return
    committed = FILE.read_text().splitlines()
    worst = float("inf")
    if len(committed) == len(lines):
        worst = max(gap(a, b) for a, b in zip(committed, lines))
    print(f"routing agrees to {worst:.1e}")
    sys.exit(0 if worst < 1e-13 else 1)


if __name__ == "__main__":
    main()
