"""The host's ports: who gives it orders, and all that it touches of its machine.

event_loop.py gives the orders; main.py has the machine's parts, tests have some in memory.  A port acts and reports; none decides.
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
    """The processes of one machine; the event loop gives orders about tasks to nothing else.

    Orders to an attempt that is gone come to nothing.
    """

    def start(self, task: TaskId, incarnation: int, due_s: float) -> None:
        """Answered by Started or NotStarted.  `due_s`: since when it is due."""

    def signal(self, task: TaskId, incarnation: int, number: int) -> None: ...
    def kill_tree(self, task: TaskId, incarnation: int) -> None: ...
    def clear_tree(self, task: TaskId, incarnation: int, has_ended: bool) -> None:
        """Answered by TreeGone.  `has_ended`: by itself, and well: what it has left is named, for people."""

    def send(self, task: TaskId, body: Message) -> None:
        """Reliably, to its newest attempt."""

    def answers(self) -> list[Event]:
        """What has come of the orders at once; to be asked for after each."""

    def poll(self) -> Iterable[Event]:
        """What has happened since the last call; each event is to be handled before the next is taken."""

    def beats(self) -> dict[TaskId, Heartbeat]:
        """Of the processes that run."""

    def stopped(self) -> frozenset[TaskId]:
        """The tasks that are frozen by a signal (SIGSTOP)."""

    def usage(self, task: TaskId) -> Mapping[str, float | int]:
        """Uptime in seconds, resident bytes, and percent of a core."""


class Dead(msgspec.Struct, frozen=True):
    """A process that has ended, and was reaped."""

    task: TaskId
    incarnation: int
    pid: int
    exit: Exit


class ProcessTable(Protocol):
    """The processes of the run.  `signal` and `kill_tree` do nothing to one that is gone."""

    def spawn(self, task: TaskId, incarnation: int, standby: str) -> int:
        """Starts one; its pid.  OSError if the system refuses, or an old trainer's tree still holds the logdir."""

    def ended(self) -> list[Dead]:
        """Those that have died since the last call."""

    def signal(self, task: TaskId, incarnation: int, number: int) -> None: ...
    def kill_tree(self, task: TaskId, incarnation: int) -> None: ...
    def clear_tree(self, task: TaskId) -> bool:
        """Kills what a dead task has left.  True once nothing of it holds the logdir or the GPU."""

    def clear_last_tree(self, task: TaskId) -> None:
        """The same at the end of the run; waits for what saves within it."""

    def name_strays(self, task: TaskId) -> list[str]:
        """What a dead task has left running, for people; none of Python's own helpers, which are about to end."""

    def use_logdir(self, logdir: str) -> None:
        """Processes that are started from now on have it as their logdir, and the run's own directory as their root."""

    def reap_strays(self) -> None: ...
    def is_stopped(self, task: TaskId) -> bool: ...
    def doing(self, task: TaskId) -> str: ...
    def usage(self, task: TaskId) -> Mapping[str, float | int]: ...
    def close(self) -> None: ...


class StandbyPort(Protocol):
    """The conversation with the standby."""

    def poll_standby(self) -> list[StandbySaid | Promoted | NotPromoted]: ...
    def promote(self, number: int, task: TaskId, incarnation: int) -> None:
        """Makes standby `number` that task, or a fork of it.  OSError if it is gone; then everything is as it was."""

    def import_more(self, number: int) -> None:
        """Tells standby `number` that there is more to import; nothing if it is gone, which its end will say."""


class Heartbeats(Protocol):
    """The heartbeats of the processes that run."""

    def follow_heartbeat(self, task: TaskId, incarnation: int) -> None:
        """Reads this process's from now on.  OSError if there is no room for it."""

    def read_heartbeats(self) -> dict[TaskId, Heartbeat]: ...
    def drop_heartbeat(self, task: TaskId) -> Heartbeat | None:
        """The last one of a dead process."""

    def close(self) -> None: ...


class PostMortemPort(Protocol):
    """What the dead have left to be read."""

    def examine(self, dead: Dead, beat: Heartbeat | None) -> Ended: ...
    def clear(self, dead: Dead) -> None:
        """Removes what `examine` has read."""

    def snapshot_step(self, task: TaskId) -> int:
        """The step of the newest snapshot of `task` in shared memory."""

    def snapshot_bytes(self, task: TaskId) -> int:
        """What a checkpoint of that snapshot needs on disk."""


class MemoryPort(Protocol):
    def room_for_standby(self, trainer_pid: int, limit: int) -> int:
        """Bytes that are free for one, beside the trainer."""
