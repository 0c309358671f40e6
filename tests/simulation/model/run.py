"""One simulated run, from its first launch to the end of training: `simulate(seed)`.

The user types `procsv launch` again whenever it ends before the training is complete. Faults stop
after a while; then the run must complete, with every invariant checked after every event on the
way.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from procsv.base.identity import WATCHDOG
from procsv.base.outcome import Exit
from procsv.watchdog.core.settings import Settings
from tests.simulation.model import faults, history
from tests.simulation.model.checkpoints import SAVE_PATH, is_safe, is_whole
from tests.simulation.model.collection import no_collection
from tests.simulation.model.group.draw import draw_group, draw_plan
from tests.simulation.model.invariants import Checker
from tests.simulation.model.processes import KILLED
from tests.simulation.model.program import Program, draw_program, value_from
from tests.simulation.model.watchdog import EXIT_LOCKED, Watchdog
from tests.simulation.model.world import Violation, World

EVENTS_MAX = 40_000  # events of one run; more means an endless loop
END_S_MAX = 600.0  # from the last disturbance to the end, in addition to the training's own time
LAUNCHES_MAX = 40
STATUS_EVERY_S = 3.0
DONE, GAVE_UP = 0, 70


class Run:
    """A world, its faults, and the person who types the command."""

    def __init__(
        self,
        seed: int,
        program: Program | None = None,
        plan: list[tuple[float, faults.Fault]] | None = None,
        trace: Callable[[str], None] | None = None,
        settings: Settings | None = None,
    ) -> None:
        self.rng = Random(seed)
        program = draw_program(self.rng) if program is None else program
        self.plan = faults.draw(self.rng) if plan is None else plan
        self.world = World(seed, program, settings)
        self.world.trace = trace
        self.checker = Checker(self.world)
        self.exit_code: int | None = None  # the last launch's code, once everything is over
        self.events = self.launches = 0
        self._is_sound = program.is_sound
        self.world.watchers.append(self._watch)
        for after_s, fault in self.plan:
            self.world.clock.after(after_s, lambda fault=fault: self._throw(fault))  # type: ignore[misc]
            self.world.disturb(after_s)
        self.world.clock.after(0.0, self._launch)
        self.world.clock.after(self.rng.uniform(0.0, STATUS_EVERY_S), self._ask)

    def _throw(self, fault: faults.Fault) -> None:
        if self.exit_code is None:
            said = fault(self, self.rng)
            if said:
                self.world.say(said)

    def _ask(self) -> None:
        if self.exit_code is None:
            self.world.ask_status()
            self.world.clock.after(STATUS_EVERY_S, self._ask)

    def _launch(self) -> None:
        self.launches += 1
        if self.launches > LAUNCHES_MAX:
            raise Violation(f"i7_ready_in_time: {LAUNCHES_MAX} launches, and the training has not come to its end")
        self.world.say(f"procsv launch, number {self.launches}")
        self.world.launch(self.launches)

    def lose_power(self) -> None:
        """Turn everything off at once. The machine comes back, and the user types the command again."""
        self.world.strays.clear()
        for process in list(self.world.processes.values()):
            process.die(KILLED, "power")
        self.world.memory.clear()
        self.world.clear_run_dir()
        self.world.events.lose_power()
        self.world.disk.lose_power()

    def _watch(self, fact: history.Fact) -> None:
        if isinstance(fact, history.Died) and fact.task == WATCHDOG:
            self._launch_ended(fact.exit)

    def _launch_ended(self, exit: Exit) -> None:
        watchdog = self.world.watchdog
        assert isinstance(watchdog, Watchdog)
        if exit.code == EXIT_LOCKED:
            self._end_what_is_named()
        if exit.code not in (None, EXIT_LOCKED):
            keep = watchdog.quit is not None and watchdog.quit.keep_memory
            self.world.note(history.LaunchEnded(exit.code, keep))
        if exit.code == GAVE_UP:
            self.world.broken.clear()  # a user who types it again has fixed what ends a task
        if exit.code == DONE or (exit.code == GAVE_UP and (not self._is_sound or self._is_hopeless())):
            self.exit_code = exit.code
        else:
            self.world.clock.after(self.rng.choice([0.1, 3.0, 30.0]), self._launch)

    def _end_what_is_named(self) -> None:
        """The launch was refused and named processes of an earlier run. End them by hand."""
        for process in list(self.world.processes.values()):
            if process.is_stuck:
                process.die(KILLED, "outside")

    def _is_hopeless(self) -> bool:
        """Return whether the faults left nothing to resume from: then giving up is right."""
        acknowledged, spoilt = self.checker.account.acknowledged, self.checker.account.spoilt
        whole = [path for path in acknowledged if path not in spoilt and is_whole(self.world.disk.files, path)]
        return bool(acknowledged) and not whole

    # -- the loop --------------------------------------------------------------------------------------------
    @no_collection()
    def go(self) -> Run:
        """Run to the end. Raises Violation if an invariant fails."""
        world = self.world
        limit_s = world.program.steps * max(world.program.step_s, 0.1) * 3 + END_S_MAX
        while self.exit_code is None:
            if not world.clock.step():
                raise Violation("i7_ready_in_time: nothing is to happen any more, and the training is not over")
            self.events += 1
            self.checker.after_event()
            if self.events > EVENTS_MAX or world.clock.now_s > max(1000.0, world.calm_from_s) + limit_s:
                raise Violation(f"i7_ready_in_time: not over after {self.events} events, {world.clock.now_s:.0f} s")
        self._look_at_result()
        return self

    def _look_at_result(self) -> None:
        if self.exit_code != DONE:
            return
        last, program = f"{SAVE_PATH}-{self.world.program.steps}", self.world.program
        if last in self.checker.account.spoilt:
            return
        content, ended = self.world.disk.files.get(f"{last}.data"), self.checker.account.finished
        value = value_from(program.first_value(ended.incarnation if ended is not None else 0), program.steps)
        if content is None or content.content != ("variables", program.steps, value):
            raise Violation("i11_bit_identical: the last checkpoint is not that of the last step")
        if not is_safe(self.world.disk.durable, last):
            raise Violation("i2_acknowledged_can_be_restored: the last checkpoint would not survive a power loss")


def simulate(seed: int, trace: Callable[[str], None] | None = None, *, has_tasks: bool = False) -> Run:
    """Simulate the run of that seed, with several tasks if `has_tasks`. Any error names the seed."""
    try:
        return (run_of_tasks(seed, trace) if has_tasks else Run(seed, trace=trace)).go()
    except BaseException as error:
        error.add_note(f"replay it with: scripts/simulate --seed {seed} {'--tasks ' * has_tasks}--verbose")
        raise


def run_of_tasks(seed: int, trace: Callable[[str], None] | None = None) -> Run:
    """Draw a run of several tasks from that seed."""
    rng = Random(f"tasks {seed}")
    program, settings = draw_group(rng)
    return Run(seed, program, draw_plan(rng), trace, settings)


def journaled(run: Run, event: str) -> list[history.Journaled]:
    """Return the run's entries of that kind in the journal."""
    return [fact for _, fact in run.world.facts if isinstance(fact, history.Journaled) and fact.event == event]
