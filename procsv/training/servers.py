"""Capture a server's own variables in its process, and copy them into the chief's slot.

This runs in a parameter server of a launch with several tasks. The chief's graph has ops on that
server that call `capture_views` and `copy`. graph/server_capture.py adds the ops, and
process/distribution.py registers the functions on the server. So a capture needs no session of the
server's own, and no op sends a tensor to the chief. `capture_views` keeps views that no update
changes, as the chief's own capture does, and copies the rest at once. `copy` copies the next piece,
and the chief calls it until nothing is left. Each call is short, because it occupies one of the
threads that apply updates. If the chief's slot is on another machine, the server copies the capture
into memory of its own, and the chief fetches it from there.

The slot belongs to the chief, which begins and publishes it. If chief or server is killed in
between, the slot stays WRITING, and nobody reads it. The next chief's first `capture_views` drops
the views that the last chief left.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import xxhash

from procsv.base.encoding import decode_msgpack, encode_msgpack
from procsv.base.errors import PeerError, UserError
from procsv.base.system.failpoints import declare, failpoint
from procsv.base.system.system_clock import SystemClock
from procsv.ipc.bulk.sender import Sender
from procsv.ipc.messaging.checkpoint_messages import StateOffer
from procsv.ipc.messaging.curve_transport import told_state_port
from procsv.training.snapshots.slot_fill import flat_bytes

TAKE, COPY = "procsv.take", "procsv.copy"  # the names by which the ops find the functions below
PIECE_BYTES = 16 << 20  # for one `copy`: a few milliseconds
CHUNK_BYTES = 1 << 20  # copied, then hashed, so that the hash reads it from the cache
NO_STEP = -1
SPARE_MAX = 2  # buffers kept for later captures, because the first touch of new memory is slow

declare("server.copy")


class CaptureOrder(msgspec.Struct, frozen=True, array_like=True):
    """The chief's order for a capture into the slot file at `path`.

    If `path` is empty and `is_far` is False, the server only warms up.
    """

    owner: str  # a session of the chief; a new owner's first order drops the captures of the previous owner
    number: int  # of the capture; the owner numbers its captures in rising order
    path: str = ""
    device: int = 0  # device and inode identify the file
    inode: int = 0
    is_far: bool = False  # the slot is on another machine, which fetches the capture; `path` is empty


_ORDER_DECODER = msgspec.msgpack.Decoder(CaptureOrder)
_OFFER_DECODER = msgspec.msgpack.Decoder(StateOffer)


class TensorPlace(msgspec.Struct, frozen=True):
    """Where a tensor goes."""

    offset: int  # bytes from the start of the slot's file; in a far capture, of the server's own memory
    size: int  # bytes
    is_held: bool  # whether a view of it stays unchanged while training goes on


class CaptureRefused(ValueError):
    """This server cannot fill that slot. The message says why.

    TensorFlow passes it to the chief as an InvalidArgumentError.
    """


class _Taken:
    """One capture on its way into the slot."""

    def __init__(self, memory: Any, places: list[TensorPlace], views: list[Any], *, is_far: bool = False) -> None:
        self.hashes: list[int] = []  # of the tensors that are copied, in their order
        self.offer: Any = None  # how the chief's machine fetches the capture, encoded as int64s; None: not offered
        self._is_far = is_far
        self._memory, self._places, self._views = memory, places, views
        self._done = 0  # how many bytes of the current tensor are copied and hashed
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
        """Copy and hash about `budget` more bytes. Drop each view once it is copied."""
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
        """Offer a whole capture to another machine. Raise CaptureRefused if it cannot be sent."""
        if self._is_far and self.is_whole and self.offer is None:
            try:
                self.offer = encode_offer(far.offer(self._memory, number))
            except (UserError, PeerError, OSError) as error:
                raise CaptureRefused(f"it cannot be sent: {error}") from error
            self._memory = None


class KeptViews:
    """All current captures of this process.

    TensorFlow's threads call this, and the lock admits one at a time. If the process is stopped
    (SIGSTOP) while it copies a piece, the lock makes the next capture wait until the piece is
    written, so that an old piece never lands in a new capture.
    """

    def __init__(self, shm_dir: Path) -> None:
        """Only slots in `shm_dir`, where the run has them, are written to."""
        self._dir = shm_dir
        self._lock = threading.Lock()
        self._owner = ""
        self._taken: dict[int, _Taken] = {}
        self._maps: dict[str, tuple[tuple[int, int], Any]] = {}  # by path: the identity of the file, and its memory
        self._far = FarCaptures()

    def capture_views(self, order: Any, places: Any, step_at: Any, *views: Any) -> Any:
        """Capture `views` as `order` says.

        Return the value of view `step_at`, or NO_STEP if that is negative. `places` is an int64
        array with a row of offset, size and is_held for each view.
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
                packed = [
                    msgspec.structs.replace(p, offset=at) for p, at in zip(listed, offsets_of(sizes), strict=True)
                ]
                memory = self._far.memory(sum(sizes))
                self._taken[said.number] = _Taken(memory, packed, list(views), is_far=True)
        at = int(step_at)
        return np.int64(NO_STEP if at < 0 else int(views[at].reshape(())))

    def copy(self, order: Any) -> Any:
        """Copy the next piece of a capture.

        Earlier captures are dropped, because the chief has given them up. Return int64s: the
        number of bytes left and, if none are, the hash of each view (as uint64). If the slot is on
        another machine, the last numbers say how to fetch the capture.
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
        """Map the slot that `order` names, as bytes.

        Raise CaptureRefused if it is not a slot of this run on this machine.
        """
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
        """Release the memory of slots that were unlinked since."""
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
    """Decode an order from a scalar string, as TensorFlow passes it to Python."""
    return decode_msgpack(np.asarray(data, object).item(), _ORDER_DECODER)


def offsets_of(sizes: Sequence[int]) -> list[int]:
    """Return the offset in bytes of each tensor of a far capture, where they follow one another.

    The server's machine and the chief's both compute these offsets.
    """
    return [0, *accumulate(sizes)][: len(sizes)]


def encode_offer(offer: StateOffer) -> Any:
    """Encode `offer` as int64s, because the op can return nothing else."""
    data = encode_msgpack(offer)
    padded = data + bytes(-len(data) % 8)
    return np.concatenate([np.array([len(data)], np.int64), np.frombuffer(padded, np.int64)])


def decode_offer(numbers: Any) -> StateOffer:
    """Decode an offer. Raise ValueError if `numbers` is not one."""
    try:
        return decode_msgpack(numbers[1:].tobytes()[: sum(numbers[:1].tolist())], _OFFER_DECODER)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from error


def make_sender() -> Sender:
    """Make a sender at the port for snapshots, or at any port if another process uses that one."""
    try:
        return Sender(told_state_port(), SystemClock())
    except UserError:
        return Sender(0, SystemClock())


class FarCaptures:
    """The memory of all captures for a chief on another machine, and the sender.

    The memory is lost with the process. The chief fetches a capture into its own slot and checks
    each tensor's hash there, so it never uses half of one. No port is open before the first such
    capture.
    """

    def __init__(self, make_sender: Callable[[], Sender] = make_sender) -> None:
        self._make_sender = make_sender
        self._sender: Sender | None = None
        self._lock = threading.Lock()  # a buffer comes back on the sender's thread
        self._spare: list[Any] = []

    def memory(self, size: int) -> Any:
        """Return `size` bytes of memory with any content."""
        with self._lock:
            fit = [number for number, buffer in enumerate(self._spare) if buffer.nbytes == size]
            return self._spare.pop(fit[0]) if fit else np.empty(size, np.uint8)

    def offer(self, memory: Any, number: int) -> StateOffer:
        """Have the sender send `memory` on request. Nothing writes to `memory` until it comes back.

        Raise UserError, PeerError or OSError if it cannot be sent.
        """
        if self._sender is None:
            self._sender = self._make_sender()
        return self._sender.offer_source(_Buffer(memory, self._take_back), memory.nbytes, number, 0)

    def _take_back(self, memory: Any) -> None:
        with self._lock:
            self._spare = [*self._spare, memory][-SPARE_MAX:]


class _Buffer:
    """A capture as the sender reads it."""

    def __init__(self, memory: Any, closed: Callable[[Any], None]) -> None:
        self._memory, self._closed = memory, closed

    def read_at(self, offset: int, size: int) -> bytes:
        return bytes(self._memory[offset : offset + size])

    def close(self) -> None:
        self._closed(self._memory)
