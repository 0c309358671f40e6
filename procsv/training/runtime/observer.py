"""The program's side of the watchdog that it starts for itself without `procsv launch`.

The Runtime of such a program uses it.  `warm_up` starts the watchdog, which imports its modules
while the program works.  `open_run` passes the run to the watchdog, and returns when the run holds
the logdir.  `close_run` returns when all is on disk and every other process of the run is gone.  If
the watchdog is killed, the program keeps training with its services, but nothing restarts the
services.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import subprocess
import sys
import threading

import msgspec

from procsv.base.errors import LogdirLocked, PeerError, UserError
from procsv.base.identity import SUMMARY, TRAINER, WATCHDOG, TaskId
from procsv.base.run.paths import RunPaths, find_paths, make_paths, name_directories, name_logdir
from procsv.base.run.records import whose
from procsv.base.service_table import SERVICES
from procsv.base.system.locks import DirectoryLock, FileLock
from procsv.base.system.system_clock import SystemClock
from procsv.ipc.messaging.fd_channel import FdChannel
from procsv.ipc.messaging.fd_messages import OBSERVER_DECODER, Observe, Opened, ProgramLeft, Refused
from procsv.ipc.messaging.launch_settings import LaunchSettings
from procsv.ipc.messaging.start import OBSERVER, Start, safe_path
from procsv.ipc.messaging.watchdog_messages import Finish
from procsv.training.runtime.link import Link
from procsv.training.runtime.log import say

SETTINGS = LaunchSettings()  # like a launch without options

Key = tuple[tuple[TaskId, ...], str]  # services, logdir


class _Process:
    """One watchdog, and our end of the channel to it."""

    def __init__(self, services: tuple[TaskId, ...], logdir: str) -> None:
        self.channel, theirs = FdChannel.pair(OBSERVER_DECODER)
        modules = ",".join(f"{task}={SERVICES[task].module}" for task in services)
        try:
            self._process = subprocess.Popen(
                [sys.executable, *safe_path(), "-m", OBSERVER, modules, logdir],
                stdin=theirs.fd,
                stdout=subprocess.DEVNULL,  # a reader of our output must not wait for the watchdog
                start_new_session=True,
            )
        except BaseException:
            self.channel.close()
            raise
        finally:
            theirs.close()

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def wait_until_gone(self) -> int:
        """Waits until the process is gone; returns its exit code."""
        self.channel.close()
        return self._process.wait()

    def discard(self) -> None:
        """Ends a watchdog that has no run yet."""
        self._process.kill()  # its services see the end of their input
        self.wait_until_gone()


IDLE_MAX = 4  # watchdogs, each for a logdir that has no session yet
_idle: dict[Key, _Process] = {}  # started but not needed yet
_locks: set[FileLock | DirectoryLock] = set()  # held by this process, but not by its forks
_guard = threading.Lock()


def discard_idle(count_left: int = 0) -> None:
    """Ends watchdogs without a session, oldest first; a later session starts another one."""
    with _guard:
        old = [_idle.pop(key) for key in list(_idle)[: len(_idle) - count_left]]
    for process in old:
        process.discard()


atexit.register(discard_idle)


def _forget_in_fork() -> None:
    """Closes shared descriptors in a fork.

    Otherwise the fork's copies would keep locks held and channels open after the parent has died.
    """
    global _guard
    _guard = threading.Lock()
    for lock in _locks:
        lock.release_lock()
    _locks.clear()
    for process in _idle.values():
        process.channel.close()
    _idle.clear()


os.register_at_fork(after_in_child=_forget_in_fork)


class Observer:
    """The successive runs of one Supervisor or one monitored session."""

    def __init__(self, logdir: str, may_save: bool) -> None:
        """`may_save`: its sessions save checkpoints, so the run needs `logdir` for itself."""
        self.paths = find_paths(logdir)
        self.logdir = name_logdir(logdir, self.paths)
        self.services = tuple(SERVICES)
        if not may_save:  # a run of its own that leaves nothing in the logdir
            run_dir, shm_dir = name_directories(secrets.token_hex(8))
            self.paths = RunPaths(logdir=self.paths.logdir, run_dir=run_dir, shm_dir=shm_dir, own_home=run_dir / "home")
            self.services = (SUMMARY,)
        self.peers = (WATCHDOG, *self.services)  # the program talks to them
        self._key: Key = (self.services, self.logdir)
        self._process: _Process | None = None
        self._lock: FileLock | None = None
        self._heirs: DirectoryLock | None = None  # the lock on `paths.home`, which the watchdog shares with us

    def warm_up(self) -> None:
        """Starts the watchdog while the program works toward its session."""
        discard_idle(IDLE_MAX - 1)
        if self._key not in _idle:
            # No process or descriptor is free now: `open_run` tries again and reports a failure.
            with contextlib.suppress(OSError):
                _idle[self._key] = _Process(*self._key)

    # -- start -------------------------------------------------------------------------------------
    def open_run(self) -> Start:
        """Has the watchdog lock the logdir and start the services.

        Raises LogdirLocked if another run has the logdir, or if the logdir is not writable.  Raises
        UserError if the watchdog ends, or refuses the run for another reason.
        """
        if self.paths.own_home is None:
            try:
                self.paths = make_paths(self.logdir)
            except OSError as error:
                why = f"{error.strerror or error}{whose(self.paths.home)}"
                raise LogdirLocked(f"the logdir {self.paths.logdir} cannot be written: {why}") from error
        paths = self.paths
        start = Start(
            task=WATCHDOG,
            run=secrets.token_hex(8),
            incarnation=1,
            logdir=self.logdir,
            run_dir=str(paths.run_dir),
            shm_dir=str(paths.shm_dir),
            observes=os.getpid(),
            home=str(paths.own_home or ""),
            target=os.path.basename(sys.argv[0]) or "python",  # noqa: PTH119  a name, not a path
            args=tuple(sys.argv[1:]),
            settings=SETTINGS,
        )
        with _guard:
            idle = _idle.pop(self._key, None)
        if idle is not None and not idle.is_alive():
            idle.wait_until_gone()
            idle = None
        process = idle or _Process(*self._key)
        try:
            process.channel.send(Observe(start.text()))
            received = process.channel.receive(waits=True)
        except (OSError, EOFError):
            code = process.wait_until_gone()
            raise UserError(
                f"the watchdog that procsv started for this program ended with exit code {code} before it was ready"
            ) from None
        except BaseException:  # an interrupt: the watchdog sees that nobody waits, and ends
            process.wait_until_gone()
            raise
        assert received is not None, "it was waited for"
        opened, files = received
        if isinstance(opened, Refused):
            process.wait_until_gone()
            raise LogdirLocked(opened.text) if opened.is_locked else UserError(opened.text, opened.exit_code)
        assert isinstance(opened, Opened)
        self._process = process
        self._hold_locks(opened.incarnation, files[0])
        return msgspec.structs.replace(start, task=TRAINER, incarnation=opened.incarnation)

    def _hold_locks(self, incarnation: int, heirs_fd: int) -> None:
        """Keeps other writers out of the logdir while we live, even without the watchdog."""
        self._heirs = DirectoryLock(self.paths.home, heirs_fd)
        _locks.add(self._heirs)
        lock = FileLock(self.paths.writer_lock(TRAINER))
        if lock.try_acquire(f"trainer {incarnation}", SystemClock().wall()):
            self._lock = lock
            _locks.add(lock)

    def attach(self, link: Link) -> None:
        """Watches for the watchdog's death; call it before the link's thread starts."""
        assert self._process is not None
        link.watch_fd(self._process.channel.fd, lambda: self._look_for_death(link))

    def _look_for_death(self, link: Link) -> None:
        assert self._process is not None
        with contextlib.suppress(EOFError):
            self._process.channel.receive()
            return
        link.unwatch(self._process.channel.fd)
        link.mark_lost(WATCHDOG, "it is dead")
        say(f"this program's watchdog has ended; training goes on, but nothing records it in {self.paths.home}")

    # -- end ---------------------------------------------------------------------------------------
    def close_run(self, code: int) -> None:
        """Has the watchdog save everything and end all processes, and waits until it has.

        The caller sends no more messages.  `code` is the exit code for how the program ended.
        """
        process, self._process = self._process, None
        if self._lock is not None:
            _locks.discard(self._lock)
            self._lock.release()
            self._lock = None
        if self._heirs is not None:
            _locks.discard(self._heirs)
            self._heirs.release_lock()
            self._heirs = None
        if process is None:
            return
        with contextlib.suppress(OSError, EOFError):  # end-of-file means that all is done
            process.channel.send(ProgramLeft(code))
            while process.channel.receive(waits=True) is not None:
                pass
        process.wait_until_gone()

    def leave_to_parent(self) -> None:
        """In a fork: forgets the run, whose locks `_forget_in_fork` releases."""
        if self._process is not None:
            self._process.channel.close()
        self._process = self._lock = self._heirs = None

    def finish_if_lost(self, link: Link) -> None:
        """Has the services save and end in place of a dead watchdog."""
        for task in self.services if link.why_lost(WATCHDOG) and link.is_talking else ():
            try:
                link.ask(task, Finish(), SERVICES[task].finish_s_max)
            except (TimeoutError, PeerError) as error:
                say(f"the {task} service did not finish: {str(error) or 'no answer'}")
