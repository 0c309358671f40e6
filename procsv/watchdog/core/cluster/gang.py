"""Manage the tasks of a run that take each step together and are restarted together.

Used by run.py. Pure. A collective that loses one member is broken for all of them: the others would
end with errors of their own, seconds later. So the first end ends them all, and none is restarted
before the last of them is gone, because a member of the new gang must never meet a member of the
old one.

The end of a gang is one failure. It is charged to, and reported for, the member that ended first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

from procsv.base.cluster import PS
from procsv.base.identity import TaskId
from procsv.base.journal import entries
from procsv.ipc.messaging.watchdog_messages import FirstStepDone
from procsv.watchdog.core.actions import Action, Say, WriteEntry
from procsv.watchdog.core.restarts.restart_table import Policy, is_trained_by
from procsv.watchdog.core.task.trainer import TrainerSupervisor

# Sources that a task reads by itself; a program may instead distribute its chief's state with calls of its own.
READ_BY_ITSELF = ("memory", "checkpoint")
Word = Literal["auto", "task", "gang"]


class Gang:
    """The tasks that train, the chief first, whether or not they are bound together."""

    def __init__(self, tasks: Mapping[TaskId, TrainerSupervisor], chief: TaskId, word: Word, now_s: float) -> None:
        """`word`: the user's choice; auto binds the tasks once one of them has made a collective
        strategy.
        """
        self._members = {task: one for task, one in tasks.items() if is_trained_by(task, chief)}
        self._chief = self._members[chief]
        # With parameter servers, the others survive the loss of a worker: TensorFlow's runtime continues without it.
        self._may_bind = word == "auto" and len(self._members) > 1 and all(task.role != PS for task in tasks)
        self.policy = Policy.TASK
        self.generation = 1
        self._is_breaking = False
        self._start_s = now_s  # the earliest next start
        self._broke_s = now_s  # when the first member of the previous generation ended, or when the run began
        self._first: dict[TaskId, FirstStepDone] = {}  # the first steps of this generation
        self._is_formed = False
        self.failure = ""  # why it is not restarted
        if word == "gang":
            self._bind()

    @property
    def followers(self) -> frozenset[TaskId]:
        """The members of a gang that cannot take a step without the chief, which saves the state of
        all.
        """
        return self.members - {self._chief.task}

    @property
    def members(self) -> frozenset[TaskId]:
        """All members of a gang; none if each task runs by itself."""
        return frozenset(self._members) if self.policy is Policy.GANG else frozenset()

    def breaks(self, task: TaskId) -> bool:
        """Whether `task` belongs to a gang that is being ended for a restart."""
        return self._is_breaking and task in self._members

    def bound(self) -> None:
        """A member has made a collective strategy."""
        if self._may_bind:
            self._bind()

    def _bind(self) -> None:
        if self.policy is Policy.GANG or len(self._members) < 2:
            return
        self.policy = Policy.GANG
        for member in self._members.values():
            member.bind(self._chief, len(self._members))

    def stand_for(self, meant: Collection[TrainerSupervisor]) -> list[TrainerSupervisor]:
        """Return the tasks to ask for what `meant` should do.

        For a gang that is the chief, which saves, and whose end ends the others.
        """
        if self.policy is Policy.TASK or not any(task.task in self._members for task in meant):
            return list(meant)
        return [self._chief, *(task for task in meant if task.task not in self._members)]

    # -- what happens --------------------------------------------------------------------------------------
    def break_up(self, ended: TaskId, now_s: float) -> list[Action]:
        """End the others after `ended`, the first of this generation that has ended."""
        if self._is_breaking:
            return []
        self._is_breaking, self._broke_s, self._start_s = True, now_s, now_s
        self._members[ended].next.is_held = True
        others = [member for task, member in self._members.items() if task != ended]
        return [wanted for member in others for wanted in member.leave_gang(f"{ended} is gone", now_s)]

    def regroup(self, now_s: float) -> None:
        """Let all members start again once the old ones are gone."""
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
        """The chief's last state is on disk, or cannot be saved: that decides the progress of the
        member that ended first, too.
        """
        wanted: list[Action] = []
        for task, member in self._members.items():
            if self.policy is Policy.GANG and task != self._chief.task and self._chief.unsettled is None:
                wanted += member.weigh_verdict(now_s)
        return wanted

    def ready(self, task: TaskId, first: FirstStepDone, now_s: float) -> list[Action]:
        """A member has finished its first step."""
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
        """Restart all members, as after any failure, because they train on different states.

        Their steps alone would never show it.
        """
        history, why = self._chief.history, f"the tasks did not start from the same state ({told})"
        history.no_progress_count += 1
        if history.is_spent():
            self.failure = f"{why}, and {history.spent_why()}"
            return []
        wanted: list[Action] = [Say(f"{why}: starting all again", is_bad=True)]
        self._is_breaking, self._broke_s, self._start_s = True, now_s, now_s + history.delay_s()
        for member in self._members.values():
            wanted += member.leave_gang("the tasks did not start from the same state", now_s)
        return wanted
