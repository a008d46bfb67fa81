#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which way to start the messages between pipeline stages is the fastest (pipeline.p2p).

usage: p2p.py PROGRAM [--turns 7] [--ranks 2] [--sizes 64:8,128:128] [--schedules 1f1b,interleaved_1f1b]
              [--mpiexec mpiexec] [KEY=VALUE]...

For each schedule and size (model.hidden and model.seq_len) of even stages: runs with each value of the key in turn, the
median of their steps, and the median over turns of their quotients to "separate". The output is a CSV with a stamp.
"""
import argparse
import csv
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

INPUT = pathlib.Path(__file__).resolve().parent.parent / "inputs/gpt2-tiny.toml"
KEYS = {"model.preset": "llama-tiny", "model.heads": 8, "model.kv_heads": 8, "model.vocab_size": 256,
        "model.tied_embeddings": "false", "batch.micro": 1, "data.format": "synthetic", "optimizer.lr": 1e-6,
        "run.steps": 44, "run.eval_batches": 0, "run.ceiling": "false", "checkpoint.every": 0}
WAYS = ("separate", "batched", "ring")


def step_ms(options, keys):
    """The median time of a step of one run, without the first four."""
    with tempfile.TemporaryDirectory(prefix="p3d-p2p-") as folder:
        command = [options.mpiexec, "-n", str(options.ranks), options.program, str(INPUT),
                   *(f"{key}={value}" for key, value in (KEYS | keys).items()), f"run.output_dir={folder}",
                   *options.keys]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"exit code {done.returncode} of {' '.join(command)}\n{done.stdout}{done.stderr}")
        with open(pathlib.Path(folder) / "metrics.csv", encoding="utf-8") as file:
            return statistics.median(float(row["step_ms"]) for row in list(csv.DictReader(file))[4:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("keys", nargs="*")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--sizes", default="64:8,128:128")
    parser.add_argument("--schedules", default="1f1b,interleaved_1f1b")
    parser.add_argument("--mpiexec", default="mpiexec")
    options = parser.parse_intermixed_args()
    version = subprocess.run([options.program, "--version"], capture_output=True, text=True, check=True).stdout
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo", encoding="utf-8") if "model name" in line),
               "unknown")
    print("".join(f"# {line}\n" for line in version.splitlines()) +
          f"# CPU: {cpu}, {os.cpu_count()} cores, {options.ranks} ranks; {options.turns} turns")
    print("schedule,hidden,seq_len,separate_ms,batched_ms,ring_ms,batched_quotient,ring_quotient")
    for schedule in options.schedules.split(","):
        for size in options.sizes.split(","):
            hidden, seq_len = map(int, size.split(":"))
            keys = {"model.hidden": hidden, "model.ffn": 2 * hidden, "model.seq_len": seq_len,
                    "model.layers": 2 * options.ranks, "parallel.pp": options.ranks,
                    "batch.global": 8 * options.ranks, "pipeline.schedule": schedule}
            turns = [[step_ms(options, keys | {"pipeline.p2p": way}) for way in WAYS] for _ in range(options.turns)]
            medians = [statistics.median(times) for times in zip(*turns)]
            quotients = [statistics.median(turn[way] / turn[0] for turn in turns) for way in (1, 2)]
            print(f"{schedule},{hidden},{seq_len}," + ",".join(f"{ms:.2f}" for ms in medians) + "," +
                  ",".join(f"{quotient:.3f}" for quotient in quotients), flush=True)


if __name__ == "__main__":
    main()
