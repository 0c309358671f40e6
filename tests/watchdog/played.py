"""The core alone, event by event, for promises about single actions and deadlines to a tenth of a second."""

from __future__ import annotations

import signal
from random import Random
from typing import Any

from procsv.base.identity import CHECKPOINT, TRAINER, TaskId
from procsv.base.outcome import NO_STEP, Exit, LastWords
from procsv.ipc.messaging.messages import Body, Hello
from procsv.ipc.messaging.watchdog_messages import Finish, FirstStepDone, FlushDone, TrainerExited
from procsv.ipc.shm.heartbeat import Heartbeat, Phase
from procsv.watchdog.core.actions import Action, KillTree, Say, StartAttempt, Tell, WriteEntry
from procsv.watchdog.core.events import Ended, Event, Said, ServiceReady, Started, StopAsked, Ticked
from procsv.watchdog.core.run import Core
from procsv.watchdog.core.settings import Settings

WORKER = TaskId("worker", 1)
KILLED, SAVED, DONE = Exit(None, signal.SIGKILL), Exit(75, None), Exit(0, None)
INTERRUPTED = Exit(130, None)
BOOM = LastWords("ValueError", "boom", "Traceback …", 7)


class Played:
    """A core from 100 s on, whose processes have started."""

    def __init__(self, is_up: bool = True, trains: bool = True, **settings: Any) -> None:
        self.core, self.now_s = Core(Settings(**settings), 1, Random(0), 100.0), 100.0
        for number, spawn in enumerate(self.core.start(100.0)):
            if isinstance(spawn, StartAttempt):
                self.tell(Started(spawn.task, spawn.incarnation, 1000 + number))
        for service in self.core.services if is_up else ():
            self.tell(ServiceReady(service, 1))
        for task in self.core.tasks if trains else ():
            self.tell(Said(task, 1, Hello(1)))
            self.tell(Ticked({task: Heartbeat(Phase.STEP, 7, 7, 100.0, 0.0)}))
            self.tell(Said(task, 1, FirstStepDone(0, "fresh", "x", 1, 100.0)))

    def tell(self, *told: Event, at_s: float | None = None) -> list[Action]:
        self.now_s = self.now_s if at_s is None else at_s
        return [action for event in told for action in self.core.handle(event, self.now_s)]

    def stop(self, now: bool = False, is_notice: bool = False) -> list[Action]:
        return self.tell(StopAsked("SIGTERM", now, is_notice))

    def tick(self, at_s: float) -> list[Action]:
        return self.tell(Ticked(), at_s=at_s)

    def end(self, task: TaskId, exit: Exit, at_s: float | None = None, **more: Any) -> list[Action]:
        return self.tell(Ended(task, 1, exit, **more), at_s=at_s)

    def hear(self, body: Body, at_s: float | None = None) -> list[Action]:
        """Receive a message from the trainer."""
        return self.tell(Said(TRAINER, self.core.chief.incarnation, body), at_s=at_s)

    def answer(self, to: TrainerExited | Finish, error: str) -> list[Action]:
        return self.tell(Said(CHECKPOINT, 1, FlushDone(-1, error), to))


def beat(phase: Phase, step: int = NO_STEP) -> Heartbeat:
    return Heartbeat(phase, step, 0, 100.0, 0.0)


def said(actions: list[Action]) -> list[tuple[str, bool]]:
    return [(action.text, action.is_bad) for action in actions if isinstance(action, Say)]


def killed(actions: list[Action]) -> list[TaskId]:
    return [action.task for action in actions if isinstance(action, KillTree)]


def told(actions: list[Action]) -> list[tuple[TaskId, type]]:
    return [(action.task, type(action.body)) for action in actions if isinstance(action, Tell)]


def journaled(actions: list[Action], event: str) -> list[dict[str, Any]]:
    return [one.entry.fields() for one in actions if isinstance(one, WriteEntry) and one.entry.event == event]
