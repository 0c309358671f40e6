"""Messages between a program and the watchdog that it has started itself.  Plain data; fd_channel.py carries them.

Used by a Supervisor without `procsv launch` and by its watchdog, for the run's beginning and end; all else goes the way
of any trainer's messages.
"""

from __future__ import annotations

import msgspec


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


Word = Observe | Opened | Refused | ProgramLeft
DECODER: msgspec.msgpack.Decoder[Word] = msgspec.msgpack.Decoder(Word)
