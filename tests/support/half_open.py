"""A proxy whose connections break on one side: the client sees the end, the server does not."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections.abc import Iterator


class HalfOpen:
    """Forwards connections to a port of this machine."""

    def __init__(self, to_port: int) -> None:
        self._to_port, self._selector = to_port, selectors.DefaultSelector()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._other: dict[socket.socket, socket.socket] = {}
        self._clients: set[socket.socket] = set()
        self._is_open = True
        self._kept: list[socket.socket] = []  # open towards the server, without a client
        self._wake, self._woken = socket.socketpair()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def break_off(self) -> None:
        """End every connection on the client's side and accept no new one. Returns once that is done."""
        self._is_open = False
        self._wake.send(b"x")
        assert self._wake.recv(1) == b"x"

    def mend(self) -> None:
        """Accept new connections again."""
        self._is_open = True

    def close(self) -> None:
        self._wake.shutdown(socket.SHUT_WR)
        self._thread.join()
        for one in (self._listener, self._wake, self._woken, *self._other, *self._kept):
            one.close()
        self._selector.close()

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                ready = key.fileobj
                assert isinstance(ready, socket.socket)
                if ready is self._woken:
                    if not self._woken.recv(1):
                        return
                    self._end_clients()
                    self._woken.send(b"x")
                elif ready is self._listener:
                    self._join(self._listener.accept()[0])
                elif ready in self._other:
                    self._pass_on(ready)

    def _join(self, client: socket.socket) -> None:
        if not self._is_open:
            client.close()
            return
        server = socket.create_connection(("127.0.0.1", self._to_port))
        self._other |= {client: server, server: client}
        self._clients.add(client)
        for one in (client, server):
            self._selector.register(one, selectors.EVENT_READ)

    def _pass_on(self, source: socket.socket) -> None:
        with contextlib.suppress(OSError):
            if data := source.recv(65536):
                self._other[source].sendall(data)
                return
        self._part(source, self._other[source])

    def _end_clients(self) -> None:
        for client in list(self._clients):
            server = self._other[client]
            self._forget(client, server)
            client.close()
            self._kept.append(server)

    def _part(self, *both: socket.socket) -> None:
        self._forget(*both)
        for one in both:
            one.close()

    def _forget(self, *both: socket.socket) -> None:
        for one in both:
            self._selector.unregister(one)
            del self._other[one]
            self._clients.discard(one)


@contextlib.contextmanager
def half_open(to_port: int) -> Iterator[HalfOpen]:
    made = HalfOpen(to_port)
    try:
        yield made
    finally:
        made.close()
