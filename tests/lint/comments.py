# SPDX-License-Identifier: Apache-2.0
"""A comment stands alone: it is a sentence about the thing below it, and a long file opens with a paragraph.

Two rules, for rooms on the list CLEAN:

1. A comment on lines of its own, or a `///<` behind a declaration, does not begin with a word that leans on what stands
   above it: Of, By, Those, The same, Whose, What, That, Which, Who, To, Where. After Of, By, To and Where a main clause
   may follow a comma ("To keep the order, the loop runs backward"), of three words at least; then it is a sentence.
2. A file of more than 150 lines opens with a paragraph of two lines at least, below the licence or `#pragma once`: what
   the file does and the idea in it.
"""
import re

import source_tree

CLEAN = {"app", "base", "collectives", "comm", "config", "data", "device", "engine", "io", "kernels", "layout",
         "linalg", "model", "optim", "page", "parallel", "plan", "report", "run", "schedule", "text"}
LONG, PARAGRAPH = 150, 2  # lines
LEANING = re.compile(r"(?:of|by|those|the same|whose|what|that|which|who|to|where)\b", re.I)
# From the first word to a comma of the same sentence, and three words behind it.
WITH_MAIN_CLAUSE = re.compile(r"(?:of|by|to|where)\b(?:[^.;:]|\.\w)*?,(?:\s+[\w'`()<>:./*\[\]+-]+){3}", re.I)
MARK = re.compile(r"//[/!]?<?\s?")


def comments(text):
    """(position, text, is trailing, is `///<`) of each `//` comment; lines that follow each other are one comment."""
    found, last_end, last_column = [], -1, -1
    for match in source_tree.COMMENT_OR_STRING.finditer(re.sub(r"(?<=[0-9a-fA-F])'(?=[0-9a-fA-F])", " ", text)):
        piece = match.group(0)
        if not piece.startswith("//"):
            continue
        line_start = text.rfind("\n", 0, match.start()) + 1
        column, trailing = match.start() - line_start, bool(text[line_start:match.start()].strip())
        follows = not trailing and line_start == last_end + 1 and column == last_column
        if follows and not found[-1][1].startswith("SPDX-"):
            position, before, *kind = found[-1]
            found[-1] = (position, f"{before}\n{MARK.sub('', piece, 1)}", *kind)
        else:
            found.append((match.start(), MARK.sub("", piece, 1), trailing, piece.startswith("///<")))
        last_end, last_column = match.end(), column
    return found


def leans(comment):
    """True where the comment begins with a leaning word and no main clause follows."""
    return LEANING.match(comment) is not None and WITH_MAIN_CLAUSE.match(comment) is None


def has_opening(text):
    """True where the first thing below the licence and `#pragma once` is a paragraph."""
    lines = text.splitlines()[1:]
    while lines and lines[0].strip() in ("", "#pragma once"):
        lines.pop(0)
    return len(lines) >= PARAGRAPH and all(line.startswith("//") for line in lines[:PARAGRAPH])


def check(root):
    found = []
    for path in source_tree.files(root, ["include", "src"], source_tree.CPP):
        if source_tree.room_of(root, path) not in CLEAN:
            continue
        here, text = str(path.relative_to(root)), path.read_text()
        for position, comment, trailing, documents in comments(text):
            if (documents or not trailing) and leans(comment):
                found.append(f"{here}:{source_tree.line_of(text, position)}: the comment leans on what stands above it "
                             f"(name what it is about): {' '.join(comment.split())[:50]}")
        if text.count("\n") > LONG and not has_opening(text):
            found.append(f"{here}:1: over {LONG} lines without an opening paragraph of {PARAGRAPH} lines at least")
    return found


if __name__ == "__main__":
    source_tree.main(check)
