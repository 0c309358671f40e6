"""The files of a memory copy, the chief's newest snapshot in the shared memory of another machine, and how they are offered.

They lie in a directory of the run and of the machine, and not of the launch that keeps them: after the loss of another machine the
scheduler may have a launch here begin with any task, and whichever it is finds them.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
from pathlib import Path

from procsv.base.clock import Clock
from procsv.base.errors import PeerError, UserError
from procsv.base.run.paths import make_private_dir
from procsv.ipc.bulk.sender import Sender
from procsv.ipc.messaging.curve_transport import told_state_port
from procsv.ipc.messaging.member_messages import MirrorOffer
from procsv.ipc.messaging.start import Start
from procsv.ipc.shm.incoming_slot import fetched_name
from procsv.ipc.shm.slot_file import NoRoom
from procsv.ipc.shm.slot_header import scan_slots
from procsv.ipc.shm.slot_state import SlotInfo


class MemoryCopyFiles:
    def __init__(self, start: Start, host: str, reached_at: str = "") -> None:
        """`start`: of the run, or of its coordinator: not with a member's own directories.  `host`: this machine's name.

        `reached_at`: the name by which other machines find this one, if that is another.
        """
        self.reached_at = reached_at or host
        shm = Path(start.shm_dir)
        self.directory = shm.parent / f"{shm.name}-mirror-{hashlib.sha256(host.encode()).hexdigest()[:8]}"

    def newest(self) -> SlotInfo | None:
        """The header of the newest whole snapshot; what it holds is not looked at."""
        return next(iter(scan_slots(self.directory)), None)

    def make_room(self, size: int) -> None:
        """Sees that there is room for one of so many bytes, beside the one that is kept; NoRoom if there is not.

        As much again has to stay free: a task of this machine may have to fetch the same.
        """
        make_private_dir(self.directory)
        there = os.statvfs(self.directory)
        free = there.f_bavail * there.f_frsize
        if free < 2 * size:
            raise NoRoom(
                f"{self.directory.parent} has {free} bytes free, and a copy takes {size}, with as many to spare"
            )

    def keep_only(self, path: Path) -> None:
        """Removes what is older than `path`.  Killed before: the newest one counts."""
        for other in self.directory.glob("slot.*"):
            if other != path:
                other.unlink(missing_ok=True)

    def move(self, slot: SlotInfo, shm_dir: Path) -> None:
        """Makes the copy one of the snapshots that are in the memory of this machine's run.  OSError if it cannot be."""
        make_private_dir(shm_dir)
        slot.path.rename(shm_dir / fetched_name(slot))
        self.remove()

    def remove_drafts(self) -> None:
        """What a launch that was killed had not fetched whole."""
        for path in self.directory.glob(".*.new"):
            path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Nobody needs it any more."""
        self.remove_drafts()
        for path in self.directory.glob("slot.*"):
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # it is not there, or another launch has come in
            self.directory.rmdir()


class OfferedMemoryCopy:
    """Offer of a copy of the memory of a chief whose machine is lost, to the coordinator that follows.

    Used by member.py, while it joins, and by keeper.py, while it looks for the coordinator that follows.  Until there is
    something to be offered, nothing listens.
    """

    def __init__(self, files: MemoryCopyFiles, clock: Clock) -> None:
        self.offer: MirrorOffer | None = None  # None: there is nothing, or nothing that can be read
        self._sender: Sender | None = None
        if (slot := files.newest()) is None:
            return
        try:
            self._sender = self._listen(clock)
            offer = self._sender.offer(slot, math.inf)
        except (PeerError, UserError, OSError):
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
