"""Keep the heartbeat of a training process: its present activity, for the watchdog to read.

The Runtime holds it, and any thread may change it.  The link's thread writes it to its file five
times a second.  That thread cannot run while the program holds the GIL, so a change that must be
visible even then is written immediately.
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

RESTORE_S = 1.0  # between checks that this process's files in the runtime directory still exist
DIRECTORY_TRIES_MAX, DIRECTORY_PAUSE_S = 100, 0.1  # while the runtime directory is missing
WAIT_S_MAX = 1e8  # three years; stands for a wait without end
SITE = "-packages/"  # in the path of any installed package: site-packages, dist-packages


class SupervisedTraining(Protocol):
    """A training under way, as the rest of its process sees it."""

    @property
    def is_trained_here(self) -> bool:
        """Whether only the calling thread makes steps."""

    @property
    def is_in_step(self) -> bool:
        """Whether a step is under way in phase STEP; if not, the program's own code may run."""

    def count_runs(self) -> int:
        """Returns how much work is finished: calls of the training thread, and the source's own."""

    def count_steps(self) -> int:
        """Returns the training thread's finished calls, as steps; each task counts only its own."""

    def capture_state(self, reason: Reason) -> None:
        """Takes a snapshot at the end of this step."""

    def visit_soon(self) -> None:
        """Makes the training thread visit the boundary at the end of this step."""

    def leave_to_parent(self) -> None:
        """In a fork: takes no more snapshots."""


class TrainerHeartbeat:
    """The heartbeat of one process, in a file from `open_file` to `close_file`."""

    def __init__(self, clock: Clock, handled_signals: Callable[[], int], is_training: Callable[[], bool]) -> None:
        """`handled_signals` returns the signals that the program handles, as bits.

        `is_training` returns whether a training is under way.
        """
        self.phase = Phase.IMPORT
        self.step = -1
        self.returned = NOT_RETURNED  # the program's exit code, once its main module has finished
        self._clock, self._handled_signals, self._is_training = clock, handled_signals, is_training
        self._training: SupervisedTraining | None = None  # the newest one; its counts are shown even after its end
        self._is_step_a_phase = False
        self._read_fit: Callable[[], FitPlace | None] = lambda: None
        self._loss: Loss | None = None  # of the Keras fit
        self._snapshots = Snapshots()
        self._imports = ImportWatch()
        self._extended_s = self._restore_s = 0.0
        self._saves = 0  # number of saves under way
        self._writer: HeartbeatWriter | None = None
        self._stacks: DumpFile | None = None  # faulthandler's output file, if it is ours
        self._lock = threading.RLock()

    # -- files -------------------------------------------------------------------------------------
    def open_file(self, path: Path) -> None:
        """Opens the file; waits a moment while the watchdog re-creates a removed directory."""
        pause = threading.Event()
        for _ in range(DIRECTORY_TRIES_MAX):
            with contextlib.suppress(FileNotFoundError):
                self._writer = HeartbeatWriter(path)
                return
            pause.wait(DIRECTORY_PAUSE_S)
        self._writer = HeartbeatWriter(path)

    def keep_stacks(self, stacks: DumpFile) -> None:
        """From now on, also restores the stack dump file `stacks` if it is removed."""
        self._stacks = stacks

    def tick(self, now_s: float) -> None:
        """Writes the heartbeat, on the link's thread."""
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
        """Re-creates our removed files once the watchdog has re-created their directory."""
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
            self.write_beat()  # the journal will quote the last step
            if self._writer is not None:
                self._writer.close()
                self._writer = None

    def disarm_stacks(self) -> None:
        if self._stacks is not None:
            self._stacks.disarm()
            self._stacks = None

    def leave_to_parent(self) -> None:
        """In a fork: writes nothing more to the parent's file."""
        self._lock, self._writer, self._stacks = threading.RLock(), None, None

    # -- progress ----------------------------------------------------------------------------------
    def enter_phase(self, phase: Phase) -> None:
        self.phase = phase

    def reach_step(self, step: int) -> None:
        """Sets the step; the link's thread writes it with its next beat."""
        self.step = step

    def write_step(self, step: int) -> None:
        """Writes `step` immediately, from any thread."""
        self.step = step
        self.write_beat()

    def count_training(self, training: SupervisedTraining) -> None:
        """Counts the steps of `training` from here on."""
        self._training, self._is_step_a_phase = training, False

    def follow_fit(self, read_fit: Callable[[], FitPlace | None]) -> None:
        """Shows the progress of a Keras fit."""
        self._read_fit = read_fit

    def show_loss(self, loss: Loss | None) -> None:
        """Shows the loss of the Keras fit; None if unknown."""
        self._loss = loss

    def take_phase_for_step(self) -> None:
        """Makes phase STEP mean that a step is under way.

        For a training that leaves this phase between two steps.
        """
        self._is_step_a_phase = True

    def show_snapshots(self, snapshots: Snapshots) -> None:
        """Shows the present snapshot interval and cost."""
        self._snapshots = snapshots

    def end_program(self, code: int) -> None:
        """Records that the program's main module has finished.

        The process will exit with `code`, no matter what its threads still do.
        """
        self.returned = code
        self.write_beat()  # a signal may end the process at any line from here on

    @property
    def has_ended(self) -> bool:
        """Whether the main module has finished, and training has ended on every thread."""
        return self.returned != NOT_RETURNED and not self._is_training()

    # -- exemptions from the hang limit ------------------------------------------------------------
    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Marks the block as a save, which has its own time limit.  Any thread."""
        with self._lock:
            self._saves += 1
        try:
            yield
        finally:
            with self._lock:
                self._saves -= 1

    def extend_limit(self, seconds: float) -> None:
        """Exempts the next `seconds` from the hang limit.

        This is written immediately, because the program may hold the GIL next.
        """
        self._extended_s = max(self._extended_s, self._clock.monotonic() + min(seconds, WAIT_S_MAX))
        self.write_beat()

    @contextlib.contextmanager
    def waiting(self, seconds: float | None) -> Iterator[None]:
        """Marks the block as a wait of at most `seconds` (None: no limit), not a hang."""
        before_s = self._extended_s
        self.extend_limit(WAIT_S_MAX if seconds is None else seconds)
        try:
            yield
        finally:
            self._extended_s = before_s


class ImportWatch:
    """Finds the package that the program now imports; TensorFlow's import takes many seconds."""

    def __init__(self) -> None:
        self._count, self._found = 0, ""  # number of modules seen; the first half-imported one

    def look(self) -> str:
        """The installed package whose import is under way; "" if there is none."""
        try:
            return self._look()
        except Exception:  # noqa: BLE001  the program may put any object into sys.modules
            return ""

    def _look(self) -> str:
        if not _is_begun(_spec(sys.modules.get(self._found))):
            count = len(sys.modules)
            self._found = _find() if count != self._count else ""
            self._count = count
        name = self._found.partition(".")[0]
        return name if name.isascii() and name.isidentifier() else ""  # it is printed to terminals


def _find() -> str:
    """Finds the outermost module under import: `sys.modules` lists it first."""
    # A copy in one step: while `list(sys.modules.items())` runs, another thread may import.
    for name, module in sys.modules.copy().items():
        spec = _spec(module)
        if _is_begun(spec) and SITE in str(spec.origin) and name.partition(".")[0] != "procsv":
            return name
    return ""


def _spec(module: object) -> ModuleSpec | None:
    """Reads `__spec__` without calling the module's `__getattr__`, which may import something."""
    try:
        spec = object.__getattribute__(module, "__dict__").get("__spec__")
    except AttributeError:
        return None
    return spec if isinstance(spec, ModuleSpec) else None


def _is_begun(spec: ModuleSpec | None) -> TypeGuard[ModuleSpec]:
    return getattr(spec, "_initializing", False) is True
