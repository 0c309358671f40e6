"""Taking the logdir for a run: its own directory, and the one that the run before has adopted from its program.

Called by main.py, before anything is started.
"""

from __future__ import annotations

import shlex
from typing import NamedTuple

import msgspec

from procsv.base.errors import UserError
from procsv.base.run.saved_step import saved_step
from procsv.ipc.messaging.start import Start
from procsv.watchdog.core.relaunch import Adopt, GoOn
from procsv.watchdog.edge.launch import Launch
from procsv.watchdog.edge.opening.adopted_logdir import AdoptedLogdir
from procsv.watchdog.edge.opening.logdir_lease import Wait
from procsv.watchdog.edge.opening.open_run import Opened, open_run, remove_run
from procsv.watchdog.edge.opening.request import make_request
from procsv.watchdog.edge.opening.run_before import RunBefore


class Taken(NamedTuple):
    start: Start  # as the launch was started, with what the run before says of its arguments and its logdir
    opened: Opened
    adopted: AdoptedLogdir | None  # where the run saves, if that is not its own directory
    program: str  # as in run.json; "" of one that is observed


def take_logdir(launch: Launch, wait: Wait) -> Taken:
    """UserError if another run has it, or the run that is there is not the one that is asked for; RunIsComplete.

    `wait` raises where the run is not wanted any more.
    """
    start = launch.start
    command = f"{'python' if start.observes else 'procsv launch'} {shlex.join((start.target, *start.args))}"
    request = make_request(launch, command, wait)
    if start.observes:
        return _take_adopted(launch, wait, open_run(request), GoOn(), "")
    before = RunBefore(start)
    opened = open_run(msgspec.structs.replace(request, judge=before.judge))
    return _take_adopted(launch, wait, opened, before.verdict, before.program)


def _take_adopted(launch: Launch, wait: Wait, opened: Opened, verdict: GoOn | Adopt, program: str) -> Taken:
    """The adopted logdir beside the run's own, if the program may name one."""
    start, say = launch.start, launch.console.say
    if isinstance(verdict, GoOn):
        start = msgspec.structs.replace(start, has_other_args=verdict.has_other_args)
        if verdict.text:
            say(verdict.text)
    if opened.adopted is None or not start.may_adopt(opened.adopted) or isinstance(verdict, Adopt):
        return Taken(start, opened, None, program)
    adopted = AdoptedLogdir(opened.adopted, start.paths.logdir, opened.lease, launch.clock)
    try:
        adopted.take(wait, say)
    except UserError:
        remove_run(start.paths, opened, keep_memory=True)
        raise
    opened.saved_step = saved_step(opened.adopted)
    return Taken(start.with_logdir(str(opened.adopted)), opened, adopted, program)
