# SPDX-License-Identifier: Apache-2.0
"""What the restart tests share: an input that many layouts can run, those layouts, and runs that stop half way."""
import csv
import math
import os
import pathlib
import signal
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "app"))
import program  # noqa: E402

STEPS, HALF = 30, 15
INPUT = f"""
[run]
name = "restart"
steps = {STEPS}
log_every = 1000
eval_batches = 0
[model]
hidden = 24
layers = 8
heads = 12
kv_heads = 12
ffn = 24
seq_len = 8
vocab_size = 257
dropout = 0.1
[batch]
micro = 1
global = 24
[data]
path = "text.txt"
[optimizer]
lr = 3e-3
warmup_steps = 3
[comm]
timeout_s = 120
[checkpoint]
every = {HALF}
keep = 0
"""

# name: (dp, tp, pp, further keys); one rank first.
LAYOUTS = {
    "1": (1, 1, 1, ()),
    "2dp": (2, 1, 1, ()),
    "2tp": (1, 2, 1, ()),
    "2pp-zb_v": (1, 1, 2, ("pipeline.schedule=zb_v",)),
    "3dp": (3, 1, 1, ()),
    "3pp-looped": (1, 1, 3, ("pipeline.schedule=looped_bfs", "pipeline.virtual_stages=2")),
    "4tp-pp": (1, 2, 2, ("parallel.order=pp-tp-dp", "pipeline.schedule=gpipe", "memory.offload_activations=disk")),
    "4shard": (4, 1, 1, ("memory.shard=parameters", "memory.gather=microbatch", "memory.recompute=full",
                         "memory.offload_optimizer=disk")),
    "4hybrid": (4, 1, 1, ("memory.shard=parameters", "memory.shard_over=2", "memory.offload_parameters=disk")),
    "3cp": (1, 1, 1, ("parallel.cp=3", "context.exchange=ring")),
    "4cp": (1, 1, 1, ("parallel.cp=4", "context.exchange=[2, 2]", "context.order=striped", "memory.shard=optimizer")),
    "8cp": (1, 2, 2, ("parallel.cp=2", "context.exchange=gather")),
    "4vocab": (1, 2, 2, ("pipeline.vocab_parallel=true", "pipeline.schedule=zb_v", "parallel.sequence=true")),
    "6vocab": (2, 1, 3, ("pipeline.vocab_parallel=true", "memory.shard=optimizer")),
    "5pp": (1, 1, 5, ()),
    "6dp-tp": (3, 2, 1, ()),
    "6tp-pp": (1, 3, 2, ("pipeline.schedule=zb_h1",)),
    "7pp": (1, 1, 7, ()),
    "8": (2, 2, 2, ()),
    "8shard": (2, 2, 2, ("memory.shard=gradients", "pipeline.schedule=zb_v")),
    "8dp-pp": (4, 1, 2, ("parallel.order=dp-pp-tp", "pipeline.schedule=interleaved_1f1b", "pipeline.virtual_stages=2")),
}

# With the keys of EXPERTS: dense ranks and those of experts divided in other ways.
EXPERTS = ("model.moe.experts=4", "model.moe.top_k=2", "model.moe.ffn=12", "model.moe.bias_update_rate=0.01",
           "model.moe.aux_loss=global", "model.moe.aux_coefficient=0.1", "model.moe.shared_ffn=12")
EXPERT_LAYOUTS = {
    "1": (1, 1, 1, ()),
    "2ep": (2, 1, 1, ("parallel.ep=2", "model.moe.buffer_factor=1.0")),
    "2pp": (1, 1, 2, ("pipeline.schedule=zb_v",)),
    "2etp": (1, 2, 1, ("parallel.sequence=true", "parallel.etp=2")),
    "3dp": (3, 1, 1, ("memory.shard=optimizer",)),
    "4ep": (4, 1, 1, ("parallel.ep=4", "memory.shard=parameters", "memory.recompute=full")),
    "4ep-etp": (2, 2, 1, ("parallel.sequence=true", "parallel.ep=2", "parallel.etp=2")),
    "4cp-ep": (1, 1, 2, ("parallel.cp=2", "parallel.ep=2")),
    "4tp": (2, 2, 1, ("parallel.sequence=true", "parallel.ep=4", "memory.shard=gradients")),
}


def write_inputs(folder):
    (folder / "input.toml").write_text(INPUT)
    (folder / "text.txt").write_text("".join(f"line {i} is not line {i * i % 97}\n" for i in range(400)))


def keys(layout, output, *more, layouts=None):
    dp, tp, pp, further = (layouts or LAYOUTS)[layout]
    return [f"parallel.dp={dp}", f"parallel.tp={tp}", f"parallel.pp={pp}", *further, f"run.output_dir={output}", *more]


def ranks(layout, layouts=None):
    dp, tp, pp, further = (layouts or LAYOUTS)[layout]
    return dp * tp * pp * math.prod(int(word.removeprefix("parallel.cp=")) for word in further
                                    if word.startswith("parallel.cp="))


def train(folder, layout, output, *more, layouts=None):
    """Runs to the end of what `more` asks for; returns what it printed."""
    return train_with(folder, ranks(layout, layouts), *keys(layout, output, *more, layouts=layouts))


def train_with(folder, number_of_ranks, *all_keys):
    done = subprocess.run([*program.MPIEXEC, str(number_of_ranks), program.PROGRAM, "input.toml", *all_keys],
                          cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=600)
    if done.returncode != 0:
        raise AssertionError(f"{all_keys}: exit code {done.returncode}\n{done.stdout}")
    return done.stdout


def losses(folder, output):
    """[(step, loss as written)]"""
    with open(folder / output / "metrics.csv", newline="") as file:
        return [(int(row["step"]), row["loss"]) for row in csv.DictReader(file)]


def checkpoint(output, step):
    return f"{output}/checkpoints/restart-{step:08d}.h5"


def tool(folder, *words, ranks=0):
    """A subcommand of p3d; returns (exit code, stdout, stderr)."""
    launcher = [*program.MPIEXEC, str(ranks)] if ranks else []
    done = subprocess.run([*launcher, program.PROGRAM, *map(str, words)], cwd=folder, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=program.PATIENCE)
    return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")


def tool_memory(folder, *words):
    """The most bytes that a subcommand of p3d had in memory at a time."""
    process = subprocess.Popen([program.PROGRAM, *map(str, words)], cwd=folder, stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return used.ru_maxrss << 10


SHIM = os.environ.get("P3D_FILE_SHIM", "")


def environment(rules, rank=None):
    """What a run needs for `rules` of file_shim.cpp to hold in it, on one rank alone if that is given."""
    sanitizer = "verify_asan_link_order=0:" + os.environ.get("ASAN_OPTIONS", "")
    out = dict(os.environ, LD_PRELOAD=SHIM, P3D_SHIM=rules, ASAN_OPTIONS=sanitizer)
    if rank is not None:
        out["P3D_SHIM_RANK"] = str(rank)
    return out


def start(folder, ranks, *words, rules="", rank=None, name=""):
    """A run (ranks 0: without a launcher) that goes on by itself; finish() waits for it."""
    launcher = [*program.MPIEXEC, str(ranks)] if ranks else []
    out, err = (open(folder / f"{kind}{name}", "w+", errors="replace") for kind in ("out", "err"))
    process = subprocess.Popen([*launcher, program.PROGRAM, "input.toml", *map(str, words)], cwd=folder,
                               stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True,
                               env=environment(rules, rank) if rules else None)
    process.files = (out, err)
    return process


def finish(process):
    """(exit code, stdout, stderr); kills the run and raises when it does not end."""
    try:
        code = process.wait(program.PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    texts = []
    for file in process.files:
        file.seek(0)
        texts.append(file.read())
        file.close()
    return (code, *texts)


def run(folder, ranks, *words, rules="", rank=None):
    return finish(start(folder, ranks, *words, rules=rules, rank=rank))


def rows(folder, output):
    """metrics.csv without the times: [(step, ..., eval_loss)] as written."""
    with open(folder / output / "metrics.csv", newline="") as file:
        times = ("step_ms", "tokens_per_s")
        return [tuple(v for k, v in row.items() if k not in times) for row in csv.DictReader(file)]


def largest_deviation(a, b):
    """Of two lists of losses, relative."""
    if [step for step, _ in a] != [step for step, _ in b]:
        raise AssertionError(f"not the same steps: {a} and {b}")
    return max(abs(float(x) - float(y)) / abs(float(y)) for (_, x), (_, y) in zip(a, b))


os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
