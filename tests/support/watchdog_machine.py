"""A machine in memory for the watchdog's event loop: every port of its environment, with objects
for child processes.

A subclass says how children start, end and beat. Terminals, files and commands do nothing here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from procsv.base.clock import Clock
from procsv.base.identity import TaskId
from procsv.base.journal.entries import Entry
from procsv.base.outcome import Exit, LastWords
from procsv.base.run.run_file import RunFile
from procsv.ipc.shm.heartbeat import Heartbeat
from procsv.watchdog.core.actions import Report
from procsv.watchdog.core.events import Ended, FileState, SignalCame, StopAsked
from procsv.watchdog.core.restarts.causes import CauseKind, classify
from procsv.watchdog.edge.environment import Environment, FaultInjector, FaultReach, Sockets
from procsv.watchdog.host.ports import Dead
from procsv.watchdog.host.standby import NotPromoted, Promoted, StandbySaid


class Child(Protocol):
    @property
    def task(self) -> TaskId: ...
    @property
    def incarnation(self) -> int: ...
    @property
    def pid(self) -> int: ...


ChildT = TypeVar("ChildT", bound=Child)


class MachineInMemory(Generic[ChildT]):
    is_live = False  # no status line is drawn
    is_busy = False  # no command of --on-event runs
    stacks = ""  # of a process that died
    taker = ""  # who has taken the lease of the logdir

    def __init__(self) -> None:
        self.children: dict[TaskId, ChildT] = {}
        self.standby_words: list[StandbySaid | Promoted | NotPromoted] = []
        self.disk_has_room = True
        self.asked: list[StopAsked | SignalCame] = []  # signals that have come
        self.dead: list[tuple[ChildT, Exit]] = []  # children with a readable pidfd
        self._corpses: dict[TaskId, ChildT] = {}  # reaped, and not yet examined

    def environment(
        self, clock: Clock, sockets: Sockets, make_injector: Callable[[FaultReach], FaultInjector] | None = None
    ) -> Environment:
        make = make_injector or (lambda reach: self)
        ports = (self,) * 10
        return Environment(clock, self, self, sockets, *ports, make, None)

    # -- for a subclass to implement ---------------------------------------------------------------------------
    def spawn(self, task: TaskId, incarnation: int, standby: str) -> int:
        raise NotImplementedError

    def promote(self, number: int, task: TaskId, incarnation: int) -> None:
        raise NotImplementedError

    def import_more(self, number: int) -> None:
        raise NotImplementedError

    def signal(self, task: TaskId, incarnation: int, number: int) -> None:
        raise NotImplementedError

    def kill_tree(self, task: TaskId, incarnation: int) -> None:
        raise NotImplementedError

    def name_strays(self, task: TaskId) -> list[str]:
        raise NotImplementedError

    def clear_tree(self, task: TaskId) -> bool:
        raise NotImplementedError

    def clear_last_tree(self, task: TaskId) -> None:
        self.clear_tree(task)

    def snapshot_step(self, task: TaskId) -> int:
        raise NotImplementedError

    def append(self, entry: Entry, task: TaskId, incarnation: int) -> None:
        raise NotImplementedError

    def beat_of(self, child: ChildT) -> Heartbeat | None:
        raise NotImplementedError

    def words_of(self, child: ChildT) -> LastWords | None:
        raise NotImplementedError

    def use_logdir(self, logdir: str) -> None:
        pass

    def adopt(self, logdir: Path) -> None:
        pass

    # -- processes ---------------------------------------------------------------------------------------------
    def find(self, task: TaskId, incarnation: int) -> ChildT | None:
        child = self.children.get(task)
        return child if child is not None and child.incarnation == incarnation else None

    def ended(self) -> list[Dead]:
        dead, self.dead = self.dead, []
        for child, _ in dead:
            self._corpses[child.task] = child
            self.children.pop(child.task, None)
        return [Dead(child.task, child.incarnation, child.pid, exit) for child, exit in dead]

    def is_traced(self, task: TaskId) -> bool:
        return False

    def is_stopped(self, task: TaskId) -> bool:
        return False

    def doing(self, task: TaskId) -> str:
        return ""

    def usage(self, task: TaskId) -> dict[str, float | int]:
        return {"uptime": 0.0, "rss": 0, "cpu": 0.0}

    def poll_standby(self) -> list[StandbySaid | Promoted | NotPromoted]:
        words, self.standby_words = self.standby_words, []
        return words

    def take_requests(self) -> list[StopAsked | SignalCame]:
        asked, self.asked = self.asked, []
        return asked

    # -- leftovers of processes -----------------------------------------------------------------------------------
    def read_heartbeats(self) -> dict[TaskId, Heartbeat]:
        beats = {task: self.beat_of(child) for task, child in self.children.items()}
        return {task: beat for task, beat in beats.items() if beat is not None}

    def drop_heartbeat(self, task: TaskId) -> Heartbeat | None:
        corpse = self._corpses.get(task)
        return self.beat_of(corpse) if corpse is not None else None

    def examine(self, dead: Dead, beat: Heartbeat | None) -> Ended:
        words = self.words_of(self._corpses.pop(dead.task))
        has_failed = dead.task.runs_program and classify(dead.exit) in (CauseKind.FAILURE, CauseKind.PERMANENT)
        no_room = has_failed and not self.disk_has_room
        step = self.snapshot_step(dead.task)
        return Ended(dead.task, dead.incarnation, dead.exit, beat, words, step, self.stacks, no_room=no_room)

    def snapshot_bytes(self, task: TaskId) -> int:
        return 0

    # -- the run's files --------------------------------------------------------------------------------------------
    def states(self) -> tuple[FileState, ...]:
        """Return no problem with the run's files."""
        return ()

    def has_room(self) -> bool:
        return self.disk_has_room

    def restore(self, what: str, path: str) -> None:
        raise NotImplementedError

    # -- what does nothing here --------------------------------------------------------------------------------
    def _nothing(self, *_: object, **__: object) -> None:
        """Do nothing: there are no files, terminal, commands or planned faults here."""

    reap_strays = show = follow = follow_heartbeat = stop_writing = clear = note_kills = offer_event = run_commands = (
        inject_due_faults
    ) = close = next_due_s = metrics_due = _nothing

    def fault_behind(self, task: TaskId, incarnation: int, exit: Exit) -> str:
        return ""

    def keep(self, now_s: float) -> str:
        return self.taker

    def say(self, text: str, is_bad: bool = False, traceback: str = "") -> None: ...
    def write_run(self, run: RunFile, durable: bool) -> None: ...
    def notify(self, run: RunFile, now_s: float) -> None: ...
    def write_report(self, report: Report, run: RunFile) -> None: ...
    def tree_memory(self, pid: int, limit: int) -> int:
        return 0

    def tree_activity(self, pid: int) -> int | None:
        return 0

    def room_for_standby(self, trainer_pid: int, limit: int) -> int:
        return 2**40

    def host_memory(self) -> dict[str, int]:
        return {"total": 0, "available": 0}
