"""Define the events that the watchdog's core handles.

event_loop.py and the hosts make them from what happens on pidfds, sockets and clocks. run.py
answers each with actions (actions.py). Every event about a process carries the number of its
attempt, so that late news of an earlier attempt changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from procsv.base.identity import WATCHDOG, TaskId
from procsv.base.journal.entries import Entry
from procsv.base.outcome import NO_STEP, Exit, LastWords
from procsv.ipc.messaging.message import Message
from procsv.ipc.messaging.messages import Body
from procsv.ipc.messaging.watchdog_messages import Finish, TrainerExited
from procsv.ipc.shm.heartbeat import Heartbeat

AT_DISK, STOPPED = "at-disk", "stopped"  # what a process is doing: waiting for a disk, or frozen by SIGSTOP


class Event(msgspec.Struct, frozen=True):
    """Base of all events."""


class Started(Event, frozen=True):
    task: TaskId
    incarnation: int
    pid: int
    how: Entry | None = None  # a journal entry about the way it was started, if any


class NotStarted(Event, frozen=True):
    """The process was not started.

    The system refused (EAGAIN, EMFILE, ENOMEM), the start was cancelled, its machine is lost, or
    the standby could not become the task. `is_tried_again`: only in the last case. The host has
    reported that failure, and the task is started again once nothing of the failed process is left.
    """

    task: TaskId
    incarnation: int
    error: str
    is_tried_again: bool = False


class Preparing(Event, frozen=True):
    """Whether the host of these tasks is preparing a standby for their next starts."""

    tasks: frozenset[TaskId]
    wait_s: float  # how long a due start waits for the standby; 0.0 if it does not wait
    is_alive: bool  # the standby has a process


class Ended(Event, frozen=True):
    """A process is dead and reaped, or counts as dead (`lost`). Holds the last facts about it."""

    task: TaskId
    incarnation: int
    exit: Exit
    beat: Heartbeat | None = None
    words: LastWords | None = None
    memory_step: int = NO_STEP  # of the task's newest whole snapshot in memory, whichever attempt took it
    stacks: str = ""  # faulthandler's output (for a service, from its log)
    oom: str = ""  # the kernel's evidence of an out-of-memory kill
    fault: str = ""  # the fault of the plan that ended it
    lost: str = ""  # why it counts as dead although its end was not seen (TaskLost)
    log: str = ""  # the path of a service's log
    last_lines: tuple[str, ...] = ()  # of that log
    taken_step: int = NO_STEP  # of the newest whole snapshot in memory that this attempt took
    no_room: bool = False  # the logdir's disk is full


class TreeGone(Event, frozen=True):
    """The dead trainer's tree is gone, and the writer's lock is free."""

    task: TaskId
    incarnation: int


class Noted(Event, frozen=True, kw_only=True):
    """Something has happened that is journaled, printed and shown in run.json, and leads to nothing
    else.
    """

    task: TaskId
    incarnation: int
    entry: Entry
    text: str
    is_bad: bool = False


class Forwarded(Event, frozen=True):
    """A message for a task, passed on if the task runs."""

    task: TaskId
    body: Message


class Said(Event, frozen=True):
    """A message from the trainer or a service. `answers`: the message of ours that it answers, if
    any.
    """

    task: TaskId
    incarnation: int
    body: Body
    answers: TrainerExited | Finish | None = None


class ServiceReady(Event, frozen=True):
    """A service has acknowledged our Hello, so it is serving."""

    task: TaskId
    incarnation: int


class Ticked(Event, frozen=True):
    """Time has passed; with the heartbeat of each process that has one."""

    beats: dict[TaskId, Heartbeat] = msgspec.field(default_factory=dict)
    memory_step: int = NO_STEP  # of the chief's newest whole snapshot in memory
    stopped: frozenset[TaskId] = frozenset()  # the tasks that are frozen by SIGSTOP, or by a debugger
    traced: frozenset[TaskId] = frozenset()  # the frozen tasks that a debugger holds
    has_room: bool | None = None  # whether the logdir's disk has room, if it was checked
    # What each service that has shown no progress for a while is doing: AT_DISK, STOPPED or "".
    doing: Mapping[TaskId, str] = msgspec.field(default_factory=dict)
    # For each task that was checked, a number that changes whenever one of its processes has run.
    activity: Mapping[TaskId, int | None] = msgspec.field(default_factory=dict)


class FileState(msgspec.Struct, frozen=True):
    """The observed state of a path that the run needs."""

    what: str  # as in run_files.py
    path: str
    identity: tuple[int, int] | None  # device and inode; None: nothing of ours is there
    owner: TaskId = WATCHDOG  # who recreates it
    is_reported_elsewhere: bool = False  # others tell the user of its loss, so it is only journaled


class RunFilesChecked(Event, frozen=True):
    """The run's directories, sockets and locks were checked. A directory comes before what it
    contains.
    """

    states: tuple[FileState, ...]


class NotRestored(Event, frozen=True):
    """A lost file could not be recreated."""

    path: str
    error: str


class RecycleAsked(Event, frozen=True):
    """Let the trainer save and end, and restart it; this does not count as a failure."""

    why: str
    by_hand: bool  # a user asked: forgive all failures, and start without delay
    task: TaskId | None = None  # None: every task


class StopAsked(Event, frozen=True):
    """End the run. `now`: do not wait for the program."""

    source: str  # a signal's name, or "procsv stop"
    now: bool
    is_notice: bool = False  # a preemption notice
    spare: str = ""  # the host that can replace the machine that must leave; "" if none


class SignalCame(Event, frozen=True):
    """A signal that procsv leaves to the program if the program handles it."""

    number: int


class LogdirTaken(Event, frozen=True):
    """Another machine has taken the lease of the logdir."""

    by: str


class TaskLost(Event, frozen=True, kw_only=True):
    """A task counts as dead, though its end was not seen."""

    task: TaskId  # a spare launch has no task: this is the name of its place
    why: str  # the evidence of its end
    entry: Entry
    text: str
    host: str = ""  # the machine whose loss ends the run; "" if another launch there continues, and restarts the task
    spare: str = ""  # the host that can take over, so that the run begins again at once; "" if none


class PreemptAsked(Event, frozen=True):
    """Give the trainer this notice, kill it at the end of the grace, and restart it."""

    grace_s: float
    source: str
    task: TaskId | None = None  # None: every task
