"""The two services: their real code (messages, jobs, core) over simulated threads, slots, disk and clock."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from procsv.base.identity import CHECKPOINT, SUMMARY, WATCHDOG, TaskId
from procsv.base.outcome import Exit
from procsv.base.service_table import SERVICES
from procsv.base.system.processes import ExternalProcess
from procsv.ipc.messaging.checkpoint_messages import CheckpointPlan
from procsv.ipc.messaging.endpoint import Address, Received
from procsv.ipc.messaging.start import Start
from procsv.ipc.messaging.watchdog_messages import Finish, FlushDone
from procsv.ipc.shm.heartbeat import Heartbeat, Phase
from procsv.ipc.shm.heartbeat_file import HeartbeatWriter
from procsv.ipc.shm.slot_state import SlotInfo
from procsv.services.checkpoint.core.actions import Action, Persist, VerifySlot
from procsv.services.checkpoint.core.facts import SavableState, Scan
from procsv.services.checkpoint.environment import CheckpointEnvironment
from procsv.services.checkpoint.fs_events import OwnChanges, Watch
from procsv.services.checkpoint.orphan_shutdown import OrphanShutdown
from procsv.services.checkpoint.process import CheckpointService
from procsv.services.checkpoint.store.checkpoint_store import Store
from procsv.services.checkpoint.worker import Outcomes, Worker
from procsv.services.runtime import TICK_S_MAX, Service, Tools
from procsv.services.summary.process import ProgramWatch, SummaryService
from tests.simulation.model import history
from tests.simulation.model.disk import Killed
from tests.simulation.model.network import SimServer
from tests.simulation.model.processes import Process, SimStranger
from tests.simulation.model.store import SimStore
from tests.simulation.model.stream_store import SimStreamStore

if TYPE_CHECKING:
    from tests.simulation.model.world import World

T = TypeVar("T")
LOOP_S_MIN = 0.005  # between two turns of a service that never rests
LOCK_LOOK_S = 0.1
THAW_LOOK_S = 1.0
JOB_OPERATIONS_MAX = 40  # a save makes about 25 disk operations; a kill comes before any of them, or after


class SimPulse(HeartbeatWriter):
    """A heartbeat without a mapped file."""

    def __init__(self) -> None:
        self.phase, self.step, self.work, self.extended_s = Phase.IMPORT, -1, 0, 0.0
        self.beat_s = 0.0

    def beat(self, now_s: float) -> None:
        self.beat_s = now_s

    def read(self) -> Heartbeat | None:
        return Heartbeat(self.phase, self.step, self.work, self.beat_s, self.extended_s) if self.beat_s else None

    def close(self) -> None:
        """Do nothing: there is no file."""


class SimWorker(Worker):
    """A thread's jobs, one at a time. A job takes time and then happens; a kill in between does part of it."""

    def __init__(self, process: ServiceProcess, outcomes: Outcomes) -> None:
        self._process, self._results = process, outcomes
        self._todo: deque[tuple[Callable[[], object], Callable[[Exception | None, object], None]]] = deque()
        self._has_begun = False
        process.workers.append(self)

    @property
    def is_busy(self) -> bool:
        return self._has_begun

    def run_job(self, job: Callable[[], T], then: Callable[[T], None], failed: Callable[[Exception], None]) -> None:
        def over(error: Exception | None, result: object) -> None:
            self._results.post(lambda: then(result) if error is None else failed(error))  # type: ignore[arg-type]

        self._todo.append((job, over))
        self._begin()

    def _begin(self) -> None:
        if self._todo and not self._has_begun:
            self._has_begun = True
            self._process.world.clock.after(self._process.world.job_s(), self._end)

    def _end(self) -> None:
        process = self._process
        if process.is_dead:
            return
        if process.is_frozen:
            process.world.clock.at(min(process.frozen_until_s, process.world.clock.now_s + THAW_LOOK_S), self._end)
            return
        self._has_begun = False
        process.on_disk(self._run_jobs)
        self._begin()

    def _run_jobs(self) -> None:
        job, over = self._todo.popleft()
        try:
            result = job()
        except Exception as error:  # noqa: BLE001  as worker.py: a job that fails is an outcome
            over(error, None)
        else:
            over(None, result)
        self._process.world.memory.release(self._process.pid)

    def interrupt(self) -> None:
        """The process is killed: its job is half done, nobody learns of it, and it never continues."""
        if not self._has_begun or not self._todo:
            return
        disk = self._process.world.disk
        disk.kill_in = self._process.world.rng.randrange(JOB_OPERATIONS_MAX)
        try:
            self._todo[0][0]()
        except (Exception, Killed):  # noqa: BLE001  whatever it was: it died with its process
            pass
        finally:
            disk.kill_in = None
        self._todo.clear()

    def close(self) -> None:
        self._todo.clear()


class SimOrphanShutdown(OrphanShutdown):
    """Makes sure that nothing is left when the watchdog is dead. The decisions are real."""

    def __init__(self, world: World, start: Start, trainers: list[ExternalProcess], now_s: float) -> None:
        self._world = world
        super().__init__(start, trainers, now_s)

    def _wake_others(self) -> None:
        self._world.wake_holder(SUMMARY)

    def _is_trainer_gone(self) -> bool:
        return not self._world.writer_lock_is_held() and all(trainer.has_ended() for trainer in self._trainers)

    def is_alone(self, now_s: float) -> bool:
        return self._world.holder(SUMMARY) is None or now_s >= self._give_up_s

    def tidy(self, keep_memory: bool, now_wall_s: float) -> None:
        if self._world.holder(WATCHDOG) is None:
            self._world.clear_run(keep_memory)


class SimWatch(Watch):
    """Gives no hints of changes in the directory, so that the rescan must suffice."""

    def keep_watching(self, directory: Path) -> None:
        """Do nothing: nothing is watched."""

    def close(self) -> None:
        """Do nothing: nothing was watched."""


class SimEnvironment(CheckpointEnvironment):
    """Everything that the checkpoint service touches."""

    def __init__(self, process: ServiceProcess, start: Start) -> None:
        self._process, self._world, self._told = process, process.world, start
        self._store: SimStore | None = None

    def store(self) -> Store:
        world = self._world
        self._store = SimStore(world.disk, world.memory, self._told, world.last_run, world.clock)
        return self._store

    def worker(self, name: str, outcomes: Outcomes, niceness: int = 0) -> Worker:
        return SimWorker(self._process, outcomes)

    def slots(self) -> list[SlotInfo]:
        return self._world.memory.infos()

    def plan_in(self, slot: SlotInfo) -> CheckpointPlan | None:
        found = self._world.memory.slots.get(slot.path)
        return found.plan if found is not None else None

    def keep_plan(self, plan: CheckpointPlan) -> None:
        self._world.kept_plan = plan

    def restore_plan(self) -> None:
        """Do nothing: nobody removes the plan here."""

    def kept_plan(self) -> CheckpointPlan | None:
        return self._world.kept_plan

    def remove_slot(self, slot: SlotInfo) -> None:
        self._world.memory.remove(slot)

    def staged(self) -> list[SavableState]:
        found = []
        for prefix, (sequence, step, _) in sorted(self._world.memory.staged.items()):
            _, _, attempt, run = Path(prefix).parent.name.split(".")
            found.append(SavableState(sequence, step, int(attempt), run, None, prefix))
        return found

    def remove_staged(self, prefix: str) -> None:
        self._world.memory.staged.pop(prefix, None)

    def parcels(self) -> list[Path]:
        return []  # no trainer here passes a file

    def watch_directory(self, on_change: Callable[[], None]) -> Watch:
        return SimWatch(on_change, OwnChanges(self._world.clock))

    def scan_directory(self, plan: CheckpointPlan, watch: Watch) -> Scan:
        """Return nothing new: only the service saves here."""
        step, sequence = self._store.newest() if self._store is not None else (None, 0)
        return Scan((), step, "", sequence)

    def external_process(self, pid: int) -> ExternalProcess:
        return SimStranger(self._world, pid)

    def orphan_shutdown(self, trainers: list[ExternalProcess], now_s: float) -> OrphanShutdown:
        return SimOrphanShutdown(self._world, self._told, trainers, now_s)


class HostedCheckpoint(CheckpointService):
    """The real service. A slot is locked from the start of the job that reads it, as its reader would."""

    def __init__(self, tools: Tools, process: ServiceProcess) -> None:
        self._host = process
        super().__init__(tools, process.world.environment_of(process, tools.start))

    def _act(self, action: Action) -> None:
        if isinstance(action, Persist | VerifySlot) and action.state.slot is not None:
            slot = self._host.world.memory.slots.get(action.state.slot.path)
            if slot is not None and not slot.writer:
                slot.readers.append(self._host.pid)
        super()._act(action)


class SimProgramWatch(ProgramWatch):
    """Knows whether the tasks that sent Hello still exist."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world, self._pids = world, dict[TaskId, int]()

    @property
    def is_known(self) -> bool:
        return bool(self._pids)

    def watch_program(self, task: TaskId, pid: int) -> None:
        self._pids[task] = pid

    def has_ended(self) -> bool:
        return self.is_known and not any(pid in self._world.processes for pid in self._pids.values())

    def close(self) -> None:
        """Do nothing: there is no descriptor."""


class PlainService:
    """A service without work: it acknowledges every message and ends with the run."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._finish: Received | None = None
        self._is_orphan = False

    def handle_message(self, received: Received) -> None:
        if isinstance(received.body, Finish):
            self._finish = received
            self._tools.server.send_reliable(received.who, FlushDone(-1, ""), re=received.seq)
        else:
            self._tools.server.acknowledge(received)

    def tick(self, now_s: float) -> float:
        return TICK_S_MAX

    def orphaned(self) -> None:
        self._is_orphan = True

    def is_finished(self) -> bool:
        peer = self._tools.server.peers.get(self._finish.who) if self._finish is not None else None
        return self._is_orphan or (self._finish is not None and (peer is None or not len(peer.outbox)))

    def close(self) -> None:
        """Do nothing: it holds nothing."""


class ServiceProcess(Process):
    """The loop of services/runtime.py around a service."""

    def __init__(self, world: World, start: Start, path: Path) -> None:
        super().__init__(world, start.task, start.incarnation)
        self._start, self._path = start, path
        self.heartbeat = SimPulse()
        self.workers: list[SimWorker] = []
        self.server: SimServer | None = None
        self._service: Service | None = None
        self._has_heard_of_orphan = self._has_to_abort = self._is_wedged = False
        self.wake(world.boot_s())

    # -- signals ---------------------------------------------------------------------------------------------
    def wedge(self) -> None:
        """Block its loop forever. Its other threads go on."""
        self._is_wedged = True

    @property
    def is_stuck(self) -> bool:
        return self._is_wedged or super().is_stuck

    def hear_signal(self, number: int) -> None:
        if number == signal.SIGABRT:
            self._has_to_abort = True
        elif number == signal.SIGCONT:
            self.thaw()
        else:
            assert signal.SIGRTMIN <= number <= signal.SIGRTMAX, f"signal {number} to a service"  # its stacks
        if self._has_to_abort and not self.is_frozen:  # it reaches a stopped process when that continues
            self.die(Exit(None, signal.SIGABRT), "watchdog")

    # -- loop ------------------------------------------------------------------------------------------------
    def turn(self) -> None:
        if self._is_wedged:
            return
        if self._service is None and not self._begin():
            return
        service, server, now_s = self._service, self.server, self.world.clock.now_s
        assert service is not None
        assert server is not None
        if self.is_orphan and not self._has_heard_of_orphan:
            self._has_heard_of_orphan = True
            service.orphaned()
        while (received := server.receive()) is not None:
            self._note(received)
            service.handle_message(received)
        server.resend_due()
        self.heartbeat.beat(now_s)
        pause_s = service.tick(now_s)
        if service.is_finished():
            service.close()
            self.die(Exit(0, None), "itself")
            return
        self.wake(min(TICK_S_MAX, max(LOOP_S_MIN, pause_s)))

    def _note(self, received: Received) -> None:
        self.world.note(history.Received(self.task, received.task, received.incarnation, type(received.body).__name__))

    def _begin(self) -> bool:
        """Serve, once the previous run's service has released the logdir."""
        if self.world.holder(self.task) is not None:
            if self.is_orphan:
                self.die(Exit(1, None), "itself")
            self.wake(LOCK_LOOK_S)
            return False
        self.holds_lock = True
        world, start = self.world, self._start
        me = Address(start.run, start.task, start.incarnation)
        self.server = SimServer(world.network, self._path, me, world.clock, self.wake)
        self.heartbeat.phase = Phase.IDLE
        tools = Tools(start, world.clock, self.server, self.heartbeat, self.wake)
        if self.task == CHECKPOINT:
            self._service = HostedCheckpoint(tools, self)
        elif not SERVICES[self.task].takes_events:
            self._service = PlainService(tools)
        else:
            self._service = SummaryService(tools, SimStreamStore(world.events, start.run), SimProgramWatch(world))
        return True

    def let_go(self) -> None:
        for worker in self.workers:
            worker.interrupt()
        if self.server is not None:
            self.server.close()
