"""Roster of a run: its tasks, its services, its standby, and the gang that binds tasks together.

Made by run.py, which hands each event to whom it concerns; read by end/ and service_events.py.  Pure.
"""

from __future__ import annotations

from functools import partial
from random import Random

from procsv.base.cluster import PS, STEPLESS
from procsv.base.identity import TaskId
from procsv.watchdog.core.actions import Action, Say
from procsv.watchdog.core.cluster.gang import Gang
from procsv.watchdog.core.reporting import wording
from procsv.watchdog.core.restarts import restart_table
from procsv.watchdog.core.restarts.restart_table import TABLE, End, Follows, duty_of
from procsv.watchdog.core.services.service import ServiceSupervisor
from procsv.watchdog.core.settings import Settings
from procsv.watchdog.core.task.progress import ModelProgress
from procsv.watchdog.core.task.standby import Standby
from procsv.watchdog.core.task.trainer import TrainerSupervisor


class Roster:
    """`out` takes the actions of all of them, in the order in which they are to be done."""

    def __init__(self, settings: Settings, first_incarnation: int, rng: Random, now_s: float) -> None:
        self.settings = settings
        self.out: list[Action] = []
        self.standby = Standby(settings.launch.standby, self.out)
        self.tasks = {
            task: TrainerSupervisor(task, first_incarnation, settings, rng, now_s, self._standby_of(task), self.out)
            for task in settings.tasks
        }
        self.model: ModelProgress | None = None  # on servers
        if any(task.role == PS for task in self.tasks):
            self.model = ModelProgress()
            for name, one in self.tasks.items():
                one.progress.model = self.model if name.role not in STEPLESS else None
        self.chief = self.tasks[settings.tasks[0]]  # its state is the one that is saved; its end ends the run
        self.services = {task: ServiceSupervisor(spec, settings, self.out) for task, spec in settings.services.items()}
        self.keeper = next((service for service in self.services.values() if service.spec.keeps_state), None)
        self.gang = Gang(self.tasks, self.chief.task, settings.launch.restart, self.out, now_s)
        for task in self.tasks.values():
            task.next.goes_on_with = partial(self._goes_on_with, task)

    def _standby_of(self, task: TaskId) -> Standby:
        """What starts are made from; a task of another machine starts cold, as far as is known here."""
        return Standby("off", self.out) if task in self.settings.hosts else self.standby

    def take_actions(self) -> list[Action]:
        taken = list(self.out)
        self.out.clear()
        return taken

    def running_on(self) -> list[TrainerSupervisor]:
        """The tasks that have not ended for good."""
        return [task for task in self.tasks.values() if not task.ends_run]

    def restartable(self, name: TaskId | None) -> list[TrainerSupervisor]:
        """Those to ask for a new start of the task `name`; None: of all but servers, which hold the others' state."""
        meant = [task for task in self.running_on() if name in (None, task.task)]
        return self.gang.stand_for([t for t in meant if name is not None or t is self.chief or t.task.role != PS])

    def what_follows(self, task: TrainerSupervisor, end: End) -> Follows:
        """From the end of a task; one that is given up has no other."""
        return TABLE[duty_of(task.task, self.chief.task), self.gang.policy, End.GAVE_UP if task.gave_up else end]

    def given_up(self) -> list[TrainerSupervisor]:
        """Those whose end is that of the run."""
        follows, least = self._follow_from_given_up(), self.settings.launch.min_workers
        return [self.tasks[name] for name in restart_table.ends_run(self.tasks, follows, least)] if follows else []

    def done_without(self) -> list[TrainerSupervisor]:
        """Those that were given up, and the run has gone on."""
        ending = self.given_up()
        return [task for task in self.tasks.values() if task.gave_up and task not in ending]

    def trains_in_step(self) -> None:
        """A task has made a collective strategy: from now on they may be a gang, which can do without nobody."""
        was = self.gang.policy
        self.gang.bound()
        if self.gang.policy is was or self.settings.launch.min_workers is None:
            return
        self.out.append(Say(wording.NONE_IS_SPARED, is_bad=True))

    def _goes_on_with(self, task: TrainerSupervisor) -> int | None:
        """How many workers are left now that `task` is given up; None: the run ends."""
        if task in self.given_up():
            return None
        return restart_table.workers_left(self.tasks, self._follow_from_given_up())

    def _follow_from_given_up(self) -> dict[TaskId, Follows]:
        return {name: self.what_follows(task, End.GAVE_UP) for name, task in self.tasks.items() if task.gave_up}
