# SPDX-License-Identifier: Apache-2.0
"""A host whose clocks are 40 s ahead of the other's."""
import json
import os
import re
import sys

import nodes
from layouts_test import layout

AHEAD = 40
CLOCKS = 0.2e6  # microseconds by which times of two hosts may differ where ranks share cores; 40 s would be 40e6


class Clocks(nodes.NodesTest):
    def check(self, placement):
        """The host h1 is ahead."""
        cluster = self.cluster({}, {"clock_s": AHEAD})
        environment = {"P3D_NODES_CLOCK": str(AHEAD), "P3D_NODES_CLOCK_HOST": "h1"}
        if os.environ["P3D_CLOCK_SHIM"]:  # not with sanitizers, which want to be loaded first
            environment["LD_PRELOAD"] = os.environ["P3D_CLOCK_SHIM"]
        show = "import time; print(time.clock_gettime(time.CLOCK_MONOTONIC), time.time())"
        there = ["env", *(f"{k}={v}" for k, v in environment.items()), sys.executable, "-c", show]
        clocks = zip(*([float(t) for t in host.run(*there).split()] for host in cluster.hosts))
        for before, ahead in list(clocks)[:2 if "LD_PRELOAD" in environment else 1]:
            self.assertTrue(AHEAD <= ahead - before < AHEAD + 20, (before, ahead))
        run = self.run_to_end(cluster, *layout(1, 1, 4), "run.trace=true", "run.steps=6", "checkpoint.every=1s",
                              "run.time_limit=30s", "comm.timeout_s=20", placement=placement, environment=environment)
        self.assertEqual(run.err, "", run.text)
        self.assertEqual(len(run.rows()), 6, run.text)
        # The step is not late by 40 s, and every activation arrives after it was made.
        self.assertTrue(all(float(row["step_ms"]) < 20e3 for row in run.rows()), run.text)
        with open(run.results / "trace.json") as file:
            events = [e for e in json.load(file)["traceEvents"] if e["ph"] == "X" and e["cat"] not in ("wait", "other")]
        times = {(e["args"]["step"], e["name"]): (e["ts"], e["ts"] + e["dur"]) for e in events}
        pairs = [(step, stage, m) for step, name in times for stage, m in re.findall(r"^([123])F(\d+)$", name)]
        self.assertGreaterEqual(len(pairs), 3 * 8, run.text)
        for step, stage, m in pairs:
            made, used = times[step, f"{int(stage) - 1}F{m}"][1], times[step, f"{stage}F{m}"][0]
            self.assertGreater(used, made - CLOCKS, (step, stage, m))
        self.assertLess(max(end for _, end in times.values()) - min(begin for begin, _ in times.values()), 30e6)
        return run

    def test_the_other_host_is_ahead(self):
        self.check("h0:2,h1:2")

    def test_the_first_host_is_ahead(self):
        self.check("h1:2,h0:2")


if __name__ == "__main__":
    nodes.main()
