# SPDX-License-Identifier: Apache-2.0
"""A header that leans on its includer must fail to compile on its own, with the flags of the header check; a good one
passes."""
import argparse
import json
import pathlib
import shlex
import subprocess
import tempfile

parser = argparse.ArgumentParser()
parser.add_argument("--root", type=pathlib.Path, required=True)
parser.add_argument("--commands", type=pathlib.Path, required=True)
args = parser.parse_args()

entries = [e for e in json.loads(args.commands.read_text()) if "p3d_headers.dir" in e["command"]]
checked = {pathlib.Path(e["file"]).name for e in entries}
expected = {str(h.relative_to(args.root / "include")).replace("/", "_").replace(".", "_") + ".cpp"
            for h in (args.root / "include").rglob("*.hpp")}
assert expected <= checked, f"public headers without a check: {sorted(expected - checked)}"


def compiles(folder, header):
    """Whether `header` compiles on its own, with the command of the base room's error.hpp."""
    entry = next(e for e in entries if e["file"].endswith("p3d_base_error_hpp.cpp"))
    (folder / "planted.hpp").write_text(header)
    (folder / "check.cpp").write_text('#include "planted.hpp"\n#include "planted.hpp"\n')
    command = []
    for word in shlex.split(entry["command"]):
        command.append(str(folder / "check.cpp") if word == entry["file"] else word)
    command[command.index("-o") + 1] = str(folder / "check.o")
    for flag in ("-MF", "-MT"):
        if flag in command:
            command[command.index(flag) + 1] = str(folder / "check.d")
    done = subprocess.run(command, cwd=entry["directory"], capture_output=True, text=True)
    return done.returncode == 0, done.stderr


with tempfile.TemporaryDirectory(prefix="p3d-headers-") as name:
    folder = pathlib.Path(name)
    good, said = compiles(folder, "#pragma once\n#include <string>\ninline std::string f() { return {}; }\n")
    assert good, f"a self-contained header does not compile:\n{said}"
    good, said = compiles(folder, "#pragma once\ninline std::string f() { return {}; }\n")
    assert not good and "string" in said, "a header without its #include <string> compiled on its own"
    good, said = compiles(folder, "#include <string>\ninline std::string f() { return {}; }\n")
    assert not good and "redefinition" in said, "a header without an include guard compiled twice"
print(f"{len(expected)} headers are checked; planted faults were found")
