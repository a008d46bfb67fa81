# SPDX-License-Identifier: Apache-2.0
"""Memory settings change no bit: 20 steps with dropout, of each layout and schedule, with and without them. Losses and
gradient norms are compared as written, weights and moments by the checkpoint of the last step.

usage: memory_bits.py [--precision fp64|fp32] [DPxTPxPP:SCHEDULE ...]
Without pairs: 8 layouts x 5 schedules (about 280 runs).
Needs P3D_PROGRAM, P3D_MPIEXEC ("mpiexec -n") and P3D_SOURCE in the environment."""
import argparse
import csv
import pathlib
import shutil
import sys
import tempfile

import restarts

STEPS = 20
LAYOUTS = ("2x1x1", "3x1x1", "2x2x1", "1x1x2", "2x1x2", "1x2x2", "3x1x2", "2x2x2")
SCHEDULES = ("1f1b", "gpipe", "interleaved_1f1b", "zb_h1", "zb_v")


def variants(dp):
    """{name: keys}"""
    out = {
        "full": ("memory.recompute=full",),
        "list, activations away": ('memory.recompute=["norm", "activation", "attention"]',
                                   "memory.offload_activations=disk"),
        "every second, weights away": ("memory.recompute=full", "memory.recompute_every=2",
                                       "memory.offload_parameters=disk"),
        "optimizer away": ("memory.offload_optimizer=disk",),
    }
    if dp > 1:
        out["optimizer divided"] = ("memory.shard=optimizer", "memory.offload_optimizer=disk")
        out["gradients divided"] = ("memory.shard=gradients", "memory.recompute=full", "memory.recompute_group=2")
        out["parameters divided, all away"] = (
            "memory.preset=extreme", "parallel.sequence=false", "memory.offload_parameters=disk",
            "memory.offload_activations=disk")
    return out


def history(folder, output):
    with open(folder / output / "metrics.csv", newline="") as file:
        return [(row["step"], row["loss"], row["grad_norm"]) for row in csv.DictReader(file)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--precision", choices=("fp64", "fp32"), default="fp64")
    parser.add_argument("pairs", nargs="*", metavar="DPxTPxPP:SCHEDULE")
    options = parser.parse_args()
    pairs = [pair.split(":") for pair in options.pairs] or [(a, b) for a in LAYOUTS for b in SCHEDULES]
    failed = compared = 0
    with tempfile.TemporaryDirectory(prefix="p3d-memory-") as name:
        folder = pathlib.Path(name)
        restarts.write_inputs(folder)
        for layout, schedule in pairs:
            dp, tp, pp = (int(n) for n in layout.split("x"))

            def train(output, *more):
                keys = (f"parallel.dp={dp}", f"parallel.tp={tp}", f"parallel.pp={pp}",
                        f"pipeline.schedule={schedule}", f"run.precision={options.precision}",
                        f"run.output_dir={output}", f"run.steps={STEPS}", f"checkpoint.every={STEPS}", *more)
                restarts.train_with(folder, dp * tp * pp, *keys)
                return history(folder, output)

            plain = train("plain")
            wrong = []
            for n, (variant, keys) in enumerate(variants(dp).items()):
                found = train(f"v{n}", *keys)
                code, _, _ = restarts.tool(folder, "checkpoint", "diff", restarts.checkpoint(f"v{n}", STEPS),
                                           restarts.checkpoint("plain", STEPS))
                compared += 1
                if found != plain or len(found) != STEPS or code != 0:
                    wrong.append(f"{variant} ({'losses' if found != plain else 'checkpoint'})")
                shutil.rmtree(folder / f"v{n}")
            shutil.rmtree(folder / "plain")
            failed += len(wrong)
            print(f"{'FAIL' if wrong else 'ok  '} {layout:>6} {schedule:<18} {'; '.join(wrong)}", flush=True)
    print(f"{compared} comparisons of {STEPS} steps, {options.precision}, dropout 0.1: {failed} differ")
    return 1 if failed or compared == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
