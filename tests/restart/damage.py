# SPDX-License-Identifier: Apache-2.0
"""Flips single bytes of a checkpoint and cuts it short: every change is found and named, without a crash or a hang, and
a run that is to resume from it refuses or takes an older one.

usage: damage.py CHANGES [SEED [LAYOUT]]
The seed is 1 unless given, and printed; the layout (restarts.LAYOUTS) is one rank unless given.
Needs P3D_PROGRAM, P3D_MPIEXEC ("mpiexec -n") and P3D_SOURCE in the environment."""
import collections
import pathlib
import random
import re
import sys
import tempfile

import restarts

changes = int(sys.argv[1])
seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
layout = sys.argv[3] if len(sys.argv) > 3 else "1"
print(f"seed {seed}, layout {layout}", flush=True)
draw = random.Random(seed)

with tempfile.TemporaryDirectory(prefix="p3d-damage-") as name:
    folder = pathlib.Path(name)
    restarts.write_inputs(folder)
    restarts.train(folder, layout, "run", "run.steps=4", "checkpoint.every=2", "run.precision=fp64")
    older, newest = (folder / restarts.checkpoint("run", step) for step in (2, 4))
    good = newest.read_bytes()
    extents = [(int(at), int(size)) for at, size in
               re.findall(r"^(\d+) (\d+)$", good[:good.index(b"\x89HDF")].decode("ascii"), re.M)]
    descriptions = extents[0][0]
    counts, passed_over = collections.Counter(), 0
    for n in range(changes):
        data = bytearray(good)
        kind = draw.choice(("flip",) * 8 + ("cut", "longer"))
        if kind == "flip":  # half of them among seal and descriptions, which are a small part of the file
            at = draw.randrange(descriptions if draw.random() < 0.5 else len(data))
            data[at] ^= draw.randrange(1, 256)
        elif kind == "cut":
            at = draw.randrange(len(data))
            del data[at:]
        else:
            at = len(data)
            data += bytes(draw.randrange(1, 5000))
        newest.write_bytes(data)
        code, out, err = restarts.tool(folder, "checkpoint", "verify", newest)
        number = kind == "flip" and any(first <= at < first + size for first, size in extents)
        said = "expected checksum" if number else f"{newest}: expected "
        if code != (1 if number else 2) or str(newest) not in out or said not in out:
            sys.exit(f"seed {seed}: {kind} at byte {at}: exit code {code}\n{out}{err}")
        counts[kind] += 1
        if n % 20 == 0:  # the same file before a run: named, and the older one is taken
            words = restarts.keys(layout, "run", "run.steps=4", "checkpoint.every=1000", "run.precision=fp64")
            code, out, err = restarts.tool(folder, "input.toml", *words, ranks=restarts.ranks(layout))
            if code != 0 or "skipping" not in err or f"{older}: step 2" not in out:
                sys.exit(f"seed {seed}: {kind} at byte {at}, run: exit code {code}\n{out}{err}")
            passed_over += 1
            newest.write_bytes(good)
    print(f"{changes} changes of a file of {len(good)} bytes "
          f"({', '.join(f'{k}: {n}' for k, n in sorted(counts.items()))}): all found; "
          f"{passed_over} runs skipped the file and took the older one")
