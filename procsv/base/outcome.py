"""Outcomes of processes, as plain data: how one ended, and at which step.

Made by processes.py from an exit status, judged by the watchdog's core, written to run.json; and, of a fit, the place it is at.
"""

from __future__ import annotations

import signal
from typing import Literal

import msgspec

NO_STEP = -1  # of a step: there is none yet

# Of a state that is gone on from.  alive: a chief has left the model on the servers as it was; chief: a worker has taken it as its chief
# has made it.
Source = Literal["memory", "checkpoint", "fresh", "alive", "chief"]


class SaveHabit(msgspec.Struct, frozen=True):
    """What the step numbers of a program count, and whether its starts restore what it has saved."""

    unit: Literal["step", "save"] = "step"  # "save": it has no step counter, so each of its saves counts as one
    restores: bool | None = True  # None: if at all, then by itself, and it has not been seen to; False: it did not


STEPS = SaveHabit()


class FitPlace(msgspec.Struct, frozen=True):
    """How far a fit of Keras has come, in the numbers that its progress bar shows."""

    number: int  # of the fit in its program, from 1 on
    epoch: int  # under way, from 1 on
    epochs: int
    batch: int  # batches of it that have ended
    batches: int  # of an epoch; 0: not known yet

    @property
    def batches_left(self) -> int:
        """Of this fit; 0 where nobody knows how many an epoch has."""
        return max(0, (self.epochs - self.epoch + 1) * self.batches - self.batch) if self.batches else 0

    def __str__(self) -> str:
        fit = f"fit {self.number}, " if self.number > 1 else ""
        batch = f"{self.batch} of {self.batches}" if self.batches else str(self.batch)
        return f"{fit}epoch {self.epoch} of {self.epochs}, batch {batch}"


class Loss(msgspec.Struct, frozen=True):
    """A loss as the program has told it."""

    name: str
    step: int  # that it is of
    value: float


class Exit(msgspec.Struct, frozen=True):
    """How a process ended: by `code`, or by `signal`; neither is known of one that is no child of ours."""

    code: int | None
    signal: int | None

    @property
    def signal_name(self) -> str | None:
        if self.signal is None:
            return None
        try:
            return signal.Signals(self.signal).name
        except ValueError:
            return f"SIG{self.signal}"

    def __str__(self) -> str:
        return self.signal_name or ("an unknown exit status" if self.code is None else f"exit code {self.code}")


class LastWords(msgspec.Struct, frozen=True):
    """The exception that ended a trainer, as that has written it down for the watchdog."""

    type: str = ""
    message: str = ""
    traceback: str = ""
    step: int | None = None
    permanent: bool = False  # it will be the same at every start: a missing module, a syntax error, a wrong argument
    is_shown: bool = False  # one message, which the trainer has printed itself
    no_room: bool = False  # it tells of a disk without room, or a quota that is used up
    lost_peer: str = ""  # the task of another process whose end, or silence, is what the exception tells of


class LastExit(msgspec.Struct, frozen=True, omit_defaults=False):
    """How a trainer ended.  `code` or `signal` (by name), never both."""

    code: int | None
    signal: str | None
    cause: str  # completed, stopped, exception, exit-code, killed, crashed, hang, lost-peer or unknown
    evidence: str
    step: int
