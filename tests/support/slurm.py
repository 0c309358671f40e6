"""Run a real Slurm on this machine: munged, slurmctld and one slurmd for each of the nodes n1, n2
and so on.

It starts in a third of a second. Every daemon stays in the foreground as our child and all files
are in one directory, so several clusters can run side by side and leave nothing behind. The
partition `high` preempts the partition `low`.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil

from tests.support.launched import NEWS_S_MAX, environment
from tests.support.ports import hold_ports
from tests.support.programs import ROOT
from tests.support.sudden_end import end_at_once, with_variable

CONFIGURATION = Path(__file__).with_name("slurm.conf")
DAEMONS = ("munged", "slurmctld", "slurmd", "srun")
START_S_MAX = 60.0
LOOK_S, LOOK_S_MAX = 0.02, 0.3  # each look runs a command, and many waits last as long as Slurm's own timeouts
NODE = "PROCSV_TEST_NODE"  # in the environment of a node's daemons: the cluster and the node
ENDED = frozenset({"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED"})


def missing_for_slurm() -> str:
    """Return why Slurm cannot run here, for the report of a skipped test, or "" if it can."""
    if missing := [name for name in DAEMONS if shutil.which(name) is None]:
        return f"needs a Slurm of its own ({', '.join(missing)} not found): apt-get install slurmctld slurmd slurm-client munge"
    return "" if os.geteuid() == 0 else "only root can start a Slurm of its own"


class SlurmCluster:
    """A Slurm of `nodes` nodes with 4 processors each.

    `grace_s` is the time from a preemption notice to the kill; `node_timeout_s` the silence after
    which a node counts as dead.
    """

    def __init__(self, nodes: int = 4, *, grace_s: int = 30, node_timeout_s: int = 10, kill_wait_s: int = 5) -> None:
        self.nodes = nodes
        self.place = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))  # short: a socket path has at most 107 bytes
        self.environment = environment(SLURM_CONF=str(self.place / "slurm.conf"), PYTHONPATH=str(ROOT))
        self._times = {"grace_s": grace_s, "node_timeout_s": node_timeout_s, "kill_wait_s": kill_wait_s}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._held = contextlib.ExitStack()

    # -- daemons ---------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Start the daemons and wait until all nodes are idle."""
        place = self.place
        place.chmod(0o755)  # munge requires that everybody can reach its socket
        (place / "state").mkdir()
        self._configure()
        key = place / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        files = (("key-file", key), ("socket", place / "munge.socket"), ("pid-file", place / "munged.pid"))
        more = (("log-file", place / "munged.log"), ("seed-file", place / "munge.seed"))
        self._start_daemon("munged", "--foreground", "--force", *(f"--{name}={path}" for name, path in (*files, *more)))
        self._wait_for((place / "munge.socket").exists, "munged does not answer")
        self._start_daemon("slurmctld", "-D", "-c", "-i")
        self._wait_for(lambda: "is UP" in self.run("scontrol", "ping").stdout, "slurmctld does not answer")
        for number in range(1, self.nodes + 1):
            self.start_node(number)
        self.wait_idle(self.nodes)

    def start_node(self, number: int) -> None:
        """Start a node's daemon, at the start of the cluster or after `kill_node`."""
        (self.place / f"spool.n{number}").mkdir(exist_ok=True)
        self._start_daemon("slurmd", "-D", "-N", f"n{number}", name=f"n{number}", **{NODE: self._mark(number)})

    def kill_node(self, number: int) -> set[int]:
        """Kill all processes of a node at once and without notice, as a power cut does. Return their pids."""
        daemon = self._daemons.pop(f"n{number}")
        gone = end_at_once(lambda: self._processes_of(number))
        daemon.wait()
        return gone

    def stop(self) -> None:
        """End all jobs and daemons and remove their files."""
        if "slurmctld" in self._daemons and self._daemons["slurmctld"].poll() is None:
            self.run("scancel", "--signal=KILL", "--full", "--user=root")
            self.run("scancel", "--user=root")
            with contextlib.suppress(TimeoutError):  # its node is gone
                self._wait_for(lambda: not self.run("squeue", "--noheader").stdout, "jobs go on", START_S_MAX / 2)
        last = ("slurmctld", "munged")
        for name in (*(name for name in self._daemons if name not in last), *last):
            if name in self._daemons:
                _end(self._daemons.pop(name))
        self._held.close()
        shutil.rmtree(self.place)

    def wait_idle(self, nodes: int) -> None:
        """Wait until that many nodes are idle."""
        count = ("sinfo", "--noheader", "--partition=low", "--states=idle", "--format=%D")
        self._wait_for(lambda: self.run(*count).stdout.split() == [str(nodes)], f"there are no {nodes} idle nodes")

    def _configure(self) -> None:
        controller, *ports = hold_ports(self._held)
        text = CONFIGURATION.read_text()
        text = text.format(host=socket.gethostname(), place=self.place, controller_port=controller, **self._times)
        nodes = (
            f"NodeName=n{number} NodeAddr=127.0.0.1 Port={port} CPUs=4 RealMemory=2000 State=UNKNOWN\n"
            for number, port in enumerate(ports[: self.nodes], start=1)
        )
        (self.place / "slurm.conf").write_text(text + "".join(nodes))

    def _start_daemon(self, program: str, *args: str, name: str = "", **more: str) -> None:
        with (self.place / f"{name or program}.out").open("ab") as output:
            self._daemons[name or program] = subprocess.Popen(
                [program, *args],
                env=self.environment | more,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # the terminal's Ctrl-C is for the tests
            )

    def _mark(self, number: int) -> str:
        return f"{self.place}/n{number}"

    def _processes_of(self, number: int) -> Iterator[psutil.Process]:
        """Yield a node's processes: daemons have our mark, processes of jobs have the node's name
        in their environment.
        """
        yield from with_variable(**{NODE: self._mark(number)})
        for process in with_variable(SLURMD_NODENAME=f"n{number}", SLURM_CONF=self.environment["SLURM_CONF"]):
            yield process
            with contextlib.suppress(psutil.Error):  # slurmstepd has overwritten its own environment
                yield from (parent for parent in process.parents() if parent.name() == "slurmstepd")

    # -- jobs ------------------------------------------------------------------------------------------------
    def run(self, *argv: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Run one of Slurm's commands to its end."""
        return subprocess.run(
            argv,
            cwd=self.place,
            env=self.environment | more,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=NEWS_S_MAX,
            check=False,
        )

    def start_command(self, *argv: str, **more: str) -> subprocess.Popen[str]:
        """Start one of Slurm's commands, with its output in a pipe."""
        return subprocess.Popen(
            argv,
            cwd=self.place,
            env=self.environment | more,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def submit(self, script: Path, *options: str, **more: str) -> str:
        """Submit a batch job and return its number. It prints to `job_output()`."""
        done = self.run("sbatch", "--parsable", f"--output={self.place}/job-%j.out", *options, str(script), **more)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip().partition(";")[0]

    def job_output(self, job: str) -> str:
        """Return what the job's script has printed in all its starts."""
        with contextlib.suppress(FileNotFoundError):
            return (self.place / f"job-{job}.out").read_text()
        return ""

    def describe_job(self, job: str) -> dict[str, str]:
        """Return the fields of `scontrol show job`: JobState, Restarts, ExitCode, NodeList and so on."""
        return dict(re.findall(r"(\S+?)=(\S*)", self.run("scontrol", "show", "job", job).stdout))

    def wait_job(self, job: str, states: Sequence[str] | frozenset[str] = ENDED) -> dict[str, str]:
        """Wait until the job is in one of `states`. Return its fields."""
        self._wait_for(lambda: self.describe_job(job).get("JobState") in states, f"job {job} is in none of {states}")
        return self.describe_job(job)

    def start_requeued(self, job: str) -> None:
        """Wait until a job is first requeued, and spare it the two minutes that Slurm may make it wait."""

        def is_requeued() -> bool:
            said = self.describe_job(job)
            return said["Restarts"] != "0" and said["JobState"] not in ("COMPLETING", "REQUEUED")

        self._wait_for(is_requeued, f"job {job} is not requeued")
        if self.describe_job(job)["Reason"] == "BeginTime":
            # Not `now`: within a second of the requeue, nodes refuse anything with the job's
            # number, and the job fails.
            update = self.run("scontrol", "update", f"JobId={job}", "StartTime=now+2")
            assert update.returncode == 0, update.stderr

    def _wait_for(self, is_so: Callable[[], bool], otherwise: str, limit_s: float = NEWS_S_MAX) -> None:
        until_s, pause, look_s = time.monotonic() + limit_s, threading.Event(), LOOK_S
        while not is_so():
            for name, daemon in self._daemons.items():
                assert daemon.poll() is None, f"{name} has ended: {self._tail(name)}"
            if time.monotonic() > until_s:
                raise TimeoutError(f"{otherwise}: {self._tail('slurmctld')}")
            pause.wait(look_s)
            look_s = min(2 * look_s, LOOK_S_MAX)

    def _tail(self, name: str) -> str:
        return (self.place / f"{name}.out").read_text(errors="replace")[-2000:]


def _end(daemon: subprocess.Popen[bytes]) -> None:
    daemon.terminate()
    try:
        daemon.wait(START_S_MAX / 2)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()
