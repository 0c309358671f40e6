"""Messages between a watchdog and its standby.  Plain data; standby_channel.py carries them."""

from __future__ import annotations

import msgspec

from procsv.base.identity import TaskId


class Waiting(msgspec.Struct, frozen=True, tag=True):
    """Standby -> watchdog: all that can be done beforehand is done; from now on it sleeps.  Said once."""

    modules: int
    seconds: float


class BecomeTrainer(msgspec.Struct, frozen=True, tag=True):
    """Watchdog -> standby: be this task.  Brings log, writer's lock and logdir's lock.  Answered by TrainerBegun."""

    task: TaskId
    incarnation: int


class TrainerBegun(msgspec.Struct, frozen=True, tag=True):
    """Standby -> watchdog: log and lock are taken over; what happens to this process now happens to the trainer."""

    incarnation: int


Word = Waiting | BecomeTrainer | TrainerBegun
