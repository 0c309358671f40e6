"""Do everything that procsv does for one state source from its first step to its last.

Its owner, such as the Supervisor or a monitored session, creates a TrainingRun once the source's
state is initialized or restored. The TrainingRun connects boundary, snapshots, progress and
readiness, and decides nothing about its owner's services, threads or summaries. `GoneDirectory`
decides how long the end of training waits for a checkpoint directory that was removed.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from procsv.base import exit_codes
from procsv.base.clock import Clock
from procsv.base.errors import strip_numbers
from procsv.base.grace import BOUNDARY_SHARE, TRAINER_SHARE
from procsv.base.journal.entries import SessionRecovered, SnapshotFailed
from procsv.base.outcome import NO_STEP, STEPS
from procsv.base.run.manifest import Reason
from procsv.base.system.failpoints import declare, failpoint
from procsv.base.system.process_state import name_own_thread
from procsv.ipc.messaging.checkpoint_messages import Durable, Rejected, SavedKey, SaveFailed, Unwritable
from procsv.ipc.messaging.message import Message
from procsv.ipc.messaging.watchdog_messages import CopyKept, FirstStepDone
from procsv.ipc.shm.heartbeat import Phase
from procsv.ipc.shm.slot_file import NoRoom, SlotPool
from procsv.training.runtime.context import Runtime
from procsv.training.runtime.link import Handler
from procsv.training.runtime.log import log, say
from procsv.training.snapshots.backends import SlotBackend, SnapshotBackend, StagingBackend
from procsv.training.snapshots.boundary import Boundary
from procsv.training.snapshots.cadence import Cadence
from procsv.training.snapshots.restore_client import Origin, number_from_newest
from procsv.training.snapshots.snapshot_queue import Record, SnapshotRequest
from procsv.training.snapshots.snapshot_state import SnapshotState
from procsv.training.snapshots.snapshotter import Snapshotter
from procsv.training.snapshots.source import StateSource
from procsv.training.snapshots.step_faults import StepFaults

declare("trainer.compile", "trainer.save", "trainer.after_last_step")

FIRST_SAVE_S_MAX = 2.0  # how long the first step waits for the first state's checkpoint
READ_EVERY_S = 0.5  # between two reads of the global step for the heartbeat
FINAL_SAVE_S_MAX = 600.0  # how long the end of a session waits for its last checkpoint
GONE_S_MAX = 5.0  # how long the end of training waits for a removed directory to come back


class Lost(msgspec.Struct, frozen=True):
    """The previous session of this process, which ended because a TensorFlow server was lost."""

    at_s: float  # monotonic
    step: int  # as last read


class TrainingRun:
    """procsv's side of one state source."""

    def __init__(
        self,
        runtime: Runtime,
        source: StateSource,
        origin: Origin,
        cadence: Cadence | None,
        on_durable: Callable[[Durable], None],
        lost: Lost | None = None,
    ) -> None:
        """Without a `cadence` there are no snapshots and no checkpoints.

        `lost`: the lost session that this source replaces, if any.
        """
        self._runtime, self._source, self.origin, self._cadence = runtime, source, origin, cadence
        self._tell_durable, self._lost = on_durable, lost
        self._failures: tuple[type[Exception], ...] = (TimeoutError, OSError, NoRoom, *source.errors)  # snapshot errors
        self.boundary = Boundary(self._visit)
        self.counts_calls = source.count_on_from(origin.step)  # whether calls count as steps, for lack of a global step
        self.first_step = source.read_step()
        runtime.heartbeat.reach_step(self.first_step)
        self.is_ready = False  # whether a step has ended
        # Sent with the first step: what the program's step numbers count, and whether it restores what it has saved.
        self.habit = STEPS
        self._last_durable: dict[bool, SavedKey] = {}  # the last reported saves: True: procsv's, False: the program's
        self._last_error = ""  # the last reported error of a save, without its numbers
        self._faults = StepFaults(
            runtime.connection.start, runtime.clock, runtime.injected, runtime.heartbeat.write_step
        )
        self._ending = threading.Event()
        self._reader = threading.Thread(target=self._keep_reading, name="procsv-progress", daemon=True)
        self._handlers: dict[type[Message], Handler] = {
            Durable: self.on_durable,
            SaveFailed: self.on_failed,
            Unwritable: self._on_unwritable,
            Rejected: self._on_rejected,
            CopyKept: self._on_copy_kept,
        }
        self.snapshots: Snapshotter | None = None
        self.is_over = False

    def start_training(self) -> None:
        """Begin the training: from here on steps pass the boundary."""
        failpoint("trainer.compile")
        self._runtime.begin_training(self)
        self._begin_snapshots()
        for kind, handler in self._handlers.items():
            self._runtime.connection.link.on(kind, handler)
        self._source.attach(self.boundary)
        self._runtime.stops.add_listener(self._on_stop)
        self._runtime.follow_training(self)
        self._runtime.heartbeat.enter_phase(Phase.COMPILE)
        self.boundary.due = True  # until the first step has ended
        self._reader.start()

    def _begin_snapshots(self) -> None:
        if self._cadence is None:
            return
        number_from_newest(self._runtime)
        start, source = self._runtime.connection.start, self._source
        staging = StagingBackend(source, [start.paths.shm_dir, start.paths.home], start.run, start.incarnation)
        backend: SnapshotBackend = staging
        if source.spec is not None:
            restored = frozenset({self.origin.path} if self.origin.source == "memory" else ())
            pool = SlotPool(start.paths.shm_dir, start.run, start.task, start.incarnation)
            backend = SlotBackend(pool=pool, source=source, target=start.target, never=restored)
        self.snapshots = Snapshotter(self._runtime, self.boundary, source, (backend, staging), self._cadence)
        if self.origin.source == "fresh":
            # Only for a fresh state.  A restored session leaves this to the worker, to reach its first step sooner.
            self.snapshots.reserve_early()
        self.snapshots.start_worker()

    @property
    def is_trained_here(self) -> bool:
        """Whether all steps run on the thread that reads this property."""
        return self.boundary.is_trained_here

    @property
    def is_in_step(self) -> bool:
        return self.boundary.is_in_call

    def count_runs(self) -> int:
        # All finished work: the calls that have passed the boundary, and what the source has done outside of them.
        return self.boundary.runs + self._source.count_calls()

    def count_steps(self) -> int:
        # Only the calls that have passed the boundary, which the watchdog counts as steps of this task.
        return self.boundary.runs

    # -- at the boundary ---------------------------------------------------------------------------
    def _visit(self) -> None:
        """Do what is due: on the training thread, with the lock held.

        `due` is cleared first, so a thread that sets it during the visit causes another visit.
        """
        self.boundary.due = False
        if self._faults.is_watching:
            self.boundary.due = True
            self._faults.carry_out_due(self._source.read_step())
        if not self.is_ready:
            self._check_ready()
        if self.snapshots is not None:
            self.snapshots.capture_due()
        if self._runtime.stops.reason is not None:
            self.boundary.due = True
            self._end_if_overdue()

    def _check_ready(self) -> None:
        """Report the first step (FirstStepDone) once a call has moved the global step and ended.

        If the source has no global step, the first call that ends counts.
        """
        step = self._source.read_step()
        if step == self.first_step and step >= 0:
            self.boundary.due = True
            return
        if self.origin.source == "fresh" and self._source.has_restored():
            # The program restored its own checkpoint: the step has moved, but no step has run yet.
            self.origin, self.first_step = Origin("checkpoint", "", step), step
            self.boundary.due = True
            return
        self.is_ready = True
        self._runtime.heartbeat.reach_step(step)
        self._runtime.heartbeat.enter_phase(Phase.STEP)
        now_s = self._runtime.clock.monotonic()
        total, origin = self._runtime.steps_total, self.origin
        recovered = FirstStepDone(
            restored_step=self.first_step,
            source=origin.source,
            origin=origin.path,
            step=step,
            ended_s=now_s,
            steps_total=total,
            habit=self.habit,
        )
        if self._lost is None:
            self._runtime.report_first_step(recovered)
            return
        back = SessionRecovered(
            step=self.first_step,
            source=self.origin.source,
            origin=self.origin.path,
            at=step,
            seconds=round(now_s - self._lost.at_s, 3),
            lost_steps=max(0, self._lost.step - max(self.first_step, 0)),
        )
        self._runtime.connection.note_entry(back)
        self._runtime.connection.tell_watchdog(recovered)

    def _end_if_overdue(self) -> None:
        share_s = self._runtime.connection.start.settings.grace_s * TRAINER_SHARE * BOUNDARY_SHARE
        is_main = threading.current_thread() is threading.main_thread()  # in others SystemExit ends only the thread
        if is_main and self._runtime.clock.monotonic() - self._runtime.stops.asked_s > share_s:
            text = f"{share_s:.0f} s after the stop request the program still trains: procsv ends it after this step"
            say(text)  # the program may have silenced its log
            raise SystemExit(exit_codes.RESUMABLE)

    # -- events ------------------------------------------------------------------------------------
    def _on_stop(self, reason: Reason) -> None:
        self.boundary.due = True
        if self.snapshots is not None:
            self.snapshots.request_stop_save(reason)

    def capture_state(self, reason: Reason) -> None:
        """Request a snapshot at the end of this step."""
        if self.snapshots is not None:
            self.snapshots.request(SnapshotRequest(reason))

    def visit_soon(self) -> None:
        self.boundary.due = True

    def leave_to_parent(self) -> None:
        # This process is a fork of the program. It has no snapshot worker, and the slots are its parent's.
        self.snapshots = None

    def on_durable(self, news: Durable) -> None:
        is_ours = news.sequence > 0
        if news.key != self._last_durable.get(is_ours):  # may come twice: as an answer, and as a message to all
            self._last_durable[is_ours] = news.key
            self._last_error = "" if is_ours else self._last_error
            self._tell_durable(news)
        if self.snapshots is not None and self._is_mine(news):
            self.snapshots.on_durable(news)  # last, so that a waiting thread finds everything done

    def _is_mine(self, news: Durable | SaveFailed) -> bool:
        """Whether the news is about a snapshot of this attempt.

        The service also repeats announcements of old checkpoints, which prove nothing about ours.
        """
        return news.is_of(self._runtime.connection.start.run, self._runtime.connection.start.incarnation)

    def _on_copy_kept(self, news: CopyKept) -> None:
        if self.snapshots is not None:
            self.snapshots.on_copy_kept(news)

    def on_failed(self, news: SaveFailed) -> None:
        if strip_numbers(news.error) != self._last_error:  # do not report every retry
            self._last_error = strip_numbers(news.error)
            log.error(
                "procsv: step %d could not be saved; training continues, and procsv tries again with the newest "
                "state: %s",
                news.step,
                news.error,
            )
        if self.snapshots is not None and self._is_mine(news):
            self.snapshots.on_failed(news)

    def _on_unwritable(self, news: Unwritable) -> None:
        error = news.error
        if error and strip_numbers(error) != self._last_error:
            log.error("procsv: checkpoints cannot be saved at the moment; training continues: %s", error)
        self._last_error = strip_numbers(error)

    def _on_rejected(self, news: Rejected) -> None:
        log.error("procsv: %s is not used: %s", news.path, news.why)

    # -- end ---------------------------------------------------------------------------------------
    def read_step(self) -> int:
        """Read the global step and write it into the heartbeat."""
        self._runtime.heartbeat.reach_step(self._source.read_step())
        return self._runtime.heartbeat.step

    def _keep_reading(self) -> None:
        """Read the global step for the heartbeat until the end, or until the step is unreadable.

        This runs on its own thread.
        """
        name_own_thread()
        failures: tuple[type[Exception], ...] = (RuntimeError, *self._source.errors)
        is_over = False
        while not is_over:
            is_over = self._ending.wait(READ_EVERY_S)  # then read once more: users see this last step
            try:
                self.read_step()
            except failures:
                return  # the source is closed or broken, which its user will notice

    def save(self, reason: Reason, timeout_s: float) -> bool:
        """Make a durable checkpoint of the state between two steps.

        On failure, return False. Log the reason, except for a checkpoint directory that is gone.
        Without snapshots, only return False.
        """
        if self.snapshots is None:
            return False
        failpoint("trainer.save")
        failures: tuple[type[Exception], ...] = (RuntimeError, *self._failures)
        try:
            with self._runtime.heartbeat.saving():
                return self._wait(self.snapshots.take_snapshot(reason, reuses=True), timeout_s)
        except failures as failure:
            log.error("procsv: the last state is not saved; the run resumes from its newest snapshot: %s", failure)
            self._note_lost(failure)
        return False

    def wait_asked(self, timeout_s: float) -> bool:
        """Wait until the snapshot that `Snapshotter.asked` returns is a durable checkpoint.

        Without one, return True. On failure, return False. Log the reason, except for a checkpoint
        directory that is gone.
        """
        asked = self.snapshots.asked if self.snapshots is not None else None
        if asked is None:
            return True
        with self._runtime.heartbeat.saving():
            return self._wait(asked, timeout_s)

    def _wait(self, asked: Record, timeout_s: float) -> bool:
        assert self.snapshots is not None
        is_observed = self._runtime.observer is not None and self._runtime.connection.start.has_local_logdir
        gone = GoneDirectory(self._runtime.connection.paths.logdir if is_observed else None, self._runtime.clock)
        if self.snapshots.wait_durable(asked, timeout_s, gone.is_given_up):
            return True
        failed = self.snapshots.last_failure
        why = asked.failure or (failed.error if failed else "no answer yet")
        if not gone.is_given_up():  # if it is, the watchdog reports the error of the last try
            log.error("procsv: not saved within %.0f s: %s", timeout_s, why)
        if asked.state < SnapshotState.PUBLISHED or asked.failure is not None:  # the service has not received it
            self._note_lost(why)
        return False

    def _note_lost(self, why: Exception | str) -> None:
        """Record in the journal that the last state has not reached the checkpoint service.

        Record nothing if the save failed because the source is closed.
        """
        if isinstance(why, str) or not self._source.is_closed(why):
            with contextlib.suppress(RuntimeError, *self._failures):  # if it is unreadable, the last step read is used
                self.read_step()
            self._runtime.connection.note_entry(
                SnapshotFailed(step=self._runtime.heartbeat.step, error=str(why), is_last=True)
            )

    def save_first_state(self) -> None:
        """Save a checkpoint of a fresh state.

        Programs look for this checkpoint, so training first waits until it is on disk, but only for
        FIRST_SAVE_S_MAX: a large one takes longer. Training starts even if the save fails.
        """
        if self.snapshots is not None and self.origin.source == "fresh":
            try:
                self.snapshots.wait_settled(self.snapshots.take_snapshot("start"), FIRST_SAVE_S_MAX)
            except self._failures as failure:
                log.error("procsv: the initial state could not be saved; training continues: %s", failure)

    def final_save_s(self) -> float:
        """Return how long the last save may take; after a stop, the rest of the grace period."""
        if self._runtime.stops.reason is None:
            return FINAL_SAVE_S_MAX
        share_s = self._runtime.connection.start.settings.grace_s * TRAINER_SHARE
        return max(1.0, share_s - (self._runtime.clock.monotonic() - self._runtime.stops.asked_s))

    def end_training(self) -> None:
        """Detach procsv from the source, whose owner is about to close it."""
        failpoint("trainer.after_last_step")
        self.is_over = True
        if self.is_ready and (self.snapshots is not None or self.origin.source == "chief"):
            self._runtime.planned_step = NO_STEP
        self._runtime.end_training(self)
        self._runtime.stops.remove_listener(self._on_stop)
        self._ending.set()
        self._reader.join(5.0)
        if self.snapshots is not None:
            self.snapshots.close()
        self._source.close()
        for kind, handler in self._handlers.items() if self._runtime.connection.is_open else ():
            self._runtime.connection.link.remove_handler(kind, handler)


def training_of(owner: Any) -> TrainingRun:
    """Return the TrainingRun of a Supervisor, a monitored session or a CheckpointManager.

    Raise ValueError if there is none.
    """
    controller = owner._controller
    if controller is None or controller.training is None:
        raise ValueError(f"{type(owner).__name__} has no training under way")
    training: TrainingRun = controller.training
    return training


class GoneDirectory:
    """Decides when the end of a program stops waiting for its removed checkpoint directory.

    While the program trains, saves are retried without end: a filesystem may come back, or the user
    may restore the directory. At the end of a program without `procsv launch`, a user waits for the
    process to end, so the retries must stop. If `directory` is None, the retries never stop.
    """

    def __init__(self, directory: Path | None, clock: Clock) -> None:
        self.directory, self._clock = directory, clock
        self._since_s: float | None = None  # when it was first seen missing

    def is_given_up(self) -> bool:
        if self.directory is None or self.directory.is_dir():
            self._since_s = None
            return False
        now_s = self._clock.monotonic()
        if self._since_s is None:
            self._since_s = now_s
        return now_s - self._since_s >= GONE_S_MAX
