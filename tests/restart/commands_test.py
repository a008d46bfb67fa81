# SPDX-License-Identifier: Apache-2.0
"""p3d checkpoint, generate and eval on the checkpoints of a small run; what a run refuses to resume."""
import json
import math
import pathlib
import re
import shutil
import tempfile
import unittest

import restarts
from restarts import checkpoint, tool
from token_data_test import write_pair


class Commands(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(prefix="p3d-commands-")
        cls.folder = pathlib.Path(cls.temporary.name)
        restarts.write_inputs(cls.folder)
        restarts.train(cls.folder, "2tp", "run", "run.precision=fp64")
        cls.half, cls.last = (checkpoint("run", step) for step in (restarts.HALF, restarts.STEPS))

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def good(self, *words, ranks=0):
        words += ("--progress", "0") if words[0] == "eval" else ()  # lines for machines where it takes long
        code, out, err = tool(self.folder, *words, ranks=ranks)
        self.assertEqual((code, err), (0, ""), out)
        return out

    def refused(self, expected_code, *words, ranks=0):
        code, out, err = tool(self.folder, *words, ranks=ranks)
        self.assertEqual(code, expected_code, out + err)
        for word in ("expected:", "found:", "where:", "fix:"):
            self.assertEqual(err.count(word), 1, err)
        return err

    def test_ls(self):
        lines = self.good("checkpoint", "ls", "run/checkpoints").splitlines()
        self.assertEqual([line.split()[:2] for line in lines[1:]], [["restart", "15"], ["restart", "30"]])
        self.assertTrue(all(" good " in line for line in lines[1:]))
        self.assertEqual(self.good("checkpoint", "ls", "run").splitlines(), lines)
        self.assertIn("no checkpoints", self.good("checkpoint", "ls", "."))

    def test_show_tells_what_the_file_holds(self):
        out = self.good("checkpoint", "show", self.half)
        self.assertRegex(out, r"step +15\n")
        self.assertRegex(out, rf"tokens +{15 * 24 * 8}\n")
        self.assertRegex(out, rf"next sample +{15 * 24}\n")
        self.assertRegex(out, r"parameters/embed\.token\.weight +\[257, 24\] +-1 +yes +[0-9a-f]{16}\n")
        self.assertRegex(out, r"second_moment/layers\.7\.norm1\.weight +\[24\] +7 +no +[0-9a-f]{16}\n")

    def inside_the_arrays(self):
        """A byte of the longest stretch of numbers, by the seal."""
        head = (self.folder / self.half).read_bytes()[:8192].decode("ascii", "replace")
        return max((int(size), int(at)) for at, size in re.findall(r"^(\d+) (\d+)$", head, re.M))[1] + 100

    def test_the_input_in_the_file_starts_the_same_run(self):
        (self.folder / "again.toml").write_text(self.good("checkpoint", "show", self.half, "--input"))
        self.assertIn("The input is valid", self.good("again.toml", "--check"))

    def test_verify_names_the_damaged_array(self):
        self.assertEqual(self.good("checkpoint", "verify", self.half, self.last).count("good (seal and"), 2)
        data = bytearray((self.folder / self.half).read_bytes())
        data[self.inside_the_arrays()] ^= 4
        (self.folder / "bad.h5").write_bytes(data)
        code, out, _ = tool(self.folder, "checkpoint", "verify", "bad.h5", self.last)
        self.assertEqual(code, 1)
        self.assertRegex(out, r"bad\.h5: \w+/\S+: expected checksum \w+, found \w+")
        self.assertIn("good (seal", out)  # the other one is still looked at
        name = re.search(r"bad\.h5: (\w+/\S+): expected", out)[1]
        self.assertIn(f"found:    1 array with other numbers than were written: {name}\n",
                      self.refused(1, "checkpoint", "show", "bad.h5", "--norms"))
        code, out, _ = tool(self.folder, "checkpoint", "diff", "bad.h5", "bad.h5")
        self.assertEqual(code, 1)
        self.assertIn(f"{name}: damaged in bad.h5", out)

    def test_diff(self):
        self.assertRegex(self.good("checkpoint", "diff", self.half, self.half),
                         r"\A\d+ arrays compared: both files have the same state\n\Z")
        code, out, _ = tool(self.folder, "checkpoint", "diff", self.half, self.last)
        self.assertEqual(code, 1)
        self.assertRegex(out, r"step: 15 \| 30\n")
        self.assertRegex(out, r"parameters/embed\.token\.weight: \d+ elements differ, "
                         r"most by \S+ at \[\d+, \d+\]: \S+ \| \S+")

    def test_prune_keeps_the_newest(self):
        shutil.copytree(self.folder / "run/checkpoints", self.folder / "pruned")
        out = self.good("checkpoint", "prune", "pruned", "--keep", "1")
        self.assertIn("deleted pruned/restart-00000015.h5", out)
        self.assertEqual([p.name for p in (self.folder / "pruned").iterdir()], ["restart-00000030.h5"])

    def test_prune_deletes_nothing_behind_a_damaged_one(self):
        shutil.copytree(self.folder / "run/checkpoints", self.folder / "kept")
        newest = self.folder / "kept/restart-00000030.h5"
        data = bytearray(newest.read_bytes())
        data[-2000] ^= 1  # in an array or in a description
        newest.write_bytes(data)
        tool(self.folder, "checkpoint", "prune", "kept", "--keep", "1")
        self.assertEqual(len(list((self.folder / "kept").iterdir())), 2)

    def test_what_is_no_checkpoint(self):
        (self.folder / "no.h5").write_text("not a checkpoint\n")
        (self.folder / "cut.h5").write_bytes((self.folder / self.half).read_bytes()[:-1])
        for command in (("checkpoint", "show"), ("checkpoint", "diff", self.half)):
            self.assertIn("no.h5", self.refused(2, *command, "no.h5"))
            self.assertIn("cut.h5", self.refused(2, *command, "cut.h5"))
            self.assertIn("gone.h5", self.refused(2, *command, "gone.h5"))
        for command in ("ls", "prune"):
            more = ("--keep", "1") if command == "prune" else ()
            self.assertIn("No such file or directory", self.refused(2, "checkpoint", command, "nosuch", *more))
            self.assertIn("a folder of checkpoints", self.refused(2, "checkpoint", command, "input.toml", *more))
        for command in ("generate", "eval"):
            self.assertIn("cut.h5", self.refused(2, command, "cut.h5"))
        self.assertIn("cut.h5", self.refused(2, "eval", "cut.h5", ranks=2))

    def test_generate_is_the_same_in_every_layout(self):
        # A vocabulary of bytes, which are what generate writes, and which tp=3 does not divide.
        # What the run recomputes and shares over tp does not matter to generate, on one rank neither.
        restarts.train(self.folder, "2tp", "bytes", "run.precision=fp64", "model.vocab_size=256",
                       "memory.recompute=full", "memory.share_saved_inputs=true")
        trained = checkpoint("bytes", restarts.STEPS)
        words = ("generate", trained, "--prompt", "line ", "--tokens", "20", "--temperature", "0.7", "--top-k", "5",
                 "--top-p", "0.9")
        one = self.good(*words)
        self.assertTrue(one.startswith("line "))
        self.assertEqual(len(one.encode()), len("line ") + 20 + 1)
        for layout, ranks in (("tp=2", 2), ("pp=3", 3), ("tp=3 pp=2", 6)):
            keys = [f"parallel.{word}" for word in layout.split()]
            self.assertEqual(self.good(*words, *keys, ranks=ranks), one, layout)
        self.assertNotEqual(self.good(*words, "--seed", "2"), one)
        greedy = ("generate", trained, "--prompt", "line ", "--tokens", "20")
        self.assertEqual(self.good(*greedy, "--temperature", "0"), self.good(*greedy, "--top-k", "1", "--seed", "9"))

    def test_eval_is_the_same_in_every_layout(self):
        found = []
        for ranks, keys in ((0, ()), (2, ("parallel.tp=2",)), (6, ("parallel.tp=3", "parallel.pp=2")),
                            (4, ("parallel.dp=4",))):
            out = self.good("eval", self.last, "--file", "text.txt", *keys, ranks=ranks)
            match = re.search(r"step 30: loss (\S+) nats per token, perplexity (\S+); (\d+) windows of 8 tokens", out)
            found.append((float(match[1]), int(match[3])))
            self.assertAlmostEqual(float(match[2]), math.exp(found[-1][0]), delta=1e-3)
        size = (self.folder / "text.txt").stat().st_size
        self.assertEqual({windows for _, windows in found}, {(size - 1) // 8})
        for loss, _ in found:
            self.assertAlmostEqual(loss, found[0][0], delta=1e-9 * found[0][0])

    def test_names_a_model_by_its_folder(self):
        (self.folder / "short.txt").write_text("a text of some windows, " * 10)
        words = ("--file", "short.txt")
        expected = self.good("eval", self.last, *words)
        (self.folder / "moved").mkdir()
        shutil.copytree(self.folder / "run/checkpoints", self.folder / "moved/checkpoints")
        for folder in ("run", "moved", "moved/checkpoints"):
            for ranks in (0, 2):
                code, out, err = tool(self.folder, "eval", folder, *words, ranks=ranks)
                self.assertEqual((code, out[:16]), (0, expected[:16]), err)
                self.assertRegex(err, r"\ACheckpoint: \S+/restart-00000030\.h5\n\Z")
        shutil.copytree(self.folder / "run", self.folder / "copied")  # its resolved.toml still names run/checkpoints
        (self.folder / "copied/checkpoints/restart-00000030.h5").unlink()
        code, out, err = tool(self.folder, "eval", "copied", *words)
        self.assertEqual(code, 0, out)
        self.assertRegex(err, r"\ACheckpoint: \S+/copied/checkpoints/restart-00000015\.h5\n\Z")
        shutil.copy(self.folder / self.half, self.folder / "moved/checkpoints/other-00000015.h5")
        self.assertIn("checkpoints of other and restart", self.refused(2, "eval", "moved"))
        (self.folder / "empty").mkdir()
        self.assertIn("a folder without valid checkpoints", self.refused(2, "generate", "empty", ranks=2))

    def test_eval_in_another_precision_and_length(self):
        def found(*more):
            code, out, err = tool(self.folder, "eval", self.last, "--file", "text.txt", *(more or ("--progress=0",)))
            self.assertEqual(code, 0, err)
            return float(re.search(r"loss (\S+)", out)[1]), int(re.search(r"; (\d+) windows", out)[1]), err
        size = (self.folder / "text.txt").stat().st_size
        loss, windows, _ = found()
        self.assertEqual(windows, (size - 1) // 8)
        narrow, windows, err = found("--precision", "fp32", "--progress", "1e-9")
        self.assertEqual(windows, (size - 1) // 8)
        self.assertNotEqual(narrow, loss)
        self.assertAlmostEqual(narrow, loss, delta=1e-4)
        self.assertRegex(err, rf"\A1 of {windows} windows read in .*, about .* left\n2 of ")
        shorter, windows, err = found("--seq-len", "5", "--progress", "0")
        self.assertEqual((windows, err), ((size - 1) // 5, ""))
        self.assertNotAlmostEqual(shorter, loss, delta=1e-6)
        self.assertIn("at most 8", self.refused(2, "eval", self.last, "--file", "text.txt", "--seq-len", "9"))
        self.assertIn("--precision", self.refused(2, "generate", self.last, "--precision", "fp8"))

    def test_reads_what_a_run_of_any_keys_wrote(self):
        """On one rank, whatever the run had to divide or to schedule; unit_config tries every key."""
        documents = [[*f"item {i} costs {i * i % 97} coins\n".encode(), 0] for i in range(40)]
        write_pair(self.folder / "tokens", documents)
        (self.folder / "short.txt").write_text("a text of some windows, " * 10)
        # Those of a validation pass are all there are, so that its loss is that of eval.
        held_out = (int(self.folder.joinpath("text.txt").stat().st_size * 0.1) - 1) // 8
        once = ("batch.global=1", f"run.eval_batches={held_out}")
        runs = {
            "packed": (1, ("data.pack=true", "checkpoint.at_start=true", *once)),
            "variable": (1, ("data.format=megatron", "data.path=tokens", "data.shuffle=documents",
                             "batch.variable=true", "model.seq_len=64", "data.split=0.3", "batch.global=12",
                             "run.eval_batches=1")),
            "experts": (2, (*restarts.EXPERTS, "parallel.tp=2", "parallel.sequence=true", "parallel.ep=2",
                            "comm.overlap_experts=true")),
            "auto": (2, ("parallel.pp=2", "pipeline.schedule=auto", "pipeline.max_memory=1")),
            "interleaved": (2, ("parallel.pp=2", "pipeline.schedule=interleaved_1f1b", "pipeline.virtual_stages=2",
                                "pipeline.microbatch_group_size=4")),
            "late": (2, ("parallel.pp=2", "optimizer.delay=1", *once)),  # the older weights have another loss
            "few-layers": (3, ("parallel.pp=3", "model.layers=2", "pipeline.layers_per_stage=[0, 1, 1]")),
            "nested": (2, ("parallel.cp=2", "context.exchange=[2, 1]", "run.eval_batches=1")),
        }
        for name, (ranks, keys) in runs.items():
            with self.subTest(run=name):
                out = restarts.train_with(self.folder, ranks, f"run.output_dir={name}", "run.steps=2",
                                          "run.precision=fp64", "model.vocab_size=256", "checkpoint.every=2", *keys)
                file = checkpoint(name, 2)
                drawn = json.loads(self.good("generate", file, "--prompt", "line", "--tokens", "3", "--json"))
                self.assertEqual(len(drawn["tokens"]), 3)
                said = self.good("eval", file)
                if "run.eval_batches=1" in keys[-1] and name != "nested" or name in ("packed", "late"):
                    trained = float(restarts.rows(self.folder, name)[-1][-1])
                    self.assertAlmostEqual(float(re.search(r"loss (\S+)", said)[1]), trained, delta=1e-9)
                    self.assertNotIn("of them", said)
                    self.assertRegex(out, r"validation loss \S+ \(perplexity \S+; (\d+) of \1 (windows|samples)\)")
                elif name == "nested":
                    self.assertIn(f"; 24 of {held_out} windows)", out)
                    self.assertIn("(each validation of the run itself reads 24 of them)", said)
                self.good("eval", file, "--file", "short.txt")
                if ranks > 1:
                    again = self.good("eval", file, ranks=ranks)
                    a, b = (float(re.search(r"loss (\S+)", text)[1]) for text in (said, again))
                    self.assertAlmostEqual(a, b, delta=1e-9)

    def refused_run(self, *keys):
        code, out, err = tool(self.folder, "input.toml", "run.output_dir=other", "run.precision=fp64",
                              f"checkpoint.resume={self.half}", *keys)
        self.assertEqual(code, 2, out + err)
        return err

    def test_resume_lists_every_difference(self):
        err = self.refused_run("model.layers=6", "run.seed=5", "data.split=0.3", "optimizer.type=sgd")
        for line in ("data.split: 0.1 in the checkpoint, 0.3 in the input",
                     "model.layers: 8 in the checkpoint, 6 in the input",
                     "run.seed: 1 in the checkpoint, 5 in the input", "optimizer.type:"):
            self.assertEqual(err.count(line), 1, err)

    def test_gradients_may_become_late_and_cease_to_be(self):
        def go_on(output, file, steps, delay):
            restarts.train(self.folder, "2tp", output, "run.precision=fp64", f"checkpoint.resume={file}",
                           f"run.steps={steps}", f"optimizer.delay={delay}")
            return dict(restarts.losses(self.folder, output))

        half, plain = restarts.HALF, dict(restarts.losses(self.folder, "run"))
        late = go_on("late-from-plain", self.half, half + 3, 1)
        first, second = sorted(late)[:2]
        self.assertEqual(late[first], plain[first])  # there is one version, which is both
        self.assertNotEqual(late[second], plain[second])
        file = checkpoint("late-from-plain", half + 3)
        shown = self.good("checkpoint", "show", file)
        self.assertIn("previous_weights/embed.token.weight", shown)
        self.assertIn("versions      2 of the weights: the newest (parameters)", shown)
        goes_on, ceases = (go_on(f"delay-{delay}", file, half + 5, delay) for delay in (1, 0))
        self.assertNotEqual(goes_on[min(goes_on)], ceases[min(ceases)])  # read at the older and at the newest weights
        self.assertNotIn("previous_weights", self.good("checkpoint", "show", checkpoint("delay-0", half + 5)))

    def test_allowed_changes_are_noted(self):
        code, out, err = tool(self.folder, "input.toml", "run.output_dir=changed", "run.precision=fp64",
                              "run.name=changed", f"checkpoint.resume={self.half}", "optimizer.beta1=0.8",
                              "run.steps=16")
        self.assertEqual(code, 0, out + err)
        self.assertIn("optimizer.beta1: 0.9 in the checkpoint, 0.8 in the input", out)

    def test_experts_go_on_with_whatever_changes_no_number(self):
        """How rows travel is not the model; how fast a bias moves is training; balancing state is no parameter."""
        words = ("run.precision=fp64", *restarts.EXPERTS, "run.steps=4", "checkpoint.every=2")
        said = restarts.train(self.folder, "2ep", "routed", *words, layouts=restarts.EXPERT_LAYOUTS)
        state = 8 * 2 * 4  # in each of 8 layers a bias and a load of each of 4 experts
        shown = self.good("checkpoint", "show", checkpoint("routed", 2))
        held = sum(math.prod(map(int, shape.split(","))) for shape in re.findall(r"parameters/\S+ +\[([^]]+)\]", shown))
        self.assertIn(f"Model: {held - state} parameters", said)
        resumed = restarts.train(self.folder, "2ep", "gathered", *words, "model.moe.dispatch=gather", "model.ffn=96",
                                 "model.moe.bias_update_rate=0.01", f"checkpoint.resume={checkpoint('routed', 2)}",
                                 "run.name=gathered", layouts=restarts.EXPERT_LAYOUTS)
        self.assertNotIn("in the checkpoint", resumed)
        self.assertLess(restarts.largest_deviation(restarts.losses(self.folder, "gathered"),
                                                   restarts.losses(self.folder, "routed")[2:]), 1e-12)
        other = restarts.train(self.folder, "2ep", "slower", *words, "model.moe.bias_update_rate=0.001",
                               f"checkpoint.resume={checkpoint('routed', 2)}", "run.name=slower",
                               layouts=restarts.EXPERT_LAYOUTS)
        self.assertIn("model.moe.bias_update_rate: 0.01 in the checkpoint, 0.001 in the input", other)

    def test_goes_on_without_waiting_for_the_norm(self):
        """optimizer.post_validation changes no number, so a run may change it."""
        keys = ("run.precision=fp64", "parallel.pp=2", "pipeline.schedule=zb_h2", f"checkpoint.resume={self.half}",
                "optimizer.grad_clip=0")
        for name, word in (("patient", "false"), ("eager", "true")):
            code, out, err = tool(self.folder, "input.toml", f"run.output_dir={name}", f"run.name={name}", *keys,
                                  f"optimizer.post_validation={word}", ranks=2)
            self.assertEqual(code, 0, out + err)
            self.assertNotIn("post_validation:", out)
        said = re.search(r"Post-validation: (\d+) of 15 steps updated before the global norm was known, "
                         r"0 of these taken back", out)
        self.assertIsNotNone(said, out)
        self.assertGreater(int(said[1]), 5, said[0])
        self.assertEqual(restarts.losses(self.folder, "eager"), restarts.losses(self.folder, "patient"))

    def test_goes_on_in_any_precision(self):
        expected = restarts.losses(self.folder, "run")
        for precision, tolerance in (("fp32", 1e-4), ("bf16", 5e-3), ("fp16", 5e-3)):
            code, out, err = tool(self.folder, "input.toml", f"run.output_dir=in-{precision}", "parallel.tp=2",
                                  f"run.name=in-{precision}", f"run.precision={precision}",
                                  f"checkpoint.resume={self.half}", ranks=2)
            self.assertEqual(code, 0, out + err)
            self.assertIn(f'run.precision: "fp64" in the checkpoint, "{precision}" in the input', out)
            found = restarts.losses(self.folder, f"in-{precision}")
            self.assertEqual(len(found), restarts.STEPS - restarts.HALF)
            deviation = restarts.largest_deviation(found, expected[restarts.HALF:])
            self.assertLess(deviation, tolerance, precision)
            # And what it wrote, master weights in fp32, goes on in fp64.
            self.good("checkpoint", "verify", self.folder / f"in-{precision}/checkpoints/in-{precision}-00000030.h5")

    def test_weights_alone_go_to_another_run(self):
        (self.folder / "other.txt").write_text("other words, " * 100)
        code, out, err = tool(self.folder, "input.toml", "run.output_dir=tuned", "run.precision=fp64",
                              f"checkpoint.resume={self.half}", "checkpoint.load=weights", "data.path=other.txt",
                              "optimizer.type=sgd", "run.steps=2", "run.name=tuned")
        self.assertEqual(code, 0, out + err)
        self.assertIn("this run starts at step 0", out)
        first = float(restarts.losses(self.folder, "tuned")[0][1])
        self.assertNotAlmostEqual(first, float(restarts.losses(self.folder, "run")[0][1]), delta=0.1)
        self.assertIn("model.layers", self.refused_run("checkpoint.load=weights", "model.layers=6"))


if __name__ == "__main__":
    unittest.main()
