# SPDX-License-Identifier: Apache-2.0
"""Every source file names its licence, in its first line or after its #! line."""
import source_tree

FOLDERS = ["include", "src", "tests", "benchmarks", "scripts", "cmake", "docs", ".ci", "CMakeLists.txt", "spack"]
SUFFIXES = source_tree.CPP | {".py", ".sh", ".cmake"}
TAG = "SPDX-License-Identifier: " + "Apache-2.0"


def check(root):
    found = []
    for path in source_tree.files(root, FOLDERS):
        if path.suffix not in SUFFIXES and path.name != "CMakeLists.txt":
            continue
        lines = path.read_text().splitlines()[:2]
        if lines and lines[0].startswith("#!"):
            lines = lines[1:]
        if not lines or TAG not in lines[0]:
            found.append(f"{path.relative_to(root)}:1: the first line says: {TAG}")
    return found


if __name__ == "__main__":
    source_tree.main(check)
