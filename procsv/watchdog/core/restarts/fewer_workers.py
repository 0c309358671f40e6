"""Workers that a run can do without: whether it goes on when one of its tasks is given up.

Used by roster.py.  Pure.  What counts is looked at anew each time, as a gang may form after a worker was given up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from procsv.base.cluster import WORKER
from procsv.base.identity import TaskId
from procsv.watchdog.core.restarts.restart_table import Follows


def workers_left(tasks: Iterable[TaskId], given_up: Mapping[TaskId, Follows]) -> int:
    """Workers that have not been given up.  One that has come to its own end has done what it was there for, and counts."""
    return sum(task.role == WORKER and task not in given_up for task in tasks)


def ends_run(tasks: Iterable[TaskId], given_up: Mapping[TaskId, Follows], least: int | None) -> list[TaskId]:
    """Those of `given_up`, each with what follows by the table, whose end is that of the run.

    `least`: so many workers have to be left (--min-workers); None: all.
    """
    enough = least is not None and workers_left(tasks, given_up) >= least
    ending = (Follows.RUN_ENDS,) if enough else (Follows.RUN_ENDS, Follows.FEWER)
    return [task for task, follows in given_up.items() if follows in ending]
