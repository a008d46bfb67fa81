# SPDX-License-Identifier: Apache-2.0
"""Draws [model]: kinds, odd sizes, windows, rotary scaling, experts and their balance."""

DENSE_PRESETS = ("gpt2-tiny", "gpt2-124m", "gpt2-350m", "gpt2-774m", "gpt2-1558m", "gpt3-6.7b", "gpt3-13b",
                 "gpt3-175b", "llama-tiny", "llama-124m", "llama2-7b", "llama2-13b", "llama2-70b", "llama3-8b",
                 "llama3-70b", "mistral-nemo-12b", "qwen2.5-0.5b", "qwen2.5-7b", "smollm3-3b", "qwen3-0.6b",
                 "qwen3-8b", "olmo2-1b", "olmo2-7b", "granite3.1-2b", "glm4-9b", "phi4", "gemma3-270m",
                 "gemma3-1b", "gemma2-2b", "gemma2-9b", "phi4-mini", "apertus-8b", "apertus-70b")
EXPERT_PRESETS = {"mixtral-tiny": 2, "mixtral-8x7b": 1, "qwen-moe-tiny": 2, "deepseek-moe-tiny": 2, "qwen3-30b-a3b": 2,
                  "olmoe-1b-7b": 2, "glm4.5-air": 1, "deepseek-v3-tiny": 1, "deepseek-v3": 1, "moonlight-16b-a3b": 1,
                  "gpt-oss-20b": 1, "gpt-oss-120b": 1}
LATENT_PRESETS = ("deepseek-v3-tiny", "deepseek-v3", "moonlight-16b-a3b")
FIRST_DENSE = {"deepseek-moe-tiny": 1, "glm4.5-air": 1, "deepseek-v3-tiny": 1, "deepseek-v3": 3, "moonlight-16b-a3b": 1}
LLAMA = ("llama", "mistral", "mixtral", "qwen", "deepseek", "moonlight", "smollm3", "olmo", "granite", "glm4", "phi4",
         "gemma", "gpt-oss", "apertus")


def kind(f):
    """A preset with small sizes, or the keys of a kind one by one."""
    d, tp = f.draw, f.tp
    presets = {**EXPERT_PRESETS} if f.experts else {name: 1 for name in DENSE_PRESETS}
    preset = d.weighted(presets) if d.chance(0.55) else ""
    llama = preset.startswith(LLAMA) if preset else d.chance(0.5)
    f.rope, f.tied = llama, not llama
    if preset:
        f.set(model__preset=preset)
        f.tied = preset.startswith(("gpt2", "gpt3", "gemma")) or preset in ("llama-124m", "qwen2.5-0.5b", "smollm3-3b",
                                                                            "qwen3-0.6b", "granite3.1-2b",
                                                                            "phi4-mini")
        f.shared = preset.startswith(("qwen-moe", "deepseek", "moonlight", "glm4.5"))
    elif llama:
        f.set(model__norm="rmsnorm", model__position="rope", model__activation="swiglu", model__bias=False,
              model__tied_embeddings=False)
    head = d.among(2, 4, 4, 6, 8) if f.rope else d.among(2, 3, 4, 5, 8)
    groups = d.among(1, 1, 2, 3)
    f.kv_heads = tp * d.among(1, 1, 2, 4 if tp < 3 else 1)
    heads = f.kv_heads * groups
    if heads * head < 4:  # a LayerNorm of two numbers gives their sign, whose jumps 16 bits do not follow
        head = 4
    hidden = heads * head
    if d.chance(0.3):  # heads of a width of their own
        hidden = d.among(hidden, hidden + 1, max(4, hidden // 2), 2 * hidden)
        f.set(model__head_dim=head + 2 if hidden == heads * head else head)
    if preset in ("glm4-9b", "glm4.5-air") and int(f.get("model.head_dim", 128)) % 4 != 0:
        f.set(model__rope_fraction="1.0")
    f.set(model__heads=heads, model__kv_heads=f.kv_heads, model__hidden=hidden,
          model__ffn=tp * d.among(4, 7, 8, 12, 16))
    if preset == "phi4-mini":
        f.set(model__rope_fraction="1.0", model__rope_scaling="longrope")
        long_factors(f)
    if preset in LATENT_PRESETS:
        latent(f)
    f.seq_len = max(2 * f.cp, d.among(7, 8, 13, 16, 16, 32, 33))
    f.set(model__seq_len=f.seq_len)
    layers(f)
    f.vocab = d.among(61, 101, 256, 256, 256)
    f.set(model__vocab_size=f.vocab)


def layers(f):
    d = f.draw
    stages = f.pp * f.chunks
    f.layers = stages + d.among(0, 0, 1, 2) if stages > 1 else d.among(1, 2, 2, 3, 4)
    if f.crosses:  # more exchanges, of which some need other numbers of passes
        f.layers = d.among(4, 6)
    f.set(model__layers=f.layers)


def long_factors(f):
    """The lists of longrope, for the pairs of dimensions that rotate."""
    d = f.draw
    head = int(f.get("model.head_dim") or int(f.get("model.hidden")) // int(f.get("model.heads")))
    rotary = int(f.get("model.mla.qk_rope_head_dim")) if f.latent else int(
        head * float(f.get("model.rope_fraction", "1.0")))
    for key in ("short", "long"):
        factors = ", ".join(d.among("1.0", "1.5", "0.7", "12.0") for _ in range(rotary // 2))
        f.set(**{f"model__rope_{key}_factors": f"[{factors}]"})


def latent(f):
    """Multi-head latent attention, which has rotary positions, as many heads of keys as of queries, and no biases."""
    d = f.draw
    f.latent, f.rope = True, True
    f.kv_heads = int(f.get("model.heads"))
    nope, rope, value = d.among(1, 3, 4, 6), d.among(2, 2, 4, 6), d.among(2, 3, 5, 8)
    # Behind its norm a latent of one number is a sign, whose jumps fp32 does not follow; of one of two numbers bf16
    # finds another gradient where both are near 0 (case 270045: 2.8, and 13.1 in fp32 and fp64).
    f.set(model__kv_heads=f.kv_heads, model__position="rope", model__bias=False, model__qkv_bias=False,
          model__qk_norm="none", model__rope_fraction="1.0", model__rope_query_beta="0.0",
          model__mla__kv_lora_rank=d.among(3, 4, 5, 8, 60), model__mla__q_lora_rank=d.among(0, 0, 3, 6, 8),
          model__mla__qk_nope_head_dim=nope, model__mla__qk_rope_head_dim=rope, model__head_dim=nope + rope)
    # From 8 features a latent is small, and its norm multiplies the rounding of AdamW's first step of 0.01: the norm of
    # step 2 is 2.2 in fp64, fp32 and fp16, and 1.2 in bf16 (case 53079). With 16 features all four agree to 3 %.
    if int(f.get("model.hidden")) < 16:
        f.set(model__hidden=16)
    if d.chance(0.8):
        f.set(model__mla__v_head_dim=value)
    if d.chance(0.3):
        f.set(model__mla__norm_eps=d.among("1e-05", "0.01"))
    if f.get("model.rope_scaling") == "longrope":
        long_factors(f)


def details(f):
    """Keys of a model that may be anything."""
    d = f.draw
    changes = ("norm", "placement", "multipliers", "activation", "bias", "qkv", "qk_norm", "tied", "eps", "caps",
               "sinks")
    if f.latent:
        changes = [change for change in changes if change not in ("bias", "qkv", "qk_norm")]
    for change in d.shuffled(changes)[:1 + d.below(4)]:
        if change == "norm":
            f.set(model__norm=d.among("layernorm", "rmsnorm"))
        elif change == "placement":
            f.set(model__norm_placement=d.among("post", "post", "sandwich", "sandwich", "pre"),
                  model__norm_offset=d.among(0, 1))
        elif change == "multipliers":
            f.set(model__attention_multiplier=d.among("0.0", "0.25", "0.5"),
                  model__residual_multiplier=d.among("1.0", "0.22", "1.5"),
                  model__logits_scaling=d.among("1.0", "0.5", "3.0"))
        elif change == "caps":
            f.set(model__attention_softcap=d.among("0.0", "0.1", "2.0", "50.0"),
                  model__logits_softcap=d.among("0.0", "0.3", "30.0"))
        elif change == "activation":
            f.set(model__activation=d.among("gelu", "swiglu", "geglu", "swiglu_clamped",
                                            "geglu" if f.experts else "xielu"))
            if f.get("model.activation") == "swiglu_clamped" and d.chance(0.6):
                f.set(model__swiglu_alpha=d.among("1.0", "2.5"), model__swiglu_limit=d.among("0.05", "0.5"))
        elif change == "bias":
            if not f.has("model.qkv_bias"):
                f.set(model__bias=d.chance(0.5))
        elif change == "qkv":
            f.set(model__bias=False, model__qkv_bias=d.chance(0.8))
        elif change == "qk_norm":
            f.set(model__qk_norm=d.among("head", "head", "full", "full", "none"))
        elif change == "sinks":
            f.set(model__attention_sinks=d.chance(0.8))
        elif change == "tied":
            f.tied = d.chance(0.5)
            f.set(model__tied_embeddings=f.tied)
        else:
            f.set(model__norm_eps=d.among("1e-06", "0.001"))


def position(f):
    d = f.draw
    head = int(f.get("model.head_dim") or int(f.get("model.hidden")) // int(f.get("model.heads")))
    if not f.rope and head % 2 == 0 and d.chance(0.5):
        f.rope = True
        f.set(model__position="rope")
    if not f.rope:
        f.set(model__position="learned")
        return
    f.set(model__rope_theta=d.among("1000.0", "10000.0", "500000.0"))
    if d.chance(0.3):
        f.set(model__embedding_multiplier=d.among("0.5", "12.0"))
    if d.chance(0.4):
        f.set(model__rope_pairs=d.among("halves", "neighbours", "neighbours"))
        if head % 4 == 0 and not f.latent:
            f.set(model__rope_fraction=d.among("0.5", "0.5", "1.0"))
    if d.chance(0.4):
        f.set(model__rope_layers=d.among("0", "[0, 1]", "[1, 1, 0]", "[1, 0, 0, 1]"))
    elif not f.latent and not f.has("model.rope_fraction") and d.chance(0.3) \
            and not f.get("model.preset", "").startswith(("glm4", "smollm3")):
        f.set(model__rope_query_beta=d.among("0.1", "0.5"), model__rope_original_seq_len=d.among(4, 16))
    scaling = d.among("none", "linear", "llama3", "yarn", "longrope")
    f.set(model__rope_scaling=scaling)
    if scaling != "none":
        f.set(model__rope_scaling_factor=d.among("2.0", "8.0"))
    if scaling == "llama3":
        f.set(model__rope_low_freq_factor=d.among("1.0", "1.5"), model__rope_high_freq_factor="4.0",
              model__rope_original_seq_len=d.among(16, 64))
    if scaling == "yarn":
        f.set(model__rope_original_seq_len=d.among(8, 64),
              model__rope_beta_fast=d.among("32.0", "4.0"),
              model__rope_beta_slow=d.among("1.0", "0.25"), model__rope_attention_factor=d.among("0.0", "0.7"),
              model__rope_truncate=d.chance(0.5))
    if scaling == "longrope":
        f.set(model__rope_original_seq_len=d.among(4, 15, 64), model__rope_attention_factor=d.among("0.0", "1.3"))
        long_factors(f)
    if scaling != "none" and d.chance(0.3):
        f.set(model__rope_scaling_layers=d.among("0", "[0, 1]", "[1, 0, 0]"))


def window(f):
    d = f.draw
    f.set(model__window=d.among("1", "3", "9", "[4, 0]", "[2, 5, 0]"))
    if f.rope and d.chance(0.4):
        f.set(model__rope_local_theta=d.among("0.0", "100.0", "10000.0"))


def dropout(f):
    f.set(model__dropout=f.draw.among("0.1", "0.3"))


def prediction(f):
    """Blocks of multi-token prediction, which want positions that rotate, and embeddings and logits as they are."""
    d = f.draw
    if not f.rope or f.has("model.load"):
        return
    f.predicts = True
    f.set(model__mtp__depth=d.among(1, 1, 2, 3), model__dropout="0.0", model__embedding_multiplier="1.0",
          model__logits_scaling="1.0")
    if d.chance(0.7):
        f.set(model__mtp__loss_weight=d.among("0.0", "0.1", "1.0"))


def experts(f):
    """Numbers and widths of experts; a preset has its own."""
    d = f.draw
    if not f.experts:
        return
    preset = f.get("model.preset", "")
    number = f.ep * d.among(*((2, 3, 4) if f.ep < 3 else (1, 2)))
    number = max(number, 2)
    grouped = preset.startswith("deepseek")
    if grouped:
        while number % 4 != 0:
            number += f.ep
    top_k = min(number, d.among(1, 2, 2, 3))
    f.set(model__moe__experts=number, model__moe__top_k=top_k, model__moe__ffn=f.etp * d.among(4, 6, 9))
    if f.shared:
        f.set(model__moe__shared_ffn=f.tp * d.among(4, 6))
    if grouped:
        groups, least = 4, -(-top_k // (number // 4))
        f.set(model__moe__groups=groups, model__moe__group_top_k=max(least, d.among(2, 3)))
    if f.layers <= FIRST_DENSE.get(preset, 0):
        f.set(model__moe__first_dense=0)


def expert_router(f):
    d = f.draw
    if not f.experts:
        return
    number, top_k = int(f.get("model.moe.experts")), int(f.get("model.moe.top_k"))
    changes = ("score", "normalize", "scale", "jitter", "groups", "shared", "every", "dense", "bias")
    for change in d.shuffled(changes)[:3]:
        if change == "score":
            f.set(model__moe__score=d.among("softmax", "sigmoid"))
        elif change == "normalize":
            f.set(model__moe__normalize=d.chance(0.5))
        elif change == "scale":
            f.set(model__moe__scale=d.among("0.5", "2.5"))
        elif change == "jitter":
            f.set(model__moe__jitter=d.among("0.01", "0.2"))
        elif change == "groups" and not f.has("model.moe.groups") and number % 2 == 0:
            f.set(model__moe__groups=2, model__moe__group_top_k=max(-(-top_k // (number // 2)), d.among(1, 2)))
        elif change == "shared":
            f.shared = True
            f.set(model__moe__shared_ffn=f.tp * d.among(4, 6), model__moe__shared_gate=d.chance(0.5))
        elif change == "bias":
            f.set(model__moe__bias=d.chance(0.8))
        elif change == "every" and f.layers >= 2:
            f.set(model__moe__every=2)
        elif change == "dense" and f.layers >= 3:
            f.set(model__moe__first_dense=1)


def expert_balance(f):
    d = f.draw
    if not f.experts:
        return
    loss = d.among("none", "sequence", "global", "global")
    f.set(model__moe__aux_loss=loss)
    if loss != "none":
        f.set(model__moe__aux_coefficient=d.among("0.02", "0.5"))
    if d.chance(0.6):
        f.set(model__moe__bias_update_rate=d.among("0.01", "0.1"))
        if d.chance(0.2):
            f.set(model__moe__choice_bias=True)
    elif d.chance(0.4):  # constant ones, or none
        constant = d.chance(0.7)
        f.set(model__moe__choice_bias=constant)
        if not constant:
            f.set(model__moe__bias_update_rate="0.0")
    if d.chance(0.3):
        f.set(model__moe__z_coefficient=d.among("0.001", "0.1"))


def expert_rows(f):
    """How rows travel, and how many a rank takes at once."""
    d = f.draw
    if not f.experts:
        return
    if d.chance(0.7):
        small = ("0.05", "0.3", "0.5", "1.0")
        f.set(model__moe__buffer_factor=d.among(*small, *(small if f.ep * f.etp == 1 else ("1.0", "4.0"))))
    if d.chance(0.35) and not f.crosses:
        f.set(model__moe__dispatch=d.among("all_to_all", "gather", "gather"))
    if d.chance(0.35):
        f.set(model__moe__capacity_factor=d.among("0.5", "1.0", "1.5"))
        if f.cp > 1 and f.get("context.order") != "contiguous":
            f.set(context__order="contiguous")


# Folders that fixtures.py makes; each was exported by p3d from a model of its kind.
LOADED = {
    "models/gpt": {"vocab": 256, "layers": 2, "kv_heads": 4, "rope": False, "seq_len": 33, "tied": True},
    "models/llama": {"vocab": 256, "layers": 4, "kv_heads": 2, "rope": True, "seq_len": 32, "tied": False},
    "models/qwen2": {"vocab": 256, "layers": 2, "kv_heads": 2, "rope": True, "seq_len": 32, "tied": False},
    "models/mixtral": {"vocab": 256, "layers": 2, "kv_heads": 4, "rope": True, "seq_len": 33, "tied": False},
    "models/qwen": {"vocab": 256, "layers": 2, "kv_heads": 4, "rope": True, "seq_len": 32, "tied": False},
}


def load(f):
    """A model in Hugging Face form in place of a kind: its sizes are what they are."""
    d = f.draw
    folder = (d.among("models/gpt", "models/llama", "models/qwen2") if f.theme != "experts"
              else d.among("models/mixtral", "models/qwen"))
    has = LOADED[folder]
    f.set(model__load=folder)
    f.vocab, f.layers, f.kv_heads = has["vocab"], has["layers"], has["kv_heads"]
    f.rope, f.seq_len, f.tied = has["rope"], has["seq_len"], has["tied"]
    f.experts = folder.endswith(("mixtral", "qwen"))
    if d.chance(0.3):
        f.seq_len = 16
        f.set(model__seq_len=16)
