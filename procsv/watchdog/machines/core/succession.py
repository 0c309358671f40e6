"""Decide about a launch that asks for a place in the run that another launch already has.

Pure. Used by watchdog/machines/newcomers.py. Two living launches never have the same task. A
newcomer gets the place at once if its lock proves that the previous launch is dead, and otherwise
only when that launch counts as lost.
"""

from __future__ import annotations

from enum import Enum, auto

from procsv.ipc.messaging.member_messages import Join
from procsv.watchdog.machines.core.membership import Member


class Claim(Enum):
    """What an asking launch is entitled to."""

    AGAIN = auto()  # it already has the place, and asks again because the answer was lost with its connection
    SUCCEEDS = auto()  # the previous launch is dead, and the task keeps its address: the newcomer takes over
    BEGINS = auto()  # the previous launch is dead, but the task's address would change: all tasks begin again
    WAITS = auto()  # the previous launch may be alive
    GONE = auto()  # the run continues without that place, or ends


def judge_claim(member: Member | None, join: Join) -> Claim:
    """Judge a request to join. `member`: the launch that has the place now, if the run knows one."""
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
