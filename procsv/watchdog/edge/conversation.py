"""Exchange messages on the watchdog's sockets, with tasks, commands and services.

Used by event_loop.py, which gets the messages as events. Tasks and commands connect to the
watchdog's control socket. The watchdog connects to the services. This module decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from procsv.base.clock import Clock
from procsv.base.encoding import encode_json
from procsv.base.errors import UserError
from procsv.base.identity import WATCHDOG, TaskId
from procsv.base.journal import entries
from procsv.base.run.paths import shorten_path
from procsv.base.run.saved_step import saved_step
from procsv.base.service_table import SERVICES
from procsv.ipc.messaging import messages, watchdog_messages
from procsv.ipc.messaging.endpoint import Address, ClientEndpoint, Received
from procsv.ipc.messaging.message import Message
from procsv.ipc.messaging.start import Start
from procsv.ipc.messaging.zmq_transport import Client, Server, Waiter, new_context
from procsv.watchdog.core import events
from procsv.watchdog.core.reporting import wording
from procsv.watchdog.core.run import Core
from procsv.watchdog.edge.environment import Environment
from procsv.watchdog.edge.status import Publisher

HEARD_MAX = 1000  # messages per turn on the control socket; the other work of the turn must not wait longer


class Loop(NamedTuple):
    """The functions of the event loop that a conversation calls."""

    handle: Callable[[events.Event], None]
    look: Callable[[], None]  # read heartbeats and resources now, and do what is due
    hear_starts: Callable[[], None]  # handle the starts that the standby has reported
    imports_known: Callable[[TaskId, int], None]  # an attempt has recorded its imports
    check_run_files: Callable[[], None]


class Conversation:
    def __init__(self, core: Core, environment: Environment, published: Publisher, loop: Loop) -> None:
        self._core, self._env, self._sockets = core, environment, environment.sockets
        self._published, self._loop = published, loop
        # The messages to each service, by sequence number. A FlushDone names the number of the message that it answers.
        self._asked: dict[TaskId, dict[int, Message]] = {task: {} for task in core.services}

    def handle_messages(self) -> None:
        """Handle all messages that have arrived."""
        for _ in range(HEARD_MAX):
            if (received := self._sockets.server.receive()) is None:
                break
            if received.task in self._core.tasks:
                self._loop.hear_starts()  # first, because a new trainer reports its start before anything else
            self._heard_at_control(received)
        for task, client in self._sockets.clients.items():
            self.greet(client)
            while (received := client.receive()) is not None:
                self._heard_from_service(task, client, received)

    def greet(self, client: ClientEndpoint) -> None:
        """Resend the messages to a service that are due.

        If the connection is new, send Hello first. The next call resends the rest.
        """
        if client.resend_due():
            client.send_reliable(messages.Hello(self._published.facts.watchdog.pid))

    def _heard_at_control(self, received: Received) -> None:
        match received.body:
            case watchdog_messages.StatusRequest():
                self._loop.look()
                self._sockets.server.send(
                    received.who,
                    watchdog_messages.Status(encode_json(self._published.status())),
                    re=received.seq,
                )
            case watchdog_messages.RestartTrainer() if self._core.settings.observes:
                self._sockets.server.send(received.who, watchdog_messages.CannotRestart(), re=received.seq)
            case watchdog_messages.RestartTrainer():
                self._loop.handle(events.RecycleAsked("procsv restart", by_hand=True))
                self._sockets.server.acknowledge(received)
            case watchdog_messages.AdoptLogdir(logdir) if self._is_running(received):
                answer = watchdog_messages.LogdirAdopted(self._adopt_logdir(received, logdir))
                self._sockets.server.send_reliable(received.who, answer, re=received.seq)
            case watchdog_messages.StopRun(now):
                self._loop.handle(events.StopAsked("procsv stop", now))
                self._sockets.server.acknowledge(received)  # the request is recorded by now
            case body:
                if received.task in self._core.tasks:
                    if isinstance(body, watchdog_messages.Loaded):
                        self._loop.imports_known(received.task, received.incarnation)
                    self._loop.handle(events.Said(received.task, received.incarnation, body))
                self._sockets.server.acknowledge(received)

    def _is_running(self, received: Received) -> bool:
        """Whether the message is from a task's running attempt."""
        task = self._core.tasks.get(received.task)
        return task is not None and task.incarnation == received.incarnation

    def _adopt_logdir(self, received: Received, logdir: str) -> str:
        """Adopt the directory that the program has named. Return why that is impossible, or ""."""
        start = self._published.facts.start
        if start.root or not start.may_adopt(Path(logdir)):
            return "" if logdir == start.logdir else f"the run's logdir is {start.logdir}"
        try:
            self._env.held.adopt(Path(logdir))
        except UserError as error:
            return str(error)
        facts = msgspec.structs.replace(self._published.facts, start=start.with_logdir(logdir))
        self._published.facts = facts
        self._env.processes.use_logdir(logdir)
        shown, step = shorten_path(logdir), saved_step(Path(logdir))
        self._loop.handle(
            events.Noted(
                task=received.task,
                incarnation=received.incarnation,
                entry=entries.LogdirAdopted(logdir=logdir),
                text=wording.adopted(shown, step),
            )
        )
        return ""

    def _heard_from_service(self, task: TaskId, client: ClientEndpoint, received: Received) -> None:
        answered = received.answers
        if isinstance(answered, messages.Hello):
            self._loop.handle(events.ServiceReady(task, received.incarnation))
            self._loop.check_run_files()  # note the files that the service has made, so that a later loss is noticed
        asked = None
        if isinstance(received.body, watchdog_messages.FlushDone):
            found = self._asked[task].pop(received.re, None)
            asked = found if isinstance(found, watchdog_messages.TrainerExited | watchdog_messages.Finish) else None
        self._loop.handle(events.Said(task, received.incarnation, received.body, asked))
        client.acknowledge(received)

    def tell_task(self, task: TaskId, body: Message) -> None:
        if isinstance(body, watchdog_messages.Finish) and self._core.services[task].spec.takes_events:
            self._published.send_metrics(math.inf)  # the last metrics, before the service ends
        if task in self._core.tasks:
            self._sockets.server.broadcast(body, task)
        else:
            self._asked[task][self._sockets.clients[task].send_reliable(body)] = body

    def forget_dead(self, task: TaskId, incarnation: int) -> None:
        """Drop the messages and the connection of a dead process."""
        if task in self._core.tasks:
            self._sockets.server.forget(task, incarnation)
        elif task in self._core.services:
            self._sockets.clients[task].peer.outbox.drop_messages()  # the core sends the next process what it needs
            self._asked[task].clear()


class RunSockets:
    """The watchdog's control socket, for tasks and commands, and its clients of the services."""

    def __init__(self, start: Start, clock: Clock, waiter: Waiter) -> None:
        self._me, self._paths, self._waiter = Address(start.run, WATCHDOG, 1), start.paths, waiter
        self._context = new_context()
        self.server = Server(self._context, self._paths.control_socket, self._me, clock)
        waiter.register(self.server)
        self.clients = {
            task: Client(self._context, self._paths.service_socket(task), self._me, clock) for task in SERVICES
        }
        for client in self.clients.values():
            waiter.register(client)

    def wait_for_news(self, timeout_s: float) -> list[object]:
        """Return the sockets and descriptors with news; none after `timeout_s`."""
        return self._waiter.wait(timeout_s)

    def restore_server(self) -> None:
        """Bind the control socket again if its file was removed.

        OSError or UserError if that fails.
        """
        if not self.server.is_in_place():
            self.server.bind()

    def close(self) -> None:
        for client in self.clients.values():
            client.close(linger_ms=0)
        self.server.close()
        self._context.term()
