"""Link: the trainer's one thread that talks to the watchdog and the services.

Other threads pass it messages (`send_reliable`, `ask`) and never touch a socket.  It is a thread,
not an asyncio loop, because the program owns the main thread and may be in a C call there for
minutes.  If that call does not hold the GIL, this thread still writes the heartbeat at its ticks
(context.py), and notices signals and the end of the lifeline.  It decides nothing: it passes
received messages to handlers.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from procsv.base.clock import Clock
from procsv.base.errors import PeerError
from procsv.base.identity import SUMMARY, WATCHDOG, TaskId
from procsv.base.system.failpoints import declare, failpoint
from procsv.base.system.process_state import name_own_thread
from procsv.ipc.messaging.checkpoint_messages import Durable, FilePlaced, Rejected, RestoreFrom, SaveFailed, Unwritable
from procsv.ipc.messaging.endpoint import Address, Received
from procsv.ipc.messaging.message import Message
from procsv.ipc.messaging.messages import Ack, Hello
from procsv.ipc.messaging.start import Start
from procsv.ipc.messaging.summary_messages import Written
from procsv.ipc.messaging.watchdog_messages import CopyKept, FlushDone, Inject, LogdirAdopted, ServiceLost, StopTraining
from procsv.ipc.messaging.zmq_transport import Client, Context, Waiter, new_context
from procsv.training.runtime.event_streams import EventStreams
from procsv.training.runtime.log import surviving_errors

TICK_S = 0.2  # between heartbeats; `status` shows a step at most this long after it is read

declare("trainer.hello")

Handler = Callable[[Any], None]  # of the body of a message
# The messages that a training process handles.  Some have a handler only during a session.  Any
# other message is refused and counted.
HEARD = frozenset(
    {
        CopyKept,
        Durable,
        FilePlaced,
        FlushDone,
        Inject,
        LogdirAdopted,
        Rejected,
        RestoreFrom,
        SaveFailed,
        ServiceLost,
        StopTraining,
        Unwritable,
        Written,
    }
)

OWN_THREADS = "procsv-"  # how the names of procsv's threads begin
_list_all = threading.enumerate


def _list_of_program() -> list[threading.Thread]:
    """Leaves procsv's threads out, because programs wait for all threads that are listed."""
    return [thread for thread in _list_all() if not thread.name.startswith(OWN_THREADS)]


class Link:
    """Connections to `peers` (watchdog, checkpoint, summary) of one run."""

    def __init__(self, start: Start, clock: Clock, streams: EventStreams, peers: tuple[TaskId, ...]) -> None:
        self._start, self._clock, self._streams, self._peers = start, clock, streams, peers
        self._queue: deque[tuple[TaskId, Message, Future[Received] | None]] = deque()
        self._handlers: dict[type, list[Handler]] = {}
        self._watched: dict[int, Callable[[], None]] = {}
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lost: dict[TaskId, str] = {}  # peers that will never answer again, and why
        self._clients: dict[TaskId, Client] = {}  # only the link's thread uses this and `_futures`
        self._futures: dict[tuple[TaskId, int], Future[Received]] = {}
        self._ending_by_s: float | None = None
        self._failure: BaseException | None = None
        self.introductions: dict[TaskId, Message] = {}  # peer -> sent on every new connection, after Hello
        self.on_tick: list[Callable[[float], None]] = []  # called with the time
        self._thread = threading.Thread(target=self._run, name="procsv-link", daemon=True)
        self._starting = threading.Lock()

    def start_thread(self) -> None:
        """Starts the thread, if it is not started yet; raises the error that ended it, if one did.

        Any thread may call it.
        """
        with self._starting:
            if self._failure is not None:
                raise self._failure
            if self._thread.ident is None:
                if threading.enumerate is _list_all:
                    threading.enumerate = _list_of_program
                    threading.active_count = lambda: len(_list_of_program())
                self._thread.start()

    @property
    def is_talking(self) -> bool:
        return self._thread.is_alive()

    def on(self, kind: type[Message], handler: Handler) -> None:
        """Calls `handler` on the link's thread for each received `kind`, then acknowledges it."""
        self._handlers.setdefault(kind, []).append(handler)

    def remove_handler(self, kind: type[Message], handler: Handler) -> None:
        self._handlers[kind].remove(handler)

    def watch_fd(self, fd: int, react: Callable[[], None]) -> None:
        """Calls `react` on the link's thread when `fd` is readable; only before `start_thread`."""
        self._watched[fd] = react

    def send_reliable(self, peer: TaskId, body: Message) -> None:
        """Sends `body` until it is acknowledged.  Any thread; never blocks."""
        self._queue.append((peer, body, None))
        self.wake()

    def ask(self, peer: TaskId, body: Message, timeout_s: float) -> Received:
        """Sends `body` and waits for its answer.

        Raises TimeoutError after `timeout_s`, and PeerError if `peer` is lost.
        """
        future: Future[Received] = Future()
        self._queue.append((peer, body, future))
        self.wake()
        return future.result(timeout_s)

    def mark_lost(self, peer: TaskId, why: str) -> None:
        """Marks `peer` as lost: present and later callers of `ask` get a PeerError.  Any thread."""
        self._lost[peer] = why
        self.wake()

    def why_lost(self, peer: TaskId) -> str:
        """Why `peer` is lost; "" if it is not."""
        return self._lost.get(peer, "")

    def wake(self) -> None:
        os.eventfd_write(self._wake_fd, 1)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self._wake_fd)  # not earlier: a late `wake` of another thread must not write to another file

    def close_link(self, timeout_s: float) -> None:
        """Sends the queue within `timeout_s` and closes; raises the error that ended the thread."""
        self._ending_by_s = self._clock.monotonic() + timeout_s
        self.wake()
        if self._thread.ident is not None:
            self._thread.join(timeout_s + 5.0)
        if self._failure is not None:
            raise self._failure

    # -- on the thread -----------------------------------------------------------------------------
    def _run(self) -> None:
        name_own_thread()  # first, so that checks for activity of the program ignore this thread
        try:
            context = new_context()
            try:
                self._connect(context)
                self._talk()
            finally:
                for client in self._clients.values():
                    client.close()
                context.term()
        except BaseException as failure:  # `close_link` raises it again
            self._failure = failure
            raise

    def _connect(self, context: Context) -> None:
        me = Address(self._start.run, self._start.task, self._start.incarnation)
        paths = self._start.paths
        for peer in self._peers:
            path = paths.control_socket if peer == WATCHDOG else paths.service_socket(peer)
            self._clients[peer] = Client(context, path, me, self._clock)

    def _talk(self) -> None:
        waiter = Waiter()
        sources: list[Client | int] = [*self._clients.values(), self._wake_fd, *self._watched]
        for source in sources:
            waiter.register(source)
        news: list[object] = [*sources]
        while True:
            self._send_queued()
            for peer, seq in [key for key in self._futures if key[0] in self._lost]:
                self._futures.pop((peer, seq)).set_exception(PeerError(self._lost[peer]))
            for peer, client in self._clients.items():
                if client in news or client.is_pending:  # otherwise there is no connection and no message to check
                    self._tick(peer, client)
            for listener in self.on_tick:
                with (
                    surviving_errors(),
                    contextlib.suppress(OSError),
                ):  # no room: the listener tries again at the next tick
                    listener(self._clock.monotonic())
            if self._ending_by_s is not None and self._is_all_sent(self._ending_by_s):
                return  # event records need no check: closing their stream waits until they are written
            news = waiter.wait(TICK_S if self._ending_by_s is None else 0.02)
            for thing in news:
                if thing == self._wake_fd:
                    os.eventfd_read(self._wake_fd)
                elif isinstance(thing, int) and _is_readable(thing):
                    with surviving_errors():
                        self._watched[thing]()
                    if thing not in self._watched:
                        waiter.remove(thing)
            for peer, client in self._clients.items():
                while client in news and (received := client.receive()) is not None:
                    if type(received.body) not in HEARD and not isinstance(received.body, Ack):
                        client.count_breach(f"{type(received.body).__name__} has no handler")
                    self._dispatch(peer, received)
                    client.acknowledge(received)

    def unwatch(self, fd: int) -> None:
        """Stops watching `fd`; call it from that fd's own reaction."""
        self._watched.pop(fd, None)

    def _send_queued(self) -> None:
        while self._queue:
            peer, body, future = self._queue.popleft()
            # The run does not have this service, or has it on another machine.
            if peer not in self._clients:
                if future is not None:
                    future.set_exception(PeerError(f"no {peer} service is on this machine"))
                continue
            seq = self._clients[peer].send_reliable(body)
            if future is not None:
                self._futures[peer, seq] = future
        if SUMMARY in self._clients:
            for message in self._streams.messages(self._clock.monotonic()):
                self._clients[SUMMARY].send(message)

    def _tick(self, peer: TaskId, client: Client) -> None:
        if client.resend_due():
            failpoint("trainer.hello")
            client.send_reliable(Hello(os.getpid()))
            if peer in self.introductions:
                client.send_reliable(self.introductions[peer])
            if peer == SUMMARY:
                self._streams.on_connected()

    def _dispatch(self, peer: TaskId, received: Received) -> None:
        if (peer, received.re) in self._futures and not isinstance(received.body, Ack):
            self._futures.pop((peer, received.re)).set_result(received)
        if isinstance(received.body, Written):
            self._streams.on_written(received.body)
        elif isinstance(received.body, ServiceLost):
            self.mark_lost(received.body.service, received.body.why)
        for handler in tuple(self._handlers.get(type(received.body), ())):
            with surviving_errors():
                handler(received.body)

    def _is_all_sent(self, by_s: float) -> bool:
        unsaid = sum(len(client.peer.outbox) for peer, client in self._clients.items() if peer not in self._lost)
        return (not self._queue and not unsaid) or self._clock.monotonic() >= by_s


def _is_readable(fd: int) -> bool:
    poller = select.poll()  # unlike `select`, for any descriptor: the program may have opened thousands
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(0))
