#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Losses of a small model with methods that change the answer: the tables of docs/numbers.md.

usage: losses.py PROGRAM delay|compression|all [--seeds 1] [--ranks 2] [--mpiexec mpiexec] [--only WORD] [KEY=VALUE]...

Trains inputs/quickstart.toml (0.9 million parameters, 400 steps of 2,048 tokens) with each method and prints rows of a
Markdown table: the training loss of some steps, its mean over the last 20, and the validation loss, as means over the
seeds (--seeds 3 is 1, 2 and 3). With several seeds two more columns have the differences to the first row in percent,
of the last 20 steps and of validation: each seed has its own first row, and behind +- stands the standard error of the
mean. A run takes about 20 seconds on two cores.
"""
import argparse
import csv
import pathlib
import statistics
import subprocess
import sys
import tempfile

INPUT = pathlib.Path(__file__).resolve().parent.parent / "inputs/quickstart.toml"
SHOWN = (1, 2, 100, 200, 300)
# Rows: (what the table says, keys). The first is what the others are compared with.
REPLICAS = ("parallel.tp=1", "parallel.pp=1")
WORKERS = ("comm.workers=4",)
TABLES = {
    "delay": [("lr 3e-4", ("optimizer.lr=3e-4",)),
              ("lr 3e-4, delay 1", ("optimizer.lr=3e-4", "optimizer.delay=1")),
              ("lr 3e-4, delay 3", ("optimizer.lr=3e-4", "optimizer.delay=3")),
              ("lr 3e-4, delays [3, 2, 1, 0]", ("optimizer.lr=3e-4", "pipeline.delays=[3,2,1,0]",
                                                "model.tied_embeddings=false")),
              ("lr 1.5e-3", ("optimizer.lr=1.5e-3",)),
              ("lr 1.5e-3, delay 1", ("optimizer.lr=1.5e-3", "optimizer.delay=1")),
              ("lr 3e-3", ()),
              ("lr 3e-3, delay 1", ("optimizer.delay=1",))],
    "compression": [("none", ()),
                    ("int8", (*WORKERS, "comm.compress=int8")),
                    ("powersgd, rank 16", (*WORKERS, "comm.compress=powersgd", "comm.powersgd_rank=16")),
                    ("powersgd, rank 4", (*WORKERS, "comm.compress=powersgd", "comm.powersgd_rank=4")),
                    ("topk, 10 %", (*WORKERS, "comm.compress=topk", "comm.topk=0.1")),
                    ("topk, 1 %", (*WORKERS, "comm.compress=topk", "comm.topk=0.01"))]}


def train(options, keys, seed):
    """The losses of all steps, and the last validation loss."""
    with tempfile.TemporaryDirectory(prefix="p3d-losses-") as folder:
        words = [*REPLICAS, f"parallel.dp={options.ranks}", "checkpoint.every=0", "run.ceiling=false",
                 "sample.tokens=0", f"run.seed={seed}", f"run.output_dir={folder}", *keys, *options.keys]
        done = subprocess.run([options.mpiexec, "-n", str(options.ranks), options.program, str(INPUT), *words],
                              capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"exit code {done.returncode} of {' '.join(words)}\n{done.stdout}{done.stderr}")
        with open(pathlib.Path(folder) / "metrics.csv", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    return [float(row["loss"]) for row in rows], float([row["eval_loss"] for row in rows if row["eval_loss"]][-1])


def difference(values, first):
    """Of means over seeds, in percent, with the standard error of the mean."""
    quotients = [100 * (b / a - 1) for a, b in zip(first, values)]
    error = statistics.stdev(quotients) / len(quotients) ** 0.5
    return f"{statistics.mean(quotients):+.2f} +- {error:.2f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("table", choices=[*TABLES, "all"])
    parser.add_argument("keys", nargs="*")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--mpiexec", default="mpiexec")
    parser.add_argument("--only", help="the first row and those with this word")
    options = parser.parse_intermixed_args()
    for name in TABLES if options.table == "all" else [options.table]:
        columns = [*(f"step {step}" for step in SHOWN), "end", "validation"]
        if options.seeds > 1:
            columns += ["end, %", "validation, %"]
        print(f"| {name} | " + " | ".join(columns) + " |\n|---|" + "--:|" * len(columns), flush=True)
        first = None
        for label, keys in TABLES[name]:
            if first and options.only and options.only not in label:
                continue
            runs = [train(options, keys, seed) for seed in range(1, options.seeds + 1)]
            ends, last = [statistics.mean(losses[-20:]) for losses, _ in runs], [v for _, v in runs]
            steps = [step for step in SHOWN if step <= len(runs[0][0])]
            shown = [statistics.mean(losses[step - 1] for losses, _ in runs) for step in steps]
            cells = [f"{x:.3f}" for x in (*shown, statistics.mean(ends), statistics.mean(last))]
            first = first or (ends, last)
            if options.seeds > 1:
                cells += [difference(ends, first[0]), difference(last, first[1])]
            print(f"| {label} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
