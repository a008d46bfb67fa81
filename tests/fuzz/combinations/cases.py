# SPDX-License-Identifier: Apache-2.0
"""A case: keys of the input, and what is done with the run afterwards.

A case is one flat table {item: value}, so that a failure is shrunk by leaving items out. Most items are keys of the
input, as they stand on the command line. Items that begin with "@" are acts:

    "@resume": "2"                 the run goes on from its checkpoint of step 2, in another layout,
    "@resume.parallel.tp": "2"     which has these keys in place of those of the first start
    "@resume.same": "1"            or in the same layout: the same bits as without the stop
    "@resume.auto": "1"            by the same command in the same folder, not by checkpoint.resume = FILE
    "@eval": "4"                   p3d eval of the last checkpoint, on so many ranks, "@eval.parallel.tp": "2"
    "@generate": "1"               the same for p3d generate
    "@export": "1"                 p3d export on so many ranks
    "@repeat": "1"                 the run once more: the same bits
    "@weights": "1"                the run begins with the weights of another one (checkpoint.load = "weights")
    "@schedule": "gpipe"           pipeline.file is the file that p3d schedule show writes of this schedule

The example says: python3 combinations.py --case 'parallel.dp=2 memory.shard=optimizer @eval=1'
"""
import math
import shlex

# What every case has unless it says otherwise: a run of a moment. Two layers and 256 tokens are p3d's own defaults.
BASE = {
    "run.steps": "3",
    "run.log_every": "1",
    "run.eval_batches": "0",
    "run.ceiling": "false",
    "run.precision": "fp64",
    "model.hidden": "16",
    "model.ffn": "32",
    "model.seq_len": "16",
    "data.format": "synthetic",
    "optimizer.lr": "0.01",
}
# Keys that model.load brings, and presets: they are not given beside it.
SIZES = ("model.hidden", "model.ffn", "model.seq_len")
# The answer depends on them, unlike on the rest of [comm].
# Keys of sections that describe a layout, on which numbers depend all the same.
ANSWERS = ("comm.compress", "comm.workers", "comm.topk", "comm.powersgd_rank", "pipeline.delays")
AXES = ("parallel.dp", "parallel.cp", "parallel.tp", "parallel.pp")


def ranks(keys):
    """The number of ranks; dp is 1 where it is not given."""
    return math.prod(int(keys.get(axis, 1)) for axis in AXES)


def with_base(keys):
    """The complete keys of a start: BASE, overridden."""
    base = {key: value for key, value in BASE.items() if not ("model.load" in keys and key in SIZES)}
    return {**base, **keys}


def words(keys):
    """The keys as words of a command line; the order does not matter to p3d."""
    return [f"{key}={value}" for key, value in keys.items()]


def shown(command):
    return " ".join(shlex.quote(str(word)) for word in command)


class Case:
    def __init__(self, items, seed=None):
        self.items = dict(items)
        self.seed = seed

    @property
    def keys(self):
        return {item: value for item, value in self.items.items() if not item.startswith("@")}

    def act(self, name):
        """The value of an act, or None."""
        return self.items.get("@" + name)

    def act_keys(self, name):
        start = f"@{name}."
        return {item[len(start):]: value for item, value in self.items.items() if item.startswith(start)}

    def resumed_keys(self):
        """The keys of the second start: a layout is replaced as a whole."""
        change = {key: value for key, value in self.act_keys("resume").items() if "." in key}
        if self.act("resume.same"):
            return self.keys
        kept = {key: value for key, value in self.keys.items() if not is_layout(key)}
        return {**kept, **change}

    def subset(self, items):
        """The case with these items alone; what belongs to an act goes with it."""
        chosen = {item: self.items[item] for item in self.items if item in set(items)}
        return Case({item: value for item, value in chosen.items()
                     if not (item.startswith("@") and "." in item and item[:item.index(".")] not in chosen)}, self.seed)

    def text(self):
        return " ".join(shlex.quote(f"{item}={value}") for item, value in self.items.items())

    @staticmethod
    def parse(text):
        return Case(dict(word.split("=", 1) for word in shlex.split(text)))


def is_layout(key):
    """True of keys that say where numbers are and when they are made, and that another start may change."""
    sections = ("parallel.", "context.", "pipeline.", "memory.", "comm.", "linalg.")
    if key in ANSWERS:
        return False
    return key.startswith(sections) or key in ("batch.micro", "batch.microbatches", "optimizer.post_validation",
                                               "run.trace", "model.moe.buffer_factor")
