# SPDX-License-Identifier: Apache-2.0
"""Files stay short: none over 600 lines, nine in ten under 400. So do lines: at most 120 columns (C++: format.py)."""
import source_tree

FOLDERS = ["include", "src", "tests", "benchmarks", "scripts", "cmake", "CMakeLists.txt"]
SUFFIXES = source_tree.CPP | {".py", ".sh", ".cmake", ".txt", ".in"}
DATA = ("tests/golden",)  # reference results, not read by people
LIMIT, USUAL = 600, 400
# What clang-format does not see: Python, shell and CMake; in scripts and .ci whatever the name.
MORE_FOLDERS = ["docs", "inputs", "spack"]
SCRIPTS = {".py", ".sh", ".sbatch", ".cmake", ".in"}
SCRIPT_FOLDERS = ["scripts", ".ci"]
COLUMNS = 120


def long_lines(root):
    paths = [path for path in source_tree.files(root, FOLDERS + MORE_FOLDERS)
             if path.suffix in SCRIPTS or path.name == "CMakeLists.txt"]
    for path in sorted({*paths, *source_tree.files(root, SCRIPT_FOLDERS)}):
        for number, line in enumerate(path.read_text().split("\n"), 1):
            if len(line) > COLUMNS:
                yield f"{path.relative_to(root)}:{number}: {len(line)} columns; at most {COLUMNS}: wrap it"


def check(root):
    lengths = {}
    for path in source_tree.files(root, FOLDERS, SUFFIXES):
        here = str(path.relative_to(root))
        if path.suffix == ".txt" and here.startswith(DATA):
            continue
        lengths[here] = path.read_bytes().count(b"\n")
    found = [f"{here}: {n} lines; at most {LIMIT}: split it" for here, n in lengths.items() if n > LIMIT]
    long = [here for here, n in lengths.items() if n > USUAL]
    if len(long) * 10 > len(lengths):
        found.append(f"{len(long)} of {len(lengths)} files are over {USUAL} lines; at most one in ten: "
                     f"{', '.join(long)}")
    return found + list(long_lines(root))


if __name__ == "__main__":
    source_tree.main(check)
