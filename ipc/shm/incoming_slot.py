"""A slot whose contents come from another machine: a draft that nobody finds, until it is whole and verified.

Used by ipc/bulk/fetch.py.  It is the slot of whoever filled it, byte for byte, header included; its name is that of no task of this
machine, so that none fills it anew.
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
    """Under which it is found; one that comes later of the same attempt takes its place."""
    return f"slot.{attempt_name(info.task, info.incarnation)}.fetched"


class IncomingSlot:
    def __init__(self, shm_dir: Path, size: int) -> None:
        """Its memory is reserved; NoRoom if it cannot be had."""
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
        """PeerError if it is not READY and what was promised, to the last bit."""
        info = read_header(self._draft)
        if info is None or info.state is not SlotState.READY:
            raise PeerError("what has come is no whole snapshot")
        if (info.sequence, info.toc_hash) != (sequence, contents_hash):
            raise PeerError(f"what has come is snapshot {info.sequence}, and not the offered {sequence}")
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
        """Gives what was verified its name, by which it is found."""
        assert self._info is not None, "published unverified"
        failpoint("member.before_fetched")
        path = self._draft.with_name(fetched_name(self._info))
        self._draft.rename(path)
        return path

    def close(self) -> None:
        """Lets go of it; a draft is removed."""
        os.close(self._fd)
        self._draft.unlink(missing_ok=True)
