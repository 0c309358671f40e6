"""Preparation of a standby: the imports of the last trainer, in its order and environment.

Used by standby.py.  None of the program's own modules is imported.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import traceback
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NoReturn

import msgspec

from procsv.base.run.loaded import Loaded, read_loaded
from procsv.base.system.failpoints import declare, failpoint
from procsv.base.system.target import parse_target
from procsv.training.process.background_throttle import yielding_imports
from procsv.training.process.drop_in import install

if TYPE_CHECKING:
    from collections.abc import Sequence

    from procsv.ipc.messaging.start import Start
    from procsv.training.process.fork import Threads

STARTS_OVER_MAX = 10  # after these it imports TensorFlow alone

declare("standby.import")


class Preparation:
    """Imports what the last trainer has imported, in its order and environment."""

    def __init__(self, start: Start, loaded: Loaded, threads: Threads) -> None:
        self._start, self._loaded, self._without = start, loaded, start.standby_without
        self._threads = threads
        self._environment = dict(os.environ)

    def run(self) -> int:
        """Imports; returns the number of modules."""
        if self._start.settings.drop_in:
            install()
        # Who waits for a trainer waits for this one; else it keeps out of the way.
        with contextlib.nullcontext() if self._start.is_awaited else yielding_imports():
            # Meanwhile the trainer may have come further, and have written down more.
            return self._import_record(self._loaded) + self._import_record(read_loaded(self._start.paths.loaded))

    def import_more(self) -> int:
        """Imports what has been written down since; returns the number of modules."""
        with yielding_imports():
            return self._import_record(read_loaded(self._start.paths.loaded))

    def _import_record(self, loaded: Loaded) -> int:
        """In the environment and with the arguments of the program."""
        argv, guard, count = sys.argv, _Guard(frozenset(loaded.own)), len(sys.modules)
        target = parse_target(self._start.target, Path.cwd())
        sys.argv = [target.path or target.module, *self._start.program_args]
        _change_environment(loaded.environment)
        with self._threads.watching():
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
        self.own = own
        self.refused: list[str] = []

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if path is None and name in self.own:
            self.refused.append(name)
            raise ModuleNotFoundError(f"{name} is the program's own", name=name)
        return None
