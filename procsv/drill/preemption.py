"""Preempt a live run as a platform does: notice, grace, kill, and loss of the machine's memory.

`procsv preempt` uses it. It touches only the processes of one run. It holds each by a descriptor,
so that it never mistakes a reused pid for a process of the run.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal

import msgspec
import psutil

from procsv.base.clock import Clock
from procsv.base.journal.entries import CheckpointDurable
from procsv.base.journal.file import read_journal
from procsv.base.outcome import NO_STEP
from procsv.base.run.cleanup import remove_dirs, remove_run_files, remove_shm_files
from procsv.base.run.run_file import RunFile, read_run

LOOK_S = 0.05


class Profile(msgspec.Struct, frozen=True):
    """How a platform preempts, according to its documentation."""

    grace_s: float  # from the notice to the kill
    notifies_all: bool  # the notice, SIGTERM, goes to every process of the run, not only to the first


PROFILES: dict[str, Profile] = {
    "gcp-spot": Profile(30.0, True),  # an ACPI signal: init sends SIGTERM to all; 30 s later the machine is off
    "aws-spot": Profile(120.0, False),  # a notice in the instance's metadata, which handlers turn into SIGTERM
    "slurm": Profile(60.0, True),  # SIGCONT and SIGTERM to the job's steps, SIGKILL after GraceTime, usually 60 s
    "k8s": Profile(30.0, False),  # SIGTERM to the first process, SIGKILL after terminationGracePeriodSeconds
}


class PreemptionOutcome(msgspec.Struct):
    """The outcome of a preemption. Durations are seconds since the notice."""

    profile: str
    grace: float
    step_at_notice: int
    saved_step: int  # of the newest checkpoint on disk at the end
    last_step: int  # reached by the program
    saved_after: float | None  # when that checkpoint was on disk; None: before the notice, or there is none
    ended_after: float | None  # when the last process ended by itself; None: some were killed
    exit_code: int | None  # of `procsv launch`; None if it was killed
    killed: list[str] = msgspec.field(default_factory=list)  # roles still alive at the end of the grace

    @property
    def lost_steps(self) -> int:
        return max(0, self.last_step - max(self.saved_step, 0))

    @property
    def in_time(self) -> bool:
        """Whether the next launch resumes where this one ended."""
        return self.lost_steps == 0 and self.saved_step != NO_STEP

    @property
    def margin(self) -> float | None:
        """The grace that remained when the newest state was on disk, in seconds.

        If that was before the notice, or nothing is saved, this is the grace that remained when the
        run ended; None if processes had to be killed.
        """
        done_s = self.saved_after if self.saved_after is not None else self.ended_after
        return None if done_s is None else self.grace - done_s


def preempt(run: RunFile, name: str, profile: Profile, clock: Clock) -> PreemptionOutcome:
    """Preempt `run`, and wait until it has ended."""
    processes = _Processes(run)
    try:
        noticed_s, noticed_at = clock.monotonic(), clock.wall()
        processes.notify(profile.notifies_all)
        ended_s = processes.wait_all(noticed_s + profile.grace_s, clock)
        killed = processes.kill() if ended_s is None else []
    finally:
        processes.close()
    if killed:
        _switch_off(run)
    after = read_run(run.paths.run_json) or run
    saved_step, saved_at = _last_saved(run)
    return PreemptionOutcome(
        profile=name,
        grace=profile.grace_s,
        step_at_notice=run.step,
        saved_step=saved_step,
        last_step=max(after.step, saved_step),
        saved_after=round(saved_at - noticed_at, 3) if saved_at is not None and saved_at >= noticed_at else None,
        ended_after=round(ended_s - noticed_s, 3) if ended_s is not None else None,
        exit_code=after.exit_code if after.ended_at is not None else None,
        killed=killed,
    )


def _last_saved(run: RunFile) -> tuple[int, float | None]:
    last: tuple[int, float | None] = NO_STEP, None
    for line in read_journal(run.paths.journal):
        if isinstance(line.entry, CheckpointDurable):
            last = line.entry.step, line.time
    return last


def _switch_off(run: RunFile) -> None:
    """Remove what a machine loses at power-off: shared memory and the runtime directory."""
    remove_shm_files(run.paths)
    remove_run_files(run.paths)
    remove_dirs(run.paths)


class _Processes:
    """The processes of a run: its watchdog and the watchdog's descendants.

    ProcessLookupError if the run is not active.
    """

    def __init__(self, run: RunFile) -> None:
        self._run = run
        self._members: dict[int, tuple[int, str]] = {}  # pid -> (pidfd, role)
        self._hold_process(run.pid, "watchdog")
        if not run.is_active:
            self.close()
            raise ProcessLookupError(run.pid)
        self._find_children()

    def _hold_process(self, pid: int, role: str) -> None:
        if pid not in self._members:
            with contextlib.suppress(ProcessLookupError):
                self._members[pid] = (os.pidfd_open(pid), role)

    def _find_children(self) -> None:
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(self._run.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    self._hold_process(child.pid, _role(child.cmdline()))

    def notify(self, everybody: bool) -> None:
        """Send SIGCONT, which continues a stopped process, and SIGTERM."""
        for pid, (pidfd, _) in list(self._members.items()):
            if everybody or pid == self._run.pid:
                for number in (signal.SIGCONT, signal.SIGTERM):
                    with contextlib.suppress(ProcessLookupError):
                        signal.pidfd_send_signal(pidfd, number)

    def wait_all(self, until_s: float, clock: Clock) -> float | None:
        """Wait until all have ended, and return when; None if some are alive at `until_s`."""
        while (now_s := clock.monotonic()) < until_s:
            self._find_children()
            if not self._alive():
                return now_s
            select.select(list(self._alive()), [], [], min(LOOK_S, until_s - now_s))
        return None

    def _alive(self) -> dict[int, str]:
        """Return descriptor -> role of the processes that are alive."""
        fds = dict(self._members.values())
        ended = select.select(list(fds), [], [], 0)[0]
        return {pidfd: role for pidfd, role in fds.items() if pidfd not in ended}

    def kill(self) -> list[str]:
        """Send SIGKILL to all at once, as in a power failure; return the roles that were alive."""
        self._find_children()
        alive = self._alive()
        for pidfd in alive:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        for pidfd in alive:
            select.select([pidfd], [], [], 5.0)
        return sorted(set(alive.values()))

    def close(self) -> None:
        for pidfd, _ in self._members.values():
            os.close(pidfd)
        self._members.clear()


def _role(argv: list[str]) -> str:
    for word in argv:
        if word.startswith("procsv.services."):
            return word.rpartition(".")[2]
        if word == "procsv.training":
            return "trainer"
    return "process"
