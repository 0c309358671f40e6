"""Have parameter servers capture their own variables into the chief's slot.

A Capture uses this module if the servers are tasks of the run. The servers' part is in servers.py.

A capture has two phases. First, one session.run sends an order to each server. Each server takes
views of its own variables and answers with the global step, or with -1 if it does not hold the
step. In the same run, the chief takes views of all other tensors. Second, off the training thread,
the chief copies its views into its slot and has the servers copy theirs, piece by piece. A server
on the chief's machine copies into this slot. A server on another machine copies into memory of its
own, and the chief fetches these bytes into the slot (`FarServer`).
"""

from __future__ import annotations

import uuid
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import xxhash

from procsv.base.clock import Clock
from procsv.base.cluster import PS
from procsv.base.encoding import encode_msgpack
from procsv.base.errors import PeerError
from procsv.base.system.system_clock import SystemClock
from procsv.ipc.bulk.fetch import receive
from procsv.ipc.bulk.transfer import Transfer
from procsv.ipc.shm.slot_file import SlotMap
from procsv.training.graph.variable_views import views_of
from procsv.training.runtime.bounded_call import call_within
from procsv.training.servers import COPY, NO_STEP, TAKE, CaptureOrder, decode_offer, offsets_of

tf1 = tf.compat.v1

PIECE_S_MAX = 10.0  # the longest wait for a piece; the watchdog ends a server that is frozen for so long

Call = Callable[[bytes], list[Any]]
Finish = Callable[[], dict[int, int]]  # has the servers copy; returns the hash of each tensor, by number
SlotRange = tuple[int, int]  # offset in the slot's file, and size, in bytes


class FarServer:
    """A server on another machine. The chief fetches the server's captures into its own slot.

    Fetching runs off the training thread. The server sends its tensors as one sequence of bytes.
    The chief puts each tensor at its offset in the slot, and checks it against its hash there. A
    kill at any moment leaves the slot in state WRITING, and nobody reads such a slot.
    """

    def __init__(self, host: str, places: Sequence[SlotRange], clock: Clock | None = None) -> None:
        self._host, self._places, self._clock = host, places, clock or SystemClock()
        self._starts = offsets_of([size for _, size in places])

    def fetch(self, told: Any, hashes: Sequence[int], memory: Any) -> None:
        """Fetch a capture into `memory`, the chief's slot.

        `told` is the server's answer, which says how to fetch the capture, and `hashes` has the
        expected hash of each tensor. Raise PeerError if the capture does not arrive whole.
        """
        try:
            offer = decode_offer(told)
        except ValueError as error:
            raise PeerError(f"{self._host} has not said how its capture is fetched: {error}") from error
        slot: Any = np.frombuffer(memory, np.uint8)
        if sum(size for _, size in self._places) != offer.size:
            raise PeerError(f"{self._host} has captured {offer.size} bytes of other variables")
        if offer.size:
            transfer = Transfer(offer.size, self._clock.monotonic())
            put = lambda at, data: self._put(slot, at, data)  # noqa: E731
            receive(self._host, offer, transfer, put, self._clock)
        for (offset, size), digest in zip(self._places, hashes, strict=True):
            if xxhash.xxh3_64_intdigest(slot[offset : offset + size]) != digest:
                raise PeerError(f"what {self._host} has captured was damaged on its way")

    def _put(self, slot: Any, at: int, data: bytes) -> None:
        """Copy `data`, which begins at byte `at` of the capture, to its places in `slot`."""
        number, piece = bisect_right(self._starts, at) - 1, np.frombuffer(data, np.uint8)
        while piece.nbytes:
            offset, size = self._places[number]
            done = at - self._starts[number]
            part = piece[: size - done]
            slot[offset + done : offset + done + part.nbytes] = part
            at, piece, number = at + part.nbytes, piece[part.nbytes :], number + 1


def server_of(tensor: Any) -> str:
    """Return the CPU device of the server that computes `tensor`, or "" if no server does."""
    place = tf.DeviceSpec.from_string(tensor.op.device or "")
    if place.job != PS:
        return ""
    return str(tf.DeviceSpec(PS, place.replica, place.task or 0, "CPU", 0).to_string())


class CaptureOrders:
    """Gives the servers their orders, through the ops of one session.

    When a server gets the first order of a new CaptureOrders, it drops the captures that previous
    ones have ordered.
    """

    def __init__(
        self, take: Call, copy: Call, by_server: Sequence[Sequence[int]], far: Sequence[FarServer] = ()
    ) -> None:
        """Prepare the orders.

        `take` and `copy` send an order and return an answer from each server. What `take` returns
        after these answers is ignored. `far` fetches the captures of servers on other machines. It
        is empty if the servers are on this machine.
        """
        self._take, self._copy, self._by_server, self._far = take, copy, by_server, far
        self._owner, self._number = uuid.uuid4().hex, 0

    def capture(self, memory: SlotMap | None) -> tuple[int, Finish]:
        """Have the servers capture.

        Return the step, and a function that has the servers copy. The step is -1 if no server has
        captured it.
        """
        self._number += 1
        order = CaptureOrder(owner=self._owner, number=self._number, is_far=memory is not None and bool(self._far))
        if memory is not None and not self._far:
            file = memory.path.stat()
            order = CaptureOrder(
                owner=self._owner, number=self._number, path=str(memory.path), device=file.st_dev, inode=file.st_ino
            )
        data = encode_msgpack(order)
        answers = self._take(data)[: len(self._by_server)]
        return max(map(int, answers), default=NO_STEP), lambda: self._copy_all(data, memory)

    def _copy_all(self, order: bytes, memory: SlotMap | None) -> dict[int, int]:
        """Have the servers copy until nothing is left. Return the hash of each tensor by number.

        Raise TimeoutError if a server does not answer, and PeerError if a capture on another
        machine cannot be fetched.
        """
        while True:
            answers = call_within(lambda: self._copy(order), PIECE_S_MAX, "copying on a server")
            if not any(answer[0] for answer in answers):
                break
        hashes: dict[int, int] = {}
        for which, (numbers, answer) in enumerate(zip(self._by_server, answers, strict=True)):
            found = answer[1 : 1 + len(numbers)].view("uint64").tolist()
            if self._far and memory is not None:
                self._far[which].fetch(answer[1 + len(numbers) :], found, memory)
            hashes.update(zip(numbers, found, strict=True))
        return hashes


class ServerCapture:
    """The ops on the servers, and the chief's orders for them."""

    def __init__(
        self,
        by_server: dict[str, list[int]],
        tensors: Sequence[Any],
        places: Sequence[tuple[int, int, bool]],
        step_at: int,
        hosts: Sequence[str] = (),
    ) -> None:
        """Add the ops to the default graph.

        `by_server` has, for each server's device, the numbers of the tensors that it captures.
        `places` has a tensor's offset and size by number, and whether a view of it stays unchanged.
        `step_at` is the number of the global step, or -1 if no server captures it. `hosts` has the
        machine of each server by index, if they are on other machines.
        """
        servers = [tf.DeviceSpec.from_string(device).task or 0 for device in by_server] if hosts else []
        self._far = [
            FarServer(hosts[server], [places[number][:2] for number in numbers])
            for server, numbers in zip(servers, by_server.values(), strict=bool(hosts))
        ]
        self.numbers = [number for numbers in by_server.values() for number in numbers]
        self.rest_op: Any = None  # captures in the chief what no server captures
        self._by_server = list(by_server.values())
        self._order = tf1.placeholder(tf.string, [], "order")
        self._takes, self._copies = list[Any](), list[Any]()
        for device, numbers in by_server.items():
            with tf1.device(device):
                theirs = tf1.constant([places[number] for number in numbers], tf.int64)
                step = tf1.constant(numbers.index(step_at) if step_at in numbers else -1, tf.int64)
                views = views_of([tensors[number] for number in numbers])
                self._takes += tf.raw_ops.PyFunc(input=[self._order, theirs, step, *views], token=TAKE, Tout=[tf.int64])
                self._copies += tf.raw_ops.PyFunc(input=[self._order], token=COPY, Tout=[tf.int64])
        self._orders: dict[Any, CaptureOrders] = {}  # by session; only the current session's are kept

    def capture_servers(self, session: Any, memory: SlotMap | None) -> tuple[int, Finish]:
        """Have the servers and the chief capture.

        Return the step, and a function that has the servers copy. The step is -1 if no server has
        captured it. This method and the function both raise InvalidArgumentError if a server
        refuses. `memory` is the chief's slot. Without `memory`, the servers keep nothing: such a
        capture only warms up.
        """
        if session not in self._orders:
            make = tf1.Session.make_callable  # does not pass the boundary: a capture is not a step
            take = make(session, [*self._takes, self.rest_op], [self._order])
            self._orders = {
                session: CaptureOrders(take, make(session, self._copies, [self._order]), self._by_server, self._far)
            }
        return self._orders[session].capture(memory)

    def release_session(self) -> None:
        """Forget the session, which is being closed."""
        self._orders = {}
