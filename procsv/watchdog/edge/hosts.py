"""Route tasks to their hosts: this machine's, and the host of all other machines.

Used by event_loop.py, and by status.py, which shows their processes.
"""

from __future__ import annotations

from typing import NamedTuple

from procsv.base.identity import TaskId
from procsv.ipc.shm.heartbeat import Heartbeat
from procsv.watchdog.edge.environment import RemoteHost
from procsv.watchdog.host.local_host import LocalHost
from procsv.watchdog.host.ports import TaskHost


class Hosts(NamedTuple):
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
