"""A snapshot slot as others than its owner have it: read, verified, and removed.

Used by the checkpoint service, and by the trainer that follows.  Nothing here is written to a slot: what a reader holds is mapped
privately, and a flock, shared, keeps its owner from writing meanwhile; the kernel lets it go when the reader dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from pathlib import Path

import msgspec
import xxhash

from procsv.base.errors import PeerError
from procsv.ipc.shm.slot_header import HEADER_BYTES, unpack_header
from procsv.ipc.shm.slot_index import Contents
from procsv.ipc.shm.slot_state import SlotEvent, SlotInfo, next_state
from procsv.ipc.shm.slot_verify import find_damaged


class SlotReader:
    """A READY slot, held (flock, shared) so that no trainer writes to it, mapped privately.

    PeerError if the slot is no longer what `info` said, or its table of contents does not match its hash.
    """

    def __init__(self, info: SlotInfo) -> None:
        self.info = info
        try:
            self._fd = os.open(info.path, os.O_RDONLY)
        except FileNotFoundError:
            raise PeerError(f"slot {info.path.name} is gone") from None
        try:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                raise PeerError(f"slot {info.path.name} is being written again") from None
            now = unpack_header(info.path, os.pread(self._fd, HEADER_BYTES, 0))
            if now is None or now != msgspec.structs.replace(
                info, state=next_state(info.state, SlotEvent.READER_OPENS)
            ):
                raise PeerError(f"slot {info.path.name} no longer holds snapshot {info.sequence}")
            # Private: what happens to the file later changes nothing that was read, and writes stay here.
            self.map = mmap.mmap(self._fd, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
            toc = bytes(self.map[info.toc_offset : info.toc_offset + info.toc_size])
            if xxhash.xxh3_64_intdigest(toc) != info.toc_hash:
                raise PeerError(f"slot {info.path.name}: the table of contents does not match its checksum")
            try:
                self.contents = msgspec.msgpack.decode(toc, type=Contents)
            except msgspec.DecodeError as error:
                raise PeerError(
                    f"slot {info.path.name}: the table of contents is of another version: {error}"
                ) from error
        except BaseException:
            os.close(self._fd)
            raise

    def read(self, offset: int, size: int) -> bytes:
        """Bytes of the file, before let_go."""
        return os.pread(self._fd, size, offset)

    def verify(self) -> None:
        """Reads every byte (of the file: before let_go) against the checksums of when it was filled; PeerError names the tensor."""
        damaged = find_damaged(self._fd, [entry for shard in self.contents.shards for entry in shard])
        if damaged is not None:
            raise PeerError(f"slot {self.info.path.name}: {damaged.key} does not match its checksum")

    def let_go(self) -> None:
        """Releases the lock; the mapping lives on for whoever holds views of it."""
        if self._fd >= 0:
            fcntl.flock(self._fd, fcntl.LOCK_UN)  # the map holds a copy of the descriptor, and with it the lock
            os.close(self._fd)
            self._fd = -1

    def close(self) -> None:
        self.let_go()
        with contextlib.suppress(BufferError):  # views of it are still held: they keep it until they go
            self.map.close()


def remove_slot(path: Path, expected: SlotInfo | None = None) -> bool:
    """Unlinks a slot that nobody writes to; False if somebody does.  Called by the checkpoint service.

    False, too, if its header is no longer `expected`: a new trainer has taken it over in the meantime.
    """
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if expected is not None:
            if unpack_header(path, os.pread(fd, HEADER_BYTES, 0)) != expected:
                return False
            next_state(expected.state, SlotEvent.SERVICE_REMOVES)
        path.unlink(missing_ok=True)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True
