"""A server's own variables, captured in its process and copied into the chief's slot.

Runs in a parameter server of a launch with several tasks.  The chief's graph has ops on that server which call `capture_views` and `copy`
(process/distribution.py makes them known there, graph/server_capture.py adds them), so a capture needs no session of the server's own and
no tensor travels.  `capture_views` keeps views of what an update leaves alone, as the chief's own capture does, and copies the rest at once.
`copy` copies the next piece; the chief calls it until nothing is left.  Each call is short: it has one of the threads that apply
updates.  Where the chief's slot is on another machine, it is copied into memory of this one, and fetched from there.

The slot is the chief's, who begins and publishes it.  Chief or server killed anywhere in between: the slot stays WRITING, and
nobody reads it.  The views that a chief has left go with the first `capture_views` of its successor.
"""

from __future__ import annotations

import mmap
import os
import threading
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import xxhash

from procsv.base.encoding import decode_msgpack
from procsv.base.errors import PeerError, UserError
from procsv.base.system.failpoints import declare, failpoint
from procsv.training.servers.far_captures import FarCaptures, as_numbers, begins
from procsv.training.snapshots.slot_fill import flat_bytes

TAKE, COPY = "procsv.take", "procsv.copy"  # by which the ops find the functions below
PIECE_BYTES = 16 << 20  # of one `copy`: a few milliseconds
CHUNK_BYTES = 1 << 20  # copied and hashed by turns, so that the hash reads what is still in the cache
NO_STEP = -1

declare("server.copy")


class CaptureOrder(msgspec.Struct, frozen=True, array_like=True):
    """What the chief orders: a capture into the slot file of that path.  No path: nothing is kept (to warm up)."""

    owner: str  # a session of the chief's; what an earlier one has ordered is dropped
    number: int  # of the capture; rises
    path: str = ""
    device: int = 0  # with `inode`: which file lies there
    inode: int = 0
    is_far: bool = False  # the slot is on another machine, which fetches the capture


_DECODER = msgspec.msgpack.Decoder(CaptureOrder)


class TensorPlace(msgspec.Struct, frozen=True):
    """Where a tensor goes."""

    offset: int  # bytes from the start of the slot's file
    size: int  # bytes
    is_held: bool  # a view of it stays as it is while training goes on


class CaptureRefused(ValueError):
    """This server cannot fill that slot.  The text says why; TensorFlow hands it to the chief as an InvalidArgumentError."""


class _Taken:
    """One capture on its way into the slot."""

    def __init__(self, memory: Any, places: list[TensorPlace], views: list[Any], *, is_far: bool = False) -> None:
        self.hashes: list[int] = []
        self.offer: Any = None  # how it is fetched, in numbers, where that is how it comes into the slot
        self._is_far = is_far
        self._memory, self._places, self._views = memory, places, views
        self._done = 0  # bytes of the tensor under way
        self._hasher = xxhash.xxh3_64()
        self.left = sum(place.size for place in places)
        for number, place in enumerate(places):
            if not place.is_held:
                np.copyto(self._memory[place.offset : place.offset + place.size], flat_bytes(views[number]))
                self._views[number] = None

    @property
    def is_whole(self) -> bool:
        return len(self.hashes) == len(self._places)

    def copy(self, budget: int) -> None:
        """Copies and hashes about `budget` bytes more; each view is dropped when it is copied."""
        while not self.is_whole and budget > 0:
            place = self._places[len(self.hashes)]
            size = min(CHUNK_BYTES, place.size - self._done)
            begin = place.offset + self._done
            piece = self._memory[begin : begin + size]
            if place.is_held:
                np.copyto(piece, flat_bytes(self._views[len(self.hashes)])[self._done : self._done + size])
            self._hasher.update(piece)
            self._done += size
            self.left -= size
            budget -= size
            if self._done == place.size:
                self._views[len(self.hashes)] = None
                self.hashes.append(self._hasher.intdigest())
                self._done, self._hasher = 0, xxhash.xxh3_64()
        if self.is_whole and not self._is_far:
            self._memory = None

    def offer_by(self, far: FarCaptures, number: int) -> None:
        """Has it sent, once it is whole.  CaptureRefused if nobody can send it."""
        if self._is_far and self.is_whole and self.offer is None:
            try:
                self.offer = as_numbers(far.offer(self._memory, number))
            except (UserError, PeerError, OSError) as error:
                raise CaptureRefused(f"it cannot be sent: {error}") from error
            self._memory = None


class KeptViews:
    """All captures under way in this process.  Called by TensorFlow's threads, one at a time beyond the lock.

    The lock is also what keeps a piece that a stopped process was copying from being written behind the capture after it.
    """

    def __init__(self, shm_dir: Path) -> None:
        """`shm_dir`: where the slots of the run lie; nothing is written anywhere else."""
        self._dir = shm_dir
        self._lock = threading.Lock()
        self._owner = ""
        self._taken: dict[int, _Taken] = {}
        self._maps: dict[str, tuple[tuple[int, int], Any]] = {}  # by path: which file, and its memory
        self._far = FarCaptures()

    def capture_views(self, order: Any, places: Any, step_at: Any, *views: Any) -> Any:
        """Captures `views` as `order` says; the value of view `step_at`, or NO_STEP where that is negative.

        `places`: an int64 array with a row of offset, size and is_held for each view.
        """
        said = _order_of(order)
        listed = [TensorPlace(int(offset), int(size), bool(is_held)) for offset, size, is_held in np.asarray(places)]
        for place, view in zip(listed, views, strict=True):
            if view.nbytes != place.size:
                raise CaptureRefused(f"a variable has {view.nbytes} bytes, not {place.size}")
        with self._lock:
            if said.owner != self._owner:
                self._owner, self._taken = said.owner, {}
            self._forget_removed()
            if said.path:
                self._taken[said.number] = _Taken(self._map(said), listed, list(views))
            elif said.is_far:
                sizes = [place.size for place in listed]
                packed = [msgspec.structs.replace(p, offset=at) for p, at in zip(listed, begins(sizes), strict=True)]
                memory = self._far.memory(sum(sizes))
                self._taken[said.number] = _Taken(memory, packed, list(views), is_far=True)
        at = int(step_at)
        return np.int64(NO_STEP if at < 0 else int(views[at].reshape(())))

    def copy(self, order: Any) -> Any:
        """Copies a piece of that capture: int64s, the bytes that are left and, if none are, the hash of each view (as uint64).

        Behind those, how it is fetched, if the slot is on another machine (far_captures.py).

        Captures before it are dropped: the chief has given them up.
        """
        failpoint("server.copy")
        said = _order_of(order)
        with self._lock:
            taken = self._taken.get(said.number) if said.owner == self._owner else None
            if taken is None:
                raise CaptureRefused(f"capture {said.number} is not here")
            self._taken = {number: other for number, other in self._taken.items() if number >= said.number}
            taken.copy(PIECE_BYTES)
            taken.offer_by(self._far, said.number)
            hashes = taken.hashes if taken.is_whole else []
            answer = [np.array([taken.left], np.int64), np.array(hashes, np.uint64).view(np.int64)]
            return np.concatenate(answer if taken.offer is None else [*answer, taken.offer])

    def _map(self, order: CaptureOrder) -> Any:
        """The memory of the slot that `order` names, as bytes; CaptureRefused if it is not one of this run's, on this machine."""
        which = (order.device, order.inode)
        if order.path in self._maps:
            return self._maps[order.path][1]
        path = Path(order.path)
        if path.parent != self._dir:
            raise CaptureRefused(f"{path} is no slot of this run")
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                if _identity(os.fstat(fd)) != which:
                    raise CaptureRefused(f"{path} is another file here")
                memory = np.frombuffer(mmap.mmap(fd, 0), np.uint8)
            finally:
                os.close(fd)
        except OSError as error:
            raise CaptureRefused(f"{path}: {error.strerror}") from error
        self._maps[order.path] = which, memory
        return memory

    def _forget_removed(self) -> None:
        """Lets go of the memory of slots that were unlinked since."""
        for path, (which, _) in list(self._maps.items()):
            try:
                is_there = _identity(Path(path).stat()) == which
            except OSError:
                is_there = False
            if not is_there:
                del self._maps[path]


def _identity(info: os.stat_result) -> tuple[int, int]:
    return info.st_dev, info.st_ino


def _order_of(data: Any) -> CaptureOrder:
    """`data`: a scalar string, as TensorFlow hands it to Python."""
    return decode_msgpack(np.asarray(data, object).item(), _DECODER)
