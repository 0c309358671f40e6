"""A run in memory: the real core and event loop in a machine of doubles, where a test makes things
happen.

Time moves only in `advance`. Processes live until they are signalled or a test ends them. There is
no network: outgoing messages are recorded, and a test supplies the incoming ones.
"""

from __future__ import annotations

import random
import signal
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from procsv.base.identity import CHECKPOINT, STANDBY, SUMMARY, TRAINER, WATCHDOG, TaskId
from procsv.base.journal.entries import Entry
from procsv.base.outcome import NO_STEP, Exit, Source
from procsv.base.run.run_file import RunFile
from procsv.base.service_table import SERVICES
from procsv.base.system.processes import ProcessIdentity
from procsv.ipc.messaging.checkpoint_messages import Durable
from procsv.ipc.messaging.endpoint import Address, ClientEndpoint, Put, Received, ServerEndpoint
from procsv.ipc.messaging.fd_messages import Waiting
from procsv.ipc.messaging.message import Message
from procsv.ipc.messaging.messages import Ack, Body, Hello
from procsv.ipc.messaging.start import Start
from procsv.ipc.messaging.watchdog_messages import Finish, FirstStepDone, FlushDone, Loaded, TrainerExited
from procsv.ipc.shm.heartbeat import Heartbeat, Phase
from procsv.watchdog.core.actions import Action, Quit, Report, WriteEntry
from procsv.watchdog.core.events import Event, StopAsked
from procsv.watchdog.core.run import Core
from procsv.watchdog.core.settings import Settings
from procsv.watchdog.edge.event_loop import TICK_S, Reactor
from procsv.watchdog.edge.status import Facts
from procsv.watchdog.host.standby import Promoted, Standby, StandbySaid
from tests.support.fake_clock import FakeClock
from tests.support.watchdog_machine import MachineInMemory

if TYPE_CHECKING:
    from procsv.base.outcome import LastWords

KILLED = Exit(None, signal.SIGKILL)
START = Start(WATCHDOG, "run", 1, "/logdir", "/run", "/shm")


@dataclass(slots=True)
class Process:
    task: TaskId
    incarnation: int
    pid: int
    beat: Heartbeat | None = None
    is_ready: bool = False
    words: LastWords | None = None


class CheckedCore(Core):
    """The core with a check that nothing follows its end."""

    def handle(self, event: Event, now_s: float) -> list[Action]:
        was_over = self.exit_code is not None
        actions = super().handle(event, now_s)
        assert not (was_over and actions), f"{actions} after the end"
        return actions


@dataclass
class World(MachineInMemory[Process]):
    """The watchdog under test and everything around it.

    `stubborn`: a killed trainer's tree stays. `frozen`: it is stopped. `traced`: a debugger holds it. `immortal`: SIGKILL has no
    effect, as on a task that waits for a lost disk. `silent`: services with stuck loops, and what
    their threads show.
    """

    settings: Settings = field(default_factory=Settings)
    seed: int = 0
    stubborn: bool = False
    frozen: bool = False
    traced: bool = False
    immortal: bool = False
    silent: dict[TaskId, str] = field(default_factory=dict)
    refuses_spawns: bool = False
    refused: int = 0
    promotion: str = (
        "forks"  # how a standby reacts to its promotion: forks, becomes the trainer, cannot be reached, is silent
    )
    room_bytes: int = 2**40
    stacks: str = ""
    answers_settled: bool = True
    settle_error: str = ""
    memory_step: int = NO_STEP
    journal: list[WriteEntry] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    told: list[tuple[TaskId, Message]] = field(default_factory=list)
    signals: list[tuple[TaskId, int]] = field(default_factory=list)
    imports_slowly: bool = False  # a standby with more to import: the test says when it waits again
    told_more: int = 0
    reports: list[Report] = field(default_factory=list)
    sequence: int = 0

    def __post_init__(self) -> None:
        super().__init__()
        self._clock = FakeClock()
        self._clock.advance(100.0)
        self.sockets = ScriptedSockets(self._clock, self)
        self.core = CheckedCore(self.settings, 1, random.Random(self.seed), self.now_s)
        environment = self.environment(self._clock, self.sockets)
        self.reactor = Reactor(self.core, Facts(START, ProcessIdentity(1, 0.0, ""), 0.0), environment)
        self.reactor.start()
        self.turn()

    @property
    def now_s(self) -> float:
        return self._clock.now_s

    @property
    def standby(self) -> Standby:
        return self.reactor.local.standby

    @property
    def alive(self) -> dict[TaskId, Process]:
        return self.children

    # -- actions of the watchdog ---------------------------------------------------------------------------
    def spawn(self, task: TaskId, incarnation: int, standby: str) -> int:
        if self.refuses_spawns and (incarnation > 1 or task == STANDBY):
            self.refused += 1
            raise OSError("too many open files")
        assert task not in self.alive, f"two processes of {task}"
        self.alive[task] = Process(task, incarnation, 1000 + incarnation)
        return self.alive[task].pid

    def promote(self, number: int, task: TaskId, incarnation: int) -> None:
        assert task not in self.alive, "two trainers"
        assert self.alive[STANDBY].incarnation == number
        if self.promotion == "cannot be told":
            raise BrokenPipeError("Broken pipe")
        if self.promotion == "forks":
            self.alive[task] = Process(task, incarnation, 1000 + incarnation)
            self.standby_words.append(Promoted(number, task, incarnation, 1000 + incarnation, is_fork=True))
            return
        standby = self.alive.pop(STANDBY)
        self.alive[task] = Process(task, incarnation, standby.pid)
        if self.promotion == "becomes it":
            self.standby_words.append(Promoted(number, task, incarnation, standby.pid))

    def import_more(self, number: int) -> None:
        assert self.alive[STANDBY].incarnation == number
        self.told_more += 1
        if not self.imports_slowly:
            self.standby_words.append(StandbySaid(number, Waiting(2000, 2.5)))

    def signal(self, task: TaskId, incarnation: int, number: int) -> None:
        self.signals.append((task, number))
        if self.immortal or self.find(task, incarnation) is None:
            return
        if number == signal.SIGKILL:
            self._end(task, KILLED)
        elif number == signal.SIGTERM and task == STANDBY:
            self._end(task, Exit(None, number))

    def kill_tree(self, task: TaskId, incarnation: int) -> None:
        self.signal(task, incarnation, signal.SIGKILL)

    def name_strays(self, task: TaskId) -> list[str]:
        return []

    def clear_tree(self, task: TaskId) -> bool:
        return not self.stubborn

    def is_stopped(self, task: TaskId) -> bool:
        return self.frozen or self.traced

    def is_traced(self, task: TaskId) -> bool:
        return self.traced

    def doing(self, task: TaskId) -> str:
        return self.silent.get(task, "")

    def room_for_standby(self, trainer_pid: int, limit: int) -> int:
        return self.room_bytes

    def snapshot_step(self, task: TaskId) -> int:
        return self.memory_step

    def beat_of(self, child: Process) -> Heartbeat | None:
        """A running service always comes round."""
        if child.task in SERVICES and child.is_ready and child.task not in self.silent:
            child.beat = replace(child.beat or Heartbeat(Phase.IDLE, NO_STEP, 0, 0.0, 0.0), beat_s=self.now_s)
        return child.beat

    def words_of(self, child: Process) -> LastWords | None:
        return child.words

    def append(self, entry: Entry, task: TaskId, incarnation: int) -> None:
        self.journal.append(WriteEntry(entry, task, incarnation))

    def write_report(self, report: Report, run: RunFile) -> None:
        self.reports.append(report)

    def say(self, text: str, is_bad: bool = False, traceback: str = "") -> None:
        self.said.append(text)

    def told_service(self, task: TaskId, body: Message, number: int) -> None:
        self.told.append((task, body))
        if not self.answers_settled or task not in self.alive:
            return
        if isinstance(body, TrainerExited | Finish):
            is_saved = isinstance(body, TrainerExited) and self.memory_step >= 0 and not self.settle_error
            if task == CHECKPOINT and is_saved:
                self.receive(CHECKPOINT, self._news(self.memory_step, "crash"))
            self.receive(task, FlushDone(-1, self.settle_error), number)
        if isinstance(body, Finish):
            self._end(task, Exit(0, None))

    # -- events --------------------------------------------------------------------------------------------
    def handle(self, event: Event) -> None:
        """Handle what the event loop turns into this event."""
        self.reactor.handle(event)
        self.turn()

    def turn(self) -> None:
        """Run the event loop until it has heard everything."""
        self.reactor.run_once()
        while self.quit is None and (self.dead or self.asked or self.standby_words or self.sockets.has_news):
            self.reactor.run_once()

    def receive(self, task: TaskId, body: Body, re: int = 0, answers: Message | None = None) -> None:
        """Receive a message from a living process."""
        received = Received(b"", task, self.alive[task].incarnation, 0, re, body, answers)
        self.sockets.end_of(task).news.append(received)

    def advance(self, by_s: float) -> None:
        """Let time pass in the event loop's own steps."""
        until_s = self.now_s + by_s
        while self.now_s < until_s and self.quit is None:
            self._clock.advance(min(self.reactor.pause_s(), until_s - self.now_s))
            self.turn()

    def ready(self, *tasks: TaskId) -> World:
        """These services now receive messages."""
        for task in tasks or (CHECKPOINT, SUMMARY):
            self.alive[task].is_ready = True
            self.receive(task, Ack(), answers=Hello(1))
        self.turn()
        return self

    def train(self, step: int, restored: int = 0, source: Source | None = None) -> World:
        """Let the trainer train and reach `step`."""
        trainer = self.alive[TRAINER]
        self.receive(TRAINER, Hello(1))
        for phase in (Phase.RESTORE, Phase.COMPILE, Phase.STEP):
            trainer.beat = Heartbeat(phase, restored, 0, self.now_s, 0.0)
            self.advance(TICK_S)
        source = source or ("fresh" if restored <= 0 else "checkpoint")
        body = FirstStepDone(restored, source, "x", restored + 1, self.now_s)
        self.receive(TRAINER, body)
        self.step(step)
        return self

    def loaded(self) -> World:
        """Let the trainer record its imports."""
        self.receive(TRAINER, Loaded())
        self.advance(TICK_S)
        return self

    def wait(self) -> World:
        """Let the standby finish its imports and wait."""
        self.standby_words.append(StandbySaid(self.alive[STANDBY].incarnation, Waiting(2000, 2.5)))
        self.turn()
        return self

    def step(self, step: int) -> None:
        self.alive[TRAINER].beat = Heartbeat(Phase.STEP, step, 0, self.now_s, 0.0)
        self.advance(TICK_S)

    def durable(self, step: int, reason: Any = "periodic") -> None:
        self.receive(CHECKPOINT, self._news(step, reason))
        self.turn()

    def _news(self, step: int, reason: Any) -> Durable:
        self.sequence += 1
        return Durable(self.sequence, step, 1, f"/l/model.ckpt-{step}", reason, 10, 0.1, ())

    def end(self, task: TaskId, exit: Exit, words: LastWords | None = None) -> None:
        self._end(task, exit, words)
        self.turn()

    def _end(self, task: TaskId, exit: Exit, words: LastWords | None = None) -> None:
        process = self.alive.pop(task)
        process.words = words
        self.dead.append((process, exit))

    def crash(self, exit: Exit = KILLED, words: LastWords | None = None) -> None:
        self.end(TRAINER, exit, words)

    def stop(self, now: bool = False, source: str = "SIGTERM") -> None:
        self.asked.append(StopAsked(source, now))
        self.turn()

    # -- observations --------------------------------------------------------------------------------------
    def events(self, name: str) -> list[WriteEntry]:
        return [one for one in self.journal if one.entry.event == name]

    def last(self, name: str) -> dict[str, Any]:
        return self.events(name)[-1].entry.fields()

    @property
    def quit(self) -> Quit | None:
        return self.reactor.result

    @property
    def exit_code(self) -> int | None:
        return self.core.exit_code


class _Scripted:
    """An endpoint that receives what the test says."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(Address("run", WATCHDOG, 1), clock)  # type: ignore[call-arg]  # of the endpoint beside it
        self.news: deque[Received] = deque()

    def receive(self) -> Received | None:
        return self.news.popleft() if self.news else None

    def _put(self, frames: list[bytes]) -> Put:
        return Put.TAKEN

    def _take(self) -> None:
        return None


class ScriptedServer(_Scripted, ServerEndpoint):
    told: list[tuple[TaskId, Message]]

    def broadcast(self, body: Message, only: TaskId | None = None) -> int:
        self.told.append((only or TRAINER, body))
        return 1


class ScriptedClient(_Scripted, ClientEndpoint):
    def __init__(self, clock: FakeClock, task: TaskId, world: World) -> None:
        super().__init__(clock)
        self._task, self._world, self._number = task, world, 0

    def send_reliable(self, body: Message, re: int = 0) -> int:
        self._number += 1
        self._world.told_service(self._task, body, self._number)
        return self._number

    def _new_connections(self) -> int:
        return 0


class ScriptedSockets:
    def __init__(self, clock: FakeClock, world: World) -> None:
        self.server = ScriptedServer(clock)
        self.server.told = world.told
        self.clients: Mapping[TaskId, ScriptedClient] = {task: ScriptedClient(clock, task, world) for task in SERVICES}

    def end_of(self, task: TaskId) -> ScriptedServer | ScriptedClient:
        return self.clients.get(task, self.server)

    @property
    def has_news(self) -> bool:
        return bool(self.server.news or any(client.news for client in self.clients.values()))

    def wait_for_news(self, timeout_s: float) -> list[object]:
        raise AssertionError("time moves in World.advance alone")

    def restore_server(self) -> None:
        """Do nothing: nothing is ever lost."""

    def close(self) -> None:
        """Do nothing: there are no sockets."""


def running(step: int = 840, **changes: object) -> World:
    """Return a world whose trainer has reached that point."""
    return World(**changes).ready().train(step)  # type: ignore[arg-type]
