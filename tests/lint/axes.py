# SPDX-License-Identifier: Apache-2.0
"""Axes of the mesh are listed in one place, include/p3d/config/axes.hpp: no other statement, and no three lines in a
row, of the sources name three or more of them, in code or in strings. Code asks the table; one axis may be named where
that axis is meant. The planner alone names all: what an axis costs, and which sizes it may have, are its subject."""
import re

import source_tree

TABLE = "include/p3d/config/axes.hpp"
ROW = re.compile(r"^\s*ROW\((\w+), (?:dense|expert),", re.MULTILINE)
PLANNER = {"src/plan/layer_linears.cpp", "src/plan/least_memory.cpp", "src/plan/measured_rows.cpp",
           "src/plan/search.cpp", "src/plan/step_layers.cpp", "src/plan/step_time.cpp"}
MOST = 2
LINES = 3


def axis_names(root):
    return ROW.findall((root / TABLE).read_text())


def statements(code):
    """(position, text) of the pieces between ; { and }, those in strings not counted."""
    plain = source_tree.COMMENT_OR_STRING.sub(lambda m: re.sub(r"[;{}]", " ", m.group(0)), code)
    for match in re.finditer(r"[^;{}]+", plain):
        yield match.start() + len(match.group(0)) - len(match.group(0).lstrip()), match.group(0)


def check(root):
    names = axis_names(root)
    if len(names) <= MOST:
        return [f"{TABLE}: no table of axes found: this rule reads the rows that begin with ROW("]
    word = re.compile(r"\b(?:" + "|".join(names) + r")\b")
    found = []
    for path in source_tree.files(root, ["include", "src"], source_tree.CPP):
        where = path.relative_to(root)
        if str(where) in {TABLE, *PLANNER}:
            continue
        code = source_tree.code(path.read_text())
        lines = code.splitlines()
        pieces = [(source_tree.line_of(code, position), text) for position, text in statements(code)]
        pieces += [(n + 1, "\n".join(lines[n:n + LINES])) for n in range(len(lines))]
        told = set()
        for line, text in sorted(pieces):
            axes = sorted(set(word.findall(text)))
            if len(axes) > MOST and not any(abs(line - other) < LINES for other in told):
                told.add(line)
                found.append(f"{where}:{line}: names the axes {', '.join(axes)}: ask the table of {TABLE}")
    return found


if __name__ == "__main__":
    source_tree.main(check)
