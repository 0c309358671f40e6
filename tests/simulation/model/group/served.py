"""Tasks whose variables live on parameter servers: a chief, workers, servers, and an evaluator
beside them.

It models TensorFlow's runtime: a call waits for a stopped server, and fails when a server that the
session knew is gone. The chief follows training/sessions/session_manager.py: it keeps a living
model that is whole and no older than the saved one.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from procsv.base.cluster import PS
from procsv.base.identity import CHECKPOINT, WATCHDOG, TaskId
from procsv.base.outcome import Exit
from procsv.base.run.manifest import Reason
from procsv.ipc.messaging.checkpoint_messages import Restore, Restored, RestoreFrom
from procsv.ipc.messaging.watchdog_messages import FirstStepDone, Loaded
from procsv.ipc.shm.heartbeat import Phase
from tests.simulation.model import history
from tests.simulation.model.program import ProgramError, advance
from tests.simulation.model.program_process import Doing, ProgramProcess, Wait
from tests.simulation.model.trainer import Trainer

if TYPE_CHECKING:
    from tests.simulation.model.processes import Process

POLL_S = 0.2  # a task that waits for a server or the model polls that often
FILL_S = 0.1  # from one filled server to the next
MARK_S = 0.01  # from the restored model to the mark that it is whole
EVALUATION_S = 5.0
LONG_S = 1e6


@dataclass(slots=True)
class _Shard:
    """The state on one server. Every server holds the whole chain."""

    process: Process
    state: tuple[int, int] | None = None  # step and value
    is_marked: bool | None = None  # None: there is no mark


class Servers:
    """The model on a run's servers."""

    def __init__(self, tasks: Sequence[TaskId]) -> None:
        self._names = [task for task in tasks if task.role == PS]
        self._shards: dict[TaskId, _Shard] = {}

    def serve(self, process: Process) -> None:
        """Add a new server without variables."""
        self._shards[process.task] = _Shard(process)

    @property
    def pids(self) -> tuple[int, ...] | None:
        """Return the pids of all servers, or None if one is missing."""
        if any(name not in self._shards or self._shards[name].process.is_dead for name in self._names):
            return None
        return tuple(self._shards[name].process.pid for name in self._names)

    @property
    def lost(self) -> str:
        """Return a missing server, or "" if all are there."""
        return next((str(n) for n in self._names if n not in self._shards or self._shards[n].process.is_dead), "")

    @property
    def are_frozen(self) -> bool:
        return any(shard.process.is_frozen for shard in self._shards.values())

    @property
    def are_stuck(self) -> bool:
        return any(shard.process.is_stuck for shard in self._shards.values())

    @property
    def state(self) -> tuple[int, int] | None:
        """Return step and value if all variables have values."""
        if self.pids is None:
            return None
        states = {self._shards[name].state for name in self._names}
        return states.pop() if len(states) == 1 else None

    @property
    def is_whole(self) -> bool:
        return self.state is not None and self._shards[self._names[0]].is_marked is True

    @property
    def is_cleared(self) -> bool:
        """Return whether a chief is filling the model, or died while it did."""
        return self._names[0] in self._shards and self._shards[self._names[0]].is_marked is False

    def train(self) -> None:
        """Make one step, for any task."""
        state = self.state
        assert state is not None, "a step on a model that has no values"
        self._put((state[0] + 1, advance(state[1], state[0] + 1)))

    def _put(self, state: tuple[int, int]) -> None:
        for name in self._names:
            self._shards[name].state = state

    def fill(self, state: tuple[int, int], number: int) -> bool:
        """Fill one server after the other, the first one last. Return whether there are more."""
        self._shards[self._names[-1 - number]].state = state
        return number + 1 < len(self._names)

    def mark(self, is_whole: bool) -> None:
        if (first := self._shards.get(self._names[0])) is not None:
            first.is_marked = is_whole


class _OfServers(ProgramProcess):
    """A task with a session on the servers."""

    _known: tuple[int, ...] = ()  # the servers at the start of its session

    def _connect(self) -> Doing:
        servers = self.world.servers
        while servers.pids is None or servers.are_frozen:
            yield POLL_S
        self._known = servers.pids

    def _reach(self) -> Doing:
        """Wait for stopped servers. Fail with TensorFlow's error if one is gone."""
        while not self._is_lost:
            if not self.world.servers.are_frozen:
                return
            yield POLL_S
        raise ProgramError("UnavailableError", "Socket closed", lost_peer=self.world.servers.lost or "ps.0")

    @property
    def _is_lost(self) -> bool:
        return self.world.servers.pids != self._known

    @property
    def is_stuck(self) -> bool:
        """Return whether it is stuck. A stuck server blocks every task, and another may be seen first."""
        return super().is_stuck or self.world.servers.are_stuck


class Server(ProgramProcess):
    def _main(self) -> Doing:
        yield self._import_s
        self.world.program.check_import(self.incarnation)
        self.phase, self.is_ready = Phase.SERVE, True
        self.world.servers.serve(self)
        self._tell(WATCHDOG, Loaded())
        while True:
            yield LONG_S

    def _request_stop(self, reason: Reason) -> None:
        """End at once: there is nothing to save."""
        self.die(Exit(75, None), "itself")


class Evaluator(ProgramProcess):
    """Only reads what is saved."""

    def _main(self) -> Doing:
        yield self._import_s
        self.world.program.check_import(self.incarnation)
        self.phase, self.is_ready = Phase.IDLE, True
        while self._stop_reason is None:
            yield EVALUATION_S


class ServedWorker(_OfServers):
    def _main(self) -> Doing:
        world, servers = self.world, self.world.servers
        yield self._import_s
        world.program.check_import(self.incarnation)
        if (error := world.broken.get(self.task)) is not None:
            raise error
        self.phase = Phase.CONNECT
        yield from self._connect()
        while servers.state is None or servers.is_cleared:
            yield from self._reach()
            if self._stop_reason is not None:
                return
            yield POLL_S
        self.phase = Phase.COMPILE
        while self._stop_reason is None:
            yield world.program.step_s if self.is_ready else world.program.compile_s
            yield from self._reach()
            if servers.state is None:  # a chief is about to put another model there
                continue
            if servers.state[0] >= world.program.steps:
                return
            servers.train()
            self._trained(servers.state[0])

    def _trained(self, step: int) -> None:
        now_s = self.world.clock.now_s
        self.step, self._runs = step, self._runs + 1
        self._read_step(now_s)
        if not self.is_ready:
            self.is_ready, self.phase = True, Phase.STEP
            self.world.note(history.Ready(self.task, self.incarnation))
            self._tell(WATCHDOG, FirstStepDone(step - 1, "chief", "", step, now_s))


class ServedChief(_OfServers, Trainer):
    def _restore(self) -> Doing:
        servers = self.world.servers
        self.phase = Phase.CONNECT
        yield from self._connect()
        self.phase = Phase.RESTORE
        if servers.is_whole and (yield from self._leave_alive()):
            return
        servers.mark(False)
        yield from super()._restore()
        yield MARK_S
        yield from self._reach()
        servers.mark(True)
        self.world.note(history.Whole(self.incarnation))

    def _leave_alive(self) -> Generator[Wait, bool, bool]:
        """Return whether to keep the living model because it is no older than what is saved."""
        answer = yield from self._ask(Restore(False))
        assert isinstance(answer, RestoreFrom)
        self._check_answer(answer)
        yield from self._reach()
        state = self.world.servers.state
        if state is None or not self.world.servers.is_whole or (answer.source != "fresh" and state[0] < answer.step):
            return False
        self.step, self.value = state
        self._origin = ("alive", "")
        self._tell(CHECKPOINT, Restored())
        self.world.note(history.Restored(self.incarnation, "alive", "", self.step, self.value))
        return True

    def _put_state(self) -> Doing:
        yield from self._reach()
        state = self.world.servers.state
        self.world.note(history.Filled(self.incarnation, -1 if state is None else state[0], self.step))
        number = 0
        while self.world.servers.fill((self.step, self.value), number):
            number += 1
            yield FILL_S
            yield from self._reach()

    def _make_step(self) -> Generator[Wait, bool, bool]:
        yield from self._reach()
        servers = self.world.servers
        assert servers.state is not None
        is_over = servers.state[0] >= self.world.program.steps
        if not is_over:
            servers.train()
        self._read_state()
        return not is_over

    @property
    def _state_count(self) -> int:
        state = self.world.servers.state
        return -1 if state is None else state[0]

    def _read_state(self) -> bool:
        state = self.world.servers.state
        if self._is_lost or state is None:
            if self._stop_reason is None:
                raise ProgramError("UnavailableError", "Socket closed", lost_peer=self.world.servers.lost or "ps.0")
            return False
        if self.world.servers.are_frozen:
            return False
        self.step, self.value = state
        return True
