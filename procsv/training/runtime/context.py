"""Runtime of a training process: the link, the heartbeat, the event streams and stop requests of its run.

One per process under `procsv launch`, made by the bootstrap; otherwise one per Supervisor, which then starts the run's
watchdog itself (observer.py).  Supervisors and monitored sessions attach to it.  It knows no session.
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

from procsv.base import exit_codes
from procsv.base.clock import Clock
from procsv.base.errors import UserError
from procsv.base.identity import CHECKPOINT, WATCHDOG, TaskId, attempt_name
from procsv.base.journal.entries import AnyEntry
from procsv.base.outcome import FitPlace, Loss
from procsv.base.run.manifest import Reason
from procsv.base.run.paths import RunPaths
from procsv.base.system.stack_dump import DumpFile, arm_unless_armed
from procsv.base.system.system_clock import SystemClock
from procsv.faults.pending import Injected
from procsv.ipc.messaging.checkpoint_messages import UserSave
from procsv.ipc.messaging.message import Message
from procsv.ipc.messaging.start import Start
from procsv.ipc.messaging.watchdog_messages import (
    AdoptLogdir,
    FirstStepDone,
    LogdirAdopted,
    Note,
    StopTraining,
    TrainsInStep,
)
from procsv.ipc.shm.heartbeat import NOT_RETURNED, Phase, Snapshots
from procsv.ipc.shm.heartbeat_file import HeartbeatWriter
from procsv.training.runtime.event_streams import EventStreams
from procsv.training.runtime.importing import ImportWatch
from procsv.training.runtime.last_words import exit_code_of, write_last_words
from procsv.training.runtime.link import Link
from procsv.training.runtime.observer import Observer
from procsv.training.runtime.step_gate import StepGate

END_S_MAX = 10.0  # for the last messages
ADOPT_S_MAX = 60.0  # for the watchdog's answer
RESTORE_S = 1.0  # how often it looks whether its files in the runtime directory are still there
DIRECTORY_TRIES_MAX, DIRECTORY_PAUSE_S = 100, 0.1  # while there is no runtime directory
WAIT_S_MAX = 1e8  # three years stand in the heartbeat for a wait without end


class Runtime:
    """The trainer's end of its run, shared by reference count: `acquire_run` and `release_run`."""

    def __init__(
        self, paths: RunPaths, peers: tuple[TaskId, ...], start: Start | None = None, observer: Observer | None = None
    ) -> None:
        """`start` is given under `procsv launch`; otherwise `observer` makes one each time the run starts."""
        self.clock: Clock = SystemClock()
        self.paths = paths
        self.streams = EventStreams(self.clock)
        self.streams.on_need = self._wake
        self.streams.connected = lambda: self.held_run() if self._link is None else contextlib.nullcontext()
        self.observer = observer
        self.failure: BaseException | None = None  # the error that has ended the session, if any
        self.injected = Injected()  # a plan's faults for this process
        self.sequence = 0  # of the newest snapshot known
        self.is_numbered = False  # whether the checkpoint service has said which sequence that is
        self.stop_reason: Reason | None = None
        self.stop_asked_s = 0.0
        self.handles: Callable[[], int] = lambda: (
            0
        )  # the signals that the program has a handler of its own for, as bits
        self.first_random = random.getstate()  # before the program may seed it
        self.phase = Phase.IMPORT
        self._imports = ImportWatch()
        self.returned = NOT_RETURNED  # the program's exit code, once its main module has run to its end
        self.count_runs: Callable[[], int] = lambda: 0  # calls of sessions that have ended on the training thread
        self.count_steps: Callable[[], int] = lambda: 0  # of these, the steps: of several tasks each counts its own
        self.is_in_step: Callable[[], bool] = lambda: True  # in phase STEP; else the program's own code may be at work
        self.step = -1
        self.read_fit: Callable[[], FitPlace | None] = lambda: None  # how far a fit of Keras has come
        self.loss: Loss | None = None  # of that fit
        self.steps_total = -1  # at which the program will end, where a hook tells
        self.snapshots = Snapshots()  # their spacing now, for the heartbeat
        self.sessions_begun = 0  # that train, or have trained, in this process
        self.training: object = None  # the TrainingRun of the session that the process trains with now
        self.is_trained_here: Callable[[], bool] = lambda: False  # whether the calling thread alone makes its steps
        self.owner: object = None  # who trains an eager program, or is about to, from entering the run to leaving it
        self.finish_session: Callable[[], None] = lambda: None  # for a program that ends without ending it
        self.capture: Callable[[Reason], None] = lambda _: None  # takes a snapshot at the end of this step
        self.leave_to_program: Callable[[Reason, float], bool] = lambda _, __: False  # that handles a stop itself
        self.is_left = self.is_left_to_end_run = False  # it is left to end by itself; and the run ends with it
        self.on_contact: Callable[[], None] = lambda: None  # called once, when the program asks for the run
        self.on_ready: Callable[[], None] = lambda: None  # called once, on the training thread
        self.named_logdir = ""  # as the program has named it first
        self.interrupt: Callable[[], None] = lambda: None  # ends a program that has no session yet
        self.trains_in_step = False  # with the other tasks, by a collective strategy
        self.gate: Callable[[], None] | None = None  # where a hot standby sleeps until it is the trainer
        self.step_gate: StepGate | None = None  # where the chief holds the steps of the others while it captures
        self._start = start
        self._peers = peers
        self._link: Link | None = None
        self._heartbeat: HeartbeatWriter | None = None
        self._extended_s = self._restore_s = 0.0
        self.stacks: DumpFile | None = None  # what faulthandler writes to, where that is ours
        self._beating = threading.RLock()
        self._saves = 0  # under way
        self._users = 0
        self._lock = threading.RLock()
        self._stop_listeners: list[Callable[[Reason], None]] = []

    def _wake(self) -> None:
        link = self._link
        if link is not None:
            link.wake()

    @property
    def start(self) -> Start:
        assert self._start is not None, "the run has not started"
        return self._start

    @property
    def link(self) -> Link:
        assert self._link is not None, "the run has not started"
        return self._link

    @property
    def is_connected(self) -> bool:
        """Whether this process is in its run; a fork of one that is never is."""
        return self in _begun

    @property
    def told_snapshot_s(self) -> float | Literal["auto"]:
        """The command line's interval of snapshots: seconds, 0 for off, or "auto"."""
        return self._start.settings.snapshot_s if self._start is not None else "auto"

    def acquire_run(self) -> None:
        """Adds one reference; the first one opens the connection and, without `procsv launch`, starts the run."""
        with self._lock:
            if self.gate is not None:
                gate, self.gate = self.gate, None
                gate()
            self._users += 1
            if self._link is not None:
                on_contact, self.on_contact = self.on_contact, lambda: None
                on_contact()
                return
            try:
                if self.observer is not None:
                    self._start, self.stop_reason, self.failure = self.observer.open_run(), None, None
                    self.paths = self._start.paths
                self._open_link()
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
            self.start_talking()
            yield
        finally:
            self.release_run()

    def adopt_logdir(self, logdir: Path) -> None:
        """Makes `logdir`, which the program has named, that of the run.  UserError if it cannot be."""
        with self.held_run():
            told = self.link.ask(WATCHDOG, AdoptLogdir(str(logdir)), ADOPT_S_MAX)
        assert isinstance(told.body, LogdirAdopted), "the answer to AdoptLogdir"
        if told.body.error:
            raise UserError(told.body.error, exit_code=exit_codes.LOGDIR_UNUSABLE)
        self._start = self.start.with_logdir(str(logdir))

    def become_trainer(self, start: Start) -> None:
        """Makes this process trainer `start.incarnation`."""
        self._start = start

    def _open_link(self) -> None:
        start = self.start
        link = Link(start, self.clock, self.streams, self._peers)
        attempt = attempt_name(start.task, start.incarnation)
        self.streams.attach_to_run(start.paths.shm_dir, attempt, start.paths.run_dir)
        self._heartbeat = _open_heartbeat(start.paths.heartbeat(start.task, start.incarnation))
        link.on_tick += [lambda _: self._beat(), self._restore_files]
        link.on(StopTraining, self._stop_told)
        if self.observer is not None:
            self.observer.attach(link)
            self.stacks = arm_unless_armed(start.paths.stacks(start.task, start.incarnation))
            atexit.register(self._end_at_exit)
        _begun.add(self)
        self._link = link

    def start_talking(self) -> None:
        """Starts the link's thread; call it when all handlers that must miss nothing are in place."""
        if not self.link.is_talking:
            self.link.start_thread()

    def _beat(self) -> None:
        with self._beating:
            heartbeat = self._heartbeat
            if heartbeat is None:
                return
            heartbeat.returned = self.returned if self.has_ended else NOT_RETURNED
            phase = Phase.STOP if self.has_ended else self.phase
            heartbeat.phase = Phase.SAVE if self._saves else phase
            heartbeat.step, heartbeat.extended_s = self.step, self._extended_s
            heartbeat.snapshots, heartbeat.fit, heartbeat.loss = self.snapshots, self.read_fit(), self.loss
            heartbeat.importing = self._imports.look() if phase is Phase.IMPORT else ""
            heartbeat.work = len(sys.modules) if self.phase is Phase.IMPORT else self.count_runs()
            heartbeat.moved, heartbeat.in_step, heartbeat.handles = (
                self.count_steps(),
                self.is_in_step(),
                self.handles(),
            )
            heartbeat.beat(self.clock.monotonic())

    def end_program(self, code: int) -> None:
        """The main module of the program has run to its end: `code` is what the process ends with, however its threads go on."""
        if self.is_trained_here():
            self.finish_session()  # no other thread can make a step; killed before this is done, the program is not complete
        self.returned = code
        self._beat()  # a signal may end the process at any line from here on

    @property
    def has_ended(self) -> bool:
        """Whether the main module of the program has returned, and its training has ended, on whichever thread."""
        return self.returned != NOT_RETURNED and self.training is None

    def _restore_files(self, now_s: float) -> None:
        """Makes anew what of ours somebody has removed; not as long as its directory is gone, which the watchdog makes anew."""
        if now_s < self._restore_s:
            return
        self._restore_s = now_s + RESTORE_S
        with self._beating, contextlib.suppress(OSError):
            if self._heartbeat is not None:
                self._heartbeat.restore()
            if self.stacks is not None:
                self.stacks.restore()

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Marks the block as a save, which may take as long as one.  Any thread."""
        with self._beating:
            self._saves += 1
        try:
            yield
        finally:
            with self._beating:
                self._saves -= 1

    def extend(self, seconds: float) -> None:
        """Keeps the next `seconds` from counting as a hang.  Written to the heartbeat at once: the GIL may be held next."""
        self._extended_s = max(self._extended_s, self.clock.monotonic() + seconds)
        self._beat()

    @contextlib.contextmanager
    def waiting(self, seconds: float | None) -> Iterator[None]:
        """Marks the block as a wait for others, of at most `seconds` (None: without end), and no hang."""
        before_s = self._extended_s
        self.extend(WAIT_S_MAX if seconds is None else min(seconds, WAIT_S_MAX))
        try:
            yield
        finally:
            self._extended_s = before_s

    def write_step(self, step: int) -> None:
        """Writes `step` to the heartbeat now, from any thread; the link's thread writes it five times a second."""
        self.step = step
        self._beat()

    def release_run(self) -> None:
        """Releases one reference; the last one closes the connection and, without `procsv launch`, ends the run."""
        with self._lock:
            self._users -= 1
            if self._users > 0 or self._link is None:
                return
            link, self._link = self._link, None
            self._close_link(link)

    def _close_link(self, link: Link) -> None:
        _begun.discard(self)
        if self.streams.dropped:
            why = self.streams.error or "the summary service was away for too long"
            print(f"procsv: {self.streams.dropped} event records were not written: {why}", file=sys.stderr)
        try:
            if self.observer is not None:
                self.observer.finish_if_lost(link)
            link.close_link(END_S_MAX)
        finally:
            self.streams.detach_from_run()
            with self._beating:
                self._beat()  # the last step is what the journal will say
                if self._heartbeat is not None:
                    self._heartbeat.close()
                    self._heartbeat = None
            if self.observer is not None:
                atexit.unregister(self._end_at_exit)
                if self.stacks is not None:
                    self.stacks.disarm()
                    self.stacks = None
                write_last_words(self.start, self.failure, None, self.step)
                self.observer.close_run(exit_code_of(self.failure))

    def _end_at_exit(self) -> None:
        """Ends the run when the program ends with its session open; its last state is saved all the same."""
        link = self._link  # stays: the session's threads still use it
        if self in _begun and link is not None:
            self.failure = self.failure or getattr(sys, "last_value", None)
            self.finish_session()
            self._close_link(link)

    def tell_checkpoint(self, body: Message) -> None:
        self.link.send_reliable(CHECKPOINT, body)

    def tell_user_save(self, path: str) -> None:
        """Tells the service that the program has saved `path` by the supervised Saver, if there is a service."""
        if self._link is not None:
            self.tell_checkpoint(UserSave(path))

    def tell_watchdog(self, body: Message) -> None:
        """Sends `body` to the watchdog, unless the connection is closed."""
        link = self._link
        if link is not None:
            link.send_reliable(WATCHDOG, body)

    def add_tick(self, tick: Callable[[float], None]) -> None:
        """Calls `tick` with each turn of the link's thread, unless the connection is closed: a program may end at any time."""
        link = self._link
        if link is not None:
            link.on_tick.append(tick)

    def train_in_step(self) -> None:
        """The program has made a collective strategy."""
        self.trains_in_step = True
        self.tell_watchdog(TrainsInStep())

    def note(self, entry: AnyEntry) -> None:
        """Writes a line to the journal."""
        self.tell_watchdog(Note(entry))

    def recovered(self, body: FirstStepDone) -> None:
        """Reports that the first step after the start has ended."""
        self.tell_watchdog(body)
        on_ready, self.on_ready = self.on_ready, lambda: None
        on_ready()

    # -- stop requests ---------------------------------------------------------------------------------------
    def on_stop(self, listener: Callable[[Reason], None]) -> None:
        """Calls `listener` when this process is asked to stop; at once if it has been already."""
        with self._lock:
            self._stop_listeners.append(listener)
            reason = self.stop_reason
        if reason is not None:
            listener(reason)

    def forget_stop(self, listener: Callable[[Reason], None]) -> None:
        with self._lock, contextlib.suppress(ValueError):
            self._stop_listeners.remove(listener)

    def _stop_told(self, body: StopTraining) -> None:
        is_left = self.ask_to_stop(body.reason, body.grace_s)
        self.is_left_to_end_run = is_left and body.ends_run
        if body.ends_run and self.phase is Phase.IMPORT and not is_left:
            self.interrupt()

    @property
    def is_asked_to_stop(self) -> bool:
        """Whether the watchdog, a signal or the lifeline has asked; a program that handles it itself may not know yet."""
        return self.is_left or self.stop_reason is not None

    def ask_to_stop(self, reason: Reason, grace_s: float) -> bool:
        """As `request_stop`, but for a program that handles SIGTERM itself, which is left to end first; whether it is."""
        if self.is_left:
            return True
        if self.stop_reason is None:
            self.stop_asked_s = self.clock.monotonic()
            self.is_left = self.leave_to_program(reason, grace_s)
        if not self.is_left:
            self.request_stop(reason)
        return self.is_left

    def request_stop(self, reason: Reason) -> None:
        """Asks this process to save and end, for the watchdog, a signal or the lifeline.

        A signal comes first and always means "preempt"; the watchdog's message right behind it gives the reason.
        """
        with self._lock:
            if self.stop_reason is not None:
                if self.stop_reason == "preempt":
                    self.stop_reason = reason
                return
            self.stop_reason = reason
            if not self.is_left:
                self.stop_asked_s = self.clock.monotonic()
            listeners = list(self._stop_listeners)
        for listener in listeners:
            listener(reason)


def _open_heartbeat(path: Path) -> HeartbeatWriter:
    """A directory that was removed is made anew by the watchdog, which takes a moment."""
    pause = threading.Event()
    for _ in range(DIRECTORY_TRIES_MAX):
        with contextlib.suppress(FileNotFoundError):
            return HeartbeatWriter(path)
        pause.wait(DIRECTORY_PAUSE_S)
    return HeartbeatWriter(path)


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
