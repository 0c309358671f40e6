"""Actions that the watchdog's core decides on, and event_loop.py carries out."""

from __future__ import annotations

import msgspec

from procsv.base.identity import TaskId
from procsv.base.journal.entries import Entry
from procsv.ipc.messaging.message import Message
from procsv.watchdog.core.events import Ended
from procsv.watchdog.core.restarts.causes import Cause


class StartAttempt(msgspec.Struct, frozen=True):
    """A task or service, that attempt.  Answered by Started or NotStarted."""

    task: TaskId
    incarnation: int
    due_s: float = 0.0  # since when; of a service it is of no interest


class EndStarts(msgspec.Struct, frozen=True):
    """The run ends: nothing is to be prepared for another start."""


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
    """The trainer is dead: kill what is left of its tree; TreeGone when the writer's lock is free.

    `has_ended`: by itself, and well, so that what it has left may be at work, and its end has to be said.
    """

    task: TaskId
    incarnation: int
    has_ended: bool = False


class Tell(msgspec.Struct, frozen=True):
    """Reliably, to the newest incarnation of `task`, if that has introduced itself: before its Hello nobody hears it."""

    task: TaskId
    body: Message


class WriteEntry(msgspec.Struct, frozen=True):
    entry: Entry
    task: TaskId
    incarnation: int


class WriteRun(msgspec.Struct, frozen=True):
    """run.json: the state has changed (a changed step is written at the reactor's own pace)."""


class Report(msgspec.Struct, frozen=True):
    """A crash report is to be written."""

    ended: Ended
    cause: Cause
    sentence: str  # the cause, for people
    step: int
    lost_steps: int
    resume_step: int  # NO_STEP: none is known
    lost: str = ""  # both, for people
    resumes: str = ""


class Say(msgspec.Struct, frozen=True):
    """One message to the terminal; `traceback` follows it as it is."""

    text: str
    is_bad: bool = False
    traceback: str = ""


class RestoreFile(msgspec.Struct, frozen=True):
    """A directory, socket or lock of the run is gone: make it anew.  Answered by NotRestored where that fails."""

    what: str
    path: str


class Quit(msgspec.Struct, frozen=True):
    """The run is over: clear up and exit."""

    exit_code: int
    keep_memory: bool  # snapshots that could not be saved stay for the next launch
    restarts_elsewhere: bool = False  # all launches begin again, one of them in the place of a machine that is lost


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
