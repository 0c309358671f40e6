"""Decide what a member of a run on several machines does without orders.

Pure. member_loop.py reports what happens, and carries out what this module decides. A member obeys
its coordinator. If it hears nothing from the coordinator, it lets its task continue long enough for
a scheduler to bring the coordinator back, and then ends the task:

    SERVING  -- silence --> ADRIFT -- heard again --> SERVING
    ADRIFT -- adopted by the next coordinator --> SERVING
    SERVING, ADRIFT -- told to end, or silence for too long --> LEAVING
    ADRIFT -- a signal to this launch --> LEAVING
    SERVING, ADRIFT -- a signal was reported, but the run does not end in time --> LEAVING
    LEAVING -- the task is gone --> GONE
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto

import msgspec

from procsv.base import exit_codes
from procsv.base.errors import ProcsvBug
from procsv.base.grace import TRAINER_SHARE
from procsv.base.units import show_duration


class MemberState(Enum):
    SERVING = auto()  # the coordinator decides
    ADRIFT = auto()  # the coordinator is silent; the task continues
    LEAVING = auto()  # the task was asked to end, or killed
    GONE = auto()


class MemberEvent(Enum):
    HEARD = auto()  # a message from the coordinator
    ADOPTED = auto()  # the next coordinator took over after the loss of ours
    SILENT = auto()  # no message for the peer timeout
    ABANDONED = auto()  # no message for the coordinator timeout
    TOLD_END = auto()  # the run is over, or continues without this launch or this attempt
    STOP = auto()  # a signal to this launch
    LATE = auto()  # the task has not ended in time
    TASK_GONE = auto()  # no process of the task is left


class Act(Enum):
    SAY_ADRIFT = auto()
    SAY_BACK = auto()
    SAY_ADOPTED = auto()
    TELL_NOTICE = auto()  # report the signal to the coordinator, which ends the run
    ASK_TO_END = auto()  # ask the task to save its state and end
    KILL = auto()
    LEAVE = auto()  # end whatever the dead task has left


_S, _E, _A = MemberState, MemberEvent, Act

TRANSITIONS: Mapping[tuple[MemberState, MemberEvent], tuple[MemberState, tuple[Act, ...]]] = {
    (_S.SERVING, _E.HEARD): (_S.SERVING, ()),
    (_S.SERVING, _E.ADOPTED): (_S.SERVING, ()),
    (_S.SERVING, _E.SILENT): (_S.ADRIFT, (_A.SAY_ADRIFT,)),
    (_S.SERVING, _E.ABANDONED): (_S.LEAVING, (_A.ASK_TO_END,)),
    (_S.SERVING, _E.TOLD_END): (_S.LEAVING, (_A.KILL,)),
    (_S.SERVING, _E.STOP): (_S.SERVING, (_A.TELL_NOTICE,)),
    (_S.SERVING, _E.LATE): (_S.LEAVING, (_A.KILL,)),
    (_S.ADRIFT, _E.HEARD): (_S.SERVING, (_A.SAY_BACK,)),
    (_S.ADRIFT, _E.ADOPTED): (_S.SERVING, (_A.SAY_ADOPTED,)),
    (_S.ADRIFT, _E.SILENT): (_S.ADRIFT, ()),
    (_S.ADRIFT, _E.ABANDONED): (_S.LEAVING, (_A.ASK_TO_END,)),
    (_S.ADRIFT, _E.TOLD_END): (_S.LEAVING, (_A.KILL,)),
    (_S.ADRIFT, _E.STOP): (_S.LEAVING, (_A.ASK_TO_END,)),
    (_S.ADRIFT, _E.LATE): (_S.LEAVING, (_A.KILL,)),
    (_S.LEAVING, _E.HEARD): (_S.LEAVING, ()),
    (_S.LEAVING, _E.ADOPTED): (_S.LEAVING, ()),
    (_S.LEAVING, _E.SILENT): (_S.LEAVING, ()),
    (_S.LEAVING, _E.ABANDONED): (_S.LEAVING, ()),
    (_S.LEAVING, _E.TOLD_END): (_S.LEAVING, (_A.KILL,)),
    (_S.LEAVING, _E.STOP): (_S.LEAVING, ()),
    (_S.LEAVING, _E.LATE): (_S.LEAVING, (_A.KILL,)),
    (_S.LEAVING, _E.TASK_GONE): (_S.GONE, (_A.LEAVE,)),
}


class MemberCore(msgspec.Struct):
    """The decisions of one member. Durations are in seconds, times on its own monotonic clock."""

    grace_s: float
    peer_timeout_s: float
    coordinator_timeout_s: float
    coordinator: str  # its host, for people
    heard_s: float  # when the coordinator's newest message came
    state: MemberState = MemberState.SERVING
    exit_code: int = exit_codes.RESUMABLE
    why: str = ""  # why it leaves; "" until there is a reason
    late_s: float | None = None  # when to kill the task if it has not ended; None: never

    def handle(self, event: MemberEvent, now_s: float) -> tuple[Act, ...]:
        row = TRANSITIONS.get((self.state, event))
        if row is None:
            raise ProcsvBug(f"member: {event.name} in {self.state.name}")
        if event in (MemberEvent.HEARD, MemberEvent.ADOPTED):
            self.heard_s = now_s
        self.state, acts = row
        if Act.ASK_TO_END in acts:
            self.late_s = now_s + self.grace_s * TRAINER_SHARE
            silent = f"the coordinator on {self.coordinator} was silent for {show_duration(now_s - self.heard_s)}"
            self.why = self.why or silent
        if Act.TELL_NOTICE in acts and self.late_s is None:
            self.late_s = now_s + self.grace_s  # by then the coordinator has ended the run, or never will
        if Act.KILL in acts:
            self.late_s = None
        return acts

    def adopted(self, coordinator: str, now_s: float) -> tuple[Act, ...]:
        """Note that another coordinator, on that host, has taken over this member and its task."""
        self.coordinator = coordinator
        return self.handle(MemberEvent.ADOPTED, now_s)

    def told_end(self, exit_code: int, now_s: float) -> tuple[Act, ...]:
        """Return the acts that kill the task. The member then leaves with that exit code."""
        self.exit_code, self.why = exit_code, self.why or "the run is over"
        return self.handle(MemberEvent.TOLD_END, now_s)

    def check(self, now_s: float) -> tuple[Act, ...]:
        """Return the acts that are due."""
        if self.late_s is not None and now_s >= self.late_s:
            return self.handle(MemberEvent.LATE, now_s)
        silent_s = now_s - self.heard_s
        if self.state in (MemberState.SERVING, MemberState.ADRIFT) and silent_s >= self.coordinator_timeout_s:
            return self.handle(MemberEvent.ABANDONED, now_s)
        if self.state is MemberState.SERVING and silent_s >= self.peer_timeout_s:
            return self.handle(MemberEvent.SILENT, now_s)
        return ()
