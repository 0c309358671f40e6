"""Events that the watchdog's core hears.

event_loop.py makes them of what happens on pidfds, sockets and clocks; run.py answers each with actions (actions.py).  Every
event of a process carries the incarnation that it is about: news of a dead one changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from procsv.base.identity import WATCHDOG, TaskId
from procsv.base.journal.entries import Entry
from procsv.base.outcome import NO_STEP, Exit, LastWords
from procsv.ipc.messaging.messages import Body
from procsv.ipc.messaging.watchdog_messages import Finish, TrainerExited
from procsv.ipc.shm.heartbeat import Heartbeat

AT_DISK, STOPPED = "at-disk", "stopped"  # what a process does: it waits for a disk, or is frozen by SIGSTOP


class Event(msgspec.Struct, frozen=True):
    """Base of all: what happens to a run."""


class Started(Event, frozen=True):
    task: TaskId
    incarnation: int
    pid: int
    how: Entry | None = None  # for the journal, where there is something to tell of it


class NotStarted(Event, frozen=True):
    """The system would not start the process (EAGAIN, EMFILE, ENOMEM); or its host has tried a way that has failed, and has another.

    `is_tried_again`: the latter, which was said: it is started again at once, when nothing is left of the process that was to be it.
    """

    task: TaskId
    incarnation: int
    error: str
    is_tried_again: bool = False


class Preparing(Event, frozen=True):
    """What the host of these tasks has under way for their next starts."""

    tasks: frozenset[TaskId]
    wait_s: float  # of a start that is due: how long it waits for that
    is_alive: bool  # a process is there for it


class Ended(Event, frozen=True):
    """A process is dead and reaped; with the last that is known of it."""

    task: TaskId
    incarnation: int
    exit: Exit
    beat: Heartbeat | None = None
    words: LastWords | None = None
    memory_step: int = NO_STEP  # of the newest whole snapshot it left
    stacks: str = ""  # what faulthandler has written (of a service: to its log)
    oom: str = ""  # the kernel's evidence that it killed a process for lack of memory
    fault: str = ""  # of the plan, that has ended it
    lost: str = ""  # why it is counted as dead: its machine is silent
    log: str = ""  # of a service, and how it ends
    last_lines: tuple[str, ...] = ()
    taken_step: int = NO_STEP  # of the newest whole snapshot that this very attempt has taken
    no_room: bool = False  # the disk of the logdir is full


class TreeGone(Event, frozen=True):
    """Nothing of the dead trainer's tree is left, and the writer's lock is free."""

    task: TaskId
    incarnation: int


class LogdirAdopted(Event, frozen=True):
    """The directory that the program has named is the run's logdir now."""

    task: TaskId
    incarnation: int
    logdir: str
    shown: str  # the same, for people
    saved_step: int = NO_STEP  # that the program resumes from there, as far as it can be seen


class Said(Event, frozen=True):
    """A message from the trainer or a service.  `answers`: what of ours it answers, if it does."""

    task: TaskId
    incarnation: int
    body: Body
    answers: TrainerExited | Finish | None = None


class ServiceReady(Event, frozen=True):
    """A service has acknowledged our Hello: it is serving."""

    task: TaskId
    incarnation: int


class Ticked(Event, frozen=True):
    """Time has passed; with the heartbeat of each process that has one."""

    beats: dict[TaskId, Heartbeat] = msgspec.field(default_factory=dict)
    memory_step: int = NO_STEP
    stopped: frozenset[TaskId] = frozenset()  # of the tasks: those that are frozen by SIGSTOP
    has_room: bool | None = None  # on the disk of the logdir, if it was looked at
    doing: Mapping[TaskId, str] = msgspec.field(
        default_factory=dict
    )  # of services that are quiet: AT_DISK, STOPPED or ""
    activity: Mapping[TaskId, int | None] = msgspec.field(
        default_factory=dict
    )  # of tasks without a session that were looked at: another number whenever a process of it has run


class FileState(msgspec.Struct, frozen=True):
    """What was seen of a path that the run stands on."""

    what: str  # as in run_files.py
    path: str
    identity: tuple[int, int] | None  # device and inode; None: nothing of ours lies there
    owner: TaskId = WATCHDOG  # who makes it anew
    is_said_by_others: bool = False  # if it is lost


class RunFilesChecked(Event, frozen=True):
    """The run's directories, sockets and locks were looked at; a directory comes before what lies in it."""

    states: tuple[FileState, ...]


class NotRestored(Event, frozen=True):
    """What was lost could not be made anew."""

    path: str
    error: str


class RecycleAsked(Event, frozen=True):
    """The trainer is to save, end, and be started again, free of charge."""

    why: str
    by_hand: bool  # then all failures are forgiven, and a delay is cut short
    task: TaskId | None = None  # None: every task


class StopAsked(Event, frozen=True):
    """End the run.  `now`: do not wait for the program."""

    source: str  # a signal's name, or "procsv stop"
    now: bool
    is_notice: bool = False  # the machine goes away
    spare: str = ""  # the host that can take its place, where it is one of several; "": there is none


class SignalCame(Event, frozen=True):
    """A signal that procsv gives no meaning of its own where the program handles it."""

    number: int


class LogdirTaken(Event, frozen=True):
    """Another machine has taken the lease of the logdir."""

    by: str


class MemberLost(Event, frozen=True):
    """Nothing is heard of the machine that has this task."""

    task: TaskId
    host: str
    silent_s: float
    spare: str = ""  # the host that can take its task over; "": there is none
    is_killed: bool = False  # its launch was, as another one there has shown


class MemberReplaced(Event, frozen=True):
    """The launch that has had this task, or place, was killed, and another one on its machine goes on there."""

    task: TaskId
    host: str
    before: int  # the process of the one that was killed
    pid: int


class SpareLost(Event, frozen=True):
    """Nothing is heard of a machine that has no task yet."""

    name: TaskId
    host: str
    silent_s: float


class CopyKept(Event, frozen=True):
    """Another machine has a copy of that snapshot of the chief, whole."""

    sequence: int


class PreemptAsked(Event, frozen=True):
    """The trainer is to have this notice, and be killed when the grace is over; then it is started again."""

    grace_s: float
    source: str
    task: TaskId | None = None  # None: every task
