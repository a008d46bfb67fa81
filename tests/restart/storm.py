# SPDX-License-Identifier: Apache-2.0
"""Kills runs with SIGKILL at random moments, half of them inside the writing of a checkpoint, and starts them again: no
valid checkpoint is ever lost, no damaged one loaded, and the losses go on, to the last bit, as in a run that nothing
disturbed.

usage: storm.py KILLS SEED [sharded]      the same seed draws the same moments; the machine's own timing is not
                                          repeated: kills_test.py is
sharded: replicas that divide their state and offload the optimizer, in place of pipelines.
Needs P3D_PROGRAM, P3D_MPIEXEC ("mpiexec -n") and P3D_SOURCE in the environment."""
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

import restarts

kills = int(sys.argv[1])
seed = int(sys.argv[2])
sharded = sys.argv[3:] == ["sharded"]
draw = random.Random(seed)
# Never finished; a checkpoint every third step, so that one is nearly always being written, and large enough to take a
# while.
KEYS = ["run.name=storm", "run.steps=1000000", "run.log_every=1000000", "run.precision=fp64", "model.hidden=96",
        "model.ffn=192", "batch.global=2", "optimizer.lr_schedule=constant", "checkpoint.every=3", "checkpoint.keep=2"]


def start(folder, ranks, output, *more):
    layout = [f"parallel.pp={ranks}", "parallel.dp=1"]
    if sharded:
        layout = [f"parallel.dp={ranks}", "memory.offload_optimizer=disk", f"memory.offload_dir={folder}"]
        layout += ["memory.shard=parameters", "memory.gather=microbatch"] if ranks > 1 else []
    launcher = restarts.program.MPIEXEC + [str(ranks)] if ranks > 1 else []
    with open(folder / "out", "wb") as out:
        return subprocess.Popen([*launcher, restarts.program.PROGRAM, "input.toml", *KEYS, *layout,
                                 f"run.output_dir={output}", *more],
                                cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                                start_new_session=True)


def processes_of(run):
    table, todo, found = restarts.program.processes(), [run.pid], []
    while todo:
        process = todo.pop()
        if process in table and table[process][1] == restarts.program.PROGRAM.name:
            found.append(process)
        todo += [p for p, (parent, _, _) in table.items() if parent == process]
    return found


def written(folder):
    """{step: loss as written}; a last line without an end was cut off."""
    path = folder / "run" / "metrics.csv"
    lines = path.read_text().split("\n")[1:-1] if path.exists() else []
    return {int(line.split(",")[0]): line.split(",")[2] for line in lines}


def stop(text, folder):
    sys.exit(f"seed {seed}: {text}\n{(folder / 'out').read_text(errors='replace')}")


def storm(folder, ranks, kills):
    checkpoints = folder / "run" / "checkpoints"
    losses, newest, unfinished, resumed = {}, 0, 0, 0
    for kill in range(kills):
        inside, before = draw.random() < 0.5, len(written(folder))
        run = start(folder, ranks, "run")
        # Every third start, and the last, is left until it has trained; the others may end anywhere, within their own
        # start too.
        waits = kill % 3 == 0 or kill == kills - 1
        deadline = time.monotonic() + restarts.program.PATIENCE
        while waits and run.poll() is None and time.monotonic() < deadline and len(written(folder)) < before + 3:
            time.sleep(0.02)
        time.sleep(draw.uniform(0.05, 0.7))
        if inside:  # a file that is being written, then a moment later
            end = time.monotonic() + 3
            while time.monotonic() < end and run.poll() is None and not list(checkpoints.glob("*.part")):
                pass
            time.sleep(draw.uniform(0, 0.02))
        there = processes_of(run)
        os.kill(draw.choice(there or [run.pid]), signal.SIGKILL)
        try:
            run.wait(restarts.program.PATIENCE)
        except subprocess.TimeoutExpired:
            stop("the others did not end when one rank was killed", folder)
        if run.returncode in (0, 2, 5, 75):
            stop(f"ended by itself with exit code {run.returncode}", folder)
        while any(table[p][2] not in "ZX" for table in [restarts.program.processes()] for p in there if p in table):
            time.sleep(0.01)
        out = (folder / "out").read_text(errors="replace")
        if "skipping" in out:
            stop("a damaged checkpoint had its final name", folder)
        resumed += "Resumed from" in out
        unfinished += bool(list(checkpoints.glob("*.part")))
        for step, loss in written(folder).items():
            if losses.setdefault(step, loss) != loss:
                stop(f"step {step}: loss {loss} after {losses[step]}", folder)
        names = sorted(p.name for p in checkpoints.glob("*.h5"))
        if names:
            code, text, error = restarts.tool(folder, "checkpoint", "verify", *(f"run/checkpoints/{n}" for n in names))
            last = int(names[-1].split("-")[1].split(".")[0])
            if code != 0 or last < newest:
                stop(f"the newest valid checkpoint was that of step {newest}, now {names}\n{text}{error}", folder)
            newest = last
        elif newest > 0:
            stop(f"the checkpoint of step {newest} is gone", folder)
    left = [p.name for p in folder.iterdir() if "swap" in p.name]
    if left:
        stop(f"swap files are left: {left}", folder)
    steps = max(losses, default=0)
    if steps == 0 or resumed == 0:
        stop(f"nothing was tested: {steps} steps, {resumed} starts resumed", folder)
    if start(folder, ranks, "straight", f"run.steps={steps}", "checkpoint.every=0").wait() != 0:
        stop("the undisturbed run failed", folder)
    reference = dict(restarts.losses(folder, "straight"))
    wrong = [step for step, loss in losses.items() if reference[step] != loss]
    if wrong:
        stop(f"{len(wrong)} of {len(losses)} losses are not those of an undisturbed run, the first at step "
             f"{min(wrong)}", folder)
    print(f"{ranks} rank(s): {kills} kills, {unfinished} left an unfinished file, {resumed} starts resumed, "
          f"newest checkpoint of step {newest}; {len(losses)} losses, all with the bits of an undisturbed run",
          flush=True)


for ranks, share in ((1, kills - kills // 3), (2 if sharded else 3, kills // 3)):
    with tempfile.TemporaryDirectory(prefix="p3d-storm-") as name:
        restarts.write_inputs(pathlib.Path(name))
        storm(pathlib.Path(name), ranks, share)
