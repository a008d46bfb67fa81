# SPDX-License-Identifier: Apache-2.0
"""Doors: a call that needs checks before it stands in one file only, and everything else goes through that file."""
import re

import source_tree

# (what, where it may stand, what to do instead)
DOORS = [
    (re.compile(r"\bH5(?:Aread|Dread\w*|Dvlen_\w+|Oopen\w*|Lget_val\w*|LT\w+|F_ACC_RDONLY)\b"), set(),
     "io::Hdf5File (src/io/hdf5_read.hpp), which believes nothing that a file says of itself"),
    (re.compile(r"\bcreate_mirror\w*"), {"include/p3d/device/guard.hpp"},
     "device::host_mirror or host_copy (p3d/device/guard.hpp): a mirror of host memory is that memory, which the guard "
     "of preset debug takes for the device's"),
]


def check(root):
    found = []
    for path in source_tree.files(root, ["include", "src"], source_tree.CPP):
        here, text = str(path.relative_to(root)), source_tree.code(path.read_text())
        for pattern, allowed, instead in DOORS:
            if here in allowed:
                continue
            for match in pattern.finditer(text):
                found.append(f"{here}:{source_tree.line_of(text, match.start())}: {match.group(0)}: use {instead}")
    return found


if __name__ == "__main__":
    source_tree.main(check)
