"""Define the actions that the watchdog's core decides on and event_loop.py carries out."""

from __future__ import annotations

import msgspec

from procsv.base.identity import TaskId
from procsv.base.journal.entries import Entry
from procsv.ipc.messaging.message import Message
from procsv.watchdog.core.events import Ended
from procsv.watchdog.core.restarts.causes import Cause


class StartAttempt(msgspec.Struct, frozen=True):
    """Start that attempt of a task or service. Answered by Started or NotStarted."""

    task: TaskId
    incarnation: int
    due_s: float = 0.0  # the monotonic time since which the start is due; ignored for a service


class EndStarts(msgspec.Struct, frozen=True):
    """The run is ending: prepare nothing for another start."""


class Signal(msgspec.Struct, frozen=True):
    """Send a signal to that process only."""

    task: TaskId
    incarnation: int
    number: int


class KillTree(msgspec.Struct, frozen=True):
    """Send SIGKILL to the process, its group and all its descendants."""

    task: TaskId
    incarnation: int


class ClearTree(msgspec.Struct, frozen=True):
    """The trainer is dead: kill what is left of its tree, and answer with TreeGone when the
    writer's lock is free.

    `has_ended`: it ended normally by itself, so processes that it left may be working, and ending
    them must be reported.
    """

    task: TaskId
    incarnation: int
    has_ended: bool = False


class Tell(msgspec.Struct, frozen=True):
    """Send a message reliably to the newest attempt of `task`. A task's attempt that has not sent
    its Hello yet misses it.
    """

    task: TaskId
    body: Message


class WriteEntry(msgspec.Struct, frozen=True):
    entry: Entry
    task: TaskId
    incarnation: int


class WriteRun(msgspec.Struct, frozen=True):
    """Write run.json, because the state has changed. (event_loop.py also writes it regularly.)"""


class Report(msgspec.Struct, frozen=True):
    """Write a crash report."""

    ended: Ended
    cause: Cause
    sentence: str  # the cause, for people
    step: int
    lost_steps: int
    resume_step: int  # NO_STEP: unknown
    lost: str = ""  # lost_steps and resume_step as text for people
    resumes: str = ""


class Say(msgspec.Struct, frozen=True):
    """Print one message on the terminal; `traceback` follows it unchanged."""

    text: str
    is_bad: bool = False
    traceback: str = ""


class RestoreFile(msgspec.Struct, frozen=True):
    """Recreate a directory, socket or lock of the run that is gone. Answered by NotRestored if that
    fails.
    """

    what: str
    path: str


class Quit(msgspec.Struct, frozen=True):
    """The run is over: clean up and exit."""

    exit_code: int
    keep_memory: bool  # snapshots that could not be saved stay for the next launch
    restarts_elsewhere: bool = False  # all launches begin again, a spare one in place of the machine that left


Action = (
    StartAttempt
    | EndStarts
    | Signal
    | KillTree
    | ClearTree
    | Tell
    | WriteEntry
    | WriteRun
    | Report
    | Say
    | RestoreFile
    | Quit
)
