"""Define outcomes as plain data: how a process ended, at which step, and how far a fit has come.

processes.py makes an Exit from an exit status.  The watchdog's core judges the Exit, and run.json
stores the result as a LastExit.
"""

from __future__ import annotations

import signal
from typing import Literal

import msgspec

NO_STEP = -1  # there is no step yet

# Where an attempt took its state from.  alive: the parameter servers still hold the model as a chief left it; chief: a
# worker has taken the model that its chief made.
Source = Literal["memory", "checkpoint", "fresh", "alive", "chief"]


class SaveHabit(msgspec.Struct, frozen=True):
    """What a program's step numbers count, and whether its starts restore what it has saved."""

    unit: Literal["step", "save"] = "step"  # "save": it has no step counter, so each of its saves counts as a step
    restores: bool | None = True  # None: unknown, as it may restore by itself, which procsv does not see


STEPS = SaveHabit()


class FitPlace(msgspec.Struct, frozen=True):
    """How far a Keras fit has come, in the numbers of its progress bar."""

    number: int  # of the fit in its program, from 1 on
    epoch: int  # the current one, from 1 on
    epochs: int
    batch: int  # finished batches of the epoch
    batches: int  # per epoch; 0 if not known yet

    @property
    def batches_left(self) -> int:
        """How many batches of this fit are left; 0 if the number per epoch is unknown."""
        return max(0, (self.epochs - self.epoch + 1) * self.batches - self.batch) if self.batches else 0

    def __str__(self) -> str:
        fit = f"fit {self.number}, " if self.number > 1 else ""
        batch = f"{self.batch} of {self.batches}" if self.batches else str(self.batch)
        return f"{fit}epoch {self.epoch} of {self.epochs}, batch {batch}"


class Loss(msgspec.Struct, frozen=True):
    """A loss that the program has reported."""

    name: str
    step: int
    value: float


class Exit(msgspec.Struct, frozen=True):
    """How a process ended: by `code` or by `signal`.

    Both are None if the process was not our child, because then nobody tells us.
    """

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
    """The exception that ended a trainer, which the trainer wrote down for the watchdog."""

    type: str = ""
    message: str = ""
    traceback: str = ""
    step: int | None = None
    permanent: bool = False  # every start would fail the same way: a missing module, a syntax error, a wrong argument
    is_shown: bool = False  # the trainer has already printed it, as one message
    no_room: bool = False  # caused by a full disk or an exhausted quota
    lost_peer: str = ""  # the task whose end or silence caused it, if another process did


class LastExit(msgspec.Struct, frozen=True, omit_defaults=False):
    """How a trainer ended.  `code` or `signal` (by name), never both."""

    code: int | None
    signal: str | None
    cause: str  # completed, stopped, exception, exit-code, killed, crashed, hang, lost-peer or unknown
    evidence: str
    step: int
