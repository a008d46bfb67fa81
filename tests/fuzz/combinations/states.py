# SPDX-License-Identifier: Apache-2.0
"""Draws what rounds and what remembers: [precision], [linalg], [memory], [checkpoint], [optimizer]."""


def precision(f):
    d = f.draw
    kind = d.weighted({"fp32": 6, "bf16": 8, "fp16": 4, "fp64": 1})
    f.set(run__precision=kind)
    if d.chance(0.1):
        f.set(linalg__attention=d.among("auto", "gemms"))
    if kind == "fp32" and d.chance(0.1):
        f.set(linalg__tf32=d.among(True, False))
    elif kind == "fp32" and d.chance(0.15):
        f.set(precision__autocast=d.among("bf16", "fp16"))
    if kind in ("fp64", "fp32") and d.chance(0.3):  # what follows anyway, said
        for name in ("gradients", "moments", "reduction", "pipeline"):
            f.keys[f"precision.{name}"] = kind
        return
    if kind == "fp16" and d.chance(0.2):
        f.set(precision__pipeline=kind)
    narrow = {"fp64": (), "fp32": ("moments", "reduction", "pipeline", "host"),
              "bf16": ("moments", "gradients", "stochastic", "reduction", "host"),
              "fp16": ("moments", "scale", "scale", "scale")}[kind]
    for change in d.shuffled(sorted(set(narrow)))[:d.below(3)]:
        if change == "host":
            f.set(linalg__host=d.among("auto", "blas", "onednn"))
        elif change == "stochastic":
            f.set(precision__stochastic_rounding=True)
        elif change == "scale":
            loss_scale(f)
        else:
            f.keys[f"precision.{change}"] = "bf16"
            if change == "moments":
                f.set(optimizer__beta2="0.95")


def loss_scale(f):
    d = f.draw
    if d.chance(0.3):
        f.set(precision__loss_scale=d.among("128.0", "1024.0"))
        return
    f.set(precision__loss_scale="dynamic", precision__loss_scale_initial=d.among("1024.0", "65536.0", "1e+30"))
    for key, values in (("growth", ("4.0",)), ("backoff", ("0.25",)), ("interval", (1, 2)), ("hysteresis", (1, 3)),
                        ("floor", ("0.5",))):
        if d.chance(0.5):
            f.keys[f"precision.loss_scale_{key}"] = str(d.among(*values))


def shard(f):
    """What replicas divide."""
    d = f.draw
    if f.dp * f.cp == 1:
        return
    kind = d.weighted({"optimizer": 4, "gradients": 3, "parameters": 4})
    if f.has("comm.compress"):
        kind = "optimizer"
    f.set(memory__shard=kind)
    if f.cp == 1 and f.dp > 2 and d.chance(0.4):
        f.set(memory__shard_over=d.among(*[n for n in range(2, f.dp) if f.dp % n == 0] or [0]))
    if kind != "optimizer" and d.chance(0.4):
        f.set(memory__shard_layers=d.among(2, 3))
    if kind == "parameters" and d.chance(0.6):
        f.set(memory__gather=d.among("step", "microbatch"))
    if kind != "optimizer" and d.chance(0.3):
        f.set(memory__reduce="microbatch")


def recompute(f):
    d = f.draw
    kind = d.weighted({"full": 6, "list": 3, "none": 1})
    if kind == "none":
        f.set(memory__recompute="none")
    if kind == "list":
        names = d.shuffled(("norm", "activation", "rotary", "attention"))
        f.set(memory__recompute=names[:1 + d.below(4)])
    if kind != "full":
        return
    f.set(memory__recompute="full")
    form = d.among("plain", "plain", "plain", "every", "layers", "group", "kept", "communication", "share")
    if form == "every":
        f.set(memory__recompute_every=d.among(2, 3))
    elif form == "layers":
        f.set(memory__recompute_layers=d.among(1, 2))
    elif form == "group":
        f.set(memory__recompute_group=d.among(2, 3))
    elif form == "kept":
        f.set(memory__recompute_microbatches_kept=d.among(1, 2))
    elif form == "communication" and f.tp > 1:
        f.set(memory__recompute_communication=False)
    elif form == "share" and f.tp > 1 and not f.has("parallel.sequence"):
        f.set(memory__share_saved_inputs=True)


def offload(f):
    """To files of each rank: host memory is for GPUs (drawn too, and refused)."""
    d = f.draw
    where = "host" if d.chance(0.04) else "disk"
    router = f.experts and (float(f.get("model.moe.bias_update_rate", 0)) > 0 or "preset" in " ".join(f.keys)
                            or f.get("model.moe.aux_loss") == "global")
    some = False
    if not router and f.get("precision.moments") != "bf16" and d.chance(0.6):
        some = True
        f.set(memory__offload_optimizer=where)
    if not router and f.get("memory.shard") in (None, "parameters") and d.chance(0.5):
        some = True
        f.set(memory__offload_parameters=where)
        if d.chance(0.3):
            f.set(memory__gather=d.among("step", "microbatch"))
    if not f.experts and f.microbatches >= 3 and not f.has("memory.recompute_microbatches_kept") \
            and (d.chance(0.5) or not some):
        some = True
        f.set(memory__offload_activations=where)
    if some and d.chance(0.4):
        f.set(memory__offload_dir=d.among(".", "/tmp"))


def preset(f):
    d = f.draw
    names = ("none", "low", "medium", "high", "extreme", "basic", "standard", "aggressive")
    f.set(memory__preset=d.among(*names))


def limit(f):
    d = f.draw
    f.set(memory__limit=d.among("1.0", "0.02", "0.005", "0.002"))
    if d.chance(0.4):
        f.set(memory__recompute="auto")


def optimizer(f):
    d = f.draw
    changes = ("sgd", "schedule", "warmup", "betas", "eps", "decay", "clip", "lr", "delay", "delay")
    for change in d.shuffled(changes)[:1 + d.below(4)]:
        if change == "sgd" and not f.has("memory.offload_optimizer") and not f.has("precision.moments"):
            f.set(optimizer__type="sgd")
        elif change == "schedule":
            f.set(optimizer__lr_schedule=d.among("cosine", "linear", "constant"))
        elif change == "warmup":
            f.set(optimizer__warmup_steps=d.among(1, 2, 10))
        elif change == "betas":
            f.set(optimizer__beta1=d.among("0.0", "0.8"), optimizer__beta2=d.among("0.9", "0.99"))
        elif change == "eps":
            f.set(optimizer__eps=d.among("1e-06", "0.001"))
        elif change == "decay":
            f.set(optimizer__weight_decay=d.among("0.0", "0.5"))
        elif change == "clip":
            f.set(optimizer__grad_clip=d.among("0.0", "0.01", "100.0"))
        elif change == "lr":
            f.set(optimizer__lr=d.among("0.001", "0.03"), optimizer__min_lr=d.among("0.0", "0.0005"))
        elif change == "delay" and not f.has("optimizer.post_validation") and not f.has("pipeline.delays"):
            f.set(optimizer__delay=d.among(1, 1, 1, 2, 3))
            if d.chance(0.3):
                f.set(pipeline__flush="always")
            if d.chance(0.3):
                parts = d.among(*(n for n in range(1, f.layers + 1) if f.layers % n == 0))
                late = [d.below(4) for _ in range(parts)]
                if f.tied or f.predicts or f.has("model.load"):
                    late[-1] = late[0]
                f.keys.pop("optimizer.delay")
                f.set(pipeline__delays=late)


def post_validation(f):
    if f.experts or f.has("optimizer.delay") or f.has("pipeline.delays") or any("offload" in key for key in f.keys):
        return
    if f.get("pipeline.p2p") == "ring":
        return
    f.set(optimizer__post_validation=True)
    if f.draw.chance(0.5):
        f.set(optimizer__grad_clip=f.draw.among("0.01", "1.0", "100.0"))


def checkpoint(f):
    d = f.draw
    f.set(checkpoint__every=d.among(1, 1, 2, "30min", "end"))
    for change in d.shuffled(("keep", "start", "async", "buffer", "error", "resume"))[:d.below(4)]:
        if change == "keep":
            f.set(checkpoint__keep=d.among(0, 1))
        elif change == "start":
            f.set(checkpoint__at_start=True)
        elif change == "async":
            f.set(checkpoint__async=False)
        elif change == "buffer":
            f.set(checkpoint__buffer_mb=1)
        elif change == "error":
            f.set(checkpoint__on_error=d.among("stop", "continue"))
        elif change == "resume":
            f.set(checkpoint__resume=d.among("auto", "none"))
