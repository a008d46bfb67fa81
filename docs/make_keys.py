#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes docs/keys.md, the table of all keys, from `p3d --help-input`.   usage: make_keys.py P3D [OUT]"""
import pathlib
import re
import subprocess
import sys

PAGE = pathlib.Path(__file__).resolve().parent / "keys.md"
# Pages that explain a section; one without an entry has no link.
PAGES = {"context": "long_sequences", "pipeline": "schedules", "data": "data", "precision": "precision",
         "memory": "memory", "checkpoint": "checkpoints", "optimizer": "numbers", "linalg": "numbers",
         "comm": "numbers", "parallel": "scale", "plan": "plan", "sample": "checkpoints"}
HEAD = """# Keys

Every key of the input. Each may also be set on the command line: `p3d input.toml section.key=value`. A key that is
not here is refused.

<!-- docs/make_keys.py writes this page from `p3d --help-input`: do not edit it. -->
"""


def parse(text):
    """{section: [(key, default, meaning, values)]}; the last lines of a key say which values it takes."""
    sections, keys = {}, None
    for line in text.splitlines():
        if head := re.match(r"\[(\w+)\]$", line):
            keys = sections.setdefault(head[1], [])
        elif key := re.match(r"  ([\w.]+) +default: (.*)$", line):
            keys.append([key[1], key[2], []])
        elif keys and line.startswith("      "):
            keys[-1][2].append(line.strip())
    values = re.compile(r'^(string|integer|number|true \| false|list|wall time|file|"[^"]*" \|)')
    for section, entries in sections.items():
        for i, (key, default, lines) in enumerate(entries):
            last = max((n for n, words in enumerate(lines) if n and values.match(words)), default=len(lines))
            entries[i] = (key, default, " ".join(lines[:last]), " ".join(lines[last:]))
    return sections


def cell(text):
    return re.sub(r"([|*_])", r"\\\1", text).replace("<", "&lt;")


def page(text):
    out = [HEAD]
    for section, entries in parse(text).items():
        out.append(f"## {section}\n")
        if section in PAGES:
            out.append(f"See [{PAGES[section].replace('_', ' ')}]({PAGES[section]}.md).\n")
        out.append("| key | default | values | meaning |\n|---|---|---|---|")
        out += [f"| `{section}.{key}` | {cell(default)} | {cell(values)} | {cell(meaning)} |"
                for key, default, meaning, values in entries]
        out.append("")
    return "\n".join(out)


def main():
    said = subprocess.run([sys.argv[1], "--help-input"], stdout=subprocess.PIPE, text=True, check=True).stdout
    pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else PAGE).write_text(page(said))


if __name__ == "__main__":
    main()
