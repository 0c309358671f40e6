"""Standby: a process that has imported what the trainer imports, and sleeps until its promotion.

Started by the watchdog once training runs, out of its way.  It computes nothing while it waits, and touches no accelerator:
importing TensorFlow does not, and it makes no session.  It imports none of the program's own modules.  At the promotion
arguments, path, environment and __main__ are as in a fresh interpreter, and the program runs from its first line.

A hot standby also runs the program, as the next trainer would, up to its first contact with the run (`Runtime.gate`): the
program's own start then runs twice, and what it prints until then is in the standby's log.

It dies with the watchdog, whatever it is doing.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import select
import signal
import sys
import threading
import time
import traceback
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NoReturn

import msgspec

from procsv.base.identity import STANDBY, TRAINER, TaskId
from procsv.base.system.failpoints import declare, failpoint
from procsv.base.system.target import parse_target
from procsv.ipc.messaging.standby_channel import StandbyChannel
from procsv.ipc.messaging.standby_messages import BecomeTrainer, TrainerBegun, Waiting
from procsv.training.process.background_throttle import yielding_imports
from procsv.training.process.drop_in import install_later
from procsv.training.process.import_record import Loaded, read_loaded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from procsv.ipc.messaging.start import Start

PR_SET_PDEATHSIG = 1
ARG_START, ARG_END = 45, 46  # of /proc/self/stat, counted from the state letter
STARTS_OVER_MAX = 10  # after these it imports TensorFlow alone

declare("standby.import", "standby.wait", "standby.become", "standby.begun")


class Standby:
    """This process, until it is the trainer."""

    def __init__(self, start: Start) -> None:
        self._start, self._line = start, StandbyChannel.inherited(start.standby_fd)
        self._began_s, self._modules = time.monotonic(), 0

    def prepare(self) -> dict[str, str | None]:
        """Imports; returns the program's changes of its environment before it imports TensorFlow."""
        start = self._start
        _die_with_watchdog(start.lifeline_fd)
        for fd in (start.lifeline_fd, start.standby_fd):
            os.set_inheritable(fd, False)
        loaded = read_loaded(start.paths.loaded)
        self._modules = _Preparation(start, loaded).run()
        return loaded.environment

    def run_ahead(self) -> Start:
        """Prepares a hot standby to run the program up to its session; returns the next trainer's start."""
        lifeline_fd = self._start.lifeline_fd
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0)  # it would leave the program's children behind
        threading.Thread(target=self._end_group_with_watchdog, args=(lifeline_fd,), daemon=True).start()
        os.environ["PROCSV_ROLE"] = str(TRAINER)
        return self._as_task(TRAINER, int(os.environ["PROCSV_INCARNATION"]))

    def _end_group_with_watchdog(self, lifeline_fd: int) -> None:
        select.select([lifeline_fd], [], [])
        if self._line.fd >= 0:  # else it is the trainer, which saves first
            os.killpg(0, signal.SIGKILL)

    def become_trainer(self) -> Start:
        """Sleeps until the promotion, takes over log and lock; returns the trainer's start."""
        failpoint("standby.wait")
        self._line.send(Waiting(self._modules, round(time.monotonic() - self._began_s, 3)))
        word, files = self._line.wait()
        if not isinstance(word, BecomeTrainer):
            os._exit(0)  # the watchdog is dead
        failpoint("standby.become")
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0)  # a trainer saves first, and its lifeline tells it when
        _take_over(*files)
        _replace_argument(str(STANDBY), str(word.task))
        os.environ |= {"PROCSV_ROLE": str(word.task), "PROCSV_INCARNATION": str(word.incarnation)}
        self._line.send(TrainerBegun(word.incarnation))
        self._line.close()
        failpoint("standby.begun")
        return self._as_task(word.task, word.incarnation)

    def _as_task(self, task: TaskId, incarnation: int) -> Start:
        return msgspec.structs.replace(self._start, task=task, incarnation=incarnation, standby_fd=-1)


def _die_with_watchdog(lifeline_fd: int) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    poller = select.poll()
    poller.register(lifeline_fd, 0)
    if poller.poll(0):  # it died before the signal was set
        os._exit(0)


def _replace_argument(old: str, new: str) -> None:
    """Replaces the first argument that is `old`, in `ps` and in sys.orig_argv, by another of the same length.

    It overwrites the process's own argument memory; if the system does not say where that is, `ps` shows the old one.
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


# -- preparation ---------------------------------------------------------------------------------------------
class _Preparation:
    """Imports what the last trainer has imported, in its order and environment."""

    def __init__(self, start: Start, loaded: Loaded) -> None:
        self._start, self._loaded, self._without = start, loaded, start.standby_without
        self._environment = dict(os.environ)

    def run(self) -> int:
        """Imports; returns the number of modules."""
        argv = sys.argv
        _change_environment(self._loaded.environment)
        target = parse_target(self._start.target, Path.cwd())
        sys.argv = [target.path or target.module, *self._start.args]
        if self._start.settings.drop_in:
            install_later()
        guard = _Guard(frozenset(self._loaded.own))
        sys.meta_path.insert(0, guard)
        count = -len(sys.modules)
        with yielding_imports():
            for name in filter(self._is_wanted, self._loaded.modules):
                self._import(name, guard)
        count += len(sys.modules)
        sys.meta_path.remove(guard)
        sys.argv = argv
        _change_environment({name: self._environment.get(name) for name in self._loaded.environment})
        return count

    def _is_wanted(self, name: str) -> bool:
        top = name.partition(".")[0]
        if len(self._without) >= STARTS_OVER_MAX:
            return top in ("tensorflow", "procsv")
        return name not in sys.modules and top not in self._without

    def _import(self, name: str, guard: _Guard) -> None:
        failpoint("standby.import")
        try:
            importlib.import_module(name)
        except Exception:  # noqa: BLE001  a library's own: printed to the log, and the library is left to the program
            traceback.print_exc()
        else:
            if not guard.refused:
                return
            print(f"{name} imports the program's own {', '.join(guard.refused)}", file=sys.stderr)
        self._start_over(name.partition(".")[0])

    def _start_over(self, without: str) -> NoReturn:
        """Starts a fresh interpreter that leaves a library out: an import that has failed half-way cannot be undone."""
        print(f"starting over without {without}", file=sys.stderr)
        sys.stderr.flush()
        start = msgspec.structs.replace(self._start, standby_without=(*self._without, without))
        for fd in (start.lifeline_fd, start.standby_fd):
            os.set_inheritable(fd, True)
        os.execve(sys.executable, start.argv(), start.environment(self._environment))


def _change_environment(changes: dict[str, str | None]) -> None:
    for name, value in changes.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


class _Guard:
    """A finder that refuses the program's own top-level names, as installed modules of such names are others."""

    def __init__(self, own: frozenset[str]) -> None:
        self._own = own
        self.refused: list[str] = []

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if path is None and name in self._own:
            self.refused.append(name)
            raise ModuleNotFoundError(f"{name} is the program's own", name=name)
        return None
