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
CASES = ("gpt2", "llama", "llama3", "mistral", "mistral_nemo", "qwen2", "qwen3", "olmo2", "olmo3",
         "granite", "glm4", "gemma2", "gemma3", "phi3", "phi3_long", "ministral3", "yarn", "smollm3", "apertus")
EXPERTS = ("mixtral", "qwen2_moe", "qwen2_moe_bias", "qwen3_moe", "olmoe", "glm4_moe", "deepseek_v3",
           "deepseek_v3_plain", "deepseek_v3_mtp", "glm4_moe_mtp", "gpt_oss")


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


def add_tensors(path, names):
    """Adds tensors [1] of fp32 to a safetensors file."""
    data = path.read_bytes()
    end = 8 + struct.unpack("<Q", data[:8])[0]
    header, numbers = json.loads(data[8:end]), data[end:]
    for name in names:
        header[name] = {"dtype": "F32", "shape": [1], "data_offsets": [len(numbers), len(numbers) + 4]}
        numbers += bytes(4)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + numbers)


def change_tensor(path, name, data):
    """Overwrites the bytes of a tensor of a safetensors file."""
    old = path.read_bytes()
    size = struct.unpack("<Q", old[:8])[0]
    begin, end = (8 + size + offset for offset in json.loads(old[8:8 + size])[name]["data_offsets"])
    assert end - begin == len(data)
    path.write_bytes(old[:begin] + data + old[end:])


def remove_tensors(path, ending):
    """Removes the tensors with this ending from a safetensors file."""
    data = path.read_bytes()
    end = 8 + struct.unpack("<Q", data[:8])[0]
    header, kept, numbers = json.loads(data[8:end]), {}, b""
    for name, tensor in header.items():
        if name.endswith(ending):
            continue
        if name != "__metadata__":
            begin, stop = (end + offset for offset in tensor["data_offsets"])
            tensor["data_offsets"] = [len(numbers), len(numbers) + stop - begin]
            numbers += data[begin:stop]
        kept[name] = tensor
    text = json.dumps(kept).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + numbers)


def expected(case, word):
    lines = (MODELS / f"{case}.reference.txt").read_text().splitlines()
    return [line.split()[1:] for line in lines if line.startswith(word + " ")]


def byte_tokenizer(turned):
    """tokenizer.json of a token for each byte, byte-level as GPT-2's; the ids are turned by so many."""
    plain = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    others = [b for b in range(256) if b not in plain]
    names = {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(others)}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return json.dumps({"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": level,
                       "post_processor": None, "decoder": level,
                       "model": {"type": "BPE", "vocab": {names[b]: (b + turned) % 256 for b in range(256)},
                                 "merges": []}})


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

    def test_the_list_of_model_types(self):
        types = [line.split()[0] for line in self.good("import", "--list").splitlines()]
        self.assertLessEqual({"gpt2", "llama", "mixtral", "smollm3"}, set(types))
        text = (program.SOURCE / "docs/model_files.md").read_text()
        for name in types:
            self.assertIn(f"`{name}`", text.split("```")[0], "docs/model_files.md begins with all model types")

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
        for case in CASES + EXPERTS:
            self.good("import", MODELS / case, f"{case}.h5", "--precision", "fp64")
            texts = [[int(word) for word in line] for line in expected(case, "greedy")]
            self.assertEqual(len(texts), 2)
            # Models with multi-token prediction have 32 positions, and generate as their twins without do.
            length = "20" if case.endswith("_mtp") else "40"
            words = ["generate", f"{case}.h5", "--temperature", "0", "--tokens", length, "--json"]
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
        for case in "mixtral", "gpt_oss":
            for ranks in (0, 3):
                self.good("import", MODELS / case, f"{case}-{ranks}.h5", ranks=ranks)
                self.good("export", f"{case}-{ranks}.h5", f"{case}-{ranks}", ranks=ranks)
                self.assertEqual(tensors(self.folder / f"{case}-{ranks}"), tensors(MODELS / case))
            self.assertEqual((self.folder / f"{case}-0.h5").read_bytes(), (self.folder / f"{case}-3.h5").read_bytes())

    def test_quantised_weights_of_gpt_oss_are_refused(self):
        folder = self.change_config("gpt_oss", quantization_config={"quant_method": "mxfp4"})
        self.refused("import", folder, "a.h5", parts=["no quantization_config", "Mxfp4Config(dequantize=True)"])

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

    def test_an_export_that_was_killed_can_be_repeated(self):
        self.good("import", MODELS / "gpt2", "whole.h5")
        (self.folder / "half").mkdir()
        (self.folder / "half/model-00001-of-00002.safetensors.part").write_bytes(b"unfinished")
        self.good("export", "whole.h5", "half")
        self.assertEqual(tensors(self.folder / "half"), tensors(MODELS / "gpt2"))
        self.assertEqual([path for path in (self.folder / "half").iterdir() if path.name.endswith(".part")], [])

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

    def test_biases_of_the_choice_of_experts_keep_32_bits(self):
        self.good("import", MODELS / "glm4_moe", "a.h5")
        self.good("export", "a.h5", "half", "--dtype", "bf16")
        half, whole = tensors(self.folder / "half"), tensors(MODELS / "glm4_moe")
        biases = {name for name in whole if name.endswith("mlp.gate.e_score_correction_bias")}
        self.assertEqual(len(biases), 2)
        for name, tensor in half.items():
            self.assertEqual(tensor[0], "F32" if name in biases else "BF16", name)
        for name in biases:
            self.assertEqual(half[name], whole[name])

    def test_biases_of_the_choice_of_experts_move_where_a_rate_says_so(self):
        before = tensors(MODELS / "glm4_moe")
        for name, words, moved in (("constant", (), False), ("offloaded", ("memory.offload_optimizer=disk",), False),
                                   ("moving", ("model.moe.bias_update_rate=0.5",), True)):
            self.train("glm4_moe", 0, name, "checkpoint.every=3", *words)
            self.good("export", f"runs/{name}/checkpoints/{name}-00000003.h5", f"{name}-out", "--dtype",
                      "fp32")
            after = tensors(self.folder / f"{name}-out")
            for tensor, (*_, numbers) in before.items():
                bias = tensor.endswith("e_score_correction_bias")
                self.assertEqual(after[tensor][2] != numbers, moved or not bias, tensor)

    def test_a_common_offset_of_biases_changes_no_choice(self):
        """Published biases lie in a narrow band around a large number, which 16 bits would round away."""
        for case in ("deepseek_v3", "glm4_moe"):
            folder = self.copy(case)
            losses = {}
            for offset in (0.0, 7.0):
                for name, (dtype, shape, data) in tensors(MODELS / case).items():
                    if name.endswith("e_score_correction_bias"):
                        numbers = [0.01 * b + offset for b in struct.unpack(f"<{len(data) // 4}f", data)]
                        change_tensor(folder / "model.safetensors", name, struct.pack(f"<{len(numbers)}f", *numbers))
                for precision in ("fp64", "bf16", "fp16"):
                    said = self.good("eval", folder, "--file", program.SOURCE / "LICENSE", "--precision", precision)
                    losses[precision, offset] = float(re.search(r"loss ([0-9.]+)", said)[1])
            for precision, tolerance in (("fp64", 1e-7), ("bf16", 1e-4), ("fp16", 1e-4)):
                self.assertAlmostEqual(losses[precision, 0.0], losses[precision, 7.0], delta=tolerance)
            shutil.rmtree(folder)

    def test_constants_of_an_activation_function(self):
        folder = self.copy("apertus")
        weights, whole = folder / "model.safetensors", tensors(MODELS / "apertus")
        self.assertEqual(whole["model.layers.0.mlp.act_fn.beta"], ("F32", (), struct.pack("<f", 0.5)))
        for ending in ("act_fn.beta", "act_fn.eps"):  # a file may lack them; p3d writes them
            remove_tensors(weights, ending)
        self.good("import", folder, "a.h5")
        self.good("export", "a.h5", "out", "--dtype", "fp32")
        self.assertEqual(tensors(self.folder / "out"), whole)
        self.good("export", "a.h5", "half", "--dtype", "bf16")
        self.assertEqual(tensors(self.folder / "half")["model.layers.1.mlp.act_fn.eps"], ("BF16", (), b"\x86\xb5"))
        self.good("import", "half", "b.h5")
        self.good("export", "b.h5", "again", "--dtype", "bf16")
        self.assertEqual(tensors(self.folder / "half"), tensors(self.folder / "again"))
        shutil.copyfile(MODELS / "apertus/model.safetensors", weights)
        change_tensor(weights, "model.layers.1.mlp.act_fn.beta", struct.pack("<f", 0.25))
        self.refused("import", folder, "c.h5", parts=["0.5, the number of all models of the family apertus", "0.25",
                                                      "tensor model.layers.1.mlp.act_fn.beta"])
        remove_tensors(weights, "layers.1.mlp.act_fn.alpha_n")
        self.refused("import", folder, "c.h5", parts=["the tensor model.layers.1.mlp.act_fn.alpha_n [1]"])

    def test_layers_of_multi_token_prediction_without_tensors_are_left_out(self):
        folder = self.change_config("glm4_moe", num_nextn_predict_layers=1)
        run = self.p3d("import", folder, "a.h5")
        self.assertEqual(run.code, 0, run.text)
        self.assertIn("num_nextn_predict_layers = 1, layers of multi-token prediction behind the 3 of", run.text)
        said = self.good("export", "a.h5", "out")
        self.assertIn("num_nextn_predict_layers = 0 (1 in the origin; model.mtp.depth of the run)", said)
        self.assertEqual(tensors(self.folder / "out"), tensors(MODELS / "glm4_moe"))
        add_tensors(folder / "model.safetensors", ["model.layers.3.eh_proj.weight"])
        self.refused("import", folder, "b.h5", parts=["the tensor model.layers.3.", "none"])
        shutil.rmtree(folder)
        # A layer without such a linear is one of the model, of which config.json says too few.
        folder = self.change_config("glm4_moe", num_nextn_predict_layers=1, num_hidden_layers=2)
        self.refused("import", folder, "b.h5", parts=["model.layers.2.", "only tensors of a glm4_moe"])

    def test_layers_of_multi_token_prediction_come_in_and_go_out(self):
        for case, depth in (("deepseek_v3_mtp", 1), ("glm4_moe_mtp", 2)):
            self.good("import", MODELS / case, f"{case}.h5")
            said = self.good("export", f"{case}.h5", f"out-{case}", ranks=2)
            self.assertNotIn("in the origin", said)
            self.assertEqual(tensors(self.folder / f"out-{case}"), tensors(MODELS / case))
            self.assertIn(f'"num_nextn_predict_layers": {depth}', (self.folder / f"out-{case}/config.json").read_text())
            # Trained on several ranks they are exported, too; and they may be left out.
            self.train(case, 2, f"on-{case}", "parallel.pp=2", "checkpoint.every=3")
            self.good("export", f"runs/on-{case}/checkpoints/on-{case}-00000003.h5", f"new-{case}", "--dtype", "fp32")
            new = tensors(self.folder / f"new-{case}")
            self.assertEqual(sorted(new), sorted(tensors(MODELS / case)))
            self.assertEqual(new["model.layers.2.embed_tokens.weight"], new["model.embed_tokens.weight"])
            self.train(case, 0, f"off-{case}", "model.mtp.depth=0", "checkpoint.every=3")
            self.good("export", f"runs/off-{case}/checkpoints/off-{case}-00000003.h5", f"less-{case}")
            self.assertEqual(sorted(tensors(self.folder / f"less-{case}")),
                             [name for name in sorted(new) if not name.startswith(("model.layers.2.",
                                                                                   "model.layers.3."))])
            self.refused("--check", f"model.load={MODELS / case}", "data.format=synthetic", "model.mtp.depth=3",
                         parts=[f"model.mtp.depth = {depth}, as config.json"])
        folder = self.copy("deepseek_v3_mtp")
        for name, like in (("embed_tokens", "model.embed_tokens.weight"), ("shared_head.head", "lm_head.weight")):
            path = folder / "model.safetensors"
            before = path.read_bytes()
            change_tensor(path, f"model.layers.2.{name}.weight", b"\0" * (256 * 16 * 4))
            self.refused("import", folder, "b.h5",
                         parts=[f"model.layers.2.{name}.weight like {like}", "other numbers"])
            path.write_bytes(before)

    def train(self, case, ranks, name, *more):
        self.good("", f"model.load={MODELS / case}", "data.format=synthetic", "run.steps=3", "run.precision=fp64",
                  "run.ceiling=false", f"run.name={name}", "batch.global=4", "batch.micro=1", "run.eval_batches=0",
                  "checkpoint.every=0", *more, ranks=ranks)
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

    def test_a_run_goes_on_from_the_model_that_it_began_with(self):
        keys = ("data.format=synthetic", "run.steps=2", "run.precision=fp64", "run.ceiling=false", "run.name=begun",
                "batch.global=2", "batch.micro=1", "run.eval_batches=0", "checkpoint.every=1")
        self.good("", f"model.load={MODELS / 'gpt2'}", *keys)
        same = self.copy("gpt2")  # the same weights in another folder
        self.assertIn("Resumed from", self.good("", f"model.load={same}", *keys, "run.steps=3"))
        weights = same / "model.safetensors"
        changed = bytearray(weights.read_bytes())
        changed[-5] ^= 1
        weights.write_bytes(changed)
        self.refused("", f"model.load={same}", *keys, "run.steps=4", parts=["began with the weights", str(same)])

    def test_another_tokenizer_than_the_models_is_named(self):
        folder = self.copy("llama")
        text = str(self.folder / "text.txt")
        (folder / "tokenizer.json").write_text(byte_tokenizer(1))
        keys = (f"model.load={folder}", "run.steps=1", "run.ceiling=false", "run.eval_batches=0", "checkpoint.every=0")
        warning = f"a tokenizer of its own, {folder}/tokenizer.json, and data.tokenizer = \"bytes\" gives other tokens"
        self.assertIn(warning, self.good("--check", *keys, f"data.path={text}"))
        run = self.p3d("", *keys, f"data.path={text}")
        self.assertEqual(run.code, 0, run.text)
        self.assertIn(warning, run.text)
        self.assertNotIn(warning, self.good("--check", *keys, "data.format=synthetic"))
        self.good("data", "tokenize", text, "--tokenizer", folder / "tokenizer.json", "--out", self.folder / "tokens")
        self.assertNotIn(warning, self.good("--check", *keys, "data.format=megatron", f"data.path={self.folder}/tokens",
                                            "data.split=0", f"data.tokenizer={folder}/tokenizer.json"))

    def test_what_disagrees_with_the_folder_is_refused(self):
        load = f"model.load={MODELS / 'llama'}"
        self.refused("--check", load, "model.hidden=32", "data.format=synthetic",
                     parts=["model.hidden = 16, as config.json", "remove model.hidden"])
        self.refused("--check", load, "model.preset=llama-tiny", "data.format=synthetic",
                     parts=["one of model.load and model.preset"])
        self.refused("--check", f"model.load={MODELS / 'gpt2'}", "model.seq_len=65", "data.format=synthetic",
                     parts=["model.seq_len of at most 64"])
        self.refused("--check", f"model.load={self.folder}", "data.format=synthetic", parts=["config.json"])
        self.refused("import", str(MODELS / "mixtral"), "x.h5", "model.moe.aux_loss=global",
                     parts=["keys that leave the arrays of the model as they are", "model.moe.aux_loss=global"])

    def published(self, case):
        """A model as they are published: with keys that p3d does not use, and files beside it."""
        folder = self.change_config(case, bos_token_id=1, eos_token_id=[2, 3], is_llama_config=True,
                                    rope_interleaved=False)
        beside = {"generation_config.json": '{"temperature": 0.6, "eos_token_id": [2, 3]}',
                  "tokenizer_config.json": '{"tokenizer_class": "Mine", "chat_template": "{{ messages }}"}',
                  "special_tokens_map.json": '{"bos_token": "a"}', "added_tokens.json": "{}",
                  "chat_template.jinja": "{{ messages }}\n", "vocab.json": "{}", "merges.txt": "#version: 0.2\n",
                  "tokenizer.json": byte_tokenizer(0)}
        for name, text in beside.items():
            (folder / name).write_text(text)
        return folder, {"config.json": (folder / "config.json").read_text(), **beside}

    def beside(self, folder):
        return {p.name: p.read_text() for p in (self.folder / folder).iterdir() if p.suffix != ".safetensors"}

    def test_the_files_beside_a_model_come_back(self):
        origin, files = self.published("llama")
        self.good("import", origin, "a.h5")
        self.assertIn("model files   config.json, generation_config.json, tokenizer.json",
                      self.good("checkpoint", "show", "a.h5"))
        keys = ("data.format=synthetic", "run.precision=fp64", "run.ceiling=false", "batch.global=4", "batch.micro=1",
                "run.eval_batches=0", "checkpoint.every=2", "model.seq_len=16")
        load = f"model.load={origin}"
        self.good("", load, *keys, "run.steps=2", "run.name=loaded", ranks=2)
        resumed = self.good("", load, *keys, "run.steps=4", "run.name=loaded")
        self.assertIn("Resumed from", resumed)
        sizes = ["model.hidden=16", "model.heads=4", "model.kv_heads=2", "model.layers=2", "model.ffn=40",
                 "model.norm=rmsnorm", "model.position=rope", "model.activation=swiglu", "model.bias=false",
                 "model.tied_embeddings=false", "model.vocab_size=256"]
        self.good("", *sizes, *keys, "run.steps=2", "run.name=weights", "checkpoint.resume=a.h5",
                  "checkpoint.load=weights")
        shutil.rmtree(origin)  # the checkpoints are enough
        for number, file in enumerate(("a.h5", "runs/loaded/checkpoints/loaded-00000002.h5",
                                       "runs/loaded/checkpoints/loaded-00000004.h5",
                                       "runs/weights/checkpoints/weights-00000002.h5")):
            said = self.good("export", file, f"out-{number}", ranks=2 if number == 2 else 0)
            self.assertEqual(self.beside(f"out-{number}"), files, file)
            kept = ("config.json: max_position_embeddings = 64, as in the origin, although model.seq_len of the run is "
                    "16")
            self.assertEqual([line for line in said.splitlines() if line.startswith("config.json")],
                             [kept] if number > 0 else [])
        said = self.good("export", "a.h5", "half", "--dtype", "bf16")
        self.assertIn('config.json: dtype = "bfloat16" ("float64" in the origin; --dtype', said)
        self.assertEqual(json.loads(self.beside("half")["config.json"]),
                         {**json.loads(files["config.json"]), "dtype": "bfloat16"})
        (self.folder / "taken").mkdir()
        (self.folder / "taken/chat_template.jinja").write_text("mine")
        self.refused("export", "a.h5", "taken", parts=["a folder without a model", "chat_template.jinja"])
        self.assertEqual(self.beside("taken"), {"chat_template.jinja": "mine"})

    def test_learned_positions_are_as_many_as_were_trained(self):
        origin, files = self.published("gpt2")
        self.train(origin, 0, "short", "model.seq_len=16", "checkpoint.every=3")
        said = self.good("export", "runs/short/checkpoints/short-00000003.h5", "out")
        self.assertIn("config.json: n_positions = 16 (64 in the origin)", said)
        found = self.beside("out")
        self.assertEqual(json.loads(found.pop("config.json")), {**json.loads(files.pop("config.json")),
                                                                "n_positions": 16})
        self.assertEqual(found, files)

    def test_another_tokenizer_takes_the_place_of_the_origins(self):
        origin, files = self.published("llama")
        (self.folder / "other.json").write_text(byte_tokenizer(1))
        self.train(origin, 0, "other", "data.tokenizer=other.json", "checkpoint.every=3")
        said = self.good("export", "runs/other/checkpoints/other-00000003.h5", "out")
        self.assertIn("Left out: tokenizer.json, tokenizer_config.json, special_tokens_map.json, added_tokens.json, "
                      "vocab.json, merges.txt, chat_template.jinja of the origin, as the tokenizer of the run is "
                      "another one, other.json", said)
        found = self.beside("out")
        self.assertEqual(found["tokenizer.json"], byte_tokenizer(1))
        self.assertEqual(found["generation_config.json"], files["generation_config.json"])
        self.assertEqual(sorted(found), ["config.json", "generation_config.json", "tokenizer.json",
                                         "tokenizer_config.json"])

    def test_an_origin_can_be_named(self):
        origin, files = self.published("llama")
        for name in files:
            if name != "config.json":
                (origin / name).unlink()
        self.good("import", origin, "a.h5")
        (origin / "generation_config.json").write_text(files["generation_config.json"])
        self.good("export", "a.h5", "out", "--origin", origin)
        self.assertEqual(sorted(self.beside("out")), ["config.json", "generation_config.json"])
        self.good("import", MODELS / "mistral", "b.h5")
        self.refused("export", "b.h5", "other", "--origin", origin, parts=["as the model has it", "config.json"])
        self.assertFalse((self.folder / "other").exists())

    def test_what_balances_experts_is_no_part_of_a_model(self):
        """aux_loss "global" keeps the load of every expert beside the router: in checkpoints, not in a folder."""
        for case in EXPERTS:
            self.train(case, 0, case, "model.moe.aux_loss=global", "checkpoint.every=3")
            self.good("export", f"runs/{case}/checkpoints/{case}-00000003.h5", f"{case}-out")
            self.assertEqual(tensors(self.folder / f"{case}-out").keys(), tensors(MODELS / case).keys())
            self.train(self.folder / f"{case}-out", 0, f"{case}-again", "model.moe.aux_loss=global")

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
