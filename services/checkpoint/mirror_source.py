"""Source of the copy of the chief's memory that another machine keeps: the newest snapshot of this run, once it is newer than the copy.

Used by process.py, on its main thread.  Snapshots that come faster than they can be carried are skipped: what is offered is the newest
there is when it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable

from procsv.base.identity import TaskId
from procsv.ipc.bulk.transfer import SILENCE_S_MAX
from procsv.ipc.messaging.endpoint import Received, ServerEndpoint
from procsv.ipc.messaging.member_messages import AskSnapshot, SnapshotOffered
from procsv.ipc.shm.slot_state import SlotInfo, SlotState
from procsv.services.checkpoint.state_offers import StateOffers

# Without a word of who copies it: that has given it up by then.  The trainer takes no snapshot meanwhile where it has two slots, so a run
# that stops as that machine is lost, after a peer timeout of silence, could not save its last step.
SILENCE_S = SILENCE_S_MAX + 1.0


class MirrorSource:
    def __init__(self, run: str, chief: TaskId, server: ServerEndpoint, offers: StateOffers) -> None:
        self._run, self._chief, self._server, self._offers = run, chief, server, offers
        self._asked: tuple[Received, int] | None = None  # the open question, and the sequence that is had already

    def ask(self, received: Received, body: AskSnapshot) -> None:
        """A new question takes the place of the one before: there is one copy."""
        self._asked = received, body.after

    def go_on(self, slots: Iterable[SlotInfo]) -> None:
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
