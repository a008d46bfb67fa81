#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A random differential test: p3d with a random combination of features against one rank in fp64.

    combinations.py --program build/release/p3d --runs 2000 --jobs 2      before a release
    combinations.py --program build/release/p3d --first 17 --runs 1       one case again, with all its commands
    combinations.py --program build/release/p3d --case 'parallel.dp=2 memory.shard=optimizer @eval=1'

Case N is the same everywhere. A failure is shrunk to the fewest keys and printed as a command to paste. Exit code 1:
something failed.

    generate.py   a case from its number: a theme, a mesh, a model, 3 to 12 features    cases.py     what a case is
    models.py, layouts.py, states.py, inputs.py   the features, which draw keys        draft.py     what they share
    meaning.py    which keys change numbers, rounding, or not a bit; tolerances        draw.py      random choices
    judge.py      runs a case, its reference, its twin and its acts                    compare.py   two runs
    starts.py     starts p3d, reads what a run leaves                                  fixtures.py  files of cases
    spread.py     tells rounding of 16 bits from a defect   shrink.py    the fewest items that still fail
    known.py      names of old defects                      keys_test.py  all keys are drawn; the parts above work"""
import argparse
import collections
import multiprocessing
import pathlib
import shlex
import shutil
import sys
import tempfile
import time
import traceback

import fixtures
import known
from cases import Case, shown
from generate import generate
from judge import Judge
from shrink import shrink
from starts import Starter

HARD = ("wrong", "bits", "repeat", "state", "choices", "resume", "eval", "generate", "export")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=pathlib.Path, default=pathlib.Path("build/release/p3d"))
    parser.add_argument("--mpiexec", default="mpiexec -n", help="launcher and its option for the number of ranks")
    parser.add_argument("--first", type=int, default=1, help="number of the first case")
    parser.add_argument("--runs", type=int, default=40, help="cases")
    parser.add_argument("--seeds", help="numbers of the cases in place of --first and --runs, such as 1-10,17")
    parser.add_argument("--many", action="store_true", help="other cases, of 12 to 25 features each")
    parser.add_argument("--jobs", type=int, default=1, help="cases at the same time")
    parser.add_argument("--case", help="the items of one case in place of random ones")
    parser.add_argument("--folder", type=pathlib.Path, help="where files of the cases are (default: a temporary one)")
    parser.add_argument("--timeout", type=float, default=20.0, help="comm.timeout_s of each run")
    parser.add_argument("--minutes", type=float, default=1e9, help="no further cases after so long")
    parser.add_argument("--no-shrink", action="store_true", help="print failures as they are")
    parser.add_argument("--known", action="store_true", help="name the defects of known.py that a failure shows")
    parser.add_argument("--verbose", action="store_true", help="a line for each case")
    parser.add_argument("--print", action="store_true", help="print the cases without running them")
    return parser.parse_args()


def numbers(options):
    if not options.seeds:
        return range(options.first, options.first + options.runs)
    parts = [part.partition("-") for part in options.seeds.split(",")]
    return [seed for first, _, last in parts for seed in range(int(first), int(last or first) + 1)]


class Outcome:
    """What one case came to; plain values, as it crosses processes."""

    def __init__(self, seed, items, status, left_out):
        self.seed, self.items, self.status, self.left_out = seed, items, status, left_out
        self.kind, self.text, self.lines, self.shrunk = "", "", [], None
        self.seconds, self.starts, self.retried = 0.0, 0, []


worker = None


def start_worker(options, folder):
    global worker
    starter = Starter(options.program.resolve(), shlex.split(options.mpiexec), folder, options.timeout)
    name = f"work{multiprocessing.current_process().name.rpartition('-')[2]}"
    shutil.rmtree(folder / name, ignore_errors=True)  # of a start that was killed
    worker = options, starter, Judge(starter, name)


def examine(case):
    """An error of these scripts is a failure of the case, not the end of all others."""
    begin, starter = time.monotonic(), worker[1]
    started, starter.retried = starter.starts, []
    try:
        outcome = judged(case)
    except Exception:  # noqa: BLE001
        outcome = Outcome(case.seed, case.items, "failed", [])
        outcome.kind, outcome.text = "harness", traceback.format_exc()
    outcome.seconds, outcome.starts = time.monotonic() - begin, starter.starts - started
    outcome.retried = starter.retried
    return outcome


def judged(case):
    options, starter, judge = worker
    verdict = judge.judge(case)
    outcome = Outcome(case.seed, case.items, verdict.status, verdict.left_out)
    if verdict.failure is not None:
        failure = verdict.failure
        shrunk = case
        if not options.no_shrink:
            print(f"case {case.seed} fails: {failure}\n  {case.text()}\n  it is being shrunk", flush=True)
            budget = starter.timeout_s
            if failure.kind == "hang":
                starter.timeout_s, starter.patient = min(budget, 6.0), False

            shrunk = shrink(case, lambda smaller: failure.same(judge.judge(smaller, failure.stage).failure))
            again = judge.judge(shrunk, failure.stage).failure
            starter.timeout_s, starter.patient = budget, True
            failure = again if again is not None else failure
        outcome.kind, outcome.text, outcome.lines, outcome.shrunk = (failure.kind, failure.text, failure.lines,
                                                                     shrunk.items)
    return outcome


def describe(outcome, folder, options):
    case = Case(outcome.shrunk or outcome.items)
    names = f" ({known.name_of(outcome.kind, case, outcome.text)})" if options.known else ""
    lines = [f"case {outcome.seed} failed{names}: {outcome.kind}: {outcome.text}",
             f"  items ({len(case.items)}): {case.text()}",
             f"  again: {shown([sys.argv[0], '--program', options.program, '--case', case.text()])}",
             f"  commands, in {folder}:"]
    return "\n".join(lines + [f"    {line}" for line in outcome.lines])


def summary(outcomes, seconds):
    status = collections.Counter(o.status for o in outcomes)
    different = {frozenset(o.items.items()) for o in outcomes if o.status == "accepted"}
    kinds = collections.Counter(o.kind for o in outcomes if o.kind)
    drawn = {item for o in outcomes for item in o.items if not item.startswith("@")}
    lines = [f"{len(outcomes)} cases, {sum(o.starts for o in outcomes)} starts of p3d in {seconds:.0f} s: "
             f"{status['accepted']} accepted and right ({len(different)} different), "
             f"{status['refused']} refused with key and fix, {status['failed']} failed",
             f"keys drawn: {len(drawn)}",
             f"runs that were too slow once and tried again: {sum(len(o.retried) for o in outcomes)}",
             f"wrong: {sum(kinds[k] for k in HARD)}, crashes: {kinds['crash']}, hangs: {kinds['hang']}, "
             f"\"defect\" messages: {kinds['defect']}"]
    left_out = collections.Counter(text for o in outcomes for text in o.left_out)
    if left_out:
        lines.append("not compared: " + ", ".join(f"{text} {n}" for text, n in left_out.most_common()))
    if kinds:
        lines.append("failures by kind: " + ", ".join(f"{kind} {n}" for kind, n in kinds.most_common()))
    return "\n".join(lines)


def run(options, folder):
    starter = Starter(options.program.resolve(), shlex.split(options.mpiexec), folder, 60.0)
    folder.mkdir(parents=True, exist_ok=True)
    fixtures.make(starter)
    cases = [Case.parse(options.case)] if options.case else [generate(seed, options.many) for seed in numbers(options)]
    begin, outcomes = time.monotonic(), []
    first_found = {}
    with multiprocessing.Pool(options.jobs, start_worker, (options, folder)) as pool:
        for outcome in pool.imap_unordered(examine, cases):
            outcomes.append(outcome)
            if options.verbose:
                print(f"case {outcome.seed}: {outcome.status} {outcome.kind} {outcome.seconds:.1f} s", flush=True)
            for line in outcome.retried:
                print(f"case {outcome.seed}: too slow, tried again: {line}", flush=True)
            if outcome.status == "failed":
                print(describe(outcome, folder, options), flush=True)
                name = known.name_of(outcome.kind, Case(outcome.shrunk or outcome.items), outcome.text)
                first_found[name] = min(first_found.get(name, outcome.seed or 0), outcome.seed or 0)
            if time.monotonic() - begin > 60 * options.minutes:
                break
    print(summary(outcomes, time.monotonic() - begin))
    if options.known:
        for name, seed in sorted(first_found.items()):
            print(f"{name}: first in case {seed}")
    return 1 if any(o.status == "failed" for o in outcomes) else 0


def main():
    options = parse_arguments()
    if options.print:
        for seed in numbers(options):
            print(f"{seed}: {generate(seed, options.many).text()}")
        return 0
    if options.folder:
        return run(options, options.folder.resolve())
    with tempfile.TemporaryDirectory(prefix="p3d-combinations-") as folder:
        return run(options, pathlib.Path(folder))


if __name__ == "__main__":
    sys.exit(main())
