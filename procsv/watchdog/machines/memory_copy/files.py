"""Store and offer a memory copy, the chief's newest snapshot in another machine's memory.

The files are in a directory named by run and machine, not by launch. After the loss of another
machine, the scheduler may start a launch with any task on this machine. That launch must find the
files.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from pathlib import Path

from procsv.base.clock import Clock
from procsv.base.errors import PeerError, UserError
from procsv.base.run.paths import make_private_dir
from procsv.base.system.disk import free_bytes
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
        """`start`: has the run's directories, not a member's own. `host`: this machine's name.
        `reached_at`: the name by which other machines find this one, if it differs.
        """
        self.reached_at = reached_at or host
        shm = Path(start.shm_dir)
        self.directory = shm.parent / f"{shm.name}-mirror-{hashlib.sha256(host.encode()).hexdigest()[:8]}"

    def newest(self) -> SlotInfo | None:
        """Return the header of the newest whole snapshot, without checking its contents."""
        return next(iter(scan_slots(self.directory)), None)

    def make_room(self, size: int) -> None:
        """Check that a second copy of `size` bytes fits beside the kept one; NoRoom if it does not.

        As many bytes again must stay free, because a task on this machine may have to fetch the
        same state.
        """
        make_private_dir(self.directory)
        free = free_bytes(self.directory)
        if free < 2 * size:
            raise NoRoom(
                f"{self.directory.parent} has {free} bytes free, and a copy needs {size}, with as many left free"
            )

    def keep_only(self, path: Path) -> None:
        """Remove all copies but `path`. If this is killed halfway, the newest copy is used."""
        for other in self.directory.glob("slot.*"):
            if other != path:
                other.unlink(missing_ok=True)

    def move(self, slot: SlotInfo, shm_dir: Path) -> None:
        """Move the copy to the snapshots of this machine's run. Raises OSError."""
        make_private_dir(shm_dir)
        slot.path.rename(shm_dir / fetched_name(slot))
        self.remove()

    def remove_drafts(self) -> None:
        """Remove incomplete copies of a killed launch."""
        for path in self.directory.glob(".*.new"):
            path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the copy, which is no longer needed."""
        self.remove_drafts()
        for path in self.directory.glob("slot.*"):
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # it does not exist, or another launch has put files there
            self.directory.rmdir()


class OfferedMemoryCopy:
    """Offers a copy of a lost chief's memory to the next coordinator.

    Used by member.py while it joins, and by keeper.py while it looks for the next coordinator. It
    listens only if there is something to offer.
    """

    def __init__(self, files: MemoryCopyFiles, clock: Clock) -> None:
        self.offer: MirrorOffer | None = None  # None: there is no copy, or it cannot be read
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
        """Listen at the configured port, or at any port if another launch here has that one."""
        try:
            return Sender(told_state_port(), clock)
        except UserError:
            return Sender(0, clock)
