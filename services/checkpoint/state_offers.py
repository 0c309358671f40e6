"""Offer snapshots in memory to other machines.

Tasks on other machines start from such snapshots, and one machine may keep a copy of the chief's
newest snapshot. process.py uses this module on its main thread.  The first offer creates the
sender, so a run on one machine listens on no port.
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

# After this much silence, the machine that copies a snapshot has given up, and the sender frees the slot.  A trainer
# with two slots takes no snapshot while one slot is being copied.  Suppose that the copying machine is lost, and the
# run stops after the peer timeout.  With a longer wait here, the run could not save its last step.
SILENCE_S = SILENCE_S_MAX + 1.0


class StateOffers:
    def __init__(self, environment: CheckpointEnvironment) -> None:
        self._environment = environment
        self._sender: Sender | None = None
        self._has_failed = False

    def make(self, told: RestoreFrom) -> StateOffer | None:
        """Returns how another machine can fetch the slot that the answer `told` names.

        None if the slot cannot be fetched; that machine's task must then restore a checkpoint.
        """
        slot = next((slot for slot in self._environment.slots() if str(slot.path) == told.path), None)
        return self.of_slot(slot, told.path)

    def of_slot(self, slot: SlotInfo | None, path: str = "", silence_s: float | None = None) -> StateOffer | None:
        """Returns how to fetch `slot`, or None if it cannot be fetched.

        `slot` is None if the slot at `path` is gone.  `silence_s`: as in Sender.
        """
        try:
            if slot is None:
                raise PeerError(f"{path} is gone")
            self._sender = self._sender or self._environment.sender()
            return self._sender.offer(slot, silence_s)
        except (PeerError, UserError, OSError) as error:
            if not self._has_failed:
                self._has_failed = True
                text = (
                    f"other machines can restore only checkpoints, because this one cannot offer its snapshots: {error}"
                )
                print(f"procsv checkpoint: {text}", file=sys.stderr, flush=True)
            return None

    def close(self) -> None:
        if self._sender is not None:
            self._sender.close()


class MirrorSource:
    """Offers this run's newest snapshot to the machine that keeps a memory copy of it.

    That machine asks with the sequence of its copy, and the answer waits for a newer snapshot.  The
    answer offers the newest snapshot at that time.  So if snapshots come faster than they can be
    copied, some are skipped.
    """

    def __init__(self, run: str, chief: TaskId, server: ServerEndpoint, offers: StateOffers) -> None:
        self._run, self._chief, self._server, self._offers = run, chief, server, offers
        self._asked: tuple[Received, int] | None = None  # the open question, and the sequence of the present copy

    def take_question(self, received: Received, body: AskSnapshot) -> None:
        """Takes a question; it replaces the previous question, since there is only one copy."""
        self._asked = received, body.after

    def answer_question(self, slots: Iterable[SlotInfo]) -> None:
        """Answers the open question if one of `slots` is newer than the copy."""
        if self._asked is None:
            return
        received, after = self._asked
        if received.who not in self._server.peers:  # the asker, or the coordinator that relays for it, is gone
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
