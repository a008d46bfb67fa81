# SPDX-License-Identifier: Apache-2.0
"""Draws where the ranks are and what they send: [parallel], [context], [batch], [pipeline], [comm]."""
import itertools

RANKS = {"single": {1: 1}, "experts": {1: 2, 2: 5, 3: 1, 4: 8, 6: 1, 8: 2}, "pipeline": {2: 6, 3: 2, 4: 5, 6: 1, 8: 1},
         "replicas": {2: 3, 3: 1, 4: 7, 6: 2, 8: 2}, "context": {2: 4, 3: 1, 4: 5, 6: 1, 8: 1},
         "any": {1: 2, 2: 5, 3: 1, 4: 4, 6: 1, 8: 1}, "streams": {2: 6, 3: 2, 4: 4, 6: 1}}
# How likely a factor of the number of ranks goes to an axis.
AXES = {"single": {"dp": 1}, "experts": {"dp": 3, "cp": 3, "tp": 3, "pp": 1},
        "pipeline": {"dp": 1, "cp": 1, "tp": 1, "pp": 6},
        "replicas": {"dp": 4, "cp": 3, "tp": 2, "pp": 1}, "context": {"dp": 1, "cp": 6, "tp": 2, "pp": 1},
        "any": {"dp": 1, "cp": 1, "tp": 1, "pp": 1}, "streams": {"dp": 1, "cp": 1, "tp": 1, "pp": 6}}
FACTORS = {1: (), 2: (2,), 3: (3,), 4: (2, 2), 6: (2, 3), 8: (2, 2, 2)}


def mesh(f):
    d = f.draw
    sizes = {"dp": 1, "cp": 1, "tp": 1, "pp": 1}
    for factor in FACTORS[d.weighted(RANKS[f.theme])]:
        sizes[d.weighted(AXES[f.theme])] *= factor
    f.crosses = f.theme == "experts" and "overlap" in f.wants and d.chance(0.6)
    if f.crosses:  # groups of experts that are smaller than those of an axis whose messages travel beside theirs
        sizes = {**dict.fromkeys(sizes, 1), d.among("cp", "tp"): 4}
    if f.theme in ("pipeline", "streams") and sizes["pp"] == 1:
        largest = max(sizes, key=sizes.get)
        sizes["pp"], sizes[largest] = sizes[largest], 1
    if f.theme == "context" and sizes["cp"] == 1:
        largest = max(sizes, key=sizes.get)
        sizes["cp"], sizes[largest] = sizes[largest], 1
    f.dp, f.cp, f.tp, f.pp = (sizes[axis] for axis in ("dp", "cp", "tp", "pp"))
    for axis, size in sizes.items():
        if size > 1:
            f.keys[f"parallel.{axis}"] = str(size)


def order(f):
    """Any permutation; axes of one rank may be left out."""
    d = f.draw
    names = d.shuffled(("tp", "cp", "pp", "dp"))
    if d.chance(0.25):
        names = [name for name in names if getattr(f, name) > 1] or names
    f.set(parallel__order="-".join(names))


def embedding(f):
    if f.tp > 1 and not f.tied and not f.has("pipeline.vocab_parallel"):
        f.set(parallel__embedding=f.draw.among("replicated", "replicated", "sharded"))


def sequence(f):
    if f.tp > 1 and f.micro * (f.seq_len // f.cp) >= f.tp:
        f.set(parallel__sequence=True)


def expert_mesh(f):
    """ep and etp whose product divides the ranks of a stage."""
    d = f.draw
    if not f.experts or f.stage_ranks == 1:
        return
    choices = [(ep, etp) for ep, etp in itertools.product((1, 2, 3, 4, 6, 8), repeat=2)
               if ep * etp > 1 and f.stage_ranks % (ep * etp) == 0 and ep <= 4 and fits(f, ep, etp)]
    if f.crosses:
        choices = [(2, 1), (2, 1), (1, 2)]
    if choices and d.chance(0.75):
        f.ep, f.etp = d.among(*choices)
        if f.ep > 1:
            f.set(parallel__ep=f.ep)
        if f.etp > 1:
            f.set(parallel__etp=f.etp)


def fits(f, ep, etp):
    """A common refinement with the default order (docs/experts.md); 3 ranks and 2 have none."""
    numbers = sorted({f.tp, f.tp * f.cp, f.stage_ranks, etp, etp * ep})
    return all(b % a == 0 for a, b in zip(numbers, numbers[1:]))


def batch(f):
    d = f.draw
    few = {1: 2, 2: 3, 3: 2, 4: 3, 6: 1} if f.ranks < 6 else {1: 2, 2: 3, 4: 1}
    f.micro = d.weighted({1: 5, 2: 3, 3: 1})
    f.microbatches = d.weighted(few)
    if f.pp > 1 and d.chance(0.7):
        f.microbatches = max(f.microbatches, f.pp + d.below(3))
    if f.micro > 1:
        f.set(batch__micro=f.micro)
    if d.chance(0.5):
        f.set(batch__global=f.micro * f.microbatches * f.dp)
    else:
        f.set(batch__microbatches=f.microbatches)


def set_microbatches(f, number):
    f.microbatches = number
    f.keys.pop("batch.global", None)
    f.set(batch__microbatches=number)


SCHEDULES = ("1f1b", "dualpipe_v", "eager_1f1b", "gpipe", "interleaved_1f1b", "looped_bfs", "sequential", "v_half",
             "v_min", "zb_h1", "zb_h2", "zb_v", "round_robin", "pipedream", "auto", "file")
CHUNKS = {"dualpipe_v": 2, "interleaved_1f1b": 2, "looped_bfs": 2, "v_half": 2, "v_min": 2, "zb_v": 2}


def schedule(f):
    """Before the model: its layers must be enough for the stages. A file has the program of one of the others."""
    d = f.draw
    if f.pp == 1 and d.chance(0.5):
        return
    name = d.among(*SCHEDULES, "pipedream", "pipedream")
    f.set(pipeline__schedule=name)
    shape = name
    if name == "file":
        shape = d.among("1f1b", "gpipe", "zb_h1", "zb_v", "interleaved_1f1b")
        f.acts["@schedule"] = shape
        f.set(pipeline__file="schedule.csv")
    if name == "auto" and d.chance(0.6):
        f.set(pipeline__max_memory=d.among("0.5", "0.01"))
    f.chunks = CHUNKS.get(shape, 1)
    if name in ("interleaved_1f1b", "looped_bfs") and d.chance(0.4):
        f.chunks = d.among(1, 2, 3) if f.pp < 4 else d.among(1, 2)
        f.set(pipeline__virtual_stages=f.chunks)
    if name == "dualpipe_v":
        set_microbatches(f, max(f.microbatches, 2 * f.pp))
    if name == "interleaved_1f1b" and d.chance(0.4):
        f.set(pipeline__microbatch_group_size=f.pp + d.below(2))


def stream(f):
    """A pipeline that need not empty between steps: late gradients, and enough steps and microbatches to show what one
    step hands on to the next."""
    d = f.draw
    if f.theme != "streams":
        return
    f.set(run__steps=5 + d.below(4))
    if f.get("pipeline.schedule") not in ("pipedream", "file"):
        f.set(optimizer__delay=1)
        set_microbatches(f, f.microbatches + d.below(4))


def delays(f):
    """Behind the stages, for schedule = "pipedream": those that its pipeline has by itself, or others. A list says them
    for the reference, which has no pipeline."""
    d = f.draw
    if f.get("pipeline.schedule") != "pipedream":
        return
    if f.tied and not f.has("model.load"):
        f.tied = False
        f.set(model__tied_embeddings=False)
    dealt = f.get("pipeline.layers_per_stage", "even")
    if dealt == "cost":
        f.keys.pop("pipeline.layers_per_stage")
        dealt = "even"
    layers = [f.layers // f.pp + (s < f.layers % f.pp) for s in range(f.pp)] if dealt == "even" else \
        [int(n) for n in dealt.strip("[]").split(",")]
    late = [-(-(f.pp - 1 - s) // f.microbatches) for s in range(f.pp)]
    listed = [late[s] for s, n in enumerate(layers) for _ in range(n)]
    if d.chance(0.2):
        listed[0] += d.below(3)
    f.set(pipeline__delays=listed)
    if d.chance(0.8):
        f.set(optimizer__grad_clip="0.0")


def stages(f):
    """After the model: uneven stages, also fewer layers than stages."""
    d = f.draw
    number = f.pp * f.chunks
    if f.has("pipeline.file"):
        return
    if d.chance(0.4) or number == 1:
        f.set(pipeline__layers_per_stage=d.among("even", "cost", "cost"))
        if f.get("pipeline.layers_per_stage") == "cost" and number > 2 and d.chance(0.4):
            f.layers = number - 1  # an end has none
            f.set(model__layers=f.layers)
        return
    dealt = [1] * number
    dealt[0], dealt[-1] = d.among(0, 1, 1, 2), d.among(0, 1, 1, 2)
    for _ in range(d.below(3)):
        dealt[d.below(number)] += 1
    if sum(dealt) == 0:
        dealt[0] = 1
    f.layers = sum(dealt)
    f.set(model__layers=f.layers, pipeline__layers_per_stage=dealt)


def vocabulary(f):
    d = f.draw
    if f.predicts:
        return
    if f.has("pipeline.file") or f.theme == "pipeline" and d.chance(0.75) or d.chance(0.5):
        f.set(pipeline__vocab_parallel=True)
        if not f.has("run.precision") and d.chance(0.4):  # sums of few bits show in which order they were made
            f.set(run__precision="bf16")
        if d.chance(0.5) and not f.has("model.load"):
            f.tied = True
            f.set(model__tied_embeddings=True)
        if f.microbatches < 4 and f.ranks < 6:
            set_microbatches(f, 3 + d.below(6))
    else:
        f.set(pipeline__weight_deferral_limit=d.among(1, 2, 4))
        if d.chance(0.7) and f.get("pipeline.schedule") not in ("gpipe", "eager_1f1b", None):
            f.set(pipeline__schedule="1f1b")
            for key in ("pipeline.virtual_stages", "pipeline.microbatch_group_size", "pipeline.max_memory"):
                f.keys.pop(key, None)


def p2p(f):
    """Rounds end with a step; schedules from files here have their stages on neighbours."""
    f.set(pipeline__p2p="batched" if f.has("optimizer.post_validation") else f.draw.among("batched", "ring", "ring"))


def lookahead(f):
    f.set(pipeline__lookahead=f.draw.among(0, 0, 2, 3))


def context(f):
    d = f.draw
    if f.cp == 1 and d.chance(0.7):
        return
    if d.chance(0.7) and not f.has("context.order"):
        f.set(context__order=d.among("zigzag", "striped", "contiguous"))
    heads = f.kv_heads // f.tp
    pairs = [[a, f.cp // a] for a in range(1, f.cp + 1) if f.cp % a == 0 and heads % a == 0]
    fit = ["auto", "ring", "gather", *pairs] + (["all_to_all"] * 2 if heads % f.cp == 0 else [])
    f.set(context__exchange=d.among(*fit))


def sums(f):
    """How sums over ranks are made."""
    d = f.draw
    if d.chance(0.6):
        way = d.among("auto", "ring", "tree", "hierarchical", "shared", "mpi")
        f.set(comm__allreduce=way)
        if way == "mpi":
            f.set(run__deterministic=False)
    if d.chance(0.6):
        f.set(comm__bucket_mb=d.among("0.0005", "0.002", "0.05"))
    if d.chance(0.25):
        f.set(comm__overlap_tp=d.among("auto", "none", "bulk", "chunks", "microbatch"))
    if d.chance(0.15):
        f.set(comm__bucket_layers=d.among("1", "2", "3", "100"))
    if d.chance(0.2):
        f.set(comm__gpu_aware=d.among("auto", "on", "off"))
    if d.chance(0.2):
        f.set(comm__backend=d.among("auto", "mpi"))
    if d.chance(0.2):
        f.set(comm__backend_axes=d.among("tp", "tp-cp-dp", "dp-cp", "cp"))
    if d.chance(0.15):
        f.set(comm__timeout_s=d.among("15.0", "17.5"))


def compression(f):
    """Gradients of workers, compressed on their way over dp: of dense models, whose embedding one stage reads."""
    d = f.draw
    if f.experts or f.has("model.load") or f.keys.get("precision.reduction") == "bf16":
        return
    if f.pp > 1 and not f.has("pipeline.vocab_parallel"):
        if f.predicts:
            return
        f.set(model__tied_embeddings=False)
        f.tied = False
    if f.has("batch.microbatches") or not f.has("batch.global"):
        each = f.microbatches
    else:
        each = int(f.get("batch.global")) // f.micro // f.dp
    fits = [n for n in range(1, each + 1) if each % n == 0]
    kind = d.among("int8", "topk", "powersgd")
    if kind == "powersgd" and "fp16" in (f.get("run.precision"), f.get("precision.autocast")):
        kind = "int8"
    f.set(comm__compress=kind, comm__workers=f.dp * d.among(*fits))
    if kind == "topk":
        f.set(comm__topk=d.among("0.05", "0.1", "0.5"))
    if kind == "powersgd":
        f.set(comm__powersgd_rank=d.among(1, 2, 3))


def planner(f):
    """A machine for which steps are predicted, and often what the layout leaves open chosen by it."""
    d = f.draw
    f.set(plan__cluster="cluster.toml")
    if d.chance(0.3):
        f.set(plan__kernels=d.among("auto", "unfused", "fused", "flash", "fp8", "host"))
    if f.has("batch.global") and d.chance(0.8):
        f.set(parallel__layout="auto")


def overlap(f):
    """A forward beside a backward: it wants experts on several ranks, and neighbours of the two kinds."""
    d = f.draw
    if f.ep * f.etp == 1:
        return
    f.set(comm__overlap_experts=True)
    if f.crosses or d.chance(0.5):
        f.set(model__moe__buffer_factor=d.among("0.3", "0.5", "1.0"))
    if f.microbatches < 4 and f.ranks < 8:
        set_microbatches(f, 4 + d.below(3))
