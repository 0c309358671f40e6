"""Define the settings of the watchdog's core."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from procsv.base.identity import TRAINER, TaskId
from procsv.base.outcome import NO_STEP, STEPS, SaveHabit
from procsv.base.service_table import SERVICES, ServiceSpec
from procsv.ipc.messaging.launch_settings import LaunchSettings
from procsv.watchdog.core.restarts.goodput import Earlier


class AdoptedTask(msgspec.Struct, frozen=True):
    """A task on another machine that is already running: a previous coordinator started it."""

    host: str
    incarnation: int
    pid: int
    is_ready: bool = False  # its first step has ended, and the previous coordinator knew that


class Settings(msgspec.Struct, frozen=True):
    """The launch's options, and what is known of earlier launches in this logdir."""

    launch: LaunchSettings = msgspec.field(default_factory=LaunchSettings)
    learned_step_s: float = 0.0  # the median step of an earlier launch; 0.0: unknown
    began_step: int = NO_STEP  # the step at which the unfinished training of earlier launches began
    saved_step: int = NO_STEP  # the newest step visible on disk
    earlier: Earlier = Earlier()  # the goodput of earlier launches
    knows_imports: bool = False  # the program's imports are known, so a standby can be made before the first start
    observes: bool = False  # procsv did not start the program, and neither ends nor restarts it
    tasks: tuple[TaskId, ...] = (TRAINER,)  # the first is the chief, whose state is saved
    hosts: Mapping[TaskId, str] = msgspec.field(default_factory=dict)  # the machines of remote tasks
    adopted: Mapping[TaskId, AdoptedTask] = msgspec.field(default_factory=dict)
    host: str = ""  # this machine, if the run spans several
    habit: SaveHabit = STEPS  # the program's, as the last launch observed it
    services: Mapping[TaskId, ServiceSpec] = msgspec.field(default_factory=lambda: SERVICES)

    def host_of(self, task: TaskId) -> str:
        """Return the machine of a task; "" if all are on one."""
        return self.hosts.get(task, self.host)
