"""Turns at filling the chief's slots with the variables of parameter servers: the chief's, or its deputy's while there is none.

The chief takes its turn before it looks at the model, and has it until it dies.  The deputy is one of the servers
(graph/deputy.py); it takes the turn for one capture at a time, and gives it up between two pieces when the next chief is there.
Files of the run directory, and the kernel's locks on them:

    chief.lock     the chief's, taken first: by it the deputy sees that it is wanted no more
    capture.lock   whoever captures has it.  Its text is the Pace that the chief has written last

Beside them, in shared memory, the plan by which the deputy captures.  It is there only between a snapshot of a chief's and the next
time that one looks at the model, to go on with it, to initialize or to restore it: nobody captures what may be half restored.

The kernel lets go for whoever dies.  The chief alone makes the files: where somebody has removed them, the deputy does nothing.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from procsv.base.clock import Clock
from procsv.base.run.paths import RunPaths
from procsv.base.system.atomic_file import replace_file
from procsv.base.system.locks import is_lock_free, try_lock

TAKE_S_MAX = 30.0  # a deputy gives way between two pieces; one that is frozen is ended by the watchdog before
LOOK_S = 0.002  # between two tries
TEXT_BYTES = 64  # written as one piece


class Pace(msgspec.Struct, frozen=True, array_like=True):
    """How often the chief has taken snapshots, and the last one."""

    interval_s: float = 0.0  # 0.0: none by time
    last_s: float = 0.0  # monotonic, of this boot
    step_s: float = 0.0  # that one of the chief's steps takes; 0.0: not known

    @property
    def due_s(self) -> float:
        """When the next one is due."""
        return self.last_s + self.interval_s if self.interval_s > 0 else math.inf


class CaptureTurn:
    """The chief's end."""

    def __init__(self, paths: RunPaths, clock: Clock) -> None:
        self.looks = 0  # at the model, so far
        self._paths, self._clock = paths, clock
        self._fds: list[int] = []
        self._laying = threading.Lock()  # held for a file's writing at most

    def take(self) -> None:
        """Takes the turn for the life of this process, and withdraws the plan: from here on the model may change.

        TimeoutError if a deputy does not give it up.
        """
        if not self._fds:
            self._lock_files()
        with self._laying:
            self.looks += 1
            # killed before this: the plan is of a model that nobody has touched
            self._paths.deputy_plan.unlink(missing_ok=True)

    def withdraw_plan(self) -> None:
        """From here on no deputy captures, until another plan is laid."""
        with self._laying:
            self._paths.deputy_plan.unlink(missing_ok=True)

    def _lock_files(self) -> None:
        fds = [os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600) for path in _files(self._paths)]
        pause, deadline_s = threading.Event(), self._clock.monotonic() + TAKE_S_MAX
        for fd in fds:
            while not try_lock(fd):
                if self._clock.monotonic() >= deadline_s:
                    for each in fds:
                        os.close(each)
                    raise TimeoutError(f"{self._paths.capture_lock} was not let go within {TAKE_S_MAX:.0f} s")
                pause.wait(LOOK_S)
        self._fds = fds

    def note_snapshot(self, interval_s: float, step_s: float, looks: int, plan: Callable[[], bytes]) -> None:
        """The servers have filled a slot, by a capture at that number of `looks`; the deputy goes on from here, `interval_s` apart.

        `step_s`: that a step of the chief takes.  `plan`: made where there is none.
        """
        with self._laying:
            if not self._fds or looks != self.looks:
                return  # the model may be about to change
            pace = Pace(round(interval_s, 6), round(self._clock.monotonic(), 6), round(step_s, 6))
            os.pwrite(self._fds[1], msgspec.json.encode(pace).ljust(TEXT_BYTES), 0)
            if not self._paths.deputy_plan.exists():
                with contextlib.suppress(OSError):  # no room: tried again after the next
                    replace_file(self._paths.deputy_plan, plan(), durable=False)


class DeputyTurn:
    """The deputy's end."""

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths
        self._fds: list[int] = []

    def try_take(self) -> bool:
        """Takes the turn if no chief has it, or wants it; to be followed by `let_go`."""
        try:
            for path in _files(self._paths):
                self._fds.append(os.open(path, os.O_RDWR | os.O_CLOEXEC))
            # killed here, or later: the kernel lets go of both
            if try_lock(self._fds[1]) and not self.is_wanted():
                return True
        except OSError:  # no chief has been there yet, or somebody has removed the files
            pass
        self.let_go()
        return False

    def is_wanted(self) -> bool:
        """Whether a chief is there and waits for its turn."""
        return not is_lock_free(self._fds[0])

    def pace(self) -> Pace:
        """As the chief has written it; none are due if it has not."""
        with contextlib.suppress(msgspec.DecodeError):
            return msgspec.json.decode(os.pread(self._fds[1], TEXT_BYTES, 0), type=Pace)
        return Pace()

    def let_go(self) -> None:
        while self._fds:
            os.close(self._fds.pop())


def _files(paths: RunPaths) -> tuple[Path, Path]:
    return paths.chief_lock, paths.capture_lock
