# SPDX-License-Identifier: Apache-2.0
"""Names a shrunk failure after a defect that p3d once had: combinations.py --known shows that it still would be found.

A name is for people who read a list of failures; nothing is passed over because of it."""

NUMBERS = ("wrong", "state", "resume", "bits", "crash", "eval", "generate", "export", "repeat")


def name_of(kind, case, text):
    """The first defect whose keys the case has, or "new"."""
    for name, shows in DEFECTS.items():
        if shows(kind, case.items, text):
            return name
    return "new"


def size(items, key):
    return max(int(items.get(key, 1)), int(items.get(f"@resume.{key}", 1)))


def has(items, *starts):
    return any(item.removeprefix("@resume.").startswith(starts) for item in items)


def stored_input(kind, items, text):
    return kind in ("eval", "generate") and "exit code 2" in text


def crossed_experts(kind, items, text):
    return kind in (*NUMBERS, "hang") and has(items, "comm.overlap_experts")


def dropped_choices(kind, items, text):
    return kind == "choices" and has(items, "model.moe.capacity_factor")


def turned_shard(kind, items, text):
    return kind in NUMBERS and has(items, "memory.shard", "memory.preset", "memory.limit") \
        and has(items, "parallel.order")


def small_buffer(kind, items, text):
    return kind in NUMBERS and has(items, "model.moe.buffer_factor") \
        and size(items, "parallel.ep") * size(items, "parallel.etp") == 1


def uneven_etp(kind, items, text):
    return kind in NUMBERS and size(items, "parallel.etp") > 1


def order_of_tied_sums(kind, items, text):
    return kind == "bits" and has(items, "pipeline.vocab_parallel")


def limit_with_vocabulary(kind, items, text):
    return kind == "defect" and has(items, "memory.limit") and has(items, "pipeline.vocab_parallel")


DEFECTS = {
    "eval and generate refuse a stored input": stored_input,
    "overlapping experts cross on cp and tp": crossed_experts,
    "choices counted after dropping": dropped_choices,
    "sharded state under a turned order": turned_shard,
    "buffer_factor below need on one rank": small_buffer,
    "uneven tokens over etp": uneven_etp,
    "vocab_parallel: order of the sums of a tied matrix": order_of_tied_sums,
    "limit with vocab_parallel": limit_with_vocabulary,
}
