"""Keep the heartbeat of a training process: what it is doing now, as the watchdog reads it at any time.

Held by the Runtime.  Any thread changes it.  The link's thread writes it five times a second; what must be seen before the GIL
may be held is written at once.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Protocol, TypeGuard

from procsv.base.clock import Clock
from procsv.base.outcome import FitPlace, Loss
from procsv.base.run.manifest import Reason
from procsv.base.system.stack_dump import DumpFile
from procsv.ipc.shm.heartbeat import NOT_RETURNED, Phase, Snapshots
from procsv.ipc.shm.heartbeat_file import HeartbeatWriter

RESTORE_S = 1.0  # how often it looks whether its files in the runtime directory are still there
DIRECTORY_TRIES_MAX, DIRECTORY_PAUSE_S = 100, 0.1  # while there is no runtime directory
WAIT_S_MAX = 1e8  # three years stand in the heartbeat for a wait without end
SITE = "-packages/"  # in the path of what is installed, by whatever way: site-packages, dist-packages


class SupervisedTraining(Protocol):
    """The training under way, as its process knows it."""

    @property
    def is_trained_here(self) -> bool:
        """Whether the calling thread alone makes its steps."""

    @property
    def is_in_step(self) -> bool:
        """In phase STEP: whether a step is under way; else the program's own code may be at work."""

    def count_runs(self) -> int:
        """Calls of sessions that have ended on the training thread."""

    def count_steps(self) -> int:
        """Of these, the steps: of several tasks each counts its own."""

    def capture_state(self, reason: Reason) -> None:
        """Takes a snapshot at the end of this step."""

    def visit_soon(self) -> None:
        """Visits the boundary at the end of this step: something waits for it."""


class TrainerHeartbeat:
    """The heartbeat of one process, in a file from `open_file` to `close_file`."""

    def __init__(self, clock: Clock, handled_signals: Callable[[], int], is_training: Callable[[], bool]) -> None:
        """`handled_signals`: those that the program has a handler of its own for, as bits.  `is_training`: whether a training is under way."""
        self.phase = Phase.IMPORT
        self.step = -1
        self.returned = NOT_RETURNED  # the program's exit code, once its main module has run to its end
        self._clock, self._handled_signals, self._is_training = clock, handled_signals, is_training
        self._training: SupervisedTraining | None = None  # whose steps count, even when it has ended
        self._is_step_a_phase = False
        self._read_fit: Callable[[], FitPlace | None] = lambda: None
        self._loss: Loss | None = None  # of that fit
        self._snapshots = Snapshots()
        self._imports = ImportWatch()
        self._extended_s = self._restore_s = 0.0
        self._saves = 0  # under way
        self._writer: HeartbeatWriter | None = None
        self._stacks: DumpFile | None = None  # what faulthandler writes to, where that is ours
        self._lock = threading.RLock()

    # -- its files -------------------------------------------------------------------------------------------
    def open_file(self, path: Path) -> None:
        """Opens it; waits a moment for the watchdog to make a removed directory anew."""
        pause = threading.Event()
        for _ in range(DIRECTORY_TRIES_MAX):
            with contextlib.suppress(FileNotFoundError):
                self._writer = HeartbeatWriter(path)
                return
            pause.wait(DIRECTORY_PAUSE_S)
        self._writer = HeartbeatWriter(path)

    def keep_stacks(self, stacks: DumpFile) -> None:
        """Restores the file of stacks, too, if somebody removes it."""
        self._stacks = stacks

    def tick(self, now_s: float) -> None:
        """Writes the heartbeat; on the link's thread."""
        self.write_beat()
        self._restore_files(now_s)

    def write_beat(self) -> None:
        with self._lock:
            writer = self._writer
            if writer is None:
                return
            training = self._training
            writer.returned = self.returned if self.has_ended else NOT_RETURNED
            phase = Phase.STOP if self.has_ended else self.phase
            writer.phase = Phase.SAVE if self._saves else phase
            writer.step, writer.extended_s = self.step, self._extended_s
            writer.snapshots, writer.fit, writer.loss = self._snapshots, self._read_fit(), self._loss
            writer.importing = self._imports.look() if phase is Phase.IMPORT else ""
            runs = training.count_runs() if training is not None and self.phase is not Phase.IMPORT else 0
            writer.work = len(sys.modules) if self.phase is Phase.IMPORT else runs
            writer.moved = training.count_steps() if training is not None else 0
            writer.in_step = training is None or self._is_step_a_phase or training.is_in_step
            writer.handles = self._handled_signals()
            writer.beat(self._clock.monotonic())

    def _restore_files(self, now_s: float) -> None:
        """Makes anew what of ours somebody has removed; not as long as its directory is gone, which the watchdog makes anew."""
        if now_s < self._restore_s:
            return
        self._restore_s = now_s + RESTORE_S
        with self._lock, contextlib.suppress(OSError):
            if self._writer is not None:
                self._writer.renew_file()
            if self._stacks is not None:
                self._stacks.renew_file()

    def close_file(self) -> None:
        with self._lock:
            self.write_beat()  # the last step is what the journal will say
            if self._writer is not None:
                self._writer.close()
                self._writer = None

    def disarm_stacks(self) -> None:
        if self._stacks is not None:
            self._stacks.disarm()
            self._stacks = None

    # -- where the program is --------------------------------------------------------------------------------
    def enter_phase(self, phase: Phase) -> None:
        self.phase = phase

    def reach_step(self, step: int) -> None:
        """The link's thread writes `step` with its next beat."""
        self.step = step

    def write_step(self, step: int) -> None:
        """Writes `step` now, from any thread."""
        self.step = step
        self.write_beat()

    def count_training(self, training: SupervisedTraining) -> None:
        """Counts the steps of `training` from here on."""
        self._training, self._is_step_a_phase = training, False

    def follow_fit(self, read_fit: Callable[[], FitPlace | None]) -> None:
        """Shows how far a fit of Keras has come."""
        self._read_fit = read_fit

    def show_loss(self, loss: Loss | None) -> None:
        """Shows the loss of that fit; None: it is not known."""
        self._loss = loss

    def take_phase_for_step(self) -> None:
        """From here on a step is under way while the phase is STEP: the training leaves that phase between two steps."""
        self._is_step_a_phase = True

    def show_snapshots(self, snapshots: Snapshots) -> None:
        """Shows the spacing of snapshots now, and what they cost."""
        self._snapshots = snapshots

    def end_program(self, code: int) -> None:
        """The main module of the program has returned: the process ends with `code`, however its threads go on."""
        self.returned = code
        self.write_beat()  # a signal may end the process at any line from here on

    @property
    def has_ended(self) -> bool:
        """Whether the main module of the program has returned, and its training has ended, on whichever thread."""
        return self.returned != NOT_RETURNED and not self._is_training()

    # -- what is no hang -------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Marks the block as a save, which may take as long as one.  Any thread."""
        with self._lock:
            self._saves += 1
        try:
            yield
        finally:
            with self._lock:
                self._saves -= 1

    def extend_limit(self, seconds: float) -> None:
        """Keeps the next `seconds` from counting as a hang.  Written to the heartbeat at once: the GIL may be held next."""
        self._extended_s = max(self._extended_s, self._clock.monotonic() + seconds)
        self.write_beat()

    @contextlib.contextmanager
    def waiting(self, seconds: float | None) -> Iterator[None]:
        """Marks the block as a wait for others, of at most `seconds` (None: without end), and no hang."""
        before_s = self._extended_s
        self.extend_limit(WAIT_S_MAX if seconds is None else min(seconds, WAIT_S_MAX))
        try:
            yield
        finally:
            self._extended_s = before_s


class ImportWatch:
    """Finds the package that the program imports just now: TensorFlow's import takes many seconds, and people wait for it."""

    def __init__(self) -> None:
        self._count, self._found = 0, ""  # modules that there were; the first one that was half imported

    def look(self) -> str:
        """The installed package whose import is under way; "" if none is."""
        if not _is_begun(_spec(sys.modules.get(self._found))):
            count = len(sys.modules)
            self._found = _find() if count != self._count else ""
            self._count = count
        name = self._found.partition(".")[0]
        return name if name.isascii() and name.isidentifier() else ""  # it goes to terminals


def _find() -> str:
    """The outermost: a module is entered when its import begins."""
    for name, module in list(sys.modules.items()):
        spec = _spec(module)
        if _is_begun(spec) and SITE in (spec.origin or "") and name.partition(".")[0] != "procsv":
            return name
    return ""


def _spec(module: object) -> ModuleSpec | None:
    """Past a module's own `__getattr__`, which may import what it stands for."""
    try:
        spec = object.__getattribute__(module, "__dict__").get("__spec__")
    except AttributeError:
        return None
    return spec if isinstance(spec, ModuleSpec) else None


def _is_begun(spec: ModuleSpec | None) -> TypeGuard[ModuleSpec]:
    return getattr(spec, "_initializing", False) is True
