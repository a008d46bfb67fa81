# SPDX-License-Identifier: Apache-2.0
"""A command that runs beside the test, with what it prints in files."""
import csv
import subprocess
import time


class Started:
    """`what` names it in messages; `patience`: seconds after which it counts as hanging; `options`: for Popen."""

    def __init__(self, command, folder, what, patience, **options):
        self.what, self.patience = what, patience
        self.out_path, self.err_path = folder / f"{what}.out", folder / f"{what}.err"
        self.started = time.monotonic()
        with open(self.out_path, "wb") as out, open(self.err_path, "wb") as err:
            self.process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                            **options)

    @property
    def out(self):
        return self.out_path.read_text(errors="replace")

    @property
    def err(self):
        return self.err_path.read_text(errors="replace")

    @property
    def code(self):
        return self.process.returncode

    @property
    def text(self):
        return f"{self.what}: exit code {self.code}\n{self.out}\n{self.err}"

    def wait_until(self, condition, what):
        while not condition():
            if self.process.poll() is not None:
                raise AssertionError(f"it ended before {what}\n{self.text}")
            if time.monotonic() - self.started > self.patience:
                raise AssertionError(f"no {what} in {self.patience} s\n{self.text}")
            time.sleep(0.02)

    def kill(self):
        self.process.kill()
        self.process.wait()


def rows(path):
    """Of a CSV file, as dictionaries; none when there is no file yet."""
    try:
        with open(path, newline="") as file:
            return list(csv.DictReader(file))
    except FileNotFoundError:
        return []
