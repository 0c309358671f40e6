"""Messages between a watchdog and its standby.  Plain data; fd_channel.py carries them."""

from __future__ import annotations

import msgspec

from procsv.base.identity import TaskId


class Waiting(msgspec.Struct, frozen=True, tag=True):
    """Standby -> watchdog: all that can be done beforehand is done; from now on it sleeps.  The answer to ImportMore, too.

    `no_fork`: why it cannot be forked, so that it is to be the trainer itself, once; "" if it can.
    """

    modules: int
    seconds: float
    no_fork: str = ""


class BecomeTrainer(msgspec.Struct, frozen=True, tag=True):
    """Watchdog -> standby: be this task.  Brings log, writer's lock and logdir's lock.  Answered by TrainerBegun.

    `logdir` and `root` as in a Start: the run may have adopted another directory since the standby was started.
    """

    task: TaskId
    incarnation: int
    logdir: str
    root: str = ""


class ImportMore(msgspec.Struct, frozen=True, tag=True):
    """Watchdog -> standby: the trainer has written down what it has imported by now.  Answered by Waiting."""


class TrainerBegun(msgspec.Struct, frozen=True, tag=True):
    """Standby -> watchdog: log and locks are taken over; what happens to process `pid` now happens to the trainer.

    That is a fork, by now a child of the watchdog's, and the standby waits again; 0: the standby itself.
    """

    incarnation: int
    pid: int = 0


class Unfit(msgspec.Struct, frozen=True, tag=True):
    """Standby -> watchdog: what it has imported is not what a trainer would import now.  Everything is as before."""

    why: str


Word = Waiting | BecomeTrainer | ImportMore | TrainerBegun | Unfit
DECODER: msgspec.msgpack.Decoder[Word] = msgspec.msgpack.Decoder(Word)
