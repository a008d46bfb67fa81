#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Greedy texts of random models by p3d and by transformers (PyPI; not needed by the tests).

    compare_generation.py texts P3D [MODELS]   8 random GPT-2 and Llama models in fp64: the same tokens from several
                                               prompts at once, on 1 rank, tp=2 and pp=2
    compare_generation.py time P3D [TOKENS]    29 M parameters, 1,024 positions, fp32, a core: seconds a token, in turn

P3D: the program; ranks are started with mpiexec.
"""
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import transformers

from make_hugging_face import in_double, load

SHAPES = [  # family, hidden, layers, heads, kv_heads, ffn, vocabulary, positions, tied
    ("gpt2", 32, 2, 4, 4, 96, 256, 48, True), ("gpt2", 48, 4, 2, 2, 80, 200, 40, True),
    ("gpt2", 16, 3, 4, 4, 64, 250, 64, True), ("gpt2", 64, 2, 8, 8, 256, 131, 33, True),
    ("llama", 32, 2, 4, 2, 48, 256, 48, False), ("llama", 48, 4, 6, 2, 64, 222, 40, True),
    ("llama", 64, 3, 4, 4, 96, 199, 64, False), ("llama", 32, 4, 8, 2, 40, 128, 32, True)]


def random_model(shape, seed):
    family, hidden, layers, heads, kv_heads, ffn, vocabulary, positions, tied = shape
    none = {"bos_token_id": None, "eos_token_id": None}
    if family == "gpt2":
        config = transformers.GPT2Config(vocab_size=vocabulary, n_positions=positions, n_embd=hidden, n_layer=layers,
                                         n_head=heads, n_inner=ffn, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                                         **none)
    else:
        config = transformers.LlamaConfig(vocab_size=vocabulary, hidden_size=hidden, intermediate_size=ffn,
                                          num_hidden_layers=layers, num_attention_heads=heads,
                                          num_key_value_heads=kv_heads, max_position_embeddings=positions,
                                          tie_word_embeddings=tied, **none)
    generator = torch.Generator().manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config).double()
    for p in model.parameters():
        noise = torch.randn(p.shape, generator=generator, dtype=torch.float64)
        p.data = noise * 0.25 if p.dim() == 2 else p.data + noise * 0.2
    return model


def run(*words, ranks=1):
    launcher = ["mpiexec", "-n", str(ranks)] if ranks > 1 else []
    return subprocess.run([*launcher, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True,
                          text=True).stdout


def texts(program, models):
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="p3d-generation-") as folder:
        for number in range(models):
            shape = SHAPES[number % len(SHAPES)]
            place = pathlib.Path(folder, str(number))
            random_model(shape, number).save_pretrained(place / "hf")
            run(program, "import", str(place / "hf"), str(place / "model.h5"))
            model = load(place / "hf")
            prompts, count = ["The", "a", "one more"], shape[7] - 9
            words = [program, "generate", str(place / "model.h5"), "--tokens", str(count), "--temperature", "0",
                     "--json"]
            for prompt in prompts:  # a byte a token
                words += ["--prompt", prompt]
            expected = []
            for prompt in prompts:
                tokens = torch.tensor([list(prompt.encode())])
                with torch.no_grad(), in_double():
                    expected.append(model.generate(tokens, max_new_tokens=count, do_sample=False, pad_token_id=0)[0]
                                    [tokens.shape[1]:].tolist())
            for layout, ranks in (((), 1), (("parallel.tp=2",), 2), (("parallel.pp=2",), 2)):
                found = [json.loads(line)["tokens"] for line in run(*words, *layout, ranks=ranks).splitlines()]
                same = found == expected
                wrong += not same
                print(f"{shape} {' '.join(layout) or 'one rank'}: {'the same' if same else 'DIFFERENT'}, "
                      f"{len(prompts)} x {count} tokens", flush=True)
    print(f"{3 * models} comparisons, {wrong} different")
    return wrong == 0


def seconds_a_token(program, count):
    core = {min(os.sched_getaffinity(0))}
    os.sched_setaffinity(0, core)  # and so what is started
    torch.set_num_threads(1)
    ratios = []
    with tempfile.TemporaryDirectory(prefix="p3d-generation-") as folder:
        place = pathlib.Path(folder)
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
            vocab_size=256, n_positions=1024, n_embd=512, n_layer=9, n_head=8, bos_token_id=None, eos_token_id=None))
        model.eval().save_pretrained(place / "hf")
        run(program, "import", str(place / "hf"), str(place / "model.h5"))
        prompt = "hello world"
        tokens = torch.tensor([list(prompt.encode())])
        for _ in range(5):
            begin = time.perf_counter()
            with torch.no_grad():
                model.generate(tokens, max_new_tokens=count, min_new_tokens=count, do_sample=False, pad_token_id=0)
            theirs = (time.perf_counter() - begin) / count
            said = subprocess.run([program, "generate", str(place / "model.h5"), "--prompt", prompt, "--tokens",
                                   str(count), "--temperature", "0", "--speed"], stdout=subprocess.DEVNULL,
                                  stderr=subprocess.PIPE, text=True, check=True).stderr
            ours = float(said.split(": ")[-1].split()[0])
            ratios.append(ours / theirs)
            print(f"p3d {ours:.4f} s a token, transformers {theirs:.4f}: {ratios[-1]:.2f}", flush=True)
    print(f"median ratio {statistics.median(ratios):.2f}")
    return statistics.median(ratios) <= 1.0


if __name__ == "__main__":
    command, p3d = sys.argv[1], str(pathlib.Path(sys.argv[2]).resolve())
    if command == "texts":
        good = texts(p3d, int(sys.argv[3]) if len(sys.argv) > 3 else 8)
    else:
        good = seconds_a_token(p3d, int(sys.argv[3]) if len(sys.argv) > 3 else 500)
    sys.exit(0 if good else 1)
