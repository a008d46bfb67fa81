#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a pipeline gains where it does not empty between steps (pipeline.flush; PipeDream-2BW, arXiv 2006.09503).

usage: flush.py PROGRAM [--turns 7] [--sizes 4:4,8:8,8:16] [--pipedream] [--mpiexec mpiexec] [KEY=VALUE]...

Two even stages on two cores, 2 microbatches (1 with --pipedream: delays by stage, SOSP 2019): runs with
pipeline.flush = "always" and "never" in turn, the medians of their steps, and their quotient beside the ideal one,
m / (m + pp - 1). Then, for sizes (pipeline ranks and microbatches), the quotient by simulation, from the bubbles that
p3d --check prints.
"""
import argparse
import csv
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

INPUT = pathlib.Path(__file__).resolve().parent.parent / "inputs/gpt2-tiny.toml"
KEYS = {"model.preset": "llama-tiny", "model.hidden": 512, "model.layers": 4, "model.heads": 8, "model.kv_heads": 8,
        "model.seq_len": 256, "model.vocab_size": 256, "model.ffn": 1536, "model.tied_embeddings": False,
        "batch.micro": 4, "batch.global": 8, "parallel.pp": 2, "data.format": "synthetic", "optimizer.lr": 1e-6,
        "optimizer.delay": 1, "run.steps": 24, "run.eval_batches": 0, "run.ceiling": False, "checkpoint.every": 0}


def words(keys):
    return [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in keys.items()]


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"exit code {done.returncode} of {' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def step_ms(options, flush):
    """The median time of a step of one run, without the first four."""
    with tempfile.TemporaryDirectory(prefix="p3d-flush-") as folder:
        run([options.mpiexec, "-n", "2", options.program, str(INPUT), *words(KEYS), f"pipeline.flush={flush}",
             f"run.output_dir={folder}", *options.keys])
        with open(pathlib.Path(folder) / "metrics.csv", encoding="utf-8") as file:
            return statistics.median(float(row["step_ms"]) for row in list(csv.DictReader(file))[4:])


def bubble(options, ranks, microbatches, flush):
    """The bubble that --check prints, of even stages."""
    keys = KEYS | {"parallel.pp": ranks, "batch.global": 4 * microbatches, "model.layers": 4 * ranks,
                   "pipeline.flush": flush}
    text = run([options.program, "--check", str(INPUT), "--ranks", str(ranks), *words(keys), *options.keys])
    return float(re.search(r"bubble ([0-9.]+) %", text).group(1)) / 100


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("keys", nargs="*")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--sizes", default="2:2,4:4,8:8,8:16")
    parser.add_argument("--pipedream", action="store_true")
    parser.add_argument("--mpiexec", default="mpiexec")
    options = parser.parse_intermixed_args()
    number = 2
    if options.pipedream:
        number = 1
        KEYS.pop("optimizer.delay")
        KEYS.update({"pipeline.schedule": "pipedream", "optimizer.grad_clip": 0, "batch.global": 4})
    turns = [[step_ms(options, flush) for flush in ("always", "never")] for _ in range(options.turns)]
    always, never = (statistics.median(times) for times in zip(*turns))
    quotient = statistics.median(b / a for a, b in turns)
    print(f"measured: pp = 2, m = {number}: {always:.1f} ms with a flush, {never:.1f} ms without; median quotient of "
          f"{options.turns} turns {quotient:.3f}, ideal {number / (number + 1):.3f}")
    print("simulated:\nranks,microbatches,quotient,ideal")
    for size in options.sizes.split(","):
        ranks, microbatches = map(int, size.split(":"))
        with_flush, without = (bubble(options, ranks, microbatches, flush) for flush in ("always", "never"))
        print(f"{ranks},{microbatches},{(1 - with_flush) / (1 - without):.3f},"
              f"{microbatches / (microbatches + ranks - 1):.3f}")


if __name__ == "__main__":
    main()
