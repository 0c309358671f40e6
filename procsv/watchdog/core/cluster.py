"""Relate the tasks of a run: which tasks there are, which train in step, and which wait for which.

Pure. run.py makes the objects of this module, and hands them the events that concern them. end/ and
service_events.py read them.

Some tasks take each step together; they are a gang. When a collective operation loses one member,
it fails for all of them: the other members would end with errors of their own, seconds later. So
when one member ends, the gang ends the others. No member restarts before the last old process is
gone, because a member of the new gang must never meet a member of the old one. The end of a gang
counts as one failure in the record that all members share (next_start.py). It is reported for the
member that ended first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from random import Random
from typing import Literal

from procsv.base.cluster import PS, STEPLESS, needs_address
from procsv.base.identity import TaskId
from procsv.base.journal import entries
from procsv.ipc.messaging.watchdog_messages import FirstStepDone
from procsv.ipc.shm.heartbeat import Phase
from procsv.watchdog.core.actions import Action, Say, WriteEntry
from procsv.watchdog.core.reporting import wording
from procsv.watchdog.core.restarts import restart_table
from procsv.watchdog.core.restarts.restart_table import TABLE, End, Follows, Policy, belongs_to_gang, duty_of
from procsv.watchdog.core.services import ServiceSupervisor
from procsv.watchdog.core.settings import Settings
from procsv.watchdog.core.task.lifecycle import TaskState
from procsv.watchdog.core.task.progress import ModelProgress
from procsv.watchdog.core.task.trainer import TrainerSupervisor

# Sources of state for which the restored steps of two tasks can be compared, because each task has read its state by
# itself. With any other source, the program may have distributed the chief's state by calls of its own.
READ_BY_ITSELF = ("memory", "checkpoint")
SAID_AFTER_S = 10.0  # how long a wait for a session lasts before it is reported; most last less than a second
Word = Literal["auto", "task", "gang"]


class Gang:
    """The chief and the workers of a run.

    They are a gang only if `policy` is GANG; otherwise each task restarts by itself.
    """

    def __init__(self, tasks: Mapping[TaskId, TrainerSupervisor], chief: TaskId, word: Word, now_s: float) -> None:
        """`word`: the user's choice (--restart). With "auto", the tasks become a gang once one of
        them has made a collective strategy.
        """
        self._members = {task: one for task, one in tasks.items() if belongs_to_gang(task, chief)}
        self._chief = self._members[chief]
        # With parameter servers, the others survive the loss of a worker: TensorFlow's runtime continues without it.
        self._may_bind = word == "auto" and len(self._members) > 1 and all(task.role != PS for task in tasks)
        self.policy = Policy.TASK
        self.generation = 1
        self._is_breaking = False
        self._start_s = now_s  # the earliest start of the next generation
        self._broke_s = now_s  # when the first member of the previous generation ended, or when the run began
        self._first: dict[TaskId, FirstStepDone] = {}  # the first steps of this generation
        self._is_formed = False
        self.failure = ""  # why the gang is not restarted
        if word == "gang":
            self._bind()

    @property
    def followers(self) -> frozenset[TaskId]:
        """The members of the gang other than the chief; none if there is no gang.

        They cannot take a step without the chief, which saves the state of all.
        """
        return self.members - {self._chief.task}

    @property
    def members(self) -> frozenset[TaskId]:
        """All members of the gang; none if each task runs by itself."""
        return frozenset(self._members) if self.policy is Policy.GANG else frozenset()

    def breaks(self, task: TaskId) -> bool:
        """Whether the gang is being ended for a restart, and `task` belongs to it."""
        return self._is_breaking and task in self._members

    def bound(self) -> None:
        """Note that a task has made a collective strategy.

        If the user's choice is "auto" and there are no parameter servers, the tasks become a gang.
        """
        if self._may_bind:
            self._bind()

    def _bind(self) -> None:
        if self.policy is Policy.GANG or len(self._members) < 2:
            return
        self.policy = Policy.GANG
        for member in self._members.values():
            member.bind(self._chief, len(self._members))

    def stand_for(self, meant: Collection[TrainerSupervisor]) -> list[TrainerSupervisor]:
        """Return the tasks to which a request for the tasks in `meant` must go.

        A request for a member of a gang goes to the chief. The chief saves and ends, and its end
        ends the other members of the gang.
        """
        if self.policy is Policy.TASK or not any(task.task in self._members for task in meant):
            return list(meant)
        return [self._chief, *(task for task in meant if task.task not in self._members)]

    # -- what happens --------------------------------------------------------------------------------------
    def break_up(self, ended: TaskId, now_s: float) -> list[Action]:
        """End the other members after `ended`. Do nothing if the gang is already being ended."""
        if self._is_breaking:
            return []
        self._is_breaking, self._broke_s, self._start_s = True, now_s, now_s
        self._members[ended].next.awaits_gang = True
        others = [member for task, member in self._members.items() if task != ended]
        return [wanted for member in others for wanted in member.end_with_gang(f"{ended} is gone", now_s)]

    def regroup(self, now_s: float) -> None:
        """Let all members start again, if the last old process is gone. Otherwise do nothing."""
        if not self._is_breaking or not all(member.is_gone for member in self._members.values()):
            return
        self._is_breaking = False
        self._first.clear()
        self._is_formed = False
        self.generation += 1
        start_s = max(self._start_s, *(member.restart_s or now_s for member in self._members.values()))
        for member in self._members.values():
            member.next.rejoin(start_s)

    def settled(self, now_s: float) -> list[Action]:
        """Handle the news that the chief's last state is on disk, or cannot be saved.

        The chief's state is the progress of all members. So if the restart of a member waits for
        this, it is decided now.
        """
        wanted: list[Action] = []
        for task, member in self._members.items():
            if self.policy is Policy.GANG and task != self._chief.task and self._chief.unsettled is None:
                wanted += member.decide_postponed(now_s)
        return wanted

    def ready(self, task: TaskId, first: FirstStepDone, now_s: float) -> list[Action]:
        """Handle the first step of a member.

        When all members have finished theirs, journal that the gang is formed. If two members have
        restored different steps, restart all.
        """
        if self.policy is Policy.TASK or task not in self._members or self._is_breaking:
            return []
        self._first.setdefault(task, first)
        begun = {one: said.restored_step for one, said in self._first.items() if said.source in READ_BY_ITSELF}
        if len(set(begun.values())) > 1:
            return self._disagree(", ".join(f"{one} with step {step}" for one, step in begun.items()), now_s)
        if len(self._first) < len(self._members) or self._is_formed:
            return []
        self._is_formed = True
        step, seconds = self._first[self._chief.task].restored_step, round(now_s - self._broke_s, 3)
        formed = entries.GangFormed(generation=self.generation, step=step, seconds=seconds)
        return [WriteEntry(formed, self._chief.task, self._chief.incarnation)]

    def _disagree(self, told: str, now_s: float) -> list[Action]:
        """Restart all members, because they train on different states. This counts as a failure.

        Without this check nobody would notice: the members would train without an error.
        """
        history, why = self._chief.history, f"the tasks did not start from the same state ({told})"
        history.no_progress_count += 1
        if history.is_spent():
            self.failure = f"{why}, and {history.spent_why()}"
            return []
        wanted: list[Action] = [Say(f"{why}: starting all again", is_bad=True)]
        self._is_breaking, self._broke_s, self._start_s = True, now_s, now_s + history.delay_s()
        for member in self._members.values():
            wanted += member.end_with_gang("the tasks did not start from the same state", now_s)
        return wanted


class Roster:
    """The parts of a run: its tasks, its services, and its gang.

    `keeper` is the service that saves the chief's state; None if the run has no such service.
    """

    def __init__(self, settings: Settings, first_incarnation: int, rng: Random, now_s: float) -> None:
        self.settings = settings
        self.tasks = {task: TrainerSupervisor(task, first_incarnation, settings, rng, now_s) for task in settings.tasks}
        self.model: ModelProgress | None = None  # the model on the parameter servers; None if the run has none
        if any(task.role == PS for task in self.tasks):
            self.model = ModelProgress()
            for name, one in self.tasks.items():
                one.progress.model = self.model if name.role not in STEPLESS else None
        self.chief = self.tasks[settings.tasks[0]]  # its state is saved, and its end ends the run
        self.services = {task: ServiceSupervisor(spec, settings) for task, spec in settings.services.items()}
        self.keeper = next((service for service in self.services.values() if service.spec.keeps_state), None)
        self.gang = Gang(self.tasks, self.chief.task, settings.launch.restart, now_s)
        for task in self.tasks.values():
            task.next.goes_on_with = partial(self._goes_on_with, task)

    def running_on(self) -> list[TrainerSupervisor]:
        """Return the tasks that run or will be restarted.

        While the run ends, an unkillable task is not one of them.
        """
        return [task for task in self.tasks.values() if not task.ends_run]

    def restartable(self, name: TaskId | None) -> list[TrainerSupervisor]:
        """Return the tasks to ask when `name` is to restart.

        If `name` is None, all tasks are to restart except parameter servers, which hold the state
        of the other tasks.
        """
        meant = [task for task in self.running_on() if name in (None, task.task)]
        return self.gang.stand_for([t for t in meant if name is not None or t is self.chief or t.task.role != PS])

    def what_follows(self, task: TrainerSupervisor, end: End) -> Follows:
        """Return what follows from the end of `task`. If it was given up, `end` is ignored."""
        return TABLE[duty_of(task.task, self.chief.task), self.gang.policy, End.GAVE_UP if task.gave_up else end]

    def given_up(self) -> list[TrainerSupervisor]:
        """Return the given-up tasks that the run cannot continue without."""
        follows, least = self._follow_from_given_up(), self.settings.launch.min_workers
        return [self.tasks[name] for name in restart_table.indispensable(self.tasks, follows, least)] if follows else []

    def done_without(self) -> list[TrainerSupervisor]:
        """Return the tasks that were given up while the run continued."""
        ending = self.given_up()
        return [task for task in self.tasks.values() if task.gave_up and task not in ending]

    def trains_in_step(self) -> list[Action]:
        """Handle the news that a task has made a collective strategy: the tasks may become a gang.

        A gang needs all its members. If it forms, warn a user who has set --min-workers.
        """
        was = self.gang.policy
        self.gang.bound()
        if self.gang.policy is was or self.settings.launch.min_workers is None:
            return []
        return [Say(wording.NONE_IS_SPARED, is_bad=True)]

    def _goes_on_with(self, task: TrainerSupervisor) -> int | None:
        """Return how many workers are left after `task` was given up; None if the run ends."""
        if task in self.given_up():
            return None
        return restart_table.workers_left(self.tasks, self._follow_from_given_up())

    def _follow_from_given_up(self) -> dict[TaskId, Follows]:
        return {name: self.what_follows(task, End.GAVE_UP) for name, task in self.tasks.items() if task.gave_up}


def servers_of(tasks: Mapping[TaskId, TrainerSupervisor]) -> list[TrainerSupervisor]:
    return [task for task in tasks.values() if task.task.role == PS]


def find_awaited(
    one: TrainerSupervisor,
    tasks: Mapping[TaskId, TrainerSupervisor],
    chief: TaskId,
    now_s: float,
    servers: Sequence[TrainerSupervisor],
) -> TaskId | None:
    """Return the task that `one` waits for; None if no such wait is visible.

    There are three kinds of wait. A task that trains in step with others waits inside its step
    while another task is still in a callback. A task that uses variables of a parameter server
    waits for that server, and gets no error. With servers, a worker waits until the chief has made
    the model. The watchdog does not count a wait towards the limit for a hang.

    `servers`: the servers among `tasks`. A caller that asks about many tasks lists them once.
    """
    if one.task.role in STEPLESS or not one.pid or one.progress.phase in (None, Phase.IMPORT):
        return None
    if one.next.gang_size and one.hanging.liveness.waits_in_step:
        others = (task for task in tasks.values() if task is not one and task.next.gang_size and task.pid)
        if (late := next((task for task in others if task.hanging.liveness.phase is not Phase.STEP), None)) is not None:
            return late.task
    for server in servers:
        # Wait only for a server that has served: a ps task may run a program that starts no TensorFlow server.
        if server.progress.has_served and (not server.is_serving or server.is_suspect(now_s)):
            return server.task
    makes_model = bool(servers) and one.task != chief and one.progress.phase is Phase.CONNECT
    return chief if makes_model and tasks[chief].life.state is not TaskState.RUNNING else None


class WaitsInVain:
    """Find tasks that wait for a session although another task has ended with exit code 0.

    TensorFlow may wait forever for the task that has ended, and does not report that it waits.
    """

    def __init__(self) -> None:
        self._since_s: dict[TaskId, float] = {}
        self._said: set[TaskId] = set()

    def find_in_vain(self, tasks: Mapping[TaskId, TrainerSupervisor], now_s: float) -> list[Say]:
        """Return the messages to print, once per task."""
        done = [name for name, task in tasks.items() if task.life.state is TaskState.DONE and needs_address(name)]
        said = []
        for name, task in tasks.items():
            if not (done and task.pid and task.progress.phase is Phase.CONNECT):
                self._since_s.pop(name, None)
            elif now_s - self._since_s.setdefault(name, now_s) >= SAID_AFTER_S and name not in self._said:
                self._said.add(name)
                said.append(Say(wording.waits_for_done(name, done, SAID_AFTER_S), is_bad=True))
        return said
