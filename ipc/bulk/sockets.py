"""Wrap the ZeroMQ sockets that carry the frames of ipc/bulk (transfer.py), which are not messages.

They use TCP, encrypted and authenticated by CURVE.  Each end belongs to one thread and has a ZeroMQ
context of its own.
"""

from __future__ import annotations

import math

import zmq

from procsv.base.errors import PeerError
from procsv.ipc.messaging.curve_transport import KeyPair, secure_client
from procsv.ipc.messaging.door import Door
from procsv.ipc.messaging.zmq_transport import new_context, open_socket

REQUEST_BYTES_MAX = 1024  # a receiver that sends a larger frame is disconnected
LINGER_MS_AT_CLOSE = 500


class BulkServer:
    """A ROUTER on a TCP port."""

    def __init__(self, port: int, keys: KeyPair, client_key: str, wake_fd: int, queue_max: int) -> None:
        """`port`: 0 for any free port.  `wake_fd`: ends a wait when it is readable.

        `queue_max`: how many frames may wait for one receiver; more are refused.  UserError if the
        port is not available, OSError if no descriptors are left.
        """
        self._context, self._wake_fd = new_context(), wake_fd
        self._socket = open_socket(self._context, zmq.ROUTER)
        self._socket.setsockopt(zmq.MAXMSGSIZE, REQUEST_BYTES_MAX)
        _set_limits(self._socket, queue_max)
        try:
            self._door = Door(self._context, self._socket, port, keys.secret, {client_key: "receiver"})
        except BaseException:
            self._socket.close(0)
            self._context.term()
            raise
        self.port = self._door.port
        self._poller = zmq.Poller()
        for key in (self._socket, wake_fd):
            self._poller.register(key, zmq.POLLIN)

    def wait(self, timeout_s: float | None) -> bool:
        """Waits for a request or `wake_fd`; returns whether `wake_fd` is readable."""
        return self._wake_fd in dict(self._poller.poll(None if timeout_s is None else int(timeout_s * 1000)))

    def receive(self) -> tuple[bytes, list[bytes]] | None:
        """Returns the sender and its frames; None if nothing waits."""
        try:
            who, *frames = self._socket.recv_multipart()
        except zmq.Again:
            return None
        return who, frames

    def send(self, who: bytes, frames: list[bytes]) -> bool:
        """Sends frames; returns False if the receiver is gone, or too much already waits for it."""
        try:
            self._socket.send_multipart([who, *frames])
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return False
        return True

    def close(self) -> None:
        self._door.close()
        self._socket.close(LINGER_MS_AT_CLOSE)
        self._context.term()


class BulkClient:
    """A DEALER connected to a BulkServer."""

    def __init__(self, address: str, keys: KeyPair, server_key: str, bytes_max: int, queue_max: int) -> None:
        """`address`: host:port.  `bytes_max`: the largest frame; a server that sends more is
        disconnected.

        PeerError if the address or the keys are invalid, OSError if no descriptors are left.
        """
        self._context = new_context()
        self._socket = open_socket(self._context, zmq.DEALER)
        self._socket.setsockopt(zmq.MAXMSGSIZE, bytes_max)
        _set_limits(self._socket, queue_max)
        try:
            secure_client(self._socket, keys, server_key)
            self._socket.connect(f"tcp://{address}")
        except zmq.ZMQError as error:
            self.close()
            raise PeerError(f"cannot connect to {address} with these keys: {error}") from error

    def wait(self, timeout_s: float) -> None:
        self._socket.poll(math.ceil(timeout_s * 1000))

    def receive(self) -> list[bytes] | None:
        """Returns the next frames; None if nothing waits."""
        try:
            return self._socket.recv_multipart()
        except zmq.Again:
            return None

    def send(self, frames: list[bytes]) -> bool:
        """Sends frames; returns False if too much already waits to be sent."""
        try:
            self._socket.send_multipart(frames)
        except zmq.Again:
            return False
        return True

    def close(self) -> None:
        self._socket.close(LINGER_MS_AT_CLOSE)
        self._context.term()


def _set_limits(bulk: zmq.Socket[bytes], queue_max: int) -> None:
    for option, value in (
        (zmq.LINGER, 0),
        (zmq.SNDTIMEO, 0),
        (zmq.RCVTIMEO, 0),
        (zmq.SNDHWM, queue_max),
        (zmq.RCVHWM, queue_max),
    ):
        bulk.setsockopt(option, value)
