#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes docs/headers.md, the table of public headers, from the comment that each begins with.   usage: make_headers.py
"""
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/headers.md"
HEAD = """# Headers

The public headers by room, with the first words of each. [Library](api.md) shows how a program uses them.

<!-- docs/make_headers.py writes this page from the headers: do not edit it. -->
"""


def rooms():
    """The rooms of libp3d in the order of tests/lint/rooms.txt: a room includes only rooms above it."""
    lines = (ROOT / "tests/lint/rooms.txt").read_text().splitlines()
    names = [line.split(":")[0].strip() for line in lines if ":" in line and not line.startswith("#")]
    return [name for name in names if "NOT_IN_LIBRARY" not in (ROOT / "src" / name / "CMakeLists.txt").read_text()]


def first_words(path):
    """The first sentence of the comment behind #pragma once."""
    lines = path.read_text().splitlines()
    words = []
    for line in lines[lines.index("#pragma once") + 1:]:
        if not line.startswith("// "):
            break
        words.append(line[3:])
    sentence = re.match(r".*?[.:](?= [A-Z]|$)", " ".join(words))
    text = (sentence[0] if sentence else " ".join(words)).rstrip(".:")
    return re.sub(r"([|*_])", r"\\\1", text).replace("<", "&lt;")


def page():
    out = [HEAD]
    for room in rooms():
        headers = sorted((ROOT / "include/p3d" / room).glob("*.hpp"))
        if headers:
            out.append(f"## {room}\n\n| header | what is there |\n|---|---|")
            out += [f"| `p3d/{room}/{path.name}` | {first_words(path)} |" for path in headers]
            out.append("")
    return "\n".join(out)


if __name__ == "__main__":
    PAGE.write_text(page())
