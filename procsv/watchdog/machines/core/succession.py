"""Succession of launches in one place of a run on several machines: what becomes of one that asks for a place which another has.

Pure.  Used by watchdog/machines/newcomers.py.  Two living launches never have one task: a newcomer gets the place at once where its lock
shows that who has it is dead; where nothing shows it, not before that one counts as lost.
"""

from __future__ import annotations

from enum import Enum, auto

from procsv.ipc.messaging.member_messages import Join
from procsv.watchdog.machines.core.membership import Member


class Claim(Enum):
    """What a launch that asks has a right to."""

    AGAIN = auto()  # it has the place, and asks again, as the answer was lost with its connection
    SUCCEEDS = auto()  # who has the place is dead, and the others find its task where it was: it goes on there
    BEGINS = auto()  # who has the place is dead, but the task would be at another address: all have to begin again
    WAITS = auto()  # who has the place may live
    GONE = auto()  # the run goes on without that place, or ends


def judge_claim(member: Member | None, join: Join) -> Claim:
    """`member`: who has the place that `join` asks for, as far as the run knows of one."""
    if member is None or member.task != join.task:
        return Claim.GONE
    if join.launch and member.launch == join.launch:
        return Claim.AGAIN
    if join.served is not None:
        return Claim.GONE  # it was lost, and has been replaced
    if not member.takes_orders:
        return Claim.WAITS  # the run is about to end, or to begin again
    if join.lock is None or not join.lock.follows(member.lock):
        return Claim.WAITS
    return Claim.SUCCEEDS if member.address == join.address else Claim.BEGINS
