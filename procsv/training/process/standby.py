"""Standby: a sleeping process with the trainer's imports; the next trainers are forks of it.

The watchdog starts it once training runs, or before the first trainer if an earlier launch has
recorded the program's imports.  While it imports, it yields the cores to training (preparation.py).
It computes nothing while it waits.  It touches no accelerator: importing TensorFlow does not, and
the standby makes no session.  It imports none of the program's own modules.  In a fork, arguments,
path, environment, random state and __main__ are as in a fresh interpreter, and the program runs
from its first line.  If the imports have started something that a fork would break (fork.py), the
standby becomes the trainer itself, and the watchdog starts another standby.

A hot standby also runs the program, as the next trainer would, up to its first contact with the run
(`Runtime.acquire_run`).  So the program's own start runs twice, and its output until then is in the
standby's log.

A standby dies with the watchdog, at any time.  At the end of the run a warm one waits until all its
forks have ended, then cleans up what its imports have created.  A hot one is killed instead: it has
run the program's own start, so its exit would also run the program's cleanup.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import select
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from procsv.base.cluster import GRPC_OPTIONS, task_environment
from procsv.base.identity import TRAINER, TaskId
from procsv.base.run.loaded import read_loaded
from procsv.base.system.failpoints import declare, failpoint, read_again
from procsv.ipc.messaging.fd_channel import FdChannel
from procsv.ipc.messaging.fd_messages import (
    STANDBY_DECODER,
    BecomeTrainer,
    CannotBecomeTrainer,
    ImportMore,
    StandbyWord,
    TrainerBegun,
    Waiting,
)
from procsv.training.process.fork import (
    ExitHandlers,
    ImportedFiles,
    Threads,
    fork_away,
    settle_memory,
    why_no_fork,
)
from procsv.training.process.preparation import Preparation

if TYPE_CHECKING:
    from procsv.ipc.messaging.start import Start

PR_SET_PDEATHSIG = 1
ARG_START, ARG_END = 45, 46  # in /proc/self/stat, counted from the state letter

declare("standby.wait", "standby.become", "standby.begun")


class StandbyProcess:
    """This process, until it is the trainer."""

    def __init__(self, start: Start) -> None:
        self._start, self._line = start, FdChannel.inherited(start.standby_fd, STANDBY_DECODER)
        self._began_s, self._began_ns, self._modules = time.monotonic(), time.time_ns(), 0
        self._threads, self._exit_handlers = Threads(), ExitHandlers()
        self._pid, self._forks = os.getpid(), list[int]()  # the forks' pidfds
        self._preparation: Preparation | None = None

    def import_ahead(self) -> dict[str, str | None]:
        """Repeats the last trainer's imports.

        Returns the environment changes that the program made there before it imported TensorFlow.
        """
        start = self._start
        _die_with_watchdog(start.lifeline_fd)
        os.set_inheritable(start.lifeline_fd, False)
        if start.settings.standby == "warm":
            signal.signal(signal.SIGTERM, self._leave)
        loaded = read_loaded(start.paths.loaded)
        self._preparation = Preparation(start, loaded, self._threads, self._exit_handlers)
        self._modules = self._preparation.import_modules()
        return loaded.environment

    def run_ahead(self) -> Start:
        """Prepares a hot standby to run the program up to its session.

        Returns the next trainer's start.
        """
        lifeline_fd = self._start.lifeline_fd
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0)  # this signal would leave the program's children behind
        threading.Thread(
            target=self._end_group_with_watchdog, args=(lifeline_fd,), name="procsv-lifeline", daemon=True
        ).start()
        os.environ["PROCSV_ROLE"] = str(TRAINER)
        return self._as_task(TRAINER, int(os.environ["PROCSV_INCARNATION"]))

    def _end_group_with_watchdog(self, lifeline_fd: int) -> None:
        select.select([lifeline_fd], [], [])
        if self._line.fd >= 0:  # otherwise this process is the trainer by now, which saves first
            os.killpg(0, signal.SIGKILL)

    def become_trainer(self) -> Start:
        """Sleeps until a trainer is needed; returns its start, in a fork or in this process."""
        failpoint("standby.wait")
        files = self._begin_waiting()
        while True:
            word, given = self._wait_for_word()
            if isinstance(word, ImportMore) and self._preparation is not None:
                self._modules += self._preparation.import_more()
                files = self._begin_waiting()
                continue
            assert isinstance(word, BecomeTrainer), "the watchdog says nothing else"
            if changed := files.changed():
                self._line.send(CannotBecomeTrainer(f"{changed} has been changed since it was imported"))
            elif _is_homeless():
                self._line.send(CannotBecomeTrainer("its working directory was deleted"))
            elif self._why_no_fork():
                self._become(word, given)
                self._line.send(TrainerBegun())
                break
            elif not self._fork(word, given):
                break
            for fd in given:  # only the trainer holds the locks
                os.close(fd)
        self._line.close()
        failpoint("standby.begun")
        start = self._as_task(word.task, word.incarnation)
        return msgspec.structs.replace(start, logdir=word.logdir, root=word.root)

    def _wait_for_word(self) -> tuple[StandbyWord, list[int]]:
        """Sleeps until the watchdog sends a message."""
        try:
            received = self._line.receive(waits=True)
        except EOFError:
            os._exit(0)  # the watchdog is dead
        assert received is not None, "it was waited for"
        return received

    def _fork(self, word: BecomeTrainer, given: list[int]) -> int:
        """Forks the trainer; returns the fork's pid in this process, and 0 in the fork.

        The watchdog gets the pid before any message from the trainer.
        """

        def begin() -> None:
            self._exit_handlers.drop()
            for fd in self._forks:
                os.close(fd)
            self._become(word, given)

        def tell(pid: int) -> None:
            with contextlib.suppress(OSError):  # no descriptor is left: nothing waits for this fork
                self._forks.append(os.pidfd_open(pid))
            self._line.send(TrainerBegun(pid))

        self._forget_ended()
        return fork_away(begin, tell)

    def _forget_ended(self) -> None:
        for fd in select.select(self._forks, [], [], 0)[0]:
            self._forks.remove(fd)
            os.close(fd)

    def _leave(self, number: int, _: object) -> None:
        """Handles SIGTERM at the end of the run; cleans up after the last fork has ended."""
        signal.signal(number, signal.SIG_DFL)
        if os.getpid() == self._pid:  # otherwise this is a fork that is not the trainer yet
            for fd in self._forks:
                select.select([fd], [], [])
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        os.kill(os.getpid(), number)

    def _begin_waiting(self) -> ImportedFiles:
        """Reports that the imports are complete; returns their files."""
        files, no_fork = ImportedFiles(self._began_ns), self._why_no_fork()
        if not no_fork:
            settle_memory()
        self._line.send(Waiting(self._modules, round(time.monotonic() - self._began_s, 3), no_fork))
        return files

    def _why_no_fork(self) -> str:
        return "it is hot" if self._start.settings.standby == "hot" else why_no_fork(self._threads)

    def _become(self, word: BecomeTrainer, files: list[int]) -> None:
        """Takes over the trainer's log, locks and identity."""
        failpoint("standby.become")
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0)  # a trainer saves first, when its lifeline says so
        if signal.getsignal(signal.SIGTERM) == self._leave:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _take_over(*files)
        start = self._as_task(word.task, word.incarnation)
        _replace_argument(self._start.shown_task, start.shown_task)
        if start.cluster:
            os.environ |= task_environment(start.cluster, start.task, os.environ.get(GRPC_OPTIONS, ""))
        os.environ |= {
            "PROCSV_ROLE": str(word.task),
            "PROCSV_INCARNATION": str(word.incarnation),
            "PROCSV_LOGDIR": word.logdir,
        }
        read_again()

    def _as_task(self, task: TaskId, incarnation: int) -> Start:
        return msgspec.structs.replace(self._start, task=task, incarnation=incarnation, standby_fd=-1)


def _is_homeless() -> bool:
    with contextlib.suppress(FileNotFoundError):
        return not os.getcwd()
    return True


def _die_with_watchdog(lifeline_fd: int) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    poller = select.poll()
    poller.register(lifeline_fd, 0)
    if poller.poll(0):  # it died before the signal was set
        os._exit(0)


def _replace_argument(old: str, new: str) -> None:
    """Replaces the first argument `old` by `new` in `ps` and in sys.orig_argv.

    Both have the same length.  It overwrites the process's own argument memory; if the system does
    not tell where that is, `ps` shows the old argument.
    """
    if old not in sys.orig_argv or len(old) != len(new):
        return
    place = sys.orig_argv.index(old)
    sys.orig_argv[place] = new
    fields = Path("/proc/self/stat").read_text(errors="replace").rpartition(")")[2].split()
    start, end = int(fields[ARG_START]), int(fields[ARG_END])
    if not start:
        return
    arguments = ctypes.string_at(start, end - start).split(b"\0")
    if place < len(arguments) and arguments[place] == old.encode():
        ctypes.memmove(start + sum(len(argument) + 1 for argument in arguments[:place]), new.encode(), len(new))


def _take_over(log: int, *locks: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    for lock in locks:
        os.set_inheritable(lock, True)  # held as long as any process of the trainer's tree lives
