# SPDX-License-Identifier: Apache-2.0
"""What is refused before anything starts: ranks with different words, processes that their MPI does not connect."""
import os
import subprocess
import unittest

from program import MPIEXEC, PATIENCE, PROGRAM, AppTest

LAUNCHERS = ("OMPI_COMM_", "OMPI_APP_", "OMPI_UNIVERSE_", "MV2_", "PMI", "PALS_", "JSM_", "FLUX_", "SLURM_")


class LaunchTest(AppTest):
    def command(self, *words, **variables):
        """Runs it without any launcher's variables but these."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHERS)}
        environment.update({k: str(v) for k, v in variables.items()})
        return subprocess.run(words, cwd=self.folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=PATIENCE)

    def mixed(self, *groups):
        """mpiexec -n 2 p3d WORDS : -n 1 p3d OTHER WORDS."""
        words = [*MPIEXEC[:-1]]
        for ranks, arguments in groups:
            words += ([":"] if len(words) > len(MPIEXEC[:-1]) else []) + [MPIEXEC[-1], str(ranks), PROGRAM, *arguments]
        return self.command(*words)

    def assert_words_refused(self, done, *found):
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assert_once("expected: the same words after the program's name on every rank", done.stderr)
        self.assertIn("found:    " + "; ".join(found), done.stderr)
        self.assertFalse(self.results.exists())
        self.assertNotIn("Usage", done.stdout)

    def test_a_rank_with_another_command_line_is_named(self):
        done = self.mixed((2, ["input.toml"]), (1, ["--help"]), (1, ["input.toml"]))
        self.assert_words_refused(done, "ranks 0 to 1, 3: input.toml", "rank 2: --help")

    def test_whichever_rank_it_is(self):
        done = self.mixed((1, ["--version"]), (2, ["input.toml", "run.steps=2"]))
        self.assert_words_refused(done, "rank 0: --version", "ranks 1 to 2: input.toml run.steps=2")
        done = self.mixed((1, ["input.toml", "run.steps=2"]), (1, ["input.toml", "run.steps=3"]))
        self.assert_words_refused(done, "rank 0: input.toml run.steps=2", "rank 1: input.toml run.steps=3")
        done = self.mixed((1, ["schedule", "show", "input.toml"]), (1, []))
        self.assert_words_refused(done, "rank 0: schedule show input.toml", "rank 1: no words")

    def test_the_same_words_in_two_groups_run(self):
        done = self.mixed((1, ["input.toml", "run.steps=1"]), (1, ["input.toml", "run.steps=1"]))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertTrue(self.results.exists())

    def test_help_on_all_ranks_is_printed_once(self):
        done = self.mixed((3, ["--help"]))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assert_once("Usage", done.stdout)

    def assert_lonely(self, done, speaks, ranks, *texts):
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assertEqual(done.stderr.count(f"expected: one MPI world of {ranks} ranks"), 1 if speaks else 0,
                         done.stderr)
        for text in texts:
            self.assertIn(text, done.stderr)
        self.assertFalse(self.results.exists())

    def test_tasks_of_slurm_that_mpi_does_not_connect(self):
        for rank in range(4):
            done = self.command(PROGRAM, "input.toml", SLURM_PROCID=rank, SLURM_NTASKS=4)
            self.assert_lonely(done, rank == 0, 4, *(["srun --mpi=", f"SLURM_PROCID = {rank}"] if rank == 0 else []))
        done = self.command(PROGRAM, "input.toml", SLURM_JOB_ID=7, SLURM_STEP_ID=0, SLURM_PROCID=0, SLURM_NTASKS=16,
                            SLURM_STEP_NUM_TASKS=2)
        self.assert_lonely(done, True, 2, "srun --mpi=list", "env -u SLURM_PROCID p3d")

    def test_processes_of_another_mpis_launcher(self):
        theirs = "PMI" if "Open MPI" in self.command(PROGRAM, "--version").stdout else "OMPI_COMM_WORLD"
        done = self.command(PROGRAM, "input.toml", **{f"{theirs}_RANK": 0, f"{theirs}_SIZE": 3})
        self.assert_lonely(done, True, 3, "start p3d with the mpiexec that belongs to")

    def test_a_batch_script_starts_one_rank(self):
        done = self.command(PROGRAM, "input.toml", "run.steps=1", SLURM_JOB_ID=7, SLURM_PROCID=0, SLURM_NTASKS=4)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        done = self.command(PROGRAM, "--check", "input.toml", SLURM_JOB_ID=7, SLURM_NTASKS=4)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
