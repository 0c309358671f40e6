"""Build a slot from data that comes from another machine.

ipc/bulk/fetch.py uses it.  The slot is a copy of the original, byte for byte, header included.
Until the slot is whole and verified, it is a draft under a name that nobody looks for.  Its final
name contains the task that owns the original, so no other task takes it over.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from procsv.base.errors import PeerError
from procsv.base.identity import attempt_name
from procsv.base.system.failpoints import declare, failpoint
from procsv.ipc.shm.slot_file import reserve
from procsv.ipc.shm.slot_header import read_header
from procsv.ipc.shm.slot_reader import SlotReader
from procsv.ipc.shm.slot_state import SlotInfo, SlotState

declare("member.before_fetched")


def fetched_name(info: SlotInfo) -> str:
    """Returns the name under which readers find the slot.

    A slot that is fetched later from the same attempt replaces it.
    """
    return f"slot.{attempt_name(info.task, info.incarnation)}.fetched"


class IncomingSlot:
    def __init__(self, shm_dir: Path, size: int) -> None:
        """Reserves the slot's memory; NoRoom if there is not enough."""
        self._draft = shm_dir / f".slot.{secrets.token_hex(4)}.new"
        self._info: SlotInfo | None = None  # once it is verified
        self._fd = os.open(self._draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            reserve(self._fd, size, self._draft)
        except BaseException:
            self.close()
            raise

    def write_at(self, offset: int, data: bytes) -> None:
        done = 0
        while done < len(data):
            done += os.pwrite(self._fd, data[done:], offset + done)

    def verify_slot(self, sequence: int, contents_hash: int) -> None:
        """Raises PeerError unless the slot is READY and exactly the offered snapshot."""
        info = read_header(self._draft)
        if info is None or info.state is not SlotState.READY:
            raise PeerError("the received snapshot is incomplete")
        if (info.sequence, info.toc_hash) != (sequence, contents_hash):
            raise PeerError(f"received snapshot {info.sequence} instead of the offered {sequence}")
        try:
            reader = SlotReader(info)
            try:
                reader.verify_slot()
            finally:
                reader.close()
        except PeerError as error:
            raise PeerError(f"damaged on its way: {error}") from error
        self._info = info

    def publish_slot(self) -> Path:
        """Gives the verified slot its name, so that readers find it."""
        assert self._info is not None, "published unverified"
        failpoint("member.before_fetched")
        path = self._draft.with_name(fetched_name(self._info))
        self._draft.rename(path)
        return path

    def close(self) -> None:
        """Closes the slot, and removes it if it is still a draft."""
        os.close(self._fd)
        self._draft.unlink(missing_ok=True)
