"""Tell a command (`--on-event CMD`) or people (`--notify URL`) what has happened.

Used by event_loop.py, which never waits for a command. For each event that concerns people
(`concerns`), each option starts one process. The process gets the event as JSON on its standard
input: the line of the journal, plus a sentence for people, target, host and logdir. It runs in a
session of its own, and is killed when its time is over. Only RUNNING_MAX such processes run at a
time. Later events wait, and if too many wait, the oldest are dropped.
"""

from __future__ import annotations

import collections
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

import msgspec

from procsv.base import exit_codes
from procsv.base.encoding import encode_json
from procsv.base.identity import TRAINER, TaskId
from procsv.base.journal import entries
from procsv.base.journal.line import Line
from procsv.base.run.logs import rotate_if_large
from procsv.base.service_table import SERVICES
from procsv.base.system.processes import Child, spawn
from procsv.base.units import show_duration, show_time

RUNNING_MAX = 4
WAITING_MAX = 100
LOG_BYTES_MAX = 2**26  # if the log of the commands' output is larger, it is rotated; one older part is kept

_ALWAYS = (
    entries.GaveUp
    | entries.TaskGivenUp
    | entries.RunCompleted
    | entries.Stopped
    | entries.HangDetected
    | entries.HangSuspected
    | entries.CheckpointFailed
    | entries.PreemptNotice
)
_NO_CRASH = frozenset({"completed", "stopped"})  # the causes of an exit that is no failure


def concerns(entry: entries.Entry) -> bool:
    """Whether an event concerns people: the end of a run, or something that went wrong."""
    if isinstance(entry, entries.Exited):
        return entry.cause not in _NO_CRASH and entry.code != exit_codes.RESUMABLE
    if isinstance(entry, entries.RunStarted):
        return entry.seen_until is not None  # the previous watchdog was killed, and could not report the end of its run
    return isinstance(entry, _ALWAYS)


def describe(line: Line) -> str:
    """Describe an event that concerns people, in a sentence."""
    who, entry = _name(line), line.entry
    match entry:
        case entries.Exited():
            return f"{who} failed{_at(entry.step)}: {entry.evidence or entry.cause}"
        case entries.RunStarted(seen_until=float(seen_s)):
            when = show_time(seen_s)
            return f"the watchdog was killed about {when}, or its machine went down; this launch continues the run"
        case entries.GaveUp():
            return f"gave up: {entry.why}"
        case entries.TaskGivenUp():
            return f"gave up {line.role}: {entry.why}; the run goes on without it"
        case entries.RunCompleted():
            return f"training is complete{_at(entry.step)}"
        case entries.Stopped():
            saved = f"step {entry.durable_step} is on disk" if entry.durable_step >= 0 else "nothing was saved"
            return f"stopped by {entry.source}{_at(entry.step)}; {saved}"
        case entries.HangDetected():
            return f"{who} hangs{_at(entry.step)}: no progress for {show_duration(entry.seconds)}; procsv ends it"
        case entries.HangSuspected():
            return f"{who} has done nothing for {show_duration(entry.seconds)}; procsv does not end it"
        case entries.CheckpointFailed():
            return f"step {entry.step} could not be saved: {entry.error}"
        case entries.PreemptNotice():
            return f"preemption notice: {entry.source}"
        case _:
            return entry.event.replace("_", " ")


def _name(line: Line) -> str:
    task = TaskId.parse(line.role)
    if task in SERVICES:
        return f"the {task} service"
    attempt = f"attempt {line.incarnation}"
    return attempt if task == TRAINER else f"{task}, {attempt},"


def _at(step: int) -> str:
    return f" at step {step}" if step >= 0 else ""


class Hook(msgspec.Struct, frozen=True):
    """A command to run at each event."""

    name: str  # for people: the option, and the command
    argv: tuple[str, ...]
    urls: str = ""  # for --notify; they may hold passwords, so the command gets them on its standard input


class _Command(msgspec.Struct):
    child: Child
    hook: Hook
    until_s: float
    was_killed: bool = False


class EventHook:
    """Run the commands of one run.

    `about`: fields to add to each event. `say`: tells the user of failing commands, once for each
    kind of failure. `time_s`: how long a command may run.
    """

    def __init__(
        self,
        hooks: Sequence[Hook],
        about: Mapping[str, str],
        log: Path,
        environment: Mapping[str, str],
        say: Callable[[str], None],
        time_s: float,
    ) -> None:
        self._hooks, self._about = hooks, about
        self._log, self._environment, self._say, self._time_s = log, environment, say, time_s
        self._waiting: collections.deque[tuple[Hook, str, bytes]] = collections.deque(maxlen=WAITING_MAX)
        self._running: list[_Command] = []
        self._said: set[str] = set()  # the kinds of failure that the user knows about

    @property
    def pids(self) -> set[int]:
        """The pids of the running commands: children of the watchdog that belong to no task."""
        return {command.child.pid for command in self._running}

    @property
    def is_busy(self) -> bool:
        return bool(self._running or self._waiting)

    def offer_event(self, line: Line, now_s: float) -> None:
        """Run the commands for an event of the journal, if the event concerns people."""
        if not concerns(line.entry):
            return
        told = {**line.as_dict(), "text": describe(line), **self._about}
        for hook in self._hooks:
            if len(self._waiting) == WAITING_MAX:
                self._complain("waits", f"too many events wait for {hook.name}: the oldest are dropped")
            data = encode_json({**told, "urls": hook.urls} if hook.urls else told)
            self._waiting.append((hook, line.entry.event, data + b"\n"))
        self.run_commands(now_s)

    def run_commands(self, now_s: float) -> None:
        """Reap finished commands, kill late ones, and start waiting ones."""
        for command in list(self._running):
            if command.child.has_ended():
                self._running.remove(command)
                self._bury(command)
            elif now_s >= command.until_s and not command.was_killed:
                command.was_killed = True
                command.child.signal_tree(signal.SIGKILL)
        while self._waiting and len(self._running) < RUNNING_MAX:
            self._start(*self._waiting.popleft(), now_s)

    def close(self) -> None:
        """Kill all commands, and drop the waiting ones."""
        self._waiting.clear()
        for command in self._running:
            command.child.signal_tree(signal.SIGKILL)
            command.child.reap()
        self._running.clear()

    def _start(self, hook: Hook, event: str, data: bytes, now_s: float) -> None:
        rotate_if_large(self._log, LOG_BYTES_MAX)
        try:
            with _as_file(data) as stdin:
                environment = {**self._environment, "PROCSV_EVENT": event}
                child = spawn(hook.argv, env=environment, log=self._log, stdin=stdin.fileno())
        except OSError as error:
            self._complain("start", f"{hook.name} cannot be started: {error.strerror}")
            return
        self._running.append(_Command(child=child, hook=hook, until_s=now_s + self._time_s))

    def _bury(self, command: _Command) -> None:
        ended = command.child.reap()
        if command.was_killed:
            self._complain(
                "late", f"{command.hook.name} was killed: it took more than {self._time_s:g} s (--on-event-timeout)"
            )
        elif ended.code != 0:
            self._complain("failed", f"{command.hook.name} failed ({ended}); what it said: {self._log}")

    def _complain(self, kind: str, text: str) -> None:
        if kind not in self._said:
            self._said.add(kind)
            self._say(text)


def _as_file(data: bytes) -> IO[bytes]:
    """Return a file to read `data` from.

    With a pipe, a command that does not read could block the watchdog.
    """
    file = open(os.memfd_create("procsv-event"), "w+b")  # noqa: PTH123, SIM115  it has no path; the caller closes it
    file.write(data)
    file.seek(0)
    return file
