#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How much of the exchange of experts' rows comm.overlap_experts hides, between two hosts with a shaped link.

usage: expert_overlap.py PROGRAM [--rates none,1gbit,500mbit] [--pairs 2] [--mpiexec mpiexec] [KEY=VALUE]...

Two hosts made of network namespaces (tests/nodes/hosts.py says what that needs), a rank on each, ep = 2. Their link is
shaped by tc (token bucket). Each rate runs without and with overlap in turn. The time of an unshaped link is the base:

    hidden = (t_off - t_on) / (t_off - t_base)

Beside it stands what the simulator says of the same input: FLOP/s so that its base is the measured one, and the link's
rate.
"""
import re
import statistics
import subprocess

import shaped_link

KEYS = {"model.preset": "llama-tiny", "model.hidden": 512, "model.layers": 4, "model.heads": 8, "model.kv_heads": 8,
        "model.seq_len": 512, "model.vocab_size": 1024, "model.ffn": 1024, "model.moe.experts": 8,
        "model.moe.top_k": 2, "batch.micro": 2, "batch.microbatches": 8, "parallel.dp": 2, "parallel.ep": 2,
        "data.format": "synthetic", "optimizer.lr": 1e-6, "run.steps": 4, "run.eval_batches": 0, "run.ceiling": False,
        "checkpoint.every": 0}


def simulated(room, options, overlap, flops, bandwidth):
    command = [options.program, "schedule", "simulate", str(room.folder / "run.toml"), "--flops", str(flops),
               "--bandwidth", str(bandwidth),
               *shaped_link.words(KEYS | {"comm.overlap_experts": overlap}, options.keys)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    number, unit = re.search(r"^step ([0-9.]+) (\w+)", text, re.MULTILINE).groups()
    return float(number) * {"s": 1, "ms": 1e-3, "us": 1e-6}[unit]


def main():
    parser = shaped_link.parser(__doc__)
    parser.add_argument("--pairs", type=int, default=2)
    with shaped_link.two_hosts(parser) as (room, options):
        def medians():
            pairs = [[shaped_link.step_seconds(room, options, KEYS | {"comm.overlap_experts": on})
                      for on in (False, True)] for _ in range(options.pairs)]
            return [statistics.median(times) for times in zip(*pairs)]

        shaped_link.shape(room, "none")
        base = min(medians())
        flops = 1e11 * simulated(room, options, False, 1e11, 1e18) / base
        print(f"unshaped link: {base:.3f} s a step, as the simulator at {flops / 1e9:.1f} GFLOP/s a rank")
        print("link      off (s)   on (s)   hidden   simulated: off (s)   on (s)   hidden")
        for rate in options.rates.split(","):
            shaped_link.shape(room, rate)
            off, on = medians()
            number, unit = re.fullmatch(r"([0-9.]+)([kmg]bit)", rate).groups()
            bandwidth = float(number) * shaped_link.BITS[unit] / 8
            free, s_off, s_on = (simulated(room, options, overlap, flops, b)
                                 for overlap, b in ((False, 1e18), (False, bandwidth), (True, bandwidth)))
            print(f"{rate:<8} {off:8.3f} {on:8.3f} {(off - on) / (off - base):8.2f} {s_off:20.3f} {s_on:8.3f} "
                  f"{(s_off - s_on) / (s_off - free):8.2f}", flush=True)


if __name__ == "__main__":
    main()
