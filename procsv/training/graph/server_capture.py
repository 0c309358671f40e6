"""The part of a capture that servers make of their own variables, ordered by the chief and filled into its slot.

Made by a Capture in a run whose servers are processes of ours, where servers/kept_views.py does it.  Of servers on other machines
the copies are fetched into the slot (`FarServer`).  All servers
take their views in the call in which the chief takes the rest; what travels is the order, and a number for an answer.  The copies
are then ordered piece by piece, by whoever copies the chief's own part.
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
from procsv.ipc.bulk.receive import receive
from procsv.ipc.bulk.transfer import Transfer
from procsv.ipc.shm.slot_file import SlotMap
from procsv.training.graph.variable_views import views_of
from procsv.training.runtime.bounded_call import call_within
from procsv.training.servers.far_captures import begins, from_numbers
from procsv.training.servers.kept_views import COPY, NO_STEP, TAKE, CaptureOrder

tf1 = tf.compat.v1

PIECE_S_MAX = 10.0  # for the servers' next pieces; one that is frozen so long is ended by the watchdog

Call = Callable[[bytes], list[Any]]
Finish = Callable[[], dict[int, int]]  # has the servers copy; the hash of each tensor, by number
SlotRange = tuple[int, int]  # offset in the slot's file, and size, in bytes


class FarServer:
    """A server on another machine, whose captures are fetched into the chief's slot, off the training thread.

    It has its tensors one behind the other; here each has its own place in the slot, where its hash is looked at once it has come.
    Killed anywhere: the slot stays WRITING, and nobody reads it.
    """

    def __init__(self, host: str, places: Sequence[SlotRange], clock: Clock | None = None) -> None:
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


def server_of(tensor: Any) -> str:
    """The CPU of the server that makes `tensor`; "" if no server does."""
    place = tf.DeviceSpec.from_string(tensor.op.device or "")
    if place.job != PS:
        return ""
    return str(tf.DeviceSpec(PS, place.replica, place.task or 0, "CPU", 0).to_string())


class CaptureOrders:
    """What is ordered of the servers by the ops of one session.  Who begins new ones puts an end to those before."""

    def __init__(
        self, take: Call, copy: Call, by_server: Sequence[Sequence[int]], far: Sequence[FarServer] = ()
    ) -> None:
        """`take` and `copy`: called with an order, they give an answer of each server, and `take` may give more behind those.

        `far`: what fetches their captures, of servers on other machines; none: they are on this one.
        """
        self._take, self._copy, self._by_server, self._far = take, copy, by_server, far
        self._owner, self._number = uuid.uuid4().hex, 0

    def capture(self, memory: SlotMap | None) -> tuple[int, Finish]:
        """Has the servers capture; the step that one of them has captured, or -1, and what has them copy it."""
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
        """Has the servers copy until nothing is left; the hash of each tensor.

        TimeoutError if one does not answer, PeerError if what one on another machine has copied cannot be fetched.
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
    """The ops on the servers, and what the chief orders by them."""

    def __init__(
        self,
        by_server: dict[str, list[int]],
        tensors: Sequence[Any],
        places: Sequence[tuple[int, int, bool]],
        step_at: int,
        hosts: Sequence[str] = (),
    ) -> None:
        """Adds the ops to the default graph.

        `by_server`: the numbers of the tensors that each device makes.  `places`: offset, size and whether a view of it stays
        as it is, by number.  `step_at`: the number of the global step, or -1.  `hosts`: the machine of each
        server, by its index, where they are on others.
        """
        servers = [tf.DeviceSpec.from_string(device).task or 0 for device in by_server] if hosts else []
        self._far = [
            FarServer(hosts[server], [places[number][:2] for number in numbers])
            for server, numbers in zip(servers, by_server.values(), strict=bool(hosts))
        ]
        self.numbers = [number for numbers in by_server.values() for number in numbers]
        self.rest_op: Any = None  # which captures in the chief what no server does
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
        self._orders: dict[Any, CaptureOrders] = {}  # of the session

    def capture_servers(self, session: Any, memory: SlotMap | None) -> tuple[int, Finish]:
        """Has the servers and the chief capture; the step that a server has captured, or -1, and what has them copy it.

        `memory`: of the slot; without one, nothing is kept.  Either raises InvalidArgumentError if a server refuses.
        """
        if session not in self._orders:
            make = tf1.Session.make_callable  # past the boundary: a capture is no step of the program
            take = make(session, [*self._takes, self.rest_op], [self._order])
            self._orders = {
                session: CaptureOrders(take, make(session, self._copies, [self._order]), self._by_server, self._far)
            }
        return self._orders[session].capture(memory)

    def release_session(self) -> None:
        """The session is being closed."""
        self._orders = {}
