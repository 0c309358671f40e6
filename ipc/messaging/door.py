"""Guard a TCP port: authenticate peers, and limit connections that have shown no key.

curve_transport.py and bulk/sockets.py use a door for each ROUTER that other machines connect to.
This module also chooses the addresses to listen at.

ZeroMQ accepts every connection, and each one costs this process a descriptor.  If a connection on a
Unix socket then finds no descriptor left, libzmq aborts the process.  So the door's thread watches
every connection.  ZeroMQ closes a connection that shows no key within HANDSHAKE_MS.  While too many
connections have shown no key, the kernel accepts no more.  Authenticated peers are not affected.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import socket
import struct
import threading
from collections.abc import Mapping

import zmq
from zmq.utils import z85

from procsv.base import exit_codes
from procsv.base.errors import UserError
from procsv.base.system.process_state import name_own_thread
from procsv.ipc.messaging.zmq_transport import Context, open_socket

ZAP_ENDPOINT = "inproc://zeromq.zap.01"  # where ZeroMQ asks whether a peer may connect (its RFC 27)
ZAP_FRAMES = 7  # in a request about a CURVE key: version, request, domain, address, identity, mechanism, key
HANDSHAKE_MS = 2_000
STRANGERS_MAX = 1_000  # connections that have shown no key yet; each also takes 40 kB
STRANGERS_SHARE = 4  # they may take a quarter of the free descriptors at most
LOOK_MS = 20  # how often to check whether there is room again
BACKLOG = 64  # connections that the kernel queues for us; it accepts these even while the door is shut
NO_FREE_PORT = 20  # tries to find a port that is free at each of several addresses

SO_ATTACH_FILTER, SO_DETACH_FILTER = 26, 27  # Linux's numbers, which Python's socket module does not have
NOTHING_PASSES = struct.pack("HBBI", 0x06, 0, 0, 0)  # a kernel filter program: return 0

EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_MONITOR_STOPPED


class Door:
    """Binds a ROUTER, and guards it until it is closed."""

    def __init__(
        self, context: Context, server: zmq.Socket[bytes], port: int, secret_key: str, known: Mapping[str, str]
    ) -> None:
        """`port`: 0 for any free port.  `known`: public key -> the peer that has it.

        UserError if the port is not available.
        """
        self._known = {z85.decode(key): name.encode() for key, name in known.items()}
        self.strangers = 0  # how many connections have ended, or were closed, without a key of the run
        self._fresh = dict[int, None]()  # descriptors of connections that have shown no key yet, the newest last
        self._is_shut = False
        self._server = server
        self._ports = _listen(where_to_listen()[0], port)
        self.port = int(self._ports[0].getsockname()[1])
        try:
            self._fresh_max = _room()
            # Bind this before the ROUTER, or ZeroMQ would accept an early peer without asking.
            self._zap = open_socket(context, zmq.REP)
            self._zap.bind(ZAP_ENDPOINT)
            self._monitor = open_socket(context, zmq.PAIR)
            self._monitor.setsockopt(zmq.RCVHWM, 0)  # a full queue would block ZeroMQ
            address = f"inproc://door-{self.port}-{id(self)}"
            server.monitor(address, EVENTS)
            self._monitor.connect(address)
            self._bind(secret_key)
        except (OSError, zmq.ZMQError) as error:
            self._close_all()
            raise _no_port(self.port, error.strerror) from error
        self._thread = threading.Thread(target=self._serve_connections, name="door", daemon=True)
        self._thread.start()

    def _bind(self, secret_key: str) -> None:
        for option, value in (
            (zmq.ROUTER_MANDATORY, 1),
            (zmq.ROUTER_HANDOVER, 1),  # otherwise a peer that reconnects is ignored while we hold its old connection
            (zmq.CURVE_SERVER, 1),
            (zmq.CURVE_SECRETKEY, secret_key.encode()),
            (zmq.ZAP_DOMAIN, b"procsv"),
            (zmq.HANDSHAKE_IVL, HANDSHAKE_MS),
        ):
            self._server.setsockopt(option, value)
        for listening in self._ports:
            self._server.setsockopt(zmq.USE_FD, os.dup(listening.fileno()))  # ZeroMQ will close it
            self._server.bind(f"tcp://127.0.0.1:{self.port}")  # ZeroMQ ignores the address: the socket is bound

    def close(self) -> None:
        """Stops accepting peers.  Must be called before the ROUTER is closed."""
        self._server.disable_monitor()
        self._thread.join()
        self._close_all()

    def _close_all(self) -> None:
        for listening in self._ports:
            listening.close()
        for name in ("_zap", "_monitor"):
            if (mine := getattr(self, name, None)) is not None:
                mine.close(0)

    # -- the thread ------------------------------------------------------------------------------------------
    def _serve_connections(self) -> None:
        name_own_thread()
        poller = zmq.Poller()
        poller.register(self._zap, zmq.POLLIN)
        poller.register(self._monitor, zmq.POLLIN)
        is_over = False
        while not is_over:
            poller.poll(LOOK_MS if self._is_shut else None)
            self._answer()
            is_over = self._look_at_peers()
            if self._is_shut != (is_full := len(self._fresh) >= self._fresh_max):
                self._is_shut = is_full
                self._shut() if is_full else self._open()

    def _answer(self) -> None:
        """Accepts peers with a known key, and gives ZeroMQ the name that belongs to it."""
        while self._zap.poll(0):
            asked = self._zap.recv_multipart()
            is_curve = len(asked) == ZAP_FRAMES and asked[5] == b"CURVE"
            name = self._known.get(asked[6]) if is_curve else None
            request = asked[1] if len(asked) > 1 else b""
            verdict = [b"400", b"", b"", b""] if name is None else [b"200", b"", name, b""]
            self._zap.send_multipart([b"1.0", request, *verdict])

    def _look_at_peers(self) -> bool:
        """Counts connections that begin and end; returns True once the ROUTER is being closed.

        ZeroMQ does not say whose handshake has succeeded, so we assume the newest connection.  If
        it was another one, the count of strangers is right again once both connections have ended.
        """
        while self._monitor.poll(0):
            event, fd = struct.unpack("=HI", self._monitor.recv_multipart()[0])
            if event == zmq.EVENT_MONITOR_STOPPED:
                return True
            if event == zmq.EVENT_ACCEPTED:
                self._fresh[fd] = None
            elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED and self._fresh:
                self._fresh.popitem()
            elif event == zmq.EVENT_DISCONNECTED and fd in self._fresh:
                del self._fresh[fd]
                self.strangers += 1
        return False

    def _shut(self) -> None:
        """Makes the kernel drop connection requests; the peer's kernel repeats them by itself."""
        filter_ = ctypes.create_string_buffer(NOTHING_PASSES, len(NOTHING_PASSES))
        program = struct.pack("HL", 1, ctypes.addressof(filter_))
        for listening in self._ports:
            _set_filter(listening, SO_ATTACH_FILTER, program)

    def _open(self) -> None:
        for listening in self._ports:
            _set_filter(listening, SO_DETACH_FILTER, bytes(4))


def _set_filter(listening: socket.socket, option: int, value: bytes) -> None:
    with contextlib.suppress(OSError):  # some sandboxes forbid it; then only the descriptor limit protects us
        listening.setsockopt(socket.SOL_SOCKET, option, value)


def _room() -> int:
    """Returns how many connections without a key to allow.

    The process keeps the other free descriptors.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.close(lowest_free)
    return max(1, min(STRANGERS_MAX, (limit - lowest_free) // STRANGERS_SHARE))


# -- where -------------------------------------------------------------------------------------------------------
def where_to_listen() -> tuple[list[str], str]:
    """Returns the addresses to listen at, and why PROCSV_HOST does not select them.

    No addresses: listen at all.  The reason is "" if PROCSV_HOST selects the addresses or is not
    set.  Ignores a name that means this machine only in its own /etc/hosts, because other machines
    know it by another address.
    """
    host = os.environ.get("PROCSV_HOST", "")
    if not host:
        return [], ""
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError as error:
        return (
            [],
            f"PROCSV_HOST={host} is not found ({error.strerror}), so this launch listens at all addresses",
        )
    named = host if host in found else ""
    own = [
        address
        for address in sorted(found)
        if _is_own(address) and (named or host == "localhost" or not _loops(address))
    ]
    if own:
        return own, ""
    return (
        [],
        f"PROCSV_HOST={host} is not an address of this machine, so this launch listens at all of its addresses",
    )


def _is_own(address: str) -> bool:
    with socket.socket(_family(address), socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def _loops(address: str) -> bool:
    return address == "::1" or address.startswith("127.")


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _listen(addresses: list[str], port: int) -> list[socket.socket]:
    """Returns sockets that listen on one port, at each of `addresses`, or at all if there are none.

    UserError if the port is taken.
    """
    for _ in range(NO_FREE_PORT):
        made = list[socket.socket]()
        try:
            for address in addresses or [""]:
                made.append(_listen_at(address, made[0].getsockname()[1] if made else port))
        except OSError as error:
            for one in made:
                one.close()
            if error.errno != errno.EADDRINUSE:
                raise _no_port(port, error.strerror) from error
            if port or not made:
                break
        else:
            return made
    raise UserError(
        f"port {port} of this machine is in use; `ss -tlnp` shows by which process. Name another port in PROCSV_PORT",
        exit_codes.LOGDIR_UNUSABLE,
    )


def _no_port(port: int, why: str | None) -> UserError:
    return UserError(f"this launch cannot listen at port {port}: {why}", exit_codes.LOGDIR_UNUSABLE)


def _listen_at(address: str, port: int) -> socket.socket:
    if not address and socket.has_dualstack_ipv6():
        made = socket.create_server(("", port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True)
    else:
        made = socket.create_server((address, port), family=_family(address), backlog=BACKLOG)
    made.setblocking(False)  # a waiting peer may be gone when ZeroMQ accepts it
    return made
