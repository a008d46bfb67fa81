#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How much of the messages over tp comm.overlap_tp hides, between two hosts with a shaped link.

usage: tp_overlap.py PROGRAM [--rates 1gbit,500mbit] [--turns 3] [--mpiexec mpiexec] [KEY=VALUE]...

Two hosts made of network namespaces (tests/nodes/hosts.py says what that needs), a rank on each, tp = 2. Their link is
shaped by tc (token bucket). Every value of comm.overlap_tp runs in turn. The time of "none" on an unshaped link stands
for a step whose messages take no time:

    hidden = (t_none - t) / (t_none - t_unshaped)
"""
import statistics

import shaped_link

KEYS = {"model.preset": "llama-tiny", "model.hidden": 512, "model.layers": 4, "model.heads": 8, "model.kv_heads": 8,
        "model.seq_len": 512, "model.vocab_size": 1024, "model.ffn": 1536, "batch.micro": 2, "batch.microbatches": 4,
        "parallel.tp": 2, "data.format": "synthetic", "optimizer.lr": 1e-6, "run.steps": 4, "run.eval_batches": 0,
        "run.ceiling": False, "checkpoint.every": 0}
WAYS = ("none", "bulk", "chunks", "microbatch", "auto")


def main():
    parser = shaped_link.parser(__doc__)
    parser.add_argument("--turns", type=int, default=3)
    with shaped_link.two_hosts(parser) as (room, options):
        def medians():
            turns = [[shaped_link.step_seconds(room, options, KEYS | {"comm.overlap_tp": way}) for way in WAYS]
                     for _ in range(options.turns)]
            return [statistics.median(times) for times in zip(*turns)]

        shaped_link.shape(room, "none")
        base = medians()
        print("link      " + "".join(f"{way + ' (s)':>12}" for way in WAYS)
              + "".join(f"{'hidden, ' + way:>16}" for way in WAYS[1:]))
        print(f"{'unshaped':<10}" + "".join(f"{t:>12.3f}" for t in base), flush=True)
        for rate in options.rates.split(","):
            shaped_link.shape(room, rate)
            times = medians()
            hidden = [(times[0] - t) / (times[0] - base[0]) for t in times[1:]]
            print(f"{rate:<10}" + "".join(f"{t:>12.3f}" for t in times) + "".join(f"{h:>16.2f}" for h in hidden),
                  flush=True)


if __name__ == "__main__":
    main()
