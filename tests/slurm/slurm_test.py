# SPDX-License-Identifier: Apache-2.0
"""p3d under a real Slurm: srun with 4 and 8 ranks, the recipes of inputs/slurm, one of them through its time limit and
the queue to the end, scancel, a task that dies.

Prints each step with its time. Exit code 77: skipped, with the reason.
"""
import argparse
import csv
import os
import pathlib
import re
import signal
import sys
import tempfile
import time

import cluster

INPUT = """
[run]
name = "slurm"
steps = 6
log_every = 1
eval_batches = 0
precision = "fp64"
[model]
vocab_size = 64
hidden = 32
layers = 4
heads = 4
ffn = 64
seq_len = 32
[batch]
micro = 1
global = 16
[data]
format = "synthetic"
[comm]
timeout_s = 40
"""


def losses(folder):
    with open(folder / "metrics.csv", newline="") as file:
        return {int(row["step"]): float(row["loss"]) for row in csv.DictReader(file)}


def tasks_of(slurm, job):
    """{rank: process id} of a job's p3d tasks, from their environments."""
    found = {}
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if (process / "comm").read_text().strip() != "p3d":
                continue
            pairs = (process / "environ").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        values = dict(p.split("=", 1) for p in pairs if "=" in p)
        if values.get("SLURM_JOB_ID") == str(job) and values.get("SLURM_CONF") == slurm.environment["SLURM_CONF"]:
            found[int(values["SLURM_PROCID"])] = int(process.name)
    return found


class Test:
    def __init__(self, slurm, p3d, source, work):
        self.slurm, self.p3d, self.source, self.work = slurm, p3d, source, work
        self.input = work / "input.toml"
        self.input.write_text(INPUT)

    def submit(self, script, *arguments, options=()):
        done = self.slurm.run("sbatch", "--parsable", "-o", self.work / "job-%j.out", "--open-mode=append", *options,
                              script, *arguments, cwd=self.work)
        return done.stdout.strip()

    def batch(self, text, *options):
        script = self.work / "job.sh"
        script.write_text("#!/bin/bash\n" + text)
        return self.submit(script, options=options)

    def recipe(self, name, *arguments, options=()):
        """A shipped recipe on the stand-in node: 4 ranks with one core each instead of what the recipe wants."""
        small = ("--nodes=1", "--ntasks-per-node=4", "--cpus-per-task=1")
        return self.submit(self.source / "inputs" / "slurm" / name, self.input, "parallel.dp=2", "parallel.tp=2",
                           *arguments, options=(*small, *options))

    def output(self, job):
        path = self.work / f"job-{job}.out"
        return path.read_text() if path.exists() else ""

    def wait_for(self, job, condition, what, seconds):
        try:
            self.slurm.until(condition, what, seconds)
        except TimeoutError as e:
            raise AssertionError(f"{e}\n-- job {job}: {self.slurm.job(job).get('JobState')}\n"
                                 f"{self.output(job)[-3000:]}") from None

    def has_step(self, job, step):
        return re.search(rf"step +{step}/", self.output(job)) is not None

    def ended(self, job):
        return self.slurm.job(job)["JobState"] in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")

    def srun_with_4_and_8_ranks(self):
        """The same losses on both meshes."""
        for ranks, mesh in ((4, ("parallel.dp=2", "parallel.tp=2")),
                            (8, ("parallel.dp=2", "parallel.tp=2", "parallel.pp=2"))):
            self.slurm.run("srun", "--mpi=pmi2", "-n", ranks, self.p3d, self.input,
                           f"run.output_dir={self.work}/srun{ranks}", *mesh)
        four, eight = losses(self.work / "srun4"), losses(self.work / "srun8")
        assert sorted(four) == sorted(eight) == [1, 2, 3, 4, 5, 6], (four, eight)
        worst = max(abs(four[s] - eight[s]) for s in four)
        assert worst < 1e-9, f"losses differ by {worst}"
        return f"losses of 6 steps differ by at most {worst:.1e}"

    def recipes(self):
        """The recipes that run once, as they are shipped but for the size."""
        jobs = {name: self.recipe(name, f"run.output_dir={self.work}/{name}")
                for name in ("single-node.sbatch", "many-nodes.sbatch", "gpu.sbatch")}
        for name, job in jobs.items():
            self.wait_for(job, lambda: self.ended(job), f"{name} to end", 60)
            assert self.slurm.job(job)["JobState"] == "COMPLETED", (name, self.slurm.job(job), self.output(job))
            assert sorted(losses(self.work / name)) == [1, 2, 3, 4, 5, 6], name
        return ", ".join(jobs) + ": 6 steps each"

    def requeued(self):
        """The time limit's signal: checkpoint, exit code 75, back into the queue, and on to the end; then as good as
        one run."""
        out = self.work / "requeue"
        constant = ("optimizer.lr_schedule=constant", "optimizer.lr=1e-4", "optimizer.warmup_steps=0")
        text = self.input.read_text()
        self.input.write_text(text.replace("steps = 6", "steps = 1000000"))
        try:
            job = self.recipe("requeue.sbatch", f"run.output_dir={out}", *constant,
                              options=("--time=1", "--signal=USR1@20"))
            self.wait_for(job, lambda: int(self.slurm.job(job)["Restarts"]) == 1, "the job to be requeued", 80)
            stopped = max(losses(out))
            last = stopped + 5
            # What would take days ends five steps later: run.steps may change between the parts of a run.
            self.input.write_text(text.replace("steps = 6", f"steps = {last}"))
            self.wait_for(job, lambda: self.ended(job), "the requeued job to end", 60)
        finally:
            self.input.write_text(text)
        state, said = self.slurm.job(job), self.output(job)
        assert (state["JobState"], state["Restarts"]) == ("COMPLETED", "1"), (state, said)
        assert re.search(rf"Stopped by a signal .* after step {stopped} of 1000000 \(exit code 75\)", said), said
        assert "goes back into the queue" in said and "Finished 5 steps" in said, said
        found = losses(out)
        assert sorted(found) == list(range(1, last + 1)), "metrics.csv has holes"
        self.slurm.run("srun", "--mpi=pmi2", "-n", 1, self.p3d, self.input, f"run.output_dir={self.work}/whole",
                       f"run.steps={last}", "run.log_every=1000000", *constant)
        expected = losses(self.work / "whole")
        worst = max(abs(found[s] - expected[s]) for s in expected)
        assert worst < 1e-9, f"losses differ by {worst} from those of one rank without a stop"
        return (f"stopped after step {stopped}, resumed, done after step {last}; "
                f"losses differ from one rank's by at most {worst:.1e}")

    def cancelled(self):
        """scancel ends all tasks, at a step boundary, and leaves the history whole; the job does not come back."""
        job = self.recipe("requeue.sbatch", "run.steps=1000000", f"run.output_dir={self.work}/cancel")
        self.wait_for(job, lambda: self.has_step(job, 3), "the job's third step", 60)
        assert len(tasks_of(self.slurm, job)) == 4, tasks_of(self.slurm, job)
        begin = time.monotonic()
        self.slurm.run("scancel", job)
        self.wait_for(job, lambda: self.slurm.job(job)["JobState"] == "CANCELLED" and not tasks_of(self.slurm, job),
                      "the tasks to end", 40)
        took = time.monotonic() - begin
        steps = sorted(losses(self.work / "cancel"))
        assert steps == list(range(1, len(steps) + 1)), "metrics.csv has holes"
        said = self.output(job)
        assert f"after step {steps[-1]} of 1000000 (exit code 75)" in said and "goes back" not in said, said
        assert list((self.work / "cancel" / "checkpoints").glob(f"*{steps[-1]}*")), "no checkpoint of the last step"
        assert self.slurm.job(job)["Restarts"] == "0", self.slurm.job(job)
        return f"4 tasks gone {took:.1f} s after scancel, {len(steps)} whole lines of history"

    def killed(self):
        """A task that dies ends the job, with an exit code, before comm.timeout_s."""
        job = self.batch(f"srun --mpi=pmi2 --kill-on-bad-exit=1 {self.p3d} {self.input} run.steps=1000000 "
                         f"run.output_dir={self.work}/killed parallel.pp=2\n", "-n", "4")
        self.wait_for(job, lambda: self.has_step(job, 3) and len(tasks_of(self.slurm, job)) == 4,
                      "the job's third step", 60)
        begin = time.monotonic()
        os.kill(tasks_of(self.slurm, job)[2], signal.SIGKILL)
        self.wait_for(job, lambda: self.ended(job) and not tasks_of(self.slurm, job), "the job to end", 60)
        took, state = time.monotonic() - begin, self.slurm.job(job)
        assert state["JobState"] == "FAILED" and state["ExitCode"] != "0:0", state
        return f"job {state['JobState']} with exit code {state['ExitCode']} after {took:.1f} s"

    def unconnected(self):
        """Tasks that MPI does not connect are refused; one process of a batch script, with the same variables, is
        not."""
        out = self.work / "unconnected"
        done = self.slurm.run("srun", "--mpi=none", "-n", 4, self.p3d, self.input, f"run.output_dir={out}", check=False)
        said = done.stdout + done.stderr
        assert done.returncode == 2, (done.returncode, said)
        assert said.count("expected: one MPI world of 4 ranks") == 1 and "--mpi=" in said, said
        assert not out.exists()
        job = self.batch(f"{self.p3d} {self.input} run.steps=1 run.output_dir={out}\n", "-n", "4")
        self.wait_for(job, lambda: self.ended(job), "the script to end", 60)
        assert self.slurm.job(job)["JobState"] == "COMPLETED" and sorted(losses(out)) == [1], self.output(job)
        return "4 tasks with --mpi=none: exit code 2; a batch script without srun: one rank"

    def run(self):
        for step in (self.srun_with_4_and_8_ranks, self.unconnected, self.recipes, self.requeued, self.cancelled,
                     self.killed):
            begin = time.monotonic()
            said = step()
            print(f"{step.__name__:<26} {time.monotonic() - begin:6.1f} s   {said}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    for name in ("p3d", "source"):
        parser.add_argument("--" + name, type=pathlib.Path, required=True)
    args = parser.parse_args()
    missing = cluster.missing()
    if missing:
        print(f"skipped: {', '.join(missing)} not installed (Debian: apt-get install slurm-wlm munge)")
        sys.exit(77)
    # A test that runs into ctest's limit must still stop its daemons.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="p3d-slurm-work-") as work, cluster.Cluster(cpus=8) as slurm:
        print(f"{'slurm starts':<26} {time.monotonic() - begin:6.1f} s   "
              f"{slurm.run('sinfo', '--version').stdout.strip()}", flush=True)
        # The recipes call p3d and srun as at a site: by name, with the site's way of starting MPI.
        slurm.environment["PATH"] = f"{args.p3d.parent}:{slurm.environment['PATH']}"
        slurm.environment["SLURM_MPI_TYPE"] = "pmi2"
        Test(slurm, args.p3d, args.source, pathlib.Path(work)).run()
    print(f"{'in all':<26} {time.monotonic() - begin:6.1f} s")


main()
