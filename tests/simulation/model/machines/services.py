"""The checkpoint service on one of several machines.

It saves in phases, between which its machine can be frozen, and checks before each phase that the
logdir is still its run's, as services/checkpoint/store/checkpoint_store.py does.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, TypeVar

from procsv.base.run.lease import lost_to
from procsv.base.run.manifest import Reason
from procsv.base.system.processes import ExternalProcess
from procsv.ipc.messaging.checkpoint_messages import CheckpointPlan, Durable
from procsv.ipc.messaging.start import Start
from procsv.services.checkpoint.core.facts import DiskState, FoundCheckpoint, SavableState
from procsv.services.checkpoint.orphan_shutdown import OrphanShutdown
from procsv.services.checkpoint.store.checkpoint_store import Store
from procsv.services.checkpoint.worker import Outcomes, Worker
from tests.simulation.model.checkpoints import SAVE_PATH, base_name, files_of
from tests.simulation.model.machines import facts
from tests.simulation.model.machines.copies import SimSender
from tests.simulation.model.machines.shared import SharedLogdir, SimLeaseFile, SimLeaseKeeper
from tests.simulation.model.services import (
    ServiceProcess,
    SimEnvironment,
    SimOrphanShutdown,
    SimWorker,
)
from tests.simulation.model.store import SimStore

if TYPE_CHECKING:
    from tests.simulation.model.machines.machine_world import MachineWorld

T = TypeVar("T")
LOOK_S = 0.5  # how often a job that waits for a disk or a stopped machine is checked
STEP_S_MAX = 0.01  # for a step of a commit after the last look at the lease
Phases = Generator[float, None, Durable]


class PhasedWorker(SimWorker):
    """A job may be a generator of the seconds between its phases."""

    def __init__(self, process: ServiceProcess, outcomes: Outcomes, world: MachineWorld) -> None:
        super().__init__(process, outcomes)
        self._machine = world
        self._phases: Phases | None = None

    def _end(self) -> None:
        if not self._process.is_dead and not self._machine.sees_logdir:
            self._process.world.clock.after(LOOK_S, self._end)
        else:
            super()._end()

    def _run_jobs(self) -> None:
        job, over = self._todo[0]
        try:
            result = next(self._phases) if self._phases is not None else job()
            if isinstance(result, Generator):
                self._phases = result
                result = next(self._phases)
        except StopIteration as ended:
            self._over(over, None, ended.value)
        except Exception as error:  # noqa: BLE001  as worker.py: a job that fails is an outcome
            self._over(over, error, None)
        else:
            if self._phases is None:
                self._over(over, None, result)
            else:
                assert isinstance(result, float)
                self._has_begun = True
                self._process.world.clock.after(result, self._end)

    def _over(self, over: Callable[[Exception | None, object], None], error: Exception | None, result: object) -> None:
        self._todo.popleft()
        self._phases = None
        over(error, result)
        self._process.world.memory.release(self._process.pid)

    def _begin(self) -> None:
        if self._phases is None:
            super()._begin()

    def interrupt(self) -> None:
        """Leave what is between two phases as it is."""
        if self._phases is None:
            super().interrupt()
        self._phases = None
        self._todo.clear()


class FencedStore(SimStore):
    def __init__(self, world: MachineWorld, start: Start) -> None:
        super().__init__(world.disk, world.memory, start, world.last_run, world.clock)
        self._world, self._logdir = world, world.fleet.logdir
        self._lease = SimLeaseFile(self._logdir)

    def _check_lease(self) -> None:
        if (taken := lost_to(self._lease, self._run)) is not None:
            raise OSError(f"{taken.place.host} has taken the logdir")

    def _take_fence(self) -> None:
        """From here on we are the writer."""
        self._logdir.disk.writer = self._run

    def _take_up(self) -> None:
        if not self._is_recovered:
            self._check_lease()
        super()._take_up()
        if self._is_recovered:
            self._world.fleet.note(facts.Opened(self._run), self._world)

    def open(self) -> None:
        self._take_fence()
        super().open()

    def list_checkpoints(self, plan: CheckpointPlan) -> DiskState:
        self._take_fence()
        return super().list_checkpoints(plan)

    def find_checkpoint(self, plan: CheckpointPlan, before: int = -1) -> FoundCheckpoint:
        self._check_lease()
        self._take_fence()
        return super().find_checkpoint(plan, before)

    def persist(self, state: SavableState, reason: Reason, plan: CheckpointPlan | None) -> Durable:
        phases: Any = self._persist_in_phases(state, reason, plan)  # PhasedWorker turns them into a Durable
        return phases  # type: ignore[no-any-return]

    def _persist_in_phases(self, state: SavableState, reason: Reason, plan: CheckpointPlan | None) -> Phases:
        assert plan is not None
        self._check_lease()
        content = ("variables", state.step, self._value(state))
        self._take_fence()
        self._make_ready()
        path, staging = f"{SAVE_PATH}-{state.step}", self._staging_of(state)
        self._disk.remove_all(f"{staging}/")
        try:
            for name, part in zip(files_of(path), (content, ("index", *content[1:])), strict=True):
                self._disk.write(f"{staging}/{base_name(name)}", part)
                yield self._logdir.disk.rng.uniform(0.0, 0.2)
                self._take_fence()
            for name in files_of(path):
                self._disk.fsync(f"{staging}/{base_name(name)}")
        except (OSError, KeyError) as error:  # KeyError: a missing file
            self._discard(staging)
            raise OSError(str(error)) from error
        self._check_lease()
        steps, done = self._put_in_steps(path, staging, state, reason, plan), 0
        try:
            while True:
                self._world.strike_commit(done)
                yield self._logdir.disk.rng.uniform(0.0, STEP_S_MAX)
                self._take_fence()
                next(steps)
                done += 1
        except StopIteration as ended:
            durable: Durable = ended.value
            return durable
        except KeyError as error:
            raise OSError(str(error)) from error


class MachineOrphanShutdown(SimOrphanShutdown):
    def __init__(
        self, world: MachineWorld, start: Start, trainers: list[ExternalProcess], now_s: float, logdir: SharedLogdir
    ) -> None:
        super().__init__(world, start, trainers, now_s)
        lease = logdir.lease
        is_ours = lease is not None and lease.run == start.run
        self._keeper = SimLeaseKeeper(logdir, lease, now_s) if lease is not None and is_ours else None
        self._logdir = logdir

    def tidy(self, keep_memory: bool, now_wall_s: float) -> None:
        super().tidy(keep_memory, now_wall_s)
        SimLeaseFile(self._logdir).remove(self._start.run)


class MachineEnvironment(SimEnvironment):
    def __init__(self, process: ServiceProcess, start: Start, world: MachineWorld) -> None:
        super().__init__(process, start)
        self._machine = world

    def store(self) -> Store:
        self._store = FencedStore(self._machine, self._told)
        return self._store

    def worker(self, name: str, outcomes: Outcomes, niceness: int = 0) -> Worker:
        return PhasedWorker(self._process, outcomes, self._machine)

    def sender(self) -> Any:
        sender: Any = SimSender(self._process, self._machine.memory)
        self._process.workers.append(sender)  # it ends with the process
        return sender

    def orphan_shutdown(self, trainers: list[ExternalProcess], now_s: float) -> OrphanShutdown:
        return MachineOrphanShutdown(self._machine, self._told, trainers, now_s, self._machine.fleet.logdir)
