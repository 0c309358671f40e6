"""Prepare a standby: repeat the last trainer's imports, in its order and environment.

standby.py uses this.  It imports none of the program's own modules.

The imports must not slow training down.  A higher nice value would outlast them: an ordinary user
cannot lower it again, and threads that libraries start during an import would keep it as long as
the future trainer lives.  So the work runs in the main thread at its usual priority, and yields by
itself: after each slice it rests for a multiple of the time that it had to wait for a core.  It
stops yielding once a task waits for it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NoReturn

import msgspec

from procsv.base.run.loaded import LoadedModules, read_loaded
from procsv.base.signals import HURRY_SIGNAL
from procsv.base.system.failpoints import declare, failpoint
from procsv.base.system.target import parse_target
from procsv.training.process.drop_in import install

if TYPE_CHECKING:
    from procsv.ipc.messaging.start import Start
    from procsv.training.process.fork import ExitHandlers, Threads

STARTS_OVER_MAX = 10  # then it imports only TensorFlow and procsv
SLICE_S = 0.01  # of computing between two pauses
REST_FACTOR = 2.0  # rest / wait for a core; if another process wants the same core, the standby takes a quarter of it
REST_S_MAX = 0.25  # per rest
_SCHEDSTAT = Path("/proc/thread-self/schedstat")  # nanoseconds on a core, nanoseconds waiting for one, slices

declare("standby.import")


class Preparation:
    """Repeats the last trainer's imports, in its order and environment."""

    def __init__(self, start: Start, loaded: LoadedModules, threads: Threads, exit_handlers: ExitHandlers) -> None:
        self._start, self._loaded, self._without = start, loaded, start.standby_without
        self._threads, self._exit_handlers = threads, exit_handlers
        self._environment = dict(os.environ)

    def import_modules(self) -> int:
        """Imports the modules; returns their number."""
        if self._start.settings.drop_in:
            install()
        # Yield to other processes, unless a task is waiting for this process to become its trainer.
        with contextlib.nullcontext() if self._start.is_awaited else yielding_imports():
            # During the first imports, the trainer may have recorded more.
            return self._import_record(self._loaded) + self._import_record(read_loaded(self._start.paths.loaded))

    def import_more(self) -> int:
        """Imports what has been recorded since the last import; returns the number of modules."""
        with yielding_imports():
            return self._import_record(read_loaded(self._start.paths.loaded))

    def _import_record(self, loaded: LoadedModules) -> int:
        """Imports the record's modules with the program's environment and arguments."""
        argv, guard, count = sys.argv, _Guard(frozenset(loaded.own)), len(sys.modules)
        target = parse_target(self._start.target, Path.cwd())
        sys.argv = [target.path or target.module, *self._start.program_args]
        _change_environment(loaded.environment)
        with self._threads.watching(), self._exit_handlers.recording():
            sys.meta_path.insert(0, guard)
            for name in filter(self._is_wanted, loaded.modules):
                self._import(name, guard)
            sys.meta_path.remove(guard)
        sys.argv = argv
        _change_environment({name: self._environment.get(name) for name in loaded.environment})
        return len(sys.modules) - count

    def _is_wanted(self, name: str) -> bool:
        top = name.partition(".")[0]
        if len(self._without) >= STARTS_OVER_MAX:
            return top in ("tensorflow", "procsv")
        return name not in sys.modules and top not in self._without

    def _import(self, name: str, guard: _Guard) -> None:
        failpoint("standby.import")
        try:
            importlib.import_module(name)
        except Exception:  # noqa: BLE001  a library's own error: logged, and the program imports the library itself
            traceback.print_exc()
        else:
            if not guard.refused:
                return
            print(f"{name} imports the program's own {', '.join(guard.refused)}", file=sys.stderr)
        self._start_over(name.partition(".")[0])

    def _start_over(self, without: str) -> NoReturn:
        """Starts a fresh interpreter without a library: a half-done import cannot be undone."""
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
    """A finder that refuses to import the program's own top-level modules.

    An installed module of the same name would take the place of the program's.
    """

    def __init__(self, own: frozenset[str]) -> None:
        self.own = own
        self.refused: list[str] = []

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if path is None and name in self.own:
            self.refused.append(name)
            raise ModuleNotFoundError(f"{name} is the program's own", name=name)
        return None


@contextlib.contextmanager
def yielding_imports() -> Iterator[None]:
    """Makes imports in the block yield to other processes, module by module.

    It runs on the main thread.  A scheduling class that the user has chosen (chrt) stays: it
    already says how much this process may disturb others.
    """
    # The kernel slightly prefers other processes to one with SCHED_BATCH.
    pauses, is_ours = _Pauses(), _set_class(0, os.SCHED_OTHER, os.SCHED_BATCH)

    def stop_yielding(*_: object) -> None:
        pauses.are_over = True
        for thread in Path("/proc/self/task").iterdir() if is_ours else ():  # also the libraries' threads
            _set_class(int(thread.name), os.SCHED_BATCH, os.SCHED_OTHER)

    before = signal.signal(HURRY_SIGNAL, stop_yielding)
    sys.meta_path.insert(0, pauses)
    try:
        yield
    finally:
        signal.signal(HURRY_SIGNAL, before)
        sys.meta_path.remove(pauses)
        stop_yielding()


def _set_class(thread: int, before: int, now: int) -> bool:
    """Moves a thread from scheduling class `before` to `now`; True if it was in `before`."""
    with contextlib.suppress(OSError):  # it has ended, or a sandbox forbids it
        if os.sched_getscheduler(thread) == before:
            os.sched_setscheduler(thread, now, os.sched_param(0))
            return True
    return False


class _Pauses:
    """A finder that finds nothing, and rests if other processes want the cores."""

    def __init__(self) -> None:
        self._rest, self.are_over = threading.Event(), False
        self._computed_s, self._waited_s = time.thread_time(), _waited_s()

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if not self.are_over and time.thread_time() - self._computed_s >= SLICE_S:
            rest_s = min(REST_FACTOR * (_waited_s() - self._waited_s), REST_S_MAX)
            if rest_s > 0.001:
                self._rest.wait(rest_s)
            self._computed_s, self._waited_s = time.thread_time(), _waited_s()
        return None


def _waited_s() -> float:
    """How long this thread has waited for a core; 0.0 if the kernel does not record it."""
    try:
        return int(_SCHEDSTAT.read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0
