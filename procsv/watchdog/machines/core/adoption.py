"""Adoption of tasks that have outlived their coordinator: whether those of other machines go on with the one that follows it.

Pure.  Used by watchdog/machines/forming.py, once there is a launch for each task.  All of them go on or none: those that go on must find
the others where they were, and the variables with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from procsv.base.cluster import PS, Cluster
from procsv.base.identity import TaskId
from procsv.ipc.messaging.launch_settings import LaunchSettings
from procsv.ipc.messaging.member_messages import Running
from procsv.watchdog.core.settings import AdoptedTask


class Comer(msgspec.Struct, frozen=True):
    """A launch that has come to host a task, and what it has of the run before."""

    task: TaskId
    host: str
    address: str  # of the task, for TensorFlow; "" of one that nobody speaks to
    cluster: Cluster | None = None  # of the run before; None: it has nothing of it
    settings: LaunchSettings | None = None
    running: Running | None = None


class Heritage(msgspec.Struct, frozen=True):
    """What goes on of the run before."""

    cluster: Cluster
    tasks: Mapping[TaskId, AdoptedTask]

    def address_of(self, task: TaskId) -> str:
        """Where the others look for `task`; "" if they do not."""
        return _addresses(self.cluster).get(task, "")


class NothingToAdopt(Exception):
    """Everything is to begin anew; the text says why."""


def inherit(comers: Sequence[Comer], settings: LaunchSettings) -> Heritage:
    """What goes on, of what `comers` have; at least one of them has something.  `settings`: of this launch."""
    first, *others = (comer for comer in comers if comer.cluster is not None)
    assert first.cluster is not None
    if settings.restart == "gang":
        raise NothingToAdopt("its tasks train in step, and end with the first of them")
    for comer in (first, *others):
        if comer.settings != settings:
            raise NothingToAdopt(f"{comer.task} runs with other options than these")
        if comer.cluster != first.cluster:
            raise NothingToAdopt(f"{comer.task} knows the others at other addresses than {first.task} does")
        if comer.running is not None and comer.running.in_step:
            raise NothingToAdopt(f"{comer.task} trains in step with others, and cannot end a step without all of them")
    known = _addresses(first.cluster)
    for comer in comers:
        if comer.address != known.get(comer.task, comer.address):
            raise NothingToAdopt(
                f"{comer.task} is at {comer.address} now, and the others know it at {known[comer.task]}"
            )
        if comer.task.role == PS and comer.running is None:
            raise NothingToAdopt(f"{comer.task} has ended, and the variables that it held are gone")
    running = {comer.task: (comer.host, comer.running) for comer in comers if comer.running is not None}
    return Heritage(
        first.cluster,
        {task: AdoptedTask(host, r.incarnation, r.pid, r.is_ready) for task, (host, r) in running.items()},
    )


def _addresses(cluster: Cluster) -> dict[TaskId, str]:
    return {TaskId(role, index): text for role, texts in cluster.items() for index, text in enumerate(texts)}
