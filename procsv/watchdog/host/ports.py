"""Define the interface of a host, and of everything that it touches on its machine.

event_loop.py gives the orders. main.py supplies the real parts, and tests supply parts in memory. A
port acts and reports, and decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

import msgspec

from procsv.base.identity import TaskId
from procsv.base.outcome import Exit
from procsv.ipc.messaging.message import Message
from procsv.ipc.shm.heartbeat import Heartbeat
from procsv.watchdog.core.events import Ended, Event
from procsv.watchdog.host.standby import NotPromoted, Promoted, StandbySaid


class TaskHost(Protocol):
    """The processes of one machine, or of all members (RemoteTasks).

    The event loop gives orders about tasks only to a TaskHost.

    Orders to an attempt that is gone do nothing.
    """

    def start(self, task: TaskId, incarnation: int, due_s: float) -> None:
        """Start an attempt. Answered by Started or NotStarted.

        `due_s`: when the start became due.
        """

    def signal(self, task: TaskId, incarnation: int, number: int) -> None: ...
    def kill_tree(self, task: TaskId, incarnation: int) -> None: ...
    def clear_tree(self, task: TaskId, incarnation: int, has_ended: bool) -> None:
        """Remove what a dead attempt has left running.

        Answered by TreeGone. `has_ended`: the attempt ended normally by itself, so the user learns
        which processes it left running.
        """

    def send(self, task: TaskId, body: Message) -> None:
        """Send a message reliably to the newest attempt."""

    def poll(self) -> Iterable[Event]:
        """Yield what has happened since the last call.

        Each event must be handled before the next is taken.
        """

    def beats(self) -> dict[TaskId, Heartbeat]:
        """Return the heartbeats of the running processes."""

    def stopped(self) -> frozenset[TaskId]:
        """Return the tasks that are frozen, by a signal (SIGSTOP) or by a debugger."""

    def usage(self, task: TaskId) -> Mapping[str, float | int]:
        """Return uptime in seconds, resident bytes, and percent of a core."""


class Dead(msgspec.Struct, frozen=True):
    """A process that has ended and was reaped."""

    task: TaskId
    incarnation: int
    pid: int
    exit: Exit


class ProcessTable(Protocol):
    """The processes of the run. `signal` and `kill_tree` do nothing to a process that is gone."""

    def spawn(self, task: TaskId, incarnation: int, standby: str) -> int:
        """Start a process, and return its pid.

        `standby`: warm or hot, if the process is a standby; otherwise "". OSError if the system
        refuses, or if an old trainer's tree still holds the logdir.
        """

    def ended(self) -> list[Dead]:
        """Return the processes that have died since the last call."""

    def signal(self, task: TaskId, incarnation: int, number: int) -> None: ...
    def kill_tree(self, task: TaskId, incarnation: int) -> None: ...
    def clear_tree(self, task: TaskId) -> bool:
        """Kill what a dead task has left. True once nothing of it holds the logdir or the GPU."""

    def clear_last_tree(self, task: TaskId) -> None:
        """Do the same at the end of the run.

        First wait for observers in the tree, which save.
        """

    def name_strays(self, task: TaskId) -> list[str]:
        """Name the processes that a dead task has left running.

        Leave out multiprocessing's helper processes and our observers, which end by themselves.
        """

    def use_logdir(self, logdir: str) -> None:
        """Start later processes with this logdir, and with the run's own directory as root."""

    def reap_strays(self) -> None: ...
    def is_stopped(self, task: TaskId) -> bool: ...
    def is_traced(self, task: TaskId) -> bool: ...
    def doing(self, task: TaskId) -> str: ...
    def usage(self, task: TaskId) -> Mapping[str, float | int]: ...
    def close(self) -> None: ...


class StandbyPort(Protocol):
    """The conversation with the standby."""

    def poll_standby(self) -> list[StandbySaid | Promoted | NotPromoted]: ...
    def promote(self, number: int, task: TaskId, incarnation: int) -> None:
        """Order standby `number` to become the task, or to fork it.

        `poll_standby` returns the answer.
        OSError if the standby is gone, or if an old trainer's tree still holds the logdir. Then
        nothing has changed.
        """

    def import_more(self, number: int) -> None:
        """Tell standby `number` to import more. If it is gone, do nothing: its end is reported."""


class Heartbeats(Protocol):
    """The heartbeats of the running processes."""

    def follow_heartbeat(self, task: TaskId, incarnation: int) -> None:
        """Read this process's heartbeat from now on. OSError if there is no room for it."""

    def read_heartbeats(self) -> dict[TaskId, Heartbeat]: ...
    def drop_heartbeat(self, task: TaskId) -> Heartbeat | None:
        """Return the last heartbeat of a dead process, and stop reading it."""

    def close(self) -> None: ...


class PostMortemPort(Protocol):
    """The evidence that dead processes leave."""

    def note_kills(self, now_s: float) -> None:
        """Read the kernel's counters of kills, which are evidence only for a short time.

        Must be called regularly.
        """

    def examine(self, dead: Dead, beat: Heartbeat | None) -> Ended: ...
    def clear(self, dead: Dead) -> None:
        """Remove what `examine` has read."""

    def snapshot_step(self, task: TaskId) -> int:
        """Return the step of the newest whole snapshot of `task` in memory; NO_STEP if none."""

    def snapshot_bytes(self, task: TaskId) -> int:
        """Return the bytes on disk for a checkpoint of the largest snapshot of `task` in memory."""


class MemoryPort(Protocol):
    def room_for_standby(self, trainer_pid: int, limit: int) -> int:
        """Return the bytes that are free for a standby beside the trainer.

        Negative if the trainer may still use more than is free.
        """
