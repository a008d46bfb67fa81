# SPDX-License-Identifier: Apache-2.0
"""Starts p3d, on one rank without a launcher, and reads what a run leaves in its folder."""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import started  # noqa: E402

from cases import ranks, shown, with_base, words


class Result:
    """How a command ended. `code` is None where it outlasted its time."""

    def __init__(self, command, code, out, seconds):
        self.command, self.code, self.out, self.seconds = command, code, out, seconds

    @property
    def line(self):
        return shown(self.command)


class Starter:
    """`folder`: where the files of the cases are, the current directory of every command; `timeout_s`: comm.timeout_s
    of each run. `patient`: a run that outlasts it is tried once more with three times as much, as a machine may be
    busy, unless its report shows a deadlock; `retried` has the lines of such runs."""

    def __init__(self, program, mpiexec, folder, timeout_s=20.0):
        self.program, self.mpiexec, self.timeout_s = str(program), list(mpiexec), timeout_s
        self.folder = pathlib.Path(folder)
        self.patient = True
        self.starts = 0  # of p3d, with and without a launcher
        self.retried = []
        # One thread a rank, and no library that binds all ranks to the same core.
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_PROC_BIND": "false",
                            "HYDRA_TOPO_DEBUG": "0"}
        for name in [name for name in self.environment if name.startswith("SLURM_")]:
            del self.environment[name]

    def run(self, arguments, number_of_ranks=1):
        """Any command of p3d."""
        launcher = [*self.mpiexec, str(number_of_ranks)] if number_of_ranks > 1 else []
        inside = [word.relative_to(self.folder) if isinstance(word, pathlib.Path) else word for word in arguments]
        command = [*launcher, self.program, *map(str, inside)]
        begin = time.monotonic()
        self.starts += 1
        process = subprocess.Popen(command, cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            out, _ = process.communicate(timeout=4 * self.timeout_s + 20)
            code = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # the session that this start made, with its ranks
            out, _ = process.communicate()
            code = None
        return Result(command, code, out.decode(errors="replace"), time.monotonic() - begin)

    def complete(self, keys):
        return {"comm.timeout_s": f"{self.timeout_s}", **with_base(keys)}

    def check(self, keys):
        return self.run(["--check", "--ranks", ranks(keys), *words(self.complete(keys))])

    def train(self, keys, output, goes_on=False):
        """The output folder goes where @ stands. `goes_on`: it has the state of a run that was stopped."""
        keys = self.complete(keys)
        placed = {"run.output_dir": output, **keys}
        placed = {key: output + ("/kept" if key == "checkpoint.dir" else "") if value == "@" else value
                  for key, value in placed.items()}
        result = self.run(words(placed), ranks(keys))
        if goes_on or not self.patient or result.code not in (3, None) or is_deadlock(result.out):
            return result
        self.retried.append(result.line)
        shutil.rmtree(self.folder / output, ignore_errors=True)
        short, self.timeout_s = self.timeout_s, 3 * self.timeout_s
        try:
            return self.run(words({**placed, "comm.timeout_s": f"{self.timeout_s}"}), ranks(keys))
        finally:
            self.timeout_s = short


def is_deadlock(report):
    """True where ranks wait for different things and all of them answered: none was merely slow (comm/watchdog.cpp)."""
    return re.search(r"\((elsewhere|not begun)\)", report) is not None and "no answer" not in report


class Record:
    """What a run left: rows of metrics.csv by step, its checkpoints, its sample."""

    def __init__(self, folder, out):
        self.folder, self.out = pathlib.Path(folder), out
        self.rows, self.experts = {}, {}
        for row in started.rows(self.folder / "metrics.csv"):
            self.rows[int(row["step"])] = row
        for row in started.rows(self.folder / "experts.csv"):
            self.experts[int(row["step"]), int(row["layer"])] = [int(n) for n in row["tokens of each expert"].split()]
        found = re.search(r"(?ms)^A sample of the model .*?\n----\n(.*)\n----$", out)
        self.sample = found[1] if found else None
        files = [*self.folder.glob("checkpoints/*.h5"), *self.folder.glob("kept/*.h5")]
        self.checkpoints = {int(path.stem.rsplit("-", 1)[1]): path for path in files}
        try:
            self.summary = json.loads((self.folder / "summary.json").read_text())
        except (OSError, ValueError):
            self.summary = {}

    def last_checkpoint(self):
        return self.checkpoints[max(self.checkpoints)] if self.checkpoints else None
