"""Journal lines of runs on several machines: who was lost, who has lived on, and what went from one to another.

Listed in journal_lines.py.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from procsv.report.published.line import Line, Pid, Seconds, Step


class Adopted(Line, frozen=True, kw_only=True, tag="adopted"):
    """A task of another machine has outlived the coordinator that has started it, and goes on with this one."""

    pid: Pid
    host: str


class MemberLost(Line, frozen=True, kw_only=True, tag="member_lost"):
    """Nothing was heard of the launch that hosts this task, on another machine, for `silent` seconds: the task counts as dead."""

    host: str
    silent: Seconds
    spare: str = ""  # the host that takes the task over, when all begin again; "": the run stops


class MemberReplaced(Line, frozen=True, kw_only=True, tag="member_replaced"):
    """The launch that hosts this task, on another machine, was killed, and another one on that machine is in its place."""

    host: str
    before: Pid  # of the launch that was killed
    pid: Pid  # of the one in its place


class SpareLost(Line, frozen=True, kw_only=True, tag="spare_lost"):
    """Nothing was heard of a launch that has no task, on another machine, for `silent` seconds: it takes over none."""

    host: str
    silent: Seconds


class StateFetched(Line, frozen=True, kw_only=True, tag="state_fetched"):
    """A task of another machine has what the chief had in memory, which it starts from."""

    step: Step
    bytes: Annotated[int, Meta(ge=0)]
    seconds: Seconds


class StateNotFetched(Line, frozen=True, kw_only=True, tag="state_not_fetched"):
    """What the chief has in memory could not be fetched: a task of another machine starts from the checkpoint of it."""

    step: Step
    why: str


class MirrorKept(Line, frozen=True, kw_only=True, tag="mirror_kept"):
    """The launch of this task, on another machine, keeps a copy of what the chief has in memory from now on: this is the first."""

    step: Step
    bytes: Annotated[int, Meta(ge=0)]
    seconds: Seconds


class MirrorNotKept(Line, frozen=True, kw_only=True, tag="mirror_not_kept"):
    """The copy of the chief's memory could not be brought up to date; it is tried again."""

    why: str


class MirrorFetched(Line, frozen=True, kw_only=True, tag="mirror_fetched"):
    """The coordinator has what another machine kept of the memory of the chief before, which was lost."""

    step: Step
    host: str  # the other machine
    bytes: Annotated[int, Meta(ge=0)]
    seconds: Seconds


class MirrorNotFetched(Line, frozen=True, kw_only=True, tag="mirror_not_fetched"):
    """What another machine kept of the memory of the chief before could not be had: something older counts."""

    step: Step
    host: str
    why: str
