"""The trainer's one thread that talks: to the watchdog, the checkpoint service and the summary service.

Other threads hand it messages (`tell`, `ask`) and never touch a socket.  Its ticks beat the heartbeat (context.py), and it hears the
lifeline and the signals first, even while the main thread sits in a C call.  It decides nothing: what is heard
goes to handlers.
"""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

from procsv.base.clock import Clock
from procsv.base.errors import PeerError
from procsv.base.failpoints import declare, failpoint
from procsv.ipc.messaging.endpoint import Address, Received
from procsv.ipc.messaging.messages import Ack, Hello, Message, Written
from procsv.ipc.messaging.start import Start
from procsv.ipc.messaging.zmq_transport import Client, Waiter, new_context
from procsv.ipc.shm.heartbeat_file import HeartbeatWriter
from procsv.training.runtime.event_streams import EventStreams

TICK_S = 0.2  # how often the heartbeat beats; a step in `status` is at most this much older than its reading

declare("trainer.hello")

Handler = Callable[[Received], None]


class Link:
    """Connections to `roles` (watchdog, checkpoint, summary) of one run."""

    def __init__(self, start: Start, clock: Clock, streams: EventStreams, roles: tuple[str, ...]) -> None:
        self._start, self._clock, self._streams, self._roles = start, clock, streams, roles
        self._queue: deque[tuple[str, Message, Future[Received] | None]] = deque()
        self._handlers: dict[type, list[Handler]] = {}
        self._watched: dict[int, Callable[[], None]] = {}
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lost: dict[str, str] = {}  # roles that nobody will take again, and why
        self._ending = False
        self._ending_by_s = 0.0
        self._failure: BaseException | None = None
        self.introductions: dict[str, Message] = {}  # role -> said again on every new connection, after Hello
        self.heartbeat: HeartbeatWriter | None = None
        self.on_tick: list[Callable[[], None]] = []
        self._thread = threading.Thread(target=self._run, name="procsv-link", daemon=True)

    def begin(self) -> None:
        self._thread.start()

    @property
    def is_talking(self) -> bool:
        return self._thread.is_alive()

    def on(self, kind: type[Message], handler: Handler) -> None:
        """Calls `handler` on this thread for each `kind` that is heard; it is acknowledged afterwards."""
        self._handlers.setdefault(kind, []).append(handler)

    def forget(self, kind: type[Message], handler: Handler) -> None:
        self._handlers[kind].remove(handler)

    def watch(self, fd: int, react: Callable[[], None]) -> None:
        """Calls `react` on this thread when `fd` is readable; before `begin` only."""
        self._watched[fd] = react

    def send_reliable(self, role: str, body: Message) -> None:
        """Says `body` until it is acknowledged.  Any thread; never blocks."""
        self._queue.append((role, body, None))
        self.wake()

    def ask(self, role: str, body: Message, timeout_s: float) -> Received:
        """Says `body` and waits for what answers it.  TimeoutError after `timeout_s`; PeerError if `role` is lost."""
        future: Future[Received] = Future()
        self._queue.append((role, body, future))
        self.wake()
        return future.result(timeout_s)

    def lose(self, role: str, why: str) -> None:
        """Nobody will answer as `role` any more: whoever waits for that is told so, now and later.  Any thread."""
        self._lost[role] = why
        self.wake()

    def why_lost(self, role: str) -> str:
        """ "" as long as somebody answers as `role`, or will again."""
        return self._lost.get(role, "")

    def wake(self) -> None:
        if self._wake_fd >= 0:
            os.eventfd_write(self._wake_fd, 1)

    def end(self, timeout_s: float) -> None:
        """Says what is still to be said, for at most `timeout_s`, and closes.  Raises what ended the thread."""
        self._ending_by_s = self._clock.monotonic() + timeout_s
        self._ending = True
        self.wake()
        self._thread.join(timeout_s + 5.0)
        if not self._thread.is_alive():
            os.close(self._wake_fd)
            self._wake_fd = -1
        if self._failure is not None:
            raise self._failure

    # -- on the thread ---------------------------------------------------------------------------------------
    def _run(self) -> None:
        context = new_context()
        me = Address(self._start.run, "trainer", self._start.incarnation)
        paths = self._start.paths
        sockets = {r: paths.control_socket if r == "watchdog" else paths.service_socket(r) for r in self._roles}
        clients = {role: Client(context, path, me, self._clock) for role, path in sockets.items()}
        try:
            self._talk(clients)
        except BaseException as failure:  # shown by `end`, and by the hang of whoever asks: never lost
            self._failure = failure
            raise
        finally:
            for client in clients.values():
                client.close()
            context.term()

    def _talk(self, clients: dict[str, Client]) -> None:
        waiter, open_futures = Waiter(), dict[tuple[str, int], Future[Received]]()
        for client in clients.values():
            waiter.add(client)
        for fd in (self._wake_fd, *self._watched):
            waiter.add(fd)
        while True:
            self._say_what_is_queued(clients, open_futures)
            self._give_up_on_lost(open_futures)
            for role, client in clients.items():
                self._tick(role, client)
            for listener in self.on_tick:
                listener()
            if self._ending and self._is_all_said(clients):
                return  # streams are flushed by those who close them
            for thing in waiter.wait(TICK_S if not self._ending else 0.02):
                if thing == self._wake_fd:
                    os.eventfd_read(self._wake_fd)
                elif isinstance(thing, int) and select.select([thing], [], [], 0)[0]:
                    self._watched[thing]()
                    if thing not in self._watched:
                        waiter.remove(thing)
            for role, client in clients.items():
                while (received := client.receive()) is not None:
                    self._hear(role, client, received, open_futures)

    def unwatch(self, fd: int) -> None:
        """Stops watching `fd`; called from its own reaction."""
        self._watched.pop(fd, None)

    def _say_what_is_queued(self, clients: dict[str, Client], futures: dict[tuple[str, int], Future[Received]]) -> None:
        while self._queue:
            role, body, future = self._queue.popleft()
            if role not in clients:
                continue  # no watchdog in this run: there is nobody whom it concerns
            seq = clients[role].send_reliable(body)
            if future is not None:
                futures[role, seq] = future
        if "summary" in clients:
            for message in self._streams.messages(self._clock.monotonic()):
                clients["summary"].send(message)

    def _give_up_on_lost(self, futures: dict[tuple[str, int], Future[Received]]) -> None:
        for role, seq in [key for key in futures if key[0] in self._lost]:
            futures.pop((role, seq)).set_exception(PeerError(self._lost[role]))

    def _tick(self, role: str, client: Client) -> None:
        if client.tick():
            failpoint("trainer.hello")
            client.send_reliable(Hello(os.getpid()))
            if role in self.introductions:
                client.send_reliable(self.introductions[role])
            if role == "summary":
                self._streams.on_connected()

    def _hear(
        self, role: str, client: Client, received: Received, futures: dict[tuple[str, int], Future[Received]]
    ) -> None:
        future = futures.get((role, received.re))
        if future is not None and not isinstance(received.body, Ack):
            futures.pop((role, received.re))
            future.set_result(received)
        if isinstance(received.body, Written):
            self._streams.on_written(received.body)
        for handler in tuple(self._handlers.get(type(received.body), ())):
            handler(received)
        client.acknowledge(received)

    def _is_all_said(self, clients: dict[str, Client]) -> bool:
        unsaid = sum(len(client.peer.outbox) for role, client in clients.items() if role not in self._lost)
        return (not self._queue and not unsaid) or self._clock.monotonic() >= self._ending_by_s
