#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How fast checkpoints are written and read by 4 ranks, against one plain process that writes (with fsync) and reads
the same bytes on the same disk, turn by turn; how long training is held; how much memory it takes.

usage: benchmarks/checkpoint_rate.py [--program build/release/p3d] [--turns 5] [--folder FOLDER] [--csv FILE]
FOLDER lies on the disk to be measured and needs room for two checkpoints of GPT-2 124M with AdamW (1.5 GB each). Before
each read the system's copy of the file is dropped (posix_fadvise)."""
import argparse
import csv
import mmap
import os
import pathlib
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

parser = argparse.ArgumentParser()
parser.add_argument("--program", default="build/release/p3d")
parser.add_argument("--turns", type=int, default=5)
parser.add_argument("--folder", default=".")
parser.add_argument("--csv")
options = parser.parse_args()
program = pathlib.Path(options.program).resolve()
INPUT = """
[run]
name = "rate"
steps = 4
eval_batches = 0
[model]
preset = "gpt2-124m"
seq_len = 16
[parallel]
tp = 4
[batch]
micro = 1
global = 1
[data]
format = "synthetic"
split = 0.0
[checkpoint]
every = 2
keep = 0
"""
SECONDS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "us": 1e-6}


def seconds(text):
    number, unit = text.split()
    return float(number) * SECONDS[unit]


def train(folder, *keys):
    """What p3d printed, and the largest resident set of a rank so far in this process's children, in bytes."""
    done = subprocess.run(["mpiexec", "-n", "4", program, "input.toml", "run.output_dir=run", *keys], cwd=folder,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env=dict(os.environ, OMP_NUM_THREADS="1"))
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return done.stdout


def resident(folder, *keys):
    """Largest resident set of a rank, in bytes: in a process of its own, because the figure only grows."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        train(folder, *keys)
        os.write(writer, str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024).encode())
        os._exit(0)
    os.wait()
    return int(os.read(reader, 64))


def drop(path):
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def plain_write(path, block, count):
    os.sync()
    begin = time.perf_counter()
    with open(path, "wb", buffering=0) as file:
        for _ in range(count):
            file.write(block)
        os.fsync(file.fileno())
    return time.perf_counter() - begin


def plain_read(path, block):
    drop(path)
    buffer = bytearray(len(block))
    begin = time.perf_counter()
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    return time.perf_counter() - begin


def warm_memory():
    """Touches most of the free memory and gives it back: on a virtual machine that returns free pages to its host the
    first touch of a page costs more than writing it to disk. Before each run of p3d; the plain process comes after one,
    so it finds memory that was in use a moment ago too."""
    free = int(re.search(r"MemAvailable:\s+(\d+)", pathlib.Path("/proc/meminfo").read_text())[1]) * 1024
    if os.fork() == 0:
        memory = mmap.mmap(-1, int(0.8 * free))
        for at in range(0, len(memory), 4096):
            memory[at] = 1
        os._exit(0)
    os.wait()


rows = []
with tempfile.TemporaryDirectory(prefix="p3d-rate-", dir=options.folder) as name:
    folder = pathlib.Path(name)
    (folder / "input.toml").write_text(INPUT)
    block = os.urandom(8 << 20)
    for turn in range(1, options.turns + 1):
        for mode in ("true", "false"):
            shutil.rmtree(folder / "run", ignore_errors=True)
            os.sync()
            warm_memory()
            out = train(folder, f"checkpoint.async={mode}", "run.steps=2")
            write = re.search(r"Checkpoint of step 2: .* in (\S+ \S+), training held for", out)[1]
            path = folder / "run/checkpoints/rate-00000002.h5"
            size = path.stat().st_size
            if mode == "true":
                row = {"turn": turn, "bytes": size, "write_s": seconds(write)}
            else:
                row["write_together_s"] = seconds(write)
            row.setdefault("plain_write_s", plain_write(folder / "plain", block, -(-size // len(block))) * size
                           / (-(-size // len(block)) * len(block)))
        drop(path)
        warm_memory()
        out = train(folder, "run.steps=2")
        row["read_s"] = seconds(re.search(r"Resumed from .*\(\S+ \S+ in (\S+ \S+)\)", out)[1])
        row["plain_read_s"] = plain_read(folder / "plain", block)
        (folder / "plain").unlink()
        rows.append(row)
        print(", ".join(f"{k} {v:.3f}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()), flush=True)
    if options.csv:
        with open(options.csv, "w", newline="") as file:
            writer = csv.DictWriter(file, rows[0].keys())
            writer.writeheader()
            writer.writerows(rows)
    # While training goes on: the first of two checkpoints, because the run waits for the last one at its end.
    shutil.rmtree(folder / "run", ignore_errors=True)
    warm_memory()
    out = train(folder, "checkpoint.every=10", "run.steps=20")
    held_write, held = (seconds(text) for text in re.search(
        r"Checkpoint of step 10: .* in (\S+ \S+), training held for (\S+ \S+):", out).groups())
    memory = {}
    for what, keys in (("none", ("checkpoint.every=0",)),
                       ("together", ("checkpoint.async=false", "checkpoint.buffer_mb=16")),
                       ("async", ("checkpoint.async=true", "checkpoint.buffer_mb=16"))):
        shutil.rmtree(folder / "run", ignore_errors=True)
        memory[what] = resident(folder, "run.steps=2", *keys)
    memory["resume"] = resident(folder, "run.steps=2", "checkpoint.buffer_mb=16", "checkpoint.async=false")

median = {k: statistics.median(row[k] for row in rows) for k in rows[0]}
ratio = {what: statistics.median(row[plain] / row[own] for row in rows)
         for what, own, plain in (("write", "write_s", "plain_write_s"),
                                  ("together", "write_together_s", "plain_write_s"),
                                  ("read", "read_s", "plain_read_s"))}
gb = median["bytes"] / 1e9
print(f"\n{gb:.2f} GB, medians of {len(rows)} turns (ratios: plain process / p3d, more is better)")
print(f"write, from a copy              {gb / median['write_s']:.2f} GB/s   ratio {ratio['write']:.2f}")
print(f"write, rank 0 for all (no copy){gb / median['write_together_s']:.2f} GB/s   ratio {ratio['together']:.2f}")
print(f"read and verify (resume)        {gb / median['read_s']:.2f} GB/s   ratio {ratio['read']:.2f}")
print(f"write while training goes on: {held_write:.2f} s, training held for {held:.3f} s = "
      f"{100 * held / held_write:.1f} %")
print(f"plain process: write {gb / median['plain_write_s']:.2f} GB/s, read {gb / median['plain_read_s']:.2f} GB/s")
mb = {k: (v - memory["none"]) / 2**20 for k, v in memory.items()}
print(f"largest resident set of a rank without checkpoints {memory['none'] / 2**20:.0f} MiB; more with buffer_mb = 16: "
      f"async {mb['async']:+.0f} MiB (its copy: {gb * 1e9 / 4 / 2**20:.0f} MiB), together {mb['together']:+.0f} MiB, "
      f"resume {mb['resume']:+.0f} MiB")
