# SPDX-License-Identifier: Apache-2.0
"""An error that one rank sees and the others do not: its cause is printed, once, all ranks leave with its exit code,
and nobody waits for a timeout. Each rank starts in a folder of its own, so that /proc/self/cwd/NAME is another file on
each."""
import os
import shutil
import unittest

import program
from program import AppTest

RANKS = 4
HERE = "/proc/self/cwd"
LIMIT = 40  # seconds: far more than a start takes, and less than comm.timeout_s in the input


@unittest.skipUnless(os.path.exists("/proc/self/cwd"), "needs /proc")
class OneRank(AppTest):
    def setUp(self):
        super().setUp()
        for rank in range(RANKS):
            folder = self.folder / f"rank-{rank}"
            folder.mkdir()
            shutil.copy(self.folder / "text.txt", folder)
        self.wrapper = self.folder / "wrapper"
        self.wrapper.write_text("#!/bin/sh\n"
                                'rank=${PMI_RANK:-${PMIX_RANK:-$OMPI_COMM_WORLD_RANK}}\n'
                                f'cd {self.folder}/rank-$rank || exit 99\n'
                                '[ -f limits ] && . ./limits\n'
                                f'exec {program.PROGRAM} "$@"\n')
        self.wrapper.chmod(0o755)

    def words(self, *arguments, ranks=RANKS):
        run = program.Run(ranks, arguments, self.folder, self.wrapper)
        self.addCleanup(run.kill)
        run.seconds = run.finish()
        return run

    def train(self, *arguments):
        return self.words(str(self.folder / "input.toml"), f"run.output_dir={self.results}", "parallel.tp=2",
                          "parallel.pp=2", "parallel.dp=1", "comm.timeout_s=100", *arguments)

    def refused(self, case, run, code=2):
        self.report(case, run, run.seconds)
        self.assertEqual(run.code, code, run.out + run.err)
        self.assertLess(run.seconds, LIMIT, run.err)
        self.assertNotIn("outlasted", run.err)
        self.assertNotIn("Finished", run.out)
        return run.err

    def test_same_files_train(self):
        run = self.train(f"data.path={HERE}/text.txt")
        self.assertEqual((run.code, run.err), (0, ""), run.out)

    def test_empty_data_on_one_rank(self):
        (self.folder / "rank-2/text.txt").write_text("")
        said = self.refused("data empty on rank 2 of 4", self.train(f"data.path={HERE}/text.txt"))
        self.assert_once("[rank 2] p3d stops: 1 of 4 ranks could not open the training data\n"
                         "[rank 2] expected: text to train on\n[rank 2] found:    1 empty file(s)", said)
        self.assertEqual(said.count("p3d stops"), 1, said)

    def test_data_missing_on_two_ranks(self):
        for rank in (1, 3):
            (self.folder / f"rank-{rank}/text.txt").unlink()
        said = self.refused("data missing on ranks 1 and 3 of 4", self.train(f"data.path={HERE}/text.txt"))
        self.assert_once("[rank 1] p3d stops: 2 of 4 ranks could not use the input that rank 0 read, "
                         "this is the first of them", said)
        self.assertIn("[rank 1]    found:    /proc/self/cwd/text.txt: no such file", said)
        self.assertEqual(said.count("p3d stops"), 1, said)

    def test_other_data_on_one_rank(self):
        (self.folder / "rank-3/text.txt").write_text("another text " * 300)
        said = self.refused("other data on rank 3 of 4", self.train(f"data.path={HERE}/text.txt"))
        self.assertIn("[rank 0] p3d stops: 3 of 4 ranks", said)
        self.assertIn("[rank 3] p3d stops: 1 of 4 ranks", said)
        self.assertEqual(said.count("expected: the same training data on every rank"), 2, said)

    def test_short_data_on_one_rank(self):
        (self.folder / "rank-1/text.txt").write_text("short")
        said = self.refused("data too short on rank 1 of 4", self.train(f"data.path={HERE}/text.txt"))
        self.assert_once("[rank 1] expected: at least 17 training tokens (model.seq_len + 1)", said)
        self.assertEqual(said.count("p3d stops"), 1, said)

    def test_schedule_file_missing_on_one_rank(self):
        written = program.Run(0, ["schedule", "show", "input.toml", "parallel.pp=2", "parallel.tp=2", "parallel.dp=1",
                                  "--ranks", "4", "--text", "mine.txt"], self.folder)
        written.finish()
        self.assertEqual(written.code, 0, written.err)
        for rank in range(RANKS):
            shutil.copy(self.folder / "mine.txt", self.folder / f"rank-{rank}")
        good = self.train("pipeline.schedule=file", f"pipeline.file={HERE}/mine.txt")
        self.assertEqual((good.code, good.err), (0, ""), good.out)
        shutil.rmtree(self.results)
        (self.folder / "rank-3/mine.txt").unlink()
        said = self.refused("schedule file missing on rank 3 of 4",
                            self.train("pipeline.schedule=file", f"pipeline.file={HERE}/mine.txt"))
        self.assertEqual(said.count("p3d stops: 1 of 4 ranks could not"), 1, said)
        self.assertRegex(said, r"\[rank 3\] .*mine.txt")

    def test_eval_of_a_text_that_one_rank_misses(self):
        trained = self.train("run.steps=2", "checkpoint.every=2")
        self.assertEqual(trained.code, 0, trained.err)
        files = list((self.results / "checkpoints").iterdir())
        self.assertEqual(len(files), 1)
        arguments = ("eval", str(files[0]), "--file", f"{HERE}/text.txt", "--progress=0")
        good = self.words(*arguments)
        self.assertEqual((good.code, good.err), (0, ""), good.out)
        (self.folder / "rank-1/text.txt").unlink()
        said = self.refused("eval: text missing on rank 1 of 4", self.words(*arguments))
        self.assertEqual(said.count("p3d stops"), 1, said)
        self.assert_once("[rank 1] p3d stops: 1 of 4 ranks could not open what is evaluated", said)
        self.assertIn("text.txt: No such file", said)
        (self.folder / "rank-1/text.txt").write_text("")
        said = self.refused("eval: text empty on rank 1 of 4", self.words(*arguments))
        self.assert_once("[rank 1] p3d stops: 1 of 4 ranks could not open what is evaluated", said)
        (self.folder / "rank-1/text.txt").write_text("short")
        said = self.refused("eval: text short on rank 1 of 4", self.words(*arguments))
        self.assertIn("[rank 1] expected: a text of at least 17", said)
        self.assertIn("1 of 4 ranks could not open what is evaluated", said)

    def test_an_exception_of_another_library_on_one_rank(self):
        # Outside of every phase that ranks agree on: the rank itself ends all.
        (self.folder / "rank-2/limits").write_text("export KOKKOS_NUM_THREADS=many\n")
        said = self.refused("Kokkos cannot start on rank 2 of 4", self.train(), code=1)
        self.assert_once("[rank 2] p3d stops: this rank cannot go on, the other ranks did not follow", said)
        self.assert_once("cannot convert KOKKOS_NUM_THREADS", said)

    def test_an_exception_of_another_library_on_all_ranks(self):
        for rank in range(RANKS):
            shutil.copy(self.write_limits("export KOKKOS_NUM_THREADS=many\n"), self.folder / f"rank-{rank}")
        said = self.refused("Kokkos cannot start on 4 ranks", self.train(), code=1)
        self.assert_once("p3d stops:", said)
        self.assert_once("cannot convert KOKKOS_NUM_THREADS", said)

    def write_limits(self, text):
        path = self.folder / "limits"
        path.write_text(text)
        return path

    @unittest.skipIf("ASAN_OPTIONS" in os.environ, "the address sanitizer takes more address space than any limit")
    def test_address_space_that_is_too_small_on_one_rank(self):
        # OpenBLAS retries an allocation that fails for ever.
        (self.folder / "rank-2/limits").write_text("ulimit -v 350000\n")
        said = self.refused("ulimit -v on rank 2 of 4", self.train())
        self.assert_once("[rank 2] p3d stops: 1 of 4 ranks could not start under its memory limit", said)
        self.assertIn("[rank 2] where:    ulimit -v", said)

    def test_more_memory_than_the_node_has(self):
        run = self.train("model.hidden=131072", "model.heads=64", "model.kv_heads=64", "model.ffn=524288")
        said = self.refused("a model of 4 TiB on one node", run)
        self.assert_once("p3d stops:\nexpected: at most ", said)
        self.assertRegex(said, r"found:    \d+\.\d+ TiB for 4 ranks, \d+\.\d+ TiB for the largest")
        self.assertIn("Memory of a rank", run.out)  # the table stands before anything is taken

    def test_output_folder_that_rank_0_cannot_make(self):
        (self.folder / "file").write_text("")
        said = self.refused("output folder below a file", self.train(f"run.output_dir={self.folder}/file/out"))
        self.assert_once("p3d stops:\nexpected: a folder for results that can be made and written", said)
        self.assertNotIn("[rank", said)


if __name__ == "__main__":
    unittest.main()
