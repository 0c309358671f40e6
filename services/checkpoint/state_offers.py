"""Offers of what is in memory to other machines: to their tasks, which start from it, and to the one that keeps a copy of the chief's.

Used by process.py, on its main thread.  Makes what sends it with the first one: a run of one machine, or without tasks that train in
step, listens on no port.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from procsv.base.errors import PeerError, UserError
from procsv.base.identity import TaskId
from procsv.ipc.bulk.sender import Sender
from procsv.ipc.bulk.transfer import SILENCE_S_MAX
from procsv.ipc.messaging.checkpoint_messages import RestoreFrom, StateOffer
from procsv.ipc.messaging.endpoint import Received, ServerEndpoint
from procsv.ipc.messaging.member_messages import AskSnapshot, SnapshotOffered
from procsv.ipc.shm.slot_state import SlotInfo, SlotState
from procsv.services.checkpoint.environment import CheckpointEnvironment

# Without a word of who copies it: that has given it up by then.  The trainer takes no snapshot meanwhile where it has two slots, so a run
# that stops as that machine is lost, after a peer timeout of silence, could not save its last step.
SILENCE_S = SILENCE_S_MAX + 1.0


class StateOffers:
    def __init__(self, environment: CheckpointEnvironment) -> None:
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


class MirrorSource:
    """The newest snapshot of this run, for the copy on another machine, once it is newer than the copy.

    Snapshots that come faster than they can be carried are skipped: what is offered is the newest there is when it is asked for.
    """

    def __init__(self, run: str, chief: TaskId, server: ServerEndpoint, offers: StateOffers) -> None:
        self._run, self._chief, self._server, self._offers = run, chief, server, offers
        self._asked: tuple[Received, int] | None = None  # the open question, and the sequence that is had already

    def take_question(self, received: Received, body: AskSnapshot) -> None:
        """A new question takes the place of the one before: there is one copy."""
        self._asked = received, body.after

    def answer_question(self, slots: Iterable[SlotInfo]) -> None:
        """Answers, if there is what was asked for among the slots that exist now."""
        if self._asked is None:
            return
        received, after = self._asked
        if received.who not in self._server.peers:  # it has gone, or its coordinator has
            self._asked = None
            return
        whole = [slot for slot in slots if slot.task == self._chief and slot.run == self._run]
        newest = max(
            (slot for slot in whole if slot.state is SlotState.READY and slot.sequence > after),
            key=lambda slot: slot.sequence,
            default=None,
        )
        if newest is not None:
            self._asked = None
            offer = self._offers.of_slot(newest, silence_s=SILENCE_S)
            self._server.send_reliable(received.who, SnapshotOffered(newest.step, offer), re=received.seq)
