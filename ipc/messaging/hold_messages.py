"""Messages by which a chief learns where the steps of tasks on other machines are held, under `--consistent-snapshots`.

Pure data, bodies of messages.py.  The holds themselves go past the watchdogs (procsv/training/holds).  The keys are made by the task for
this alone; they travel on the channels that are the run's own already, and are in no file.
"""

from __future__ import annotations

import msgspec

from procsv.base.identity import TaskId
from procsv.ipc.messaging.contract import PROGRAM, WATCHDOG, Contract
from procsv.ipc.messaging.message import Message


class HoldOffer(msgspec.Struct, frozen=True):
    """Where an attempt of a task listens to who holds its steps."""

    port: int  # of the task's machine
    server_key: str  # of CURVE, in Z85: the task's public one
    client_public: str  # and the pair for who holds
    client_secret: str

    def __repr__(self) -> str:
        return f"HoldOffer({self.port})"  # keys belong in no log


class HoldOffered(Message, frozen=True):
    """Says where the steps of this attempt are held.  Said at its start, and when it is asked."""

    contract = Contract(PROGRAM, WATCHDOG)

    offer: HoldOffer


class AskHold(Message, frozen=True):
    """Asks a task where its steps are held.  It answers by HoldOffered."""

    contract = Contract(WATCHDOG, PROGRAM)


class AskHolds(Message, frozen=True):
    """Asks, for the chief, where the steps of all others are held.  HoldTold follows for each that can be reached."""

    contract = Contract(PROGRAM, WATCHDOG)


class StepsEnded(Message, frozen=True):
    """Says that the program of this attempt has ended by itself: no step of it is under way, on no server either."""

    contract = Contract(PROGRAM, WATCHDOG)


class HoldTold(Message, frozen=True):
    """Tells the chief where that attempt of the task is held; without `offer`, that the task has ended and is not started again."""

    contract = Contract(WATCHDOG, PROGRAM)

    task: TaskId
    incarnation: int
    offer: HoldOffer | None
    is_between: bool = False  # it has ended between two steps, as far as is known
