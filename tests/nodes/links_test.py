# SPDX-License-Identifier: Apache-2.0
"""A cut link between two hosts: the run says who does not answer, and leaves nobody behind."""
import time

import nodes
from layouts_test import layout

ENDLESS = ("run.steps=1000000", "run.log_every=1000000", "run.eval_batches=0", "comm.timeout_s=4")


class Links(nodes.NodesTest):
    def test_cut_with_dp_tp_and_pp_across(self):
        cluster = self.cluster()
        runs = [self.start(cluster, *layout(*case), *ENDLESS, name=name)
                for name, case in (("dp", (4, 1, 1)), ("tp", (1, 4, 1)), ("pp", (1, 1, 4)))]
        for run in runs:
            run.wait_until(lambda: len(run.rows()) >= 2, "the first steps")
        cluster.hosts[1].link("down")
        begin = time.monotonic()
        for run in runs:
            run.finish()
            print(f"\n  measured: link cut with {run.name} across: exit code {run.code} after "
                  f"{time.monotonic() - begin:.1f} s", flush=True)
        self.assert_nobody_left(cluster)
        print(f"\n  measured: nobody left after {time.monotonic() - begin:.1f} s", flush=True)
        for run in runs:
            with self.subTest(run.name):
                self.assertEqual(run.code, 3, run.text)
                self.assertIn("a wait outlasted comm.timeout_s = 4 s", run.err)
                self.assertRegex(run.err, r"rank [23]: no answer", run.text)
                self.assertRegex(run.err, r"rank [01]: step \d+, .*waited ", run.text)


if __name__ == "__main__":
    nodes.main()
