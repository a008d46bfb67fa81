#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A mutation run: breaks one chosen line of p3d after the other (mutants.py), builds, and runs the nearest tests, which
must fail. Works on a copy of the tree in a folder of its own, never on the checkout.

usage: python3 tests/mutation/run.py [--room ROOM]... [--only N,N...] [--work FOLDER] [--jobs N] [--check]

With --work the copy, its build and the results stay in FOLDER: a second run there goes on with what is not yet known.
--check only looks whether every text of the table stands exactly once in its file. Exit code 1 when fewer than 57 of
60 (95 in 100) are killed, when a text is not found, or when the tests fail without a mutant.
"""
import argparse
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

import mutants

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONFIGURE = ["-G", "Ninja", "-DCMAKE_BUILD_TYPE=None", "-DCMAKE_CXX_FLAGS=-O1 -g0", "-DP3D_CHECK_HEADERS=OFF",
             "-DBUILD_SHARED_LIBS=OFF"]
LEAST = 0.95


def table():
    """(number, room, file, text, mutated, tests), numbered through all rooms."""
    rows = []
    for room, entries in mutants.ROOMS.items():
        for file, text, mutated, tests in entries:
            rows.append((len(rows) + 1, room, f"src/{room}/{file}", text, mutated, tests.split()))
    return rows


def misplaced(rows, root):
    found = []
    for number, _, file, text, mutated, _ in rows:
        path = root / file
        count = path.read_text().count(text) if path.is_file() else 0
        if count != 1 or text == mutated:
            found.append(f"mutant {number}: {file}: the text stands there {count} times, not once: {text}")
    return found


def copy_tree(to):
    """The checkout as it is, tracked and new files, without what git ignores."""
    names = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
                           stdout=subprocess.PIPE, check=True).stdout
    for name in (n.decode() for n in names.split(b"\0") if n):
        source, copy = ROOT / name, to / name
        if not source.is_file() or (copy.is_file() and copy.read_bytes() == source.read_bytes()):
            continue  # a file that is the same keeps its date, and what was built of it
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, copy)


class Rig:
    """The copy and its build."""

    def __init__(self, work, jobs):
        self.tree, self.build, self.jobs = work / "tree", work / "build", jobs

    def configure(self):
        copy_tree(self.tree)
        done = self.run(["cmake", "-S", self.tree, "-B", self.build, *CONFIGURE])
        if done.returncode:
            sys.exit(done.stdout)

    def run(self, command):
        return subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace")

    def make(self, tests):
        # Tests of the whole program are scripts.
        scripts = [t for t in tests if t.startswith(("app_", "restart_"))]
        programs = {"p3d", "plan_predict"} if scripts else set()
        targets = sorted({re.sub(r"_(np|t)\d+$", "", t) for t in tests if t not in scripts} | programs)
        return self.run(["ninja", "-C", self.build, f"-j{self.jobs}", *targets])

    def test(self, tests):
        """True when all pass."""
        done = self.run(["ctest", "--test-dir", self.build, "--stop-on-failure", "--timeout", "150", "-R",
                         f"^({'|'.join(tests)})$"])
        ran = len(re.findall(r"^ *\d+/\d+ Test +#", done.stdout, re.MULTILINE))
        if ran == 0:
            sys.exit(f"no test ran of {tests}:\n{done.stdout}")
        return done.returncode == 0

    def try_one(self, file, text, mutated, tests):
        """'killed', 'SURVIVED' or 'does not compile'; the file is as before afterwards."""
        path = self.tree / file
        before = path.read_text()
        path.write_text(before.replace(text, mutated))
        try:
            if self.make(tests).returncode:
                return "does not compile"
            return "SURVIVED" if self.test(tests) else "killed"
        finally:
            path.write_text(before)


def chosen(rows, options):
    if options.only:
        numbers = {int(n) for n in options.only.split(",")}
        rows = [r for r in rows if r[0] in numbers]
    return [r for r in rows if not options.room or r[1] in options.room]


def mutate(rows, options, work):
    results_file = work / "results.json"
    results = json.loads(results_file.read_text()) if results_file.is_file() else {}
    rig = Rig(work, options.jobs)
    rig.configure()
    for room in dict.fromkeys(r[1] for r in rows):
        mine = [r for r in rows if r[1] == room and f"{r[2]}\n{r[3]}\n{r[4]}" not in results]
        tests = sorted({t for r in mine for t in r[5]})
        if not mine:
            continue
        built = rig.make(tests)
        if built.returncode or not rig.test(tests):
            sys.exit(f"room {room}: the tests fail without a mutant\n{built.stdout[-4000:]}")
        for number, _, file, text, mutated, tests in mine:
            start = time.monotonic()
            verdict = rig.try_one(file, text, mutated, tests)
            results[f"{file}\n{text}\n{mutated}"] = verdict
            results_file.write_text(json.dumps(results, indent=1))
            print(f"{number:3} {verdict:16} {time.monotonic() - start:4.0f} s  {file}: {text[:60]}", flush=True)
        rig.make(tests)  # the files are as before: so is the build
    return {r[0]: results[f"{r[2]}\n{r[3]}\n{r[4]}"] for r in rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--room", action="append", choices=list(mutants.ROOMS))
    parser.add_argument("--only", metavar="N,N")
    parser.add_argument("--work", type=pathlib.Path)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    rows = chosen(table(), options)
    wrong = misplaced(rows, ROOT)
    if wrong:
        sys.exit("\n".join(wrong))
    if options.check:
        print(f"{len(rows)} mutants, each in its place")
        return 0
    with tempfile.TemporaryDirectory(prefix="p3d-mutation-") as scratch:
        verdicts = mutate(rows, options, options.work.resolve() if options.work else pathlib.Path(scratch))
    killed = sum(v == "killed" for v in verdicts.values())
    for number, room, file, text, mutated, _ in rows:
        if verdicts[number] != "killed":
            why = mutants.EQUIVALENT.get((room, pathlib.Path(file).name, mutated), "no test notices")
            print(f"{verdicts[number]}: {file}: {text} -> {mutated or '(nothing)'} ({why})")
    print(f"{killed} of {len(rows)} mutants killed")
    return 0 if killed >= LEAST * len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
