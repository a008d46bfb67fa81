# SPDX-License-Identifier: Apache-2.0
"""The pages of the library: docs/headers.md is what docs/make_headers.py writes, docs/api.md shows every line of
tests/install/consumer in its order, and Doxygen reads the public headers without a warning."""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from pages import ROOT

sys.path.insert(0, str(ROOT / "docs"))
import make_headers  # noqa: E402


class Api(unittest.TestCase):
    def test_headers_page_is_that_of_the_headers(self):
        page = (ROOT / "docs/headers.md").read_text()
        self.assertEqual(page, make_headers.page(), "write it anew: docs/make_headers.py")
        shown = set(re.findall(r"(?m)^\| `(p3d/[\w/]+\.hpp)` \| \S", page))
        headers = {path.relative_to(ROOT / "include") for path in (ROOT / "include").rglob("*.hpp")}
        own = {path for path in headers if path.parent.name == "page"}  # the program's: not installed
        self.assertEqual(shown, {str(path) for path in headers - own})

    def test_every_line_of_the_consumer_is_shown(self):
        page = (ROOT / "docs/api.md").read_text()
        for language, name in (("cmake", "CMakeLists.txt"), ("cpp", "main.cpp")):
            source = (ROOT / "tests/install/consumer" / name).read_text().splitlines()
            while source[0].startswith(("#", "//")) and not source[0].startswith("#include"):
                source.pop(0)  # the licence and what the file is
            blocks = re.findall(rf"(?ms)^```{language}\n(.*?)^```$", page)
            shown = [line for block in blocks for line in block.splitlines()]
            with self.subTest(file=name):
                self.assertGreater(len(blocks), 2)
                self.assertEqual([line for line in shown if line], [line for line in source if line])

    @unittest.skipUnless(shutil.which("doxygen"), "no doxygen here (Debian: doxygen)")
    def test_doxygen_has_no_warning(self):
        with tempfile.TemporaryDirectory(prefix="p3d-api-") as folder:
            text = (ROOT / "docs/Doxyfile").read_text() + f"OUTPUT_DIRECTORY = {folder}\n"
            done = subprocess.run(["doxygen", "-"], cwd=ROOT, input=text, text=True, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT)
            self.assertEqual((done.returncode, done.stdout), (0, ""))
            pages = [path.name for path in pathlib.Path(folder, "html").glob("*_8hpp.html")]
            self.assertGreaterEqual(len(pages), len(list((ROOT / "include").rglob("*.hpp"))))


if __name__ == "__main__":
    unittest.main()
