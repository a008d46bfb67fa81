#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Loads an exported model with transformers and compares it with what p3d generate --temperature 0 --json --logprobs N
wrote: tokens of the prompts, tokens drawn, and the log-probabilities of all tokens at every place.

usage: compare_with_transformers.py MODEL TEXTS.json [TOLERANCE]     tolerance: 1e-4, for a model in fp64 1e-10
"""
import json
import pathlib
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def in_double(model):
    """transformers computes norms and rotary angles in fp32 whatever the model's type: from here on fp32 is fp64."""
    torch.float = torch.float32 = torch.float64
    torch.Tensor.float = torch.Tensor.double
    for name, module in list(model.named_modules()):
        if name.endswith("rotary_emb"):
            model.get_submodule(name.rpartition(".")[0]).rotary_emb = type(module)(model.config)


def main():
    folder, texts = sys.argv[1], pathlib.Path(sys.argv[2])
    config = json.loads((pathlib.Path(folder) / "config.json").read_text())
    double = "float64" in (config.get("dtype"), config.get("torch_dtype"))
    tolerance = float(sys.argv[3]) if len(sys.argv) > 3 else 1e-10 if double else 1e-4
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64 if double else torch.float32).eval()
    if double:
        in_double(model)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    worst, places, wrong = 0.0, 0, []
    for line in texts.read_text().splitlines():
        ours = json.loads(line)
        prompt = tokenizer(ours["prompt"], add_special_tokens=False)["input_ids"]
        if prompt != ours["prompt_tokens"]:
            wrong.append(f"tokens of {ours['prompt']!r}: {ours['prompt_tokens']} here, {prompt} there")
            continue
        with torch.no_grad():
            drawn = model.generate(torch.tensor([prompt]), max_new_tokens=len(ours["tokens"]), do_sample=False,
                                   pad_token_id=0)[0][len(prompt):].tolist()
            logits = model(torch.tensor([prompt + ours["tokens"]])).logits[0]
        if drawn != ours["tokens"]:
            wrong.append(f"greedy text of {ours['prompt']!r}: {ours['tokens']} here, {drawn} there")
        end = tokenizer.eos_token_id
        text = tokenizer.decode([t for t in drawn if t != end])
        if text != ours["text"]:
            wrong.append(f"text: {ours['text']!r} here, {text!r} there")
        theirs = torch.log_softmax(logits, dim=-1)
        for place, told in enumerate(ours["logprobs"]):
            for token, value in told:
                worst = max(worst, abs(theirs[len(prompt) - 1 + place, token].item() - value))
                places += 1
    print(f"{places} log-probabilities, largest difference {worst:.2e} (allowed: {tolerance:g}); "
          f"{len(wrong)} other differences")
    print("\n".join(wrong))
    return 0 if places > 0 and worst <= tolerance and not wrong else 1


if __name__ == "__main__":
    sys.exit(main())
