# SPDX-License-Identifier: Apache-2.0
"""30 steps in one go against 15 + checkpoint + 15, from every layout to every layout.

usage: pairs.py [--precision fp64|fp32|bf16|fp16] [--experts] [--delay] [FROM:TO ...]
without pairs: all of them (about 170 runs). --experts: a mixture-of-experts model, on layouts of its own. --delay: late
gradients (two versions of the weights).
Needs P3D_PROGRAM, P3D_MPIEXEC ("mpiexec -n") and P3D_SOURCE in the environment."""
import argparse
import pathlib
import shutil
import sys
import tempfile

import restarts

parser = argparse.ArgumentParser()
parser.add_argument("--precision", choices=("fp64", "fp32", "bf16", "fp16"), default="fp64")
parser.add_argument("--experts", action="store_true")
parser.add_argument("--delay", action="store_true")
parser.add_argument("pairs", nargs="*", metavar="FROM:TO")
options = parser.parse_args()
layouts = restarts.EXPERT_LAYOUTS if options.experts else restarts.LAYOUTS
every = [(a, b) for a in layouts for b in layouts]
pairs = [tuple(pair.split(":")) for pair in options.pairs] or every
unknown = [pair for pair in pairs if pair not in every]
if unknown:
    sys.exit(f"no such layouts: {unknown}; there are {' '.join(layouts)}")
further = [f"run.precision={options.precision}", *(restarts.EXPERTS if options.experts else ()),
           *(["optimizer.delay=1"] if options.delay else [])]
tolerance = {"fp64": 1e-9, "fp32": 2e-4, "bf16": 2e-2, "fp16": 2e-2}[options.precision]

failed, worst = 0, 0.0
with tempfile.TemporaryDirectory(prefix="p3d-pairs-") as name:
    folder = pathlib.Path(name)
    restarts.write_inputs(folder)
    straight = {}
    for layout in sorted({layout for pair in pairs for layout in pair} | {"1"}):
        restarts.train(folder, layout, f"straight-{layout}", *further, layouts=layouts)
        straight[layout] = restarts.losses(folder, f"straight-{layout}")
        print(f"straight {layout}: "
              f"{restarts.largest_deviation(straight[layout], straight['1']) if '1' in straight else 0:.2e}",
              flush=True)
    for a, b in pairs:
        output = f"{a}-{b}"
        (folder / output / "checkpoints").mkdir(parents=True)
        shutil.copy(folder / f"straight-{a}" / "metrics.csv", folder / output)
        shutil.copy(folder / restarts.checkpoint(f"straight-{a}", restarts.HALF), folder / output / "checkpoints")
        out = restarts.train(folder, b, output, *further, layouts=layouts)
        found = restarts.losses(folder, output)
        deviation = restarts.largest_deviation(found, straight["1"])
        good = f"step {restarts.HALF}," in out and len(found) == restarts.STEPS and deviation <= tolerance
        note = ""
        if a == b:  # the same layout: every bit
            same = found == straight[a]
            code, text, _ = restarts.tool(folder, "checkpoint", "diff", restarts.checkpoint(output, restarts.STEPS),
                                          restarts.checkpoint(f"straight-{a}", restarts.STEPS))
            good = good and same and code == 0
            note = (f", losses {'bit-identical' if same else 'DIFFER'}, "
                    f"final file {'identical' if code == 0 else 'DIFFERS'}")
        worst = max(worst, deviation)
        failed += not good
        print(f"{'ok  ' if good else 'FAIL'} {a:>10} -> {b:<10} largest relative deviation {deviation:.2e}{note}",
              flush=True)
        shutil.rmtree(folder / output)
print(f"{len(pairs)} pairs, {options.precision}, dropout 0.1: {failed} failed, worst deviation {worst:.2e} "
      f"(tolerance {tolerance:g})")
sys.exit(1 if failed else 0)
