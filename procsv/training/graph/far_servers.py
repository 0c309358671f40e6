"""The captures of servers on other machines, fetched into the chief's slot.

Used by server_capture.py, off the training thread.  Each server has its tensors one behind the other; here each has its own place in
the slot, where its hash is looked at once it has come.  Killed anywhere: the slot stays WRITING, and nobody reads it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np
import xxhash

from procsv.base.clock import Clock
from procsv.base.errors import PeerError
from procsv.base.system.system_clock import SystemClock
from procsv.ipc.bulk.receive import receive
from procsv.ipc.bulk.transfer import Transfer
from procsv.training.servers.far_captures import begins, from_numbers

Place = tuple[int, int]  # offset in the slot's file, and size, in bytes


class FarServer:
    """One of them."""

    def __init__(self, host: str, places: Sequence[Place], clock: Clock | None = None) -> None:
        self._host, self._places, self._clock = host, places, clock or SystemClock()
        self._begins = begins([size for _, size in places])

    def fetch(self, told: Any, hashes: Sequence[int], memory: Any) -> None:
        """`told`: how, as the server has answered.  `memory`: of the slot.  PeerError if it cannot be had whole."""
        try:
            offer = from_numbers(told)
        except ValueError as error:
            raise PeerError(f"{self._host} has not said how its capture is fetched: {error}") from error
        slot: Any = np.frombuffer(memory, np.uint8)
        if sum(size for _, size in self._places) != offer.size:
            raise PeerError(f"{self._host} has captured {offer.size} bytes, which are others")
        if offer.size:
            transfer = Transfer(offer.size, self._clock.monotonic())
            put = lambda at, data: self._put(slot, at, data)  # noqa: E731
            receive(self._host, offer, transfer, put, self._clock)
        for (offset, size), digest in zip(self._places, hashes, strict=True):
            if xxhash.xxh3_64_intdigest(slot[offset : offset + size]) != digest:
                raise PeerError(f"what {self._host} has captured was damaged on its way")

    def _put(self, slot: Any, at: int, data: bytes) -> None:
        """Puts what begins `at` in the server's capture where it belongs."""
        number, piece = bisect_right(self._begins, at) - 1, np.frombuffer(data, np.uint8)
        while piece.nbytes:
            offset, size = self._places[number]
            done = at - self._begins[number]
            part = piece[: size - done]
            slot[offset + done : offset + done + part.nbytes] = part
            at, piece, number = at + part.nbytes, piece[part.nbytes :], number + 1
