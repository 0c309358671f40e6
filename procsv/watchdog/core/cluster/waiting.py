"""Waiting tasks: those whose progress is another's to make.

Used by run.py, for hangs, and by status.py.  Pure.  A call on variables that live on a parameter server waits for that server
without an error, and a worker waits until its chief has made the model.  Of tasks that train in step, one that has begun a step
waits in it while another is still in a callback.  As long as they wait, the time that passes is not theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from procsv.base.cluster import PS, STEPLESS
from procsv.base.identity import TaskId
from procsv.ipc.shm.heartbeat import Phase
from procsv.watchdog.core.task.lifecycle import State
from procsv.watchdog.core.task.trainer import TrainerSupervisor


def servers_of(tasks: Mapping[TaskId, TrainerSupervisor]) -> list[TrainerSupervisor]:
    return [task for task in tasks.values() if task.task.role == PS]


def find_awaited(
    one: TrainerSupervisor,
    tasks: Mapping[TaskId, TrainerSupervisor],
    chief: TaskId,
    now_s: float,
    servers: Sequence[TrainerSupervisor] | None = None,
) -> TaskId | None:
    """The task that `one` waits for; None if it waits for nobody, as far as can be seen.

    `servers`: those of `tasks`, for whoever asks of many tasks at once.
    """
    if one.task.role in STEPLESS or not one.pid or one.progress.phase in (None, Phase.IMPORT):
        return None
    if one.next.gang_size and one.hanging.liveness.waits_in_step:
        others = (task for task in tasks.values() if task is not one and task.next.gang_size and task.pid)
        if (late := next((task for task in others if task.hanging.liveness.phase is not Phase.STEP), None)) is not None:
            return late.task
    servers = servers_of(tasks) if servers is None else servers
    for server in servers:
        # One that has never served may be none: a program can do without TensorFlow's servers.
        if server.progress.has_served and (not server.is_serving or server.is_suspect(now_s)):
            return server.task
    makes_model = bool(servers) and one.task != chief and one.progress.phase is Phase.CONNECT
    return chief if makes_model and tasks[chief].life.state is not State.RUNNING else None
