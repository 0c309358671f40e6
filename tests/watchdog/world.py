"""A machine that exists only in memory: carries out what the core says, and lets a test make things happen.

Time moves only in `advance`.  Processes live until they are signalled or a test ends them.
"""

from __future__ import annotations

import random
import signal
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from procsv.base.identity import CHECKPOINT, STANDBY, SUMMARY, TRAINER, TaskId
from procsv.base.outcome import NO_STEP, Exit
from procsv.base.service_table import SERVICES
from procsv.ipc.messaging.messages import (
    Durable,
    Finish,
    FirstStepDone,
    FlushDone,
    Hello,
    Loaded,
    Message,
    TrainerExited,
)
from procsv.ipc.messaging.standby_messages import Waiting
from procsv.ipc.shm.heartbeat import Heartbeat, Phase
from procsv.watchdog.core.events import (
    Action,
    ClearTree,
    Ended,
    Event,
    Journal,
    KillTree,
    NotPromoted,
    NotSpawned,
    Promote,
    Promoted,
    Quit,
    Report,
    Said,
    Say,
    ServiceReady,
    Signal,
    Spawn,
    Spawned,
    StandbySaid,
    StopAsked,
    Tell,
    Ticked,
    TreeGone,
)
from procsv.watchdog.core.run import Core
from procsv.watchdog.core.settings import Settings

if TYPE_CHECKING:
    from procsv.watchdog.core.restart_policy import LastWords

KILLED = Exit(None, signal.SIGKILL)


@dataclass(slots=True)
class Process:
    task: TaskId
    incarnation: int
    beat: Heartbeat | None = None
    is_ready: bool = False
    pid: int = 0


@dataclass(slots=True)
class World:
    """The core under test and everything around it.  `stubborn`: a killed trainer's tree stays.  `frozen`: it is stopped.
    `immortal`: SIGKILL changes nothing (it waits for a disk that is gone).  `silent`: services whose loop does not come round,
    and what their threads show.
    """

    settings: Settings = field(default_factory=Settings)
    seed: int = 0
    stubborn: bool = False
    frozen: bool = False
    immortal: bool = False
    silent: dict[TaskId, str] = field(default_factory=dict)
    refuses_spawns: bool = False
    refused: int = 0
    promotion: str = "begins"  # what a standby does that is to be the trainer: begins, cannot be told, is silent
    room_bytes: int = 2**40
    stacks: str = ""
    answers_settled: bool = True
    settle_error: str = ""
    now_s: float = 100.0
    memory_step: int = NO_STEP
    core: Core = field(init=False)
    alive: dict[TaskId, Process] = field(default_factory=dict)
    journal: list[Journal] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    told: list[tuple[TaskId, Message]] = field(default_factory=list)
    signals: list[tuple[TaskId, int]] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)
    quit: Quit | None = None
    sequence: int = 0
    _events: deque[Event] = field(default_factory=deque)
    _is_busy: bool = False

    def __post_init__(self) -> None:
        self.core = Core(self.settings, 1, random.Random(self.seed), self.now_s)
        self._is_busy = True
        self._do(self.core.start(self.now_s))
        self._is_busy = False
        self._settle()

    # -- what the core says --------------------------------------------------------------------------------
    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            assert self.quit is None, f"{action} after the end"
            match action:
                case Spawn(task, incarnation):
                    if self.refuses_spawns and incarnation > 1:
                        self.refused += 1
                        self.handle(NotSpawned(task, incarnation, "too many open files"))
                        continue
                    assert task not in self.alive, f"two processes of {task}"
                    self.alive[task] = Process(task, incarnation, pid=1000 + incarnation)
                    self.handle(Spawned(task, incarnation, 1000 + incarnation))
                case Promote(number, incarnation):
                    self._promote(number, incarnation)
                case KillTree(task, incarnation):
                    self._signal(task, incarnation, signal.SIGKILL)
                case Signal(task, incarnation, number):
                    self._signal(task, incarnation, number)
                case ClearTree(incarnation):
                    if not self.stubborn:
                        self.handle(TreeGone(incarnation))
                case Tell(task, body):
                    self._tell(task, body)
                case Journal():
                    self.journal.append(action)
                case Say(text):
                    self.said.append(text)
                case Report():
                    self.reports.append(action)
                case Quit():
                    self.quit = action
                case _:
                    pass

    def _promote(self, number: int, incarnation: int) -> None:
        assert TRAINER not in self.alive, "two trainers"
        assert self.alive[STANDBY].incarnation == number
        if self.promotion == "cannot be told":
            self.handle(NotPromoted(number, incarnation, "Broken pipe"))
            return
        standby = self.alive.pop(STANDBY)
        self.alive[TRAINER] = Process(TRAINER, incarnation, pid=standby.pid)
        if self.promotion == "begins":
            self.handle(Promoted(number, incarnation, standby.pid))

    def _signal(self, task: TaskId, incarnation: int, number: int) -> None:
        self.signals.append((task, number))
        process = self.alive.get(task)
        if (
            number == signal.SIGKILL
            and not self.immortal
            and process is not None
            and process.incarnation == incarnation
        ):
            self.end(task, KILLED)

    def _tell(self, task: TaskId, body: Message) -> None:
        self.told.append((task, body))
        if task == TRAINER or not self.answers_settled:
            return
        incarnation = self.alive[task].incarnation
        if isinstance(body, TrainerExited | Finish):
            if (
                task == CHECKPOINT
                and isinstance(body, TrainerExited)
                and self.memory_step >= 0
                and not self.settle_error
            ):
                self.durable(self.memory_step, "crash")
            self.handle(Said(task, incarnation, FlushDone(-1, self.settle_error), body))
        if isinstance(body, Finish) and task in self.alive:
            self.end(task, Exit(0, None))

    # -- what happens --------------------------------------------------------------------------------------
    def handle(self, event: Event) -> None:
        """What an action leads to is heard after the actions beside it, as it is of a real machine."""
        self._events.append(event)
        if not self._is_busy:
            self._settle()

    def _settle(self) -> None:
        self._is_busy = True
        while self._events:
            self._do(self.core.handle(self._events.popleft(), self.now_s))
        self._is_busy = False

    def advance(self, by_s: float) -> None:
        """Time passes, in steps of at most half a second; heartbeats are read."""
        until_s = self.now_s + by_s
        while self.now_s < until_s and self.quit is None:
            due_s = self.core.next_due_s() or until_s
            self.now_s = min(until_s, max(min(due_s, self.now_s + 0.5), self.now_s + 0.001))
            beats = {task: beat for task, process in self.alive.items() if (beat := self._beat(process)) is not None}
            room_bytes = self.room_bytes if self.core.standby.is_due(self.now_s) else None
            self.handle(Ticked(beats, self.memory_step, self.frozen, room_bytes, self.silent))

    def _beat(self, process: Process) -> Heartbeat | None:
        """A service that is up comes round all the time."""
        if process.task in SERVICES and process.is_ready and process.task not in self.silent:
            process.beat = replace(process.beat or Heartbeat(Phase.IDLE, NO_STEP, 0, 0.0, 0.0), beat_s=self.now_s)
        return process.beat

    def ready(self, *tasks: TaskId) -> World:
        """These services now hear what they are told."""
        for task in tasks or (CHECKPOINT, SUMMARY):
            process = self.alive[task]
            process.is_ready = True
            self.handle(ServiceReady(task, process.incarnation))
        return self

    def train(self, step: int, restored: int = 0) -> World:
        """The trainer comes to train, and is at `step`."""
        trainer = self.alive[TRAINER]
        self.handle(Said(TRAINER, trainer.incarnation, Hello(1)))
        for phase in (Phase.RESTORE, Phase.COMPILE, Phase.STEP):
            trainer.beat = Heartbeat(phase, restored, 0, self.now_s, 0.0)
            self.advance(0.1)
        body = FirstStepDone(restored, "fresh" if restored <= 0 else "checkpoint", "x", restored + 1, self.now_s)
        self.handle(Said(TRAINER, trainer.incarnation, body))
        self.step(step)
        return self

    def loaded(self) -> World:
        """The trainer has written down what it has imported."""
        self.handle(Said(TRAINER, self.alive[TRAINER].incarnation, Loaded()))
        self.advance(0.5)
        return self

    def wait(self) -> World:
        """The standby has imported everything, and waits."""
        self.handle(StandbySaid(self.alive[STANDBY].incarnation, Waiting(2000, 2.5)))
        return self

    def step(self, step: int) -> None:
        self.alive[TRAINER].beat = Heartbeat(Phase.STEP, step, 0, self.now_s, 0.0)
        self.advance(0.5)

    def durable(self, step: int, reason: Any = "periodic") -> None:
        self.sequence += 1
        service = self.alive[CHECKPOINT]
        news = Durable(self.sequence, step, 1, f"/l/model.ckpt-{step}", reason, 10, 0.1, ())
        self.handle(Said(CHECKPOINT, service.incarnation, news))

    def end(self, task: TaskId, exit: Exit, words: LastWords | None = None) -> None:
        process = self.alive.pop(task)
        self.handle(Ended(task, process.incarnation, exit, process.beat, words, self.memory_step, self.stacks))

    def crash(self, exit: Exit = KILLED, words: LastWords | None = None) -> None:
        self.end(TRAINER, exit, words)

    def stop(self, now: bool = False, source: str = "SIGTERM") -> None:
        self.handle(StopAsked(source, now))

    # -- what is seen --------------------------------------------------------------------------------------
    def events(self, name: str) -> list[Journal]:
        return [entry for entry in self.journal if entry.event == name]

    def last(self, name: str) -> dict[str, Any]:
        return self.events(name)[-1].fields

    @property
    def exit_code(self) -> int | None:
        return self.quit.exit_code if self.quit is not None else None
