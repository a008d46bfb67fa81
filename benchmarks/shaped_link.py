# SPDX-License-Identifier: Apache-2.0
"""Runs of p3d on two hosts made of network namespaces (tests/nodes/hosts.py says what that needs), a rank on each.
Their link is shaped by tc (token bucket). For the benchmarks of what hides messages."""
import argparse
import contextlib
import json
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "nodes"))
import hosts  # noqa: E402

BITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


def words(keys, extra):
    return [f"{key}={str(value).lower()}" for key, value in keys.items()] + extra


def step_seconds(room, options, keys):
    """The median step of a run of these keys."""
    out = room.folder / "out"
    command = room.mpiexec(options.mpiexec, 2, "h0:1,h1:1") + [
        options.program, str(room.folder / "run.toml"), f"run.output_dir={out}",
        *words(keys, options.keys)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    seconds = json.loads((out / "summary.json").read_text())["median_step_s"]
    subprocess.run(["rm", "-rf", str(out)], check=True)
    return seconds


def shape(room, rate):
    for host in room.hosts:
        subprocess.run(["tc", "qdisc", "del", "dev", host.name, "root"], capture_output=True, check=False)
        if rate != "none":
            hosts.run("tc", "qdisc", "add", "dev", host.name, "root", "tbf", "rate", rate, "burst", "256kb", "latency",
                      "200ms")


def parser(text):
    out = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    out.add_argument("program")
    out.add_argument("--rates", default="1gbit,500mbit")
    out.add_argument("--mpiexec", default="mpiexec")
    out.add_argument("keys", nargs="*")
    return out


@contextlib.contextmanager
def two_hosts(arguments):
    """The room of both hosts, with an empty run.toml in its folder, and the options that `arguments` parses."""
    options = arguments.parse_intermixed_args()
    options.program = str(pathlib.Path(options.program).resolve())
    hosts.enter_room(options.mpiexec)
    with hosts.Hosts({}, {}) as room:
        (room.folder / "run.toml").write_text("")
        yield room, options
