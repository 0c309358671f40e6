"""The tasks on other machines of a run on one machine: none.

Used by main.py in the place of remote_tasks.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from procsv.base.identity import TaskId
from procsv.ipc.messaging.message import Message
from procsv.ipc.messaging.zmq_transport import Waiter
from procsv.ipc.shm.heartbeat import Heartbeat
from procsv.watchdog.core import events
from procsv.watchdog.core.members.adoption import Adopted
from procsv.watchdog.core.members.mirror import NO_MIRROR


class NoRemoteTasks:
    """RemoteTasks, where there are none."""

    refused = 0
    host = ""
    mirror = NO_MIRROR
    adopted: Mapping[TaskId, Adopted] = {}
    host_of: Mapping[TaskId, str] = {}
    spare_hosts: tuple[str, ...] = ()

    def listen(self, waiter: Waiter) -> None: ...
    def hosts(self, task: TaskId) -> bool:
        return False

    def start(self, task: TaskId, incarnation: int) -> None: ...
    def signal(self, task: TaskId, incarnation: int, number: int) -> None: ...
    def kill_tree(self, task: TaskId, incarnation: int) -> None: ...
    def clear_tree(self, task: TaskId, incarnation: int) -> None: ...
    def tell(self, task: TaskId, body: Message) -> None: ...
    def hear(self) -> list[events.Event]:
        return []

    def hears_beats_alone(self, woken: list[object]) -> bool:
        return False

    def let_beats_gather(self, limit_s: float) -> bool:
        return True

    def keep_in_touch(self, now_s: float) -> None: ...
    def beats(self) -> dict[TaskId, Heartbeat]:
        return {}

    def stopped(self) -> frozenset[TaskId]:
        return frozenset()

    def usage(self, task: TaskId) -> Mapping[str, float | int]:
        return {}

    def freeze(self, task: TaskId, incarnation: int, seconds: float) -> None: ...
    def close(self, exit_code: int, moves: bool = False) -> tuple[TaskId, ...] | None: ...
