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

HEARTBEAT_S = 3.0  # of TensorFlow's coordination service, as procsv sets it
TEARDOWN_S_MAX = 3.5  # from the error to the end of the process


class Ring:
    """Those that have found each other, once."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.members: dict[TaskId, ProgramProcess] = {}
        self.arrived: dict[int, set[TaskId]] = {}  # by the step that they wait to make

    @property
    def lost(self) -> str:
        """A member that is dead; "" if all live."""
        return next((str(task) for task, member in self.members.items() if member.is_dead), "")

    @property
    def frozen(self) -> str:
        return next((str(task) for task, member in self.members.items() if member.is_frozen), "")

    @property
    def is_apart(self) -> bool:
        """Whether one of them cannot reach another: not on one machine."""
        return False

    @property
    def has_stuck(self) -> bool:
        return any(member.is_stuck_itself for member in self.members.values() if isinstance(member, InStep))

    def wake(self) -> None:
        for member in self.members.values():
            member.wake()


class Rings:
    """The rings of a run, one after the other."""

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
        """Of the first ring that is none too old for a process that is started now."""
        return self._ring.number + (not self._all or bool(self._ring.lost))

    def join(self, process: InStep) -> Ring:
        """One that was started before the loss of a member, and comes late, finds the ring broken."""
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
        """The connections of those in its ring are closed."""
        for ring in self._all:
            if ring.members.get(process.task) is process:
                ring.wake()


class InStep(Trainer):
    """The chief, which saves the state of all."""

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
        """Ends by TensorFlow's error if the ring is broken."""
        lost = ring.lost or ring.frozen or ("a task that cannot be reached" if ring.is_apart else "")
        if lost:
            yield self.world.rng.uniform(0.05, TEARDOWN_S_MAX)
            raise ProgramError("UnavailableError", "Collective ops is aborted", lost_peer=lost)

    @property
    def is_stuck_itself(self) -> bool:
        return super().is_stuck

    @property
    def is_stuck(self) -> bool:
        """One that is stuck holds up all, and they may be what is seen first."""
        return self.is_stuck_itself or (self._ring is not None and self._ring.has_stuck)


class Follower(InStep):
    """It starts from what the chief starts from, and saves nothing."""

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
        """The chief's is what counts; that they are the same shows at the first step."""

    def _say_restored(self) -> None:
        """The chief does."""

    def _reserve(self) -> None:
        """It has no slots."""

    def _snapshot(self, want: str) -> int | None:
        return None

    def _add_record(self, what: str) -> None:
        """It has no event file."""
