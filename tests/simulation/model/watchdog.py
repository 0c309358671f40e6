"""The watchdog's process: the core and event loop are real, their environment is in memory.

What precedes and follows the loop (open_run.py, main.py) is modelled here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from procsv.base import exit_codes
from procsv.base.cluster import PS
from procsv.base.identity import WATCHDOG, TaskId
from procsv.base.outcome import Exit
from procsv.base.service_table import SERVICES
from procsv.base.system.processes import ProcessIdentity
from procsv.ipc.messaging.checkpoint_messages import Durable
from procsv.ipc.messaging.endpoint import Received
from procsv.ipc.messaging.start import Start
from procsv.ipc.messaging.watchdog_messages import StatusRequest
from procsv.watchdog.core.actions import Action, Quit
from procsv.watchdog.core.events import Event, PreemptAsked, RecycleAsked, StopAsked
from procsv.watchdog.core.run import Core
from procsv.watchdog.core.settings import Settings
from procsv.watchdog.edge.environment import FaultReach
from procsv.watchdog.edge.event_loop import Reactor
from procsv.watchdog.edge.opening.leftovers import LEFTOVER_MARGIN_S
from procsv.watchdog.edge.status import Facts
from tests.simulation.model import history
from tests.simulation.model.machine import Machine
from tests.simulation.model.network import SimSockets
from tests.simulation.model.processes import Process

if TYPE_CHECKING:
    from tests.simulation.model.world import World

LOOK_S = 0.25  # how often it checks what an earlier run left
LOOP_S_MIN = 0.001
EXIT_LOCKED = 73


class Watchdog(Process):
    """One `procsv launch`."""

    def __init__(self, world: World, run: str, settings: Settings) -> None:
        super().__init__(world, WATCHDOG, 1)
        self._settings = settings
        where = ("/logdir", "/run", str(world.memory.directory))
        self.start = Start(WATCHDOG, run, 1, *where, settings=settings.launch, chief=world.chief)
        self.machine = Machine(world, self.start, self.wake)
        self.core: Core | None = None
        self.is_stop_asked = False
        self.preempted: set[int] = set()  # pids of tasks
        self.quit: Quit | None = None
        self._preemptions = Preemptions(world.chief)
        self._give_up_s = world.clock.now_s + settings.launch.grace_s + LEFTOVER_MARGIN_S
        self.wake()

    # -- before the loop -------------------------------------------------------------------------------------
    def _open(self) -> bool:
        """Take the logdir once nothing of an earlier run is alive."""
        world, now_s = self.world, self.world.clock.now_s
        if world.holder(WATCHDOG) is not None:
            self.die(Exit(EXIT_LOCKED, None), "itself")
        elif world.writer_lock_is_held() or any(world.holder(task) for task in SERVICES):
            for task in SERVICES:
                world.wake_holder(task)
            if now_s > self._give_up_s:
                self.die(Exit(EXIT_LOCKED, None), "itself")
            self.wake(LOOK_S)
        else:
            self._begin(now_s)
            return True
        return False

    def _begin(self, now_s: float) -> None:
        world = self.world
        self.holds_lock = True
        world.clear_run_dir()
        rng = Random(self.start.run)
        self.core = NotedCore(world, self._settings, world.last_incarnation + 1, rng, now_s, self._spare)
        self.sockets = SimSockets(world, self.start.run, self.wake, self._note)
        environment = self.machine.environment(world.clock, self.sockets, self._preemptions.reach_by)
        facts = Facts(self.start, ProcessIdentity(self.pid, 0.0, "boot"), world.clock.wall())
        self.reactor = Reactor(self.core, facts, environment)
        self.reactor.start()

    # -- the loop --------------------------------------------------------------------------------------------
    def turn(self) -> None:
        if self.core is None and not self._open():
            return
        self.reactor.run_once()
        self.quit = self.reactor.result
        if self.quit is not None:
            self._leave(self.quit)
        else:
            self.wake(LOOP_S_MIN if self.sockets.wants_tick else self.reactor.pause_s())

    def _note(self, received: Received) -> None:
        """Note received messages for the invariants."""
        if isinstance(received.body, Durable):
            self.world.note(history.Acknowledged(received.body, WATCHDOG))
        elif received.task not in SERVICES and not isinstance(received.body, StatusRequest):
            body = type(received.body).__name__
            self.world.note(history.Received(WATCHDOG, received.task, received.incarnation, body))

    # -- requests --------------------------------------------------------------------------------------------
    def stop(self, source: str, now: bool) -> None:
        """Stop, by a signal or `procsv stop`."""
        self.is_stop_asked = True
        self.machine.asked.append(StopAsked(source, now, is_notice=False))
        self.wake()

    def preempt(self, grace_s: float) -> None:
        """Preempt the trainer's machine."""
        self._preemptions.graces_s.append(grace_s)
        self.wake()

    def _spare(self, name: TaskId | None) -> None:
        """Do not blame a running task for ending. None: any task but a server."""
        for task, child in self.machine.children.items():
            if task.runs_program and name in (None, task) and (name is not None or task.role != PS):
                self.preempted.add(child.pid)

    # -- after the loop --------------------------------------------------------------------------------------
    def _leave(self, quit: Quit) -> None:
        self.world.run_json = self.reactor.close()
        is_stopped = (
            self.core is not None and self.core.state_label == "stopped"
        )  # the same command is typed again, whatever the code
        self.world.clear_tree()
        self.world.clear_run(quit.keep_memory)
        self.die(Exit(exit_codes.RESUMABLE if is_stopped else quit.exit_code, None), "itself")

    def let_go(self) -> None:
        if self.core is not None:
            self.sockets.close()

    @property
    def control(self) -> Path:
        return self.world.socket(WATCHDOG)


class NotedCore(Core):
    """The real core. It notes its events and actions for the invariants."""

    def __init__(
        self,
        world: World,
        settings: Settings,
        first_incarnation: int,
        rng: Random,
        now_s: float,
        spare: Callable[[TaskId | None], None],
    ) -> None:
        self._world, self._spare = world, spare
        super().__init__(settings, first_incarnation, rng, now_s)

    def handle(self, event: Event, now_s: float) -> list[Action]:
        if isinstance(event, PreemptAsked | RecycleAsked):
            self._spare(event.task if isinstance(event, PreemptAsked) and not self.gang.members else None)
        actions = super().handle(event, now_s)
        self._world.note(history.CoreActed(event, actions))
        return actions


class Preemptions:
    """Planned preemptions, as the injector carries them out."""

    def __init__(self, chief: TaskId) -> None:
        self._chief = chief
        self.graces_s: list[float] = []

    def reach_by(self, reach: FaultReach) -> Preemptions:
        self._reach = reach
        return self

    def next_due_s(self, now_s: float) -> None:
        """Return now."""

    def fault_behind(self, task: TaskId, incarnation: int, exit: Exit) -> str:
        return ""

    def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def inject_due_faults(self, now_s: float, step: int) -> None:
        while self.graces_s:
            self._reach.preempt(self.graces_s.pop(0), self._chief)
