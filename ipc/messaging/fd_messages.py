"""Define the messages that fd_channel.py carries.  Some come with open files.

They are plain data.  They pass between a watchdog and its standby, and between a program and the
watchdog that it has started itself.
"""

from __future__ import annotations

import msgspec

from procsv.base.identity import TaskId


# -- watchdog and standby ----------------------------------------------------------------------------------------
class Waiting(msgspec.Struct, frozen=True, tag=True):
    """Standby -> watchdog: preparation is complete, and the standby sleeps from now on.

    Also answers ImportMore.  `no_fork`: why the standby cannot be forked, so that it must itself
    become the trainer; "" if it can be forked.
    """

    modules: int
    seconds: float
    no_fork: str = ""


class BecomeTrainer(msgspec.Struct, frozen=True, tag=True):
    """Watchdog -> standby: become this task.  Answered by TrainerBegun, or CannotBecomeTrainer.

    Carries the log, the writer's lock and the logdir's lock.  `logdir` and `root`: as in a Start.
    The run may have adopted another directory since the standby started.
    """

    task: TaskId
    incarnation: int
    logdir: str
    root: str = ""


class ImportMore(msgspec.Struct, frozen=True, tag=True):
    """Watchdog -> standby: the trainer has recorded its imports so far; import them.

    Answered by Waiting.
    """


class TrainerBegun(msgspec.Struct, frozen=True, tag=True):
    """Standby -> watchdog: the trainer has taken over log and locks, and is process `pid`.

    That process is a fork and already a child of the watchdog.  The standby waits for its next use.
    `pid` 0: the standby itself has become the trainer.
    """

    pid: int = 0


class CannotBecomeTrainer(msgspec.Struct, frozen=True, tag=True):
    """Standby -> watchdog: this standby cannot become the trainer, and keeps waiting.

    Answers BecomeTrainer.  `why`: a file that it imported has changed since, or its working
    directory was deleted.
    """

    why: str


StandbyWord = Waiting | BecomeTrainer | ImportMore | TrainerBegun | CannotBecomeTrainer
STANDBY_DECODER: msgspec.msgpack.Decoder[StandbyWord] = msgspec.msgpack.Decoder(StandbyWord)


# -- program and its own watchdog, for the beginning and end of the run; other messages travel like any trainer's ------
class Observe(msgspec.Struct, frozen=True, tag=True):
    """Program -> watchdog: observe this run.  Answered by Opened or Refused.

    `start`: the text of a Start.
    """

    start: str


class Opened(msgspec.Struct, frozen=True, tag=True):
    """Watchdog -> program: the logdir is acquired, and you are trainer `incarnation`.

    The services are starting.  The message carries the logdir's lock.
    """

    incarnation: int


class Refused(msgspec.Struct, frozen=True, tag=True):
    """Watchdog -> program: the run cannot start; the text says why and what to change."""

    text: str
    exit_code: int
    is_locked: bool


class ProgramLeft(msgspec.Struct, frozen=True, tag=True):
    """Program -> watchdog: the session and the run have ended.

    The watchdog answers by closing its end (end-of-file) once all is on disk.  `code`: the exit
    code that the end of the session implies; the exception is in the last-words file.
    """

    code: int


ObserverWord = Observe | Opened | Refused | ProgramLeft
OBSERVER_DECODER: msgspec.msgpack.Decoder[ObserverWord] = msgspec.msgpack.Decoder(ObserverWord)
