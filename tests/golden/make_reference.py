#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the golden values of p3d: losses, gradient norms and gradients of two tiny models, in fp64.

    make_reference.py            write <case>.reference.txt and <case>.gradients.bin for every case
    make_reference.py --check    recompute and compare with the committed files, write nothing

This is an independent implementation: it shares no code with p3d, only the written definitions (random numbers, data
order, models, AdamW). Gradients come from PyTorch's autograd, the update from torch.optim.AdamW.

Format of <case>.reference.txt: one record a line, words separated by one space, the first word names the record;
numbers are decimal with 17 digits. Lines that start with # are comments.
    p3d-reference 1                                     format version, first line
    data BYTES FNV1A64                                  size and checksum of the data file the run has read
    gradients FILE COUNT FNV1A64                        the binary: number of values, checksum (FNV-1a, 64 bit) of its
                                                        bytes
    sample NUMBER EPOCH WINDOW START                    place of every global sample, in order
    step T LR LOSS GRAD_NORM                            T from 0; LOSS before the update; GRAD_NORM before clipping
    parameter NAME ROWS COLS OFFSET INITIAL FINAL_NORM  a vector has ROWS 1; OFFSET in values into the binary; INITIAL
                                                        is the last element before step 0; FINAL_NORM the L2 norm after
                                                        the last step
Format of <case>.gradients.bin: little-endian float64, row-major, no gaps: the raw gradients (before clipping) of step 0
in the order of the parameter records (embedding, layers from 0, head). A tied embedding appears once, with the sum of
both uses. The gradients of attn.k.bias are zero up to rounding: compare against the norm of a tensor, not element by
element.
"""

import argparse
import math
import struct
import sys
import tomllib
from pathlib import Path

import torch

import reference_model
import reference_random

CASES = ("gpt2", "llama")
FOLDER = Path(__file__).resolve().parent


def learning_rate(optimizer, step, steps):
    warmup = optimizer["warmup_steps"]
    if step < warmup:
        return optimizer["lr"] * (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - 1 - warmup)
    span = optimizer["lr"] - optimizer["min_lr"]
    return optimizer["min_lr"] + 0.5 * span * (1.0 + math.cos(math.pi * progress))


def require_supported(config):
    """The reference covers one path of every choice but the model's; refuse the others."""
    only = (("data", "format", "text"), ("data", "tokenizer", "bytes"), ("model", "dropout", 0.0),
            ("optimizer", "type", "adamw"), ("optimizer", "lr_schedule", "cosine"), ("run", "precision", "fp64"))
    for section, key, value in only:
        if config[section][key] != value:
            sys.exit(f"expected {section}.{key} = {value!r}, found {config[section][key]!r}: "
                     "the reference knows no other")


def run_case(config):
    """Trains; returns the records and the bytes of the gradients of step 0."""
    require_supported(config)
    model, optimizer = config["model"], config["optimizer"]
    steps = config["run"]["steps"] - 1  # recorded: all but the last
    seed, batch, seq_len = config["run"]["seed"], config["batch"]["global"], model["seq_len"]

    text = (FOLDER / config["data"]["path"]).read_bytes()
    train = text[: len(text) - math.floor(len(text) * config["data"]["split"])]
    sampler = reference_random.Sampler(seed, len(train), seq_len)
    places = [sampler.locate(g) for g in range(steps * batch)]

    def tokens_of(step, shift):
        starts = [start + shift for _, _, start in places[step * batch : (step + 1) * batch]]
        return torch.tensor([list(train[s : s + seq_len]) for s in starts])

    parameters = reference_model.initial_parameters(model, seed)
    initial = {name: tensor.view(-1)[-1].item() for name, tensor in parameters.items()}
    names, tensors = list(parameters), list(parameters.values())
    adamw = torch.optim.AdamW(
        [{"params": [t for t in tensors if t.dim() == 2], "weight_decay": optimizer["weight_decay"]},
         {"params": [t for t in tensors if t.dim() == 1], "weight_decay": 0.0}],
        lr=0.0, betas=(optimizer["beta1"], optimizer["beta2"]), eps=optimizer["eps"])

    records = [f"data {len(text)} {reference_random.fnv1a64(text):016x}"]
    records += [f"sample {g} {e} {w} {s}" for g, (e, w, s) in enumerate(places)]
    for step in range(steps):
        inputs, targets = tokens_of(step, 0), tokens_of(step, 1)
        adamw.zero_grad()
        loss = reference_model.loss_of(model, parameters, inputs, targets)
        loss.backward()
        if step == 0:
            values = torch.cat([t.grad.reshape(-1) for t in tensors]).tolist()
            binary = struct.pack(f"<{len(values)}d", *values)
        if step in (0, steps - 1):
            generator = torch.Generator().manual_seed(step)
            worst = reference_model.check_finite_differences(model, parameters, inputs, targets, generator)
            print(f"  step {step}: autograd and finite differences agree to {worst:.1e}")
            assert worst < 1e-5, "autograd disagrees with finite differences"
        norm = math.sqrt(math.fsum(t.grad.square().sum().item() for t in tensors))
        lr = learning_rate(optimizer, step, config["run"]["steps"])
        records.append(f"step {step} {lr:.17g} {loss.item():.17g} {norm:.17g}")
        if optimizer["grad_clip"] > 0 and norm > optimizer["grad_clip"]:
            for t in tensors:
                t.grad.mul_(optimizer["grad_clip"] / norm)
        for group in adamw.param_groups:
            group["lr"] = lr
        adamw.step()

    offset = 0
    for name, t in zip(names, tensors):
        rows, cols = t.shape if t.dim() == 2 else (1, t.numel())
        records.append(f"parameter {name} {rows} {cols} {offset} {initial[name]:.17g} {t.detach().norm().item():.17g}")
        offset += t.numel()
    return records, binary


def with_header(case, records, binary):
    head = [
        "p3d-reference 1",
        "# Made by make_reference.py, which describes the format; do not edit.",
        f"gradients {case}.gradients.bin {len(binary) // 8} {reference_random.fnv1a64(binary):016x}",
    ]
    return "\n".join(head + records) + "\n"


def differences(old, new):
    """Records that differ: numbers beyond 1e-11, relative or absolute (rounding differs between machines; attn.k.bias
    is nothing but rounding), anything else at all. The binary's checksum is not compared: its values are."""
    found = []
    old_lines, new_lines = old.splitlines(), new.splitlines()
    if len(old_lines) != len(new_lines):
        return [f"{len(old_lines)} lines committed, {len(new_lines)} made"]

    def same_word(x, y):
        try:
            return x == y or math.isclose(float(x), float(y), rel_tol=1e-11, abs_tol=1e-11)
        except ValueError:
            return False

    for a, b in zip(old_lines, new_lines):
        words_a, words_b = a.split(), b.split()
        if words_a[0] == "gradients":
            words_a, words_b = words_a[:3], words_b[:3]
        if len(words_a) != len(words_b) or not all(map(same_word, words_a, words_b)):
            found.append(f"committed: {a}\n  made:      {b}")
    return found


def gradients_differ(old, new):
    """Largest difference relative to the largest gradient."""
    if len(old) != len(new):
        return math.inf
    a, b = (torch.tensor(struct.unpack(f"<{len(x) // 8}d", x), dtype=torch.float64) for x in (old, new))
    return ((a - b).abs().max() / a.abs().max()).item()


def main():
    parser = argparse.ArgumentParser(description="Makes or checks the golden values of p3d.")
    parser.add_argument("--check", action="store_true", help="compare with the committed files, write nothing")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # one order of summation
    reference_random.self_test()
    failed = False
    for case in CASES:
        print(case)
        records, binary = run_case(tomllib.loads((FOLDER / f"{case}.toml").read_text()))
        text = with_header(case, records, binary)
        text_file, binary_file = FOLDER / f"{case}.reference.txt", FOLDER / f"{case}.gradients.bin"
        if not arguments.check:
            text_file.write_text(text)
            binary_file.write_bytes(binary)
            print("\n".join("  " + line for line in records if line.startswith("step")))
            continue
        found = differences(text_file.read_text(), text)
        gap = gradients_differ(binary_file.read_bytes(), binary)
        print(f"  {len(found)} records differ, gradients agree to {gap:.1e}", *found, sep="\n  ")
        failed = failed or bool(found) or gap > 1e-12
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
