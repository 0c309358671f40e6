"""A gate that the workers pass before each step, so that the chief can hold them between steps.

Under `--consistent-snapshots`, if all tasks are on this machine, the bootstrap of each training
task makes a StepGate.  A worker's boundary guards its steps with it; the chief calls `hold` for a
capture.  All tasks share these files of the run directory and the kernel's locks on them:

    gate.lock            held during a hold; before a step, each worker checks that it is free
    steps.<task>.lock    held by that task during a step; its one byte is a StepMark
    lives.<task>.lock    shared by all processes of the task, from before its program starts

The kernel releases the locks of a dead process.  Every wait has a limit.  So workers also go on if
the chief is frozen during a hold; when it continues, its clock shows that the hold was too long,
and the hold has failed.  Only the task's next attempt re-creates a removed file.  While a file is
missing, every hold fails.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any

import msgspec

from procsv.base.clock import Clock
from procsv.base.identity import TaskId
from procsv.base.run.paths import RunPaths
from procsv.base.system.locks import try_lock

HELD_S_MAX = 0.05  # the longest hold once all tasks are at a boundary
GATHER_S_MAX = 2.0  # the longest wait until all tasks are at a boundary
GATHER_STEPS = 2  # a capture waits for the other tasks' steps as long as this many steps of the chief take
SETTLE_S = 1.0  # after a task died in a step, holds fail so long: the servers may still process the step
WAIT_S_MAX = 4.0  # the longest wait of a step for a chief that does not let go
LOOK_S = 0.0005  # between two tries for a lock


class StepMark(IntEnum):
    """A task's last note on its steps."""

    UNKNOWN = 0  # no step yet, or its steps do not pass the gate
    BETWEEN = 1
    WITHIN = 2


class Hold(msgspec.Struct):
    """One hold and its outcome."""

    why: str = ""  # why not all tasks were held
    held_s: float = 0.0  # how long steps were blocked
    is_whole: bool = False  # once the hold has ended: no other task was in a step during it


def gather_s_of(step_s: float) -> float:
    """How long a capture waits for other tasks' steps if the chief's take `step_s`."""
    return max(HELD_S_MAX, GATHER_STEPS * step_s)


class StepGate:
    """One task's side of the gate: a worker's or the chief's."""

    def __init__(self, paths: RunPaths, task: TaskId, others: Sequence[TaskId], clock: Clock) -> None:
        """`others`: the other training tasks."""
        self._paths, self._others, self._clock = paths, others, clock
        self._gate = os.open(paths.gate, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._pause = threading.Event()
        self._seen: dict[Path, int] = {}  # the files of other tasks
        self._died_s: dict[TaskId, float] = {}  # when the death of a task in a step was first seen
        self._steps = os.open(paths.steps(task), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.pwrite(self._steps, bytes([StepMark.UNKNOWN]), 0)
        self._mark = mmap.mmap(self._steps, 1)
        self._lives = os.open(paths.lives(task), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lives, fcntl.LOCK_SH)
        self._is_given_up = False  # a wait for the chief timed out: no more waits until it lets go

    # -- a worker's steps --------------------------------------------------------------------------
    def open_steps(self) -> None:
        """Makes this task's steps pass the gate."""
        self._mark[0] = StepMark.BETWEEN

    def guard(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps `step` so that it passes the gate."""

        def guarded(*args: Any) -> Any:
            self._enter()
            try:
                return step(*args)
            finally:
                self._leave()

        return guarded

    def _enter(self) -> None:
        """Enters a step; waits while the chief holds."""
        if self._try_gate() or (not self._is_given_up and self._wait_for_gate()):
            self._is_given_up = False
            self._mark[0] = StepMark.WITHIN
            try_lock(self._steps)  # it is free: the chief takes it only while it has the gate
            fcntl.flock(self._gate, fcntl.LOCK_UN)
            return
        self._is_given_up = True
        self._mark[0] = StepMark.WITHIN
        try_lock(self._steps)

    def _leave(self) -> None:
        """Leaves the step."""
        self._mark[0] = StepMark.BETWEEN
        fcntl.flock(self._steps, fcntl.LOCK_UN)

    def _try_gate(self) -> bool:
        return try_lock(self._gate, fcntl.LOCK_SH)

    def _wait_for_gate(self) -> bool:
        deadline_s = self._clock.monotonic() + WAIT_S_MAX
        while not self._try_gate():
            if self._clock.monotonic() >= deadline_s:
                return False
            self._pause.wait(LOOK_S)
        return True

    # -- the chief ---------------------------------------------------------------------------------
    @contextlib.contextmanager
    def hold(self, gather_s: float) -> Iterator[Hold]:
        """Keeps the other tasks between two steps while the block runs.

        If a task is still in a step after `gather_s`, the block runs while no task is held, and
        `Hold.why` names the reason.  After HELD_S_MAX the other tasks continue, even if the block
        still runs.  Then the hold has failed, too.
        """
        hold, held, begun_s = Hold(), list[int](), self._clock.monotonic()
        letting_go = threading.Lock()

        def let_go() -> None:
            with letting_go:
                if held:
                    hold.held_s = self._clock.monotonic() - begun_s
                while held:
                    fcntl.flock(held.pop(), fcntl.LOCK_UN)

        hold.why = self._gather(held, begun_s + min(gather_s, GATHER_S_MAX))
        if hold.why:
            let_go()
        gathered_s = self._clock.monotonic()
        limit = threading.Timer(HELD_S_MAX, let_go)
        limit.name, limit.daemon = "procsv-timer", True
        if not hold.why:
            limit.start()
        try:
            yield hold
        finally:
            limit.cancel()
            ended_s = self._clock.monotonic()
            let_go()
        if not hold.why:
            hold.why = self._why_unknown(ended_s)
        if not hold.why and (ended_s - gathered_s > HELD_S_MAX or ended_s - begun_s > WAIT_S_MAX):
            hold.why = "the capture took longer than steps are held"
        hold.is_whole = not hold.why

    def _gather(self, held: list[int], deadline_s: float) -> str:
        """Locks the gate and all steps, and adds the locks to `held`.

        Returns why not all tasks are between two steps, or "".
        """
        now_s = self._clock.monotonic()
        if why := self._why_unknown(now_s):
            return why
        if not self._lock(self._gate, deadline_s):
            return "the gate is not free"
        held.append(self._gate)
        for task in self._others:
            steps = self._file(self._paths.steps(task))
            if steps is None or not self._lock(steps, deadline_s):
                return f"{task} was in a step for {self._clock.monotonic() - now_s:.3f} s more"
            held.append(steps)
        return ""

    def _lock(self, fd: int, deadline_s: float) -> bool:
        """Polls for the lock, because flock has no time limit."""
        while not try_lock(fd):
            if self._clock.monotonic() >= deadline_s:
                return False
            self._pause.wait(LOOK_S)
        return True

    def _why_unknown(self, now_s: float) -> str:
        """Why the state may change despite a closed gate; "" if it cannot.

        A task may make steps without passing the gate, or a server may still process the last step
        of a task that died.
        """
        if not _is_at(self._paths.gate, self._gate):
            return f"{self._paths.gate} was removed"
        for task in self._others:
            steps, lives = self._file(self._paths.steps(task)), self._file(self._paths.lives(task))
            if steps is None or lives is None:
                return f"{task} has not begun"
            mark, is_alive = os.pread(steps, 1, 0), not try_lock(lives)
            if not is_alive:
                fcntl.flock(lives, fcntl.LOCK_UN)
            if is_alive or mark != bytes([StepMark.WITHIN]):
                self._died_s.pop(task, None)
            elif now_s - self._died_s.setdefault(task, now_s) < SETTLE_S:
                return f"{task} has just died in a step"
            if is_alive and mark == bytes([StepMark.UNKNOWN]):
                return f"{task} has not begun a step that can be held"
        return ""

    def _file(self, path: Path) -> int | None:
        """Returns another task's open file; None if it does not exist."""
        fd = self._seen.get(path)
        if fd is not None:
            if _is_at(path, fd):
                return fd
            os.close(self._seen.pop(path))
        try:
            self._seen[path] = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        return self._seen[path]


def _is_at(path: Path, fd: int) -> bool:
    """Whether the open file is the one at `path`."""
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except FileNotFoundError:
        return False
