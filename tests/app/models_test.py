# SPDX-License-Identifier: Apache-2.0
"""Models in Hugging Face form: import, evaluate, export, and train from them (model.load). The models and their losses
are those of tests/golden/hugging_face, made by transformers."""
import json
import pathlib
import re
import shutil
import struct
import unittest

import program
from program import AppTest

MODELS = program.SOURCE / "tests/golden/hugging_face"
CASES = ("gpt2", "llama", "llama3", "mistral")
EXPERTS = ("mixtral", "qwen2_moe")


def tensors(folder):
    """{name: (dtype, shape, bytes)} of all safetensors files of a folder."""
    found = {}
    for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
        data = path.read_bytes()
        end = 8 + struct.unpack("<Q", data[:8])[0]
        assert end % 8 == 0, path
        header = json.loads(data[8:end])
        header.pop("__metadata__", None)
        for name, t in header.items():
            assert name not in found, name
            begin, stop = t["data_offsets"]
            found[name] = (t["dtype"], tuple(t["shape"]), data[end + begin:end + stop])
    return found


def expected(case, word):
    lines = (MODELS / f"{case}.reference.txt").read_text().splitlines()
    return [line.split()[1:] for line in lines if line.startswith(word + " ")]


class Models(AppTest):
    def p3d(self, *words, ranks=0):
        run = program.Run(ranks, [str(w) for w in words], self.folder)
        self.addCleanup(run.kill)
        run.finish()
        return run

    def good(self, *words, ranks=0):
        run = self.p3d(*words, ranks=ranks)
        self.assertEqual(run.code, 0, run.text)
        return run.out

    def refused(self, *words, parts):
        run = self.p3d(*words)
        self.assertEqual(run.code, 2, run.text)
        for part in parts:
            self.assertIn(part, run.err)
        return run.err

    def copy(self, case):
        """A model that may be changed."""
        to = self.folder / "changed"
        shutil.copytree(MODELS / case, to)
        return to

    def change_config(self, case, **changes):
        folder = self.copy(case)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **changes}))
        return folder

    def test_losses_are_those_of_transformers(self):
        for case in CASES:
            (size, loss), = expected(case, "eval")
            (self.folder / "eval.txt").write_bytes((program.SOURCE / "LICENSE").read_bytes()[:int(size)])
            self.good("import", MODELS / case, f"{case}.h5", "--precision", "fp64")
            said = self.good("eval", f"{case}.h5", "--file", "eval.txt")
            self.assertAlmostEqual(float(re.search(r"loss ([0-9.]+)", said)[1]), float(loss), delta=1e-9)
            # The same without a checkpoint, and in the types of the folder.
            for words, tolerance in ((("--precision", "fp64"), 1e-9), ((), 1e-5)):
                said = self.good("eval", MODELS / case, "--file", "eval.txt", *words)
                self.assertAlmostEqual(float(re.search(r"loss ([0-9.]+)", said)[1]), float(loss), delta=tolerance)
        self.refused("eval", MODELS / "gpt2", parts=["the folder of a model, which names no data", "--file"])

    def test_a_text_shorter_than_the_sequences_of_the_model(self):
        folder = self.change_config("llama3", max_position_embeddings=131072)
        (self.folder / "short.txt").write_bytes((program.SOURCE / "LICENSE").read_bytes()[:500])
        said = self.refused("eval", folder, "--file", "short.txt", parts=["at least 131073 bytes", "--seq-len"])
        self.assertIn("500 bytes", said)
        said = self.good("eval", folder, "--file", "short.txt", "--seq-len", "32")
        self.assertIn("; 15 windows of 32 tokens; ", said)
        self.assertEqual(said.split(";")[0].split(": ")[1:],
                         self.good("eval", MODELS / "llama3", "--file", "short.txt", "--seq-len",
                                   "32").split(";")[0].split(": ")[1:])
        # And no memory is taken for 131,072 tokens of a text that will have 24.
        words = ("--prompt", "This", "--tokens", "20", "--temperature", "0")
        self.assertEqual(self.good("generate", folder, *words), self.good("generate", MODELS / "llama3", *words))

    def test_greedy_texts_are_those_of_transformers(self):
        licence = (program.SOURCE / "LICENSE").read_text()
        for case in CASES:
            self.good("import", MODELS / case, f"{case}.h5", "--precision", "fp64")
            texts = [[int(word) for word in line] for line in expected(case, "greedy")]
            self.assertEqual(len(texts), 2)
            words = ["generate", f"{case}.h5", "--temperature", "0", "--tokens", "20", "--json"]
            for size, *_ in texts:
                words += ["--prompt", licence[:size]]
            for layout, ranks in ((), 0), (("parallel.tp=2",), 2), (("parallel.pp=2",), 2):
                found = [json.loads(line)["tokens"] for line in self.good(*words, *layout, ranks=ranks).splitlines()]
                self.assertEqual(found, [tokens for _, *tokens in texts], (case, layout))
            words[1] = MODELS / case
            found = [json.loads(line)["tokens"] for line in self.good(*words, "--precision", "fp64").splitlines()]
            self.assertEqual(found, [tokens for _, *tokens in texts], case)

    def test_exports_have_the_same_bytes(self):
        for case in CASES + EXPERTS:
            self.good("import", MODELS / case, f"{case}.h5")
            self.good("export", f"{case}.h5", f"{case}-out")
            self.assertEqual(tensors(self.folder / f"{case}-out"), tensors(MODELS / case), case)
            self.good("import", f"{case}-out", f"{case}-again.h5")
            self.good("export", f"{case}-again.h5", f"{case}-again")
            for name in ("config.json", "model.safetensors"):
                self.assertEqual((self.folder / f"{case}-out" / name).read_bytes(),
                                 (self.folder / f"{case}-again" / name).read_bytes(), name)

    def test_experts_come_back_from_any_number_of_ranks(self):
        for ranks in (0, 3):
            self.good("import", MODELS / "mixtral", f"{ranks}.h5", ranks=ranks)
            self.good("export", f"{ranks}.h5", f"out-{ranks}", ranks=ranks)
            self.assertEqual(tensors(self.folder / f"out-{ranks}"), tensors(MODELS / "mixtral"))
        self.assertEqual((self.folder / "0.h5").read_bytes(), (self.folder / "3.h5").read_bytes())

    def test_any_number_of_ranks_writes_the_same_files(self):
        for ranks in (0, 3):
            self.good("import", MODELS / "gpt2", f"{ranks}.h5", ranks=ranks)
            self.good("export", f"{ranks}.h5", f"out-{ranks}", "--max-shard-size", "30KB", ranks=ranks)
        self.assertEqual((self.folder / "0.h5").read_bytes(), (self.folder / "3.h5").read_bytes())
        files = [{p.name: p.read_bytes() for p in (self.folder / f"out-{ranks}").iterdir()} for ranks in (0, 3)]
        self.assertEqual(files[0], files[1])
        self.assertIn("model-00002-of-00003.safetensors", files[0])
        index = json.loads(files[0]["model.safetensors.index.json"])
        self.assertEqual(index["metadata"]["total_size"], sum(len(t[2]) for t in tensors(MODELS / "gpt2").values()))
        self.assertEqual(sorted(index["weight_map"]), sorted(tensors(MODELS / "gpt2")))
        self.assertEqual(tensors(self.folder / "out-0"), tensors(MODELS / "gpt2"))

    def test_bf16_comes_back_as_it_was(self):
        self.good("import", MODELS / "llama3", "a.h5")
        self.good("export", "a.h5", "half", "--dtype", "bf16")
        self.good("import", "half", "b.h5")
        self.good("export", "b.h5", "again", "--dtype", "bf16")
        half = tensors(self.folder / "half")
        self.assertEqual({t[0] for t in half.values()}, {"BF16"})
        self.assertEqual(half, tensors(self.folder / "again"))
        for name, (_, shape, data) in tensors(MODELS / "llama3").items():  # rounded to nearest
            for a, b in zip(struct.iter_unpack("<f", data), struct.iter_unpack("<2s", half[name][2])):
                self.assertAlmostEqual(a[0], struct.unpack("<f", b"\0\0" + b[0])[0], delta=abs(a[0]) / 256)

    def train(self, case, ranks, name, *more):
        self.good("", f"model.load={MODELS / case}", "data.format=synthetic", "run.steps=3", "run.precision=fp64",
                  "run.ceiling=false", f"run.name={name}", "batch.global=4", "batch.micro=1", "run.eval_batches=0",
                  *more, ranks=ranks)
        return [float(row["loss"]) for row in program.started.rows(self.folder / "runs" / name / "metrics.csv")]

    def test_every_layout_starts_from_the_weights(self):
        for case in ("gpt2", "llama"):
            alone = self.train(case, 0, f"{case}-1")
            for key in ("dp", "tp", "pp"):
                losses = self.train(case, 2, f"{case}-{key}", f"parallel.{key}=2")
                for a, b in zip(alone, losses, strict=True):
                    self.assertAlmostEqual(a, b, delta=1e-9)
        self.assertIn('position = "rope"', (self.folder / "runs/llama-tp/resolved.toml").read_text())
        again = self.good("runs/llama-tp/resolved.toml", ranks=2)
        self.assertIn("Weights loaded from " + str(MODELS / "llama"), again)

    def test_a_stopped_run_goes_on_from_its_checkpoint(self):
        self.train("gpt2", 0, "stopped", "checkpoint.every=2")
        said = self.good("", f"model.load={MODELS / 'gpt2'}", "data.format=synthetic", "run.steps=4",
                         "run.precision=fp64", "run.ceiling=false", "run.name=stopped", "batch.global=4",
                         "batch.micro=1", "run.eval_batches=0", "checkpoint.every=2")
        self.assertIn("Resumed from", said)
        self.assertNotIn("Weights loaded", said)
        self.good("eval", "runs/stopped/checkpoints/stopped-00000004.h5", "--file", "text.txt")

    def test_another_model_of_the_same_name_is_not_taken_for_it(self):
        size = ["model.hidden=16", "model.heads=4", "model.layers=2", "model.ffn=40", "model.seq_len=32"]
        run = ["data.format=synthetic", "run.steps=1", "run.ceiling=false", "run.name=other", "batch.global=2",
               "run.eval_batches=0", "checkpoint.every=1", "run.precision=fp64"]
        self.good("", *size, *run)
        self.refused("", f"model.load={MODELS / 'gpt2'}", *run, parts=["began with weights of its own", "model.load"])

    def test_what_disagrees_with_the_folder_is_refused(self):
        load = f"model.load={MODELS / 'llama'}"
        self.refused("--check", load, "model.hidden=32", "data.format=synthetic",
                     parts=["model.hidden = 16, as config.json", "remove model.hidden"])
        self.refused("--check", load, "model.preset=llama-tiny", "data.format=synthetic",
                     parts=["one of model.load and model.preset"])
        self.refused("--check", f"model.load={MODELS / 'gpt2'}", "model.seq_len=33", "data.format=synthetic",
                     parts=["model.seq_len of at most 32"])
        self.refused("--check", f"model.load={self.folder}", "data.format=synthetic", parts=["config.json"])

    def test_what_p3d_would_compute_otherwise_is_refused(self):
        folder = self.change_config("llama", sliding_window=16, foo=1, attention_bias=True)
        said = self.refused("import", folder, "x.h5", parts=["config.json", "3 differences", "sliding_window = null",
                                                             '"foo"', "attention_bias = true, mlp_bias = false"])
        self.assertNotIn("mlp_bias = true", said)
        self.assertFalse((self.folder / "x.h5").exists())

    def test_weights_and_config_must_fit(self):
        self.refused("import", self.change_config("llama", num_hidden_layers=1), "x.h5",
                     parts=["model.layers.1.", "only tensors of a llama"])
        shutil.rmtree(self.folder / "changed")
        self.refused("import", self.change_config("llama", intermediate_size=48), "x.h5",
                     parts=["mlp.gate_proj.weight", "[48, 16]", "[40, 16]"])
        shutil.rmtree(self.folder / "changed")
        self.refused("import", self.change_config("llama", tie_word_embeddings=True), "x.h5",
                     parts=["lm_head.weight", "tie_word_embeddings", "other numbers"])
        shutil.rmtree(self.folder / "changed")
        folder = self.copy("llama3")
        (folder / "model-00002-of-00004.safetensors").unlink()
        self.refused("import", folder, "x.h5", parts=["no model-00002-of-00004.safetensors"])

    def test_what_has_no_name_there_is_not_exported(self):
        self.good("", "model.position=rope", "data.format=synthetic", "run.steps=1", "run.ceiling=false",
                  "run.name=mixed", "batch.global=2", "run.eval_batches=0", "checkpoint.every=1")
        self.refused("export", "runs/mixed/checkpoints/mixed-00000001.h5", "out",
                     parts=["position = rope, which GPT-2 does not have"])

    def test_an_older_model_is_not_mixed_with_a_new_one(self):
        self.good("import", MODELS / "gpt2", "a.h5")
        self.refused("export", "a.h5", MODELS / "llama", parts=["a folder without a model"])
        self.refused("import", MODELS / "gpt2", "a.h5", parts=["a new file"])


if __name__ == "__main__":
    unittest.main()
