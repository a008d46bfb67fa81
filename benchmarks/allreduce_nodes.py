#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""All-reduces between hosts whose links are shaped: what share of the link they reach, beside MPI's.

usage: allreduce_nodes.py BENCH_ALLREDUCE [--hosts 2,4,8] [--ranks-per-host 1] [--rate 100mbit] [--sizes BYTES,...]
                          [--turns 3] [--algorithms auto,hierarchical,ring] [--mpiexec mpiexec]

Hosts are network namespaces (tests/nodes/hosts.py says what that needs), and tc (token bucket, 64 KiB burst) limits
what each of them receives. No all-reduce of S bytes over n hosts can be quicker than 2 (n-1)/n S / rate (Patarasu,
Yuan, J. Parallel Distrib. Comput. 69 (2009) 117). Printed are the times of one operation as benchmarks/allreduce.cpp
takes them, and this bound over them. All hosts share the cores of this machine, whose kernel carries every byte: at a
rate too high for it the figures fall with the number of hosts.
"""
import argparse
import csv
import pathlib
import re
import statistics
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "nodes"))
import hosts  # noqa: E402

BITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--hosts", default="2,4,8")
    parser.add_argument("--ranks-per-host", type=int, default=1)
    parser.add_argument("--rate", default="100mbit")
    parser.add_argument("--sizes", default=",".join(str(2**k) for k in (20, 22, 24)))
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--algorithms", default="auto,hierarchical,ring")
    parser.add_argument("--mpiexec", default="mpiexec")
    options = parser.parse_args()
    program = str(pathlib.Path(options.program).resolve())
    number, unit = re.fullmatch(r"([0-9.]+)([kmg]bit)", options.rate).groups()
    bytes_per_second = float(number) * BITS[unit] / 8
    hosts.enter_room(options.mpiexec)
    numbers = [int(n) for n in options.hosts.split(",")]
    with hosts.Hosts(*({} for _ in range(max(numbers)))) as room:
        for host in room.hosts:
            hosts.run("tc", "qdisc", "add", "dev", host.name, "root", "tbf", "rate", options.rate, "burst", "64kb",
                      "latency", "400ms")
        for n in numbers:
            where = ",".join(f"h{i}:{options.ranks_per_host}" for i in range(n))
            command = [*room.mpiexec(options.mpiexec, n * options.ranks_per_host, where), program, "--turns",
                       str(options.turns), "--sizes", options.sizes, *options.algorithms.split(",")]
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                                  env=hosts.environment() | {"OMP_NUM_THREADS": "1"})
            if done.returncode != 0:
                raise SystemExit(f"{' '.join(command)}\nexit code {done.returncode}\n{done.stdout}{done.stderr}")
            lines = done.stdout.splitlines()
            if n == numbers[0]:
                print(f"# links of {options.rate}, {options.ranks_per_host} rank(s) a host",
                      *(line for line in lines if line.startswith("#")), sep="\n")
                print("hosts,bytes,algorithm,seconds,share_of_link,speed_to_mpi")
            for row in csv.DictReader(line for line in lines if not line.startswith("#")):
                bound = 2 * (n - 1) / n * int(row["bytes"]) / bytes_per_second
                seconds = 1e-6 * float(row["microseconds"])
                share = f"{bound / seconds:.3f}"
                print(n, row["bytes"], row["algorithm"], f"{seconds:.6g}", share, row["speed_to_mpi"], sep=",",
                      flush=True)


if __name__ == "__main__":
    main()
