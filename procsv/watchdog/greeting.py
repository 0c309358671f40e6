"""The watchdog's first and last lines to people: where the run begins, how it has ended, and what is left in memory alone.

Used by main.py; what happens in between is said by the core.
"""

from __future__ import annotations

import contextlib

from procsv import __version__
from procsv.base.identity import attempt_name
from procsv.base.outcome import NO_STEP
from procsv.base.run.paths import shorten_path
from procsv.base.system.disk import free_bytes
from procsv.ipc.messaging.start import Start
from procsv.watchdog.core.reporting import wording
from procsv.watchdog.core.run import Core
from procsv.watchdog.core.task.trainer import TrainerSupervisor
from procsv.watchdog.edge.console import Console
from procsv.watchdog.edge.environment import PostMortem
from procsv.watchdog.edge.opening.open_run import Opened


def greet(console: Console, start: Start, opened: Opened, memory_step: int) -> None:
    where, adopted = shorten_path(start.root or start.logdir), shorten_path(start.logdir) if start.root else ""
    for line in wording.greet(__version__, where, adopted, memory_step, opened.saved_step, opened.habit):
        console.say(line)


def describe_kept(chief: TrainerSupervisor, start: Start, post_mortem: PostMortem) -> str:
    """What is said of a state that is in memory alone, and stays there; "" if there is none."""
    step = post_mortem.snapshot_step(chief.task)
    if step <= chief.durable_step:
        return ""
    logdir, free = start.paths.logdir, 0
    with contextlib.suppress(OSError):
        free = free_bytes(logdir)
    return wording.only_in_memory(step, post_mortem.snapshot_bytes(chief.task), free, shorten_path(str(logdir)))


def say_goodbye(console: Console, core: Core, start: Start, complete_step: int) -> None:
    """`complete_step`: at which the run before had come to its end."""
    task = core.chief
    match core.state_label:
        case "done":
            console.say(
                wording.ended(
                    task.step,
                    task.protection.has_session,
                    start.settings.drop_in,
                    task.progress.habit.unit,
                    was_complete=NO_STEP != task.step == complete_step,
                )
            )
        case "stopped":
            console.say(
                wording.stopped(
                    task.step,
                    task.durable_step,
                    deletes_logdir=task.deletes_logdir,
                    has_session=task.protection.has_session,
                    habit=task.progress.habit,
                )
            )
        case _:
            report = start.paths.crashes / f"{attempt_name(task.task, task.incarnation)}.txt"
            if report.is_file():
                console.say(f"what happened, in full: {shorten_path(str(report))}")
            else:
                console.say(f"reports of the crashes: {shorten_path(str(start.paths.crashes))}")
