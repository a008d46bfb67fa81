# SPDX-License-Identifier: Apache-2.0
"""What a key may change: the numbers, their last bits, or neither. docs/numbers.md and docs/memory.md promise it.

    numbers   the model, its data and its updates: the reference on one rank has the same keys
    rounding  the order of sums, or the type of numbers: fp64 to 1e-9; the bits may be others
    bits      neither: not a bit of a loss, a norm or a weight is another one
"""

from cases import ANSWERS
from models import EXPERT_PRESETS

# Keys of these sections are of the kind "numbers" but for the exceptions below.
NUMBERS = ("model.", "data.", "optimizer.", "sample.")
NUMBERS_TOO = {"run.seed", "run.steps", "run.eval_every", "run.eval_batches", "batch.global", "batch.variable"}
# Where experts' rows go, and when an update is certain, is no number.
NO_NUMBERS = {"model.moe.dispatch", "model.moe.buffer_factor", "optimizer.post_validation"}

# docs/memory.md: "Losses, gradients and weights stay the same, bit for bit, in every schedule and layout"; of
# post_validation docs/schedules.md, of overlap_experts docs/experts.md says so.
BITS = ("memory.", "checkpoint.", "plan.", "timers.")
BITS_TOO = {"optimizer.post_validation", "comm.overlap_experts", "comm.timeout_s", "comm.gpu_aware", "comm.backend",
            "comm.backend_axes", "run.trace", "run.ceiling", "run.time_limit", "run.name", "run.output_dir",
            "run.log_every", "pipeline.lookahead", "pipeline.p2p"}


def is_number(key):
    return key in ANSWERS or (key.startswith(NUMBERS) and key not in NO_NUMBERS) or key in NUMBERS_TOO


def keeps_bits(key, value):
    """True where a run without the key has the same bits."""
    if key == "memory.reduce" and value == "microbatch":
        return False  # "adds in another order" (docs/memory.md)
    return key.startswith(BITS) or key in BITS_TOO


def reference(keys):
    """The same mathematics on one rank: fp64, one sequence after the other, with a checkpoint of every step."""
    plain = {key: value for key, value in keys.items() if is_number(key)}
    # Without batch.global it follows from the layout, whose keys are not the reference's.
    if "batch.global" not in plain:
        plain["batch.global"] = str(global_batch(keys))
    plain.update(first_weights(keys))
    return {**plain, "batch.micro": "1", "run.precision": "fp64", "run.log_every": "1"}


def first_weights(keys):
    """The keys of a run that begins with the weights of another one."""
    if keys.get("checkpoint.load") != "weights":
        return {}
    return {key: keys[key] for key in ("checkpoint.load", "checkpoint.resume")}


def global_batch(keys):
    micro, dp, pp = (int(keys.get(key, 1)) for key in ("batch.micro", "parallel.dp", "parallel.pp"))
    return micro * dp * int(keys.get("batch.microbatches", pp))


def twin(keys):
    """The same layout without what keeps bits, or None where nothing would be left out or bits are not promised."""
    if keys.get("run.deterministic") == "false":
        return None  # sums may be the library's then
    if keys.get("memory.reduce") == "microbatch" or keys.get("pipeline.schedule") == "auto":
        return None  # of auto, the schedule follows from the memory
    if keys.get("parallel.layout") == "auto":
        return None  # the layout follows from the keys of [memory] that are set
    # A bucket of layers ends where a piece of a stage does, which adds squares for the norm in another order
    # (docs/memory.md).
    pieces = keys.get("memory.offload_parameters", "none") != "none" or \
        keys.get("memory.shard", "none") in ("gradients", "parameters") or \
        any(key in keys for key in ("memory.preset", "memory.limit"))
    if int(keys.get("comm.bucket_layers", 0)) > 0 and pieces:
        return None
    plain = {key: value for key, value in keys.items() if not keeps_bits(key, value)}
    # A preset divides tokens over tp too, which adds in another order: it is named in docs/memory.md.
    preset = keys.get("memory.preset", "none")
    if preset not in ("none", "basic") and int(keys.get("parallel.tp", 1)) > 1:
        if keys.get("memory.share_saved_inputs") != "true":
            plain.setdefault("parallel.sequence", "true")
    changing = [key for key in keys if key not in plain and key.startswith(("memory.", "optimizer.", "comm.", "pipel"))]
    return plain if changing else None


def precision_of(keys):
    """The type of numbers that GEMMs multiply."""
    autocast = keys.get("precision.autocast", "none")
    return autocast if autocast != "none" else keys.get("run.precision", "fp32")


def has_16_bits(keys):
    return precision_of(keys) in ("bf16", "fp16")


def one_rank(keys, same_precision):
    """reference(), in the precision of `keys` where this is asked for, with as many checkpoints."""
    kept = [key for key in keys if key == "checkpoint.every" or same_precision and
            (key == "run.precision" or key.startswith("precision."))]
    return {**reference(keys), **{key: keys[key] for key in kept}}


def tolerances(keys):
    """(losses, norms) relative, or None: not compared.

    docs/numbers.md: fp64 to 1e-9, fp32 to 2e-4. docs/precision.md: 16 bits to 0.5 % of a loss; twice that here, as
    these models are smaller than the one measured there. A norm is a sum of squares of differences: thirty times more
    (case 140147: fp32 agrees with fp64, the norm of bf16 is 19 % off in the third step)."""
    precision = precision_of(keys)
    narrow = [key for key in ("precision.gradients", "precision.moments", "precision.reduction", "precision.pipeline")
              if keys.get(key) == "bf16"] or keys.get("precision.stochastic_rounding") == "true"
    experts = int(keys.get("model.moe.experts", 0)) > 0 or keys.get("model.preset", "") in EXPERT_PRESETS \
        or "mixtral" in keys.get("model.load", "")
    if precision == "fp64":
        return 1e-9, 1e-9
    if precision == "fp32" and not narrow:
        # "In fp32 a last-bit difference may send a token elsewhere" (docs/experts.md).
        return (1e-2, None) if experts else (2e-4, 5e-3)
    # With this rate the loss of such a model grows by a quarter in the third step, and its rounding with it: fp32 then
    # agrees with fp64 to 2e-5, fp16 to 5e-3 and bf16 to 1.2e-2 (case 110037).
    steep = 3.0 if float(keys.get("optimizer.lr", 0)) >= 0.03 else 1.0
    # A norm behind attention divides by the scale that sinks give to its output: their gradient is next to nothing, and
    # in 16 bits it is rounding (case 4605).
    idle = keys.get("model.attention_sinks") == "true" and keys.get("model.norm_placement", "pre") != "pre"
    # Gemma multiplies embeddings of 0.02 by the root of its width. Without that its first norm multiplies rounding by
    # 50: with grouped-query attention, too, the norm of step 2 is 55 in fp64 and 3 in bf16 (case 250051).
    small = keys.get("model.preset", "").startswith("gemma") and keys.get("model.embedding_multiplier") == "1.0"
    return (5e-2, None) if experts else (1e-2 * steep, None if idle or small else 3e-1 * steep)
