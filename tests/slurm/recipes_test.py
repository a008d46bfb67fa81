# SPDX-License-Identifier: Apache-2.0
"""The recipes of inputs/slurm without a Slurm: every key they give p3d is documented, and the input each names as its
example is valid for the ranks that it asks for; those of GPUs check it first, and ask Cray MPICH for GPU memory where
the program links its transport layer."""
import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile

OVERRIDE = re.compile(r"\b([a-z_]+\.[a-z_]+)=(\S+)")


def run(*command, cwd=None):
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, cwd=cwd)


def documented(p3d):
    """The keys of p3d --help-input."""
    keys, section = set(), ""
    for line in run(p3d, "--help-input").stdout.splitlines():
        if head := re.match(r"\[(\w+)\]$", line):
            section = head[1]
        elif key := re.match(r"  (\w+) +default: ", line):
            keys.add(f"{section}.{key[1]}")
    return keys


def errors(recipe, p3d, source, known):
    text = recipe.read_text()
    found = [f"key {key} is not in p3d --help-input" for key, _ in OVERRIDE.findall(text)
             if key not in known | {"section.key"}]
    if (shell := run("bash", "-n", recipe)).returncode != 0:
        found.append(shell.stderr)
    option = dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(\S+))?$", text, re.M))
    lines = [line for line in text.splitlines() if line.startswith("#SBATCH")]
    if len(option) != len(lines):
        found.append("an #SBATCH line that is not of the form --option[=value], or one twice")
    example = re.search(r"set -- (\S+); fi", text)
    if not example or not {"nodes", "ntasks-per-node", "time"} <= set(option):
        return found + ["a recipe names an example input, --nodes, --ntasks-per-node and --time"]
    # What stands on p3d's line of this recipe, for the ranks it asks for.
    ranks = int(option["nodes"]) * int(option["ntasks-per-node"])
    overrides = {f"{key}={value}" for line in text.splitlines() if not line.startswith("#")
                 for key, value in OVERRIDE.findall(line)}
    checked = run(p3d, "--check", example[1], *sorted(overrides), "--ranks", ranks, cwd=source)
    return found + ([] if checked.returncode == 0 else
                    [f"p3d --check of its example on {ranks} ranks:\n{checked.stderr}"])


STANDINS = {"p3d": 'echo "p3d $*"; exit "${CHECK:-0}"', "ldd": 'echo "$LIBRARIES"',
            "srun": 'echo "asked: ${MPICH_GPU_SUPPORT_ENABLED:-no}"'}


def gpu_errors(recipe):
    """What a recipe of GPUs does, with stand-ins for the programs that it calls."""
    with tempfile.TemporaryDirectory() as folder:
        for name, line in STANDINS.items():
            path = pathlib.Path(folder, name)
            path.write_text(f"#!/bin/sh\n{line}\n")
            path.chmod(0o755)

        def said(**variables):
            environment = {"PATH": f"{folder}:{os.environ['PATH']}", "SLURM_NTASKS": "8", "SLURM_CPUS_PER_TASK": "8",
                           "MPICH_GPU_SUPPORT_ENABLED": "1", "LIBRARIES": "libmpi.so.12 => /opt/libmpi.so.12"}
            done = subprocess.run(["bash", str(recipe)], capture_output=True, text=True, env=environment | variables)
            return done.stdout + done.stderr

        found = []
        if "asked: no" not in said():
            found.append("without the transport layer MPICH is asked for GPU memory")
        if "asked: 1" not in said(LIBRARIES="libmpi_gtl_cuda.so.0 => /opt/cray/libmpi_gtl_cuda.so.0"):
            found.append("with the transport layer MPICH is not asked for GPU memory")
        wrong_input = said(CHECK="2")
        if "p3d --check" not in wrong_input or "asked" in wrong_input:
            found.append(f"an input that --check refuses is run: {wrong_input}")
        return found


def main():
    parser = argparse.ArgumentParser()
    for name in ("p3d", "source"):
        parser.add_argument("--" + name, type=pathlib.Path, required=True)
    args = parser.parse_args()
    known = documented(args.p3d)
    recipes = sorted((args.source / "inputs" / "slurm").glob("*.sbatch"))
    if len(known) < 50 or len(recipes) < 4:
        sys.exit(f"expected at least 50 keys and 4 recipes, found {len(known)} and {len(recipes)}")
    wrong = [f"{recipe.name}: {error}" for recipe in recipes for error in errors(recipe, args.p3d, args.source, known)]
    wrong += [f"{recipe.name}: {error}" for recipe in recipes if "gpu" in recipe.name for error in gpu_errors(recipe)]
    print("\n".join(wrong) if wrong else f"{len(recipes)} recipes, {len(known)} documented keys: all good")
    sys.exit(1 if wrong else 0)


main()
