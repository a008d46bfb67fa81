#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes small random models with Hugging Face transformers, and what p3d must compute with them, in fp64.

    make_hugging_face.py [CASE...]  write hugging_face/<case>/ and hugging_face/<case>.reference.txt, of all cases
    make_hugging_face.py --check FOLDER CASE
                                    load FOLDER (p3d's export of a case, in fp64) and compare logits and losses

transformers computes norms, softmax and rotary angles in fp32 whatever the model's type. Here its own code runs with
every name of float32 standing for float64 (in_double()).

Format of <case>.reference.txt: words separated by a space, lines that start with # are comments.
    eval BYTES LOSS             mean loss over the windows (of all positions that the model has) of the first BYTES
                                bytes of LICENSE
    score SEQ_LEN WINDOW LOSS   mean loss of one window of SEQ_LEN tokens of the same text; with SEQ_LEN 1 that is the
                                negative log-probability of one token
    greedy BYTES TOKEN...       what the likeliest tokens are after the first BYTES bytes of LICENSE
    step T LR LOSS GRAD_NORM    as in make_reference.py: training from these weights on LICENSE
With multi-token prediction (transformers' MtpModel, whose tensors stand in the published form in the folder) LOSS is
that of the model, GRAD_NORM is of LOSS + 0.3 MTP_LOSS, and a step ends with
    ... MTP_LOSS                mean over the blocks k of their mean loss over the tokens that have a token k + 1 places
                                ahead in their window
"""

import argparse
import contextlib
import math
import pathlib
import sys

import safetensors.torch
import torch
import transformers
from transformers.modeling_layers import MtpModel

import reference_random
from make_reference import learning_rate

FOLDER = pathlib.Path(__file__).resolve().parent
MODELS = FOLDER / "hugging_face"
TEXT = (FOLDER / "../../LICENSE").read_bytes()
EVAL_BYTES = 193
SCORES = [(length, window) for length in (1, 2, 3, 7, 32) for window in range(5 if length > 1 else 20)]
TRAINING = {"steps": 6, "seed": 77, "batch": 4, "split": 0.1, "lr": 1e-3, "min_lr": 1e-4, "warmup_steps": 2,
            "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "grad_clip": 1.0}
MTP_WEIGHT = 0.3
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
TOKENS = {"bos_token_id": None, "eos_token_id": None}
CASES = {
    "gpt2": (torch.float64, None, lambda: transformers.GPT2Config(
        vocab_size=256, n_positions=64, n_embd=16, n_layer=2, n_head=4, n_inner=40, **NO_DROPOUT, **TOKENS)),
    "llama": (torch.float64, None, lambda: transformers.LlamaConfig(
        vocab_size=256, hidden_size=16, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5, tie_word_embeddings=False, **TOKENS)),
    "llama3": (torch.float32, "24KB", lambda: transformers.LlamaConfig(
        vocab_size=256, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-6, tie_word_embeddings=True,
        rope_parameters={"rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 0.5,
                         "high_freq_factor": 2.0, "original_max_position_embeddings": 32}, **TOKENS)),
    "mistral": (torch.float32, None, lambda: transformers.MistralConfig(
        vocab_size=256, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, sliding_window=5, rms_norm_eps=1e-5,
        tie_word_embeddings=True, **TOKENS)),
    "ministral3": (torch.float32, None, lambda: transformers.Ministral3Config(
        vocab_size=256, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=6, max_position_embeddings=64, rms_norm_eps=1e-5, tie_word_embeddings=True,
        rope_parameters={"rope_type": "yarn", "rope_theta": 200.0, "factor": 4.0, "beta_fast": 4.0, "beta_slow": 1.0,
                         "original_max_position_embeddings": 7, "mscale": 1.0, "mscale_all_dim": 1.0,
                         "llama_4_scaling_beta": 0.3}, pad_token_id=None, **TOKENS)),
    "mistral_nemo": (torch.float32, None, lambda: transformers.MistralConfig(
        vocab_size=256, hidden_size=20, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=64, sliding_window=None, rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6}, tie_word_embeddings=True, **TOKENS)),
    "qwen2": (torch.float32, None, lambda: transformers.Qwen2Config(
        vocab_size=256, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-6, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6}, **TOKENS)),
    "qwen3": (torch.float32, None, lambda: transformers.Qwen3Config(
        vocab_size=256, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=6, max_position_embeddings=64, rms_norm_eps=1e-6, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6}, **TOKENS)),
    "qwen3_moe": (torch.float32, None, lambda: transformers.Qwen3MoeConfig(
        vocab_size=256, hidden_size=16, intermediate_size=24, moe_intermediate_size=12, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, num_experts=6,
        num_experts_per_tok=3, mlp_only_layers=[0], norm_topk_prob=True, rms_norm_eps=1e-6, tie_word_embeddings=True,
        **TOKENS)),
    "olmoe": (torch.float32, None, lambda: transformers.OlmoeConfig(
        vocab_size=256, hidden_size=16, intermediate_size=12, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, num_experts=6, num_experts_per_tok=3, rms_norm_eps=1e-5,
        tie_word_embeddings=True, pad_token_id=None, **TOKENS)),
    "olmo2": (torch.float32, None, lambda: transformers.Olmo2Config(
        vocab_size=256, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-6, tie_word_embeddings=True,
        pad_token_id=None, **TOKENS)),
    "olmo3": (torch.float32, None, lambda: transformers.Olmo3Config(
        vocab_size=256, hidden_size=16, intermediate_size=24, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=64, sliding_window=5, rms_norm_eps=1e-6,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"], tie_word_embeddings=True,
        pad_token_id=None, **TOKENS)),
    "granite": (torch.float32, None, lambda: transformers.GraniteConfig(
        vocab_size=256, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5, tie_word_embeddings=True,
        embedding_multiplier=3.0, attention_multiplier=0.375, residual_multiplier=0.22, logits_scaling=1.7, **TOKENS)),
    "phi3": (torch.float32, None, lambda: transformers.Phi3Config(
        vocab_size=256, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5, tie_word_embeddings=True,
        sliding_window=9, pad_token_id=None, **TOKENS)),
    # The texts pass the first length, 20, as they grow; windows have more tokens or fewer.
    "phi3_long": (torch.float32, None, lambda: transformers.Phi3Config(
        vocab_size=256, hidden_size=32, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, original_max_position_embeddings=20, rms_norm_eps=1e-5,
        tie_word_embeddings=True, sliding_window=9, pad_token_id=None,
        rope_parameters={"rope_type": "longrope", "rope_theta": 50.0, "partial_rotary_factor": 0.75,
                         "short_factor": [1.0, 1.3, 0.9], "long_factor": [1.1, 2.5, 3.0]}, **TOKENS)),
    "apertus": (torch.float32, None, lambda: transformers.ApertusConfig(
        vocab_size=256, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5, tie_word_embeddings=True,
        rope_parameters={"rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 0.5,
                         "high_freq_factor": 2.0, "original_max_position_embeddings": 16}, pad_token_id=None,
        **TOKENS)),
    "yarn": (torch.float32, None, lambda: transformers.Olmo3Config(
        vocab_size=256, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, sliding_window=20, rms_norm_eps=1e-6,
        layer_types=["full_attention", "sliding_attention"], tie_word_embeddings=True, pad_token_id=None,
        rope_parameters={"full_attention": {"rope_type": "yarn", "rope_theta": 300.0, "factor": 4.0, "beta_fast": 2.0,
                                            "beta_slow": 0.5, "original_max_position_embeddings": 8},
                         "sliding_attention": {"rope_type": "default", "rope_theta": 300.0}}, **TOKENS)),
    "gemma2": (torch.float32, None, lambda: transformers.Gemma2Config(
        vocab_size=256, hidden_size=20, intermediate_size=24, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=6, max_position_embeddings=64, sliding_window=5, rms_norm_eps=1e-6,
        query_pre_attn_scalar=9, attn_logit_softcapping=2.0, final_logit_softcapping=3.0, pad_token_id=None,
        bos_token_id=None, eos_token_id=255)),
    "gemma3": (torch.float32, None, lambda: transformers.Gemma3TextConfig(
        vocab_size=256, hidden_size=20, intermediate_size=24, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=6, max_position_embeddings=64, sliding_window=5, rms_norm_eps=1e-6,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"], query_pre_attn_scalar=9,
        rope_parameters={"full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                         "sliding_attention": {"rope_type": "default", "rope_theta": 50.0}}, pad_token_id=None,
        bos_token_id=None, eos_token_id=255)),
    "glm4": (torch.float32, None, lambda: transformers.Glm4Config(
        vocab_size=256, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=64, rms_norm_eps=1e-6, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1e3, "partial_rotary_factor": 0.5}, pad_token_id=None,
        bos_token_id=None, eos_token_id=[255])),
    "smollm3": (torch.float32, None, lambda: transformers.SmolLM3Config(
        vocab_size=256, hidden_size=16, intermediate_size=24, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, no_rope_layer_interval=2, rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 5e3}, tie_word_embeddings=True, pad_token_id=None,
        **TOKENS)),
    "mixtral": (torch.float32, None, lambda: transformers.MixtralConfig(
        vocab_size=256, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, num_local_experts=4, num_experts_per_tok=2,
        rms_norm_eps=1e-5, tie_word_embeddings=True, **TOKENS)),
    "qwen2_moe": (torch.float32, None, lambda: transformers.Qwen2MoeConfig(
        vocab_size=256, hidden_size=16, intermediate_size=24, moe_intermediate_size=12, num_hidden_layers=3,
        shared_expert_intermediate_size=20, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
        num_experts=6, num_experts_per_tok=3, mlp_only_layers=[0], qkv_bias=False, rms_norm_eps=1e-5,
        tie_word_embeddings=True, **TOKENS)),
    "qwen2_moe_bias": (torch.float32, None, lambda: transformers.Qwen2MoeConfig(
        vocab_size=256, hidden_size=16, intermediate_size=24, moe_intermediate_size=12, num_hidden_layers=2,
        shared_expert_intermediate_size=20, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
        num_experts=4, num_experts_per_tok=2, norm_topk_prob=True, rms_norm_eps=1e-5, tie_word_embeddings=True,
        **TOKENS)),
    "deepseek_v3": (torch.float32, None, lambda: transformers.DeepseekV3Config(
        vocab_size=256, hidden_size=16, intermediate_size=24, moe_intermediate_size=12, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=4, q_lora_rank=10, kv_lora_rank=8, qk_nope_head_dim=6,
        qk_rope_head_dim=4, v_head_dim=5, max_position_embeddings=64, n_routed_experts=8, num_experts_per_tok=3,
        n_shared_experts=2, n_group=4, topk_group=2, first_k_dense_replace=1, routed_scaling_factor=1.5,
        rms_norm_eps=1e-5, tie_word_embeddings=True, num_mtp_layers=0,
        rope_parameters={"rope_type": "yarn", "rope_theta": 200.0, "factor": 4.0, "beta_fast": 4.0, "beta_slow": 1.0,
                         "original_max_position_embeddings": 8, "mscale": 1.0, "mscale_all_dim": 0.7}, **TOKENS)),
    "deepseek_v3_plain": (torch.float32, None, lambda: transformers.DeepseekV3Config(
        vocab_size=256, hidden_size=16, intermediate_size=24, moe_intermediate_size=12, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, q_lora_rank=None, kv_lora_rank=6, qk_nope_head_dim=4,
        qk_rope_head_dim=6, v_head_dim=8, max_position_embeddings=64, n_routed_experts=4, num_experts_per_tok=2,
        n_shared_experts=1, n_group=1, topk_group=1, first_k_dense_replace=1, norm_topk_prob=False,
        rope_interleave=False, rms_norm_eps=1e-6, tie_word_embeddings=True, num_mtp_layers=0, **TOKENS)),
    "glm4_moe": (torch.float32, None, lambda: transformers.Glm4MoeConfig(
        vocab_size=256, hidden_size=16, intermediate_size=24, moe_intermediate_size=12, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=64, n_routed_experts=6,
        num_experts_per_tok=3, n_shared_experts=1, first_k_dense_replace=1, routed_scaling_factor=1.7,
        attention_bias=True, use_qk_norm=True, rms_norm_eps=1e-5, tie_word_embeddings=True, num_mtp_layers=0,
        **TOKENS)),
    "deepseek_v3_mtp": (torch.float32, None, lambda: transformers.DeepseekV3Config(
        vocab_size=256, hidden_size=16, intermediate_size=24, moe_intermediate_size=12, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, q_lora_rank=10, kv_lora_rank=8, qk_nope_head_dim=6,
        qk_rope_head_dim=4, v_head_dim=5, max_position_embeddings=32, n_routed_experts=4, num_experts_per_tok=2,
        n_shared_experts=1, n_group=1, topk_group=1, first_k_dense_replace=1, routed_scaling_factor=1.5,
        rms_norm_eps=1e-5, tie_word_embeddings=False, num_mtp_layers=1, **TOKENS)),
    "glm4_moe_mtp": (torch.float32, None, lambda: transformers.Glm4MoeConfig(
        vocab_size=256, hidden_size=16, intermediate_size=24, moe_intermediate_size=12, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=32, n_routed_experts=4,
        num_experts_per_tok=2, n_shared_experts=1, first_k_dense_replace=1, routed_scaling_factor=1.7,
        attention_bias=True, use_qk_norm=True, rms_norm_eps=1e-5, tie_word_embeddings=True, num_mtp_layers=2,
        **TOKENS)),
    # Numbers of the clamped SwiGLU that clamp some gates and ups of these weights.
    "gpt_oss": (torch.float32, None, lambda: transformers.GptOssConfig(
        vocab_size=256, hidden_size=16, intermediate_size=12, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=6, max_position_embeddings=64, sliding_window=5, num_local_experts=6,
        num_experts_per_tok=3, swiglu_alpha=1.3, swiglu_limit=1.5, rms_norm_eps=1e-5, tie_word_embeddings=True,
        rope_parameters={"rope_type": "yarn", "rope_theta": 200.0, "factor": 4.0, "beta_fast": 4.0, "beta_slow": 1.0,
                         "truncate": False, "original_max_position_embeddings": 8}, pad_token_id=None, **TOKENS)),
}


@contextlib.contextmanager
def in_double():
    """Every way to ask for float32 gives float64, a quotient of whole numbers too."""
    saved = torch.float, torch.float32, torch.Tensor.float
    torch.float = torch.float32 = torch.float64
    torch.Tensor.float = torch.Tensor.double
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.float, torch.float32, torch.Tensor.float = saved
        torch.set_default_dtype(torch.float32)


def load(folder):
    # torch's own attention knows no soft cap of scores (Gemma 2 does without it) and no sinks (gpt-oss).
    kind = transformers.AutoConfig.from_pretrained(folder).model_type
    attention = "eager" if kind in ("gemma2", "gpt_oss") else "sdpa"
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation=attention, experts_implementation="eager").double().eval()
    with in_double():  # frequencies in fp64
        for name, module in list(model.named_modules()):
            if name.endswith("rotary_emb"):
                model.get_submodule(name.rpartition(".")[0]).rotary_emb = type(module)(model.config)
    for module in model.modules():  # Gemma's factor of the embedding, which is made in fp32
        if hasattr(module, "scalar_embed_scale"):
            module.embed_scale = torch.tensor(module.scalar_embed_scale, dtype=torch.float64)
    return model


def loss_of(model, windows):
    """Mean cross entropy; windows: lists of tokens, inputs and the last target."""
    tokens = torch.tensor([list(w) for w in windows])
    with in_double():
        logits = model(tokens[:, :-1], use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), tokens[:, 1:].reshape(-1))


def prediction_of(folder, model):
    """The layers of multi-token prediction of a folder; None: it has none."""
    first, depth = model.config.num_hidden_layers, getattr(model.config, "num_mtp_layers", 0) or 0
    if depth == 0:
        return None
    model.config.name_or_path = str(folder)
    model._keys_to_ignore_on_load_unexpected = [rf"model\.layers\.{first + k}\..*" for k in range(depth)]
    prediction = MtpModel.from_pretrained(model).double()
    prediction.tie_with_main_model(model)
    return prediction


def losses_of(model, prediction, windows):
    """The loss of the model, and the mean of those of its blocks. A token that a window does not have embeds as 0."""
    tokens = torch.tensor([list(w) for w in windows])
    length = tokens.shape[1] - 1
    positions = torch.arange(length).expand(len(windows), -1)
    mean_loss = torch.nn.functional.cross_entropy
    with in_double():
        hidden = model.model(tokens[:, :-1], use_cache=False).last_hidden_state
        logits = model.lm_head(hidden)
        loss = mean_loss(logits.reshape(-1, logits.shape[-1]), tokens[:, 1:].reshape(-1))
        sum_of_blocks = 0.0
        for k in range(1, prediction.num_mtp_layers + 1):
            ahead = torch.nn.functional.pad(tokens[:, k:], (0, k - 1))[:, :length]
            there = (positions + k <= length).unsqueeze(-1)
            hidden = prediction.forward_layer(k - 1, hidden, positions, None,
                                              inputs_embeds=model.model.embed_tokens(ahead) * there)
            logits = model.lm_head(hidden)[:, :length - k]
            sum_of_blocks += mean_loss(logits.reshape(-1, logits.shape[-1]), tokens[:, k + 1:].reshape(-1))
    return loss, sum_of_blocks / prediction.num_mtp_layers


def windows_of(text, length):
    return [text[i * length:(i + 1) * length + 1] for i in range((len(text) - 1) // length)]


def scores(model):
    with torch.no_grad():
        windows = windows_of(TEXT[:EVAL_BYTES], model.config.max_position_embeddings)
        lines = [f"eval {EVAL_BYTES} {loss_of(model, windows).item():.17g}"]
        for length, window in SCORES:
            loss = loss_of(model, [windows_of(TEXT, length)[window]])
            lines.append(f"score {length} {window} {loss.item():.17g}")
    return lines


def greedy(model):
    for prompt in (1, 11):
        with torch.no_grad(), in_double():
            text = model.generate(torch.tensor([list(TEXT[:prompt])]), max_new_tokens=40, do_sample=False,
                                  pad_token_id=0)
        yield f"greedy {prompt} {' '.join(map(str, text[0][prompt:].tolist()))}"


def training(model, prediction):
    t, seq_len = TRAINING, 32
    train = TEXT[: len(TEXT) - math.floor(len(TEXT) * t["split"])]
    sampler = reference_random.Sampler(t["seed"], len(train), seq_len)
    model.train()
    named = list(model.named_parameters()) + (list(prediction.layers.named_parameters()) if prediction else [])
    parameters = [p for _, p in named]
    decays = {id(p): p.dim() >= 2 and not name.endswith("_bias") for name, p in named}
    adamw = torch.optim.AdamW(
        [{"params": [p for p in parameters if decays[id(p)]], "weight_decay": t["weight_decay"]},
         {"params": [p for p in parameters if not decays[id(p)]], "weight_decay": 0.0}],
        lr=0.0, betas=(t["beta1"], t["beta2"]), eps=t["eps"])
    for step in range(t["steps"] - 1):
        starts = [sampler.locate(step * t["batch"] + i)[2] for i in range(t["batch"])]
        adamw.zero_grad()
        windows = [train[s:s + seq_len + 1] for s in starts]
        if prediction:
            loss, ahead = losses_of(model, prediction, windows)
            (loss + MTP_WEIGHT * ahead).backward()
        else:
            loss = loss_of(model, windows)
            loss.backward()
        norm = math.sqrt(math.fsum(p.grad.square().sum().item() for p in parameters))
        lr = learning_rate(t, step, t["steps"])
        yield f"step {step} {lr:.17g} {loss.item():.17g} {norm:.17g}" + (
            f" {ahead.item():.17g}" if prediction else "")
        if norm > t["grad_clip"]:
            for p in parameters:
                p.grad.mul_(t["grad_clip"] / norm)
        for group in adamw.param_groups:
            group["lr"] = lr
        adamw.step()


def add_prediction(folder, config, generator):
    """Adds tensors of layers of multi-token prediction, in the form of DeepSeek-V3's files."""
    path = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    last = f"model.layers.{config.num_hidden_layers - 1}."
    shapes = {name[len(last):]: tensor for name, tensor in tensors.items() if name.startswith(last)}
    hidden = tensors["model.norm.weight"]
    shapes |= {"enorm.weight": hidden, "hnorm.weight": hidden, "shared_head.norm.weight": hidden,
               "eh_proj.weight": hidden.new_empty(len(hidden), 2 * len(hidden))}
    for k in range(config.num_mtp_layers):
        prefix = f"model.layers.{config.num_hidden_layers + k}."
        for name, like in sorted(shapes.items()):
            noise = torch.randn(like.shape, generator=generator, dtype=torch.float64)
            tensors[prefix + name] = (noise * 0.3 if like.dim() >= 2 or name.endswith("_bias") else
                                      noise * 0.2 + (1.0 if "norm" in name else 0.0)).to(like.dtype)
        tensors[prefix + "embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
        head = "model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"
        tensors[prefix + "shared_head.head.weight"] = tensors[head].clone()
    safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})


def make(case):
    dtype, shard, config = CASES[case]
    generator = torch.Generator().manual_seed(len(case))
    torch.manual_seed(0)  # vectors that transformers draws, such as sinks
    model = transformers.AutoModelForCausalLM.from_config(config())
    for p in model.parameters():
        noise = torch.randn(p.shape, generator=generator, dtype=torch.float64)
        p.data = (noise * 0.3 if p.dim() >= 2 else p.data + noise * 0.2).to(dtype)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):  # as training leaves it
            buffer.copy_(torch.randn(buffer.shape, generator=generator) * 0.3)
    folder = MODELS / case
    folder.mkdir(parents=True, exist_ok=True)
    model.to(dtype).save_pretrained(folder, **({"max_shard_size": shard} if shard else {}))
    (folder / "generation_config.json").unlink(missing_ok=True)
    if case.endswith("_mtp"):
        add_prediction(folder, model.config, generator)
    for file in folder.iterdir():
        file.chmod(0o644)
    lines = ["# Made by make_hugging_face.py, which describes the format; do not edit."]
    model = load(folder)
    lines += scores(load(folder)) + list(greedy(load(folder))) + list(training(model, prediction_of(folder, model)))
    (MODELS / f"{case}.reference.txt").write_text("\n".join(lines) + "\n")
    print(case, *lines[1:3], *lines[-2:], sep="\n  ")


def check(folder, case):
    """transformers with p3d's export, against transformers with the original: the same logits."""
    tokens = torch.tensor([list(TEXT[:32])])
    exported, original = load(folder), load(MODELS / case)
    with torch.no_grad(), in_double():
        ours, theirs = exported(tokens).logits, original(tokens).logits
    gap = ((ours - theirs).abs().max() / theirs.abs().max()).item()
    print(f"{case}: logits of {folder} agree to {gap:.1e}")
    return gap <= 1e-10


def main():
    parser = argparse.ArgumentParser(description="Makes models and reference values with Hugging Face transformers.")
    parser.add_argument("case", nargs="*", metavar="CASE", help=f"one of {', '.join(CASES)}; without one: all")
    parser.add_argument("--check", nargs=2, metavar=("FOLDER", "CASE"),
                        help="compare an export's logits, write nothing")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.check:
        sys.exit(0 if check(*arguments.check) else 1)
    for case in arguments.case or CASES:
        make(case)


if __name__ == "__main__":
    main()
