# SPDX-License-Identifier: Apache-2.0
"""Command lines that are wrong, numbers that are none, text that a model cannot write, and output that gets nowhere:
the four parts of an error, once, and exit code 2 (1 where something failed)."""
import math
import re
import subprocess
import unittest

import program
from program import AppTest

PARTS = ("expected", "found", "where", "fix")


class Words(AppTest):
    def words(self, *arguments, ranks=0):
        run = program.Run(ranks, arguments, self.folder)
        self.addCleanup(run.kill)
        run.finish()
        return run

    def refused(self, found, *arguments, code=2, ranks=0):
        run = self.words(*arguments, ranks=ranks)
        self.assertEqual(run.code, code, run.out + run.err)
        for part in PARTS:
            self.assertEqual(len(re.findall(f"^ *{part}: +\\S", run.err, re.MULTILINE)), 1, f"{part} in\n{run.err}")
        self.assertRegex(run.err, f"(?m)^ *found: +{found}")
        return run.err

    def train(self, *arguments):
        run = self.words("input.toml", "data.format=synthetic", "run.steps=2", "checkpoint.every=2",
                         f"run.output_dir={self.results}", *arguments)
        self.assertEqual((run.code, run.err), (0, ""), run.out)
        return str(next((self.results / "checkpoints").glob("*.h5")))


class CommandLines(Words):
    def test_every_command_has_the_four_parts(self):
        for command, found in {"generate": ".*--nonsense", "eval": ".*--nonsense", "schedule show": ".*--nonsense",
                               "mesh": ".*--nonsense", "data": "A subcommand is required",
                               "data show": "files is required",
                               "checkpoint": "A subcommand is required", "schedule": "A subcommand is required",
                               "checkpoint ls": "folder is required"}.items():
            with self.subTest(command=command):
                said = self.refused(found, *command.split(), "--nonsense", ranks=2)
                self.assertIn(f"fix:      p3d {command} --help lists them", said)
        self.refused("none", "generate")
        self.refused("other.h5", "eval", "file.h5", "other.h5")
        said = self.refused("train, which is no command of p3d, before input.toml", "train", "input.toml")
        self.assertIn("fix:      p3d input.toml trains; p3d --help lists the commands", said)
        said = self.refused("chekpoint, which is no command of p3d", "chekpoint", "ls")
        self.assertIn("fix:      did you mean p3d checkpoint ls?", said)
        self.refused("two files: input.toml and other.toml", "input.toml", "other.toml")

    def test_a_number_where_text_is_wanted(self):
        run = self.words("input.toml", "--check", "--verbose", "run.name=2024", "sample.prompt=1e3",
                         "data.path=text.txt")
        self.assertEqual((run.code, run.err), (0, ""))
        for line in ('name = "2024"', 'prompt = "1e3"', f'output_dir = "{self.folder}/runs/2024"'):
            self.assert_once(f"\n{line}\n", run.out)
        for word in ("run.steps=many", "run.steps=1.5", "optimizer.lr=true", "run.precision=64"):
            self.assertEqual(self.words("input.toml", "--check", word).code, 2, word)

    def test_help_is_no_error(self):
        for command in ("generate", "eval", "checkpoint", "checkpoint show", "schedule", "schedule check", "mesh",
                        "data", "data check", "data tokenize", "tokenizer", "tokenizer train"):
            run = self.words(*command.split(), "--help")
            self.assertEqual((run.code, run.err), (0, ""))
            self.assertIn("--help", run.out)

    def test_numbers_that_are_none(self):
        for option, values in {"--temperature": ("nan", "inf", "-1", "1e400", "0.5x", ""),
                               "--top-p": ("nan", "1.01", "-0.1"),
                               "--seed": ("-1", "18446744073709551616", "nan", "1.5"),
                               "--tokens": ("-1", "1e3", "99999999999999999999"),
                               "--top-k": ("-1", "x")}.items():
            for value in values:
                with self.subTest(option=option, value=value):
                    self.refused(f"{option}: {re.escape(value)} is no (whole )?number from 0 to ", "generate",
                                 "file.h5", f"{option}={value}" if value else option, *([] if value else [""]))
        for option, values in {"--flops": ("nan", "0", "-1", "inf"), "--bandwidth": ("nan", "0", "1e999"),
                               "--latency": ("nan", "-1"), "--ranks": ("0", "-4", "99999999999", "nan")}.items():
            for value in values:
                with self.subTest(option=option, value=value):
                    self.refused(f"{option}: {re.escape(value)} is no (whole )?number from ", "schedule", "simulate",
                                 "input.toml", f"{option}={value}")

    def test_options_that_do_not_go_together(self):
        (self.folder / "costs.csv").write_text("0,1,1,1\n")
        for found, words in (
                ("--stop: an empty string", ("generate", "x.h5", "--stop", "")),
                ("--logprobs requires --json", ("generate", "x.h5", "--logprobs", "3")),
                ("several --ranks", ("plan", "input.toml", "--cluster", "c.toml", "--ranks", "2,4", "--out",
                                     "x.toml")),
                ("--front", ("plan", "input.toml", "--cluster", "c.toml", "--as-is", "--front")),
                (".*--svg", ("schedule", "check", "input.toml", "--svg", "x.svg")),
                ("--tokenizer requires --file", ("eval", "x.h5", "--tokenizer", "bytes")),
                ("--(unit|costs) excludes --(unit|costs)", ("schedule", "simulate", "input.toml", "--unit", "--costs",
                                                            "costs.csv"))):
            with self.subTest(found):
                self.refused(found, *words, ranks=2)

    def test_a_schedule_that_takes_no_time(self):
        (self.folder / "costs.csv").write_text("0,0,0,0\n1,0,0,0\n")
        for command in ("simulate", "compare"):
            run = self.words("schedule", command, "input.toml", "parallel.pp=2", "pipeline.schedule=1f1b", "--costs",
                             "costs.csv", "--svg", "zero.svg", "--latency", "0")
            self.assertEqual((run.code, run.err), (0, ""), run.out)
            self.assertNotIn("nan", run.out + (self.folder / "zero.svg").read_text())
        self.refused('"0,1,1,1"', "schedule", "simulate", "input.toml", "--costs", self.costs("0,0,0,0\n0,1,1,1\n"))

    def costs(self, text):
        (self.folder / "other.csv").write_text(text)
        return "other.csv"

    def test_written_files_are_no_inputs(self):
        table = self.costs("0,1,1,1\n")
        self.refused(f"--csv {table}, which is read", "schedule", "show", "input.toml", "--costs", table, "--csv",
                     table)
        self.refused("--text ./input.toml, which is read", "schedule", "show", "input.toml", "--text", "./input.toml")
        self.assertEqual((self.folder / "input.toml").read_text(), program.MODEL)

    def test_a_layout_that_would_wrap(self):
        file = self.train()
        for word in ("parallel.tp=99999999999", "parallel.tp=4294967297", "parallel.pp=0", "parallel.dp=two"):
            with self.subTest(word=word):
                said = self.refused(f'.*{word.partition("=")[2]}', "generate", file, word)
                self.assertIn(f"where:    command line: {word}\n", said)

    def test_output_that_gets_nowhere(self):
        file = self.train()
        for arguments in (["--check", "input.toml"], ["--help"], ["--version"], ["schedule", "show", "input.toml"],
                          ["checkpoint", "ls", str(self.results / "checkpoints")], ["checkpoint", "show", file],
                          ["generate", file, "--tokens", "2"], ["input.toml", "run.steps=1", "checkpoint.every=0"]):
            with self.subTest(arguments=arguments), open("/dev/full", "wb") as full:
                done = subprocess.run([program.PROGRAM, *arguments], cwd=self.folder, stdout=full,
                                      stderr=subprocess.PIPE, text=True, timeout=program.PATIENCE)
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertEqual(done.stderr.count("expected: standard output that can be written"), 1, done.stderr)


class Text(Words):
    def test_tokens_that_are_no_bytes(self):
        self.refused("tokens 3, vocab_size 257", "input.toml", "data.format=synthetic", "model.vocab_size=257",
                     "sample.tokens=3", "run.steps=1")
        file = self.train("model.vocab_size=257")
        said = self.refused("model.vocab_size = 257", "generate", file, "--tokens", "3")
        self.assertIn("at most 256 tokens: this tokenizer makes a token of each byte", said)

    def test_a_prompt_beyond_the_vocabulary(self):
        small = ("data.format=synthetic", "model.vocab_size=60", "run.steps=1")
        self.refused("byte 65", "input.toml", *small, "sample.tokens=3", "sample.prompt=A")
        file = self.train("model.vocab_size=60")
        self.refused("token 122", "generate", file, "--prompt", "1z", "--tokens", "3")
        good = self.words("generate", file, "--prompt", "1", "--tokens", "3")
        self.assertEqual((good.code, good.err), (0, ""))

    def test_eval_of_a_run_on_synthetic_data(self):
        file = self.train("data.split=0.01", "run.eval_batches=3")
        trained = float(self.metrics()[-1]["eval_loss"])
        (self.folder / "docs.jsonl").write_text('{"text": "some words"}\n' * 9)
        run = self.words("eval", file, "--file", "docs.jsonl")
        self.assertEqual(run.code, 0, run.out + run.err)
        self.assertIn("--file: 1 of 1 file is no text, and read as it is all the same (", run.err)
        for ranks in (0, 2):
            run = self.words("eval", file, "--progress=0", ranks=ranks)
            self.assertEqual((run.code, run.err), (0, ""), run.out)
            self.assertIn("; 12 windows of 16 tokens; synthetic", run.out)  # 3 batches of 4
            found = float(re.search(r"loss (\d+\.\d+)", run.out)[1])
            self.assertTrue(math.isclose(found, trained, rel_tol=1e-5), (run.out, trained))

    def test_windows_of_a_validation(self):
        (self.folder / "few.txt").write_text("few words " * 20)  # 200 tokens: 19 for validation, a window
        (self.folder / "more.txt").write_text("many more words " * 200)  # 3200 tokens: 319, 19 windows
        for weight, ran, evaluated in ((1000, "16 reads of 1 of 20 windows", "makes 16 reads of 1 of them"),
                                       (1, "16 reads of 9 of 20 windows", "makes 16 reads of 9 of them"),
                                       (0, "16 of 19 windows", "reads 16 of them")):
            with self.subTest(weight=weight):
                source = f'data.source=[{{path="few.txt", weight={weight}}}, {{path="more.txt", weight=1}}]'
                run = self.words("input.toml", "data.split=0.1", "run.steps=1", "run.eval_batches=4",
                                 f"run.output_dir={self.results}-{weight}",
                                 *(["data.path=[]", source] if weight else ["data.path=more.txt"]))
                self.assertEqual((run.code, run.err), (0, ""), run.out)
                self.assertRegex(run.out, rf"validation loss [0-9.]+ \(perplexity [0-9.]+; {ran}\)")
                model = f"{self.results}-{weight}"
                self.assertIn(f" (each validation of the run itself {evaluated}); ", self.words("eval", model).out)
                shorter = self.words("eval", model, "--seq-len", "8")
                self.assertEqual(shorter.code, 0, shorter.err)
                self.assertIn("of 8 tokens, the whole validation split; ", shorter.out)

    def test_nothing_to_predict(self):
        text = "".join(f"line {i} is no other line\n" for i in range(100))
        (self.folder / "text.txt").write_text(text + "\n" * (len(text) // 8))  # more than the last tenth
        for masks in ("data.eod_mask_loss=true", "data.pack=true"):
            with self.subTest(masks=masks):
                words = ("input.toml", "data.split=0.1", "data.eod_token=10", masks, "run.steps=1")
                said = self.refused(r"none in \d+ windows \(data.split = 0.1\): no target counts behind data.eod_token",
                                    *words, f"run.output_dir={self.results}-no")
                self.assertIn("run.eval_batches = 0", said)
                where = f"run.output_dir={self.results}-{masks[5:8]}"
                run = self.words(*words, "run.eval_batches=0", where)
                self.assertEqual((run.code, run.err), (0, ""), run.out)
                self.refused("none: no target counts behind the end of a document", "eval", where[15:], ranks=2)
        (self.folder / "text.txt").write_text("\n" * 1000)
        run = self.words("input.toml", "data.split=0", "data.eod_token=10", "data.eod_mask_loss=true", "run.steps=3",
                         f"run.output_dir={self.results}-empty")
        self.assertEqual(run.code, 0, run.out + run.err)
        self.assert_once("warning: step 1 has no token to predict", run.err)
        self.assertEqual(run.err.count("\n"), 1, run.err)

    def test_eval_of_other_data_than_the_runs(self):
        words = ("run.steps=1", "checkpoint.every=1", "data.split=0.1", f"run.output_dir={self.results}")
        run = self.words("input.toml", *words)
        self.assertEqual((run.code, run.err), (0, ""), run.out)
        file = str(next((self.results / "checkpoints").glob("*.h5")))
        same = self.words("eval", file, "--progress=0", "--seq-len", "64")
        self.assertEqual((same.code, same.err), (0, ""), same.out)
        for length in ("465", str(1 << 24)):  # of 4656 bytes 465 are held out
            said = self.refused(length, "eval", file, "--seq-len", length, ranks=2)
            self.assertIn("--seq-len of at most 464: the data of the run", said)
        text = self.folder / "text.txt"
        text.write_text(text.read_text().replace("line 7 ", "line 8 "))
        said = self.refused("training data: hash [0-9a-f]{16} in the checkpoint, [0-9a-f]{16} here", "eval", file,
                            ranks=2)
        self.assertIn("--file", said)
        self.assertEqual(self.words("eval", file, "--progress=0", "--file", "text.txt").code, 0)

    def test_eval_of_learned_positions(self):
        file = self.train("model.position=learned", "data.split=0.1")
        for more in ((), ("--file", "text.txt")):
            said = self.refused("17", "eval", file, "--seq-len", "17", *more)
            self.assertIn("fix:      leave it out, or give at most 16\n", said)

    def test_eval_of_weights_that_are_no_numbers(self):
        done = self.words("export", self.train(), "model")
        self.assertEqual(done.code, 0, done.out + done.err)
        weights = self.folder / "model" / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-64] + b"\xff" * 64)  # NaN in every type
        run = self.words("eval", "model", "--file", "text.txt", "--tokenizer", "bytes", "--progress=0", ranks=2)
        self.assertEqual(run.code, 4, run.out + run.err)
        self.assertIn("loss nan nats per token", run.out)
        self.assert_once("expected: a finite loss\nfound:    loss nan\nwhere:    ", run.err)

    def test_eval_without_a_validation_split(self):
        file = self.train("data.split=0")
        said = self.refused(r"a run that trained on all of its data \(data.split = 0\)", "eval", file, ranks=2)
        self.assertIn("--file", said)

    def test_eval_of_a_short_text(self):
        file = self.train()
        (self.folder / "short.txt").write_text("short")
        said = self.refused("5 bytes", "eval", file, "--file", "short.txt", ranks=2)
        self.assertIn("at least 17 bytes", said)
        self.assertIn("where:    --file short.txt", said)
        self.assertNotRegex(said, r"data\.|lower|seq_len")  # keys that eval does not take
        self.refused(".*missing.txt: No such file or directory", "eval", file, "--file", "missing.txt", ranks=2)


if __name__ == "__main__":
    unittest.main()
