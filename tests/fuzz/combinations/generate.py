# SPDX-License-Identifier: Apache-2.0
"""Draws a case from its number: a theme, a layout, a model, and 3 to 12 features that may meet each other.

Features are drawn with weights, those of the theme more often, and applied in one order, since a later one fits
itself to an earlier one (heads to tp, layers to stages). One case in eighteen gets a value that does not fit: what is
refused must say why."""
import inputs
import layouts
import models
import states
from cases import Case, is_layout
from draft import Draft
from draw import Draw

THEMES = {"experts": 30, "pipeline": 24, "replicas": 20, "context": 8, "any": 12, "single": 6, "streams": 8}

# Feature: (function, weight, {theme: weight}); in the order in which they are applied.
FEATURES = {
    "order": (layouts.order, 4, {"replicas": 12}),
    "schedule": (layouts.schedule, 4, {"pipeline": 14}),
    "latent": (models.latent, 4, {}),
    "details": (models.details, 3, {}),
    "position": (models.position, 2, {}),
    "window": (models.window, 2, {"context": 5}),
    "dropout": (models.dropout, 2, {}),
    "prediction": (models.prediction, 4, {"pipeline": 6, "streams": 0}),
    "router": (models.expert_router, 0, {"experts": 6}),
    "balance": (models.expert_balance, 0, {"experts": 7}),
    "rows": (models.expert_rows, 0, {"experts": 12}),
    "stages": (layouts.stages, 1, {"pipeline": 5}),
    "delays": (layouts.delays, 0, {}),
    "stream": (layouts.stream, 0, {}),
    "context": (layouts.context, 2, {"context": 14, "experts": 4}),
    "precision": (states.precision, 5, {"pipeline": 7, "streams": 0}),
    "data": (inputs.data, 5, {}),
    "variable": (inputs.variable, 2, {"streams": 0}),
    "vocabulary": (layouts.vocabulary, 1, {"pipeline": 12, "streams": 0}),
    "embedding": (layouts.embedding, 3, {}),
    "lookahead": (layouts.lookahead, 1, {"pipeline": 3}),
    "p2p": (layouts.p2p, 1, {"pipeline": 8}),
    "sequence": (layouts.sequence, 4, {}),
    "sums": (layouts.sums, 3, {}),
    "compression": (layouts.compression, 2, {"replicas": 8, "streams": 0}),
    "overlap": (layouts.overlap, 0, {"experts": 12}),
    "preset": (states.preset, 2, {}),
    "shard": (states.shard, 3, {"replicas": 14, "streams": 0}),
    "recompute": (states.recompute, 4, {"pipeline": 14}),
    "offload": (states.offload, 3, {"streams": 0}),
    "limit": (states.limit, 1, {}),
    "planner": (layouts.planner, 1, {}),
    "optimizer": (states.optimizer, 4, {}),
    "post_validation": (states.post_validation, 2, {"pipeline": 4, "streams": 0}),
    "evaluation": (inputs.evaluation, 4, {}),
    "sample": (inputs.sample, 3, {}),
    "run": (inputs.run, 4, {}),
    "checkpoint": (states.checkpoint, 6, {}),
    "weights": (inputs.weights, 1, {}),
    "repeat": (inputs.repeat, 2, {}),
    "resume": (None, 4, {}),
    "eval": (lambda f: inputs.after(f, "eval"), 2, {}),
    "generate": (lambda f: inputs.after(f, "generate"), 2, {}),
    "export": (lambda f: inputs.after(f, "export"), 2, {}),
}
ALWAYS = ("delays", "stream")  # they look themselves
APART = ("schedule", "resume")  # the first comes earlier, the second last
AFTER = ("resume", "eval", "generate", "export")

# A value that most inputs refuse, or that no machine without GPUs takes.
MISFITS = (
    ("parallel.tp", "3"), ("parallel.pp", "5"), ("parallel.cp", "2"), ("model.heads", "5"), ("model.ffn", "13"),
    ("batch.global", "7"), ("batch.micro", "5"), ("pipeline.virtual_stages", "3"), ("memory.shard_over", "3"),
    ("memory.gather", "microbatch"), ("memory.recompute_every", "2"), ("context.exchange", "[2, 3]"),
    ("parallel.ep", "2"), ("parallel.etp", "2"), ("comm.backend", "nccl"), ("precision.moments", "fp64"),
    ("precision.loss_scale", "dynamic"), ("precision.pipeline", "fp16"), ("pipeline.microbatch_group_size", "1"),
    ("model.moe.top_k", "9"), ("optimizer.min_lr", "1.0"), ("data.eod_token", "999"), ("data.shuffle", "documents"),
    ("checkpoint.at_start", "true"), ("model.rope_scaling", "llama3"), ("sample.tokens", "3"),
    ("pipeline.layers_per_stage", "[1, 2, 3]"), ("parallel.order", "dp-tp"), ("model.hidden", "wide"),
    ("memory.offload_optimizer", "host"), ("model.mtp.depth", "-1"),
    ("precision.gradients", "bf16"), ("memory.limit", "1e-06"))


def generate(seed, many=False):
    """Case `seed`. `many`: other cases, of 12 to 25 features, in which a second start has a schedule of its own."""
    d = Draw("combinations of many" if many else "combinations", seed)
    theme = d.weighted(THEMES)
    f = Draft(d, theme)
    f.experts = theme == "experts" or d.chance(0.12) and theme != "streams"
    f.wants = choose(d, theme, 12 + d.below(14) if many else 3 + d.below(10))
    if theme == "streams":
        f.wants.add("schedule")
    layouts.mesh(f)
    layouts.expert_mesh(f)
    layouts.batch(f)
    if "schedule" in f.wants:  # before the model, whose layers must be enough for its stages
        layouts.schedule(f)
    if d.chance(0.04) and f.tp <= 2 and f.pp * f.chunks <= 2 and f.ep <= 2 and f.etp == 1:
        models.load(f)
    else:
        models.kind(f)
        models.experts(f)
    if f.experts and f.tp > 1:
        layouts.sequence(f)
    for name, (feature, _, _) in FEATURES.items():
        if name not in f.wants and name not in ALWAYS or name in APART:
            continue
        if f.has("model.load") and name in ("latent", "details", "position", "window", "router", "stages"):
            continue
        feature(f)
    if f.has("model.load"):  # these are the folder's, or parameters that it lacks
        f.keys = {key: value for key, value in f.keys.items() if key not in
                  ("model.moe.bias_update_rate", "model.moe.choice_bias", "model.moe.capacity_factor",
                   "model.moe.z_coefficient")}
    if "resume" in f.wants:
        resume(f, many)
    if any(name in f.wants for name in AFTER) and not f.has("checkpoint.every"):
        f.set(checkpoint__every=1)
    f.keys.update(f.acts)
    if d.chance(1 / 18):
        key, value = d.among(*MISFITS)
        f.keys[key] = value
    return Case(f.keys, seed)


def choose(d, theme, number):
    weights = {name: themes.get(theme, weight) for name, (_, weight, themes) in FEATURES.items()}
    weights = {name: weight for name, weight in weights.items() if weight > 0}
    chosen = set()
    while weights and len(chosen) < number:
        name = d.weighted(weights)
        del weights[name]
        chosen.add(name)
    return chosen


def resume(f, many):
    """Another layout for the second start: mesh, order, context, memory; with `many` the schedule too, and more."""
    d = f.draw
    steps = int(f.get("run.steps", 3))
    if steps < 2 or f.has("model.load") or f.get("checkpoint.resume") is not None:
        f.wants.discard("resume")
        return
    f.set(checkpoint__every=1, checkpoint__keep=0)
    f.acts["@resume"] = str(1 + d.below(steps - 1))
    if d.chance(0.4):
        f.acts["@resume.auto"] = "1"
    if d.chance(0.25):
        f.acts["@resume.same"] = "1"
        return
    g = Draft(d, d.among("replicas", "pipeline", "context", "single", "any"))
    g.experts = f.experts
    layouts.mesh(g)
    heads, kv, ffn = (int(f.get(f"model.{key}", 4)) for key in ("heads", "kv_heads", "ffn"))
    batch = int(f.get("batch.global", 0)) or f.micro * f.microbatches * f.dp
    numbers = [int(f.get(key, 0)) for key in ("model.moe.shared_ffn",)]
    if heads % g.tp or kv % g.tp or ffn % g.tp or any(n % g.tp for n in numbers):
        g.keys.pop("parallel.tp", None)
        g.tp = 1
    if batch % g.dp or f.has("batch.variable") and g.dp > batch:
        g.keys.pop("parallel.dp", None)
        g.dp = 1
    if int(f.get("comm.workers", 0)) % g.dp:
        g.keys.pop("parallel.dp", None)
        g.dp = 1
    if f.layers < g.pp:
        g.keys.pop("parallel.pp", None)
        g.pp = 1
    if f.seq_len < 2 * g.cp:
        g.keys.pop("parallel.cp", None)
        g.cp = 1
    g.kv_heads, g.layers, g.seq_len, g.microbatches = kv, f.layers, f.seq_len, batch // g.dp
    if f.experts and g.tp > 1:
        layouts.sequence(g)
    if g.experts and int(f.get("model.moe.experts", 8)) % 2 == 0 and g.stage_ranks % 2 == 0 and d.chance(0.6):
        g.set(parallel__ep=2)
    if many:
        second_schedule(f, g)
    features = (layouts.order, layouts.context, states.shard, states.recompute, layouts.lookahead, layouts.p2p)
    if many:
        features += (states.offload, layouts.embedding, layouts.sums, states.preset, states.limit,
                     states.post_validation)
    for feature in d.shuffled(features)[:5 if many else 3]:
        feature(g)
    if f.has("optimizer.post_validation") and g.get("pipeline.p2p") == "ring":
        g.set(pipeline__p2p="batched")
    if f.has("model.moe.capacity_factor") and g.cp > 1:
        g.set(context__order="contiguous")
    for key, value in g.keys.items():
        if is_layout(key) and key not in FOLLOWED:
            f.acts[f"@resume.{key}"] = value
    # The global batch is a number of the run: both starts must give the same.
    f.keys.pop("batch.microbatches", None)
    f.set(batch__global=batch)


# Keys of the first start by which features of the second one choose.
FOLLOWED = ("model.tied_embeddings", "model.dropout", "model.preset", "model.layers", "model.moe.bias_update_rate",
            "model.moe.aux_loss", "run.precision", "precision.moments", "batch.variable", "optimizer.delay",
            "pipeline.delays", "comm.compress", "comm.workers")


def second_schedule(f, g):
    """The schedule of the second start, its stages, and whether it divides the vocabulary."""
    d = f.draw
    g.keys.update({key: f.get(key) for key in FOLLOWED if f.has(key)})
    g.tied, g.predicts, g.shared = f.tied, f.predicts, f.shared
    if g.pp == 1:
        return
    name = d.among(*(name for name in layouts.SCHEDULES if name != "file"))
    chunks = layouts.CHUNKS.get(name, 1)
    if chunks * g.pp > f.layers or name == "dualpipe_v" and g.microbatches < 2 * g.pp:
        name, chunks = d.among("1f1b", "gpipe", "zb_h1", "zb_h2", "eager_1f1b"), 1
    g.chunks = chunks
    g.set(pipeline__schedule=name)
    if d.chance(0.4):
        dealt = [1] * (chunks * g.pp)
        for _ in range(f.layers - len(dealt)):
            dealt[d.below(len(dealt))] += 1
        g.set(pipeline__layers_per_stage=dealt)
    elif d.chance(0.3):
        g.set(pipeline__layers_per_stage="cost")
    if not f.predicts and not f.has("pipeline.vocab_parallel") and d.chance(0.4):
        g.set(pipeline__vocab_parallel=True)
