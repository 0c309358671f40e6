"""What tasks on several machines see of each other: servers, and rings that a cut breaks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from procsv.base.identity import TaskId
from tests.simulation.model.group.in_step import Ring, Rings
from tests.simulation.model.group.served import Servers
from tests.simulation.model.processes import Process

Joins = Callable[[Process, str], bool]  # whether that machine reaches the process and gets an answer


class SeenServers(Servers):
    """A run's servers as seen from one machine: unreachable ones do not answer, as if stopped."""

    def __init__(self, of_run: Servers, machine: str, joins: Joins) -> None:
        self._names, self._shards = of_run._names, of_run._shards
        self._machine, self._joins = machine, joins

    @property
    def are_frozen(self) -> bool:
        cut_off = not all(self._joins(shard.process, self._machine) for shard in self._shards.values())
        return cut_off or super().are_frozen


class SpreadRing(Ring):
    def __init__(self, number: int, joins: Callable[[Process, Process], bool]) -> None:
        super().__init__(number)
        self._joins = joins

    @property
    def is_apart(self) -> bool:
        members = list(self.members.values())
        return bool(members) and not all(self._joins(members[0], other) for other in members[1:])


class SpreadRings(Rings):
    def __init__(self, tasks: Sequence[TaskId], joins: Callable[[Process, Process], bool]) -> None:
        self._joins = joins
        super().__init__(tasks)

    def _new_ring(self, number: int) -> Ring:
        return SpreadRing(number, self._joins)
