# SPDX-License-Identifier: Apache-2.0
"""clang-tidy with the .clang-tidy at the root finds nothing in the given rooms.

usage: python3 tests/lint/tidy.py --build build/release [room ...]     (all rooms: minutes; ctest runs a few)

clang-tidy 14 is asked, others know other checks. Where it is not installed the exit code is 77: ctest shows the test as
skipped.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import source_tree

VERSION = 14


def commands(root, build, room):
    """A compile command for each source of the room. Where several sources are compiled as one (unity), its flags are
    those of all."""
    entries = json.loads((build / "compile_commands.json").read_text())
    mine = [e for e in entries if f"p3d_{room}_objects.dir" in e["command"] or f"/src/{room}/" in e["file"]]
    if not mine:
        sys.exit(f"no source of room {room} in {build}/compile_commands.json: configure first")
    flags = re.sub(r" -o \S+ -c \S+$", "", mine[0]["command"])
    flags = re.sub(r" -Winvalid-pch -include \S+", "", flags)  # compiled by another compiler
    return [{"directory": mine[0]["directory"], "file": str(path), "command": f"{flags} -o /dev/null -c {path}"}
            for path in sorted((root / "src" / room).rglob("*.cpp"))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2])
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("rooms", nargs="*")
    given = parser.parse_args()
    root, clang_tidy = given.root.resolve(), source_tree.llvm_tool("clang-tidy", VERSION)
    rooms = given.rooms or sorted(p.name for p in (root / "src").iterdir() if p.is_dir())
    entries = [entry for room in rooms for entry in commands(root, given.build, room)]
    with tempfile.TemporaryDirectory(prefix="p3d-tidy-") as folder:
        pathlib.Path(folder, "compile_commands.json").write_text(json.dumps(entries))

        def look(entry):
            done = subprocess.run([clang_tidy, "--quiet", "-p", folder, f"--config-file={root}/.clang-tidy",
                                   entry["file"]], capture_output=True, text=True)
            found = sorted(set(re.findall(r"^\S+?:\d+:\d+: (?:warning|error): .*$", done.stdout, re.M)))
            return found or ([] if done.returncode == 0 else [f"{entry['file']}: {done.stderr.strip()}"])
        with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            messages = sorted({line for lines in pool.map(look, entries) for line in lines})
    for message in messages:
        print(message.replace(f"{root}/", ""))
    print(f"tidy.py: {len(messages)} violation(s)" if messages else f"tidy.py: clean ({len(entries)} files)")
    return 1 if messages else 0


if __name__ == "__main__":
    sys.exit(main())
