# SPDX-License-Identifier: Apache-2.0
"""Installs a build of p3d, builds a small outside project that links p3d::p3d against it, and lets that train three
steps: with the losses of the installed program, on one rank and on two (run by ctest, see CMakeLists.txt here)."""
import argparse
import csv
import json
import pathlib
import re
import subprocess
import sys
import tempfile


INPUT = """
[run]
name = "consumer"
steps = 3
eval_batches = 0
precision = "fp64"
[model]
vocab_size = 256
hidden = 16
layers = 2
heads = 2
ffn = 32
seq_len = 16
[batch]
micro = 1
global = 4
[data]
path = "text.txt"
[optimizer]
lr = 1e-2
warmup_steps = 0
"""


def run(*command):
    """The output of a command; on failure prints it and ends the test."""
    done = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f"failed with {done.returncode}: {' '.join(map(str, command))}\n{done.stdout}")
    return done.stdout


def same(a, b):
    return abs(a - b) <= 1e-12 * abs(b)


def check_training(said, version, expected, what):
    """The consumer's lines: its three steps are those of the installed program."""
    if not said.startswith(f"p3d {version}\n"):
        sys.exit(f"{what}: expected p3d {version} on the first line, found: {said}")
    found = [(int(s), float(loss), float(norm))
             for s, loss, norm in re.findall(r"^step (\d+) loss (\S+) grad_norm (\S+)$", said, re.M)]
    if [s for s, _, _ in found] != [1, 2, 3]:
        sys.exit(f"{what}: expected the steps 1, 2 and 3, found: {said}")
    for (step, loss, norm), row in zip(found, expected):
        if not same(loss, float(row["loss"])) or not same(norm, float(row["grad_norm"])):
            sys.exit(f"{what}, step {step}: expected loss {row['loss']} and gradient norm {row['grad_norm']}, "
                     f"found: {loss}, {norm}")
    if not found[0][1] > found[1][1] > found[2][1]:
        sys.exit(f"{what}: three steps do not lower the loss: {said}")


def main():
    parser = argparse.ArgumentParser()
    for name in ("cmake", "generator", "compiler", "build", "consumer", "version", "sanitize", "launcher", "mpiexec"):
        parser.add_argument("--" + name)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="p3d-install-") as folder:
        prefix, build = pathlib.Path(folder, "prefix"), pathlib.Path(folder, "build")
        run(args.cmake, "--install", args.build, "--prefix", prefix)
        if not (prefix / "include/p3d/base").is_dir() or (prefix / "include/p3d/page").exists():
            sys.exit("expected the headers of libp3d's rooms alone, without those of the program's room page")
        flags = f"-fsanitize={args.sanitize}" if args.sanitize else ""
        configured = run(args.cmake, "-S", args.consumer, "-B", build, "-G", args.generator,
                         f"-DCMAKE_CXX_COMPILER={args.compiler}", f"-DCMAKE_CXX_COMPILER_LAUNCHER={args.launcher}",
                         f"-DCMAKE_PREFIX_PATH={prefix}", f"-DCMAKE_CXX_FLAGS={flags}")
        if "Warning" in configured:
            sys.exit(f"find_package(p3d) warns:\n{configured}")
        commands = json.loads(pathlib.Path(build, "compile_commands.json").read_text())
        for flag in ("-march=native", "-Wall", "-Werror"):
            if any(flag in entry["command"] for entry in commands):
                sys.exit(f"{flag} of p3d's own build reached the outside project:\n{commands}")
        run(args.cmake, "--build", build)
        said = run(prefix / "bin" / "p3d", "--version")
        if not said.startswith(f"p3d {args.version} "):
            sys.exit(f"expected version {args.version} from the installed program, found: {said}")
        given = pathlib.Path(folder, "input.toml")
        given.write_text(INPUT)
        pathlib.Path(folder, "text.txt").write_text("one line, again and again\n" * 100)
        run(prefix / "bin" / "p3d", given, f"run.output_dir={folder}/out")
        with open(pathlib.Path(folder, "out", "metrics.csv"), newline="") as file:
            expected = list(csv.DictReader(file))
        if len(expected) != 3:
            sys.exit(f"expected three steps of the installed program, found: {expected}")
        check_training(run(build / "consumer", given), args.version, expected, "one rank")
        said = run(*args.mpiexec.split(), 2, build / "consumer", given)
        check_training(said, args.version, expected, "two ranks")
        print(said)


main()
