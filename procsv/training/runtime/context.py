"""Runtime of a training process: its connection to its run, its heartbeat, and the requests to stop it.

One per process under `procsv launch`, made by the bootstrap; otherwise one per Supervisor, which then starts the run's
watchdog itself (observer.py).  Supervisors and monitored sessions attach to it.  It knows no session but as a `Training`.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

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
from procsv.training.runtime.observer import Observer
from procsv.training.runtime.run_connection import RunConnection
from procsv.training.runtime.step_gate import StepGate
from procsv.training.runtime.stop_requests import StopRequests
from procsv.training.runtime.trainer_heartbeat import SupervisedTraining, TrainerHeartbeat

END_S_MAX = 10.0  # for the last messages

ImportMoment = Literal["contact", "first step"]


class SnapshotNumbers:
    """The sequence of the newest snapshot known; each one is numbered behind it."""

    def __init__(self) -> None:
        self.newest = 0
        self.is_known = False  # whether the checkpoint service has said which one that is

    def learn_newest(self, sequence: int) -> None:
        self.newest, self.is_known = max(self.newest, sequence), True

    def use_number(self, sequence: int) -> None:
        self.newest = sequence

    def ask_again(self) -> None:
        """There may be higher numbers than those that are known."""
        self.is_known = False


class Runtime:
    """The trainer's end of its run, shared by reference count: `acquire_run` and `release_run`."""

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
        """`start` is given under `procsv launch`; otherwise `observer` makes one each time the run starts.

        `gate`: where a hot standby sleeps until it is the trainer.  `handled_signals`: see TrainerHeartbeat; `leave_to_program`:
        see StopRequests.
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
        self.first_random = random.getstate()  # before the program may seed it
        self.failure: BaseException | None = None  # the error that has ended the session, if any
        self.training: SupervisedTraining | None = None  # of the session that the process trains with now
        self.sessions_begun = 0  # that train, or have trained, in this process
        self.steps_total = -1  # at which the program will end, where a hook tells
        self.owner: object = None  # who trains an eager program, or is about to, from entering the run to leaving it
        self.named_logdir = ""  # as the program has named it first
        self.trains_in_step = False  # with the other tasks, by a collective strategy
        self.step_gate: StepGate | None = None  # where the chief holds the steps of the others while it captures
        self._gate = gate
        self._finish_session: Callable[[], None] = lambda: None
        self._capture_state: Callable[[Reason], None] = lambda _: None
        self._import_listeners: dict[ImportMoment, Callable[[], None]] = {}
        self._users = 0
        self._lock = threading.RLock()

    # -- the run ---------------------------------------------------------------------------------------------
    @property
    def is_connected(self) -> bool:
        """Whether this process is in its run; a fork of one that is never is."""
        return self in _begun

    @property
    def is_ahead(self) -> bool:
        """Whether it is a hot standby, which runs the program ahead and is not the trainer yet."""
        return self._gate is not None

    def acquire_run(self) -> None:
        """Adds one reference; the first one opens the connection and, without `procsv launch`, starts the run."""
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
        """Keeps the run, with messages flowing, for the block."""
        self.acquire_run()
        try:
            self.connection.start_link()
            yield
        finally:
            self.release_run()

    def adopt_logdir(self, logdir: Path) -> None:
        """Makes `logdir`, which the program has named, that of the run.  UserError if it cannot be."""
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
        """Releases one reference; the last one closes the connection and, without `procsv launch`, ends the run."""
        with self._lock:
            self._users -= 1
            if self._users > 0 or not self.connection.is_open:
                return
            self._disconnect(self.connection.take_link())

    def _disconnect(self, link: Link) -> None:
        _begun.discard(self)
        streams = self.connection.streams
        if streams.dropped:
            why = streams.error or "the summary service was away for too long"
            print(f"procsv: {streams.dropped} event records were not written: {why}", file=sys.stderr)
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
        """Ends the run when the program ends with its session open; its last state is saved all the same."""
        if self in _begun and self.connection.is_open:
            link = self.connection.link  # stays: the session's threads still use it
            self.record_failure(getattr(sys, "last_value", None))
            self.finish_session()
            self._disconnect(link)

    # -- the program and its sessions ------------------------------------------------------------------------
    def begin_session(self, finish_session: Callable[[], None]) -> None:
        """`finish_session` saves the last state, and ends the session, of a program that ends without doing so."""
        self._finish_session = finish_session

    def finish_session(self) -> None:
        """Ends the session that the program has left open, if there is one."""
        self._finish_session()

    def end_session(self) -> None:
        self._finish_session = lambda: None

    def set_owner(self, owner: object) -> None:
        """Lets `owner` train an eager program; None: nobody does any more."""
        self.owner = owner

    def begin_training(self, training: SupervisedTraining) -> None:
        self.training = training
        self.sessions_begun += 1

    def follow_training(self, training: SupervisedTraining) -> None:
        """Its source is attached: from here on its steps count, and its state can be captured."""
        self.heartbeat.count_training(training)
        self._capture_state = training.capture_state

    def capture_state(self, reason: Reason) -> None:
        """Takes a snapshot at the end of this step, if a training is under way."""
        self._capture_state(reason)

    def _visit_training(self) -> None:
        training = self.training  # another thread's: it may be gone by the next line
        if training is not None:
            training.visit_soon()

    def end_training(self, training: SupervisedTraining) -> None:
        if self.training is training:
            self.training = None
            self._capture_state = lambda _: None

    def expect_steps(self, total: int) -> None:
        """The program will end at step `total`, as a hook tells; -1: nothing is known."""
        self.steps_total = total

    def end_program(self, code: int) -> None:
        """The main module of the program has run to its end: `code` is what the process ends with, however its threads go on."""
        if self.training is not None and self.training.is_trained_here:
            self.finish_session()  # no other thread can make a step; killed before this is done, the program is not complete
        self.heartbeat.end_program(code)

    def record_failure(self, error: BaseException | None) -> None:
        """`error`, if any, has ended the training, and leaves it: the first one is what the run has ended with."""
        self.failure = self.failure or error

    def name_logdir(self, given: str) -> bool:
        """The program names its directory `given`; whether it has named none before, which stays the first."""
        is_first = not self.named_logdir
        self.named_logdir = self.named_logdir or given
        return is_first

    # -- news for the run ------------------------------------------------------------------------------------
    def train_in_step(self) -> None:
        """The program has made a collective strategy."""
        self.trains_in_step = True
        self.connection.tell_watchdog(TrainsInStep())

    def join_step_gate(self, gate: StepGate) -> None:
        """Before the program begins: the steps of this task pass `gate`."""
        self.step_gate = gate

    def report_first_step(self, body: FirstStepDone) -> None:
        """Reports that the first step after the start has ended."""
        self.connection.tell_watchdog(body)
        self.tell_imports("first step")

    def listen_for_imports(self, tell: Callable[[], None]) -> None:
        """Calls `tell` when the program asks for the run, and when its first step has ended, on the training thread: much is imported by then."""
        self._import_listeners = {"contact": tell, "first step": tell}

    def tell_imports(self, moment: ImportMoment) -> None:
        """Calls the listener, once for each moment."""
        tell = self._import_listeners.pop(moment, None)
        if tell is not None:
            tell()


_current: Runtime | None = None
_begun: set[Runtime] = set()  # connected to their runs


def _forget_in_fork() -> None:
    """A fork has no part in the run of its parent."""
    global _current
    _current = None
    _begun.clear()


os.register_at_fork(after_in_child=_forget_in_fork)


def set_current(runtime: Runtime) -> None:
    """Sets the run that this process trains for; called by the bootstrap."""
    global _current
    _current = runtime


def current() -> Runtime | None:
    """The runtime of `procsv launch`, in the trainer itself; None in any other process, its children included."""
    return _current


def watched() -> list[Runtime]:
    """The runtimes whose watchdogs watch this process now."""
    return list(_begun)
