"""Define the events that the watchdog's core handles.

event_loop.py and the hosts make events from what happens on pidfds, sockets and clocks. For each
event, run.py returns actions (actions.py). Every event about a process has the number of the
process's attempt, so the core can ignore late news of an earlier attempt.
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

# What a process is doing: waiting for a disk, or stopped by SIGSTOP.
AT_DISK, STOPPED = "at-disk", "stopped"


class Event(msgspec.Struct, frozen=True):
    """Base of all events."""


class Started(Event, frozen=True):
    task: TaskId
    incarnation: int
    pid: int
    how: Entry | None = None  # a journal entry about the way it was started, if any


class NotStarted(Event, frozen=True):
    """The process was not started.

    There are four reasons: the system refused (EAGAIN, EMFILE, ENOMEM), the start was cancelled,
    the task's machine is lost, or the standby could not become the task. In the last case,
    `is_tried_again` is set: the host has reported the failure, and the task is started again once
    the failed process and its children are gone.
    """

    task: TaskId
    incarnation: int
    error: str
    is_tried_again: bool = False


class Preparing(Event, frozen=True):
    """What the host of these tasks is doing about a standby for their next starts."""

    tasks: frozenset[TaskId]
    wait_s: float  # how long a due start waits for the standby; 0.0: it does not wait
    is_alive: bool  # the standby's process exists


class Ended(Event, frozen=True):
    """A process is dead and reaped, or counts as dead (`lost`).

    The fields are what is known of it and of its end.
    """

    task: TaskId
    incarnation: int
    exit: Exit
    beat: Heartbeat | None = None  # the last one
    words: LastWords | None = None  # what the process wrote as it died
    memory_step: int = NO_STEP  # of the task's newest complete snapshot in memory; any attempt may have taken it
    stacks: str = ""  # faulthandler's output (for a service, from its log)
    oom: str = ""  # the kernel's evidence of an out-of-memory kill
    fault: str = ""  # the planned fault that ended it
    lost: str = ""  # why it counts as dead although its end was not seen (TaskLost)
    log: str = ""  # the path of a service's log
    last_lines: tuple[str, ...] = ()  # of the service's log
    taken_step: int = NO_STEP  # of the newest complete snapshot in memory that this attempt took
    no_room: bool = False  # the logdir's disk is full


class TreeGone(Event, frozen=True):
    """The dead trainer's tree is gone, and the writer's lock is free."""

    task: TaskId
    incarnation: int


class Noted(Event, frozen=True, kw_only=True):
    """Something that the core only reports.

    It journals `entry`, prints `text` and writes run.json.
    """

    task: TaskId
    incarnation: int
    entry: Entry
    text: str
    is_bad: bool = False


class Forwarded(Event, frozen=True):
    """A message that the core passes on to a task, if the task is running."""

    task: TaskId
    body: Message


class Said(Event, frozen=True):
    """A message from a task or a service.

    `answers`: the message from the watchdog that `body` answers; None if it answers none of these.
    """

    task: TaskId
    incarnation: int
    body: Body
    answers: TrainerExited | Finish | None = None


class ServiceReady(Event, frozen=True):
    """A service has acknowledged the watchdog's Hello, so it is ready to serve."""

    task: TaskId
    incarnation: int


class Ticked(Event, frozen=True):
    """The regular look at all processes: their heartbeats, and what else was checked."""

    beats: dict[TaskId, Heartbeat] = msgspec.field(default_factory=dict)
    memory_step: int = NO_STEP  # of the chief's newest complete snapshot in memory
    stopped: frozenset[TaskId] = frozenset()  # the tasks that are stopped, by SIGSTOP or by a debugger
    traced: frozenset[TaskId] = frozenset()  # the stopped tasks that a debugger holds
    has_room: bool | None = None  # whether the logdir's disk has room; None: not checked
    # For each service that has shown no progress for a while, what it is doing: AT_DISK, STOPPED or "".
    doing: Mapping[TaskId, str] = msgspec.field(default_factory=dict)
    # For each task that was checked, a number that changes whenever one of its processes has run.
    activity: Mapping[TaskId, int | None] = msgspec.field(default_factory=dict)


class FileState(msgspec.Struct, frozen=True):
    """A path that the run needs, as the last check found it."""

    what: str  # one of the words in run_files.py: LOGDIR, RUN_DIR, SHM_DIR, SOCKET, LOCK
    path: str
    identity: tuple[int, int] | None  # device and inode; None: the run's own file is not there
    owner: TaskId = WATCHDOG  # the process that recreates it
    is_reported_elsewhere: bool = False  # another part of procsv tells the user of its loss, so only journal the loss


class RunFilesChecked(Event, frozen=True):
    """The result of a check of the run's directories, sockets and locks.

    In `states`, each directory comes before the files in it.
    """

    states: tuple[FileState, ...]


class NotRestored(Event, frozen=True):
    """A lost file could not be recreated."""

    path: str
    error: str


class RecycleAsked(Event, frozen=True):
    """A request: let the task save and end, then restart it. This does not count as a failure."""

    why: str
    by_hand: bool  # a user asked, so forget all failures so far, and restart without delay
    task: TaskId | None = None  # None: every task


class StopAsked(Event, frozen=True):
    """A request: end the run. `now`: kill the program instead of waiting for it."""

    source: str  # a signal's name, or "procsv stop"
    now: bool
    is_notice: bool = False  # a preemption notice
    spare: str = ""  # the host that can replace the machine that is lost or must leave; "" if none


class SignalCame(Event, frozen=True):
    """The watchdog received a signal that does not always end the run.

    If a program handles the signal, the core passes it on. Otherwise the signal has its default
    meaning (procsv/base/signals.py).
    """

    number: int


class LogdirTaken(Event, frozen=True):
    """Another machine has taken the lease of the logdir."""

    by: str


class TaskLost(Event, frozen=True, kw_only=True):
    """A task on another machine counts as dead, although nobody saw its process end."""

    task: TaskId
    why: str  # the evidence of its end
    entry: Entry
    text: str
    # The machine whose loss ends the run. "": another launch on that machine takes over, and the run restarts the task.
    host: str = ""
    spare: str = ""  # the host that can replace the lost machine, so that the run restarts at once; "" if none


class PreemptAsked(Event, frozen=True):
    """A request: give the task a preemption notice, kill it if it still runs after `grace_s`, and
    restart it.
    """

    grace_s: float
    source: str
    task: TaskId | None = None  # None: every task
