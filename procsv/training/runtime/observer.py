"""The watchdog that a program without `procsv launch` starts itself, from the program's side.

Used by a Runtime of its own.  `warm_up` starts the process, which imports what it needs beside the program's own work;
`open_run` gives it the run, and returns when the logdir is ours; `close_run` returns when all is on disk and every process is gone.
If it is killed, the program trains on with its services, which only nobody replaces any more.
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

SETTINGS = LaunchSettings()  # as of a launch without options

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
                stdout=subprocess.DEVNULL,  # whoever reads our output to its end is not to wait for it
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
        """Waits until it is gone; its exit code."""
        self.channel.close()
        return self._process.wait()

    def discard(self) -> None:
        """Ends one that has no run yet."""
        self._process.kill()  # its services see the end of their input
        self.wait_until_gone()


IDLE_MAX = 4  # for logdirs whose sessions have not begun
_idle: dict[Key, _Process] = {}  # started, and not needed yet
_locks: set[FileLock | DirectoryLock] = set()  # held by this process, and not by its forks
_guard = threading.Lock()


def discard_idle(count_left: int = 0) -> None:
    """Ends watchdogs whose sessions have not begun, the oldest first; one that begins all the same starts another."""
    with _guard:
        old = [_idle.pop(key) for key in list(_idle)[: len(_idle) - count_left]]
    for process in old:
        process.discard()


atexit.register(discard_idle)


def _forget_in_fork() -> None:
    """A fork shares our descriptors: as long as it held them, neither lock nor channel would say that we are dead."""
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
    """The runs of one Supervisor, or of one monitored session, one after the other."""

    def __init__(self, logdir: str, may_save: bool) -> None:
        """`may_save`: it owns the checkpoints of `logdir`; without a Saver it shares the logdir with whoever does."""
        self.paths = find_paths(logdir)
        self.logdir = name_logdir(logdir, self.paths)
        self.services = tuple(SERVICES)
        if not may_save:  # a run of its own, which leaves nothing in the logdir
            run_dir, shm_dir = name_directories(secrets.token_hex(8))
            self.paths = RunPaths(logdir=self.paths.logdir, run_dir=run_dir, shm_dir=shm_dir, own_home=run_dir / "home")
            self.services = (SUMMARY,)
        self.peers = (WATCHDOG, *self.services)  # whom the program speaks to
        self._key: Key = (self.services, self.logdir)
        self._process: _Process | None = None
        self._lock: FileLock | None = None
        self._heirs: DirectoryLock | None = None

    def warm_up(self) -> None:
        """Starts the watchdog, beside what the program does until its session begins."""
        discard_idle(IDLE_MAX - 1)
        if self._key not in _idle:
            with contextlib.suppress(OSError):  # no process or descriptor just now: `open_run` tries again, and says so
                _idle[self._key] = _Process(*self._key)

    # -- beginning -------------------------------------------------------------------------------------------
    def open_run(self) -> Start:
        """Locks the logdir and starts the services.  LogdirLocked if another run has it, or it cannot be written."""
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
                f"procsv's watchdog of this program ended with exit code {code} before it had begun"
            ) from None
        except BaseException:  # an interrupt: it sees that nobody waits for it, and ends
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
        """Whatever becomes of the watchdog: nobody else writes to the logdir as long as we do."""
        self._heirs = DirectoryLock(self.paths.home, heirs_fd)
        _locks.add(self._heirs)
        lock = FileLock(self.paths.writer_lock(TRAINER))
        if lock.try_acquire(f"trainer {incarnation}", SystemClock().wall()):
            self._lock = lock
            _locks.add(lock)

    def attach(self, link: Link) -> None:
        """Hears of the watchdog's death.  Before the link talks."""
        assert self._process is not None
        link.watch_fd(self._process.channel.fd, lambda: self._look_for_death(link))

    def _look_for_death(self, link: Link) -> None:
        assert self._process is not None
        with contextlib.suppress(EOFError):
            self._process.channel.receive()
            return
        link.unwatch(self._process.channel.fd)
        link.mark_lost(WATCHDOG, "it is dead")
        print(
            f"procsv: the watchdog of this program is gone; training goes on, nothing records it in {self.paths.home}",
            file=sys.stderr,
        )

    # -- the end ---------------------------------------------------------------------------------------------
    def close_run(self, code: int) -> None:
        """Nothing more is said to the run: has what is unsaved saved, and all ended.  `code`: how, as an exit code."""
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
        with contextlib.suppress(OSError, EOFError):  # its end-of-file: all is done
            process.channel.send(ProgramLeft(code))
            while process.channel.receive(waits=True) is not None:
                pass
        process.wait_until_gone()

    def finish_if_lost(self, link: Link) -> None:
        """In the watchdog's place, if that is dead: the services save what is unsaved, and end."""
        for task in self.services if link.why_lost(WATCHDOG) and link.is_talking else ():
            try:
                link.ask(task, Finish(), SERVICES[task].finish_s_max)
            except (TimeoutError, PeerError) as error:
                print(f"procsv: the {task} service did not finish: {str(error) or 'no answer'}", file=sys.stderr)
