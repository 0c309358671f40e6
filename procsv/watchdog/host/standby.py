"""Decide when to make a standby, when it becomes the trainer, and what its death means.

Usually a fork of the standby becomes the trainer, and the standby stays. Used by local_host.py,
which carries out the actions. Pure: a table from (state, event) to (state, actions), plus the rules
for waiting. An event without a row in the table raises an error.

A warm standby has imported what the program imports, and can be forked for each new trainer. A hot
standby has also run the program, as the next attempt, up to the point where the program opens its
session. So it can become only that attempt, and only once.

The death of a standby never counts as a failure of the trainer. If a trainer was waiting for this
standby, the trainer starts cold at once. Only the next standby is delayed.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from enum import Enum, auto

import msgspec

from procsv.base.errors import ProcsvBug
from procsv.base.identity import STANDBY, TRAINER, TaskId
from procsv.base.journal import entries
from procsv.base.outcome import NO_STEP
from procsv.base.signals import HURRY_SIGNAL
from procsv.base.units import show_duration, show_size
from procsv.ipc.messaging.fd_messages import StandbyWord, Waiting
from procsv.watchdog.core.actions import KillTree, Say, Signal, StartAttempt, WriteEntry
from procsv.watchdog.core.events import Ended
from procsv.watchdog.core.restarts.causes import Cause, find_cause

ROOM_BYTES_MIN = 2**30  # free memory needed to make a standby, which takes about half of this
ROOM_LOOK_S = 60.0  # check memory again after this time, if it was short
# How long a due trainer waits for a standby that is still importing. The standby is ahead of a cold start, which would
# have to begin the same imports.
WAIT_S_MAX = 30.0
WAIT_FIRST_S_MAX = 300.0  # the same for the first trainer, whose own imports would take as long
# Time between two signals that tell an importing standby to hurry. They are repeated, because a standby that has not
# installed its handler yet ignores the signal.
HURRY_S = 1.0
# The standby normally answers the order to become a trainer within a millisecond. If it has not answered after this
# time, it is killed and the trainer starts cold.
PROMOTE_S_MAX = 5.0
LEAVE_S_MAX = 5.0  # how long a leaving standby may clean up once no task runs; then it is killed
DELAY_S_MIN, DELAY_FACTOR, DELAY_S_MAX = 1.0, 4.0, 900.0  # before the next standby, after one has failed
DEATHS_PERIOD_S = 3600.0  # a failure of a standby counts for this long, and lengthens the delay
DEATHS_SAID = 4  # tell the user about a death when this many failures count


class StandbyState(Enum):
    # A standby is made once the trainer has recorded its imports, or before the first trainer if an earlier launch
    # recorded them.
    ABSENT = auto()
    IMPORTING = auto()  # started; imports what the trainer has imported
    WAITING = auto()  # ready to become the trainer
    PROMOTING = auto()  # told to become the trainer; has not answered yet
    LEAVING = auto()  # asked to end, or killed: it is not needed, or could not become the trainer

    @property
    def word(self) -> str:
        return self.name.lower()


class StandbyEvent(Enum):
    WANTED = auto()  # a standby is due, and memory has room for it
    NOT_SPAWNED = auto()
    IMPORTED = auto()
    MORE = auto()  # the trainer has recorded more imports since this standby started or was last told to import
    TAKEN = auto()  # a trainer must start, and the standby is to become it
    BEGUN = auto()  # the standby has become the trainer
    FORKED = auto()  # a fork of the standby has become the trainer
    NOT_PROMOTED = auto()  # the standby has not become the trainer, see NotPromoted
    LATE = auto()  # the answer, or the end of a leaving standby, is overdue
    DIED = auto()
    UNWANTED = auto()  # the run ends, or the attempt that a hot standby prepares was started cold


class StandbyAction(Enum):
    SPAWN = auto()
    KILL = auto()
    RELEASE = auto()  # make the standby clean up and end; kill a hot one
    COUNT = auto()  # count a failure of the standby, which delays the next standby
    TELL = auto()  # tell the standby that there is more to import


# -- messages from it ------------------------------------------------------------------------------------------
class StandbySaid(msgspec.Struct, frozen=True):
    """A standby has sent a message on its channel."""

    number: int
    word: StandbyWord


class Promoted(msgspec.Struct, frozen=True):
    """Standby `number` has answered. It has become the task, or a fork of it has, and the standby
    waits again.
    """

    number: int
    task: TaskId
    incarnation: int
    pid: int
    is_fork: bool = False


class NotPromoted(msgspec.Struct, frozen=True):
    """The standby has not become the task. It is still a standby, and will be killed.

    Either the order could not be sent, or the standby could not carry it out, or the standby has
    forked, but the watchdog lacks the file descriptor that it needs to watch the fork.
    """

    task: TaskId
    incarnation: int
    error: str


# -- orders ----------------------------------------------------------------------------------------------------
class MakeStandby(msgspec.Struct, frozen=True):
    number: int
    mode: str  # warm or hot


class Promote(msgspec.Struct, frozen=True):
    """Make standby `number`, or a fork of it, this task. Answered by Promoted or NotPromoted, or by
    the standby's death.
    """

    number: int
    task: TaskId
    incarnation: int


class ImportMore(msgspec.Struct, frozen=True):
    """Let standby `number` import what the trainer has recorded since. Answered by StandbySaid, or
    by the standby's death.
    """

    number: int


Todo = StartAttempt | MakeStandby | Promote | ImportMore | Signal | KillTree | WriteEntry | Say

_S, _E, _A = StandbyState, StandbyEvent, StandbyAction

TRANSITIONS: Mapping[tuple[StandbyState, StandbyEvent], tuple[StandbyState, tuple[StandbyAction, ...]]] = {
    (_S.ABSENT, _E.WANTED): (_S.IMPORTING, (_A.SPAWN,)),
    (_S.ABSENT, _E.UNWANTED): (_S.ABSENT, ()),
    (_S.IMPORTING, _E.NOT_SPAWNED): (_S.ABSENT, (_A.COUNT,)),
    (_S.IMPORTING, _E.IMPORTED): (_S.WAITING, ()),
    (_S.IMPORTING, _E.DIED): (_S.ABSENT, (_A.COUNT,)),
    (_S.IMPORTING, _E.UNWANTED): (_S.LEAVING, (_A.RELEASE,)),
    (_S.WAITING, _E.MORE): (_S.IMPORTING, (_A.TELL,)),
    (_S.WAITING, _E.TAKEN): (_S.PROMOTING, ()),
    (_S.WAITING, _E.DIED): (_S.ABSENT, (_A.COUNT,)),
    (_S.WAITING, _E.UNWANTED): (_S.LEAVING, (_A.RELEASE,)),
    (_S.PROMOTING, _E.BEGUN): (_S.ABSENT, ()),
    (_S.PROMOTING, _E.FORKED): (_S.WAITING, ()),
    (_S.PROMOTING, _E.NOT_PROMOTED): (_S.LEAVING, (_A.KILL, _A.COUNT)),
    (_S.PROMOTING, _E.LATE): (_S.PROMOTING, (_A.KILL,)),
    (_S.PROMOTING, _E.DIED): (_S.ABSENT, (_A.COUNT,)),
    (_S.PROMOTING, _E.UNWANTED): (_S.PROMOTING, ()),  # once it is the trainer, the run will end it
    (_S.LEAVING, _E.IMPORTED): (_S.LEAVING, ()),
    (_S.LEAVING, _E.DIED): (_S.ABSENT, ()),
    (_S.LEAVING, _E.LATE): (_S.LEAVING, (_A.KILL,)),
    (_S.LEAVING, _E.UNWANTED): (_S.LEAVING, ()),
}


class Standby(msgspec.Struct):
    """The standby of one machine: at most one process at a time. The processes are numbered. `out`
    collects the actions.
    """

    mode: str  # off, warm or hot
    out: list[Todo]
    state: StandbyState = StandbyState.ABSENT
    number: int = 0  # of the newest process; the journal and the name of its log call it the incarnation
    pid: int = 0
    _is_wanted: bool = False
    _has_started: bool = False  # a task has been started, from a standby or cold
    _due_s: float = 0.0  # the earliest time for the next standby
    _becomes: tuple[TaskId, int] = (TRAINER, 0)  # the task and attempt that the standby must become
    _late_s: float | None = None  # when the answer, or the end of a leaving standby, is overdue
    _why_killed: str = ""
    _deaths_s: list[float] = msgspec.field(default_factory=list)
    _hurry_s: float = 0.0  # the earliest time for the next hurry signal
    _is_short: bool = False  # memory is short; reported once
    _is_single: bool = False  # a standby cannot be forked; reported once
    _was_ready: bool = False  # the newest standby has been ready at least once
    _has_more: bool = False  # see StandbyEvent.MORE

    # -- for a start ---------------------------------------------------------------------------------------
    @property
    def is_ready(self) -> bool:
        return self.state is StandbyState.WAITING

    @property
    def wait_s(self) -> float:
        """How long a due trainer waits for the standby to be ready.

        0.0 if the standby is ready, or if no standby is on its way. Also 0.0 for a hot standby: no
        trainer waits for a hot one.
        """
        is_first = self._is_wanted and not (self.number or self._has_started or self._is_short)
        if self.mode != "warm" or not (is_first or self.state in (StandbyState.IMPORTING, StandbyState.PROMOTING)):
            return 0.0
        return WAIT_S_MAX if self._has_started else WAIT_FIRST_S_MAX

    def expedite_import(self, now_s: float) -> None:
        """Hurry a standby that is still importing, because a due task waits for it.

        Until this signal, the standby lets other processes use the CPU cores first.
        """
        if self.mode == "warm" and self.state is StandbyState.IMPORTING and self.pid and now_s >= self._hurry_s:
            self._hurry_s = now_s + HURRY_S
            self.out.append(Signal(STANDBY, self.number, HURRY_SIGNAL))

    def start_of(self, task: TaskId, incarnation: int, now_s: float) -> StartAttempt | Promote:
        """Return the order that starts a task: promote the standby, or start cold."""
        self._has_started = True
        if not self.is_ready:
            # A hot standby that is not ready yet is already running the program as this attempt. This attempt now
            # starts cold, so the standby must end.
            if self.mode == "hot":
                self.unwanted(now_s, "the trainer was started without it")
            self._is_wanted = False  # until that trainer has recorded its imports
            return StartAttempt(task, incarnation)
        self._becomes, self._late_s = (task, incarnation), now_s + PROMOTE_S_MAX
        self.handle(StandbyEvent.TAKEN, now_s)
        return Promote(self.number, task, incarnation)

    def is_becoming(self, task: TaskId, incarnation: int) -> bool:
        """Whether the standby was told to become that attempt, and has not answered yet."""
        return self.state is StandbyState.PROMOTING and self._becomes == (task, incarnation)

    # -- what happens --------------------------------------------------------------------------------------
    def loaded(self, now_s: float) -> None:
        """The trainer has recorded its imports so far, so a standby can import them."""
        self._is_wanted = self.mode != "off"
        self._has_more = self.mode == "warm"
        self._tell_more(now_s)

    def _tell_more(self, now_s: float) -> None:
        if self._has_more and self.is_ready:
            self.handle(StandbyEvent.MORE, now_s)

    def make_before_first_trainer(self) -> None:
        """In mode warm, have a standby made before the first trainer.

        An earlier launch recorded the program's imports, so the standby can import them once, for
        all trainers.
        """
        self._is_wanted = self.mode == "warm"

    def trainer_died(self) -> None:
        """Make no new standby until the next trainer has recorded its imports.

        A standby that exists is kept.
        """
        self._is_wanted = False

    def unwanted(self, now_s: float, why: str) -> None:
        """No standby is needed, for now or for the rest of the run."""
        self._is_wanted = False
        self._why_killed = self._why_killed or why
        self.handle(StandbyEvent.UNWANTED, now_s)

    def no_task_runs(self, now_s: float) -> None:
        """Limit the time of a leaving standby, which now has only its clean-up left to do."""
        if self.state is StandbyState.LEAVING and self._late_s is None:
            self._late_s = now_s + LEAVE_S_MAX

    def is_due(self, now_s: float) -> bool:
        """Whether a standby would be made now, if there is room."""
        return self._is_wanted and self.state is StandbyState.ABSENT and now_s >= self._due_s

    def next_due_s(self) -> float | None:
        """Return when `check_deadlines` will have something to do."""
        if self.state in (StandbyState.PROMOTING, StandbyState.LEAVING):
            return self._late_s
        return self._due_s if self._is_wanted and self.state is StandbyState.ABSENT else None

    def check_deadlines(self, now_s: float, room_bytes: int | None) -> None:
        """Act on what is overdue, and make a standby that is due.

        `room_bytes`: the free memory, if it was checked.
        """
        if self._late_s is not None and now_s >= self._late_s:
            self._late_s = None
            if self.state is StandbyState.PROMOTING:
                self._why_killed = f"it did not answer within {show_duration(PROMOTE_S_MAX)}"
            self.handle(StandbyEvent.LATE, now_s)
        if room_bytes is not None and self.is_due(now_s):
            if room_bytes < ROOM_BYTES_MIN:
                self._wait_for_room(room_bytes, now_s)
            else:
                self._is_short = False
                self.handle(StandbyEvent.WANTED, now_s)

    def _wait_for_room(self, room_bytes: int, now_s: float) -> None:
        self._due_s = now_s + ROOM_LOOK_S
        if not self._is_short:
            self._is_short = True
            needed, free = show_size(ROOM_BYTES_MIN), show_size(max(0, room_bytes))
            text = f"no standby, so restarts take longer: a standby needs {needed} of memory, but only {free} is free"
            self.out.append(Say(text))

    def not_spawned(self, now_s: float) -> None:
        self.handle(StandbyEvent.NOT_SPAWNED, now_s)

    def said(self, said: StandbySaid, now_s: float) -> None:
        if said.number == self.number and isinstance(said.word, Waiting) and self.state is not StandbyState.PROMOTING:
            self.handle(StandbyEvent.IMPORTED, now_s)
            self._tell_more(now_s)  # if the trainer has recorded more imports, the standby is not ready yet
            if self.is_ready and not self._was_ready:
                self._was_ready = True
                ready = entries.StandbyReady(pid=self.pid, modules=said.word.modules, seconds=said.word.seconds)
                self.out.append(WriteEntry(ready, STANDBY, self.number))
            if said.word.no_fork and self.mode == "warm" and not self._is_single:
                self._is_single = True
                text = (
                    f"procsv cannot fork the standby ({said.word.no_fork}), so after each restart a new standby takes "
                    "seconds to be ready"
                )
                self.out.append(Say(text))

    def promoted(self, event: Promoted, now_s: float) -> None:
        self._late_s = None
        if event.is_fork:
            self.handle(StandbyEvent.FORKED, now_s)
            if self._why_killed:  # the run has begun to end
                self.handle(StandbyEvent.UNWANTED, now_s)
        else:
            self.pid = 0
            self.handle(StandbyEvent.BEGUN, now_s)

    def not_promoted(self, event: NotPromoted, now_s: float) -> None:
        """The standby has not become the task (see NotPromoted), so end it."""
        self._late_s = None
        self._why_killed = event.error
        self.handle(StandbyEvent.NOT_PROMOTED, now_s)
        self.out.append(
            Say(f"the standby cannot become the trainer ({event.error}), so the trainer starts cold", is_bad=True)
        )

    def died(self, ended: Ended, now_s: float) -> None:
        """The standby's process is dead. It may have died before it answered an order to become the
        trainer.
        """
        was, cause = self.state, self._cause(ended)
        exited = entries.Exited(
            pid=self.pid,
            code=ended.exit.code,
            signal=ended.exit.signal_name,
            cause=cause.word,
            evidence=cause.evidence,
            step=NO_STEP,
        )
        self.out.append(WriteEntry(exited, STANDBY, self.number))
        self.pid, self._late_s = 0, None
        self.handle(StandbyEvent.DIED, now_s)
        if was is StandbyState.PROMOTING:
            text = f"the standby ended ({ended.exit}) before it became the trainer, so the trainer starts cold"
            self.out.append(Say(text, is_bad=True))
        elif self.mode == "hot" and was is StandbyState.IMPORTING and ended.exit.code is not None:
            self.mode = "warm"
            text = (
                f"no hot standby: the program ended ({ended.exit}) before it opened its session, see procsv/logs/"
                f"standby.{self.number}.log; using a warm one instead"
            )
            self.out.append(Say(text, is_bad=True))
        elif was is not StandbyState.LEAVING and len(self._deaths_s) == DEATHS_SAID:
            text = (
                f"the standby keeps failing ({cause.evidence}), see procsv/logs/standby.{self.number}.log; "
                "training continues without one for a while"
            )
            self.out.append(Say(text, is_bad=True))

    def _cause(self, ended: Ended) -> Cause:
        return find_cause(ended.exit, None, self.state is StandbyState.LEAVING, self._why_killed)

    # -- transitions --------------------------------------------------------------------------------------
    def handle(self, event: StandbyEvent, now_s: float) -> None:
        row = TRANSITIONS.get((self.state, event))
        if row is None:
            raise ProcsvBug(f"standby {self.number}: {event.name} in {self.state.name}")
        self.state, todo = row
        for action in todo:
            match action:
                case StandbyAction.SPAWN:
                    self.number += 1
                    self._why_killed, self._was_ready, self._has_more = "", False, False
                    self.out.append(MakeStandby(self.number, self.mode))
                case StandbyAction.KILL:
                    is_becoming = self.state is StandbyState.PROMOTING
                    self.out.append(KillTree(*(self._becomes if is_becoming else (STANDBY, self.number))))
                # A hot standby has run part of the program, so as it ends it would run the program's clean-up. Kill it.
                case StandbyAction.RELEASE if self.mode == "hot":
                    self.out.append(KillTree(STANDBY, self.number))
                case StandbyAction.RELEASE:
                    self.out.append(Signal(STANDBY, self.number, signal.SIGTERM))
                case StandbyAction.TELL:
                    self._has_more = False
                    self.out.append(ImportMore(self.number))
                case StandbyAction.COUNT:
                    self._count(now_s)

    def _count(self, now_s: float) -> None:
        self._deaths_s = [death_s for death_s in self._deaths_s if now_s - death_s < DEATHS_PERIOD_S] + [now_s]
        self._due_s = now_s + min(DELAY_S_MIN * DELAY_FACTOR ** (len(self._deaths_s) - 1), DELAY_S_MAX)
