# SPDX-License-Identifier: Apache-2.0
"""Two hosts with two ranks each: the numbers of one rank in all layouts, whichever axis goes over the network."""

import nodes

LAYOUTS = ((4, 1, 1, "tp-pp-dp"), (1, 4, 1, "tp-pp-dp"), (1, 1, 4, "tp-pp-dp"),
           (2, 2, 1, "tp-dp-pp"), (2, 2, 1, "dp-tp-pp"), (2, 1, 2, "dp-pp-tp"), (1, 2, 2, "pp-tp-dp"))


def layout(dp, tp, pp, order="tp-pp-dp"):
    return f"parallel.dp={dp}", f"parallel.tp={tp}", f"parallel.pp={pp}", f"parallel.order={order}"


class Layouts(nodes.NodesTest):
    def test_losses_of_all_layouts(self):
        one = self.run_to_end(None)
        wanted = one.numbers()
        self.assertEqual(len(wanted), 3)
        cluster = self.cluster()
        for case in LAYOUTS:
            with self.subTest(case):
                run = self.run_to_end(cluster, *layout(*case))
                self.assertEqual(run.err, "", run.text)
                self.assert_equal_numbers(run, wanted, 1e-9)
                if case == (2, 2, 1, "tp-dp-pp"):  # one inside a host, one between ranks that share nothing
                    self.assertIn("All-reduce (comm.allreduce): tp shared; dp tree, ring from ", run.out)

    def test_all_reduce_between_hosts(self):
        cluster = self.cluster()
        wanted = self.run_to_end(None).numbers()
        # Where neighbours share a host, where they do not, and where the hosts have different numbers of ranks.
        for placement in ("h0:2,h1:2", "h0:1,h1:1", "h0:3,h1:1"):
            with self.subTest(placement):
                first = self.run_to_end(cluster, *layout(4, 1, 1), placement=placement)
                self.assertRegex(first.out, r"All-reduce \(comm.allreduce\): dp hierarchical\n", first.text)
                self.assert_equal_numbers(first, wanted, 1e-9)
                again = self.run_to_end(cluster, *layout(4, 1, 1), placement=placement)
                self.assert_equal_numbers(again, first.numbers())

    def test_overlap_over_tp_is_tried_between_hosts(self):
        cluster = self.cluster()
        wanted = self.run_to_end(None).numbers()
        # All groups of tp between hosts; one of two; none.
        for placement, tried in (("h0:1,h1:1,h0:1,h1:1", True), ("h0:3,h1:1", True), ("h0:2,h1:2", False)):
            with self.subTest(placement):
                run = self.run_to_end(cluster, *layout(2, 2, 1), "run.deterministic=false", placement=placement)
                self.assertEqual("Overlap over tp (comm.overlap_tp): up to " in run.out, tried, run.text)
                self.assert_equal_numbers(run, wanted, 1e-9)


if __name__ == "__main__":
    nodes.main()
