"""Check the options of a run with several tasks or several machines, before anything is started.

Used by launch.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import click

from procsv.base.cluster import CHIEF, EVALUATOR, PS, WORKER
from procsv.base.location import is_remote
from procsv.base.placement import Placement


def check_tasks(settings: Mapping[str, Any]) -> None:
    """Raise a usage error for impossible tasks, or for options that need tasks where there are
    none.
    """
    tasks = settings["workers"] or settings["ps"] or settings["evaluators"]
    if not settings["has_chief"] and not settings["workers"]:
        raise click.UsageError(
            "--no-chief makes worker 0 the task whose state is saved; say with --workers how many workers there are"
        )
    if settings["restart"] == "gang" and settings["workers"] + settings["has_chief"] < 2:
        raise click.UsageError("--restart gang is for tasks that train together; say how many with --workers")
    if tasks and settings["standby"] == "hot":
        raise click.UsageError(
            "--standby hot runs the program as its one trainer; with several tasks, use --standby warm"
        )


def check_min_workers(settings: Mapping[str, Any]) -> None:
    """Raise a usage error for an impossible --min-workers. `settings` describe all tasks, from
    whatever source.
    """
    least, workers = settings["min_workers"], settings["workers"]
    if least is None:
        return
    if not workers:
        raise click.UsageError("--min-workers is for tasks that train beside a chief; say how many with --workers")
    if least > workers:
        raise click.UsageError(f"--min-workers {least} is more than there are: --workers is {workers}")
    if settings["restart"] == "gang":
        raise click.UsageError(
            "--min-workers cannot go with --restart gang: a gang takes no step without all of its own"
        )


def check_consistent_snapshots(settings: Mapping[str, Any]) -> None:
    """Raise a usage error without parameter servers. `settings` describe all tasks, from whatever
    source.
    """
    if settings["consistent_snapshots"] and not settings["ps"]:
        raise click.UsageError(
            "--consistent-snapshots is for variables on parameter servers; say with --ps how many servers there are"
        )


def place(placement: Placement, logdir: str | None, settings: Mapping[str, Any], *, has_secret: bool) -> dict[str, Any]:
    """Return the settings that follow from `placement`; a usage error for what several machines
    cannot do.
    """
    if logdir is None:
        raise click.UsageError(f"--logdir is needed: all {placement.ranks} launches of this run share one")
    if is_remote(logdir) and (placement.coordinator is None or not has_secret):
        how = (
            "give all of them a --secret-file"
            if placement.coordinator is not None
            else "start them with TF_CONFIG and a --secret-file"
        )
        raise click.UsageError(
            f"{logdir} is not a directory, so the launches of this run cannot meet in it: {how}, so that they find each other by address"
        )
    if settings["detach"]:
        raise click.UsageError("--detach would end this process, which its scheduler takes for the task")
    count = Counter(task.role for task in placement.tasks)
    roles = {"workers": count[WORKER], "ps": count[PS], "evaluators": count[EVALUATOR]}
    return {**roles, "has_chief": CHIEF in placement.tasks}
