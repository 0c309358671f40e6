"""Events and actions of the watchdog's core.

event_loop.py makes the events of what happens on pidfds, sockets and clocks, and carries the actions out; run.py only
decides.  Every event of a process carries the incarnation that it is about: news of a dead one changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from procsv.base.identity import TaskId
from procsv.base.outcome import NO_STEP, Exit, LastWords
from procsv.ipc.messaging.messages import Body, Finish, Message, TrainerExited
from procsv.ipc.messaging.standby_messages import Word
from procsv.ipc.shm.heartbeat import Heartbeat
from procsv.watchdog.core.restart_policy import Cause

AT_DISK, STOPPED = "at-disk", "stopped"  # what a process does: it waits for a disk, or is frozen by SIGSTOP


# -- events --------------------------------------------------------------------------------------------------
class Spawned(msgspec.Struct, frozen=True):
    task: TaskId
    incarnation: int
    pid: int


class NotSpawned(msgspec.Struct, frozen=True):
    """The system would not start the process (EAGAIN, EMFILE, ENOMEM)."""

    task: TaskId
    incarnation: int
    error: str


class Ended(msgspec.Struct, frozen=True):
    """A process is dead and reaped; with the last that is known of it."""

    task: TaskId
    incarnation: int
    exit: Exit
    beat: Heartbeat | None = None
    words: LastWords | None = None
    memory_step: int = NO_STEP  # of the newest whole snapshot it left
    stacks: str = ""  # what faulthandler has written (of a service: to its log)
    oom: str = ""  # the kernel's evidence that it killed a process for lack of memory
    log: str = ""  # of a service, and how it ends
    last_lines: tuple[str, ...] = ()


class TreeGone(msgspec.Struct, frozen=True):
    """Nothing of the dead trainer's tree is left, and the writer's lock is free."""

    task: TaskId
    incarnation: int


class Said(msgspec.Struct, frozen=True):
    """A message from the trainer or a service.  `answers`: what of ours it answers, if it does."""

    task: TaskId
    incarnation: int
    body: Body
    answers: TrainerExited | Finish | None = None


class ServiceReady(msgspec.Struct, frozen=True):
    """A service has acknowledged our Hello: it is serving."""

    task: TaskId
    incarnation: int


class Ticked(msgspec.Struct, frozen=True):
    """Time has passed; with the heartbeat of each process that has one."""

    beats: dict[TaskId, Heartbeat] = msgspec.field(default_factory=dict)
    memory_step: int = NO_STEP
    stopped: frozenset[TaskId] = frozenset()  # of the tasks: those that are frozen by SIGSTOP
    room_bytes: int | None = None  # free memory, if it was looked at
    doing: Mapping[TaskId, str] = msgspec.field(
        default_factory=dict
    )  # of services that are quiet: AT_DISK, STOPPED or ""


class StandbySaid(msgspec.Struct, frozen=True):
    """A standby has said a word on its line."""

    number: int
    word: Word


class Promoted(msgspec.Struct, frozen=True):
    """Standby `number` has answered: it is the task."""

    number: int
    task: TaskId
    incarnation: int
    pid: int


class NotPromoted(msgspec.Struct, frozen=True):
    """Standby `number` could not be told, and is as it was."""

    number: int
    task: TaskId
    incarnation: int
    error: str


class RecycleAsked(msgspec.Struct, frozen=True):
    """The trainer is to save, end, and be started again, free of charge."""

    why: str
    by_hand: bool  # then all failures are forgiven, and a delay is cut short
    task: TaskId | None = None  # None: every task


class StopAsked(msgspec.Struct, frozen=True):
    """End the run.  `now`: do not wait for the program."""

    source: str  # a signal's name, or "procsv stop"
    now: bool
    is_notice: bool = False  # the machine goes away


class PreemptAsked(msgspec.Struct, frozen=True):
    """The trainer is to have this notice, and be killed when the grace is over; then it is started again."""

    grace_s: float
    source: str
    task: TaskId | None = None  # None: every task


Event = (
    Spawned
    | NotSpawned
    | Ended
    | TreeGone
    | Said
    | ServiceReady
    | Ticked
    | RecycleAsked
    | StopAsked
    | PreemptAsked
    | StandbySaid
    | Promoted
    | NotPromoted
)


# -- actions -------------------------------------------------------------------------------------------------
class Spawn(msgspec.Struct, frozen=True):
    task: TaskId
    incarnation: int
    standby: str = ""  # of a standby: warm or hot


class Promote(msgspec.Struct, frozen=True):
    """Standby `number` is to be this task.  Answered by Promoted or NotPromoted, or it dies."""

    number: int
    task: TaskId
    incarnation: int


class Signal(msgspec.Struct, frozen=True):
    """To that process alone."""

    task: TaskId
    incarnation: int
    number: int


class KillTree(msgspec.Struct, frozen=True):
    """SIGKILL to the process, its group and all that descends from it."""

    task: TaskId
    incarnation: int


class ClearTree(msgspec.Struct, frozen=True):
    """The trainer is dead: kill what is left of its tree; TreeGone when the writer's lock is free."""

    task: TaskId
    incarnation: int


class Tell(msgspec.Struct, frozen=True):
    """Reliably, to the newest incarnation of `task`."""

    task: TaskId
    body: Message


class Journal(msgspec.Struct, frozen=True):
    event: str
    task: TaskId
    incarnation: int
    fields: dict[str, Any] = msgspec.field(default_factory=dict)


class WriteRun(msgspec.Struct, frozen=True):
    """run.json: the state has changed (a changed step is written at the reactor's own pace)."""


class Report(msgspec.Struct, frozen=True):
    """A crash report is to be written."""

    ended: Ended
    cause: Cause
    sentence: str  # the cause, for people
    step: int
    lost_steps: int
    resume_step: int  # NO_STEP: from the beginning


class Say(msgspec.Struct, frozen=True):
    """One message to the terminal; `traceback` follows it as it is."""

    text: str
    is_bad: bool = False
    traceback: str = ""


class Quit(msgspec.Struct, frozen=True):
    """The run is over: clear up and exit."""

    exit_code: int
    keep_memory: bool  # snapshots that could not be saved stay for the next launch


Action = Spawn | Promote | Signal | KillTree | ClearTree | Tell | Journal | WriteRun | Report | Say | Quit
