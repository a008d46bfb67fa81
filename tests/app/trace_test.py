# SPDX-License-Identifier: Apache-2.0
"""run.trace and [timers]: what they write, and that their times can be true."""
import csv
import json
import re
import subprocess
import unittest
import xml.etree.ElementTree

import program
from program import AppTest

MICROBATCHES, STEPS = 4, 3
CLOCKS = 5e3  # microseconds by which the clocks of ranks may still differ when ranks share cores


class Timers(AppTest):
    def timed(self, *arguments):
        run = self.run_to_end(4, "parallel.dp=2", "parallel.tp=1", "parallel.pp=2", "run.steps=4", "run.eval_every=2",
                              "run.eval_batches=20", *arguments)
        self.assertEqual((run.code, run.err), (0, ""), run.out)
        with open(self.results / "timers.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        times = {}
        for row in rows:
            least, mean, most = (float(row[name]) for name in ("min_ms", "mean_ms", "max_ms"))
            self.assertTrue(0 <= least <= mean * 1.001 <= most * 1.002, row)
            times[int(row["step"]), row["timer"]] = (int(row["calls"]), mean)
        self.assertEqual(len(times), len(rows))  # log_every = 2: two rows of each
        self.assertEqual({step for step, _ in times}, {2, 4})
        return run, times

    def test_level_one_has_phases_that_make_the_step(self):
        run, times = self.timed("timers.level=1", "timers.barrier=true")
        self.assertEqual(run.out.count("timers, ms a step"), 2, run.out)
        for step in (2, 4):
            self.assertEqual(times[step, "step"][0], 2)
            self.assertEqual(times[step, "evaluation"][0], 1)
            phases = [mean for (at, name), (_, mean) in times.items()
                      if at == step and name not in ("step", "evaluation", "checkpoint")]
            self.assertEqual(len(phases), 7)
            self.assertAlmostEqual(sum(phases) / times[step, "step"][1], 1.0, delta=0.02)

    def test_level_two_counts_every_action(self):
        _, times = self.timed("timers.level=2")
        for step in (2, 4):
            for action, calls in (("F", 8), ("B", 8), ("SEND_F", 8), ("RECV_B", 8), ("REDUCE", 2), ("STEP", 2)):
                self.assertEqual(times[step, "action " + action][0], calls, times)
            actions = sum(mean for (at, name), (_, mean) in times.items() if at == step and name.startswith("action "))
            self.assertLess(actions, times[step, "step"][1])

    def test_a_run_that_goes_on_keeps_its_rows(self):
        self.run_to_end(1, "run.steps=4", "timers.level=1", "checkpoint.every=2")
        before = (self.results / "timers.csv").read_text()
        run = self.run_to_end(1, "run.steps=6", "timers.level=1", "checkpoint.every=2")
        self.assertEqual(run.code, 0, run.out + run.err)
        after = (self.results / "timers.csv").read_text()
        self.assertTrue(after.startswith(before) and "\n6,step,2," in after, after)

    def test_level_zero_writes_nothing(self):
        run = self.run_to_end(1, "run.steps=2")
        self.assertEqual(run.code, 0, run.err)
        self.assertFalse((self.results / "timers.csv").exists())


class Trace(AppTest):
    def traced(self, ranks, *arguments):
        run = self.run_to_end(ranks, "run.trace=true", f"run.steps={STEPS}", "run.eval_every=1", *arguments)
        self.assertEqual((run.code, run.err), (0, ""), run.out)
        self.assert_once("Pipeline bubble of 4 microbatches on ", run.out)
        self.assertRegex(run.out, r"over 2 steps: predicted -?\d+\.\d %.*measured -?\d+\.\d %, "
                         r"difference [+-]\d+\.\d points")
        with open(self.results / "trace.json") as file:
            events = json.load(file)["traceEvents"]
        self.names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
        self.svg = (self.results / "trace.svg").read_text()
        xml.etree.ElementTree.fromstring(self.svg)
        return run, [e for e in events if e["ph"] == "X"]

    def check(self, events, pipelines, stages, names):
        by_action = {}
        for process in range(pipelines):
            mine = [e for e in events if e["pid"] == process]
            for e in mine:
                if e["cat"] not in ("wait", "other"):
                    self.assertRegex(e["name"], r"^\d+[A-Z]\d+$")
                    by_action[process, e["args"]["step"], e["name"]] = (e["ts"], e["ts"] + e["dur"])
            for rank in {e["tid"] for e in mine}:  # nothing happens at the same time
                last = 0.0
                for e in sorted((e for e in mine if e["tid"] == rank), key=lambda e: e["ts"]):
                    self.assertGreaterEqual(e["ts"], last - 0.01, e)
                    last = e["ts"] + e["dur"]
            # Every action is there, evaluation is not, and data arrive after they were made.
            for step in range(1, STEPS + 1):
                for m in range(MICROBATCHES):
                    for stage in range(stages):
                        for name in names:
                            self.assertIn((process, step, f"{stage}{name}{m}"), by_action)
                        if stage > 0:
                            made = by_action[process, step, f"{stage - 1}F{m}"][1]
                            self.assertGreater(by_action[process, step, f"{stage}F{m}"][0], made - CLOCKS)
                            made = by_action[process, step, f"{stage}{names[1]}{m}"][1]
                            self.assertGreater(by_action[process, step, f"{stage - 1}{names[1]}{m}"][0], made - CLOCKS)
        self.assertEqual(len(by_action), pipelines * STEPS * MICROBATCHES * stages * len(names))

    def test_every_action_of_every_rank(self):
        run, events = self.traced(4, "parallel.dp=1", "parallel.tp=2", "parallel.pp=2")
        self.check(events, 2, 2, "FB")
        # Order tp-pp-dp: neighbours in the world are tp neighbours, each in a pipeline of its own.
        self.assertEqual([self.names[pipeline, rank] for pipeline in (0, 1) for rank in (0, 1)],
                         ["rank 0 (pp 0)", "rank 2 (pp 1)", "rank 1 (pp 0)", "rank 3 (pp 1)"])
        self.assertTrue(any(e["name"].startswith("wait 1RECV_F") for e in events))
        for words in (">1f1b, 2 ranks, 4 microbatches: measured, step ", ">the same step simulated",
                      ">wait (lost time)<"):
            self.assertIn(words, self.svg)
        costs = self.results / "costs.csv"
        self.assertEqual(costs.read_text().count("\n"), 7, costs.read_text())
        simulated = subprocess.run([program.PROGRAM, "schedule", "simulate", "input.toml", "--ranks", "4",
                                    "parallel.dp=1", "parallel.tp=2", "parallel.pp=2", "--costs", costs],
                                   cwd=self.folder, stdout=subprocess.PIPE, text=True, check=True).stdout
        # The summary's prediction is what the command makes of the table.
        predicted = re.search(r"predicted (\d+\.\d) %", run.out)[1]
        self.assertIn(f"bubble {predicted} %", simulated)

    def test_divided_backward_with_two_stages_on_a_rank(self):
        _, events = self.traced(2, "parallel.dp=1", "parallel.pp=2", "pipeline.schedule=zb_v")
        self.check(events, 1, 4, "FIW")

    def test_a_trace_that_cannot_be_written_costs_a_warning(self):
        (self.results / "trace.json").mkdir(parents=True)
        run = self.run_to_end(2, "run.trace=true", "run.steps=3", "sample.tokens=3")
        self.assertEqual(run.code, 0, run.out + run.err)
        self.assertIn("trace.json", run.err)
        self.assertIn("costs.csv", run.out)
        self.assertIn("Finished 3 steps", run.out)

    def test_nothing_without_it(self):
        run = self.run_to_end(2, "parallel.pp=2", "run.steps=1")
        self.assertEqual(run.code, 0)
        self.assertNotIn("Pipeline bubble", run.out)
        self.assertEqual(sorted(p.name for p in self.results.iterdir()),
                         ["checkpoints", "metrics.csv", "resolved.toml", "summary.json"])


if __name__ == "__main__":
    unittest.main()
