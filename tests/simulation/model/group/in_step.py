"""Tasks that take each step together, as under MultiWorkerMirroredStrategy: a ring with a chief and
its followers.

It models TensorFlow's collectives: when a member has died or is stopped, the ring is broken for
all, and each other member fails with an error some time later. Nobody can rejoin the ring.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from procsv.base.cluster import EVALUATOR, PS
from procsv.base.identity import CHECKPOINT, WATCHDOG, TaskId
from procsv.ipc.messaging.checkpoint_messages import RestoreFrom
from procsv.ipc.messaging.watchdog_messages import TrainsInStep
from procsv.ipc.shm.heartbeat import Phase
from tests.simulation.model import history
from tests.simulation.model.program import ProgramError
from tests.simulation.model.program_process import Doing, ProgramProcess, Wait
from tests.simulation.model.trainer import Trainer

if TYPE_CHECKING:
    from tests.simulation.model.world import World

HEARTBEAT_S = 3.0  # for TensorFlow's coordination service, as procsv sets it
TEARDOWN_S_MAX = 3.5  # from the error to the end of the process


class Ring:
    """Tasks that have found each other once."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.members: dict[TaskId, ProgramProcess] = {}
        self.arrived: dict[int, set[TaskId]] = {}  # by the step that they wait for

    @property
    def lost(self) -> str:
        """Return a dead member, or "" if all live."""
        return next((str(task) for task, member in self.members.items() if member.is_dead), "")

    @property
    def frozen(self) -> str:
        return next((str(task) for task, member in self.members.items() if member.is_frozen), "")

    @property
    def is_apart(self) -> bool:
        """Return whether one member cannot reach another. On one machine that never happens."""
        return False

    @property
    def has_stuck(self) -> bool:
        return any(member.is_stuck_itself for member in self.members.values() if isinstance(member, InStep))

    def wake(self) -> None:
        for member in self.members.values():
            member.wake()


class Rings:
    """The rings of a run in sequence."""

    def __init__(self, tasks: Sequence[TaskId]) -> None:
        self.size = len([task for task in tasks if task.role not in (PS, EVALUATOR)])
        self._ring = self._new_ring(0)
        self._all: list[Ring] = []

    def _new_ring(self, number: int) -> Ring:
        return Ring(number)

    def find(self, number: int) -> Ring:
        return next(ring for ring in self._all if ring.number == number)

    @property
    def next_number(self) -> int:
        """Return the first ring that a process started now can join."""
        return self._ring.number + (not self._all or bool(self._ring.lost))

    def join(self, process: InStep) -> Ring:
        """Join. A task started before a member was lost, which arrives late, finds the ring broken."""
        if self._ring.number < process.first_ring or process.task in self._ring.members:
            self._ring = self._new_ring(self._ring.number + 1)
            self._all.append(self._ring)
        ring = self._ring
        older = [str(task) for old in self._all[:-1] for task, one in old.members.items() if not one.is_dead]
        ring.members[process.task] = process
        process.world.note(history.Joined(process.task, ring.number, tuple(older)))
        ring.wake()
        return ring

    def died(self, process: ProgramProcess) -> None:
        """Close the connections of the tasks in its ring."""
        for ring in self._all:
            if ring.members.get(process.task) is process:
                ring.wake()


class InStep(Trainer):
    """The chief, which saves the state for all."""

    _ring: Ring | None = None

    def __init__(self, world: World, *args: Any, **origin: Any) -> None:
        self.first_ring = world.rings.next_number
        super().__init__(world, *args, **origin)

    def _find_others(self) -> Doing:
        self._tell(WATCHDOG, TrainsInStep())
        ring = self._ring = self.world.rings.join(self)
        while len(ring.members) < self.world.rings.size:
            yield (lambda: len(ring.members) == self.world.rings.size or bool(ring.lost)), HEARTBEAT_S
            yield from self._check(ring)

    def _make_step(self) -> Generator[Wait, bool, bool]:
        ring, number = self._ring, self.step + 1
        assert ring is not None
        arrived = ring.arrived.setdefault(number, set())
        arrived.add(self.task)
        ring.wake()

        def is_met() -> bool:
            return len(arrived) == self.world.rings.size and not ring.is_apart

        while not is_met():
            yield (lambda: is_met() or bool(ring.lost)), HEARTBEAT_S
            if not is_met():
                yield from self._check(ring)
        yield from super()._make_step()
        self.world.note(history.Stepped(self.task, ring.number, (self.step, self.value)))
        return True

    def _check(self, ring: Ring) -> Doing:
        """Fail with TensorFlow's error if the ring is broken."""
        lost = ring.lost or ring.frozen or ("a task that cannot be reached" if ring.is_apart else "")
        if lost:
            yield self.world.rng.uniform(0.05, TEARDOWN_S_MAX)
            raise ProgramError("UnavailableError", "Collective ops is aborted", lost_peer=lost)

    @property
    def is_stuck_itself(self) -> bool:
        return super().is_stuck

    @property
    def is_stuck(self) -> bool:
        """Return whether it is stuck. One stuck member blocks all, and another may be seen first."""
        return self.is_stuck_itself or (self._ring is not None and self._ring.has_stuck)


class Follower(InStep):
    """Restores what the chief restores, and saves nothing."""

    peers: ClassVar[tuple[TaskId, ...]] = (WATCHDOG, CHECKPOINT)

    def _main(self) -> Doing:
        yield self._import_s
        self.world.program.check_import(self.incarnation)
        yield from self._find_others()
        self.phase = Phase.RESTORE
        yield from self._restore()
        self.phase = Phase.COMPILE
        yield from self._train()

    def _note_restored(self, answer: RestoreFrom) -> None:
        """Do nothing: the chief's restore counts, and the first step shows whether they agree."""

    def _say_restored(self) -> None:
        """Do nothing: the chief reports it."""

    def _reserve(self) -> None:
        """Do nothing: a follower has no slots."""

    def _snapshot(self, want: str) -> int | None:
        return None

    def _add_record(self, what: str) -> None:
        """Do nothing: a follower has no event file."""
