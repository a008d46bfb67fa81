# SPDX-License-Identifier: Apache-2.0
"""What a run prints and writes, on a terminal and into a file, and how it repeats itself."""
import os
import pty
import re
import select
import shutil
import struct
import fcntl
import subprocess
import termios
import unittest

import program
from program import AppTest

COLUMNS = ["step", "tokens", "loss", "grad_norm", "lr", "step_ms", "tokens_per_s"]
MESH = ("parallel.dp=1", "parallel.tp=2", "parallel.pp=2")


class Files(AppTest):
    def done(self, ranks, *arguments):
        run = self.run_to_end(ranks, *arguments)
        self.assertEqual((run.code, run.err), (0, ""), run.out)
        return run

    def test_a_whole_run(self):
        run = self.done(4, *MESH, "sample.tokens=8", "sample.prompt=line", "run.eval_every=3")
        for words in ("Mesh: 4 ranks", "pp groups (2 of 2): [0 2] [1 3]",
                      "layers by stage: 2 + 2 (sum 4)", "Memory of a rank",
                      "Data: ", "Finished 6 steps in ", "MFU ", "Memory of all ranks: ", "\npipeline wait ",
                      "A sample of the model (temperature 0.8):\n----\nline", "Written: "):
            self.assert_once(words, run.out)
        rows = self.metrics()
        self.assertEqual(list(rows[0])[:7], COLUMNS)
        self.assertEqual([int(r["step"]) for r in rows], [1, 2, 3, 4, 5, 6])
        self.assertEqual([int(r["tokens"]) for r in rows], [64 * i for i in range(1, 7)])
        self.assertEqual([bool(r["eval_loss"]) for r in rows], [False, False, True, False, False, True])
        self.assertTrue(all(float(r[c]) > 0 for r in rows for c in COLUMNS))
        # In a file: plain lines, for the first step, every second one, and evaluations.
        self.assertEqual([int(n) for n in re.findall(r"^step (\d)/6  loss \d.*tokens/s", run.out, re.MULTILINE)],
                         [1, 2, 3, 4, 6])
        self.assertNotIn("\r", run.out)
        self.assertNotIn("\x1b", run.out)

    def test_start_of_the_quickstart_fits_a_screen(self):
        quick = (str(program.SOURCE / "inputs/quickstart.toml"), f"data.path={program.SOURCE / 'LICENSE'}",
                 "run.steps=2", "sample.tokens=0", f"run.output_dir={self.folder / 'runs/quickstart'}")
        said = {}
        for words in ((), ("--verbose",)):
            run = program.Run(8, [*quick, *words], self.folder)
            self.addCleanup(run.kill)
            run.finish()
            self.assertEqual((run.code, run.err), (0, ""), run.out)
            shutil.rmtree(self.folder / "runs/quickstart/checkpoints")  # both begin at step 0
            said[words] = run.out[:re.search("^step 1/2", run.out, re.MULTILINE).start()]
        lines = said[()].splitlines()
        print(f"\n  measured: {len(lines)} lines, the longest of {max(map(len, lines))} columns", flush=True)
        self.assertLessEqual(len(lines), 24, said[()])
        self.assertLessEqual(max(map(len, lines)), 100, said[()])
        for words in ("Mesh: 8 ranks", "Pipeline: 2 stages", "Model: ", "Memory of a rank", "Data: ", "Checkpoints: ",
                      "Input: every key is in runs/quickstart/resolved.toml"):
            self.assert_once(words, said[()])
        resolved = (self.folder / "runs/quickstart/resolved.toml").read_text()
        self.assertIn("[optimizer]\n", resolved)
        self.assertNotIn("[optimizer]\n", said[()])
        self.assert_once(resolved.split("\n\n", 1)[1].strip(), said[("--verbose",)])

    def test_resolved_input_repeats_the_run(self):
        self.done(4, *MESH, "model.dropout=0.1", "run.seed=7", "checkpoint.every=0")
        first = self.metrics()
        resolved = (self.results / "resolved.toml").read_text()
        (self.folder / "input.toml").write_text(resolved)
        self.done(4)
        again = self.metrics()
        for column in ("loss", "grad_norm", "lr", "eval_loss"):
            self.assertEqual([r[column] for r in first], [r[column] for r in again], column)
        self.assertEqual(resolved, (self.results / "resolved.toml").read_text())
        self.assertGreater(len({r["loss"] for r in first}), 3)

    def test_the_files_of_an_earlier_run_are_kept(self):
        experts = ("checkpoint.every=0", "model.moe.experts=2", "model.moe.top_k=1", "model.moe.ffn=16")
        names = ("experts.csv", "summary.json", "resolved.toml", "metrics.csv")

        def bytes_of(number=""):
            return [(self.results / name.replace(".", f"{number}.", 1)).read_bytes() for name in names]

        self.done(1, *experts)
        first = bytes_of()
        run = self.done(1, *experts, "run.steps=2")
        self.assert_once("The files of an earlier run in runs/app are kept: experts.1.csv, summary.1.json, "
                         "resolved.1.toml, metrics.1.csv", run.out)
        second = bytes_of()
        self.done(1, "checkpoint.every=0", "run.steps=1", "run.trace=true")
        self.assertEqual([first, second], [bytes_of(".1"), bytes_of(".2")])
        self.assertEqual([len(self.metrics(name)) for name in ("metrics.csv", "metrics.2.csv")], [1, 2])
        self.assertFalse((self.results / "experts.csv").exists())
        trace = (self.results / "trace.svg").read_bytes()
        self.done(1, "checkpoint.every=0", "run.steps=1")
        self.assertEqual((self.results / "trace.3.svg").read_bytes(), trace)
        self.assertFalse((self.results / "trace.svg").exists())
        self.assertFalse((self.results / "checkpoints").exists())

    def test_what_a_killed_start_was_writing_goes(self):
        self.results.mkdir(parents=True)
        for name in ("summary.json.17.tmp", "timers.csv.9.tmp", "summary.json.x.tmp", "mine.tmp"):
            (self.results / name).write_text("{")
        self.done(1, "run.steps=1")
        self.assertEqual(sorted(p.name for p in self.results.glob("*.tmp")), ["mine.tmp", "summary.json.x.tmp"])

    def test_a_run_saves_its_end(self):
        run = self.done(2, "parallel.pp=2")
        self.assert_once("Checkpoints: at the end and before a stop, ", run.out)
        self.assertEqual([p.name for p in (self.results / "checkpoints").iterdir()], ["app-00000006.h5"])
        run = self.done(1, "run.steps=8")
        self.assertRegex(run.out, "Resumed from .*app-00000006.h5: step 6")
        self.assertEqual([int(r["step"]) for r in self.metrics()], list(range(1, 9)))

    def test_a_divided_vocabulary(self):
        keys = ["run.steps=2", "run.precision=fp64", "sample.tokens=8", "checkpoint.every=0"]
        alone = self.done(1, *keys)
        losses = [float(r["loss"]) for r in self.metrics()]
        run = self.done(4, *MESH, "pipeline.vocab_parallel=true", "pipeline.schedule=zb_v", *keys)
        line = "vocabulary: 64 of 256 rows of the embedding and of the output layer on each of 4 ranks"
        self.assert_once(line, run.out)
        for one, four in zip(losses, (float(r["loss"]) for r in self.metrics()), strict=True):
            self.assertAlmostEqual(one, four, 12)
        text = re.compile(r"A sample of the model.*?----\n(.*?)\n----", re.DOTALL)
        self.assertEqual(text.search(alone.out)[1], text.search(run.out)[1])

    def test_thirty_layers_on_four_stages(self):
        run = self.done(4, "parallel.pp=4", "model.layers=30", "run.steps=1")
        self.assertIn("layers by stage: 8 + 8 + 7 + 7 (sum 30)", run.out)
        self.assertNotIn("vocabulary:", run.out)
        # embedding 256 x 16; a block: two norms, q and o 16 x 16, k and v 8 x 16, gate, up and down 32 x 16; a norm at
        # the end
        self.assertIn(f"Model: {256 * 16 + 30 * (2 * 16 + 2 * 256 + 2 * 128 + 3 * 512) + 16} parameters", run.out)

    def test_folder_that_cannot_be_made(self):
        (self.folder / "file").write_text("")
        run = self.run_to_end(4, *MESH, "run.output_dir=file/results")
        self.report("output folder below a file, 4 ranks", run, run.seconds)
        self.assertEqual((run.code, run.out), (2, ""))
        self.assert_once("p3d stops:", run.err)
        self.assert_once("file/results", run.err)


class OnATerminal(AppTest):
    def on_terminal(self, command, columns=80):
        """The exit code and what a terminal gets to see."""
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        process = subprocess.Popen(command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=slave, stderr=slave,
                                   start_new_session=True)
        os.close(slave)
        self.addCleanup(os.close, master)
        seen = b""
        while select.select([master], [], [], program.PATIENCE)[0]:
            try:
                part = os.read(master, 65536)
            except OSError:  # the other side is closed
                break
            seen += part
        return process.wait(program.PATIENCE), seen.decode(errors="replace").replace("\r\n", "\n")

    def check_progress(self, command):
        code, seen = self.on_terminal([*command, program.PROGRAM, "input.toml", "run.log_every=1"])
        self.assertEqual(code, 0, seen)
        shown = [line for line in re.split("\n|\r\x1b\\[K", seen) if line.startswith("step ")]
        self.assertEqual([int(line[5]) for line in shown], [1, 2, 3, 4, 5, 6], seen)
        for line in shown[:-1]:
            self.assertRegex(line, r"^step \d/6  loss \d\.\d+ .* tokens/s .* left")
            self.assertLess(len(line), 80)
        self.assertRegex(shown[-1], "validation loss")
        self.assertEqual(len(re.findall("^step ", seen.replace("\r\x1b[K", ""), re.MULTILINE)), 1,
                         "it scrolls:\n" + seen)

    def test_progress_is_one_line(self):
        self.check_progress([])

    @unittest.skipUnless(program.IS_HYDRA and os.path.exists("/proc/self/status"),
                         "needs a launcher that hands on lines that have not ended")
    def test_progress_under_a_launcher(self):
        self.check_progress([*program.MPIEXEC, "2"])


if __name__ == "__main__":
    unittest.main()
