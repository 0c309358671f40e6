"""One simulated run on several machines, from the first start of its job to the end of training:
`simulate_machines(seed)`.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tests.simulation.model.checkpoints import SAVE_PATH
from tests.simulation.model.collection import no_collection
from tests.simulation.model.machines import faults
from tests.simulation.model.machines.draw import Drawn, draw_fleet
from tests.simulation.model.machines.fleet import Fleet
from tests.simulation.model.machines.invariants import FleetChecker
from tests.simulation.model.program import value_at
from tests.simulation.model.world import Violation

EVENTS_MAX = 2_000_000
END_S_MAX = 1500.0  # from the last disturbance to the end, in addition to the training's own time


class FleetRun:
    def __init__(
        self,
        seed: int,
        drawn: Drawn,
        plan: list[tuple[float, faults.Fault]],
        trace: Callable[[str], None] | None = None,
    ) -> None:
        self.rng, self.plan, self.drawn = Random(seed), plan, drawn
        self.fleet = Fleet(
            seed,
            drawn.program,
            drawn.settings,
            drawn.spares,
            drawn.node_timeout_s,
            drawn.pause_s,
            names_tasks=drawn.names_tasks,
            revives_s=drawn.revives_s,
            bytes_per_s=drawn.bytes_per_s,
        )
        self.fleet.trace = trace
        self.checker = FleetChecker(self.fleet)
        self.events = 0
        for after_s, fault in plan:
            self.fleet.clock.after(after_s, lambda fault=fault: self._throw(fault))  # type: ignore[misc]
            self.fleet.allow(after_s)

    def _throw(self, fault: faults.Fault) -> None:
        if not self.fleet.scheduler.is_done and (said := fault(self, self.rng)):
            self.fleet.say(said)

    @property
    def is_over(self) -> bool:
        return self.fleet.scheduler.is_done and not self.fleet.living

    @no_collection()
    def go(self) -> FleetRun:
        """Run to the end. Raises Violation if an invariant fails."""
        fleet = self.fleet
        limit_s = fleet.program.steps * fleet.program.step_s * 3 + END_S_MAX
        while not self.is_over:
            if not fleet.clock.step():
                raise Violation("i7_ready_in_time: nothing is to happen any more, and the training is not over")
            self.events += 1
            self.checker.after_event()
            if self.events > EVENTS_MAX or fleet.clock.now_s > max(1000.0, fleet.calm_from_s) + limit_s:
                living = ", ".join(f"{p.task} {p.incarnation}" for p in fleet.living)
                raise Violation(
                    f"i7_ready_in_time: not over after {self.events} events, {fleet.clock.now_s:.0f} s; alive: {living}"
                )
        self._look_at_result()
        return self

    def _look_at_result(self) -> None:
        steps = self.fleet.program.steps
        content = self.fleet.logdir.disk.files.get(f"{SAVE_PATH}-{steps}.data")
        if content is None or content.content != ("variables", steps, value_at(steps)):
            raise Violation("i11_bit_identical: the last checkpoint is not that of the last step")


def draw_run(seed: int, machines: int | None = None, trace: Callable[[str], None] | None = None) -> FleetRun:
    rng = Random(f"machines {machines} {seed}")
    drawn = draw_fleet(rng, machines)
    return FleetRun(seed, drawn, faults.draw(rng), trace)


def simulate_machines(seed: int, machines: int | None = None, trace: Callable[[str], None] | None = None) -> FleetRun:
    """Simulate the run of that seed. Any error names the seed."""
    try:
        return draw_run(seed, machines, trace).go()
    except BaseException as error:
        many = "" if machines is None else f" {machines}"
        error.add_note(f"replay it with: scripts/simulate --seed {seed} --machines{many} --verbose")
        raise
