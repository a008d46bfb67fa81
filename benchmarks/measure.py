# SPDX-License-Identifier: Apache-2.0
"""Starts a benchmark program, keeps what it prints, and reads the CSV back."""
import csv
import math
import pathlib
import statistics
import subprocess


class Failed(Exception):
    pass


class Table:
    """Lines that begin with '#' are the stamp; then a header and rows."""

    def __init__(self, text):
        lines = text.splitlines()
        self.stamp = [line[2:] for line in lines if line.startswith("#")]
        reader = csv.DictReader(line for line in lines if line and not line.startswith("#"))
        self.rows = list(reader)
        self.names = reader.fieldnames or []

    def short_stamp(self):
        """What a picture says about the machine, in one line: version, compiler, Kokkos, MPI, CPU."""
        keep = [line for line in self.stamp
                if line.startswith(("p3d 0", "compiler", "Kokkos ", "MPICH", "Open MPI", "CPU"))]
        return "; ".join(" ".join(line.split()) for line in keep)


def ranks_of(keys):
    """What the parallel.* keys ask for."""
    sizes = dict(key.split("=", 1) for key in keys if key.startswith("parallel."))
    return math.prod(int(sizes.get(f"parallel.{axis}", 1)) for axis in ("dp", "tp", "pp"))


def command(args, program, ranks, arguments, build=None):
    path = pathlib.Path(build or args.build) / "benchmarks" / f"bench_{program}"
    if not path.exists():
        raise Failed(f"expected the program {path}; found none; build with -DP3D_BUILD_BENCHMARKS=ON or name the build "
                     "folder with --build")
    return [*args.prefix.split(), "mpiexec", "-n", str(ranks), str(path), *arguments]


def run(args, program, ranks, arguments, file, build=None):
    """The table that a program prints; written to `file` in the folder of results where there is one."""
    words = command(args, program, ranks, arguments, build)
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise Failed(f"exit code {done.returncode} of: {' '.join(words)}")
    if file:
        (args.out / file).write_text(f"# command: {' '.join(words)}\n" + done.stdout)
    return Table(f"# command: {' '.join(words)}\n" + done.stdout)


def median_row(table):
    return next(r for r in table.rows if r["round"] == "median")


def write_csv(path, stamp, names, rows):
    with open(path, "w", newline="") as file:
        file.writelines(f"# {line}\n" for line in stamp)
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)


def median(values):
    return statistics.median(values)
