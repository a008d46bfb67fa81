# SPDX-License-Identifier: Apache-2.0
"""Several hosts on one machine, each with namespaces of its own: network, host name, System V and POSIX shared memory,
processes, mounts (its own /dev/shm and, if asked for, folders) and clocks. They hang on a bridge in one more network
namespace, where mpiexec runs, so that MPI sees several hosts and talks TCP between them.

Nothing has a name outside: all lives in the namespaces of one process, `room`, and goes with it, however that ends. No
address outside of them can be reached from inside.
"""
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading

SKIPPED = 77  # ctest's SKIP_RETURN_CODE
INSIDE = "P3D_NODES_INSIDE"
NETWORK = "10.213.77"
LOGIN = "login"
HOST_COMMAND = ("unshare", "--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")


def missing(mpiexec):
    """Why hosts cannot be made here; empty when they can."""
    for program in ("unshare", "nsenter", "mount", "ip"):
        if find(program) is None:
            return f"the program {program} is not installed (Debian: util-linux, mount, iproute2)"
    if "HYDRA" not in subprocess.run([mpiexec, "--version"], stdout=subprocess.PIPE, text=True).stdout.upper():
        return f"{mpiexec} is not MPICH's: only that takes a stand-in for ssh"
    test = ("mount -t sysfs sysfs /sys && ip link add p3dbr type bridge && ip link add p3d0 type veth peer name p3d1"
            " && ip link set lo up")
    done = subprocess.run([*room_command(), *HOST_COMMAND, "--time", "sh", "-c", test], capture_output=True, text=True,
                          env=environment())
    if done.returncode != 0:
        why = done.stderr.strip() or f"exit code {done.returncode}"
        return f"namespaces, a bridge or virtual network devices are not allowed here: {why}"
    return ""


def find(program):
    return shutil.which(program, path=environment()["PATH"])


def environment():
    """Ours, with the folders of system programs, and without what a launcher around us may have set."""
    launchers = ("PMI_", "PMIX_", "HYDRA_", "HYDI_", "MPI_", "SLURM_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(launchers)}
    return kept | {"PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin"}


def room_command():
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return [*HOST_COMMAND, *user]


def enter_room(mpiexec):
    """Outside: runs this program again in its own namespaces, and exits with its code. Inside: returns."""
    if os.environ.get(INSIDE):
        end_with_lifeline()
        return
    why = missing(mpiexec)
    if why:
        print(f"SKIPPED: {why}", flush=True)
        sys.exit(SKIPPED)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # When this process ends, however it does, its end of the pipe closes; then the room's process 1 ends, and with it
    # all others.
    with tempfile.TemporaryDirectory(prefix="p3d-nodes-") as folder, \
            subprocess.Popen([*room_command(), sys.executable, "-B", *sys.argv], stdin=subprocess.PIPE,
                             env=environment() | {INSIDE: "1", "TMPDIR": folder}) as room:
        try:
            sys.exit(room.wait())
        finally:
            room.stdin.close()
            room.wait()


def end_with_lifeline():
    lifeline = os.dup(0)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)

    def watch():
        os.read(lifeline, 1)
        os._exit(1)
    threading.Thread(target=watch, daemon=True).start()


def run(*command, **options):
    done = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          **options)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))} ended with {done.returncode}\n{done.stdout}")
    return done.stdout


def children():
    """{process: (parent, state, command line)} of all processes of the room."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                state, parent = pathlib.Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()[:2]
                line = pathlib.Path("/proc", entry, "cmdline").read_text(errors="replace").replace("\0", " ")
            except OSError:
                continue
            found[int(entry)] = (int(parent), state, line)
    return found


class Host:
    """One host: h0, h1, ... `shm`: size of its /dev/shm. `clock_s`: how far its monotonic clocks are ahead of the
    others'. `folders`: {folder that it sees: folder that is really there}."""

    def __init__(self, number, shm="256m", clock_s=0, folders=None):
        self.name, self.address = f"h{number}", f"{NETWORK}.{number + 1}"
        setup = ["set -e", f"hostname {self.name}", "mount -t sysfs sysfs /sys",
                 f"mount -t tmpfs -o size={shm},mode=1777 tmpfs /dev/shm",
                 *(f"mount --bind '{there}' '{seen}'" for seen, there in (folders or {}).items()),
                 "echo ready", "read go", "ip link set lo up", f"ip address add {self.address}/24 dev eth0",
                 "ip link set eth0 up", "echo up", "exec sleep infinity"]
        clocks = ["--time", "--monotonic", str(clock_s), "--boottime", str(clock_s)]
        self.holder = subprocess.Popen([*HOST_COMMAND, *clocks, "sh", "-c", "\n".join(setup)], stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def start(self):
        self.expect("ready")
        self.process = next(p for p, (parent, _, _) in children().items() if parent == self.holder.pid)
        run("ip", "link", "add", self.name, "type", "veth", "peer", "name", "eth0", "netns", self.process)
        run("ip", "link", "set", self.name, "master", "bridge", "up")
        self.holder.stdin.write("go\n")
        self.holder.stdin.flush()
        self.expect("up")

    def expect(self, word):
        line = self.holder.stdout.readline()
        if line != word + "\n":
            raise RuntimeError(f"host {self.name} does not start: {line}{self.holder.stdout.read()}")

    def enter(self):
        """The command that runs what follows it on this host, in the same folder."""
        return ["nsenter", "-t", str(self.process), "-n", "-u", "-i", "-m", "-p", "-T", f"--wdns={os.getcwd()}"]

    def run(self, *command):
        return run(*self.enter(), *command)

    def link(self, state):
        """`down`: cuts its network cable; `up` joins it again."""
        run("ip", "link", "set", self.name, state)

    def end(self):
        # The kernel would do it too, but a little later.
        subprocess.run(["ip", "link", "delete", self.name], stderr=subprocess.DEVNULL)
        self.holder.kill()
        self.holder.wait()
        self.holder.stdin.close()
        self.holder.stdout.close()


class Hosts:
    """Hosts for the length of a `with` block. `options`: for each host what Host takes."""

    def __init__(self, *options):
        self.options, self.hosts = options, []

    def __enter__(self):
        self.scratch = tempfile.TemporaryDirectory(prefix="p3d-nodes-")
        self.folder = pathlib.Path(self.scratch.name)
        try:
            self.open_room()
            for number, options in enumerate(self.options):
                self.hosts.append(Host(number, **options))
                self.hosts[-1].start()
            self.write_launcher()
        except BaseException:
            self.__exit__()
            raise
        return self

    def open_room(self):
        names = [f"{NETWORK}.254 {LOGIN}", *(f"{NETWORK}.{i + 1} h{i}" for i in range(len(self.options)))]
        table = self.folder / "names"
        table.write_text("127.0.0.1 localhost\n" + "\n".join(names) + "\n")
        run("mount", "--bind", table, "/etc/hosts")
        run("hostname", LOGIN)
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "bridge", "type", "bridge")
        run("ip", "address", "add", f"{NETWORK}.254/24", "dev", "bridge")
        run("ip", "link", "set", "bridge", "up")

    def write_launcher(self):
        """What mpiexec takes for ssh: options, a host, and a command line for its shell."""
        cases = "\n".join(f"  {h.name}) exec {' '.join(h.enter())} sh -c \"$*\" ;;" for h in self.hosts)
        self.launcher = self.folder / "ssh"
        self.launcher.write_text(f'#!/bin/sh\nwhile [ "${{1#-}}" != "$1" ]; do shift; done\nhost=$1\nshift\n'
                                 f'case $host in\n{cases}\n  *) echo "no host $host" >&2; exit 255 ;;\nesac\n')
        self.launcher.chmod(0o755)

    def mpiexec(self, program, ranks, placement):
        """The launcher with its options, up to the program. `placement`: "h0:3,h1:1" gives three ranks to h0, one to
        h1, and so on in turn."""
        return [program, "-launcher", "ssh", "-launcher-exec", str(self.launcher), "-hosts", placement, "-n",
                str(ranks)]

    def left(self):
        """Processes on the hosts that nobody ended: {process: command line}."""
        own = {h.process for h in self.hosts} | {h.holder.pid for h in self.hosts} | {1, os.getpid()}
        return {p: line for p, (_, state, line) in children().items() if p not in own and state not in "ZX"}

    def __exit__(self, *_):
        while self.hosts:
            self.hosts.pop().end()
        subprocess.run(["ip", "link", "delete", "bridge"], stderr=subprocess.DEVNULL)
        subprocess.run(["umount", "/etc/hosts"], stderr=subprocess.DEVNULL)
        self.scratch.cleanup()
