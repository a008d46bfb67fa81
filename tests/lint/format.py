# SPDX-License-Identifier: Apache-2.0
"""Every C++ file is formatted as clang-format 14 formats it with the .clang-format at the root.

Other versions of clang-format break lines elsewhere, so only version 14 is asked. Where it is not installed the exit
code is 77: ctest shows the test as skipped.
"""
import pathlib
import re
import subprocess

import source_tree

FOLDERS = ["include", "src", "tests", "benchmarks"]
VERSION = 14


def check(root):
    clang_format = source_tree.llvm_tool("clang-format", VERSION)
    files = source_tree.files(root, FOLDERS, source_tree.CPP)
    done = subprocess.run([clang_format, f"--style=file:{root}/.clang-format", "--dry-run", *map(str, files)],
                          capture_output=True, text=True)
    places = re.findall(r"^(\S+?):(\d+):\d+: warning: code should be clang-formatted", done.stderr, re.M)
    if done.returncode != 0 and not places:
        return [f"clang-format failed: {done.stderr.strip()}"]
    first = {}
    for path, line in places:
        first.setdefault(str(pathlib.Path(path).relative_to(root)), line)
    return [f"{path}:{line}: not formatted: clang-format -i {path}" for path, line in first.items()]


if __name__ == "__main__":
    source_tree.main(check)
