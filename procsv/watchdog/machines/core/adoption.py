"""Decide whether the tasks that survived their coordinator continue under the next one.

Pure. Used by watchdog/machines/forming.py once there is a launch for each task. Either all
surviving tasks continue, or all restart. Tasks that continue look for the other tasks, and for the
variables on parameter servers, at the same addresses as before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from procsv.base.cluster import PS, Cluster
from procsv.base.identity import TaskId
from procsv.ipc.messaging.launch_settings import LaunchSettings
from procsv.ipc.messaging.member_messages import Running
from procsv.watchdog.core.settings import AdoptedTask


class Newcomer(msgspec.Struct, frozen=True):
    """A launch that has come to host a task, and what it still has of the previous run."""

    task: TaskId
    host: str
    address: str  # of the task, for TensorFlow; "" if no task connects to it
    cluster: Cluster | None = None  # the previous run's; None: the launch has nothing of that run
    settings: LaunchSettings | None = None  # the previous run's
    running: Running | None = None  # the task, if it still runs


class SurvivingTasks(msgspec.Struct, frozen=True):
    """The tasks of the previous run that continue."""

    cluster: Cluster
    tasks: Mapping[TaskId, AdoptedTask]

    def address_of(self, task: TaskId) -> str:
        """Return the address at which the others look for `task`; "" if they do not."""
        return _addresses(self.cluster).get(task, "")


class NothingToAdopt(Exception):
    """All tasks must restart; the text says why."""


def adopt(newcomers: Sequence[Newcomer], settings: LaunchSettings) -> SurvivingTasks:
    """Return the tasks of the previous run that continue; NothingToAdopt if they cannot.

    At least one of `newcomers` has something of that run. `settings`: this launch's.
    """
    first, *others = (one for one in newcomers if one.cluster is not None)
    assert first.cluster is not None
    if settings.restart == "gang":
        raise NothingToAdopt("its tasks train in step: when the first one ends, so do the others")
    for one in (first, *others):
        if one.settings != settings:
            raise NothingToAdopt(f"{one.task} runs with other options than this launch")
        if one.cluster != first.cluster:
            raise NothingToAdopt(f"{one.task} and {first.task} know the other tasks at different addresses")
        if one.running is not None and one.running.in_step:
            raise NothingToAdopt(f"{one.task} trains in step with others, and cannot end a step without all of them")
    known = _addresses(first.cluster)
    for one in newcomers:
        if one.address != known.get(one.task, one.address):
            raise NothingToAdopt(f"{one.task} is at {one.address} now, but the others know it at {known[one.task]}")
        if one.task.role == PS and one.running is None:
            raise NothingToAdopt(f"{one.task} has ended, and the variables that it held are gone")
    running = {one.task: (one.host, one.running) for one in newcomers if one.running is not None}
    return SurvivingTasks(
        first.cluster,
        {task: AdoptedTask(host, r.incarnation, r.pid, r.is_ready) for task, (host, r) in running.items()},
    )


def _addresses(cluster: Cluster) -> dict[TaskId, str]:
    return {TaskId(role, index): text for role, texts in cluster.items() for index, text in enumerate(texts)}
