# SPDX-License-Identifier: Apache-2.0
"""One node's Slurm, with its own munge, in a folder of its own; gone with the `with` block, and with the process if
that dies."""
import ctypes
import getpass
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scancel", "scontrol", "sinfo", "squeue")
CONFIGURATION = """
ClusterName=p3d
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={controller_port}
SlurmdPort={node_port}
AuthType=auth/munge
CredType=cred/munge
# A requeued job waits until the credentials of its last start have expired: 120 s unless told.
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
GresTypes=gpu
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0,sched_interval=2
# More processors than the machine may have: the node is a stand-in, ranks share what is there.
SlurmdParameters=config_overrides
KillWait=8
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} Gres=gpu:4 State=UNKNOWN
PartitionName=test Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def missing():
    """The programs that are not installed."""
    return [p for p in PROGRAMS if find(p) is None]


def find(program):
    return shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def die_with_parent():
    os.setpgrp()
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class Cluster:
    def __init__(self, cpus):
        self.cpus, self.daemons = cpus, []

    def __enter__(self):
        self.scratch = tempfile.TemporaryDirectory(prefix="p3d-slurm-")
        self.folder = pathlib.Path(self.scratch.name)
        # Nothing of a Slurm that this test may itself run under.
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SBATCH_", "PMI_"))}
        self.environment["SLURM_CONF"] = str(self.folder / "slurm.conf")
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if len(self.daemons) == 3:
            self.end_jobs()
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in reversed(self.daemons):
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self.scratch.cleanup()

    def end_jobs(self):
        """No task may outlive its node's daemon."""
        try:
            self.run("scancel", "--full", "--signal=KILL", "-u", getpass.getuser(), check=False, timeout=20)
            self.run("scancel", "-u", getpass.getuser(), check=False, timeout=20)
            self.until(lambda: not self.run("squeue", "-h", check=False, timeout=20).stdout.strip(),
                       "the last jobs to end", 30)
        except (TimeoutError, subprocess.TimeoutExpired) as e:
            print(e)

    def start(self):
        f = self.folder
        for name in ("state", "spool"):
            (f / name).mkdir()
        key = f / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        f.chmod(0o755)
        for i in range(4):  # GPUs that are empty files
            (f / f"gpu{i}").touch()
        (f / "gres.conf").write_text(f"Name=gpu File={f}/gpu[0-3]\n")
        controller_port, node_port = free_ports(2)
        host = socket.gethostname().split(".")[0]
        (f / "slurm.conf").write_text(CONFIGURATION.format(host=host, user=getpass.getuser(), folder=f, cpus=self.cpus,
                                                           controller_port=controller_port, node_port=node_port))
        self.daemon("munged", "-F", "--force", f"--key-file={key}", f"--socket={f}/munge.socket",
                    f"--pid-file={f}/munge.pid", f"--log-file={f}/munge.log", f"--seed-file={f}/munge.seed")
        self.until(lambda: (f / "munge.socket").exists(), "munge to start")
        self.daemon("slurmctld", "-D")
        self.daemon("slurmd", "-D")
        self.until(lambda: self.run("sinfo", "-h", "-o", "%T", check=False).stdout.strip() == "idle",
                   "the node to become idle")

    def daemon(self, program, *arguments):
        log = open(self.folder / f"{program}.out", "wb")
        self.daemons.append(subprocess.Popen([find(program), *arguments], stdin=subprocess.DEVNULL, stdout=log,
                                             stderr=log, env=self.environment, preexec_fn=die_with_parent))

    def until(self, condition, what, seconds=30.0):
        """Waits for a condition; on failure raises with the daemons' last words."""
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise TimeoutError(f"waited {seconds:.0f} s for {what}\n{self.logs()}")
            time.sleep(0.1)

    def logs(self):
        return "\n".join(f"-- {p.name}\n" + "\n".join(p.read_text(errors="replace").splitlines()[-15:])
                         for p in sorted(self.folder.glob("*.out")) if p.stat().st_size)

    def run(self, program, *arguments, check=True, timeout=90, cwd=None):
        done = subprocess.run([find(program), *map(str, arguments)], capture_output=True, text=True,
                              env=self.environment, timeout=timeout, cwd=cwd)
        if check and done.returncode != 0:
            raise AssertionError(f"{program} {' '.join(map(str, arguments))} ended with {done.returncode}\n"
                                 f"{done.stdout}\n{done.stderr}")
        return done

    def popen(self, program, *arguments, cwd=None):
        return subprocess.Popen([find(program), *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                text=True, env=self.environment, cwd=cwd, preexec_fn=die_with_parent)

    def job(self, number):
        """What Slurm says of a job, as a dictionary: JobState, ExitCode, Restarts, ..."""
        text = self.run("scontrol", "show", "job", number).stdout
        return dict(pair.split("=", 1) for pair in text.split() if "=" in pair)
