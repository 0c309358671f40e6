"""Measure what the members of a run on several machines cost their coordinator: CPU seconds of its
turns in a calm minute.

Called by __main__.py. The core, the event loop, the table of remote tasks and delivery are the real
ones, without sockets. The additional cost of ZeroMQ and the kernel is in `scripts/bench machines`,
which measures real processes.
"""

from __future__ import annotations

import cProfile
import pstats
import time
from typing import Any

import msgspec

from tests.simulation.model.machines.coordinator import CoordinatorLaunch
from tests.simulation.model.machines.draw import Drawn
from tests.simulation.model.machines.run import FleetRun
from tests.simulation.model.program import Program
from tests.simulation.model.world import LAUNCH

MEMBERS = (1, 8, 32, 64)
SETTLE_S, SECONDS = 30.0, 120.0  # in simulated time
SHOWN = 25  # lines of a profile


def show_cost(*, has_profile: bool) -> int:
    """Print a row for each number of members; with `has_profile`, also where the time goes with the
    largest number.
    """
    print("members  turns a second  CPU ms a second  % of a core  us a second and member")
    for members in MEMBERS:
        profile = cProfile.Profile(time.process_time) if has_profile and members == MEMBERS[-1] else None
        turns, cpu_s = _measure(members, profile)
        ms = 1e3 * cpu_s / SECONDS
        print(f"{members:7}  {turns / SECONDS:14.1f}  {ms:15.2f}  {ms / 10:11.2f}  {1e3 * ms / members:22.0f}")
        if profile is not None:
            pstats.Stats(profile).sort_stats("tottime").print_stats(SHOWN)
    return 0


def _measure(members: int, profile: cProfile.Profile | None) -> tuple[int, float]:
    """Return the turns of the coordinator's loop, and their CPU seconds, over `SECONDS` with
    nothing but training.
    """
    settings = msgspec.structs.replace(LAUNCH, standby="off", workers=members, ps=0)
    steps = int(2 * (SETTLE_S + SECONDS))
    program = Program(steps=steps, step_s=1.0, snapshot_s=1e6, save_secs=1e6, together="in step")
    run = FleetRun(1, Drawn(program, settings, 0, 1e6, 1.0), [])
    turns, cpu_s, is_counting = 0, 0.0, False
    launches: Any = CoordinatorLaunch
    serve = CoordinatorLaunch._serve  # one turn of a process in real life

    def timed(launch: CoordinatorLaunch) -> None:
        nonlocal turns, cpu_s
        if not is_counting:
            serve(launch)
            return
        began_s = time.process_time()
        if profile is None:
            serve(launch)
        else:
            profile.runcall(serve, launch)
        turns, cpu_s = turns + 1, cpu_s + time.process_time() - began_s

    launches._serve = timed
    try:
        clock = run.fleet.clock
        began_s = clock.now_s
        while clock.now_s < began_s + SETTLE_S + SECONDS:
            is_counting = clock.now_s >= began_s + SETTLE_S
            clock.step()
    finally:
        launches._serve = serve
    return turns, cpu_s
