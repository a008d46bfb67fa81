#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What compressed gradients save on a slow link (comm.compress), of two replicas on two hosts.

usage: compression.py PROGRAM [--rates 100mbit] [--turns 3] [--mpiexec mpiexec] [KEY=VALUE]...

Hosts are network namespaces (tests/nodes/hosts.py says what that needs), and tc limits their link. For each kind the
median step is printed beside its bound: the step over a link that nothing limits, and the bytes that p3d --check names,
half of which each rank sends, over the bandwidth. The last column is the step in units of the plain one.
"""
import re
import statistics
import subprocess

import shaped_link

KEYS = {"model.preset": "llama-tiny", "model.hidden": 128, "model.layers": 4, "model.heads": 4, "model.kv_heads": 4,
        "model.seq_len": 128, "model.vocab_size": 512, "model.ffn": 352, "model.tied_embeddings": False,
        "batch.micro": 4, "batch.global": 16, "parallel.dp": 2, "data.format": "synthetic", "run.steps": 12,
        "run.eval_batches": 0, "run.ceiling": False, "checkpoint.every": 0}
KINDS = {"none": {}, "int8": {"comm.compress": "int8", "comm.workers": 2},
         "topk": {"comm.compress": "topk", "comm.workers": 2, "comm.topk": 0.01}}
UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def bytes_of(room, options, kind):
    """Bytes that both ranks give to each other in a step."""
    name = "int8" if kind == "none" else kind
    command = [options.program, "--check", str(room.folder / "run.toml"), "--ranks", "2",
               *shaped_link.words(KEYS | KINDS[name], options.keys)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"([0-9.]+) (\w+) a step over dp in place of ([0-9.]+) (\w+)", text).groups()
    number, unit = found[2:] if kind == "none" else found[:2]
    return float(number) * UNITS[unit]


def main():
    parser = shaped_link.parser(__doc__)
    parser.set_defaults(rates="100mbit")
    parser.add_argument("--turns", type=int, default=3)
    with shaped_link.two_hosts(parser) as (room, options):
        def step(kind):
            return statistics.median(shaped_link.step_seconds(room, options, KEYS | KINDS[kind])
                                     for _ in range(options.turns))
        shaped_link.shape(room, "none")
        free = {kind: step(kind) for kind in KINDS}
        print("rate,compress,megabytes,step_ms,bound_ms,step/bound,step/plain")
        for rate in options.rates.split(","):
            shaped_link.shape(room, rate)
            number, unit = re.fullmatch(r"([0-9.]+)([kmg]bit)", rate).groups()
            bandwidth = float(number) * shaped_link.BITS[unit] / 8
            plain = None
            for kind in KINDS:
                sent = bytes_of(room, options, kind)
                seconds, bound = step(kind), free[kind] + sent / 2 / bandwidth
                plain = plain or seconds
                print(f"{rate},{kind},{sent / 1e6:.2f},{1e3 * seconds:.1f},{1e3 * bound:.1f},{seconds / bound:.3f},"
                      f"{seconds / plain:.3f}", flush=True)


if __name__ == "__main__":
    main()
