#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the golden values of sharded state: the cases of make_reference.py, trained by two processes with FSDP2.

    make_sharded_reference.py            write <case>.sharded.txt and <case>.weights.bin for every case
    make_sharded_reference.py --check    recompute and compare with the committed files, write nothing

Two processes (gloo, fp64) hold half of every parameter, gradient and moment each (torch.distributed.fsdp.fully_shard).
A step is two microbatches of one sequence on each, whose gradients add up; then clipping by the global norm and AdamW
on the shards. The model is written once more, from PyTorch's own modules. Initial weights, data order and learning
rates are those of make_reference.py, whose losses and norms these must be too.

Each case is trained twice: weights gathered once a step and gradients reduced after its last microbatch; and both in
every microbatch. The first is written, the second must agree with it.

Format of <case>.sharded.txt: that of <case>.reference.txt, but for the binary, which holds weights:
    weights FILE COUNT FNV1A64    number of values, checksum of the bytes
Format of <case>.weights.bin: little-endian float64, row-major, no gaps: all parameters after the last step, in the
order of the parameter records (OFFSET counts values).
"""

import argparse
import math
import os
import struct
import sys
import tempfile
import tomllib
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard
import torch.nn.functional as F

import make_reference
import reference_model
import reference_random

FOLDER = Path(__file__).resolve().parent
REPLICAS = 2
# Between the two ways to train a case, relative.
SAME = 1e-13


class Attention(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.heads, self.kv_heads = model["heads"], model["kv_heads"]
        self.head_dim = model["hidden"] // model["heads"]
        self.theta = model["rope_theta"] if model["position"] == "rope" else None
        hidden, kv_width, bias = model["hidden"], self.kv_heads * self.head_dim, model["bias"]
        self.q = nn.Linear(hidden, hidden, bias=bias)
        self.k = nn.Linear(hidden, kv_width, bias=bias)
        self.v = nn.Linear(hidden, kv_width, bias=bias)
        self.out = nn.Linear(hidden, hidden, bias=bias)

    def rotated(self, x):
        """x [..., time, dim] turned by its positions: first half and second half of dim are the two coordinates."""
        half = self.head_dim // 2
        frequency = self.theta ** (-torch.arange(half, dtype=torch.float64) / half)
        angle = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] * frequency
        a, b = x[..., :half], x[..., half:]
        return torch.cat((a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()), dim=-1)

    def forward(self, x):
        def split(y, heads):
            return y.unflatten(-1, (heads, self.head_dim)).transpose(-2, -3)

        q, k, v = split(self.q(x), self.heads), split(self.k(x), self.kv_heads), split(self.v(x), self.kv_heads)
        if self.theta is not None:
            q, k = self.rotated(q), self.rotated(k)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.kv_heads)
        return self.out(y.transpose(-2, -3).flatten(-2))


class Mlp(nn.Module):
    def __init__(self, model):
        super().__init__()
        hidden, ffn, bias = model["hidden"], model["ffn"], model["bias"]
        self.gate = nn.Linear(hidden, ffn, bias=bias) if model["activation"] == "swiglu" else None
        self.up = nn.Linear(hidden, ffn, bias=bias)
        self.down = nn.Linear(ffn, hidden, bias=bias)

    def forward(self, x):
        if self.gate is not None:
            return self.down(F.silu(self.gate(x)) * self.up(x))
        return self.down(F.gelu(self.up(x), approximate="tanh"))


def make_norm(model):
    kind = nn.LayerNorm if model["norm"] == "layernorm" else nn.RMSNorm
    return kind(model["hidden"], eps=model["norm_eps"])


class Block(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.norm1, self.attn = make_norm(model), Attention(model)
        self.norm2, self.mlp = make_norm(model), Mlp(model)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """Its parameters have the names of the reference."""

    def __init__(self, model):
        super().__init__()
        self.embed = nn.ModuleDict({"token": nn.Embedding(model["vocab_size"], model["hidden"])})
        if model["position"] == "learned":
            self.embed["position"] = nn.Embedding(model["seq_len"], model["hidden"])
        self.layers = nn.ModuleList(Block(model) for _ in range(model["layers"]))
        self.final_norm = make_norm(model)
        if not model["tied_embeddings"]:
            self.head = nn.Linear(model["hidden"], model["vocab_size"], bias=False)

    def forward(self, tokens, targets):
        x = self.embed["token"](tokens)
        if "position" in self.embed:
            x = x + self.embed["position"].weight
        for layer in self.layers:
            x = layer(x)
        x = self.final_norm(x)
        logits = self.head(x) if hasattr(self, "head") else F.linear(x, self.embed["token"].weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def make_sharded(config, initial, each_microbatch):
    module = Transformer(config["model"]).to(torch.float64)
    module.load_state_dict(initial, strict=True)
    mesh = dist.init_device_mesh("cpu", (REPLICAS,))
    for unit in (*module.layers, module):
        fully_shard(unit, mesh=mesh, reshard_after_forward=each_microbatch)
    for name, parameter in module.named_parameters():
        assert isinstance(parameter, DTensor) and parameter.placements == (Shard(0),), f"{name} is not divided"
        assert parameter.to_local().numel() < parameter.numel(), f"{name} is whole on rank {dist.get_rank()}"
    return module


def train(config, initial, places, text, each_microbatch):
    """One rank's part. Returns [(lr, loss, norm)] by step and name -> whole tensor after the last."""
    model, optimizer = config["model"], config["optimizer"]
    steps, seq_len = config["run"]["steps"] - 1, model["seq_len"]
    micro, batch = config["batch"]["micro"], config["batch"]["global"]
    microbatches = batch // (micro * REPLICAS)
    assert microbatches > 1 and microbatches * micro * REPLICAS == batch, "gradients add up over several microbatches"
    module = make_sharded(config, initial, each_microbatch)
    tensors = list(module.parameters())
    adamw = torch.optim.AdamW(
        [{"params": [t for t in tensors if t.dim() == 2], "weight_decay": optimizer["weight_decay"]},
         {"params": [t for t in tensors if t.dim() == 1], "weight_decay": 0.0}],
        lr=0.0, betas=(optimizer["beta1"], optimizer["beta2"]), eps=optimizer["eps"])

    def windows(first, shift):
        starts = [start + shift for _, _, start in places[first : first + micro]]
        return torch.tensor([list(text[s : s + seq_len]) for s in starts])

    records = []
    for step in range(steps):
        adamw.zero_grad()
        loss = torch.zeros((), dtype=torch.float64)
        for m in range(microbatches):
            last = m == microbatches - 1
            module.set_requires_gradient_sync(each_microbatch or last)
            module.set_reshard_after_backward(each_microbatch or last)
            first = step * batch + (dist.get_rank() * microbatches + m) * micro
            part = module(windows(first, 0), windows(first, 1)) / microbatches
            part.backward()
            loss += part.detach()
        dist.all_reduce(loss)
        norm = torch.nn.utils.get_total_norm([t.grad for t in tensors]).full_tensor().item()
        lr = make_reference.learning_rate(optimizer, step, config["run"]["steps"])
        records.append((lr, loss.item() / REPLICAS, norm))
        if norm > optimizer["grad_clip"] > 0:  # clip_grad_norm_ would add 1e-6 to the norm
            for t in tensors:
                t.grad.mul_(optimizer["grad_clip"] / norm)
        for group in adamw.param_groups:
            group["lr"] = lr
        adamw.step()
    for t in tensors:
        moment = adamw.state[t]["exp_avg"]
        assert moment.to_local().shape == t.to_local().shape, "moments are divided as the weights are"
    return records, {name: t.full_tensor().detach() for name, t in module.named_parameters()}


def worker(rank, config, initial, places, text, folder):
    torch.set_num_threads(1)  # one order of summation
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file:{folder}/store", rank=rank, world_size=REPLICAS)
    runs = [train(config, initial, places, text, each) for each in (False, True)]
    if rank == 0:
        torch.save(runs, f"{folder}/runs.pt")
    dist.destroy_process_group()


def worst_difference(one, other):
    """Of two runs: losses and norms relative, weights to the norm of their tensor. The key bias is only rounding."""
    found = 0.0
    for (_, loss_a, norm_a), (_, loss_b, norm_b) in zip(one[0], other[0], strict=True):
        found = max(found, abs(loss_a / loss_b - 1), abs(norm_a / norm_b - 1))
    for name, a in one[1].items():
        if not name.endswith("attn.k.bias"):
            found = max(found, ((a - other[1][name]).norm() / a.norm()).item())
    return found


def run_case(case):
    """Trains; returns the records and the bytes of the weights."""
    config = tomllib.loads((FOLDER / f"{case}.toml").read_text())
    make_reference.require_supported(config)
    seed, batch, steps = config["run"]["seed"], config["batch"]["global"], config["run"]["steps"] - 1
    text = (FOLDER / config["data"]["path"]).read_bytes()
    train_text = text[: len(text) - math.floor(len(text) * config["data"]["split"])]
    sampler = reference_random.Sampler(seed, len(train_text), config["model"]["seq_len"])
    places = [sampler.locate(g) for g in range(steps * batch)]
    initial = {name: t.detach() for name, t in reference_model.initial_parameters(config["model"], seed).items()}

    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(worker, (config, initial, places, train_text, folder), nprocs=REPLICAS)
        once, each = torch.load(f"{folder}/runs.pt")
    gap = worst_difference(once, each)
    print(f"  gathered and reduced once a step, and in each microbatch: agree to {gap:.1e}")
    assert gap < SAME, "the two ways of FSDP2 disagree"

    records = [f"data {len(text)} {reference_random.fnv1a64(text):016x}"]
    records += [f"sample {g} {e} {w} {s}" for g, (e, w, s) in enumerate(places)]
    records += [f"step {step} {lr:.17g} {loss:.17g} {norm:.17g}" for step, (lr, loss, norm) in enumerate(once[0])]
    offset = 0
    for name, start in initial.items():
        t = once[1][name]
        rows, cols = t.shape if t.dim() == 2 else (1, t.numel())
        initial_value, final_norm = start.view(-1)[-1].item(), t.norm().item()
        records.append(f"parameter {name} {rows} {cols} {offset} {initial_value:.17g} {final_norm:.17g}")
        offset += t.numel()
    values = torch.cat([once[1][name].reshape(-1) for name in initial]).tolist()
    return records, struct.pack(f"<{len(values)}d", *values)


def require_same_run(case, records):
    """What make_reference.py has written for the case, with one process and whole state, is the same run."""
    text = (FOLDER / f"{case}.reference.txt").read_text()
    whole = [line for line in text.splitlines() if not line.startswith(("p3d-reference", "#", "gradients"))]
    found = make_reference.differences("\n".join(whole), "\n".join(records))
    assert not found, "another run than that of make_reference.py:\n" + "\n".join(found)


def with_header(case, records, binary):
    head = [
        "p3d-reference 1",
        "# Made by make_sharded_reference.py, which describes the format; do not edit.",
        f"weights {case}.weights.bin {len(binary) // 8} {reference_random.fnv1a64(binary):016x}",
    ]
    return "\n".join(head + records) + "\n"


def main():
    parser = argparse.ArgumentParser(description="Makes or checks the golden values of sharded state.")
    parser.add_argument("--check", action="store_true", help="compare with the committed files, write nothing")
    arguments = parser.parse_args()
    failed = False
    for case in make_reference.CASES:
        print(case)
        records, binary = run_case(case)
        require_same_run(case, records)
        text = with_header(case, records, binary)
        text_file, binary_file = FOLDER / f"{case}.sharded.txt", FOLDER / f"{case}.weights.bin"
        if not arguments.check:
            text_file.write_text(text)
            binary_file.write_bytes(binary)
            print("\n".join("  " + line for line in records if line.startswith("step")))
            continue
        found = make_reference.differences(text_file.read_text(), text)
        gap = make_reference.gradients_differ(binary_file.read_bytes(), binary)
        print(f"  {len(found)} records differ, weights agree to {gap:.1e}", *found, sep="\n  ")
        failed = failed or bool(found) or gap > 1e-12
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
