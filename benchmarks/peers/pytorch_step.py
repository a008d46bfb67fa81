#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tokens per second of one full training step (forward, backward, AdamW) in PyTorch, on the CPU or a GPU: p3d's peer.

    pytorch_step.py input.toml [--threads 4] [--precision fp32] [--compile] [--steps 10] [--warmup 3]
                    [--set model.layers=2]

Reads the sizes from a p3d input: [model], [batch] (micro sequences per microbatch; the step accumulates over
microbatches as p3d does), [optimizer], run.precision. Tokens are random: reading text is not part of the figure. Prints
`key value` lines. Run it with the same number of cores as p3d, one after the other on a quiet machine, and report the
ratio of the medians.

One process with threads, or, under torchrun, DistributedDataParallel over gloo: every process takes its share of each
microbatch's sequences, and only the last microbatch of a step sends gradients.

    torchrun --nproc_per_node 2 pytorch_step.py input.toml --threads 1

On a GPU (--device cuda) in bf16: weights and moments in fp32, products and attention (FlashAttention) in bf16 by
autocast, losses in fp32, as p3d's bf16.
"""

import argparse
import contextlib
import math
import os
import statistics
import sys
import time
import tomllib


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input", help="p3d input file (TOML)")
    parser.add_argument("--threads", type=int, default=1, help="cores for PyTorch's operators")
    parser.add_argument("--precision", choices=("fp32", "fp64", "bf16"),
                        help="default: run.precision of the input, else fp32")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--compile", action="store_true", help="torch.compile (PyTorch 2 or later)")
    parser.add_argument("--steps", type=int, default=10, help="timed steps")
    parser.add_argument("--warmup", type=int, default=3, help="steps before the timing starts")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE",
                        help="override (TOML syntax)")
    return parser.parse_args()


ARGS = arguments() if __name__ == "__main__" else None
if ARGS:  # the thread pools read these when they start, so before the import
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = str(ARGS.threads)

import torch  # noqa: E402
import torch.nn as nn  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402

MODEL_DEFAULTS = {"vocab_size": 256, "hidden": 64, "layers": 2, "heads": 4, "seq_len": 64, "norm": "layernorm",
                  "position": "learned", "activation": "gelu", "bias": True, "tied_embeddings": True, "dropout": 0.0,
                  "rope_theta": 10000.0, "norm_eps": 1e-5}


def read_input(path, overrides):
    with open(path, "rb") as file:
        config = tomllib.load(file)
    for text in overrides:
        key, _, value = text.partition("=")
        section, _, name = key.partition(".")
        try:
            parsed = tomllib.loads(f"x = {value}")["x"]
        except tomllib.TOMLDecodeError:
            parsed = value  # a bare word
        config.setdefault(section, {})[name] = parsed
    model = config.get("model", {})
    if model.get("preset"):
        sys.exit("pytorch_step: expected the sizes in [model], found a preset; use the resolved input that p3d writes "
                 "beside its results")
    hidden, heads = model.get("hidden", 64), model.get("heads", 4)
    plain = {"qk_norm": "none", "window": 0, "rope_layers": 1, "rope_scaling": "none",
             "rope_fraction": 1, "rope_pairs": "halves", "norm_placement": "pre", "norm_offset": 0,
             "rope_query_beta": 0, "embedding_multiplier": 1, "attention_multiplier": 0,
             "residual_multiplier": 1, "logits_scaling": 1,
             "qkv_bias": model.get("bias", True), "head_dim": hidden // heads}
    others = [f"{key} = {model[key]}" for key in plain if key in model and model[key] != plain[key]]
    if model.get("moe", {}).get("experts", 0) > 0:
        others.append(f"moe.experts = {model['moe']['experts']}")
    if others:
        sys.exit("pytorch_step: expected a plain GPT-2 or Llama, found model." + ", model.".join(others) +
                 "; it would time another model")
    model = MODEL_DEFAULTS | model
    model.setdefault("kv_heads", model["heads"])
    wide = 8 * model["hidden"] // 3
    model.setdefault("ffn", 4 * model["hidden"] if model["activation"] == "gelu" else (wide + 15) // 16 * 16)
    return config, model


def blas_in_use():
    """The BLAS of this process (a distribution's PyTorch takes whichever is installed; the reference BLAS is no fair
    peer)."""
    try:
        with open("/proc/self/maps") as maps:
            files = {os.path.basename(line.split()[-1]) for line in maps if "blas" in line or "libmkl" in line}
    except OSError:
        files = set()
    return " ".join(sorted(files)) or "built in or unknown"


class RMSNorm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


def make_norm(m):
    kind = nn.LayerNorm if m["norm"] == "layernorm" else RMSNorm
    return kind(m["hidden"], eps=m["norm_eps"])


def attend(q, k, v, dropout):
    """Causal attention; PyTorch's fused kernel where there is one (2.0), else baddbmm and softmax, the eager idiom."""
    if q.is_cuda:  # heads of keys are shared as they are
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout, enable_gqa=True)
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
    time_steps = q.shape[-2]
    mask = torch.full((time_steps, time_steps), -math.inf, dtype=q.dtype).triu(1)
    scores = torch.matmul(q * (1.0 / math.sqrt(q.shape[-1])), k.transpose(-1, -2)) + mask
    return F.dropout(scores.softmax(-1), dropout) @ v


class Block(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.m, self.head_dim = m, m["hidden"] // m["heads"]
        hidden, bias, gated = m["hidden"], m["bias"], m["activation"] == "swiglu"
        self.norm1, self.norm2 = make_norm(m), make_norm(m)
        # One product for q, k, v, as in p3d.
        self.qkv = nn.Linear(hidden, hidden + 2 * m["kv_heads"] * self.head_dim, bias)
        self.out = nn.Linear(hidden, hidden, bias)
        self.up = nn.Linear(hidden, m["ffn"] * (2 if gated else 1), bias)
        self.down = nn.Linear(m["ffn"], hidden, bias)

    def forward(self, x, rotation):
        m, (batch, steps, _) = self.m, x.shape
        heads, kv_heads = m["heads"], m["kv_heads"]
        qkv = self.qkv(self.norm1(x)).view(batch, steps, heads + 2 * kv_heads, self.head_dim).transpose(1, 2)
        qk, v = qkv[:, : heads + kv_heads], qkv[:, heads + kv_heads :]
        if rotation is not None:
            cos, sin = rotation
            a, b = qk.chunk(2, dim=-1)
            qk = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
        q, k = qk[:, :heads], qk[:, heads:]
        if kv_heads != heads and not q.is_cuda:
            k, v = (t.repeat_interleave(heads // kv_heads, dim=1) for t in (k, v))
        attention = self.out(attend(q, k, v, m["dropout"]).transpose(1, 2).reshape(batch, steps, -1))
        x = x + F.dropout(attention, m["dropout"])
        up = self.up(self.norm2(x))
        if m["activation"] == "swiglu":
            gate, up = up.chunk(2, dim=-1)
            up = F.silu(gate) * up
        else:
            up = F.gelu(up, approximate="tanh")
        return x + F.dropout(self.down(up), m["dropout"])


class Model(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.m = m
        self.token = nn.Embedding(m["vocab_size"], m["hidden"])
        self.position = nn.Embedding(m["seq_len"], m["hidden"]) if m["position"] == "learned" else None
        self.blocks = nn.ModuleList(Block(m) for _ in range(m["layers"]))
        self.norm = make_norm(m)
        self.head = nn.Linear(m["hidden"], m["vocab_size"], bias=False)
        if m["tied_embeddings"]:
            self.head.weight = self.token.weight
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)
        if self.position is None:
            dim = m["hidden"] // m["heads"]
            frequency = m["rope_theta"] ** (-torch.arange(0, dim, 2).double() / dim)
            angle = torch.outer(torch.arange(m["seq_len"]).double(), frequency)
            self.register_buffer("cos", angle.cos())
            self.register_buffer("sin", angle.sin())

    def forward(self, inputs, targets):
        x = self.token(inputs)
        rotation = None
        if self.position is not None:
            x = F.dropout(x + self.position.weight, self.m["dropout"])
        else:
            x, rotation = F.dropout(x, self.m["dropout"]), (self.cos, self.sin)
        for block in self.blocks:
            x = block(x, rotation)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def main():
    config, m = read_input(ARGS.input, ARGS.set)
    batch, optimizer = config.get("batch", {}), config.get("optimizer", {})
    micro = batch.get("micro", 1)
    if batch.get("global", micro) % micro:
        sys.exit(f"pytorch_step: expected batch.global as a multiple of batch.micro, found {batch['global']} "
                 f"and {micro}")
    microbatches = batch["global"] // micro if "global" in batch else batch.get("microbatches", 1)
    precision = ARGS.precision or config.get("run", {}).get("precision", "fp32")
    torch.set_num_threads(ARGS.threads)
    torch.set_default_dtype(torch.float64 if precision == "fp64" else torch.float32)
    torch.manual_seed(1)
    processes = int(os.environ.get("WORLD_SIZE", 1))
    if micro % processes:
        sys.exit(f"pytorch_step: expected batch.micro as a multiple of the {processes} processes, found {micro}")
    if processes > 1:
        dist.init_process_group("gloo")

    model = Model(m).to(torch.get_default_dtype()).to(ARGS.device)
    count = sum(p.numel() for p in model.parameters())
    step_model = nn.parallel.DistributedDataParallel(model) if processes > 1 else model
    if ARGS.compile:
        if not hasattr(torch, "compile"):
            sys.exit(f"pytorch_step: expected PyTorch 2 for --compile, found {torch.__version__}; leave --compile out")
        step_model = torch.compile(step_model)
    groups = [{"params": [p for p in model.parameters() if p.dim() == 2],
               "weight_decay": optimizer.get("weight_decay", 0.1)},
              {"params": [p for p in model.parameters() if p.dim() != 2], "weight_decay": 0.0}]
    # The quickest form that this PyTorch has: one pass over the parameters (2.15, 124M parameters, 2 cores: 0.07 s
    # against 0.35 s of the default loop), which older releases do not have on the CPU.
    settings = {"lr": optimizer.get("lr", 1e-3), "eps": optimizer.get("eps", 1e-8),
                "betas": (optimizer.get("beta1", 0.9), optimizer.get("beta2", 0.95))}
    try:
        adamw, form = torch.optim.AdamW(groups, fused=True, **settings), "fused"
    except (RuntimeError, TypeError):
        adamw, form = torch.optim.AdamW(groups, **settings), "loop"
    clip = optimizer.get("grad_clip", 1.0)
    tokens = torch.randint(m["vocab_size"], (microbatches, micro // processes, m["seq_len"] + 1)).to(ARGS.device)
    cuda = ARGS.device == "cuda"

    def rounded():
        return torch.autocast(ARGS.device, torch.bfloat16) if precision == "bf16" else contextlib.nullcontext()

    def step():
        adamw.zero_grad(set_to_none=True)
        total = 0.0
        for i, part in enumerate(tokens):
            alone = processes > 1 and i + 1 < microbatches
            with step_model.no_sync() if alone else contextlib.nullcontext():
                with rounded():
                    loss = step_model(part[:, :-1], part[:, 1:]) / microbatches
                loss.backward()
            total += loss.detach()
        if clip > 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        adamw.step()
        return float(total)

    loss = math.nan
    seconds = []
    for i in range(ARGS.warmup + ARGS.steps):
        if processes > 1:
            dist.barrier()
        start = time.perf_counter()
        loss = step()
        if cuda:
            torch.cuda.synchronize()
        if i >= ARGS.warmup:
            seconds.append(time.perf_counter() - start)
    median = statistics.median(seconds)
    per_step = microbatches * micro * m["seq_len"]
    if processes > 1:
        first = dist.get_rank() == 0
        dist.destroy_process_group()
        if not first:
            return
    for key, value in (("torch", torch.__version__), ("blas", blas_in_use()), ("compiled", ARGS.compile),
                       ("adamw", form), ("device", torch.cuda.get_device_name() if cuda else "cpu"),
                       ("threads", torch.get_num_threads()),
                       ("processes", processes), ("precision", precision), ("parameters", count),
                       ("tokens_per_step", per_step), ("microbatches", microbatches), ("loss", f"{loss:.6f}"),
                       ("step_s_median", f"{median:.6f}"), ("step_s_min", f"{min(seconds):.6f}"),
                       ("step_s_max", f"{max(seconds):.6f}"), ("tokens_per_s", f"{per_step / median:.1f}")):
        print(key, value)


if __name__ == "__main__":
    main()
