# SPDX-License-Identifier: Apache-2.0
"""p3d mesh: the ranks of a layout against arithmetic, for one rank and for all, for people and as CSV."""
import csv
import io
import resource
import unittest

import program
from program import AppTest

AXES = ("tp", "cp", "pp", "dp", "etp", "ep", "edp")
LAYOUT = {"tp": 4, "cp": 1, "pp": 2, "dp": 4, "etp": 1, "ep": 8, "edp": 2}
# Megatron Core's names: the axes of each group; expert groups never mix with dense axes, but with pp.
NAMED = {"mp": "tp pp", "dp_cp": "dp cp", "tp_cp": "tp cp", "tp_dp": "tp dp", "tp_dp_cp": "tp dp cp", "ep_tp": "etp",
         "ep_dp": "edp", "tp_ep_mp": "etp ep", "tp_ep_pp": "etp ep pp"}
RANKS = 32
WORDS = [f"parallel.{axis}={size}" for axis, size in LAYOUT.items() if axis not in ("dp", "edp")]


def coordinates(rank):
    """From the definition: both numbers in mixed radix, fastest first; the experts' one without pp."""
    at, left = {}, rank
    for axis in ("tp", "cp", "pp", "dp"):
        at[axis], left = left % LAYOUT[axis], left // LAYOUT[axis]
    left = at["tp"] + LAYOUT["tp"] * (at["cp"] + LAYOUT["cp"] * at["dp"])
    for axis in ("etp", "ep", "edp"):
        at[axis], left = left % LAYOUT[axis], left // LAYOUT[axis]
    return at


def group(axis, rank):
    axes = NAMED.get(axis, axis).split()
    kind = ("etp", "ep", "edp", "pp") if {"etp", "ep", "edp"} & set(axes) else ("tp", "cp", "pp", "dp")
    here = coordinates(rank)
    return [r for r in range(RANKS) if all(coordinates(r)[a] == here[a] for a in kind if a not in axes)]


class Mesh(AppTest):
    def mesh(self, *arguments, code=0, ranks=0):
        run = program.Run(ranks, ("mesh", *arguments), self.folder)
        self.addCleanup(run.kill)
        run.finish()
        self.assertEqual(run.code, code, run.out + run.err)
        return run.out if code == 0 else run.err

    def test_csv_of_all_ranks(self):
        rows = list(csv.DictReader(io.StringIO(self.mesh("--ranks", str(RANKS), "--csv", *WORDS))))
        self.assertEqual(len(rows), RANKS)
        for rank, row in enumerate(rows):
            at = coordinates(rank)
            self.assertEqual(int(row["rank"]), rank)
            for axis in AXES:
                members = group(axis, rank)
                self.assertEqual(int(row[axis]), at[axis])
                self.assertEqual(members[at[axis]], rank)
                self.assertEqual((int(row[f"{axis}_first"]), int(row[f"{axis}_last"])), (members[0], members[-1]))
                numbers = sorted({group(axis, r)[0] for r in range(RANKS)})
                self.assertEqual(int(row[f"{axis}_group"]), numbers.index(members[0]))
            stages = group("pp", rank)
            self.assertEqual(row["previous_stage"], str(stages[at["pp"] - 1]) if at["pp"] > 0 else "")
            self.assertEqual(row["next_stage"], str(stages[at["pp"] + 1]) if at["pp"] + 1 < LAYOUT["pp"] else "")

    def test_csv_has_the_groups_of_megatron(self):
        rows = list(csv.DictReader(io.StringIO(self.mesh("--ranks", str(RANKS), "--csv", *WORDS))))
        for rank, row in enumerate(rows):
            for name in NAMED:
                members = group(name, rank)
                numbers = sorted({group(name, r)[0] for r in range(RANKS)})
                self.assertEqual([int(row[name + end]) for end in ("", "_group", "_first", "_last")],
                                 [members.index(rank), numbers.index(members[0]), members[0], members[-1]], name)

    def test_text_of_one_rank(self):
        text = self.mesh("--ranks", str(RANKS), "--rank", "13", *WORDS)
        lines = {line.split()[0]: line.split()[1:] for line in text.split("Groups that")[0].splitlines() if line}
        for axis in AXES:
            members = group(axis, 13)
            self.assertEqual(lines[axis][0], str(LAYOUT[axis]))
            self.assertEqual(lines[axis][2:], [str(n) for n in (members.index(13), members[0], members[-1], *members)])
        self.assertIn("Pipeline rank 1 of 2. Rank of the previous stage: 9, of the next stage: none", text)
        self.assertRegex(text, r"(?m)^  dp\+tp +16 +1 +5 +4 +31 +4 5 6 7 12 13 14 15 20 ")

    def test_text_of_all_ranks(self):
        text = self.mesh("--ranks", str(RANKS), *WORDS)
        self.assertIn("ep groups (4 of 8): [0 1 2 3 8 9 10 11] ", text)
        rows = [line.split() for line in text.split("next\n")[1].splitlines()]
        self.assertEqual([[int(n) for n in row[:8]] for row in rows],
                         [[r, *(coordinates(r)[axis] for axis in AXES)] for r in range(RANKS)])
        self.assertEqual(rows[13][8:], ["9", "-"])

    def test_many_ranks_are_quick(self):
        def computed():  # seconds of this program's children, whatever else the machine has to do
            return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime

        begin = computed()
        text = self.mesh("input.toml", "parallel.tp=8", "parallel.pp=10", "--ranks", "100000", "--rank", "54321")
        self.assertIn("Rank 54321\n", text)
        self.assertLess(computed() - begin, 5)

    def test_what_is_refused(self):
        self.assertIn("set parallel.ep to 2 or 4", self.mesh("--ranks", "4", "parallel.ep=3", code=2))
        self.assertIn("a rank from 0 to 3", self.mesh("--ranks", "4", "--rank", "4", code=2))
        self.assertIn("divisible by tp x cp x pp", self.mesh("--ranks", "4", "parallel.tp=3", code=2))


if __name__ == "__main__":
    unittest.main()
