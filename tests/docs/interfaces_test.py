# SPDX-License-Identifier: Apache-2.0
"""docs/interfaces.md: each key, command, header and test that it names exists; each row has its test, and none says
"not yet"."""
import re
import unittest

import pages
from pages import ROOT

PAGE = ROOT / "docs/interfaces.md"
# What each system's configuration names: every word must stand in the first column of a row.
FIELDS = {
    "trustformers": "dp_size mp_size pp_size num_micro_batches gradient_accumulation accumulation_steps "
                    "activation_checkpointing NCCL Gloo MPI InfiniBand GPipe PipeDream PipeDream-2BW 1F1B adaptive "
                    "none low medium high extreme 4th 2nd compression offload ZeRO save load pipeline communication "
                    "memory bubbles",
    "torsh": "dp tp pp_size num_layers micro_batch_size validation memory_requirements basic standard aggressive "
             "extreme all-reduce hierarchical ring tree adaptive robin interleaved GPipe 1F1B precision "
             "max_memory_per_device communication_timeout_ms rank heads tails next previous group named buckets "
             "overlapped compression error monitor",
    "MindFormers": "data_parallel model_parallel expert_parallel pipeline_stage micro_batch_num optimizer_shard "
                   "gradient_aggregation_group vocab_emb_dp recompute parallel_optimizer_comm_recompute "
                   "mp_comm_recompute recompute_slice_activation",
    "ml.utils.parallel": "model_parallelism pipeline_parallelism dp backend ranks rank size reduce split gather grid "
                         "init initialised reset error",
    "Megatron Core": "tensor_model_parallel_size pipeline_model_parallel_size virtual_pipeline_model_parallel_size "
                     "microbatch_group_size_per_vp_stage sequence_parallel context_parallel_size hierarchical "
                     "expert_model_parallel_size expert_tensor_parallel_size backend use_cpu_initialization "
                     "perform_initialization fp16 bf16 params_dtype pipeline_dtype autocast timers "
                     "finalize_model_grads grad_sync no_sync grad_scale_func deterministic_mode "
                     "num_microbatches_with_partial_activation_checkpoints gradient_accumulation_fusion "
                     "tp_comm_overlap cross_entropy_loss_fusion overlap_moe_expert_parallel_comm delay_wgrad_compute "
                     "variable_seq_lengths overlap_p2p_comm batch_p2p_comm overlap_p2p_comm_warmup_flush "
                     "use_ring_exchange_p2p deallocate_pipeline_outputs defer_embedding_wgrad_compute "
                     "wgrad_deferral_limit cpu_offloading weights activations order",
}


def test_names():
    """Of GoogleTest (Suite.Name), of ctest, and of scripts that are tests."""
    found = set()
    for path in (ROOT / "tests").rglob("*"):
        if path.suffix == ".cpp":
            found |= {f"{suite}.{name}" for suite, name in
                      re.findall(r"(?m)^TYPED_TEST\((\w+),\s*(\w+)\)", path.read_text())}
            found |= {f"{suite}.{name}" for suite, name in
                      re.findall(r"(?m)^TEST(?:_[FP])?\(\s*(\w+),\s*(\w+)\)", path.read_text())}
        elif path.name == "CMakeLists.txt":
            text = re.sub(r"#.*", "", path.read_text())
            found |= set(re.findall(r"p3d_add_test\((\w+)", text))
            found |= {f"restart_{name}" for name in re.findall(r"p3d_add_restart_test\((\w+) ", text)}
            for items, body in re.findall(r"foreach\(\w+ IN ITEMS ([^)]*)\)\s*add_test\(NAME (\w+)_\$", text):
                found |= {f"{body}_{item}" for item in items.split()}
            found |= {f"comm_failure_{case}" for items in
                      re.findall(r"foreach\(case IN ITEMS ([^)]*)\)", text) for case in items.split()}
    return found


class Checks(unittest.TestCase):
    """What these tests ask can be answered with no."""

    def test_unknown_names_are_found(self):
        self.assertTrue(pages.has_command("checkpoint", "ls"))
        for group in (("checkpoint", "nosuch"), ("nosuch",)):
            self.assertFalse(pages.has_command(*group))
        self.assertNotIn("parallel.nosuch", pages.keys())
        self.assertIn("parallel.tp", pages.keys())
        known = test_names()
        self.assertTrue({"app_input", "invariance", "Recompute.ChangesNoBit"} <= known)
        self.assertFalse({"app_nosuch", "Recompute.NoSuch"} & known)


class Interfaces(unittest.TestCase):
    def setUp(self):
        self.text = PAGE.read_text()
        self.rows = [row for table in pages.tables(self.text) if table[0][:2] == ["field", "p3d"] for row in table[1:]]

    def test_all_systems_are_there(self):
        sections = dict(section.split("\n", 1) for section in re.split(r"(?m)^## ", self.text)[1:])
        for system, fields in FIELDS.items():
            section = [text for heading, text in sections.items() if heading.startswith(system)]
            self.assertEqual(len(section), 1, system)
            words = {word for table in pages.tables(section[0]) for row in table[1:]
                     for word in re.findall(r"[\w-]+", row[0])}
            for field in fields.split():
                with self.subTest(system=system, field=field):
                    self.assertTrue(any(field in word for word in words), "no row")
        self.assertGreater(len(self.rows), 80)

    def test_every_row_has_a_test(self):
        self.assertNotIn("not yet", self.text)
        for field, here, shown in self.rows:
            with self.subTest(field=field):
                self.assertTrue(field and here)
                self.assertTrue(pages.CODE.findall(shown), "no test")

    def test_tests_exist(self):
        known = test_names()
        for field, _, shown in self.rows:
            for name in pages.CODE.findall(shown):
                with self.subTest(field=field, test=name):
                    self.assertIn(name, known)

    def test_keys_commands_and_headers_exist(self):
        known = pages.keys()
        for field, here, _ in self.rows:
            for code in pages.CODE.findall(here):
                with self.subTest(field=field, code=code):
                    if code.startswith("p3d/"):
                        self.assertTrue((ROOT / "include" / code).is_file())
                    elif code.startswith("p3d "):
                        words = [word for word in code.split()[1:] if word != "input.toml"]
                        group = [word for word in words if not word.startswith("-")]
                        self.assertTrue(not group or pages.has_command(*group), "no such command")
                        for option in set(words) - set(group):
                            self.assertRegex(pages.program_says(*group, "--help"), rf"(?m)^ +{option}\b")
                    elif key := re.match(r"([a-z]+\.[a-z_.]+)(?= =|$)", code):
                        self.assertTrue(key[1] in known or key[1] == "resolved.toml", "no such key")

    def test_names_of_cxx_are_in_a_header_of_the_row(self):
        for field, here, _ in self.rows:
            codes = pages.CODE.findall(here)
            names = [code for code in codes if "::" in code]
            headers = "".join((ROOT / "include" / code).read_text() for code in codes if code.startswith("p3d/"))
            for name in names:
                with self.subTest(field=field, name=name):
                    self.assertRegex(headers, rf"\b{name.split('::')[-1]}\b")


if __name__ == "__main__":
    unittest.main()
