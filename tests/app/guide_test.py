# SPDX-License-Identifier: Apache-2.0
"""The blocks that a page marks as runnable, run in a fresh folder, in the order of the page: each ends with the exit
code it should, and prints what the page quotes. tests/docs/pages.py reads the marks."""
import math
import re
import unittest

from documents import DocumentTest, pages

NEAR = 0.02  # of numbers with a point: another BLAS or processor rounds otherwise
NUMBER = re.compile(r"\d+\.\d+(?:e[-+]\d+)?")


def pattern_of(quoted):
    """A regular expression for a quoted line, and its numbers. "..." is any text; spaces are as many as one likes."""
    out, numbers = "", []
    for piece in re.split(r"(\.\.\.|\d+\.\d+(?:e[-+]\d+)?(?!\.\.)|\s+)", quoted.strip()):
        if piece == "...":
            out += ".*?"
        elif NUMBER.fullmatch(piece):
            numbers.append(float(piece))
            out += r"(\d+\.\d+(?:e[-+]\d+)?)"
        else:
            out += r"\s+" if piece and not piece.strip() else re.escape(piece)
    return re.compile(out), numbers


def agrees(quoted, line):
    pattern, numbers = pattern_of(quoted)
    return any(all(math.isclose(a, float(b), rel_tol=NEAR) for a, b in zip(numbers, match.groups()))
               for match in pattern.finditer(line))


def missing(quoted_lines, text):
    """The first quoted line that is not printed behind the one before it, or None."""
    lines, at = text.splitlines(), 0
    for quoted in filter(str.strip, quoted_lines):
        at = next((i + 1 for i in range(at, len(lines)) if agrees(quoted, lines[i])), None)
        if at is None:
            return quoted
    return None


class Comparison(unittest.TestCase):
    """The comparison can fail."""

    def test_finds_what_differs(self):
        text = "step 20/60  loss 4.5572  27.85K tokens/s  lr 2.37e-03\nFinished 60 steps in 1.1 s\n"
        self.assertIsNone(missing(["step 20/60  loss 4.56 ... lr 2.37e-03", "Finished 60 steps in ..."], text))
        for wrong in ("step 21/60  loss 4.5572", "loss 4.30", "lr 2.47e-03", "Finished 61 steps", "step 20/60 lr"):
            self.assertEqual(missing([wrong], text), wrong)
        self.assertEqual(missing(["Finished 60", "step 20/60"], text), "step 20/60")


class Guide(DocumentTest):
    def run_page(self, page):
        said = None
        for block in pages.marked_blocks(page):
            with self.subTest(block=block.where):
                if block.kind == "writes":
                    (self.folder / block.words).write_text("\n".join(block.lines) + "\n")
                elif block.kind == "runnable":
                    code = int(block.words.removeprefix("exit code ") or 0)
                    done = self.shell("set -e\n" + "\n".join(block.lines))
                    said = done.stdout
                    self.assertEqual(done.returncode, code, said)
                else:
                    self.assertIsNotNone(said, "no runnable block above")
                    self.assertIsNone(missing(block.lines, said), f"is not in\n{said}")

    def test_pages_with_marks(self):
        marked = {page.name for page in pages.all_pages() if pages.marked_blocks(page)}
        self.assertEqual(marked, {"README.md", "guide.md", "models.md", "plan.md", "scale.md", "schedules.md"},
                         "each has a test below")

    def test_readme(self):
        self.run_page(pages.ROOT / "README.md")

    def test_guide(self):
        self.run_page(pages.ROOT / "docs/guide.md")

    def test_models(self):
        self.run_page(pages.ROOT / "docs/models.md")

    def test_plan(self):
        self.run_page(pages.ROOT / "docs/plan.md")

    def test_scale(self):
        self.run_page(pages.ROOT / "docs/scale.md")

    def test_schedules(self):
        self.run_page(pages.ROOT / "docs/schedules.md")


if __name__ == "__main__":
    unittest.main()
