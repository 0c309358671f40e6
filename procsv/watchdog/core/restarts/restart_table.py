"""Define what follows from the end of one task.

That depends on the task's duty, on how it ended, and on the policy: whether each task restarts
alone, or all as a gang. Used by run.py and cluster.py. Pure. Each combination of duty, policy and
end has its row. The tasks of a run may become a gang after a worker was given up. So cluster.py
looks up again, each time it needs to know, whether the run can continue without its given-up
workers. This table does not limit restarts: restart_policy.py counts failures, and next_start.py
decides whether a task starts again, and when.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum, auto

from procsv.base.cluster import EVALUATOR, PS, WORKER
from procsv.base.identity import TaskId


class Duty(Enum):
    CHIEF = auto()  # the task whose state is saved: a single trainer, the chief, or worker.0 if there is no chief
    WORKER = auto()
    PS = auto()
    EVALUATOR = auto()


class Policy(Enum):
    TASK = auto()  # each task restarts alone, while the others run on
    GANG = auto()  # the training tasks take each step together, and cannot continue without any of them


class End(Enum):
    FINISHED = auto()  # exit 0
    RETURNED = auto()  # exit 75 while the run goes on, or a planned restart: the task has saved, so restart it
    DIED = auto()  # anything else
    GAVE_UP = auto()  # the task is not restarted


class Follows(Enum):
    NOTHING = auto()
    AGAIN = auto()  # restart it; the others are not affected
    ALL_AGAIN = auto()  # end all training tasks, and restart them together when the old ones are gone
    FEWER = auto()  # the others continue if enough workers are left; otherwise the run ends (`indispensable` decides)
    RUN_ENDS = auto()


_D, _P, _E, _F = Duty, Policy, End, Follows

_BY_THEMSELVES: dict[tuple[Duty, End], Follows] = {
    (_D.CHIEF, _E.FINISHED): _F.RUN_ENDS,
    (_D.CHIEF, _E.RETURNED): _F.AGAIN,
    (_D.CHIEF, _E.DIED): _F.AGAIN,
    (_D.CHIEF, _E.GAVE_UP): _F.RUN_ENDS,
    (_D.WORKER, _E.FINISHED): _F.NOTHING,
    (_D.WORKER, _E.RETURNED): _F.AGAIN,
    (_D.WORKER, _E.DIED): _F.AGAIN,
    (_D.WORKER, _E.GAVE_UP): _F.FEWER,
    (_D.PS, _E.FINISHED): _F.NOTHING,
    (_D.PS, _E.RETURNED): _F.AGAIN,
    (_D.PS, _E.DIED): _F.AGAIN,
    (_D.PS, _E.GAVE_UP): _F.RUN_ENDS,
    (_D.EVALUATOR, _E.FINISHED): _F.NOTHING,
    (_D.EVALUATOR, _E.RETURNED): _F.AGAIN,
    (_D.EVALUATOR, _E.DIED): _F.AGAIN,
    (_D.EVALUATOR, _E.GAVE_UP): _F.NOTHING,  # an evaluator only reads what is saved
}
_OF_A_GANG: dict[tuple[Duty, End], Follows] = {
    (_D.CHIEF, _E.RETURNED): _F.ALL_AGAIN,
    (_D.CHIEF, _E.DIED): _F.ALL_AGAIN,
    (_D.WORKER, _E.RETURNED): _F.ALL_AGAIN,
    (_D.WORKER, _E.DIED): _F.ALL_AGAIN,
    (_D.WORKER, _E.GAVE_UP): _F.RUN_ENDS,  # without it the others cannot take a step
}

TABLE: Mapping[tuple[Duty, Policy, End], Follows] = {
    **{(duty, policy, end): follows for (duty, end), follows in _BY_THEMSELVES.items() for policy in Policy},
    **{(duty, _P.GANG, end): follows for (duty, end), follows in _OF_A_GANG.items()},
}


def duty_of(task: TaskId, chief: TaskId) -> Duty:
    if task == chief:
        return Duty.CHIEF
    return {PS: Duty.PS, EVALUATOR: Duty.EVALUATOR}.get(task.role, Duty.WORKER)


def belongs_to_gang(task: TaskId, chief: TaskId) -> bool:
    """Whether `task` belongs to the gang, if the run has one."""
    return duty_of(task, chief) in (Duty.CHIEF, Duty.WORKER)


def workers_left(tasks: Iterable[TaskId], given_up: Mapping[TaskId, Follows]) -> int:
    """Return how many workers have not been given up.

    A worker that has finished counts, because it has done its job.
    """
    return sum(task.role == WORKER and task not in given_up for task in tasks)


def indispensable(tasks: Iterable[TaskId], given_up: Mapping[TaskId, Follows], least: int | None) -> list[TaskId]:
    """Return the given-up tasks that the run cannot continue without.

    `given_up`: for each given-up task, what TABLE says. `least`: how many workers must be left
    (--min-workers); None: all of them.
    """
    enough = least is not None and workers_left(tasks, given_up) >= least
    ending = (Follows.RUN_ENDS,) if enough else (Follows.RUN_ENDS, Follows.FEWER)
    return [task for task, follows in given_up.items() if follows in ending]
