"""Offers of what is in memory to the tasks of other machines.

Used by process.py, on its main thread.  Makes what sends it with the first one: a run of one machine, or without tasks that train in
step, listens on no port.
"""

from __future__ import annotations

import sys

from procsv.base.errors import PeerError, UserError
from procsv.ipc.bulk.sender import Sender
from procsv.ipc.messaging.checkpoint_messages import RestoreFrom
from procsv.ipc.messaging.state_offer import StateOffer
from procsv.ipc.shm.slot_state import SlotInfo
from procsv.services.checkpoint.environment import Environment


class StateOffers:
    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._sender: Sender | None = None
        self._has_failed = False

    def make(self, told: RestoreFrom) -> StateOffer | None:
        """How the slot that is told of is fetched; None if it cannot be: who asks takes the checkpoint then."""
        slot = next((slot for slot in self._environment.slots() if str(slot.path) == told.path), None)
        return self.of_slot(slot, told.path)

    def of_slot(self, slot: SlotInfo | None, path: str = "", silence_s: float | None = None) -> StateOffer | None:
        """How `slot`, which was at `path`, is fetched; None if it cannot be.  `silence_s`: as in Sender."""
        try:
            if slot is None:
                raise PeerError(f"{path} is gone")
            self._sender = self._sender or self._environment.sender()
            return self._sender.offer(slot, silence_s)
        except (PeerError, UserError, OSError) as error:
            if not self._has_failed:
                self._has_failed = True
                text = f"other machines have checkpoints alone, as what is in memory cannot be offered: {error}"
                print(f"procsv checkpoint: {text}", file=sys.stderr, flush=True)
            return None

    def close(self) -> None:
        if self._sender is not None:
            self._sender.close()
