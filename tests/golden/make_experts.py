#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Losses and all gradients of small models with experts, by Hugging Face transformers in fp64.

    make_experts.py [CASE...]  write experts/<case>.reference.txt and experts/<case>.gradients.bin, of all cases

`mixtral` is transformers' Mixtral. `deepseek` is its Llama whose feed-forward layers after the first one are its
DeepseekV3MoE (arXiv 2412.19437, section 2.1.2: sigmoid scores, a bias that counts for the choice only, groups, a factor
of the gates, shared experts): all of DeepSeek-V3 but its attention. After each batch its biases move by
BIAS_RATE * sign(mean - tokens of the expert). The weights stay: element i of the parameter that p3d calls NAME is
middle + width * (u - 1/2), u = (splitmix64(fnv1a64(NAME) + i mod 2^64) >> 11) / 2^53.

Format of <case>.reference.txt: words separated by a space, lines that start with # are comments.
    step T LOSS GRAD_NORM                batch T of the data order of make_hugging_face.py, on LICENSE
    parameter NAME ROWS COLS MIDDLE WIDTH trained|bias
<case>.gradients.bin: of the first batch, for each trained parameter in order, ROWS x COLS doubles, little endian.
"""

import math
import pathlib
import sys

import numpy
import torch
import transformers
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Config, DeepseekV3MoE

import reference_random
from make_hugging_face import TEXT, TOKENS, in_double, loss_of

FOLDER = pathlib.Path(__file__).resolve().parent / "experts"
SEQ_LEN, BATCH, STEPS, SEED, BIAS_RATE = 32, 4, 4, 77, 0.05
COMMON = {"vocab_size": 256, "hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2,
          "max_position_embeddings": SEQ_LEN, "rms_norm_eps": 1e-5,
          "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, **TOKENS}
# p3d's name: that of transformers, in a layer
LAYER = {"norm1": "input_layernorm", "attn.q": "self_attn.q_proj", "attn.k": "self_attn.k_proj",
         "attn.v": "self_attn.v_proj", "attn.out": "self_attn.o_proj", "norm2": "post_attention_layernorm"}
MLP = {"mlp.gate": "mlp.gate_proj", "mlp.up": "mlp.up_proj", "mlp.down": "mlp.down_proj"}
SHARED = {"moe.shared.gate": "mlp.shared_experts.gate_proj", "moe.shared.up": "mlp.shared_experts.up_proj",
          "moe.shared.down": "mlp.shared_experts.down_proj"}


def whole(tensor):
    """A parameter that p3d holds as transformers does."""
    return tensor.view(1, -1) if tensor.dim() == 1 else tensor


def of_experts(tensor, part):
    """p3d's [experts * hidden, ffn] of gate and up ([experts, 2 ffn, hidden] here) or down ([experts, hidden, ffn])."""
    if part != "down":
        tensor = tensor.chunk(2, dim=1)[part == "up"].transpose(1, 2)
    return tensor.flatten(0, 1)


class Parameter:
    """One of p3d's: `view` gives it from a tensor like `owner` (a weight or its gradient)."""

    def __init__(self, name, owner, view=whole, trained=True):
        self.name, self.owner, self.view, self.trained = name, owner, view, trained
        self.rows, self.cols = view(owner.data).shape
        norm = "norm" in name
        self.middle, self.width = (1.0, 0.4) if norm else (0.0, 0.3 if not trained else 1.0)

    def fill(self):
        first = reference_random.fnv1a64(self.name.encode())
        u = [(reference_random.splitmix64((first + i) & reference_random.MASK64) >> 11) / 2.0**53
             for i in range(self.rows * self.cols)]
        values = torch.tensor([self.middle + self.width * (x - 0.5) for x in u], dtype=torch.float64)
        part = self.view(self.owner.data)
        if part.data_ptr() == self.owner.data_ptr() and part.is_contiguous():
            part.copy_(values.view(self.rows, self.cols))
            return
        # flatten() of a transposed view copies: go through the gradient of a sum, which scatters.
        probe = torch.zeros_like(self.owner, requires_grad=True)
        (self.view(probe) * values.view(self.rows, self.cols)).sum().backward()
        self.owner.data += probe.grad


def parameters_of(model):
    body = model.model
    yield Parameter("embed.token.weight", body.embed_tokens.weight)
    for number, layer in enumerate(body.layers):
        dense = not hasattr(layer.mlp, "experts")
        rows = {**LAYER, **(MLP if dense else SHARED if hasattr(layer.mlp, "shared_experts") else {})}
        for name, theirs in rows.items():
            yield Parameter(f"layers.{number}.{name}.weight", layer.get_submodule(theirs).weight)
        if dense:
            continue
        prefix = f"layers.{number}.moe."
        gate, experts = layer.mlp.gate, layer.mlp.experts
        yield Parameter(prefix + "router.weight", gate.weight)
        if hasattr(gate, "e_score_correction_bias"):
            yield Parameter(prefix + "router.bias", gate.e_score_correction_bias, trained=False)
        for part in ("gate", "up", "down"):
            owner = experts.down_proj if part == "down" else experts.gate_up_proj
            yield Parameter(f"{prefix}experts.{part}.weight", owner, lambda t, part=part: of_experts(t, part))
    yield Parameter("final_norm.weight", body.norm.weight)
    if model.lm_head.weight is not body.embed_tokens.weight:
        yield Parameter("head.weight", model.lm_head.weight)


def mixtral():
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(
        intermediate_size=12, num_hidden_layers=2, num_local_experts=4, num_experts_per_tok=2,
        tie_word_embeddings=True, **COMMON))


def deepseek():
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        intermediate_size=24, num_hidden_layers=3, tie_word_embeddings=False, **COMMON))
    config = DeepseekV3Config(
        moe_intermediate_size=8, n_routed_experts=8, num_experts_per_tok=3, n_group=4, topk_group=2,
        norm_topk_prob=True, routed_scaling_factor=2.5, n_shared_experts=2, **COMMON)
    config._experts_implementation = "eager"
    for layer in model.model.layers[1:]:
        layer.mlp = DeepseekV3MoE(config)
    return model


CASES = {"mixtral": mixtral, "deepseek": deepseek}


def count_choices(model):
    """Counts the tokens of each router's experts, from now on."""
    counts = {}

    def note(router, _, output):
        chosen = output[2].flatten()
        counts[router] = counts.get(router, 0) + torch.bincount(chosen, minlength=router.num_experts)

    for module in model.modules():
        if hasattr(module, "e_score_correction_bias"):
            module.register_forward_hook(note)
    return counts


def steps(model):
    train = TEXT[: len(TEXT) - math.floor(len(TEXT) * 0.1)]
    sampler = reference_random.Sampler(SEED, len(train), SEQ_LEN)
    counts = count_choices(model)
    for step in range(STEPS):
        starts = [sampler.locate(step * BATCH + i)[2] for i in range(BATCH)]
        model.zero_grad()
        counts.clear()
        with in_double():
            loss = loss_of(model, [train[s:s + SEQ_LEN + 1] for s in starts])
            loss.backward()
        yield loss.item(), math.sqrt(math.fsum(p.grad.square().sum().item() for p in model.parameters()))
        for router, count in counts.items():
            count = count.double()
            router.e_score_correction_bias += BIAS_RATE * torch.sign(count.mean() - count)


def make(case):
    model = CASES[case]()
    model.set_attn_implementation("sdpa")
    model.config._experts_implementation = "eager"
    model = model.double().train()
    with in_double():  # frequencies in fp64
        model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
    parameters = list(parameters_of(model))
    for p in parameters:
        p.owner.data.zero_()
    for p in parameters:
        p.fill()
    lines = ["# Made by make_experts.py, which describes the format; do not edit."]
    for number, (loss, norm) in enumerate(steps(model)):
        lines.append(f"step {number} {loss:.17g} {norm:.17g}")
        if number == 0:
            gradients = [p.view(p.owner.grad).reshape(-1).numpy().copy() for p in parameters if p.trained]
    assert sum(g.size for g in gradients) == sum(p.numel() for p in model.parameters()), "every parameter once"
    for p in parameters:
        kind = "trained" if p.trained else "bias"
        lines.append(f"parameter {p.name} {p.rows} {p.cols} {p.middle} {p.width} {kind}")
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{case}.reference.txt").write_text("\n".join(lines) + "\n")
    (FOLDER / f"{case}.gradients.bin").write_bytes(numpy.concatenate(gradients).astype("<f8").tobytes())
    print(case, *lines[1:5], sep="\n  ")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[1:] or CASES:
        make(name)
