# SPDX-License-Identifier: Apache-2.0
"""p3d plan: a layout that it lists can be run, the same words give the same answer, bad words are one error."""
import csv
import json
import re
import resource
import signal
import subprocess
import unittest
import xml.etree.ElementTree

import program
import step_times
from program import AppTest

CLUSTERS = program.SOURCE / "inputs/clusters"
MODEL = ["data.format=synthetic", "model.layers=4", "model.hidden=256", "model.heads=4", "model.seq_len=128",
         "batch.global=8", "run.precision=bf16"]


def files_of_100_bytes():
    """Makes a write of more fail, as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))


class Plan(AppTest):
    def plan(self, *arguments, code=0):
        run = program.Run(0, ("plan", *arguments), self.folder)
        self.addCleanup(run.kill)
        run.finish()
        self.assertEqual(run.code, code, run.out + run.err)
        return run.out if code == 0 else run.err

    def search(self, *arguments, cluster="dgx-h100", ranks=8):
        return self.plan(*MODEL, "--cluster", str(CLUSTERS / f"{cluster}.toml"), "--ranks", str(ranks), *arguments)

    def test_the_best_layout_is_an_input(self):
        text = self.search("--top", "3", "--out", "best.toml")
        self.assertEqual(len(re.findall(r"^ +[123] ", text, re.M)), 3, text)
        run = program.Run(0, ("--check", "best.toml", "--ranks", "8"), self.folder)
        self.addCleanup(run.kill)
        run.finish()
        self.assertEqual(run.code, 0, run.out + run.err)
        # The words of the best layout predict the same step.
        words = re.search(r"^The best layout: (.*)$", text, re.M).group(1).split()
        again = self.search("--as-is", *words)
        step = re.compile(r"^Step on 8 ranks of .*", re.M)
        self.assertEqual(step.search(again).group(0), step.search(text).group(0))

    def test_the_same_words_give_the_same_answer(self):
        self.assertEqual(self.search(), self.search())

    def test_parts_sum_to_the_step(self):
        text = self.search("--as-is", "parallel.tp=2", "parallel.pp=2", "parallel.dp=2")
        step = float(re.search(r": ([0-9.e-]+) s \(", text).group(1))
        parts = [float(x) for x in re.findall(r"^  \w+ +([0-9.e-]+) s ", text, re.M)]
        self.assertGreater(len(parts), 8)
        self.assertAlmostEqual(sum(parts) / step, 1, delta=2e-3)

    def test_every_cluster_file_works(self):
        files = sorted(CLUSTERS.glob("*.toml"))
        self.assertGreaterEqual(len(files), 10)
        for file in files:
            with self.subTest(file.name):
                self.assertIn("Step on 8 ranks of ", self.search("--top", "1", cluster=file.stem))

    def test_ranks_beyond_the_last_level(self):
        text = (CLUSTERS / "dgx-h100.toml").read_text()
        outer = text.rindex("[[level]]")
        node = text[:outer] + text[text.index("[jitter]", outer):]
        self.assertEqual(node.count("[[level]]"), 1)
        (self.folder / "node.toml").write_text(node)
        words = (*MODEL, "--cluster", "node.toml", "--ranks")
        self.assertIn("Step on 8 ranks of ", self.plan(*words, "8"))
        for more in ((), ("--as-is",)):
            error = self.plan(*words, "16", "parallel.dp=16", "batch.global=16", *more, code=2)
            self.assertIn("at most 8 ranks", error)

    def test_rows_of_the_csv_file_are_layouts(self):
        self.search("--top", "1000", "--csv", "all.csv", "--fix", "parallel.pp=2", "--fix", "parallel.dp=2")
        with open(self.folder / "all.csv") as file:
            rows = list(csv.DictReader(file))
        measured = ("seconds", "low", "high", "tokens_per_second", "mfu", "bytes")
        layouts = {tuple(v for k, v in row.items() if k not in measured and not k.endswith("_s")) for row in rows}
        self.assertEqual(len(layouts), len(rows))
        self.assertEqual({row["pipeline.vocab_parallel"] for row in rows}, {"false", "true"})

    def test_fixed_keys(self):
        text = self.search("--fix", "parallel.tp=2", "--fix", "memory.shard=none", "--top", "4")
        for line in re.findall(r"tp \d.*", text):
            self.assertTrue(line.startswith("tp 2,"), line)
            self.assertNotIn("shard", line)

    def test_a_number_of_chunks(self):
        text = self.search("--fix", "pipeline.virtual_stages=2", "--top", "4")
        layouts = re.findall(r"tp \d.*", text)
        self.assertGreater(len(layouts), 3, text)
        for line in layouts[:4]:
            self.assertIn("2 chunks", line)

    def test_stages_of_a_list_on_ranks_that_have_several(self):
        text = self.search("pipeline.layers_per_stage=[1,1,1,1]", "--fix", "parallel.pp=2",
                           "--fix", "pipeline.schedule=zb_v", ranks=2)
        self.assertRegex(text, r"Step on 2 ranks of .*, HFU [0-9.]+ %")

    def test_a_schedule_that_is_chosen_within_a_memory(self):
        text = self.search("pipeline.schedule=auto", "pipeline.max_memory=10", "parallel.pp=2", "--as-is", ranks=2)
        self.assertRegex(text, r"Step on 2 ranks of ")

    def test_a_limit_of_memory(self):
        self.search("--csv", "all.csv")
        with open(self.folder / "all.csv") as file:
            needs = sorted(float(row["bytes"]) for row in csv.DictReader(file))
        limit = (needs[0] + needs[-1]) / 2
        self.search(f"memory.limit={limit / 2**30}", "--csv", "some.csv")
        with open(self.folder / "some.csv") as file:
            needs = [float(row["bytes"]) for row in csv.DictReader(file)]
        self.assertGreater(len(needs), 0)
        self.assertLessEqual(max(needs), limit)

    def test_the_layout_of_the_input_need_not_suit_what_is_fixed(self):
        text = self.search("parallel.dp=2", "--fix", "batch.micro=8", ranks=2)
        for line in re.findall(r"tp \d.*", text):
            self.assertIn("micro 8", line)

    def test_a_run_chooses_its_layout(self):
        words = (*MODEL, "run.steps=4", "run.log_every=1", "run.eval_every=0", f"plan.cluster={CLUSTERS / 'epyc.toml'}",
                 "run.precision=fp64", "checkpoint.every=0")
        losses = {}
        for ranks, layout in ((1, "given"), (2, "auto"), (4, "auto")):
            run = program.Run(ranks, (*words, f"parallel.layout={layout}", f"run.output_dir=run{ranks}"), self.folder)
            self.addCleanup(run.kill)
            run.finish()
            self.assertEqual(run.code, 0, run.out + run.err)
            losses[ranks] = [float(x) for x in re.findall(r"step \d+/4 +loss ([0-9.]+)", run.out)]
            self.assertEqual(len(losses[ranks]), 4, run.out)
            self.assertRegex(run.out, r"Predicted [0-9.e-]+ s a step \([0-9.e-]+ to [0-9.e-]+\): measured [0-9.e-]+ s")
            self.assertEqual("Layout chosen for" in run.out, layout == "auto", run.out)
            self.assertEqual(losses[ranks], losses[1])
        best = re.search(r"Layout chosen for 4 ranks of EPYC cluster: (tp .*); predicted", run.out).group(1)
        listed = self.plan(*words, "--cluster", str(CLUSTERS / "epyc.toml"), "--ranks", "4", "--top", "1")
        self.assertIn(best, listed)

    def test_samples_of_other_lengths_are_not_graded(self):
        words = ("input.toml", "run.precision=fp64", f"plan.cluster={CLUSTERS / 'epyc.toml'}", "checkpoint.every=0",
                 "run.steps=2", "batch.variable=true", "data.shuffle=documents", "data.format=megatron",
                 f"data.path={program.SOURCE / 'tests/unit/data/reference/order-0'}", "model.vocab_size=2000")
        run = program.Run(0, (*words, f"run.output_dir={self.results}"), self.folder)
        self.addCleanup(run.kill)
        run.finish()
        self.assertEqual((run.code, run.err), (0, ""), run.out)
        self.assertNotIn("Predicted", run.out)
        summary = json.loads((self.results / "summary.json").read_text())
        self.assertEqual((summary["model_flops_per_step"], summary["recomputed_flops_per_step"]), (0, 0))
        self.assertNotIn("memory.recompute", summary["bottleneck"])

    def test_what_the_input_sets_stays(self):
        run = program.Run(0, ("--check", *MODEL, "--ranks", "8", "parallel.layout=auto", "parallel.tp=2",
                              "memory.shard=optimizer", f"plan.cluster={CLUSTERS / 'dgx-h100.toml'}"), self.folder)
        self.addCleanup(run.kill)
        run.finish()
        self.assertEqual(run.code, 0, run.out + run.err)
        self.assertRegex(run.out, r"Layout chosen for 8 ranks of DGX H100 SuperPOD: tp 2, .*shard optimizer; predicted")

    def test_a_list_of_stages_decides_their_number(self):
        for ranks in (2, 4):
            run = program.Run(0, ("--check", "model.preset=gpt2-tiny", "data.format=synthetic", f"--ranks={ranks}",
                                  "batch.global=8", "parallel.layout=auto", "pipeline.layers_per_stage=[5, 3]",
                                  f"plan.cluster={CLUSTERS / 'dgx-h100.toml'}"), self.folder)
            self.addCleanup(run.kill)
            run.finish()
            self.assertEqual(run.code, 0, run.out + run.err)
            self.assertRegex(run.out, f"Layout chosen for {ranks} ranks of DGX H100 SuperPOD: .*pp 2")

    def test_bad_choices(self):
        plain = [word for word in MODEL if not word.startswith("batch.global")]
        cluster = f"plan.cluster={CLUSTERS / 'dgx-h100.toml'}"
        (self.folder / "bad.toml").write_text("name = \"x\"\n[device]\nmemroy = 1e9\n")
        for words, expected in (
                ((*MODEL, "--ranks", "8"), "plan.cluster, the machine by which the layout is chosen"),
                ((*MODEL, cluster), "a number of ranks for which a layout is chosen"),
                ((*plain, cluster, "--ranks", "8"), "batch.global where the layout is chosen"),
                ((*MODEL, cluster, "--ranks", "7"), "a number of ranks and a batch that some layout divides"),
                ((*MODEL, cluster, "--ranks", "8", "memory.limit=0.01"), "a layout that fits 8 ranks"),
                ((*MODEL, "plan.cluster=bad.toml", "--ranks", "8"), "did you mean memory?"),
                ((*MODEL, "plan.cluster=none.toml", "--ranks", "8"), "a cluster file")):
            with self.subTest(expected):
                run = program.Run(0, ("--check", *words, "parallel.layout=auto"), self.folder)
                self.addCleanup(run.kill)
                run.finish()
                self.assertEqual(run.code, 2, run.out + run.err)
                self.assertIn(expected, run.err)

    def test_front(self):
        self.search("--front", "--csv", "front.csv")
        with open(self.folder / "front.csv") as file:
            rows = [(float(r["seconds"]), float(r["bytes"])) for r in csv.DictReader(file)]
        self.assertGreater(len(rows), 2)
        for (before, more), (seconds, fewer) in zip(rows, rows[1:]):
            self.assertGreaterEqual(seconds, before)
            self.assertLess(fewer, more)

    def test_files_of_layouts(self):
        text = self.search("--top", "4", "--csv", "all.csv", "--svg", "all.svg")
        with open(self.folder / "all.csv") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual(len(rows), 4)
        for row in rows:
            parts = sum(float(x) for key, x in row.items() if key.endswith("_s"))
            self.assertAlmostEqual(parts / float(row["seconds"]), 1, delta=1e-6)
            self.assertIn(f"tp {row['parallel.tp']}, pp {row['parallel.pp']}, dp {row['parallel.dp']}", text)
        picture = xml.etree.ElementTree.parse(self.folder / "all.svg").getroot()
        labels = [t.text for t in picture.iter("{http://www.w3.org/2000/svg}text")]
        self.assertEqual(sum(label.startswith("8 ranks: tp ") for label in labels), 4)

    def test_several_numbers_of_ranks(self):
        text = self.plan(*MODEL, "--cluster", str(CLUSTERS / "dgx-h100.toml"), "--ranks", "1,2,4", "--svg", "s.svg")
        rows = re.findall(r"^ +([124]) +([0-9.e-]+) ", text, re.M)
        self.assertEqual([r[0] for r in rows], ["1", "2", "4"])
        for ranks, seconds in rows:
            one = self.plan(*MODEL, "--cluster", str(CLUSTERS / "dgx-h100.toml"), "--ranks", ranks, "--top", "1")
            self.assertIn(f"Step on {ranks} ranks of DGX H100 SuperPOD: {seconds} s ", one)
        self.assertIn("seconds of all ranks", (self.folder / "s.svg").read_text())

    def test_what_if(self):
        now = float(re.search(r": ([0-9.e-]+) s \(", self.search("--top", "1")).group(1))
        text = self.search("--top", "1", "--what-if", "device.launch=0.5x", "--what-if", "level1.latency=1e-3")
        faster, slower = (float(re.search(fr"^With {change}: ([0-9.e-]+) s", text, re.M).group(1))
                          for change in ("device.launch=0.5x", "level1.latency=1e-3"))
        self.assertLess(faster, now)
        self.assertGreaterEqual(slower, now)

    def test_bad_words(self):
        cluster = ("--cluster", str(CLUSTERS / "dgx-h100.toml"))
        plain = [word for word in MODEL if not word.startswith("batch.global")]
        for words, expected in (
                ((*plain, *cluster, "--ranks", "8"), "batch.global where the layout is chosen"),
                ((*MODEL, *cluster, "--ranks", "8", "memory.limit=0.01"),
                 "a layout that fits 8 ranks of DGX H100 SuperPOD (10.24 MiB each)"),
                ((*MODEL, *cluster, "--ranks", "8", "comm.compress=int8", "comm.workers=2", "--fix", "parallel.tp=1",
                  "--fix", "parallel.pp=1"), "change comm.workers"),
                ((*MODEL, *cluster, "--ranks", "8", "--fix", "model.hidden=8"), "a key that the search chooses"),
                ((*MODEL, *cluster, "--ranks", "8", "--fix", "parallel.tp=2", "--fix", "parallel.tp=1"),
                 "parallel.tp again: --fix parallel.tp=1"),
                ((*MODEL, *cluster, "--ranks", "7"), "a number of ranks and a batch that some layout divides"),
                ((*MODEL, *cluster, "--ranks", "7"), "choose 6 or 8 ranks, or another batch.global"),
                ((*MODEL, *cluster, "--ranks", "7", "--fix", "parallel.pp=4"), "choose 4 or 8 ranks"),
                ((*MODEL, *cluster, "--ranks", "100003"), "choose 128 ranks, or another batch.global"),
                ((*MODEL, "--cluster", self.machine(), "--ranks", "8", "--out", "machine.toml"),
                 "--out machine.toml, which is read: it would be replaced"),
                ((*MODEL, "model.layers=300", "model.hidden=16384", *cluster, "--ranks", "2"), "take 256 ranks: "),
                ((*MODEL, *cluster, "--kernels", "fusd"), "a generation of kernels"),
                ((*MODEL, "--cluster", "none.toml"), "a cluster file"),
                ((*MODEL, "model.hiden=8", *cluster), "did you mean model.hidden?"),
                ((*MODEL, *cluster, "--ranks", "8", "--what-if", "lvel1.bandwidth=2x"),
                 "did you mean level1.bandwidth?"),
                ((*MODEL, *cluster, "--ranks", "8", "--what-if", "gemm.best=2x"), "number in (0, 1]"),
                ((*MODEL, *cluster, "--ranks", "8", "--what-if", "gemm.best=much"), "a factor, 2x, or a value"),
                ((*MODEL, *cluster, "--ranks", "8,2", "--as-is"), "--as-is with one number of ranks"),
                ((*MODEL, *cluster, "--ranks", "8", "--csv", "no/folder.csv"),
                 "no/folder.csv: No such file or directory")):
            with self.subTest(expected):
                self.assertIn(expected, self.plan(*words, code=2))
        self.assertEqual((self.folder / "machine.toml").read_text(), (CLUSTERS / "dgx-h100.toml").read_text())

    def machine(self):
        """A cluster file in the folder of the test."""
        (self.folder / "machine.toml").write_text((CLUSTERS / "dgx-h100.toml").read_text())
        return "machine.toml"

    def test_an_older_file_stays_where_the_new_one_fails(self):
        for kind in (".csv", ".svg"):
            old = self.folder / f"old{kind}"
            old.write_text("old\n")
            words = ("plan", *MODEL, "--cluster", self.machine(), "--ranks", "8", f"--{kind[1:]}", old.name)
            done = subprocess.run([program.PROGRAM, *words], cwd=self.folder, capture_output=True, text=True,
                                  timeout=program.PATIENCE, preexec_fn=files_of_100_bytes)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(f"{old.name}: File too large", done.stderr)
            self.assertEqual(old.read_text(), "old\n")
            self.assertEqual(list(self.folder.glob("*.tmp")), [])
        link = self.folder / "link.csv"
        link.symlink_to("old.csv")
        self.search("--csv", "link.csv")
        self.assertTrue(link.is_symlink())
        self.assertRegex((self.folder / "old.csv").read_text(), "^seconds|parallel.tp")

    def test_output_that_is_no_file(self):
        self.assertIn("\n[model]\n", self.search("--top", "1", "--out", "/dev/stdout"))
        self.search("--top", "1", "--csv", "/dev/null")
        said = self.plan(*MODEL, "--cluster", self.machine(), "--ranks", "8", "--csv", "/dev/full", code=2)
        self.assertIn("/dev/full: No space left on device", said)

    def calibrate(self, ranks, *words):
        run = program.Run(ranks, ("plan", "calibrate", *words), self.folder)
        self.addCleanup(run.kill)
        run.finish()
        return run

    def test_calibrate(self):
        run = self.calibrate(2, "--out", "here.toml", "--name", "here", "--types", "fp32")
        self.assertEqual(run.code, 0, run.out + run.err)
        self.assertRegex(run.out, r"GEMMs, fp32 +24 +[0-9.]+ % +[0-9.]+ %")
        text = (self.folder / "here.toml").read_text()
        self.assertIn('kernels = \'host\'', text)
        self.assertEqual(text.count("[[level]]"), 1)
        words = [word for word in MODEL if not word.startswith("run.precision")]
        listed = self.plan(*words, "--cluster", "here.toml", "--ranks", "2", "--top", "3")
        self.assertRegex(listed, r"Step on 2 ranks of here: [0-9.e-]+ s")

    def test_bad_calibrations(self):
        for ranks, words, expected in ((1, (), "at least two ranks"), (2, ("--types", "fp12"), "types of this build"),
                                       (2, ("--out", "no/folder.toml"), "a file to write"),
                                       (2, ("--out", "."), "Is a directory")):
            with self.subTest(expected):
                (self.folder / "cluster.toml").write_text("old\n")
                run = self.calibrate(ranks, *words)
                self.assertEqual(run.code, 2, run.out + run.err)
                self.assertEqual(run.err.count(expected), 1, run.out + run.err)
                self.assertEqual((self.folder / "cluster.toml").read_text(), "old\n")
                self.assertNotIn("Measuring", run.out)

    def test_grade(self):
        with open(self.folder / "rows.csv", "w") as file:
            file.write("id,group,split,cluster,kernels,model.layers,parallel.tp,batch.global,measured_s,note\n"
                       "a,one,validate,dgx-a100,fused,2,1,8,0.001,\"first, of two\"\n"
                       "b,one,validate,dgx-a100,fused,2,2,8,0.002,\n")
        text = self.plan("grade", "rows.csv", "--clusters", str(CLUSTERS), "--csv", "out.csv")
        self.assertRegex(text, r"one, validate +2 ")
        with open(self.folder / "out.csv") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual([r["note"] for r in rows], ["first, of two", ""])
        for r in rows:
            self.assertAlmostEqual(float(r["predicted"]) / float(r["measured_s"]) - 1, float(r["error"]), delta=1e-4)
            self.assertLess(float(r["low"]), float(r["predicted"]))

    def test_an_independent_program_predicts_the_same(self):
        rows = program.SOURCE / "benchmarks/plan/rows.csv"
        self.plan("grade", str(rows), "--clusters", str(CLUSTERS), "--csv", "out.csv")
        predicted = {r["id"]: float(r["predicted"]) for r in csv.DictReader(open(self.folder / "out.csv"))}
        seen = 0
        for row, seconds in step_times.steps(rows, CLUSTERS):
            self.assertAlmostEqual(predicted[row] / seconds, 1, delta=1e-5, msg=row)
            seen += 1
        self.assertGreater(seen, 1500)

    def test_grade_of_memory(self):
        with open(self.folder / "rows.csv", "w") as file:
            file.write("id,cluster,model.layers,measured_bytes\na,dgx-a100,2,1e9\n")
        self.assertRegex(self.plan("grade", "rows.csv", "--clusters", str(CLUSTERS)), r"all +1 ")

    def test_bad_rows(self):
        good = "id,cluster,model.layers,measured_s\na,dgx-a100,2,1\n"
        for text, expected in (
                (good.replace("model.layers", "model.layer"), "did you mean model.layers?"),
                (good.replace(",1\n", ",x\n"), "rows.csv, line 2, measured_s"),
                (good.replace(",2,", ",-2,"), "rows.csv, line 2"),
                (good.replace("dgx-a100", "nowhere"), "a cluster file"),
                (good.replace("measured_s", "seconds"), "a column measured_s or measured_bytes"),
                (good.replace("a,dgx", "dgx"), "4 cells, one for each column"),
                ("", "a table with a header")):
            with self.subTest(expected):
                (self.folder / "rows.csv").write_text(text)
                self.assertIn(expected, self.plan("grade", "rows.csv", "--clusters", str(CLUSTERS), code=2))


if __name__ == "__main__":
    unittest.main()
