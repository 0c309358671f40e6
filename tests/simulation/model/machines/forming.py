"""Gather the launches of the coordinator's run, in turns. The rules for who may join, what
continues and what they learn are real.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from procsv.base.cluster import needs_address
from procsv.base.errors import UserError
from procsv.base.identity import TaskId
from procsv.base.placement import Placement
from procsv.ipc.messaging.endpoint import Received
from procsv.ipc.messaging.start import Start
from procsv.watchdog.machines.forming import Forming
from tests.simulation.model.machines.links import LinkServer

if TYPE_CHECKING:
    from tests.simulation.model.machines.fleet import Fleet
    from tests.simulation.model.machines.machine_world import MachineWorld
    from tests.simulation.model.machines.scheduler import Slot

TAKEN_CHANCE = 0.1  # the chance that the port is taken when it is wanted again


def told_addresses(fleet: Fleet) -> dict[TaskId, str] | None:
    """Return the addresses if a scheduler gives names that move with the tasks."""
    if not fleet.names_tasks:
        return None
    return {task: f"{task}.job:2222" for task in fleet.tasks if needs_address(task)}


def place(world: MachineWorld, slot: Slot) -> Placement:
    fleet = world.fleet
    return Placement(
        kind="slurm",
        rank=slot.rank,
        ranks=len(slot.attempt.slots),
        launch=slot.task,
        task=slot.task,
        tasks=fleet.tasks,
        spares=slot.spares,
        scheduler=slot.attempt.scheduler,
        host=world.name,
        addresses=told_addresses(fleet) if not slot.has_moved else None,
        coordinator=None,
    )


class SimPorts:
    """The HeldPorts of one machine."""

    def __init__(self, fleet: Fleet, taken_chance: float = TAKEN_CHANCE) -> None:
        self._fleet, self._taken_chance = fleet, taken_chance

    def hold_own(self, task: TaskId, host: str, told: Mapping[TaskId, str] | None) -> dict[TaskId, str]:
        if not needs_address(task):
            return {}
        if told is None:
            return {task: f"{host}:{self._fleet.new_port()}"}
        if not self._fleet.names_tasks and self._fleet.rng.random() < self._taken_chance:
            raise UserError(f"{told[task]} is taken")
        return {task: told[task]}


class SimForming(Forming):
    def __init__(self, start: Start, world: MachineWorld, slot: Slot, server: LinkServer) -> None:
        any_server: Any = server
        self._is_at_address = False
        self._expect(start, place(world, slot), any_server, world.clock, world.name)

    def hear(self) -> None:
        while (received := self.server.receive()) is not None:
            self._hear(received)
        self.server.resend_due()

    @property
    def asked(self) -> Mapping[TaskId, Received]:
        return self._asked

    @property
    def runs_before(self) -> set[str]:
        """Return the earlier runs of the launches that have joined."""
        bodies: list[Any] = [received.body for received in self._asked.values()]
        return {json.loads(body.served.start)["run"] for body in bodies if body.served is not None}
