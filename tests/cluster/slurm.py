"""Start and stop a Slurm of two nodes on this machine, in a folder of its own.

Two slurmd with ports and names of their own are the nodes; both names belong to 127.0.0.1. Jobs of the partition `high`
preempt those of `low`, which are requeued. It needs Debian's packages and root, whose names for the machine it adds:

    apt-get install slurmctld slurmd slurm-client munge
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PACKAGES = ("slurmctld", "slurmd", "munged", "srun", "sbatch", "scontrol")
INSTALL = "apt-get install slurmctld slurmd slurm-client munge"
NODES = ("embinit-a", "embinit-b")
_HOSTS = Path("/etc/hosts")
_ALSO = "/usr/sbin:/usr/bin:/sbin:/bin"

_CONFIGURATION = """
ClusterName=embinit
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
# also how long a requeued job waits (seconds)
AuthInfo=socket={folder}/munge/socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
SlurmctldPort={port}
MailProg=/bin/true
MpiDefault=none
# a command of embinit grid has a process group of its own
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmdTimeout=5
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=60
MinJobAge=600
JobRequeue=1
SchedulerParameters=bf_interval=1,sched_min_interval=100000,batch_sched_delay=0,requeue_delay=0
{nodes}
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 MaxTime=UNLIMITED State=UP PreemptMode=REQUEUE GraceTime=60
PartitionName=high Nodes=ALL PriorityTier=10 MaxTime=UNLIMITED State=UP PreemptMode=OFF
"""


def missing() -> str | None:
    """Return why no cluster can be started here, with the remedy; None if one can."""
    absent = [name for name in PACKAGES if shutil.which(name, path=f"{os.environ['PATH']}:{_ALSO}") is None]
    if absent:
        return f"no {', '.join(absent)}: {INSTALL}"
    if os.geteuid() != 0:
        return "a Slurm of two nodes needs root here"
    return None


def free_port() -> int:
    """Return a port that nothing listens at, below the ports that the kernel gives to connections."""
    while True:
        port = random.randrange(15_000, 32_000)
        with suppress(OSError), socket.create_server(("", port)):
            return port


class Slurm:
    """A cluster that runs.

    Attributes:
        environment: what a program needs to talk to it.
        daemons: name -> process.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.daemons: dict[str, subprocess.Popen] = {}
        outer = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "MASTER_"))}
        self.environment = {**outer, "SLURM_CONF": str(folder / "slurm.conf"), "PATH": f"{outer['PATH']}:{_ALSO}"}

    def run(self, *command: object, check: bool = True, **options) -> subprocess.CompletedProcess:
        """Run a program of this cluster; AssertionError with what it said if it fails."""
        options = {"capture_output": True, "text": True, "env": self.environment, "timeout": 600, **options}
        done = subprocess.run([*map(str, command)], **options)
        assert not check or done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done

    def submit(self, script: str, folder: Path, *options: str) -> str:
        """Submit a script for bash and return the number of its job; its output is folder/JOB.out."""
        file = folder / "job.sh"
        file.write_text(f"#!/bin/bash\n{script}\n")
        done = self.run("sbatch", "--parsable", f"--output={folder}/%j.out", "--open-mode=append", *options, file)
        return done.stdout.strip()

    def state(self, job: str) -> dict[str, str]:
        """Return what scontrol says about a job: JobState, ExitCode, Restarts, Reason, ..."""
        words = self.run("scontrol", "--oneliner", "show", "job", job).stdout.split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait(self, job: str) -> dict[str, str]:
        """Wait until a job has ended and return what scontrol says about it."""
        until = time.monotonic() + 600
        while (state := self.state(job))["JobState"] not in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"):
            assert time.monotonic() < until, state
            time.sleep(0.1)
        return state

    # ---- Daemons --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start all daemons and wait until both nodes are there."""
        host, nodes = socket.gethostname(), []
        for name in NODES:
            nodes.append(f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} CPUs=4 ")
            nodes[-1] += "CoresPerSocket=4 RealMemory=16000"
            (self.folder / f"spool.{name}").mkdir()
        for name in ("state", "munge"):
            (self.folder / name).mkdir(mode=0o755)
        text = _CONFIGURATION.format(host=host, folder=self.folder, port=free_port(), nodes="\n".join(nodes))
        (self.folder / "slurm.conf").write_text(text)
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        munge = [f"--{name}={self.folder}/munge/{name.split('-')[0]}" for name in ("socket", "pid-file", "log-file")]
        munge += [f"--seed-file={self.folder}/munge/seed", f"--key-file={key}", "--foreground", "--force"]
        self._daemon("munged", *munge)
        while not (self.folder / "munge" / "socket").exists():
            time.sleep(0.05)
        self._daemon("slurmctld", "-D")
        for name in NODES:
            self._daemon("slurmd", "-D", "-N", name, label=name)
        until = time.monotonic() + 60
        while self.run("sinfo", "-h", "-N", "-p", "low", "-o", "%T", check=False).stdout.split() != ["idle", "idle"]:
            assert time.monotonic() < until, (self.folder / "slurmctld.log").read_text()[-2000:]
            time.sleep(0.1)

    def _daemon(self, program: str, *options: str, label: str = "") -> None:
        with (self.folder / f"{label or program}.out").open("a") as out:
            kinds = {"stdout": out, "stderr": out, "stdin": subprocess.DEVNULL}
            process = subprocess.Popen([program, *options], env=self.environment, start_new_session=True, **kinds)
        self.daemons[label or program] = process

    def stop(self) -> None:
        """End all jobs, and then the daemons: a job that cannot say that it has ended keeps its slurmd."""
        until = time.monotonic() + 20
        with suppress(subprocess.SubprocessError):
            while self.run("squeue", "--noheader", timeout=20).stdout and time.monotonic() < until:
                self.run("scancel", "--me", check=False, timeout=20)
                time.sleep(0.2)
        for process in reversed(self.daemons.values()):
            process.send_signal(signal.SIGTERM)
        for process in self.daemons.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


@contextmanager
def cluster(folder: Path) -> Iterator[Slurm]:
    """Yield a cluster that runs while the block does; the names of its nodes are in /etc/hosts meanwhile."""
    before = _HOSTS.read_text()
    lines = "".join(f"127.0.0.1 {name}\n" for name in NODES if name not in before.split())
    if lines:
        _HOSTS.write_text(before + lines)
    slurm = Slurm(folder)
    try:
        slurm.start()
        yield slurm
    finally:
        slurm.stop()
        if lines:
            _HOSTS.write_text(_HOSTS.read_text().replace(lines, ""))
