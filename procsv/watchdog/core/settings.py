"""Settings of the watchdog's core."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from procsv.base.identity import TRAINER, TaskId
from procsv.base.outcome import NO_STEP, STEPS, SaveHabit
from procsv.base.service_table import SERVICES, ServiceSpec
from procsv.ipc.messaging.launch_settings import LaunchSettings
from procsv.watchdog.core.restarts.goodput import Earlier


class AdoptedTask(msgspec.Struct, frozen=True):
    """A task that runs already, on another machine: it has outlived the coordinator before this one."""

    host: str
    incarnation: int
    pid: int
    is_ready: bool = False  # its first step has ended, as the coordinator before was told


class Settings(msgspec.Struct, frozen=True):
    """What the watchdog was told, and what an earlier launch in this logdir has left."""

    launch: LaunchSettings = msgspec.field(default_factory=LaunchSettings)
    learned_step_s: float = 0.0  # the median of an earlier launch; 0.0: none is known
    began_step: int = NO_STEP  # of a training that it has not brought to its end
    saved_step: int = NO_STEP  # the newest step that is on disk, as far as can be seen
    earlier: Earlier = Earlier()  # what the launches before this one were good for
    knows_imports: bool = False  # of the program, so that its host can prepare the first start
    observes: bool = False  # the program was started by somebody else: it is neither ended nor started again
    tasks: tuple[TaskId, ...] = (TRAINER,)  # the first is the chief: its state is the one that is saved
    hosts: Mapping[TaskId, str] = msgspec.field(default_factory=dict)  # of the tasks that run on other machines
    adopted: Mapping[TaskId, AdoptedTask] = msgspec.field(default_factory=dict)
    host: str = ""  # this machine, where there are others
    habit: SaveHabit = STEPS  # of the program's last start
    services: Mapping[TaskId, ServiceSpec] = msgspec.field(default_factory=lambda: SERVICES)

    def host_of(self, task: TaskId) -> str:
        """The machine that a task is on; "" where all are on one."""
        return self.hosts.get(task, self.host)
