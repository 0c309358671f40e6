"""Carry messages by ZeroMQ: a server (ROUTER) and its clients (DEALER) over Unix sockets.

Every process's main loop uses it; one thread owns a channel.  endpoint.py decides what to resend,
acknowledge or drop.  This module has only the sockets, and Waiter, which waits on them.  The server
refuses a path where there is anything but a socket.  It listens only on this machine;
curve_transport.py connects machines.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

import zmq

from procsv.base import exit_codes
from procsv.base.clock import Clock
from procsv.base.errors import UserError
from procsv.base.system.failpoints import declare, failpoint
from procsv.ipc.messaging.endpoint import Address, ClientEndpoint, Endpoint, Put, ServerEndpoint
from procsv.ipc.messaging.messages import MESSAGE_BYTES_MAX

declare("channel.receive")

QUEUE_MESSAGES_MAX = 10_000  # per connection inside ZeroMQ; when full, a send fails and the outbox keeps the message
# ZeroMQ disconnects a peer that sends a message longer than this.  A message between MESSAGE_BYTES_MAX and this limit is
# only dropped and counted.
CUT_OFF_BYTES = 2 * MESSAGE_BYTES_MAX
RECONNECT_MS = 20
RECONNECT_MS_MAX = 500
LINGER_MS_AT_CLOSE = 1000
ROOT = 0

Context = zmq.Context[zmq.Socket[bytes]]


class ZmqEndpoint(Endpoint):
    """An endpoint on a non-blocking socket."""

    socket: zmq.Socket[bytes]

    @property
    def other_sockets(self) -> tuple[zmq.Socket[bytes], ...]:
        """Further sockets, apart from `socket`, that may become readable."""
        return ()

    def _open_socket(self, context: Context, kind: int) -> None:
        self.socket = open_socket(context, kind)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.SNDTIMEO, 0)
        self.socket.setsockopt(zmq.RCVTIMEO, 0)
        self.socket.setsockopt(zmq.SNDHWM, QUEUE_MESSAGES_MAX)
        self.socket.setsockopt(zmq.RCVHWM, QUEUE_MESSAGES_MAX)
        self.socket.setsockopt(zmq.MAXMSGSIZE, CUT_OFF_BYTES)

    def _put(self, frames: list[bytes]) -> Put:
        try:
            self.socket.send_multipart(frames)
        except zmq.Again:
            return Put.FULL
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return Put.NOBODY
        return Put.TAKEN

    def _take(self) -> list[bytes] | None:
        # Ask first: usually nothing is there, and an exception would take four times as long.
        while int(self.socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            try:
                frames = self._receive()
            except zmq.Again:  # the message may have vanished with its connection
                return None
            if not failpoint("channel.receive"):
                return frames
            self.drop("a fault of the plan")
        return None

    def _receive(self) -> list[bytes]:
        return self.socket.recv_multipart()


class Server(ZmqEndpoint, ServerEndpoint):
    """A ROUTER bound to a Unix socket in a directory of ours."""

    def __init__(self, context: Context, path: Path, me: Address, clock: Clock) -> None:
        super().__init__(me, clock)
        self.path = path
        self._open_socket(context, zmq.ROUTER)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        for uid in {os.getuid(), ROOT}:
            self.socket.setsockopt(zmq.IPC_FILTER_UID, uid)  # adds to the users who may connect
        try:
            self.bind()
        except BaseException:
            self.socket.close(0)
            raise

    def bind(self) -> None:
        """Binds the socket file, or binds it again if the file is gone.

        Connected peers stay connected, and new ones find the new file.  The old bind stays, because
        undoing it would disconnect the peers; so each bind costs a descriptor.  ZeroMQ deletes any
        file at the path, so this first checks that the file is a socket: UserError if it is not.
        OSError if no socket can be made there.
        """
        try:
            if not stat.S_ISSOCK(self.path.lstat().st_mode):
                raise UserError(
                    f"{self.path} exists and is not a socket; remove it", exit_code=exit_codes.LOGDIR_UNUSABLE
                )
        except FileNotFoundError:
            pass
        before = os.umask(0o177)
        try:
            self.socket.bind(f"ipc://{self.path}")
        except zmq.ZMQError as error:
            raise OSError(error.errno, os.strerror(error.errno or 0), str(self.path)) from error
        finally:
            os.umask(before)
        self._bound = self.path.lstat()

    def is_in_place(self) -> bool:
        """Returns False if somebody has deleted or replaced the socket file.

        Programs that clean /tmp do that.
        """
        try:
            return os.path.samestat(self.path.lstat(), self._bound)
        except FileNotFoundError:
            return False

    def close(self) -> None:
        self.socket.close(LINGER_MS_AT_CLOSE)
        if self.is_in_place():
            self.path.unlink(missing_ok=True)


class Client(ZmqEndpoint, ClientEndpoint):
    """A DEALER connected to a server, which may not exist yet, and may come and go."""

    def __init__(self, context: Context, place: Path | str, me: Address, clock: Clock) -> None:
        """`place`: the server's socket file, or its ZeroMQ endpoint.

        OSError if no descriptors are left.
        """
        super().__init__(me, clock)
        self._open_socket(context, zmq.DEALER)
        self._secure()
        self.socket.setsockopt(zmq.IMMEDIATE, 1)
        self.socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        self.socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MS_MAX)
        # The identity has a random part, because a server ignores a second connection with an identity that it knows.
        self.socket.setsockopt(zmq.IDENTITY, f"{me.task}.{me.incarnation}.{secrets.token_hex(8)}".encode())
        try:
            self.monitor: zmq.Socket[bytes] = self.socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
            self.socket.connect(f"ipc://{place}" if isinstance(place, Path) else place)
        except zmq.ZMQError as error:
            self.socket.close(0)
            raise OSError(error.errno, error.strerror) from error

    def _secure(self) -> None:
        """Sets the socket's keys, if the channel has any.

        A Unix socket needs none, because file permissions protect it.
        """

    def _put(self, frames: list[bytes]) -> Put:
        if self.monitor.poll(0):
            return Put.FULL  # `resend_due` has not reported this new connection yet; Hello must be first on it
        return super()._put(frames)

    @property
    def other_sockets(self) -> tuple[zmq.Socket[bytes], ...]:
        return (self.monitor,)

    def _new_connections(self) -> int:
        made = 0
        while self.monitor.poll(0):
            self.monitor.recv_multipart()  # zmq.utils.monitor could parse it, but imports asyncio
            made += 1
        return made

    def close(self, linger_ms: int = LINGER_MS_AT_CLOSE) -> None:
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(linger_ms)


class Waiter:
    """Waits on channels and file descriptors in one place."""

    def __init__(self) -> None:
        self._poller = zmq.Poller()
        self._owner: dict[object, object] = {}

    def register(self, thing: ZmqEndpoint | int) -> None:
        if isinstance(thing, int):
            self._register(thing, thing)
            return
        for socket in (thing.socket, *thing.other_sockets):
            self._register(socket, thing)

    def remove(self, thing: ZmqEndpoint | int) -> None:
        for key in [k for k, owner in self._owner.items() if owner is thing or owner == thing]:
            self._poller.unregister(key)
            del self._owner[key]

    def _register(self, key: zmq.Socket[bytes] | int, owner: object) -> None:
        self._poller.register(key, zmq.POLLIN)
        self._owner[key] = owner

    def wait_for_others(self, thing: ZmqEndpoint, timeout_s: float) -> list[object]:
        """Like `wait`, but ignores `thing`, whose messages stay queued."""
        self.remove(thing)
        try:
            return self.wait(timeout_s)
        finally:
            self.register(thing)

    def wait(self, timeout_s: float) -> list[object]:
        """Returns the registered channels and descriptors that are readable, each once.

        Returns an empty list after `timeout_s`.  It does not wait if a client needs another tick.
        """
        if any(isinstance(owner, Client) and owner.wants_tick for owner in self._owner.values()):
            timeout_s = 0.0
        ready = self._poller.poll(max(0, int(timeout_s * 1000 + 0.999)))
        found: list[object] = []
        for key, _ in ready:
            owner = self._owner[key]
            if owner not in found:
                found.append(owner)
        return found


def new_context() -> Context:
    return zmq.Context(io_threads=1)


def open_socket(context: Context, kind: int) -> zmq.Socket[bytes]:
    """Opens a socket; OSError if no descriptors are left."""
    try:
        return context.socket(kind)
    except zmq.ZMQError as error:
        raise OSError(error.errno, error.strerror) from error
