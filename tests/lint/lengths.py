# SPDX-License-Identifier: Apache-2.0
"""Files stay short: none over 600 lines, nine in ten under 400."""
import source_tree

FOLDERS = ["include", "src", "tests", "benchmarks", "scripts", "cmake", "CMakeLists.txt"]
SUFFIXES = source_tree.CPP | {".py", ".sh", ".cmake", ".txt", ".in"}
DATA = ("tests/golden",)  # reference results, not read by people
LIMIT, USUAL = 600, 400


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
        found.append(f"{len(long)} of {len(lengths)} files are over {USUAL} lines; at most one in ten: {', '.join(long)}")
    return found


if __name__ == "__main__":
    source_tree.main(check)
