# SPDX-License-Identifier: Apache-2.0
"""Every source compiles alone: it includes what it needs. The scripts compile several sources as one (unity), where one
source may live on what another one included; who calls cmake himself compiles each alone.

usage: python3 tests/lint/alone.py [folder ...]     (default: src; about 4 minutes on 2 cores)
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile


def commands(root, build):
    """The compile commands of a configuration of its own, which takes each source alone."""
    for words in (["cmake", "--preset", "release", "-B", build, "-DCMAKE_UNITY_BUILD=OFF",
                   "-DCMAKE_CXX_COMPILER_LAUNCHER="],
                  ["cmake", "--build", build, "--target", "p3d_version_stamp"]):
        subprocess.run(words, cwd=root, check=True, stdout=subprocess.DEVNULL)
    return json.loads(pathlib.Path(build, "compile_commands.json").read_text())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2])
    parser.add_argument("folders", nargs="*", default=["src"], help="below the root: src/comm tests/mpi ...")
    given = parser.parse_args()
    root = given.root.resolve()

    def compiles(entry):
        words = [*shlex.split(entry["command"]), "-O0", "-fsyntax-only"]
        done = subprocess.run(words, cwd=entry["directory"], capture_output=True, text=True)
        if done.returncode == 0:
            return []
        lines = re.findall(r"^.*?\berror: .*$", done.stderr, re.M) or [f"{entry['file']}: {done.stderr.strip()}"]
        return lines[:1]  # the others follow from the first one
    with tempfile.TemporaryDirectory(prefix="p3d-alone-") as build:
        wanted = [str(root / folder) + os.sep for folder in given.folders]
        entries = [e for e in commands(root, build) if e["file"].startswith(tuple(wanted))]
        if not entries:
            sys.exit(f"no source below {', '.join(given.folders)}")
        with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            messages = [line for lines in pool.map(compiles, entries) for line in lines]
    for message in messages:
        print(message.replace(f"{root}/", ""))
    print(f"alone.py: {len(messages)} of {len(entries)} sources do not compile alone" if messages
          else f"alone.py: clean ({len(entries)} files)")
    return 1 if messages else 0


if __name__ == "__main__":
    sys.exit(main())
