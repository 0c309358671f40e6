"""Start programs, watch them by pidfd, and end their whole process trees.

The watchdog starts its children through this module, and signals them only through it, with two
exceptions: the injection of faults, and watchdog/host/processes.py, which kills the processes that
a dead task has left.  The module never signals a bare pid that may have been reused.

It also sets limits of this process.  In a run on several machines, strangers may connect to a port
of a watchdog or of the checkpoint service.  So these two raise their descriptor limit, and give the
user's limit back to the processes that they start.  They also have keys in memory, so they forbid
core dumps.

Resource trackers of multiprocessing are spared.  A tracker is a child of its program.  It unlinks
the program's named semaphores and shared memory once every process at the other end of its pipe is
dead.  If a kill hit the tracker together with the other processes, each crash would leave these
objects in /dev/shm.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import re
import resource
import select
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import psutil

from procsv.base import exit_codes
from procsv.base.errors import UserError
from procsv.base.outcome import Exit
from procsv.base.run.records import make_record_dir, open_record
from procsv.base.signals import OF_THE_MAIN_THREAD
from procsv.base.system.process_state import descendants, process_state, read_stat

DESCRIPTORS_MIN = 64  # for a launch; with fewer, libraries abort in the middle of a run
DESCRIPTORS_MAX = 65_536  # the highest limit that a watchdog sets for itself
PR_SET_DUMPABLE = 4
TGKILL = {"x86_64": 234, "aarch64": 131}  # the system call's number; glibc has a function only since 2.30
TRACKER_S_MAX = 10.0  # a tracker ends in milliseconds, or seconds on a busy machine; what lives longer is killed
ROUNDS_MAX = 20  # tries to kill a group that keeps forking
_TRACKER = re.compile(rb"from [\w.]*resource_tracker import main")

_users_limit: tuple[int, int] | None = None  # the descriptor limit before we raised ours


class ProcessIdentity(msgspec.Struct, frozen=True):
    """Identifies a process, and distinguishes it from a later one with the same pid."""

    pid: int
    started: float  # seconds from boot to its start; Unix time would change when the clock is set
    boot: str

    def is_alive(self) -> bool:
        """Whether the process runs; a zombie does not."""
        if self.boot != boot_id():
            return False
        try:
            state, started = read_stat(f"/proc/{self.pid}", self.pid)
        except psutil.NoSuchProcess:
            return False
        return started == self.started and state not in ("Z", "X")


def boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def identify(pid: int) -> ProcessIdentity:
    """Returns the identity of process `pid`; psutil.NoSuchProcess if it is gone."""
    return ProcessIdentity(pid, read_stat(f"/proc/{pid}", pid)[1], boot_id())


class AdoptedChild:
    """A child that another process has forked, and that we have inherited as its subreaper."""

    def __init__(self, pid: int) -> None:
        """Raises ChildProcessError if the process is not our child."""
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        self.pid = pid

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


class Child:
    """A child process with its pidfd.

    It has a session of its own, so that terminal signals reach only the watchdog.
    """

    def __init__(self, process: subprocess.Popen[bytes] | AdoptedChild) -> None:
        self._process = process
        self.pid = process.pid
        self.pidfd = os.pidfd_open(process.pid)  # readable when it has ended
        self.exit: Exit | None = None

    def has_ended(self) -> bool:
        """Whether the child is dead.  It stays a zombie and keeps its pid until `reap`."""
        if self.exit is not None:
            return True
        return os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def signal(self, number: int) -> None:
        """Sends a signal to this process alone, unless it is dead."""
        if self.exit is not None or (number in OF_THE_MAIN_THREAD and self._signal_main_thread(number)):
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)

    def _signal_main_thread(self, number: int) -> bool:
        """Sends a signal to the main thread, so that no other thread takes it.

        Returns whether that worked.  The pid cannot be reused before the child is reaped.
        """
        call = TGKILL.get(platform.machine())
        return call is not None and ctypes.CDLL(None).syscall(call, self.pid, self.pid, number) == 0

    def signal_tree(self, number: int) -> None:
        """Sends a signal to the child's process group, and to descendants that have left it."""
        if self.exit is not None:
            return
        strays = descendants(self.pid)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if number == signal.SIGKILL:
                kill_group(self.pid)
                strays = [stray for stray in strays if not is_tracker(stray.pid)]
            else:
                os.killpg(self.pid, number)
        _signal_each(strays, number)

    def reap(self, *, spares_rest: bool = False) -> Exit:
        """Takes the child's exit status and kills the rest of its group; call after `has_ended`.

        `spares_rest`: if the exit code is 0, do not kill the rest, because the caller first reports
        which processes are left.
        """
        if self.exit is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if not (spares_rest and self._has_succeeded()):
                    kill_group(self.pid)  # the zombie still holds the pid, so no other group is hit
            code = self._process.wait()
            os.close(self.pidfd)
            self.exit = Exit(None, -code) if code < 0 else Exit(code, None)
        return self.exit

    def _has_succeeded(self) -> bool:
        ended = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return ended is not None and (ended.si_code, ended.si_status) == (os.CLD_EXITED, 0)


class ExternalProcess:
    """A process that is not our child.

    Create it while the pid is surely valid, because the process has just sent a message.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.pidfd = -1  # readable when the process has ended; -1 if it had already ended
        with contextlib.suppress(ProcessLookupError):
            self.pidfd = os.pidfd_open(pid)

    def has_ended(self) -> bool:
        if self.pidfd < 0:
            return True
        poller = select.poll()
        poller.register(self.pidfd, select.POLLIN)
        return bool(poller.poll(0))

    def signal_tree(self, number: int, sparing: frozenset[int] = frozenset()) -> None:
        """Signals the process, its descendants, and its process group if it leads one.

        Does nothing if the process is dead.  `sparing`: pids of descendants that get no signal.
        """
        if self.has_ended():
            return
        strays = [stray for stray in descendants(self.pid) if stray.pid not in sparing]
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(self.pid) == self.pid:
                os.killpg(self.pid, number)
            else:
                signal.pidfd_send_signal(self.pidfd, number)
        _signal_each(strays, number)

    def close(self) -> None:
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


def _signal_each(processes: list[psutil.Process], number: int) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)


def spawn(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    log: Path | None,
    pass_fds: Sequence[int] = (),
    cwd: Path | None = None,
    stdin: int = subprocess.DEVNULL,
) -> Child:
    """Starts `argv` in a session of its own, and appends its output to `log`.

    `log=None`: the child shares our output.  `stdin`: its standard input, by default empty.  Call
    this from the main thread.  OSError (EAGAIN, EMFILE, ENOMEM) passes through.
    """
    output: int | None = None
    if log is not None:
        make_record_dir(log.parent)
        output = open_record(log, os.O_WRONLY | os.O_APPEND)
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=stdin,
            stdout=output,
            stderr=subprocess.STDOUT if output is not None else None,
            env=dict(env),
            cwd=cwd,
            pass_fds=tuple(pass_fds),
            start_new_session=True,
        )
    finally:
        if output is not None:
            os.close(output)
    give_back_limit(process.pid)
    try:
        return Child(process)
    except OSError:  # no descriptor is left to watch it
        process.kill()
        process.wait()
        raise


def is_tracker(pid: int) -> bool:
    """Whether a process is a resource tracker, of multiprocessing or of a library with its own."""
    with contextlib.suppress(OSError):
        return _TRACKER.search(Path(f"/proc/{pid}/cmdline").read_bytes()) is not None
    return False


def kill_group(group: int) -> None:
    """Sends SIGKILL to a group, but spares resource trackers.

    If no descriptor is left to recognise trackers, or the group keeps forking, it kills them, too.
    ProcessLookupError if there is no such group, PermissionError if it belongs to another user.
    """
    try:
        if any(map(is_tracker, _members(group))) and _kill_others(group):
            return
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
    os.killpg(group, signal.SIGKILL)


def _kill_others(group: int) -> bool:
    """Kills all processes of a group but trackers.

    Returns False if the group still has new processes after ROUNDS_MAX rounds, because it keeps
    forking.  On a busy machine a killed process takes a while to die, but it forks no more.
    """
    killed = set[int]()
    for _ in range(ROUNDS_MAX):
        others = {pid for pid in _members(group) if not is_tracker(pid)} - killed
        for pid in others:
            with contextlib.suppress(ProcessLookupError):
                _kill(pid, group)
        if not others:
            return True
        killed |= others
    return False


def check_pidfd() -> None:
    """Raises UserError if this system has no pidfds.

    Without them every start of a process would fail.
    """
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (OSError, AttributeError) as error:
        raise UserError(
            f"this system opens no pidfd ({error}), by which procsv watches processes: it takes Linux 5.3 or newer, and a sandbox "
            "(seccomp) that allows pidfd_open and pidfd_send_signal",
            exit_code=exit_codes.GAVE_UP,
        ) from None


def _members(group: int) -> Iterator[int]:
    """Yields the living members of a group; zombies need no signal."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, psutil.NoSuchProcess):
                pid = int(entry.name)
                if os.getpgid(pid) == group and process_state(pid) not in ("Z", "X"):
                    yield pid


def _kill(pid: int, group: int) -> None:
    fd = os.pidfd_open(pid)
    try:
        if os.getpgid(pid) == group:  # otherwise the pid was reused
            signal.pidfd_send_signal(fd, signal.SIGKILL)
    finally:
        os.close(fd)


def check_descriptors() -> None:
    """Raises UserError if there are too few descriptors for a run."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit < DESCRIPTORS_MIN:
        raise UserError(
            f"this shell lets a process open {limit} files (ulimit -n), and a run takes {DESCRIPTORS_MIN} at least: raise it",
            exit_code=exit_codes.GAVE_UP,
        )


def raise_descriptor_limit() -> None:
    """Raises our descriptor limit to what is permitted.

    We need more descriptors because strangers may connect to our port.
    """
    global _users_limit
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < (most := min(hard, DESCRIPTORS_MAX)):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        _users_limit = soft, hard


def give_back_limit(pid: int = 0) -> None:
    """Restores the user's descriptor limit for a new child.

    With pid 0, for this process before it calls exec.
    """
    if _users_limit is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, _users_limit)


def forbid_dumps() -> None:
    """Keeps this process's memory out of core dumps, and hides it from all processes but root's."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
