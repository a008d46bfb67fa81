# SPDX-License-Identifier: Apache-2.0
"""Two hosts and their files: a checkpoint in a folder that both see, and data that only one of them has."""
import os

import nodes
from layouts_test import layout

STEPS = ("optimizer.lr_schedule=constant", "checkpoint.every=2", "run.eval_batches=0")


class Files(nodes.NodesTest):
    def test_resume(self):
        """In the same layout with the same bits; in another one, of a file that ranks of both hosts wrote together."""
        cluster = self.cluster()
        before, after = layout(2, 2, 1, "dp-tp-pp"), layout(1, 2, 2, "pp-tp-dp")
        whole = self.run_to_end(cluster, *STEPS, *before, "run.steps=4")
        wanted = whole.numbers()
        self.run_to_end(cluster, *STEPS, *before, "run.steps=2", name="parts")
        again = self.run_to_end(cluster, *STEPS, *before, "run.steps=4", name="parts")
        self.assertRegex(again.out, "Resumed from .*parts-00000002.h5: step 2")
        self.assert_equal_numbers(again, wanted[-len(again.rows()):])
        self.assertEqual(int(again.rows()[-1]["step"]), 4)
        self.run_to_end(cluster, *STEPS, *before, "run.steps=2", "checkpoint.async=false", name="turned")
        turned = self.run_to_end(cluster, *STEPS, *after, "run.steps=4", name="turned")
        self.assertRegex(turned.out, "Resumed from .*turned-00000002.h5: step 2")
        self.assert_equal_numbers(turned, wanted[-len(turned.rows()):], 1e-9)
        for run in (whole, turned):
            checkpoints = sorted((run.results / "checkpoints").iterdir())
            self.assertEqual(len(checkpoints), 2, checkpoints)
            for path in checkpoints:
                nodes.hosts.run(os.environ["P3D_PROGRAM"], "checkpoint", "verify", path)

    def test_a_checkpoint_folder_that_hosts_do_not_share(self):
        """Refused at the start, with nothing left behind; a folder that they share is none of its errors."""
        seen, other = self.folder / "saved", self.folder / "other"
        for folder in (seen, other):
            folder.mkdir()
        cluster = self.cluster({}, {"folders": {seen: other}})
        run = self.run_to_end(cluster, *layout(4, 1, 1), "checkpoint.dir=saved", code=2)
        self.assertIn("1 of 4 ranks could not see the checkpoints of rank 0", run.err, run.text)
        self.assertRegex(run.err, r"expected: +a folder of checkpoints that all hosts share", run.text)
        self.assertRegex(run.err, r"found: +No such file or directory on host \S+, where rank 0 .* has written \.\S+")
        self.assertNotIn("Data: ", run.out)
        self.assertLess(run.seconds, 30, run.text)  # comm.timeout_s is 60
        self.assertEqual([p.name for p in seen.iterdir()] + [p.name for p in other.iterdir()], [])

    def check_data_of_one_host(self, text, words, texts=1):
        seen, other = self.folder / "data", self.folder / "other"
        for folder in (seen, other):
            folder.mkdir()
        (self.folder / "text.txt").rename(seen / "text.txt")
        if text is not None:
            (other / "text.txt").write_text(text)
        cluster = self.cluster({}, {"folders": {seen: other}})
        run = self.run_to_end(cluster, *layout(4, 1, 1), "data.path=data/text.txt", code=2)
        self.assertIn("2 of 4 ranks could not ", run.err, run.text)
        self.assertRegex(run.err, words, run.text)
        self.assertEqual(run.err.count("expected:"), texts, run.text)
        self.assertLess(run.seconds, 30, run.text)  # comm.timeout_s is 60

    def test_data_empty_on_one_host(self):
        self.check_data_of_one_host("", r"found: +1 empty file.*data/text.txt")

    def test_data_missing_on_one_host(self):
        self.check_data_of_one_host(None, r"found: .*data/text.txt: no such file")

    def test_data_differ_on_one_host(self):
        self.check_data_of_one_host(nodes.TEXT.replace("1", "2"), "found: +different data on some ranks", texts=2)


if __name__ == "__main__":
    nodes.main()
