"""Runtime of a training process: its connection to its run, its heartbeat, its stop requests.

Under `procsv launch` the bootstrap makes one Runtime per process, to which Supervisors and
monitored sessions attach.  Otherwise each of them makes a Runtime of its own, which starts the
run's watchdog itself (observer.py).  A Runtime knows a session only as a `SupervisedTraining`.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import random
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from procsv.base.clock import Clock
from procsv.base.identity import TaskId
from procsv.base.run.manifest import Reason
from procsv.base.run.paths import RunPaths
from procsv.base.system.stack_dump import arm, arm_unless_armed
from procsv.base.system.system_clock import SystemClock
from procsv.faults.pending import Injected
from procsv.ipc.messaging.start import Start
from procsv.ipc.messaging.watchdog_messages import FirstStepDone, StopTraining, TrainsInStep
from procsv.training.runtime.last_words import exit_code_of, write_last_words
from procsv.training.runtime.link import Link
from procsv.training.runtime.log import say
from procsv.training.runtime.observer import Observer
from procsv.training.runtime.run_connection import RunConnection
from procsv.training.runtime.step_gate import StepGate
from procsv.training.runtime.stop_requests import StopRequests
from procsv.training.runtime.trainer_heartbeat import SupervisedTraining, TrainerHeartbeat

END_S_MAX = 10.0  # for the last messages

ImportMoment = Literal["contact", "first step"]


class SnapshotNumbers:
    """The sequence of the newest known snapshot; each new one gets the next number."""

    def __init__(self) -> None:
        self.newest = 0
        self.is_known = False  # whether the checkpoint service has named the newest

    def learn_newest(self, sequence: int) -> None:
        self.newest, self.is_known = max(self.newest, sequence), True

    def use_number(self, sequence: int) -> None:
        self.newest = sequence

    def ask_again(self) -> None:
        """Forgets that the newest number is known: higher ones may exist."""
        self.is_known = False


class Runtime:
    """The trainer's side of its run; `acquire_run` and `release_run` count the run's users."""

    def __init__(
        self,
        paths: RunPaths,
        peers: tuple[TaskId, ...],
        start: Start | None = None,
        observer: Observer | None = None,
        *,
        gate: Callable[[Runtime], None] | None = None,
        handled_signals: Callable[[], int] = lambda: 0,
        leave_to_program: Callable[[Runtime, Reason, float], bool] = lambda *_: False,
    ) -> None:
        """`procsv launch` passes `start`; otherwise `observer` makes one at each start of the run.

        `gate`: where a hot standby sleeps until it becomes the trainer.  `handled_signals`: see
        TrainerHeartbeat.  `leave_to_program`: see StopRequests.
        """
        self.clock: Clock = SystemClock()
        self.connection = RunConnection(paths, peers, start, self.clock)
        self.heartbeat = TrainerHeartbeat(self.clock, handled_signals, lambda: self.training is not None)
        self.stops = StopRequests(
            self.clock, self.heartbeat, lambda reason, grace_s: leave_to_program(self, reason, grace_s)
        )
        self.connection.streams.connected = lambda: (
            contextlib.nullcontext() if self.connection.is_open else self.held_run()
        )
        self.observer = observer
        self.injected = Injected(self._visit_training)  # a plan's faults for this process
        self.numbers = SnapshotNumbers()
        self.first_random = random.getstate()  # read before the program may seed it
        self.failure: BaseException | None = None  # the error that ended the session, if any
        self.training: SupervisedTraining | None = None  # of the present session
        # The step at which the next session would begin if this process had made all steps itself; hooks count from
        # there.  None: where the run began.  NO_STEP: where the session really begins, because another session has
        # already trained in this process.
        self.planned_step: int | None = None
        self.steps_total = -1  # where the program will end, if a hook knows
        self.owner: object = None  # the controller that trains an eager program, while it is in the run
        self.logdir_user: weakref.ref[Any] | None = None  # the first graph that trains in the run's logdir
        self.named_logdir = ""  # the first logdir that the program named
        self.has_unnamed_logdir = False  # a training that names no directory uses the run's logdir
        self.trains_in_step = False  # this task takes every step together with others, in a collective strategy
        self.step_gate: StepGate | None = None  # where the chief holds other tasks' steps during a capture
        self._gate = gate
        self._finish_session: Callable[[], None] = lambda: None
        self._capture_state: Callable[[Reason], None] = lambda _: None
        self._import_listeners: dict[ImportMoment, Callable[[], None]] = {}
        self._users = 0
        self._lock = threading.RLock()

    # -- the run -----------------------------------------------------------------------------------
    @property
    def is_connected(self) -> bool:
        """Whether this process is connected to its run; a fork of it never is."""
        return self in _begun

    @property
    def is_ahead(self) -> bool:
        """Whether this is a hot standby, which runs the program before it becomes the trainer."""
        return self._gate is not None

    def acquire_run(self) -> None:
        """Adds a reference; the first one opens the connection.

        Without `procsv launch`, the first one also starts the run.  In a hot standby, the first
        call returns only once the standby has become the trainer.
        """
        with self._lock:
            if self._gate is not None:
                gate, self._gate = self._gate, None
                gate(self)
            self._users += 1
            if self.connection.is_open:
                self.tell_imports("contact")
                return
            try:
                if self.observer is not None:
                    self.connection.begin_attempt(self.observer.open_run())
                    self.stops.forget_request()
                    self.failure = None
                self._connect()
            except BaseException:
                self._users -= 1
                if self.observer is not None:
                    self.observer.close_run(0)
                raise

    @contextlib.contextmanager
    def held_run(self) -> Iterator[None]:
        """Keeps the connection open and the link's thread running during the block."""
        self.acquire_run()
        try:
            self.connection.start_link()
            yield
        finally:
            self.release_run()

    def adopt_logdir(self, logdir: Path) -> None:
        """Makes the program's `logdir` the run's logdir; UserError if that is impossible."""
        with self.held_run():
            self.connection.adopt_logdir(logdir)

    def become_trainer(self, start: Start) -> None:
        """Makes this process trainer `start.incarnation`."""
        self.heartbeat.keep_stacks(arm(start.paths.stacks(start.task, start.incarnation)))
        self.connection.begin_attempt(start)

    def _connect(self) -> None:
        start, link = self.connection.start, self.connection.make_link()
        self.heartbeat.open_file(start.paths.heartbeat(start.task, start.incarnation))
        link.on_tick.append(self.heartbeat.tick)
        link.on(StopTraining, self.stops.handle_message)
        if self.observer is not None:
            self.observer.attach(link)
            stacks = arm_unless_armed(start.paths.stacks(start.task, start.incarnation))
            if stacks is not None:
                self.heartbeat.keep_stacks(stacks)
            atexit.register(self._end_at_exit)
        _begun.add(self)
        self.connection.open_link(link)

    def release_run(self) -> None:
        """Drops a reference; the last one closes the connection.

        Without `procsv launch`, the last one also ends the run.
        """
        with self._lock:
            self._users -= 1
            if self._users > 0 or not self.is_connected:
                return
            self._disconnect(self.connection.take_link())

    def _disconnect(self, link: Link) -> None:
        _begun.discard(self)
        streams = self.connection.streams
        if streams.dropped:
            why = streams.error or "the summary service was away for too long"
            say(f"{streams.dropped} event records were not written: {why}")
        try:
            if self.observer is not None:
                self.observer.finish_if_lost(link)
            link.close_link(END_S_MAX)
        finally:
            streams.detach_from_run()
            self.heartbeat.close_file()
            if self.observer is not None:
                atexit.unregister(self._end_at_exit)
                self.heartbeat.disarm_stacks()
                write_last_words(self.connection.start, self.failure, None, self.heartbeat.step)
                self.observer.close_run(exit_code_of(self.failure))

    def _end_at_exit(self) -> None:
        """Ends the run if the program exits with its session open; saves the last state first."""
        if self in _begun and self.connection.is_open:
            link = self.connection.link  # kept, because the session's threads still use it
            self.record_failure(getattr(sys, "last_value", None))
            self.finish_session()
            self._disconnect(link)

    def leave_to_parent(self) -> None:
        """In a fork: leaves the run alone, even when a `with` block of the parent ends here, too.

        The fork gets new locks, because threads that it does not have may hold the old ones.
        """
        self._lock, self._users = threading.RLock(), 0
        self.connection.leave_to_parent()
        self.heartbeat.leave_to_parent()
        if self.training is not None:
            self.training.leave_to_parent()
        if self.observer is not None:
            self.observer.leave_to_parent()

    # -- the program and its sessions --------------------------------------------------------------
    def begin_session(self, finish_session: Callable[[], None]) -> None:
        """Sets the function that saves the last state and ends a session left open at the exit."""
        self._finish_session = finish_session

    def finish_session(self) -> None:
        """Ends a session that the program has left open."""
        self._finish_session()

    def end_session(self) -> None:
        self._finish_session = lambda: None

    def set_owner(self, owner: object) -> None:
        """Records `owner`, the controller that now trains an eager program; None clears it."""
        self.owner = owner

    def begin_training(self, training: SupervisedTraining) -> None:
        self.training = training
        self.failure = None  # the program has survived the error of an earlier training

    def follow_training(self, training: SupervisedTraining) -> None:
        """Counts the steps of `training` and captures its state: its source is now attached."""
        self.heartbeat.count_training(training)
        self._capture_state = training.capture_state

    def capture_state(self, reason: Reason) -> None:
        """Takes a snapshot at the end of this step, if training is under way."""
        self._capture_state(reason)

    def _visit_training(self) -> None:
        training = self.training  # another thread owns it and may clear it at any time
        if training is not None:
            training.visit_soon()

    def end_training(self, training: SupervisedTraining) -> None:
        if self.training is training:
            self.training = None
            self._capture_state = lambda _: None

    def expect_steps(self, total: int) -> None:
        """Sets the step at which the program will end, as a hook knows it; -1 if unknown."""
        self.steps_total = total

    def end_program(self, code: int) -> None:
        """Records that the program's main module has finished.

        The process will exit with `code`, no matter what its threads still do.
        """
        if self.training is not None and self.training.is_trained_here:
            # No other thread can make a step, so the session ends first.  After a kill during that, the program does
            # not count as finished.
            self.finish_session()
        self.heartbeat.end_program(code)

    def record_failure(self, error: BaseException | None) -> None:
        """Records the error that ended training, if any; the first one is the run's result."""
        self.failure = self.failure or error

    def name_logdir(self, given: str) -> bool:
        """Records that the program names `given`; True if it is the first name, which stays."""
        is_first = not self.named_logdir
        self.named_logdir = self.named_logdir or given
        return is_first

    # -- events for the run ------------------------------------------------------------------------
    def train_in_step(self) -> None:
        """Tells the watchdog that the program has made a collective strategy."""
        self.trains_in_step = True
        self.connection.tell_watchdog(TrainsInStep())

    def join_step_gate(self, gate: StepGate) -> None:
        """Makes the steps of this task pass `gate`; call it before the program starts."""
        self.step_gate = gate

    def report_first_step(self, body: FirstStepDone) -> None:
        """Reports that the first step after the start has ended."""
        self.connection.tell_watchdog(body)
        self.tell_imports("first step")

    def listen_for_imports(self, tell: Callable[[], None]) -> None:
        """Calls `tell` at two moments when much has been imported, on the training thread.

        These are the program's first contact with the run, and the end of its first step.
        """
        self._import_listeners = {"contact": tell, "first step": tell}

    def tell_imports(self, moment: ImportMoment) -> None:
        """Calls the listener once per moment."""
        tell = self._import_listeners.pop(moment, None)
        if tell is not None:
            tell()


_current: Runtime | None = None
_begun: set[Runtime] = set()  # connected to their runs


def _forget_in_fork() -> None:
    """Disconnects a fork from the run of its parent."""
    global _current
    _current = None
    for runtime in _begun:
        runtime.leave_to_parent()
    _begun.clear()


os.register_at_fork(after_in_child=_forget_in_fork)


def set_current(runtime: Runtime) -> None:
    """Sets the run that this process trains for; the bootstrap calls it."""
    global _current
    _current = runtime


def current() -> Runtime | None:
    """The runtime of `procsv launch`; None outside the trainer process, also in its children."""
    return _current


def watched() -> list[Runtime]:
    """The runtimes whose watchdogs now watch this process."""
    return list(_begun)
