# SPDX-License-Identifier: Apache-2.0
"""What the tests of the documentation share: its pages, their blocks, links, headings and tables."""
import functools
import os
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")


def all_pages():
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def prose(text):
    """The text without code blocks; line numbers stay."""
    return re.sub(r"(?ms)^```.*?^```$", lambda block: "\n" * block[0].count("\n"), text)


def slugs(text):
    """The anchors of the headings, as the site makes them."""
    found = set()
    for heading in re.findall(r"(?m)^#+ (.*)$", prose(text)):
        words = re.sub(r"[^\w\s-]", "", heading).strip().lower()
        found.add(re.sub(r"[-\s]+", "-", words))
    return found


def cells(line):
    """The cells of a row of a table; \\| stands for |."""
    return [cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]


def tables(text):
    """Every table: a list of rows, the head first, without the line of dashes."""
    for block in re.findall(r"(?m)((?:^\|.*\n)+)", prose(text) + "\n"):
        rows = [cells(line) for line in block.splitlines()]
        yield [row for row in rows if not all(re.fullmatch(r":?-+:?", cell) for cell in row)]


@functools.lru_cache(maxsize=None)
def program_says(*words):
    """What the program answers, for words that it must take."""
    return subprocess.run([os.environ["P3D_PROGRAM"], *words], stdout=subprocess.PIPE, text=True, check=True).stdout


def has_command(*group):
    """True when `p3d GROUP` is a command. The help of a word that is none is that of the command before it."""
    return f"Usage: p3d {' '.join(group)} [OPTIONS]" in program_says(*group, "--help")


def keys():
    """The keys that docs/keys.md lists (the test docs_keys compares it with the program)."""
    return set(re.findall(r"(?m)^\| `([\w.]+)` \|", (ROOT / "docs/keys.md").read_text()))


class Block:
    """A code block that a comment marks: kind "runnable", "writes" or "prints", what follows the word, its lines."""

    def __init__(self, page, number, kind, words, lines):
        self.where, self.kind, self.words, self.lines = f"{page.name}:{number}", kind, words, lines


def marked_blocks(page):
    mark = re.compile(r"<!-- (runnable|writes|prints)\b[, ]*(.*?) ?-->$")
    lines, found, i = page.read_text().splitlines(), [], 0
    while i < len(lines):
        if match := mark.match(lines[i]):
            if not lines[i + 1].startswith("```"):
                raise AssertionError(f"{page.name}:{i + 1}: no block after the mark")
            end = lines.index("```", i + 2)
            found.append(Block(page, i + 1, match[1], match[2], lines[i + 2:end]))
            i = end
        i += 1
    return found
