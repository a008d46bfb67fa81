#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The pipeline's bubble, measured beside predicted, and the step times of schedules as ratios in one run.

    benchmarks/pipeline_bubble.py [--program build/release/p3d] [--turns 7] [--steps 4] [--microbatches 8] [--micro 4]
                                  [--launcher mpiexec] [--keep FOLDER]

Trains a GPT whose step is nearly all GEMMs on 4 ranks (pp = 4, one core each) under each schedule in turn, so
that what else the machine does meets all of them alike. Every run records its actions (run.trace); its own summary
gives the measured bubble and that of the simulator fed with the costs it measured: the mean of each action and stage,
and every action's own time (which takes out what other programs on the machine do to single actions). Printed are the
medians over the turns, and the ratios of step times of the same turn. Exit code 1 when a median bubble is more than
10 % (relative) away from that with mean costs, or zb_v or interleaved_1f1b is not quicker than 1f1b.
"""
import argparse
import csv
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

SCHEDULES = ["gpipe", "1f1b", "interleaved_1f1b", "zb_h1", "zb_v"]
SUMMARY = re.compile(r"predicted (-?[\d.]+) % .*measured (-?[\d.]+) %.*own time: (-?[\d.]+) %", re.DOTALL)

MODEL = """
[run]
name = "bubble"
eval_batches = 0
trace = true
ceiling = false
[model]
preset = "gpt2-tiny"
vocab_size = 256
hidden = 512
heads = 8
ffn = 2048
layers = 8
seq_len = 128
dropout = 0.0
tied_embeddings = false
[parallel]
dp = 1
tp = 1
pp = 4
[data]
format = "synthetic"
[checkpoint]
every = 0
"""


def run(options, folder, schedule, turn):
    """(bubble predicted with mean costs, measured, simulated with each action's own time, median step in ms) of one
    run; the first step warms up and does not count."""
    out = folder / f"{schedule}-{turn}"
    done = subprocess.run([*options.launcher.split(), "-n", "4", options.program, folder / "input.toml",
                           f"pipeline.schedule={schedule}", f"run.steps={options.steps}",
                           f"batch.micro={options.micro}", f"batch.microbatches={options.microbatches}",
                           f"run.output_dir={out}"],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env=os.environ | {"OMP_NUM_THREADS": "1"})
    found = SUMMARY.search(done.stdout)
    if done.returncode != 0 or not found:
        sys.exit(done.stdout)
    with open(out / "metrics.csv", newline="") as file:
        steps = [float(row["step_ms"]) for row in csv.DictReader(file)][1:]
    return float(found[1]), float(found[2]), float(found[3]), statistics.median(steps)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/release/p3d")
    parser.add_argument("--launcher", default="mpiexec", help="what starts ranks, without -n (mpiexec)")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--micro", type=int, default=4, help="sequences in a microbatch: more make every action "
                        "longer, and what other programs do matter less")
    parser.add_argument("--keep", help="keep the runs' folders (traces, pictures) here")
    options = parser.parse_args()
    temporary = tempfile.TemporaryDirectory()
    folder = pathlib.Path(options.keep or temporary.name)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "input.toml").write_text(MODEL)

    results = {schedule: [] for schedule in SCHEDULES}
    for turn in range(options.turns):
        for schedule in SCHEDULES:
            results[schedule].append(run(options, folder, schedule, turn))
        print(f"turn {turn + 1}: " + ", ".join(f"{s} {r[-1][3]:.0f} ms" for s, r in results.items()), flush=True)

    good = True
    print(f"\n{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {options.microbatches} microbatches on 4 pipeline "
          f"ranks; medians of {options.turns} runs")
    print(f"{'':<18}{'------------ bubble ------------':>36}   {'- measured / simulated - 1 -':>30}{'':>12}{'step':>8}")
    print(f"{'schedule':<18}{'mean costs':>12}{'own times':>12}{'measured':>12}"
          f"{'mean costs':>13}{'(of all runs)':>18}{'own times':>12}{'ms':>8}{'/ 1f1b':>8}")
    for schedule, runs in results.items():
        off = {i: sorted(100 * (r[1] / r[i] - 1) for r in runs) for i in (0, 2)}
        ratio = statistics.median(mine[3] / other[3] for mine, other in zip(runs, results["1f1b"]))
        predicted, measured, own, step = (statistics.median(r[i] for r in runs) for i in range(4))
        middle = statistics.median(off[0])
        print(f"{schedule:<18}{predicted:>10.1f} %{own:>10.1f} %{measured:>10.1f} %{middle:>+11.1f} %"
              f"{f'{off[0][0]:+.1f} to {off[0][-1]:+.1f} %':>18}"
              f"{statistics.median(off[2]):>+10.1f} %{step:>8.0f}{ratio:>8.3f}")
        good = good and abs(middle) <= 10 and (schedule not in ("zb_v", "interleaved_1f1b") or ratio < 1)
    print("within 10 % of the prediction, and zb_v and interleaved_1f1b quicker than 1f1b" if good else "NOT as wanted")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
