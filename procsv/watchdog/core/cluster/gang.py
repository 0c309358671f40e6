"""The tasks of a run that take each step together, and are started again together.

Used by run.py.  Pure.  A collective that loses one of its members is broken for all of them, whatever the others do: they would
end by an error of their own, seconds later.  So with the first end all are ended, and none is started again before the last of them
is gone: a member of the new gang must never meet one of the old.

One end of a gang is one failure: it is counted for, and told of, the member that ended first.
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

READ_BY_ITSELF = (
    "memory",
    "checkpoint",
)  # sources; another program may share its chief's state out by a call of its own
Word = Literal["auto", "task", "gang"]


class Gang:
    """`members`: all tasks that train, the chief first, whether they are bound together or not."""

    def __init__(
        self, tasks: Mapping[TaskId, TrainerSupervisor], chief: TaskId, word: Word, out: list[Action], now_s: float
    ) -> None:
        """`word`: what the user has said; auto: they are bound once one of them has made a collective strategy."""
        self._members = {task: one for task, one in tasks.items() if is_trained_by(task, chief)}
        self._chief, self._out = self._members[chief], out
        # With servers a lost worker is no loss to the others: TensorFlow's own runtime goes on without it.
        self._may_bind = word == "auto" and len(self._members) > 1 and all(task.role != PS for task in tasks)
        self.policy = Policy.TASK
        self.generation = 1
        self._is_breaking = False
        self._start_s = now_s  # not before
        self._broke_s = now_s  # when the first of the generation before has ended; of none, the start of the run
        self._first: dict[TaskId, FirstStepDone] = {}  # of those of this generation
        self._is_formed = False
        self.failure = ""  # why it is not started again
        if word == "gang":
            self._bind()

    @property
    def followers(self) -> frozenset[TaskId]:
        """Those of a gang that cannot take a step without the chief, who saves the state of all."""
        return self.members - {self._chief.task}

    @property
    def members(self) -> frozenset[TaskId]:
        """All of a gang; nobody where each is by itself."""
        return frozenset(self._members) if self.policy is Policy.GANG else frozenset()

    def breaks(self, task: TaskId) -> bool:
        """Whether `task` is of a gang that is being ended, to be started again."""
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
        """Those to ask for what `meant` are to do: of a gang the chief, who saves, and whose end ends the others."""
        if self.policy is Policy.TASK or not any(task.task in self._members for task in meant):
            return list(meant)
        return [self._chief, *(task for task in meant if task.task not in self._members)]

    # -- what happens --------------------------------------------------------------------------------------
    def break_up(self, ended: TaskId, now_s: float) -> None:
        """`ended` is the first of this generation that has ended."""
        if self._is_breaking:
            return
        self._is_breaking, self._broke_s, self._start_s = True, now_s, now_s
        self._members[ended].next.is_held = True
        for task, member in self._members.items():
            if task != ended:
                member.leave_gang(f"{ended} is gone", now_s)

    def regroup(self, now_s: float) -> None:
        """Lets all in again, once none of the old ones is left."""
        if not self._is_breaking or not all(member.is_gone for member in self._members.values()):
            return
        self._is_breaking = False
        self._first.clear()
        self._is_formed = False
        self.generation += 1
        start_s = max(self._start_s, *(member.restart_s or now_s for member in self._members.values()))
        for member in self._members.values():
            member.next.rejoin(start_s)

    def settled(self, now_s: float) -> None:
        """What the chief has left is on disk, or cannot be: it is progress for the one that ended first, too."""
        for task, member in self._members.items():
            if self.policy is Policy.GANG and task != self._chief.task and self._chief.unsettled is None:
                member.weigh_verdict(now_s)

    def ready(self, task: TaskId, first: FirstStepDone, now_s: float) -> None:
        """The first step of a member has ended."""
        if self.policy is Policy.TASK or task not in self._members or self._is_breaking:
            return
        self._first.setdefault(task, first)
        begun = {one: said.restored_step for one, said in self._first.items() if said.source in READ_BY_ITSELF}
        if len(set(begun.values())) > 1:
            self._disagree(", ".join(f"{one} with step {step}" for one, step in begun.items()), now_s)
        elif len(self._first) == len(self._members) and not self._is_formed:
            self._is_formed = True
            step, seconds = self._first[self._chief.task].restored_step, round(now_s - self._broke_s, 3)
            formed = entries.GangFormed(generation=self.generation, step=step, seconds=seconds)
            self._out.append(WriteEntry(formed, self._chief.task, self._chief.incarnation))

    def _disagree(self, told: str, now_s: float) -> None:
        """They train on different states, which no step of theirs would ever show: all begin anew, as after any failure."""
        history, why = self._chief.history, f"the tasks have not begun with the same state ({told})"
        history.no_progress_count += 1
        if history.is_spent():
            self.failure = f"{why}, and {history.spent_why()}"
            return
        self._out.append(Say(f"{why}: starting all again", is_bad=True))
        self._is_breaking, self._broke_s, self._start_s = True, now_s, now_s + history.delay_s()
        for member in self._members.values():
            member.leave_gang("the tasks had not begun with the same state", now_s)
