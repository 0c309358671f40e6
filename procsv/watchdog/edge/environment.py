"""Define the watchdog's environment: everything that its event loop touches, except its core.

An environment consists of ports. A port acts and reports; it decides nothing. assembly.py builds
the environment of a real machine, and tests build one in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from procsv.base.clock import Clock
from procsv.base.identity import TaskId
from procsv.base.journal.entries import Entry
from procsv.base.journal.line import Line
from procsv.base.outcome import NO_STEP, Exit
from procsv.base.run.run_file import RunFile
from procsv.ipc.messaging.endpoint import ClientEndpoint, ServerEndpoint
from procsv.ipc.messaging.message import Message
from procsv.ipc.messaging.summary_messages import RunMetrics
from procsv.ipc.messaging.zmq_transport import Waiter
from procsv.ipc.shm.heartbeat import Heartbeat
from procsv.watchdog.core.actions import Report
from procsv.watchdog.core.events import FileState, SignalCame, StopAsked
from procsv.watchdog.core.settings import AdoptedTask
from procsv.watchdog.host.local_host import LocalHost
from procsv.watchdog.host.ports import Heartbeats, MemoryPort, PostMortemPort, ProcessTable, StandbyPort, TaskHost


class Sockets(Protocol):
    """The control socket, the connections to the services, and what to wait on."""

    @property
    def server(self) -> ServerEndpoint: ...
    @property
    def clients(self) -> Mapping[TaskId, ClientEndpoint]: ...
    def wait_for_news(self, timeout_s: float) -> list[object]:
        """Return the sockets and descriptors with news; none after `timeout_s`."""

    def restore_server(self) -> None:
        """Bind the control socket again if its file was removed.

        OSError or UserError if that fails.
        """

    def close(self) -> None: ...


class Held(Protocol):
    """The lock and the lease of the logdir."""

    def adopt(self, logdir: Path) -> None:
        """Take the directory that the program has named, too. UserError if that fails."""

    def keep(self, now_s: float) -> str:
        """Renew the leases that are due. Return who has taken the logdir; "" if nobody has."""


class SignalSource(Protocol):
    def take_requests(self) -> list[StopAsked | SignalCame]: ...


class RecordsPort(Protocol):
    """Journal, run.json and crash reports."""

    def append(self, entry: Entry, task: TaskId, incarnation: int) -> None: ...
    def write_run(self, run: RunFile, durable: bool) -> None: ...
    def write_report(self, report: Report, run: RunFile) -> None: ...
    def stop_writing(self) -> None:
        """Write nothing from now on: the directory belongs to another run."""

    def metrics_due(self, now_s: float, step: int, memory: Callable[[], float]) -> RunMetrics | None: ...
    def close(self) -> None: ...


class Resources(MemoryPort, Protocol):
    def tree_memory(self, pid: int, limit: int) -> int: ...
    def tree_activity(self, pid: int) -> int | None:
        """Return a number that changes whenever a thread of the process tree has run; None if it
        cannot be read.

        procsv's own threads in the tree do not count.
        """

    def host_memory(self) -> dict[str, int]: ...


class Terminal(Protocol):
    def say(self, text: str, is_bad: bool = False, traceback: str = "") -> None: ...
    def follow(self, log: Path) -> None: ...
    @property
    def is_live(self) -> bool:
        """Whether it has a status line."""

    def show(self, run: RunFile, now_s: float) -> None:
        """Set the current state of the run, for the status line."""


class EventCommands(Protocol):
    """The commands of --on-event."""

    @property
    def is_busy(self) -> bool: ...
    def offer_event(self, line: Line, now_s: float) -> None: ...
    def run_commands(self, now_s: float) -> None: ...
    def close(self) -> None: ...


class ManagerPort(Protocol):
    """The service manager that has started us, if any."""

    def notify(self, run: RunFile, now_s: float) -> None:
        """Report the state of the run, if a report is due. Never wait."""

    def close(self) -> None: ...


class RunFilesPort(Protocol):
    """The directories of the run, and the sockets and locks in them."""

    def states(self) -> tuple[FileState, ...]: ...
    def has_room(self) -> bool:
        """Whether files can be written in the logdir."""

    def restore(self, what: str, path: str) -> None:
        """Recreate a directory or our lock. OSError or UserError if that fails."""


class MemoryCopy(msgspec.Struct, frozen=True):
    """The newest copy of the chief's snapshot that is known to be in another machine's memory."""

    host: str = ""  # "": no copy
    step: int = NO_STEP


NO_COPY = MemoryCopy()


class RemoteHost(TaskHost, Protocol):
    """The processes on all other machines.

    If a machine is lost, orders to it do nothing, and its task is reported as gone.
    """

    host: str  # the name of this machine, for people
    adopted: Mapping[TaskId, AdoptedTask]

    @property
    def refused(self) -> int:
        """The number of invalid messages, and of unknown senders that were not let in."""

    @property
    def memory_copy(self) -> MemoryCopy:
        """The copy of the chief's snapshot that a member keeps."""

    @property
    def host_of(self) -> Mapping[TaskId, str]: ...
    @property
    def spare_hosts(self) -> tuple[str, ...]: ...
    def listen(self, waiter: Waiter) -> None:
        """Wake the event loop when a member sends something."""

    def hosts(self, task: TaskId) -> bool:
        """Whether `task` is on another machine."""

    def freeze(self, task: TaskId, incarnation: int, seconds: float) -> None:
        """Have the task's machine stop it (SIGSTOP), and continue it after `seconds`."""

    def finds_only_beats(self, woken: list[object]) -> bool:
        """Whether the sources in `woken` have brought only members' heartbeats.

        Any other news is kept for the next `poll`.
        """

    def gather_beats(self, limit_s: float) -> bool:
        """Wait a moment, at most `limit_s`, for more heartbeats. False if anything else arrives."""

    def keep_in_touch(self, now_s: float) -> None:
        """Send the members the beats and messages that are due."""

    def close(self, exit_code: int, restarts_elsewhere: bool = False) -> tuple[TaskId, ...] | None:
        """Tell all members how the run has ended.

        With `restarts_elsewhere`, tell them to restart. Return the launches that will have no task
        then; None if the launches do not restart.
        """


class FaultInjector(Protocol):
    def next_due_s(self, now_s: float) -> float | None: ...
    def inject_due_faults(self, now_s: float, step: int) -> None: ...
    def fault_behind(self, task: TaskId, incarnation: int, exit: Exit) -> str:
        """Return the fault of the plan that ended this process, or ""."""


class FaultReach(msgspec.Struct, frozen=True):
    """The functions of the event loop that a planned fault may call."""

    tell: Callable[[TaskId, Message], None]
    journal: Callable[[Entry, TaskId, int], None]
    preempt: Callable[[float, TaskId], None]  # give the task a preemption notice, with that many seconds until the kill
    attempt: Callable[[TaskId], int]  # the running attempt of a task on any machine; 0: none
    say: Callable[[str], None]


class Environment(msgspec.Struct, frozen=True):
    clock: Clock
    processes: ProcessTable
    standby: StandbyPort
    sockets: Sockets
    held: Held
    signals: SignalSource
    records: RecordsPort
    heartbeats: Heartbeats
    post_mortem: PostMortemPort
    resources: Resources
    console: Terminal
    event_hook: EventCommands
    run_files: RunFilesPort
    manager: ManagerPort
    make_injector: Callable[[FaultReach], FaultInjector]
    remote: RemoteHost | None  # None: a run on one machine


class Hosts(NamedTuple):
    """Find the host of each task. One host is for this machine, and one for all other machines."""

    local: LocalHost
    remote: RemoteHost | None  # None: a run on one machine

    def of(self, task: TaskId) -> TaskHost:
        return self.remote if self.remote is not None and self.remote.hosts(task) else self.local

    @property
    def all(self) -> tuple[TaskHost, ...]:
        return (self.local,) if self.remote is None else (self.local, self.remote)

    def beats(self) -> dict[TaskId, Heartbeat]:
        return {task: beat for host in self.all for task, beat in host.beats().items()}

    def stopped(self) -> frozenset[TaskId]:
        return frozenset().union(*(host.stopped() for host in self.all))
