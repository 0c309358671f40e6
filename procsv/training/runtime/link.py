"""Link: the one thread of a trainer that talks to the watchdog and the services.

Other threads hand it messages (`send_reliable`, `ask`) and never touch a socket.  Its ticks write the heartbeat (context.py), and
it is the first to see the lifeline and the signals, even while the main thread sits in a C call.  It decides nothing: it
passes what it receives to handlers.
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
from procsv.base.identity import SUMMARY, WATCHDOG, TaskId
from procsv.base.system.failpoints import declare, failpoint
from procsv.ipc.messaging.endpoint import Address, Received
from procsv.ipc.messaging.messages import Ack, Hello, Message, Written
from procsv.ipc.messaging.start import Start
from procsv.ipc.messaging.zmq_transport import Client, Waiter, new_context
from procsv.ipc.shm.heartbeat_file import HeartbeatWriter
from procsv.training.runtime.event_streams import EventStreams

TICK_S = 0.2  # between heartbeats; a step in `status` is at most this much older than its reading

declare("trainer.hello")

Handler = Callable[[Received], None]


class Link:
    """Connections to `peers` (watchdog, checkpoint, summary) of one run."""

    def __init__(self, start: Start, clock: Clock, streams: EventStreams, peers: tuple[TaskId, ...]) -> None:
        self._start, self._clock, self._streams, self._peers = start, clock, streams, peers
        self._queue: deque[tuple[TaskId, Message, Future[Received] | None]] = deque()
        self._handlers: dict[type, list[Handler]] = {}
        self._watched: dict[int, Callable[[], None]] = {}
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lost: dict[TaskId, str] = {}  # peers that will not answer any more, and why
        self._ending = False
        self._ending_by_s = 0.0
        self._failure: BaseException | None = None
        self.introductions: dict[TaskId, Message] = {}  # peer -> sent on every new connection, after Hello
        self.heartbeat: HeartbeatWriter | None = None
        self.on_tick: list[Callable[[], None]] = []
        self._thread = threading.Thread(target=self._run, name="procsv-link", daemon=True)

    def start_thread(self) -> None:
        self._thread.start()

    @property
    def is_talking(self) -> bool:
        return self._thread.is_alive()

    def on(self, kind: type[Message], handler: Handler) -> None:
        """Calls `handler` on this thread for each `kind` received, which is acknowledged afterwards."""
        self._handlers.setdefault(kind, []).append(handler)

    def remove_handler(self, kind: type[Message], handler: Handler) -> None:
        self._handlers[kind].remove(handler)

    def watch(self, fd: int, react: Callable[[], None]) -> None:
        """Calls `react` on this thread when `fd` is readable; before `start_thread` only."""
        self._watched[fd] = react

    def send_reliable(self, peer: TaskId, body: Message) -> None:
        """Sends `body` until it is acknowledged.  Any thread; never blocks."""
        self._queue.append((peer, body, None))
        self.wake()

    def ask(self, peer: TaskId, body: Message, timeout_s: float) -> Received:
        """Sends `body` and waits for its answer.  TimeoutError after `timeout_s`; PeerError if `peer` is lost."""
        future: Future[Received] = Future()
        self._queue.append((peer, body, future))
        self.wake()
        return future.result(timeout_s)

    def lose(self, peer: TaskId, why: str) -> None:
        """Marks `peer` as lost: whoever waits for its answer, now or later, gets a PeerError.  Any thread."""
        self._lost[peer] = why
        self.wake()

    def why_lost(self, peer: TaskId) -> str:
        """Why `peer` is lost; "" if it is not."""
        return self._lost.get(peer, "")

    def wake(self) -> None:
        if self._wake_fd >= 0:
            os.eventfd_write(self._wake_fd, 1)

    def close_link(self, timeout_s: float) -> None:
        """Sends what is still queued, for at most `timeout_s`, and closes.  Raises what ended the thread."""
        self._ending_by_s = self._clock.monotonic() + timeout_s
        self._ending = True
        self.wake()
        if self._thread.ident is not None:
            self._thread.join(timeout_s + 5.0)
        if not self._thread.is_alive():
            os.close(self._wake_fd)
            self._wake_fd = -1
        if self._failure is not None:
            raise self._failure

    # -- on the thread ---------------------------------------------------------------------------------------
    def _run(self) -> None:
        context = new_context()
        me = Address(self._start.run, self._start.task, self._start.incarnation)
        paths = self._start.paths
        sockets = {p: paths.control_socket if p == WATCHDOG else paths.service_socket(p) for p in self._peers}
        clients = {peer: Client(context, path, me, self._clock) for peer, path in sockets.items()}
        try:
            self._talk(clients)
        except BaseException as failure:  # raised again by `close_link`
            self._failure = failure
            raise
        finally:
            for client in clients.values():
                client.close()
            context.term()

    def _talk(self, clients: dict[TaskId, Client]) -> None:
        waiter, open_futures = Waiter(), dict[tuple[TaskId, int], Future[Received]]()
        for client in clients.values():
            waiter.add(client)
        for fd in (self._wake_fd, *self._watched):
            waiter.add(fd)
        while True:
            self._send_queued(clients, open_futures)
            self._give_up_on_lost(open_futures)
            for peer, client in clients.items():
                self._tick(peer, client)
            for listener in self.on_tick:
                listener()
            if self._ending and self._is_all_sent(clients):
                return  # whoever closes a stream flushes it
            for thing in waiter.wait(TICK_S if not self._ending else 0.02):
                if thing == self._wake_fd:
                    os.eventfd_read(self._wake_fd)
                elif isinstance(thing, int) and select.select([thing], [], [], 0)[0]:
                    self._watched[thing]()
                    if thing not in self._watched:
                        waiter.remove(thing)
            for peer, client in clients.items():
                while (received := client.receive()) is not None:
                    self._dispatch(peer, client, received, open_futures)

    def unwatch(self, fd: int) -> None:
        """Stops watching `fd`; called from its own reaction."""
        self._watched.pop(fd, None)

    def _send_queued(self, clients: dict[TaskId, Client], futures: dict[tuple[TaskId, int], Future[Received]]) -> None:
        while self._queue:
            peer, body, future = self._queue.popleft()
            if peer not in clients:
                continue  # a run without this service
            seq = clients[peer].send_reliable(body)
            if future is not None:
                futures[peer, seq] = future
        if SUMMARY in clients:
            for message in self._streams.messages(self._clock.monotonic()):
                clients[SUMMARY].send(message)

    def _give_up_on_lost(self, futures: dict[tuple[TaskId, int], Future[Received]]) -> None:
        for peer, seq in [key for key in futures if key[0] in self._lost]:
            futures.pop((peer, seq)).set_exception(PeerError(self._lost[peer]))

    def _tick(self, peer: TaskId, client: Client) -> None:
        if client.tick():
            failpoint("trainer.hello")
            client.send_reliable(Hello(os.getpid()))
            if peer in self.introductions:
                client.send_reliable(self.introductions[peer])
            if peer == SUMMARY:
                self._streams.on_connected()

    def _dispatch(
        self, peer: TaskId, client: Client, received: Received, futures: dict[tuple[TaskId, int], Future[Received]]
    ) -> None:
        future = futures.get((peer, received.re))
        if future is not None and not isinstance(received.body, Ack):
            futures.pop((peer, received.re))
            future.set_result(received)
        if isinstance(received.body, Written):
            self._streams.on_written(received.body)
        for handler in tuple(self._handlers.get(type(received.body), ())):
            handler(received)
        client.acknowledge(received)

    def _is_all_sent(self, clients: dict[TaskId, Client]) -> bool:
        unsaid = sum(len(client.peer.outbox) for peer, client in clients.items() if peer not in self._lost)
        return (not self._queue and not unsaid) or self._clock.monotonic() >= self._ending_by_s
