"""The request to open a run: what a launch has in hand when it takes the run's directory.

Made by take_run.py, and by the launch of a member (machines/member.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec
import psutil

from procsv.base.clock import Clock
from procsv.base.run.lease import Lease, find_place
from procsv.base.run.paths import RunPaths
from procsv.base.run.run_file import RunFile
from procsv.base.system.processes import identify
from procsv.ipc.messaging.start import Start
from procsv.watchdog.edge.launch import Launch
from procsv.watchdog.edge.opening.logdir_lease import Wait
from procsv.watchdog.edge.signals import Unwanted


def _go_on(before: RunFile) -> None:
    """Whatever run is there is gone on with."""


class OpenRequest(msgspec.Struct, frozen=True, kw_only=True):
    paths: RunPaths
    us: Lease
    clock: Clock
    grace_s: float
    wait: Wait
    say: Callable[[str], None]
    group_readable: bool = False
    # Whether another machine's lease is watched before it is taken; not where somebody else decides who of two is heard.
    watches_lease: bool = True
    # Raises if the run that is there is not to be gone on with; nothing of it has been changed then.
    judge: Callable[[RunFile], None] = _go_on


def make_request(launch: Launch, what: str, wait: Wait) -> OpenRequest:
    """`what`: this launch, for people who find the directory in use.  `wait` raises where the run is not wanted any more."""
    start = launch.start
    return OpenRequest(
        paths=start.paths,
        us=_make_lease(start, what, launch.clock.wall()),
        clock=launch.clock,
        grace_s=start.settings.grace_s,
        wait=wait,
        say=launch.console.say,
        group_readable=start.settings.group_readable,
    )


def _make_lease(start: Start, what: str, wall_s: float) -> Lease:
    """Ours, of the logdir; Unwanted if the program that we are to observe has ended."""
    try:
        process = identify(start.observes or os.getpid())
    except psutil.NoSuchProcess:
        raise Unwanted("the program has ended") from None
    return Lease(
        run=start.run,
        place=find_place(),
        pid=process.pid,
        started=process.started,
        what=what,
        since=wall_s,
        renewed=wall_s,
    )
