# SPDX-License-Identifier: Apache-2.0
"""The generator draws every key of docs/keys.md, and of a key with a list of values every value.

What it leaves out stands here with a reason. Cases are drawn, not run: this needs no program."""
import hashlib
import pathlib
import re
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from cases import BASE, Case  # noqa: E402
from draw import Draw  # noqa: E402
from generate import generate  # noqa: E402
from shrink import shrink  # noqa: E402
import spread  # noqa: E402
from starts import is_deadlock  # noqa: E402

PAGE = pathlib.Path(__file__).resolve().parents[3] / "docs" / "keys.md"
CASES = 2000  # as many as a script runs before a release

# key: why no case has it.
LEFT_OUT = {}
# (key, value): why no case has it.
VALUES_LEFT_OUT = {("linalg.attention", "fused"): "builds without a vendor's library refuse it",
                   ("pipeline.flush", "never"): "it refuses what makes the pipeline empty, and runs what auto runs"}


def keys_of(page):
    """{key: set of its values but the default, empty where it has no list of words}"""
    out = {}
    for line in page.splitlines():
        cells = [cell.strip().replace("\\|", "|").replace("\\_", "_") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) != 4 or not re.fullmatch(r"`[\w.]+`", cells[0]):
            continue
        words = [word.strip().strip('"') for word in cells[2].removeprefix("string: ").split(" | ")]
        named = cells[2].startswith(("string: ", "true | ")) and all(re.fullmatch(r"[\w.]+", word) for word in words)
        out[cells[0].strip("`")] = set(words) - {cells[1].strip('"')} if named and len(words) > 1 else set()
    return out


def drawn(cases):
    """{key: set of values} of all cases; BASE counts, as every case has it."""
    out = {key: {value} for key, value in BASE.items()}
    for case in cases:
        for key, value in {**case.keys, **case.resumed_keys()}.items():
            out.setdefault(key, set()).add(value)
    return out


def compare(page, found, left_out, values_left_out):
    """Messages: keys and values that are missing or unknown, and reasons that nothing needs."""
    known = keys_of(page)
    out = [f"{key}: docs/keys.md has it, no case draws it, and LEFT_OUT gives no reason"
           for key in known if key not in found and key not in left_out]
    out += [f"{key}: cases draw it, docs/keys.md does not have it" for key in found if key not in known]
    out += [f"{key}: LEFT_OUT gives a reason, and " + ("cases draw it" if key in found else "no page has the key")
            for key in left_out if key in found or key not in known]
    for key, values in known.items():
        missing = sorted(value for value in values - found.get(key, values) if (key, value) not in values_left_out)
        if missing:
            out.append(f"{key}: no case draws the value {', '.join(missing)}, and VALUES_LEFT_OUT gives no reason")
    return out


class Keys(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.page = PAGE.read_text()
        cls.found = drawn(generate(seed) for seed in range(1, CASES + 1))

    def test_every_key_is_drawn(self):
        self.assertGreater(len(keys_of(self.page)), 150)
        self.assertEqual(compare(self.page, self.found, LEFT_OUT, VALUES_LEFT_OUT), [])

    def test_a_key_that_is_not_drawn_is_found(self):
        row = '| `model.new_key` | "a" | string: a \\| b | something |\n'
        self.assertEqual(len(compare(self.page + row, self.found, LEFT_OUT, VALUES_LEFT_OUT)), 1)
        self.assertEqual(compare(self.page + row, self.found, {"model.new_key": "reason"}, VALUES_LEFT_OUT), [])
        known = {**self.found, "model.new_key": {"a"}}
        self.assertIn("the value b", compare(self.page + row, known, LEFT_OUT, VALUES_LEFT_OUT)[0])

    def test_a_key_that_is_gone_is_found(self):
        page = self.page.replace("| `memory.shard_over` |", "| `memory.shard_under` |")
        said = "\n".join(compare(page, self.found, LEFT_OUT, VALUES_LEFT_OUT))
        self.assertIn("memory.shard_over: cases draw it, docs/keys.md does not have it", said)
        self.assertIn("memory.shard_under: docs/keys.md has it", said)

    def test_a_reason_that_nothing_needs_is_found(self):
        self.assertEqual(len(compare(self.page, self.found, {"run.seed": "x"}, VALUES_LEFT_OUT)), 1)


class Cases(unittest.TestCase):
    def test_a_number_gives_one_case(self):
        """The same on every machine and version of Python; when the generator changes, this changes."""
        text = generate(5).text()
        self.assertEqual(hashlib.sha256(text.encode()).hexdigest()[:16], "50e732dc47d90e07", text)
        self.assertEqual([Draw("a", 1).below(1000), Draw("a", 2).below(1000), Draw("b", 1).below(1000)],
                         [124, 959, 111])

    def test_cases_differ(self):
        texts = {generate(seed).text() for seed in range(300)}
        self.assertGreater(len(texts), 295)


class Parts(unittest.TestCase):
    def test_shrinking_keeps_what_is_needed(self):
        case = Case({name: "1" for name in "abcdefghij"} | {"@eval": "2", "@eval.parallel.tp": "2"})
        shrunk = shrink(case, lambda smaller: {"b", "g"} <= set(smaller.items))
        self.assertEqual(sorted(shrunk.items), ["b", "g"])
        shrunk = shrink(case, lambda smaller: "@eval.parallel.tp" in smaller.items)
        self.assertEqual(sorted(shrunk.items), ["@eval", "@eval.parallel.tp"])

    def test_rounding_is_told_from_a_defect(self):
        """Distances of the step before an update spread around 0.4 %, later ones around 30 %."""
        def drawn(name, typical):
            draw = Draw(name, 1)
            factors = (10.0 ** ((draw.below(2001) - 1000) / 1000) for _ in range(spread.SEEDS))
            return [typical * factor for factor in factors]

        def rows(first, third):
            return [{("grad_norm", 1): a, ("grad_norm", 3): b} for a, b in zip(first, third)]
        def verdict(first, third, single, number=None):
            return spread.verdict(rows(drawn("c", first), drawn("d", third))[:number], single, 0.01, 0.5)
        single = rows(drawn("a", 0.004), drawn("b", 0.2))
        self.assertEqual(verdict(0.006, 0.3, single), "")
        self.assertIn("grad_norm of step 1", verdict(0.08, 0.3, single))
        self.assertIn("grad_norm of step 3", verdict(0.004, 9.0, single))
        self.assertIn("3 and 40 of 40 seeds", verdict(0.004, 0.2, single, 3))
        # One rank in 16 bits has the same defect.
        self.assertIn("expected at most 0.5", verdict(0.9, 0.3, rows(drawn("a", 0.9), drawn("b", 0.2))))

    def test_distances_are_relative(self):
        far = spread.distances({1: {"loss": "2.0", "grad_norm": "", "lr": "1"}}, {1: {"loss": "1.0", "lr": "2"}, 2: {}})
        self.assertEqual(far, {("loss", 1): 0.5})

    def test_a_deadlock_is_told_from_a_slow_machine(self):
        waits = "not in all_gather #58 of 'cp': rank 2 (elsewhere)\nAll ranks:\nrank 0: waited 6.0 s"
        self.assertTrue(is_deadlock(waits))
        self.assertFalse(is_deadlock(waits + "\nrank 1: no answer: stopped, dead or computing"))
        self.assertFalse(is_deadlock("rank 0: waited 6.0 s"))


if __name__ == "__main__":
    unittest.main()
