"""Launches that ask to join a run that goes on: one that has been started again after a kill, on its machine or on another.

Used by remote_tasks.py.  Whether the launch before is dead is decided in core/succession.py.  Killed anywhere in here: who has asked
finds the term of the next coordinator.
"""

from __future__ import annotations

import shlex

import msgspec

from procsv import __version__
from procsv.base import exit_codes
from procsv.base.clock import Clock
from procsv.base.units import show_duration
from procsv.ipc.messaging import member_messages
from procsv.ipc.messaging.curve_transport import TcpServer
from procsv.ipc.messaging.endpoint import Received
from procsv.ipc.messaging.start import Start
from procsv.watchdog.machines.core.membership import Member, Membership
from procsv.watchdog.machines.core.succession import Claim, judge_claim

GONE_ON = "this machine was lost, another one has its task, and the run goes on without it"
PATIENCE = 2  # peer timeouts, for the launch that has the place to fall silent; then both of them live


class WaitingLaunch(msgspec.Struct, frozen=True):
    received: Received
    join: member_messages.Join
    since_s: float


class Newcomers:
    def __init__(self, server: TcpServer, members: Membership, start: Start, clock: Clock) -> None:
        self._server, self._members, self._start, self._clock = server, members, start, clock
        self._waiting: dict[int, WaitingLaunch] = {}  # by the numbers of their places
        self._timeout_s = start.settings.peer_timeout_s

    def tell_term(self, received: Received) -> None:
        """Where no file says which run there is, it is asked for."""
        self._server.send_reliable(received.who, member_messages.TermTold(self._start.run))

    def asks(self, received: Received, join: member_messages.Join) -> Claim:
        """What the launch has a right to; AGAIN and SUCCEEDS: it is to be welcome.  Any other is told in time what it has."""
        number = received.task.index
        member = self._members.find(number)
        claim = judge_claim(member, join)
        if member is None or claim is Claim.GONE:
            self._refuse(received, GONE_ON, exit_codes.RESUMABLE)
            return Claim.GONE
        line = shlex.join((self._start.target, *self._start.args))
        why = self._members.why_refused(number, join.task, (__version__, line), (join.version, shlex.join(join.line)))
        if why:
            self._refuse(received, why, exit_codes.USAGE)
            return Claim.GONE
        if not member.takes_orders:
            claim = Claim.WAITS
        if claim not in (Claim.AGAIN, Claim.SUCCEEDS):
            before, since_s = self._waiting.get(number), self._clock.monotonic()
            if before is not None and before.join.launch == join.launch:  # on another connection
                since_s = before.since_s
            self._waiting[number] = WaitingLaunch(received, join, since_s)
            if claim is Claim.BEGINS:
                self._members.died(member)
            elif claim is Claim.WAITS:
                self._server.send(received.who, member_messages.MustWait(self._why_waiting(member)))
        return claim

    def _why_waiting(self, member: Member) -> str:
        if not member.takes_orders:
            return f"the run loses {member.host}, where {member.task} was: it is about to begin again, or to end"
        silent_s = self._clock.monotonic() - member.heard_s
        return (
            f"{member.host} has {member.task} (process {member.pid}), which was heard {show_duration(silent_s)} ago: if it is silent for "
            f"{show_duration(self._timeout_s)}, it counts as lost"
        )

    def welcome(self, received: Received) -> None:
        self._server.send_reliable(received.who, member_messages.Welcome(self._start.text()), re=received.seq)

    def _refuse(self, received: Received, why: str, exit_code: int) -> None:
        if received.who in self._server.peers:  # else it asks again, on another connection
            self._server.send_reliable(received.who, member_messages.Refused(why, exit_code), re=received.seq)

    def take_place(self, member: Member) -> Member | None:
        """Who has come in the place of `member`, which is lost: it has that in the run that begins again."""
        if (waiting := self._waiting.get(member.number)) is None:
            return None
        join = waiting.join
        newcomer = as_member(member.number, join, self._clock.monotonic())
        newcomer.is_waiting = True
        self._members.join(newcomer)
        return newcomer

    def refuse_doubles(self) -> None:
        """Tells those that have waited for long enough that the launch which has their place lives."""
        until_s = self._clock.monotonic() - PATIENCE * self._timeout_s
        for number, waiting in list(self._waiting.items()):
            member = self._members.find(number)
            if member is not None and member.takes_orders and waiting.since_s <= until_s:
                why = (
                    f"{member.task} is hosted by {member.host} (process {member.pid}) already: each task has one launch"
                )
                self._refuse(
                    waiting.received, why, exit_codes.RESUMABLE
                )  # its scheduler may have lost sight of the first
                del self._waiting[number]

    def refuse_all(self, exit_code: int) -> list[int]:
        """Tells those that wait that the run is over; their numbers.  Of one that begins again they are told nothing, and find its term."""
        for waiting in self._waiting.values():
            if (peer := self._server.peers.get(waiting.received.who)) is not None:
                peer.outbox.drop_messages()  # what was meant for the launch before
            self._refuse(waiting.received, "the run is over", exit_code)
        return list(self._waiting)


def as_member(number: int, join: member_messages.Join, now_s: float) -> Member:
    return Member(
        number=number,
        task=join.task,
        host=join.host,
        address=join.address,
        pid=join.pid,
        heard_s=now_s,
        launch=join.launch,
        lock=join.lock,
    )
