"""Keep captures of a server's variables in memory, and send them to a chief on another machine.

kept_views.py uses this. The memory goes with the process, and half of a capture is never found: the
chief fetches it into its own slot, and checks each tensor's hash there. Nothing listens before the
first such capture.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import msgspec
import numpy as np

from procsv.base.encoding import decode_msgpack, encode_msgpack
from procsv.base.errors import UserError
from procsv.base.system.system_clock import SystemClock
from procsv.ipc.bulk.sender import Sender
from procsv.ipc.messaging.checkpoint_messages import StateOffer
from procsv.ipc.messaging.curve_transport import told_state_port

_DECODER = msgspec.msgpack.Decoder(StateOffer)
SPARE_MAX = 2  # buffers kept for later captures, because the first touch of new memory is slow


def begins(sizes: Sequence[int]) -> list[int]:
    """Return where each tensor of a capture begins, in bytes, one after the other.

    Both machines compute the same.
    """
    return [0, *accumulate(sizes)][: len(sizes)]


def as_numbers(offer: StateOffer) -> Any:
    """Encode `offer` as int64s, for an op that returns only such."""
    data = encode_msgpack(offer)
    padded = data + bytes(-len(data) % 8)
    return np.concatenate([np.array([len(data)], np.int64), np.frombuffer(padded, np.int64)])


def from_numbers(numbers: Any) -> StateOffer:
    """Decode an offer. Raise ValueError if it is none."""
    try:
        return decode_msgpack(numbers[1:].tobytes()[: sum(numbers[:1].tolist())], _DECODER)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from error


def make_sender() -> Sender:
    """Make a sender at the open port, or at any port if another process here has that one."""
    try:
        return Sender(told_state_port(), SystemClock())
    except UserError:
        return Sender(0, SystemClock())


class FarCaptures:
    """The memory of all captures of this process, and the sender."""

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
        """Have `memory` sent on request. Nothing writes to it in the meantime.

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
