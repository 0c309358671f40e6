"""Waiting tasks: those whose progress is another's to make.

Used by run.py, for hangs, and by status.py.  Pure.  A call on variables that live on a parameter server waits for that server
without an error, and a worker waits until its chief has made the model.  Of tasks that train in step, one that has begun a step
waits in it while another is still in a callback.  As long as they wait, the time that passes is not theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from procsv.base.cluster import PS, STEPLESS, needs_address
from procsv.base.identity import TaskId
from procsv.ipc.shm.heartbeat import Phase
from procsv.watchdog.core.actions import Say
from procsv.watchdog.core.reporting import wording
from procsv.watchdog.core.task.lifecycle import State
from procsv.watchdog.core.task.trainer import TrainerSupervisor

SAID_AFTER_S = 10.0  # of a wait for a session; most are made within a second


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


class WaitsInVain:
    """Those that wait for a session while another task has ended with exit code 0: TensorFlow may wait for that one, and never says so."""

    def __init__(self) -> None:
        self._since_s: dict[TaskId, float] = {}
        self._said: set[TaskId] = set()

    def look(self, tasks: Mapping[TaskId, TrainerSupervisor], now_s: float) -> list[Say]:
        """What there is to say, once of each task."""
        done = [name for name, task in tasks.items() if task.life.state is State.DONE and needs_address(name)]
        said = []
        for name, task in tasks.items():
            if not (done and task.pid and task.progress.phase is Phase.CONNECT):
                self._since_s.pop(name, None)
            elif now_s - self._since_s.setdefault(name, now_s) >= SAID_AFTER_S and name not in self._said:
                self._said.add(name)
                said.append(Say(wording.waits_for_done(name, done, SAID_AFTER_S), is_bad=True))
        return said
