# SPDX-License-Identifier: Apache-2.0
"""A folder in which the commands of the documentation run as they stand there: p3d and mpiexec are in its path."""
import os
import shlex
import shutil
import subprocess
import sys

import program
from program import AppTest

sys.path.insert(0, str(program.SOURCE / "tests/docs"))
import pages  # noqa: E402,F401


class DocumentTest(AppTest):
    def setUp(self):
        super().setUp()
        for name in ("benchmarks", "inputs", "LICENSE"):
            (self.folder / name).symlink_to(program.SOURCE / name)
        (self.folder / "bin").mkdir()
        (self.folder / "bin/p3d").symlink_to(program.PROGRAM)
        launcher = shlex.join([shutil.which(program.MPIEXEC[0]), *program.MPIEXEC[1:]])  # not this script itself
        (self.folder / "bin/mpiexec").write_text(f'#!/bin/sh\n[ "$1" = -n ] && shift\nexec {launcher} "$@"\n')
        (self.folder / "bin/mpiexec").chmod(0o755)

    def shell(self, command):
        environment = dict(os.environ, PATH=f"{self.folder}/bin:{os.environ['PATH']}")
        return subprocess.run(["bash", "-c", command], cwd=self.folder, env=environment, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                              timeout=program.PATIENCE)
