"""Messages with open files, which fd_channel.py carries: between a watchdog and its standby, and between a program and the watchdog
that it has started itself.  Plain data.
"""

from __future__ import annotations

import msgspec

from procsv.base.identity import TaskId


# -- watchdog and standby ----------------------------------------------------------------------------------------
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


StandbyWord = Waiting | BecomeTrainer | ImportMore | TrainerBegun | Unfit
STANDBY_DECODER: msgspec.msgpack.Decoder[StandbyWord] = msgspec.msgpack.Decoder(StandbyWord)


# -- program and its own watchdog: the beginning and the end of the run; all else goes the way of any trainer's messages -----------------
class Observe(msgspec.Struct, frozen=True, tag=True):
    """Program -> watchdog: this is your run.  `start`: the text of a Start.  Answered by Opened or Refused."""

    start: str


class Opened(msgspec.Struct, frozen=True, tag=True):
    """Watchdog -> program: the logdir is ours, the services are on their way, and you are trainer `incarnation`.

    Brings the logdir's lock.
    """

    incarnation: int


class Refused(msgspec.Struct, frozen=True, tag=True):
    """Watchdog -> program: the run cannot be had; the text says why, and what to change."""

    text: str
    exit_code: int
    is_locked: bool


class ProgramLeft(msgspec.Struct, frozen=True, tag=True):
    """Program -> watchdog: the session is over, and so is the run.  Answered by end-of-file, when all is on disk.

    `code`: the exit code that this session's end implies; the exception is in the last-words file.
    """

    code: int


ObserverWord = Observe | Opened | Refused | ProgramLeft
OBSERVER_DECODER: msgspec.msgpack.Decoder[ObserverWord] = msgspec.msgpack.Decoder(ObserverWord)
