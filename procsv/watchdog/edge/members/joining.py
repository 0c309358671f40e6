"""A member's way into the run: finds the coordinator's term in the logdir, connects, and asks to host its task.

Called by member.py (the member's main), before anything is started.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from procsv import __version__
from procsv.base import exit_codes
from procsv.base.clock import Clock
from procsv.base.errors import UserError
from procsv.base.placement import Placement
from procsv.base.run.terms import Term, newest_term
from procsv.base.units import show_duration
from procsv.ipc.messaging.curve_transport import KeyPair, TcpClient
from procsv.ipc.messaging.endpoint import Address
from procsv.ipc.messaging.member_messages import Join, Refused, Welcome
from procsv.ipc.messaging.start import Start
from procsv.ipc.messaging.zmq_transport import Context, Waiter, new_context
from procsv.watchdog.edge.members.own_host import can_be_found, own_host
from procsv.watchdog.edge.members.remote_tasks import member_id

LOOK_S = 0.1  # how often the logdir is looked at for a term
LOOK_AGAIN_S = 1.0  # and for another one, while the coordinator of this one does not answer
SAID_AFTER_S = 5.0
REFUSAL_S = 2.0  # a refusal that an earlier start of the same cluster has left is followed by a term of this one


class Joined:
    """The link to the coordinator that has taken us."""

    def __init__(self, client: TcpClient, term: Term, welcome: Welcome) -> None:
        self.client, self.term, self.welcome = client, term, welcome


class Joining:
    def __init__(self, start: Start, placement: Placement, address: str, clock: Clock) -> None:
        """`address`: of our task, for TensorFlow."""
        self._start, self._placement, self._address, self._clock = start, placement, address, clock
        self._context = new_context()

    @property
    def context(self) -> Context:
        return self._context

    def join(self, wait: Callable[[float], None], say: Callable[[str], None]) -> Joined:
        """Returns once the coordinator has taken us.  UserError if it refuses, or does not come.  `wait` raises at a signal."""
        began_s, is_said = self._clock.monotonic(), False
        limit_s = self._start.settings.coordinator_timeout_s
        while (waited_s := self._clock.monotonic() - began_s) < limit_s:
            term = newest_term(self._start.paths, self._placement.scheduler)
            if term is not None and term.refused:
                if waited_s > REFUSAL_S:
                    raise UserError(f"the coordinator could not begin: {term.refused}", term.exit_code)
            elif term is not None and (joined := self._ask(term, wait)) is not None:
                return joined
            elif waited_s > SAID_AFTER_S and not is_said:
                is_said = True
                say(f"{self._placement.task}: waiting for the coordinator, which has {self._placement.tasks[0]}")
            wait(LOOK_S)
        raise UserError(
            f"no coordinator was found in {self._start.paths.terms} within {show_duration(limit_s)}: see that {self._placement.tasks[0]} "
            "was launched, and that all launches name the same --logdir, on a filesystem that all of them see",
            exit_codes.RESUMABLE,
        )

    def _ask(self, term: Term, wait: Callable[[float], None]) -> Joined | None:
        """The coordinator's answer; None if it has ended meanwhile, or there was none.

        It is waited for somewhat longer than the coordinator waits for the others: it knows better who is missing.
        """
        settings = self._start.settings
        limit_s = settings.coordinator_timeout_s + settings.peer_timeout_s
        host = next(filter(can_be_found, term.hosts), term.hosts[0])
        me = Address(term.run, member_id(self._placement.rank), 1)
        keys = KeyPair(term.client_public, term.client_secret)
        client = TcpClient(self._context, f"{host}:{term.port}", keys, term.server_key, me, self._clock)
        waiter, joined = Waiter(), None
        waiter.add(client)
        try:
            client.send_reliable(self._question())
            deadline_s, look_s = self._clock.monotonic() + limit_s, self._clock.monotonic() + LOOK_AGAIN_S
            while joined is None and self._clock.monotonic() < deadline_s:
                client.tick()
                waiter.wait(LOOK_S)
                wait(0.0)
                while joined is None and (received := client.receive()) is not None:
                    client.acknowledge(received)
                    if isinstance(received.body, Refused):
                        raise UserError(received.body.why, received.body.exit_code)
                    if isinstance(received.body, Welcome):
                        joined = Joined(client, term, received.body)
                if self._clock.monotonic() >= look_s:
                    look_s = self._clock.monotonic() + LOOK_AGAIN_S
                    newest = newest_term(self._start.paths, self._placement.scheduler)
                    if newest is None or newest.run != term.run:  # the run that it is of has ended
                        return None
            return joined
        finally:
            if joined is None:
                client.close(linger_ms=0)

    def _question(self) -> Join:
        line = (self._start.target, *self._start.args)
        return Join(
            self._placement.task, self._placement.host or own_host(), self._address, __version__, line, os.getpid()
        )
