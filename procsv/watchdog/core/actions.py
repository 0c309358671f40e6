"""Define the actions that the watchdog's core returns. event_loop.py carries them out."""

from __future__ import annotations

import msgspec

from procsv.base.identity import TaskId
from procsv.base.journal.entries import Entry
from procsv.ipc.messaging.message import Message
from procsv.watchdog.core.events import Ended
from procsv.watchdog.core.restarts.causes import Cause


class StartAttempt(msgspec.Struct, frozen=True):
    """Start an attempt of a task or service. The host answers with Started or NotStarted."""

    task: TaskId
    incarnation: int
    due_s: float = 0.0  # the monotonic time at which the start became due; ignored for a service


class EndStarts(msgspec.Struct, frozen=True):
    """The run is ending, so end the standby and prepare no other."""


class Signal(msgspec.Struct, frozen=True):
    """Send a signal to the attempt's own process, not to its children."""

    task: TaskId
    incarnation: int
    number: int


class KillTree(msgspec.Struct, frozen=True):
    """Send SIGKILL to the attempt's process, its process group and all its descendants."""

    task: TaskId
    incarnation: int


class ClearTree(msgspec.Struct, frozen=True):
    """Kill what a dead trainer has left of its process tree.

    The host answers with TreeGone once the tree is gone and the writer's lock is free. `has_ended`:
    the trainer ended normally by itself. The processes that it left may still be working, so the
    host reports that it ends them.
    """

    task: TaskId
    incarnation: int
    has_ended: bool = False


class Tell(msgspec.Struct, frozen=True):
    """Send a message reliably to the newest attempt of `task`.

    An attempt of a program that has not sent its Hello yet does not get the message.
    """

    task: TaskId
    body: Message


class WriteEntry(msgspec.Struct, frozen=True):
    entry: Entry
    task: TaskId
    incarnation: int


class WriteRun(msgspec.Struct, frozen=True):
    """Write run.json, because the state has changed. event_loop.py also writes it every second."""


class Report(msgspec.Struct, frozen=True):
    """Write a crash report."""

    ended: Ended
    cause: Cause
    sentence: str  # the cause, for people
    step: int  # the last step read
    lost_steps: int
    resume_step: int  # NO_STEP: unknown
    lost: str = ""  # what the crash has cost, as text for people
    resumes: str = ""  # from which state the next attempt resumes, as text for people


class Say(msgspec.Struct, frozen=True):
    """Print one message on the terminal; `traceback` follows it unchanged."""

    text: str
    is_bad: bool = False
    traceback: str = ""


class RestoreFile(msgspec.Struct, frozen=True):
    """Recreate a directory, socket or lock of the run that was removed.

    If that fails, event_loop.py answers with NotRestored.
    """

    what: str
    path: str


class Quit(msgspec.Struct, frozen=True):
    """The run is over: clean up and exit."""

    exit_code: int
    keep_memory: bool  # keep snapshots that could not be saved, for the next launch
    # All launches of the run restart. A spare launch replaces the one on the machine that is lost or must leave.
    restarts_elsewhere: bool = False


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
