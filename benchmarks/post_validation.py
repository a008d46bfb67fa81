#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a pipeline gains where its ranks do not wait for the global norm of the gradients at the end of a step
(optimizer.post_validation; Qi et al., arXiv 2401.10241, section 4), by simulation: a rank begins its next step as soon
as it is done, waits for the norm before its first backward there, and no step is ever taken back.

usage: post_validation.py P3D [--costs 1,1,1] [--sizes 2:8,4:16,8:32,8:64]
                          [--schedules 1f1b,zb_h1,zb_h2,zb_v,v_half]

P3D is the program; it writes each schedule as CSV (p3d schedule simulate --unit --csv). A size is pipeline ranks and
microbatches; costs are those of a rank's forward, input and weight gradient. Messages take no time. Printed are the
times of a step with and without the wait, and the first over the second.
"""
import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

INPUT = pathlib.Path(__file__).resolve().parent.parent / "inputs/gpt2-tiny.toml"


def program_of(p3d, schedule, ranks, microbatches):
    """For each rank its actions in order: (stage, kind, microbatch) with kinds F, I, W, or B for I and W at once."""
    with tempfile.TemporaryDirectory(prefix="p3d-") as folder:
        path = pathlib.Path(folder) / "program.csv"
        done = subprocess.run([p3d, "schedule", "simulate", INPUT, f"model.layers={4 * ranks}", f"parallel.pp={ranks}",
                               "parallel.dp=1", "parallel.tp=1", f"pipeline.schedule={schedule}",
                               f"batch.global={microbatches}", "batch.micro=1", "--ranks", str(ranks), "--unit",
                               "--csv", path], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(done.stdout + done.stderr)
        found = [[re.fullmatch(r"(\d+)([FIBW])(\d+)", word) for word in line.split(",")]
                 for line in path.read_text().split()]
    return [[(int(a[1]), a[2], int(a[3])) for a in row if a] for row in found]


def openings(program):
    """By rank the forwards before its first backward whose inputs are from such forwards (schedule/opening.hpp)."""
    ends = [next((i for i, a in enumerate(row) if a[1] != "F"), len(row)) for row in program]
    while True:
        inside = {(stage, m) for row, end in zip(program, ends) for stage, _, m in row[:end]}
        new = [next((i for i, (stage, _, m) in enumerate(row[:end]) if stage > 0 and (stage - 1, m) not in inside), end)
               for row, end in zip(program, ends)]
        if new == ends:
            return ends
        ends = new


def end_of_steps(program, steps, costs):
    """When the last rank ends each step. Every action begins as soon as its rank and what it needs are ready; what
    follows a rank's opening, when all ranks have ended the step before."""
    stages = 1 + max(stage for row in program for stage, _, _ in row)
    part = stages / len(program)  # a rank's layers are in so many stages
    cost = {"F": costs[0] / part, "I": costs[1] / part, "W": costs[2] / part, "B": (costs[1] + costs[2]) / part}
    done, clock, ends, opening = {}, [0.0] * len(program), [0.0], openings(program)
    for step in range(steps):
        place = [0] * len(program)
        while any(place[rank] < len(row) for rank, row in enumerate(program)):
            before = list(place)
            for rank, row in enumerate(program):
                while place[rank] < len(row):
                    if place[rank] == opening[rank]:
                        clock[rank] = max(clock[rank], ends[-1])
                    stage, kind, microbatch = row[place[rank]]
                    need = {"F": [("F", stage - 1)] if stage > 0 else [], "W": [("I", stage)]}.get(
                        kind, [("F", stage)] + ([("I", stage + 1)] if stage + 1 < stages else []))
                    need = [(step, k, s, microbatch) for k, s in need]
                    if any(n not in done for n in need):
                        break
                    clock[rank] = max([clock[rank], *(done[n] for n in need)]) + cost[kind]
                    done[step, "I" if kind == "B" else kind, stage, microbatch] = clock[rank]
                    place[rank] += 1
            assert before != place, "the program does not end"
        ends.append(max(clock))
    return ends[1:]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--costs", default="1,1,1")
    parser.add_argument("--sizes", default="2:8,4:16,8:32,8:64")
    parser.add_argument("--schedules", default="1f1b,zb_h1,zb_h2,zb_v,v_half")
    options = parser.parse_args()
    costs = [float(c) for c in options.costs.split(",")]
    print("schedule,ranks,microbatches,waiting,not_waiting,gain")
    for schedule in options.schedules.split(","):
        for size in options.sizes.split(","):
            ranks, microbatches = map(int, size.split(":"))
            program = program_of(options.program, schedule, ranks, microbatches)
            waiting = end_of_steps(program, 1, costs)[0]
            *_, before, last = end_of_steps(program, 6, costs)
            print(schedule, ranks, microbatches, f"{waiting:.2f}", f"{last - before:.2f}",
                  f"{waiting / (last - before):.4f}", sep=",")


if __name__ == "__main__":
    main()
