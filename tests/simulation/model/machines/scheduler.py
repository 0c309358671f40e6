"""A batch scheduler: it starts a job's launches, gives up machines it cannot reach, and restarts
the job until it is done.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from procsv.base import exit_codes
from procsv.base.identity import TaskId
from procsv.base.outcome import Exit
from tests.simulation.model.machines.coordinator import CoordinatorLaunch
from tests.simulation.model.machines.launch import AGAIN, Launch
from tests.simulation.model.machines.links import SCHEDULER
from tests.simulation.model.machines.member import MemberLaunch
from tests.simulation.model.processes import KILLED

if TYPE_CHECKING:
    from tests.simulation.model.machines.fleet import Fleet
    from tests.simulation.model.machines.machine_world import MachineWorld

POLL_S = 5.0
START_S_MAX = 3.0  # from a job's first launch to its last
KILL_WAIT_S = 30.0  # from SIGTERM to SIGKILL
REFUSED_S = 40.0  # added to the pause if another one has the logdir
AGAIN_S = 0.3  # a launch that restarts is a new program
ATTEMPTS_MAX = 40
REVIVALS_MAX = 4  # revivals of one launch


@dataclass(eq=False)
class Slot:
    """One launch of one start of the job, through all of its processes."""

    attempt: Attempt
    rank: int
    task: TaskId
    spares: tuple[TaskId, ...]
    world: MachineWorld
    launch: Launch | None = None
    code: int | None = None  # its exit code; None: it was killed
    is_over: bool = False
    unseen_s: float | None = None  # when the scheduler lost contact with its machine
    revivals: int = 0

    @property
    def has_moved(self) -> bool:
        """Return whether the run has restarted without a lost machine."""
        return len(self.attempt.slots) > len(self.attempt.tasks) + len(self.spares)


@dataclass(eq=False)
class Attempt:
    number: int
    scheduler: str  # the name that procsv gets
    tasks: tuple[TaskId, ...] = ()
    slots: list[Slot] = field(default_factory=list)
    is_over: bool = False


class Scheduler:
    def __init__(
        self, fleet: Fleet, node_timeout_s: float, pause_s: float, *, no_kill: bool, revives_s: float | None
    ) -> None:
        """`no_kill`: a job that loses a machine goes on without it. `pause_s` precedes a restart of
        a job.

        `revives_s` is the time within which one killed or lost launch is started again; None:
        never.
        """
        self._fleet, self._node_timeout_s, self._pause_s, self._no_kill = fleet, node_timeout_s, pause_s, no_kill
        self.revives_s = revives_s
        self.attempts: list[Attempt] = []
        self.is_done = False
        fleet.clock.after(0.0, self.start_job)
        fleet.clock.after(POLL_S, self._poll)

    @property
    def attempt(self) -> Attempt:
        return self.attempts[-1]

    # -- starting --------------------------------------------------------------------------------------------
    def start_job(self) -> None:
        fleet = self._fleet
        number = len(self.attempts) + 1
        if number > ATTEMPTS_MAX:
            fleet.fail(
                "i7_ready_in_time", f"{ATTEMPTS_MAX} starts of the job, and the training has not come to its end"
            )
        attempt = Attempt(number, f"slurm:{number}", fleet.tasks)
        self.attempts.append(attempt)
        fleet.say(f"the scheduler starts the job, number {number}")
        names = (*fleet.tasks, *fleet.spares)
        for rank, (name, world) in enumerate(zip(names, fleet.free_worlds(len(names)), strict=True)):
            slot = Slot(attempt, rank, name, fleet.spares, world)
            attempt.slots.append(slot)
            fleet.clock.after(fleet.rng.uniform(0.0, START_S_MAX), lambda slot=slot: self._launch(slot))  # type: ignore[misc]

    def _launch(self, slot: Slot) -> None:
        if slot.attempt.is_over or slot.world.is_off:
            slot.is_over = True
            return
        kind = CoordinatorLaunch if slot.rank == 0 else MemberLaunch
        slot.launch = kind(slot.world, slot)

    # -- ends ------------------------------------------------------------------------------------------------
    def launch_ended(self, launch: Launch, exit: Exit) -> None:
        slot = launch.slot
        if exit == AGAIN and launch.moves_to is not None:
            slot.task, slot.spares = launch.moves_to.task, launch.moves_to.spares
            self._fleet.clock.after(AGAIN_S, lambda: self._launch(slot))
            return
        if slot.is_over:
            return  # it has a successor
        is_refused = slot.rank == 0 and slot.revivals > 0 and exit.code == exit_codes.LOGDIR_UNUSABLE
        if (exit.code is None or is_refused) and not slot.world.is_off and self._revive(slot, slot.world):
            return
        if slot.world.is_off and self.revives_s is not None:
            return  # it will notice in time
        slot.code, slot.is_over = exit.code, True
        self._look_at(slot.attempt)

    def _look_at(self, attempt: Attempt) -> None:
        """Check whether it is over, and what follows."""
        if attempt.is_over or not all(slot.is_over for slot in attempt.slots):
            return
        attempt.is_over = True
        if attempt.slots[0].code == 0:
            self.is_done = True
        elif attempt is self.attempt:
            self._fleet.broken.clear()  # a person who restarts the job has fixed what ends a task
            is_refused = attempt.slots[0].code == exit_codes.LOGDIR_UNUSABLE
            self._fleet.clock.after(self._pause_s + REFUSED_S * is_refused, self.start_job)

    def _poll(self) -> None:
        fleet = self._fleet
        now_s = fleet.clock.now_s
        if not self.is_done:
            fleet.clock.after(POLL_S, self._poll)
        for slot in self.attempt.slots:
            if slot.is_over or self.attempt.is_over:
                continue
            if not slot.world.is_off and fleet.links.joins(SCHEDULER, slot.world.name):
                slot.unseen_s = None
                continue
            slot.unseen_s = now_s if slot.unseen_s is None else slot.unseen_s
            if now_s >= slot.unseen_s + self._node_timeout_s:
                self._lost(slot)
        self._look_at(self.attempt)

    def _lost(self, slot: Slot) -> None:
        fleet, attempt = self._fleet, slot.attempt
        fleet.say(f"the scheduler gives {slot.world.name} up")
        if self._revive(slot, None):
            return
        slot.is_over = True
        if self._no_kill:
            return
        for other in attempt.slots:
            if not other.is_over and other.launch is not None:
                self._end(other)

    def _revive(self, slot: Slot, world: MachineWorld | None) -> bool:
        """Start that launch again, here, or elsewhere while the old one may live. Return whether it will start."""
        fleet = self._fleet
        others = [other for other in slot.attempt.slots if other is not slot and not other.is_over]
        if self.revives_s is None or slot.revivals >= REVIVALS_MAX or slot.attempt.is_over or not others:
            return False
        again = Slot(slot.attempt, slot.rank, slot.task, slot.spares, world or fleet.free_worlds(1)[0])
        again.revivals = slot.revivals + 1
        slot.attempt.slots[slot.rank], slot.is_over = again, True

        def launch() -> None:
            if not again.attempt.is_over and not again.is_over:
                fleet.say(f"launch {again.rank} is started again, on {again.world.name}")
                self._launch(again)

        fleet.allow(self.revives_s + fleet.settings.coordinator_timeout_s)
        fleet.clock.after(self.revives_s, launch)
        return True

    def _end(self, slot: Slot) -> None:
        """Send SIGTERM, and SIGKILL later if its machine can then be reached."""
        fleet = self._fleet
        if slot.launch is not None and fleet.links.joins(SCHEDULER, slot.world.name):
            slot.launch.stop("SIGTERM", is_notice=True)

        def kill() -> None:
            launch = slot.launch
            if launch is None or launch.is_dead or not fleet.links.joins(SCHEDULER, slot.world.name):
                return
            for process in [*launch.children, launch]:
                process.die(KILLED, "outside")

        fleet.clock.after(KILL_WAIT_S, kill)

    def notify(self, slots: list[Slot]) -> None:
        """Send a notice: the machines of those launches are wanted for something else."""
        for slot in slots:
            if slot.launch is not None and not slot.is_over:
                slot.launch.stop("SIGTERM", is_notice=True)
