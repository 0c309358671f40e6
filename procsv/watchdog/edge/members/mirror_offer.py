"""Offer of a copy of the memory of a chief whose machine is lost, to the coordinator that follows.

Used by the member's main, while it joins, and by mirror.py, while it looks for the coordinator that follows.  Until there is something
to be offered, nothing listens.
"""

from __future__ import annotations

import math

from procsv.base.clock import Clock
from procsv.base.errors import PeerError, UserError
from procsv.ipc.bulk.sender import Sender
from procsv.ipc.messaging.curve_transport import told_state_port
from procsv.ipc.messaging.member_messages import MirrorOffer
from procsv.watchdog.edge.members.mirror_files import MirrorFiles


class OfferedMirror:
    def __init__(self, files: MirrorFiles, clock: Clock) -> None:
        self.offer: MirrorOffer | None = None  # None: there is nothing, or nothing that can be read
        self._sender: Sender | None = None
        if (slot := files.newest()) is None:
            return
        self._sender = self._listen(clock)
        try:
            offer = self._sender.offer(slot, math.inf)
        except PeerError:
            self.close()
        else:
            self.offer = MirrorOffer(files.reached_at, slot.run, slot.step, offer)

    def close(self) -> None:
        if self._sender is not None:
            self._sender.close()
            self._sender = None

    def _listen(self, clock: Clock) -> Sender:
        """At the port that is let through, or at any, if another launch on this machine has that."""
        try:
            return Sender(told_state_port(), clock)
        except UserError:
            return Sender(0, clock)
