# SPDX-License-Identifier: Apache-2.0
"""Two hosts, one of which has (almost) no memory to share: the same numbers another way, or one clear refusal."""

import nodes
from layouts_test import layout

ENOUGH_FOR_MPI = "10m"  # but not for p3d's own


class Memory(nodes.NodesTest):
    def test_another_way(self):
        wanted = self.run_to_end(None).numbers()
        run = self.run_to_end(self.cluster({}, {"shm": ENOUGH_FOR_MPI}), *layout(4, 1, 1))
        self.assertRegex(run.out, r"All-reduce \(comm.allreduce\): dp tree, ring from ")
        self.assertEqual(run.err.count("Messages carry them, which is slower"), 1, run.text)
        self.assert_equal_numbers(run, wanted, 1e-9)

    def test_what_was_asked_for_is_refused(self):
        cluster = self.cluster({}, {"shm": ENOUGH_FOR_MPI})
        run = self.run_to_end(cluster, *layout(4, 1, 1), "comm.allreduce=hierarchical", code=1)
        self.assertIn("memory that the ranks of a node share, for the all-reduce 'hierarchical'", run.err, run.text)
        self.assertRegex(run.err, "found: +(no room left in it|none)", run.text)
        self.assertIn("make /dev/shm larger", run.err, run.text)

    def test_nothing_for_mpi_either(self):
        run = self.start(self.cluster({}, {"shm": "64k"}), *layout(4, 1, 1))
        run.finish()
        self.assertNotIn(run.code, (0, 7, 135), run.text)  # 7, 135: a bus error
        self.assertRegex(run.out + run.err, "UCX +ERROR.*(memory|allocate)", run.text)


if __name__ == "__main__":
    nodes.main()
