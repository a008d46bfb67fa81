# SPDX-License-Identifier: Apache-2.0
"""docs/keys.md is what docs/make_keys.py writes from the program's own list, and has every key with its meaning."""
import os
import re
import subprocess
import sys
import unittest

import pages
from pages import ROOT

sys.path.insert(0, str(ROOT / "docs"))
import make_keys  # noqa: E402

PROGRAM = os.environ["P3D_PROGRAM"]


class Keys(unittest.TestCase):
    def setUp(self):
        self.said = pages.program_says("--help-input")
        self.page = (ROOT / "docs/keys.md").read_text()

    def test_page_is_that_of_the_program(self):
        self.assertEqual(self.page, make_keys.page(self.said), "write it anew: docs/make_keys.py build/release/p3d")

    def test_every_key_has_its_row(self):
        known, section = set(), ""
        for line in self.said.splitlines():  # not by make_keys.parse
            section = line[1:-1] if re.fullmatch(r"\[\w+\]", line) else section
            if "default: " in line and line.startswith("  ") and line[2] != " ":
                known.add(f"{section}.{line.split()[0]}")
        self.assertGreater(len(known), 100)
        self.assertEqual(pages.keys(), known)
        for table in pages.tables(self.page):
            for row in table[1:]:
                self.assertEqual([cell for cell in row if not cell], [], row[0])

    def test_resolved_input_has_the_same_keys(self):
        done = subprocess.run([PROGRAM, "--check", "--verbose", "data.format=synthetic"], stdout=subprocess.PIPE,
                              text=True)
        section, found = "", set()
        for line in done.stdout.split("\nMesh")[0].splitlines():
            if head := re.fullmatch(r"\[([\w.]+)\]", line):
                section = head[1]
            elif key := re.match(r"(\w+) = ", line):
                found.add(f"{section}.{key[1]}")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(found, pages.keys())

    def test_commands_of_the_reference_exist(self):
        rows = [row for table in pages.tables((ROOT / "docs/reference.md").read_text()) if table[0][0] == "command"
                for row in table[1:]]
        self.assertGreater(len(rows), 10)
        for first, _ in rows:
            codes = pages.CODE.findall(first)
            group = []
            for code in codes:
                words = [w for w in code.split() if re.fullmatch("[a-z]+|p3d", w)]
                group = words[1:] if code.startswith("p3d") else [*group[:1], *words]
                if "--" in code or not group:
                    continue
                with self.subTest(command=group):
                    self.assertTrue(pages.has_command(*group), "no such command")

    def test_exit_codes_are_those_of_the_program(self):
        said = pages.program_says("--help")
        codes = re.findall(r"(?<![\w.])(\d+) [a-z]", said[said.index("Exit codes:"):said.index("SIGINT")])
        rows = [table for table in pages.tables((ROOT / "docs/reference.md").read_text()) if table[0][0] == "code"][0]
        self.assertEqual([row[0] for row in rows[1:]], codes)


if __name__ == "__main__":
    unittest.main()
