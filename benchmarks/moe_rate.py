#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""FLOP/s of a mixture-of-experts model over those of a dense model with as many FLOPs for each token, in one run.

usage: moe_rate.py PROGRAM [--ranks 2] [--pairs 3] [--mpiexec mpiexec] [KEY=VALUE]...

The dense model has a feed-forward layer as wide as the experts of one token together (8 experts, top 2); data parallel,
and ep = ranks. The learning rate is small, so that the router stays as even as it starts. Both run in turn, the median
ratio counts. FLOPs are the models', by p3d's own count (summary.json).
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile

COMMON = {"model.preset": "llama-tiny", "model.hidden": 512, "model.layers": 4, "model.heads": 8, "model.kv_heads": 8,
          "model.seq_len": 512, "model.vocab_size": 1024, "batch.micro": 4, "data.format": "synthetic",
          "optimizer.lr": 1e-6, "run.steps": 5, "run.eval_batches": 0, "run.ceiling": False, "checkpoint.every": 0}
DENSE = {"model.ffn": 2048}
EXPERTS = {"model.ffn": 1024, "model.moe.experts": 8, "model.moe.top_k": 2}


def words(*tables):
    merged = {key: value for table in tables for key, value in table.items()}
    return [f"{key}={str(value).lower()}" for key, value in merged.items()]


def flop_rate(options, folder, keys):
    """FLOP/s of the median step."""
    (folder / "run.toml").write_text("")
    command = [options.mpiexec, "-n", str(options.ranks), options.program, str(folder / "run.toml"),
               f"run.output_dir={folder}/out", *keys]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    summary = json.loads((folder / "out" / "summary.json").read_text())
    return summary["model_flops_per_step"] / summary["median_step_s"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--mpiexec", default="mpiexec")
    parser.add_argument("keys", nargs="*")
    options = parser.parse_intermixed_args()
    parallel = {"parallel.dp": options.ranks, "batch.global": 8 * options.ranks}
    ratios = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for _ in range(options.pairs):
            dense = flop_rate(options, folder, words(COMMON, parallel, DENSE) + options.keys)
            experts = flop_rate(options, folder,
                                words(COMMON, parallel, EXPERTS, {"parallel.ep": options.ranks}) + options.keys)
            ratios.append(experts / dense)
            print(f"dense {dense / 1e9:7.1f} GFLOP/s, experts {experts / 1e9:7.1f} GFLOP/s: {ratios[-1]:.2f}")
    print(f"median ratio {statistics.median(ratios):.2f}, {options.ranks} ranks, ep {options.ranks}")


if __name__ == "__main__":
    main()
