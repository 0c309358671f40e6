"""Decides when snapshots are taken, and sees them through to the checkpoint service.

Called by a TrainingRun.  A snapshot is taken on the training thread between two steps; if that
thread does not come by in time, from the snapshot thread under the same lock.  How it is taken is backends.py's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from procsv.base.identity import CHECKPOINT
from procsv.ipc.messaging.endpoint import Received
from procsv.ipc.messaging.messages import Durable, Message, SaveFailed
from procsv.ipc.shm.heartbeat import Phase, Snapshots
from procsv.ipc.shm.slot_file import NoRoom
from procsv.training.runtime.context import Runtime
from procsv.training.runtime.log import log
from procsv.training.snapshots.backends import SnapshotBackend, Want, always
from procsv.training.snapshots.boundary import Boundary
from procsv.training.snapshots.cadence import Cadence
from procsv.training.snapshots.source import StateSource

PATIENCE_S = 1.0  # how long a due snapshot waits for the training thread to come by
AGAIN_S = 0.1  # no slot is free: the service still reads the other one
LOST_S = 0.5  # how soon it is seen that nobody will save any more
SLOT_WAIT_S_MAX = 60.0  # how long a snapshot that somebody asked for waits for a slot
FAILED_PAUSE_S = 10.0  # after a snapshot that went wrong

Finish = Callable[[], Message]


@dataclass(frozen=True, slots=True)
class _Debt:
    """A snapshot that a call owes: why, whether of this very step, and whether the call waits until it is on disk."""

    want: Want
    exactly: bool
    waits: bool


class Snapshotter:
    """The snapshots of one source of state."""

    def __init__(
        self,
        runtime: Runtime,
        boundary: Boundary,
        source: StateSource,
        ways: tuple[SnapshotBackend, SnapshotBackend],
        cadence: Cadence,
    ) -> None:
        """`ways`: the one to take, and the one for when there is no memory for the first."""
        self._runtime, self._boundary, self._source = runtime, boundary, source
        self._failures: tuple[type[Exception], ...] = (NoRoom, OSError, RuntimeError, *source.errors)
        self._way, self._fallback = ways
        self._left: SnapshotBackend | None = None  # the one that had no room any more
        self._is_reserved = False
        self._reserving = threading.Lock()
        self.cadence = cadence
        self._clock = runtime.clock
        self._changed = threading.Condition()
        self._captured: tuple[Finish, float] | None = None  # by the boundary, for the snapshot thread: and its stall
        self._failure: Exception | None = None
        self._due_s = 0.0  # 0.0: none is due
        self._publishing = threading.Lock()
        self._capturing = threading.Lock()  # one at a time, also beside a call
        self._owed: _Debt | None = None  # asked for within a call, to be taken at its end
        self._exact = 0  # the newest snapshot that is to become a checkpoint as it is, whatever comes after it
        self._given_up = 0  # the newest that never came as far as the service
        self._copies: list[threading.Thread] = []
        self.on_taken: Callable[[Snapshots], None] = lambda told: (
            None
        )  # after each snapshot by the cadence, on its thread
        self.asked_sequence = 0  # of the newest one that somebody asked for
        self.durable_sequence = 0
        self.last_failure: SaveFailed | None = None

    # -- beginning and end -----------------------------------------------------------------------------------
    def reserve(self) -> None:
        """Gets the memory for snapshots, or says once why there is none and takes the other way.  Any thread."""
        with self._reserving:
            if self._is_reserved:
                return
            try:
                self._way.reserve()
            except NoRoom as no_room:
                self._fall_back(no_room)
            self._is_reserved = True

    def _fall_back(self, no_room: NoRoom) -> None:
        """From here on by the other way; said once."""
        if self._way is self._fallback:
            return
        log.warning(
            "procsv: no snapshots in memory: %s.  Checkpoints are written by the training thread instead; "
            "give the shared-memory filesystem more room (docker run --shm-size=…) to avoid it",
            no_room,
        )
        self._left, self._way = self._way, self._fallback

    def warm_up(self) -> None:
        """On the training thread, before the first step."""
        self._way.warm_up()

    def close(self) -> None:
        """Lets go of source and slots; what lies in the slots stays for whoever needs it."""
        for copy in self._copies:
            copy.join()
        self._way.close()
        if self._left is not None:
            self._left.close()

    # -- asked for -------------------------------------------------------------------------------------------
    def take(self, want: Want) -> int:
        """Takes a snapshot now, between two calls of the training thread; its sequence number.  Any thread.

        TimeoutError if no slot becomes free.  `want` makes the service save it at once, for that reason.
        """
        self.reserve()
        self._let_exact_pass()
        deadline_s = self._clock.monotonic() + SLOT_WAIT_S_MAX
        while True:
            with self._boundary.held():
                finish, stall_s = self._capture(want)
            if finish is not None:
                self.asked_sequence = self._runtime.sequence
                try:
                    self._finish(finish, stall_s)
                except NoRoom:
                    continue  # once: the other way needs none
                return self.asked_sequence
            if self._clock.monotonic() > deadline_s:
                raise TimeoutError(f"no snapshot slot became free in {SLOT_WAIT_S_MAX:.0f} s: is the disk very slow?")
            with self._changed:
                self._changed.wait(AGAIN_S)

    def take_beside(self, want: Want, is_whole: Callable[[], bool]) -> bool:
        """Takes a snapshot while the training thread is in a call that changes nothing; False if there was none.

        `is_whole` says afterwards whether it still was in that call.
        """
        self.reserve()
        finish, stall_s = self._capture(want, is_whole)
        if finish is None:
            return False
        self.asked_sequence = self._runtime.sequence
        self._finish(finish, stall_s)
        return True

    def wait_durable(self, sequence: int, timeout_s: float) -> bool:
        """Whether snapshot `sequence` (or a newer one) is a verified checkpoint, within `timeout_s`.

        Not waited for when the checkpoint service is lost for good.
        """
        deadline_s, link = self._clock.monotonic() + timeout_s, self._runtime.link
        with self._changed:
            while self.durable_sequence < sequence and not link.why_lost(CHECKPOINT):
                left_s = deadline_s - self._clock.monotonic()
                if left_s <= 0:
                    break
                self._changed.wait(min(LOST_S, left_s))
            return self.durable_sequence >= sequence

    def wait_told(self, sequence: int, timeout_s: float) -> bool:
        """Whether snapshot `sequence` is a verified checkpoint; False as soon as a try to save it has failed, too."""
        deadline_s, link = self._clock.monotonic() + timeout_s, self._runtime.link
        with self._changed:
            while not self._is_told(sequence) and not link.why_lost(CHECKPOINT):
                left_s = deadline_s - self._clock.monotonic()
                if left_s <= 0:
                    break
                self._changed.wait(min(LOST_S, left_s))
            return self.durable_sequence >= sequence

    def _is_told(self, sequence: int) -> bool:
        failed = self.last_failure
        has_failed = self._given_up >= sequence or (failed is not None and failed.sequence >= sequence)
        return self.durable_sequence >= sequence or has_failed

    # -- owed by the call that is going on ---------------------------------------------------------------------
    def owe(self, want: Want, exactly: bool, waits: bool = False) -> None:
        """On the training thread, within a call: takes a snapshot at its end, and copies it in the background.

        `exactly`: that very step becomes a checkpoint, if need be by waiting for the one before it.  Else a later step
        does where no slot is free.  `waits`: the call ends when it is one, or when it has failed to become one.
        """
        self._owed = _Debt(want, exactly, waits)
        self._boundary.due = True

    @property
    def owes(self) -> bool:
        return self._owed is not None

    def take_behind(self, want: Want) -> bool:
        """Takes a snapshot now, the training thread being held, and copies it in the background; False if that failed."""
        self._owed = _Debt(want, exactly=True, waits=False)
        before = self.asked_sequence
        self._pay()
        return self.asked_sequence != before

    def _pay(self) -> None:
        """At the boundary, its lock held: takes what is owed, or leaves it owed where no slot is free."""
        assert self._owed is not None
        debt = self._owed
        before, self._runtime.phase = self._runtime.phase, Phase.SAVE  # it may wait for the disk
        try:
            finish, stall_s = self._capture_exactly(debt.want) if debt.exactly else self._capture(debt.want)
            if finish is not None:
                self._owed, self.asked_sequence = None, self._runtime.sequence
                self._exact = self.asked_sequence if debt.exactly else self._exact
                self._finish_behind(finish, stall_s)
                if debt.waits and self._runtime.stop_reason is None:  # else the session's end waits for the last state
                    self.wait_told(self.asked_sequence, SLOT_WAIT_S_MAX)
        except Exception as failure:  # noqa: BLE001  a snapshot that goes wrong is not the training's fault
            self._owed = None
            log.error("procsv: no checkpoint of this step, training goes on: %s", failure)
            return
        finally:
            self._runtime.phase = before
        if finish is None:
            self._boundary.due = True

    def _finish_behind(self, finish: Finish, stall_s: float) -> None:
        """Copies in the background what was captured."""
        with self._changed:
            if self._due_s:  # the cadence has one, too
                self._due_s, self._captured = 0.0, (finish, stall_s)
                self._changed.notify_all()
                return
        args = (finish, stall_s, self.asked_sequence)
        copy = threading.Thread(target=self._copy, args=args, name="procsv-copy", daemon=True)
        self._copies = [other for other in self._copies if other.is_alive()] + [copy]
        copy.start()

    def _capture_exactly(self, want: Want) -> tuple[Finish | None, float]:
        """Once the one before is on disk, so that it is saved as it is; TimeoutError if no slot becomes free."""
        self._let_exact_pass()
        deadline_s = self._clock.monotonic() + SLOT_WAIT_S_MAX
        while True:
            finish, stall_s = self._capture(want)
            if finish is not None:
                return finish, stall_s
            if self._clock.monotonic() > deadline_s:
                raise TimeoutError(f"no snapshot slot became free in {SLOT_WAIT_S_MAX:.0f} s")
            with self._changed:
                self._changed.wait(AGAIN_S)

    def _let_exact_pass(self) -> None:
        """Waits until nothing that is asked for takes the place of a checkpoint that is to be saved as it is."""
        if self._runtime.stop_reason is None:  # else the last state is what counts, and time is short
            self.wait_told(self._exact, SLOT_WAIT_S_MAX)

    def _copy(self, finish: Finish, stall_s: float, sequence: int) -> None:
        failure = self._try_finish(finish, stall_s)
        if failure is not None:
            log.error("procsv: no checkpoint of a step, training goes on: %s", failure)
            with self._changed:
                self._exact, self._given_up = 0, sequence
                self._changed.notify_all()

    def on_durable(self, received: Received) -> None:
        news = cast(Durable, received.body)
        with self._changed:
            self.durable_sequence = max(self.durable_sequence, news.sequence)
            self.last_failure = None
            self._changed.notify_all()

    def on_failed(self, received: Received) -> None:
        with self._changed:
            self.last_failure = cast(SaveFailed, received.body)
            self._changed.notify_all()

    # -- by the cadence --------------------------------------------------------------------------------------
    def visit(self) -> None:
        """At the boundary, its lock held: captures if a snapshot is due."""
        if self._owed is not None:
            self._pay()
        if not self._due_s or self._clock.monotonic() < self._due_s:
            return
        if not self._is_told(self._exact):
            return  # it would take the place of one that is to be saved as it is
        try:
            finish, stall_s = self._capture("")
        except Exception as failure:  # noqa: BLE001  a snapshot that goes wrong is not the training's fault: logged below
            finish, stall_s, self._failure = None, 0.0, failure
        with self._changed:
            self._due_s = 0.0
            self._captured = (finish, stall_s) if finish is not None else None
            self._changed.notify_all()

    def run(self, wait_for_stop: Callable[[float | None], bool]) -> None:
        """The snapshot thread's work: snapshots by the cadence until `wait_for_stop(seconds)` says True."""
        self.reserve()
        self._runtime.snapshots = self.cadence.told()
        while not wait_for_stop(self.cadence.interval_s or None):
            failure = self._take_due(wait_for_stop)
            if failure is None or isinstance(failure, NoRoom):
                continue  # what has no room any more goes the other way
            if self._source.is_closed(failure):
                return  # there is nothing left to take
            log.error("procsv: a snapshot failed, training goes on: %s", failure)
            if wait_for_stop(FAILED_PAUSE_S):
                return

    def _take_due(self, wait_for_stop: Callable[[float | None], bool]) -> Exception | None:
        """One snapshot, taken by the boundary or, failing that, from here; what went wrong, if anything did."""
        self._way.prepare()
        while True:
            with self._changed:
                self._due_s, self._failure = self._clock.monotonic(), None
                self._boundary.due = True
                came_by = self._changed.wait_for(lambda: not self._due_s, PATIENCE_S)
            if not came_by and self._boundary.lock.acquire(timeout=PATIENCE_S):
                try:
                    self.visit()
                finally:
                    self._boundary.lock.release()
            captured, self._captured = self._captured, None
            if captured is not None:
                return self._try_finish(*captured)
            if self._failure is not None:
                return self._failure
            if wait_for_stop(AGAIN_S):
                return None

    def _try_finish(self, finish: Finish, stall_s: float) -> Exception | None:
        try:
            self._finish(finish, stall_s)
            self.on_taken(self.cadence.told())
        except self._failures as failure:
            return failure
        return None

    # -- the work --------------------------------------------------------------------------------------------
    def _capture(self, want: Want, is_whole: Callable[[], bool] = always) -> tuple[Finish | None, float]:
        """Takes the state, the training thread being between two calls; numbered in the order of taking.

        `is_whole` is asked when it has been taken; what may be torn is thrown away.
        """
        begun_s = self._clock.monotonic()
        with self._capturing:
            sequence = self._runtime.sequence + 1
            finish = self._way.capture(sequence, want, is_whole)
            if finish is not None:
                self._runtime.sequence = sequence
        return finish, self._clock.monotonic() - begun_s

    def _finish(self, finish: Finish, stall_s: float) -> None:
        with self._publishing:
            begun_s = self._clock.monotonic()
            try:
                message = finish()
            except NoRoom as no_room:  # it has grown (a table, say) beyond what there is
                self._fall_back(no_room)
                raise
            self._runtime.tell_checkpoint(message)
            self.cadence.learn(stall_s, self._clock.monotonic() - begun_s)
            self._runtime.snapshots = self.cadence.told()
