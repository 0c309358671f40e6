"""Handle launches that ask to join a run that is already active.

A scheduler has started such a launch in place of one that was killed, on the same machine or on
another. Used by remote_tasks.py. core/membership.py decides whether the previous launch is dead. If
this process is killed at any point, the asking launch finds the next coordinator's term.
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
from procsv.watchdog.machines.core.membership import Claim, Member, Membership, judge_claim

GONE_ON = "the run counted this machine as lost, and another one has its task"
PATIENCE = 2  # peer timeouts that a launch waits for the loss of the one that has its place; then both must be alive


class WaitingLaunch(msgspec.Struct, frozen=True):
    received: Received
    join: member_messages.Join
    since_s: float  # when the launch asked for the first time


class Newcomers:
    def __init__(self, server: TcpServer, members: Membership, start: Start, clock: Clock) -> None:
        self._server, self._members, self._start, self._clock = server, members, start, clock
        self._waiting: dict[int, WaitingLaunch] = {}  # by member number
        self._timeout_s = start.settings.peer_timeout_s

    def tell_term(self, received: Received) -> None:
        """Tell a launch the id of this run.

        A launch asks for it if it finds the coordinator by address, not by a file in the logdir.
        """
        self._server.send_reliable(received.who, member_messages.TermTold(self._start.run))

    def asks(self, received: Received, join: member_messages.Join) -> Claim:
        """Return the launch's claim.

        For AGAIN and SUCCEEDS, the caller must welcome the launch. For GONE, the launch is refused
        here. For WAITS and BEGINS, it goes on the waiting list; WAITS is answered with the reason.
        """
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
            if before is not None and before.join.launch == join.launch:  # the same launch, on another connection
                since_s = before.since_s
            self._waiting[number] = WaitingLaunch(received, join, since_s)
            if claim is Claim.BEGINS:
                self._members.died(member)
            elif claim is Claim.WAITS:
                self._server.send(received.who, member_messages.MustWait(self._why_waiting(member)))
        return claim

    def _why_waiting(self, member: Member) -> str:
        if not member.takes_orders:
            return f"the run has lost {member.host}, which had {member.task}: it is about to restart or to end"
        silent_s = self._clock.monotonic() - member.heard_s
        return (
            f"{member.host} has {member.task} (process {member.pid}), which was heard {show_duration(silent_s)} ago: if it is silent for "
            f"{show_duration(self._timeout_s)}, it counts as lost"
        )

    def welcome(self, received: Received) -> None:
        self._server.send_reliable(received.who, member_messages.Welcome(self._start.text()), re=received.seq)

    def _refuse(self, received: Received, why: str, exit_code: int) -> None:
        if received.who in self._server.peers:  # otherwise it will ask again on another connection
            self._server.send_reliable(received.who, member_messages.Refused(why, exit_code), re=received.seq)

    def take_place(self, member: Member) -> Member | None:
        """Give the place of `member`, which is lost, to the launch that waits for that place.

        Return that launch as a member; None if no launch waits. It gets the task when the run
        restarts.
        """
        if (waiting := self._waiting.get(member.number)) is None:
            return None
        join = waiting.join
        newcomer = as_member(member.number, join, self._clock.monotonic())
        newcomer.is_waiting = True
        self._members.join(newcomer)
        return newcomer

    def refuse_doubles(self) -> None:
        """Refuse launches that have waited long enough: the launch with their place is alive."""
        until_s = self._clock.monotonic() - PATIENCE * self._timeout_s
        for number, waiting in list(self._waiting.items()):
            member = self._members.find(number)
            if member is not None and member.takes_orders and waiting.since_s <= until_s:
                why = (
                    f"{member.task} is hosted by {member.host} (process {member.pid}) already: each task has one launch"
                )
                # RESUMABLE, because the scheduler may have lost sight of the first launch.
                self._refuse(waiting.received, why, exit_codes.RESUMABLE)
                del self._waiting[number]

    def refuse_all(self, exit_code: int) -> list[int]:
        """Tell the waiting launches that the run is over; return their numbers.

        Not called if the run restarts: then they find its new term.
        """
        for waiting in self._waiting.values():
            if (peer := self._server.peers.get(waiting.received.who)) is not None:
                peer.outbox.drop_messages()  # these were for the previous launch
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
