"""The watchdog's environment: all that its event loop touches besides its core.

assembly.py builds one of the machine's parts, tests build one in memory.  A port acts and reports; none decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

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
from procsv.watchdog.core.actions import Report
from procsv.watchdog.core.events import FileState, SignalCame, StopAsked
from procsv.watchdog.core.settings import AdoptedTask
from procsv.watchdog.host.ports import Heartbeats, MemoryPort, PostMortemPort, ProcessTable, StandbyPort, TaskHost


class Sockets(Protocol):
    """The control socket, the connections to the services, and what to wait on."""

    @property
    def server(self) -> ServerEndpoint: ...
    @property
    def clients(self) -> Mapping[TaskId, ClientEndpoint]: ...
    def wait_for_news(self, timeout_s: float) -> list[object]:
        """The things with news; empty after `timeout_s`."""

    def restore_server(self) -> None:
        """Binds the control socket again, of which the file is gone.  OSError or UserError if that does not go."""

    def close(self) -> None: ...


class Held(Protocol):
    """The logdir, as far as it is ours."""

    def adopt(self, logdir: Path) -> None:
        """Takes another directory beside it, which the program has named.  UserError if that does not go."""

    def keep(self, now_s: float) -> str:
        """Renews our lease of it, every few seconds; who has taken that, or ""."""


class SignalSource(Protocol):
    def take_requests(self) -> list[StopAsked | SignalCame]: ...


class RecordsPort(Protocol):
    """Journal, run.json and crash reports."""

    def append(self, entry: Entry, task: TaskId, incarnation: int) -> None: ...
    def write_run(self, run: RunFile, durable: bool) -> None: ...
    def write_report(self, report: Report, run: RunFile) -> None: ...
    def stop_writing(self) -> None:
        """The directory is another run's: from now on nothing is written there."""

    def metrics_due(self, now_s: float, step: int, memory: Callable[[], float]) -> RunMetrics | None: ...
    def close(self) -> None: ...


class Resources(MemoryPort, Protocol):
    def tree_rss(self, pid: int) -> int: ...
    def tree_activity(self, pid: int) -> int | None:
        """Another number whenever a thread of the tree has run, ours apart; None if that cannot be seen."""

    def host_memory(self) -> dict[str, int]: ...


class Terminal(Protocol):
    def say(self, text: str, is_bad: bool = False, traceback: str = "") -> None: ...
    def follow(self, log: Path) -> None: ...
    @property
    def is_live(self) -> bool:
        """Whether it has a status line."""

    def show(self, run: RunFile, now_s: float) -> None:
        """The run as it is now, for the status line."""


class EventCommands(Protocol):
    """The commands of --on-event."""

    @property
    def is_busy(self) -> bool: ...
    def offer_event(self, line: Line, now_s: float) -> None: ...
    def run_commands(self, now_s: float) -> None: ...
    def close(self) -> None: ...


class ManagerPort(Protocol):
    """The service manager that has started us, if there is one."""

    def notify(self, run: RunFile, now_s: float) -> None:
        """Tells it how the run stands, if it is time to.  Never waits."""

    def close(self) -> None: ...


class RunFilesPort(Protocol):
    """The directories of the run, and the sockets and locks in them."""

    def states(self) -> tuple[FileState, ...]: ...
    def has_room(self) -> bool:
        """Whether files can be written in the logdir."""

    def restore(self, what: str, path: str) -> None:
        """Makes a directory or our lock anew.  OSError or UserError if that does not go."""


class MemoryCopy(msgspec.Struct, frozen=True):
    """The copy of the chief's memory that another machine keeps, as far as it is known."""

    host: str = ""  # "": there is none
    step: int = NO_STEP


NO_COPY = MemoryCopy()


class RemoteHost(TaskHost, Protocol):
    """The processes of all other machines of a run on several.  Orders to one that is lost come to nothing, and its task is told gone."""

    host: str  # this machine, as others find it
    adopted: Mapping[TaskId, AdoptedTask]

    @property
    def refused(self) -> int:
        """Messages that were not fit to be heard, and strangers who were not let in."""

    @property
    def memory_copy(self) -> MemoryCopy:
        """The copy of the chief's memory that one of them keeps."""

    @property
    def host_of(self) -> Mapping[TaskId, str]: ...
    @property
    def spare_hosts(self) -> tuple[str, ...]: ...
    def listen(self, waiter: Waiter) -> None:
        """Has the event loop wake up when one of them says something."""

    def hosts(self, task: TaskId) -> bool:
        """Whether `task` is another machine's."""

    def freeze(self, task: TaskId, incarnation: int, seconds: float) -> None:
        """Has its machine stop it, and let it go on so much later."""

    def hears_beats_alone(self, woken: list[object]) -> bool:
        """Whether that is all there is to hear: `woken` has news.  What else has come is kept for `poll`."""

    def let_beats_gather(self, limit_s: float) -> bool:
        """Waits for a moment, or `limit_s`, for more of them.  False at once if something else has come."""

    def keep_in_touch(self, now_s: float) -> None:
        """Sends what is due."""

    def close(self, exit_code: int, restarts_elsewhere: bool = False) -> tuple[TaskId, ...] | None:
        """Tells all that the run is over, and how; or, with `restarts_elsewhere`, to begin again, and returns who has no task then."""


class FaultInjector(Protocol):
    def next_due_s(self, now_s: float) -> float | None: ...
    def inject_due_faults(self, now_s: float, step: int) -> None: ...
    def fault_behind(self, task: TaskId, incarnation: int, exit: Exit) -> str:
        """The fault of the plan that has ended this process, or ""."""


class FaultReach(msgspec.Struct, frozen=True):
    """What the event loop lets a fault of the plan do."""

    tell: Callable[[TaskId, Message], None]
    journal: Callable[[Entry, TaskId, int], None]
    preempt: Callable[[float, TaskId], None]
    attempt: Callable[[TaskId], int]  # of a task, wherever it is: the one that runs; 0: none
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
