# SPDX-License-Identifier: Apache-2.0
"""A file that uses one of these names includes the header that declares it in every supported version of its library.

{fmt} 11 moved `join` from <fmt/format.h> to <fmt/ranges.h>: what leans on an older version does not compile there.
"""
import re

import source_tree

FOLDERS = ["include", "src", "tests", "benchmarks"]
# name -> the header that declares it in {fmt} 8 to 12
HEADERS = {"fmt::join": "fmt/ranges.h"}


def check(root):
    found = []
    for path in source_tree.files(root, FOLDERS, source_tree.CPP):
        text = source_tree.code(path.read_text())
        for name, header in HEADERS.items():
            use = re.search(rf"\b{name}\b", text)
            if use and not re.search(rf"^\s*#\s*include\s*<{header}>", text, re.M):
                found.append(f"{path.relative_to(root)}:{source_tree.line_of(text, use.start())}: "
                             f"{name} needs #include <{header}>")
    return found


if __name__ == "__main__":
    source_tree.main(check)
