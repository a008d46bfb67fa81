# SPDX-License-Identifier: Apache-2.0
"""The two model families of the reference in PyTorch, fp64; gradients come from autograd alone.

Shares no code with p3d. Parameters are a dict name -> tensor in the order of the global parameter table: embedding,
layers from 0, head. Matrices are [out, in]. GPT-2: Radford et al. 2019; Llama: Touvron et al., arXiv 2302.13971.
"""

import math

import torch
import torch.nn.functional as F

from reference_random import random_key, random_normal


def parameter_shapes(model):
    """name -> shape: (rows, cols) of a matrix, (size,) of a vector."""
    hidden, head_dim, ffn = model["hidden"], model["hidden"] // model["heads"], model["ffn"]
    kv_width = model["kv_heads"] * head_dim
    has_norm_bias = model["norm"] == "layernorm"
    shapes = {}

    def linear(outputs, cols):  # maps that read the same input: all weights, then all biases
        for name, rows in outputs.items():
            shapes[name + ".weight"] = (rows, cols)
        for name, rows in outputs.items():
            if model["bias"]:
                shapes[name + ".bias"] = (rows,)

    def norm(name):
        shapes[name + ".weight"] = (hidden,)
        if has_norm_bias:
            shapes[name + ".bias"] = (hidden,)

    shapes["embed.token.weight"] = (model["vocab_size"], hidden)
    if model["position"] == "learned":
        shapes["embed.position.weight"] = (model["seq_len"], hidden)
    for i in range(model["layers"]):
        prefix = f"layers.{i}."
        norm(prefix + "norm1")
        linear({prefix + "attn.q": hidden, prefix + "attn.k": kv_width, prefix + "attn.v": kv_width}, hidden)
        linear({prefix + "attn.out": hidden}, hidden)
        norm(prefix + "norm2")
        gate = {prefix + "mlp.gate": ffn} if model["activation"] == "swiglu" else {}
        linear(gate | {prefix + "mlp.up": ffn}, hidden)
        linear({prefix + "mlp.down": hidden}, ffn)
    norm("final_norm")
    if not model["tied_embeddings"]:
        shapes["head.weight"] = (model["vocab_size"], hidden)
    return shapes


def initial_parameters(model, seed):
    parameters = {}
    for name, shape in parameter_shapes(model).items():
        if len(shape) == 2:
            residual = name.endswith(("attn.out.weight", "mlp.down.weight"))
            std = 0.02 / math.sqrt(2 * model["layers"]) if residual else 0.02
            key = random_key(seed, "init." + name)
            values = [std * random_normal(key, 0, i) for i in range(shape[0] * shape[1])]
            tensor = torch.tensor(values, dtype=torch.float64).reshape(shape)
        elif name.endswith(".bias"):
            tensor = torch.zeros(shape, dtype=torch.float64)
        else:
            tensor = torch.ones(shape, dtype=torch.float64)
        parameters[name] = tensor.requires_grad_()
    return parameters


def rotate(x, theta):
    """Rotary embedding of x [batch, heads, time, dim]: the pair (x[i], x[i + dim/2]) is a complex number, turned by
    position * theta^(-2i/dim)."""
    time, dim = x.shape[-2], x.shape[-1]
    exponent = -2.0 * torch.arange(dim // 2, dtype=torch.float64) / dim
    angle = torch.outer(torch.arange(time, dtype=torch.float64), theta**exponent)
    turned = torch.complex(x[..., : dim // 2], x[..., dim // 2 :]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat((turned.real, turned.imag), dim=-1)


def loss_of(model, p, inputs, targets):
    """Mean cross entropy over all tokens of inputs, targets [batch, time]."""
    batch, time = inputs.shape
    hidden, heads, kv_heads = model["hidden"], model["heads"], model["kv_heads"]
    head_dim = hidden // heads
    causal = torch.ones(time, time, dtype=torch.bool).tril()

    def norm(name, x):
        weight, eps = p[name + ".weight"], model["norm_eps"]
        if model["norm"] == "layernorm":
            return F.layer_norm(x, (hidden,), weight, p[name + ".bias"], eps)
        return x / torch.sqrt(x.square().mean(dim=-1, keepdim=True) + eps) * weight

    def linear(name, x):
        return F.linear(x, p[name + ".weight"], p.get(name + ".bias"))

    def split_heads(x, count):
        return x.reshape(batch, time, count, head_dim).transpose(1, 2)

    def attention(prefix, x):
        q = split_heads(linear(prefix + "q", x), heads)
        k = split_heads(linear(prefix + "k", x), kv_heads)
        v = split_heads(linear(prefix + "v", x), kv_heads)
        if model["position"] == "rope":
            q, k = rotate(q, model["rope_theta"]), rotate(k, model["rope_theta"])
        kv_of = [h // (heads // kv_heads) for h in range(heads)]
        scores = q @ k[:, kv_of].transpose(-1, -2) / math.sqrt(head_dim)
        weights = torch.softmax(scores.masked_fill(~causal, -math.inf), dim=-1)
        out = (weights @ v[:, kv_of]).transpose(1, 2).reshape(batch, time, hidden)
        return linear(prefix + "out", out)

    def mlp(prefix, x):
        up = linear(prefix + "up", x)
        if model["activation"] == "swiglu":
            return linear(prefix + "down", F.silu(linear(prefix + "gate", x)) * up)
        return linear(prefix + "down", F.gelu(up, approximate="tanh"))

    x = F.embedding(inputs, p["embed.token.weight"])
    if model["position"] == "learned":
        x = x + p["embed.position.weight"][:time]
    for i in range(model["layers"]):
        x = x + attention(f"layers.{i}.attn.", norm(f"layers.{i}.norm1", x))
        x = x + mlp(f"layers.{i}.mlp.", norm(f"layers.{i}.norm2", x))
    x = norm("final_norm", x)
    head = p["embed.token.weight"] if model["tied_embeddings"] else p["head.weight"]
    return F.cross_entropy((x @ head.T).reshape(batch * time, -1), targets.reshape(-1))


def check_finite_differences(model, p, inputs, targets, generator):
    """Autograd against central differences, two elements of every parameter; returns the largest difference relative to
    the largest gradient element of that parameter."""
    loss = loss_of(model, p, inputs, targets)
    gradients = dict(zip(p, torch.autograd.grad(loss, list(p.values()))))
    worst, step = 0.0, 1e-3
    with torch.no_grad():
        for name, tensor in p.items():
            flat = tensor.view(-1)
            scale = gradients[name].abs().max().item()
            if scale < 1e-12:  # the key bias: softmax does not see a constant added to all scores, its gradient is zero
                assert name.endswith("attn.k.bias"), f"gradient of {name} vanishes"
                scale = 1.0
            # The element with the largest gradient and one drawn at random.
            largest = gradients[name].view(-1).abs().argmax().item()
            for index in (largest, torch.randint(flat.numel(), (1,), generator=generator).item()):
                saved = flat[index].item()
                values = []
                for offset in (-2 * step, -step, step, 2 * step):  # fourth order
                    flat[index] = saved + offset
                    values.append(loss_of(model, p, inputs, targets).item())
                flat[index] = saved
                difference = (values[0] - 8 * values[1] + 8 * values[2] - values[3]) / (12 * step)
                worst = max(worst, abs(difference - gradients[name].view(-1)[index].item()) / scale)
    return worst
