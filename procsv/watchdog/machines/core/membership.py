"""The members of a run on several machines, as the coordinator sees them: who has joined, who is silent, and whose clock is how far off.

Pure.  A member is the watchdog of one of the other machines, and hosts one task.  It is lost once nothing has been heard of it for
`peer_timeout_s`; whether its machine is gone, cut off or frozen cannot be told from here, and makes no difference: what it hosts is
not counted on any more.
"""

from __future__ import annotations

import math

import msgspec

from procsv.base.cluster import SPARE
from procsv.base.identity import TaskId
from procsv.base.outcome import NO_STEP
from procsv.ipc.messaging.member_messages import LaunchLock
from procsv.ipc.shm.heartbeat import Heartbeat

BEAT_S_MAX = 2.0  # from one beat of a member, and of the coordinator, to the next
BEATS_MISSED = 5  # at least, until one counts as lost
STOOD_STILL_S = 2.0  # between two looks, of which there are two a second: it is we who were not there
STRETCH_S = 10.0  # of the time over which messages are compared: some beats long, and too short for clocks to go apart


def beat_interval_s(peer_timeout_s: float) -> float:
    return min(BEAT_S_MAX, peer_timeout_s / BEATS_MISSED)


class OtherClock(msgspec.Struct):
    """The monotonic clock of another machine, by what it says of the time in its messages.

    The least difference that was seen of late is that of the message which travelled fastest.  What was seen before that counts no
    more: clocks go apart, and that of a machine which its hypervisor has stopped for a while has stood still.
    """

    ahead_s: float | None = None  # ours, of theirs
    _began_s: float = 0.0  # the stretch of time in which `_least_s` was seen
    _least_s: float = 0.0
    _before_s: float = 0.0  # the least of the stretch before that

    def see(self, sent_s: float, now_s: float) -> None:
        ahead_s = now_s - sent_s
        stretches = 2 if self.ahead_s is None else int((now_s - self._began_s) // STRETCH_S)
        if stretches:
            self._before_s = self._least_s if stretches == 1 else ahead_s
            self._began_s, self._least_s = now_s, ahead_s
        self._least_s = min(self._least_s, ahead_s)
        self.ahead_s = min(self._before_s, self._least_s)

    def here(self, theirs_s: float) -> float:
        """That moment on our clock; the first message must have been seen."""
        assert self.ahead_s is not None, "a time before any message"
        return theirs_s + self.ahead_s


class Member(msgspec.Struct):
    """One other watchdog, from its joining on."""

    number: int  # of the run, from 1 on: the coordinator is 0
    task: TaskId  # or the name of a launch that has none
    host: str
    address: str  # of the task, for TensorFlow; "" of one that nobody speaks to
    pid: int  # of the watchdog
    heard_s: float
    is_lost: bool = False
    is_leaving: bool = False  # its machine is to end, as it has said
    clock: OtherClock = msgspec.field(default_factory=OtherClock)
    beat: Heartbeat | None = None  # of its task, on our clock
    is_stopped: bool = False
    usage: dict[str, float | int] = msgspec.field(default_factory=dict)
    launch: str = ""  # which of all launches it is
    lock: LaunchLock | None = None  # of its launch's own directory
    is_dead: bool = False  # its launch is, for certain
    is_waiting: bool = False  # for the run that begins again, as one before it was lost; it says nothing until then

    @property
    def stays(self) -> bool:
        return not self.is_lost and not self.is_leaving

    @property
    def takes_orders(self) -> bool:
        return not self.is_lost and not self.is_waiting

    def put_on_our_clock(self, beat: Heartbeat | None) -> Heartbeat | None:
        if beat is None:
            return None
        extended_s = self.clock.here(beat.extended_s) if beat.extended_s else 0.0
        return msgspec.structs.replace(beat, beat_s=self.clock.here(beat.beat_s), extended_s=extended_s)

    @property
    def step(self) -> int:
        return self.beat.step if self.beat is not None else NO_STEP


class Membership:
    """All members, by the tasks that they host."""

    def __init__(self, expected: tuple[TaskId, ...], peer_timeout_s: float) -> None:
        """`expected`: the tasks of the others, and the launches that have none yet, in the order of their numbers."""
        self.expected, self.by_task = expected, dict[TaskId, Member]()
        self._by_number = dict[int, Member]()
        self._look_s = -math.inf  # nobody has been silent for too long before that
        self._looked_s = math.inf  # when it was looked last
        self._received_s = -math.inf  # from then on whatever was sent before has been received
        self._timeout_s = peer_timeout_s
        self._first_spare = 1 + sum(
            task.role != SPARE for task in expected
        )  # the number of the first launch without one

    @property
    def with_tasks(self) -> dict[TaskId, Member]:
        return {task: member for task, member in self.by_task.items() if task.role != SPARE}

    @property
    def spares(self) -> list[Member]:
        """Those that could take over a task, in the order in which they do."""
        return [self.by_task[name] for name in sorted(self.by_task) if name.role == SPARE and self.by_task[name].stays]

    def next_hosts(self) -> dict[TaskId, Member] | None:
        """Who has which task after what was lost: each task's launch if it is there, else a spare one; None if they are too few.

        The spares that are left follow, by their names.
        """
        spares = self.spares
        found = dict[TaskId, Member]()
        for task, member in self.with_tasks.items():
            if not member.stays and not spares:
                return None
            found[task] = member if member.stays else spares.pop(0)
        return found | {member.task: member for member in spares}

    @property
    def missing(self) -> tuple[TaskId, ...]:
        """Tasks, and launches without one, for which nobody has come yet."""
        return tuple(task for task in self.expected if task not in self.by_task and task not in self._moved)

    @property
    def _moved(self) -> frozenset[TaskId]:
        """Launches that had no task, and have come with one: under an earlier coordinator they took it over."""
        numbers = {member.number for task, member in self.by_task.items() if task.role != SPARE}
        return frozenset(TaskId(SPARE, number - self._first_spare) for number in numbers if number >= self._first_spare)

    def why_refused(self, number: int, task: TaskId, ours: tuple[str, str], theirs: tuple[str, str]) -> str:
        """Why who asks to host `task` may not; "" if it may.  `ours`, `theirs`: version of procsv, and what is run."""
        if task not in self.expected:
            return (
                f"{task} is no task of this run, which has {', '.join(map(str, self.expected))} beside the coordinator"
            )
        if number < self._first_spare and task != (own := self.expected[number - 1]):
            return f"{task} is not the task of that launch, which has {own}"
        if (here := self.by_task.get(task)) is not None and here.number != number:
            return f"{task} is hosted by {here.host} (process {here.pid}) already: each task has one launch"
        for what, our, their in zip(("procsv", "the command"), ours, theirs, strict=True):
            if our != their:
                return f"{what} of the coordinator is {our}, and here it is {their}: start all of them with the same"
        return ""

    def is_taken(self, number: int, task: TaskId) -> bool:
        """Whether another launch has the place that this one asks for, or there is none such any more."""
        here = self.by_task.get(task)
        return task not in self.expected or (here is not None and here.number != number)

    def join(self, member: Member) -> None:
        self.by_task[member.task] = self._by_number[member.number] = member
        self._look_s = -math.inf

    def died(self, member: Member) -> None:
        """Its launch is dead, as is known otherwise than by its silence."""
        member.is_dead, self._look_s = True, -math.inf

    def is_taken_over(self, task: TaskId) -> bool:
        """Whether `task` is that of a launch which had none, and has it since another machine was lost."""
        here = self.by_task.get(task)
        return here is not None and task.role != SPARE and here.number >= self._first_spare

    def send_away(self, task: TaskId) -> None:
        """Who hosts it is to ask again."""
        del self._by_number[self.by_task.pop(task).number]

    def find(self, number: int) -> Member | None:
        return self._by_number.get(number)

    def heard(self, member: Member, now_s: float) -> None:
        member.heard_s = now_s

    def newly_lost(self, now_s: float) -> list[Member]:
        """Those that have been silent for too long since the last call, or have died; they stay lost.

        Where we have stood still ourselves, what they have sent meanwhile has a beat's time to be received first; at every other look
        at most, or who always stands still would never lose anybody.
        """
        before_s, self._looked_s = self._looked_s, now_s
        if now_s - before_s > STOOD_STILL_S and before_s >= self._received_s:
            self._received_s = now_s + beat_interval_s(self._timeout_s)
        if now_s < max(self._look_s, self._received_s):
            return []
        there = [m for m in self.by_task.values() if m.takes_orders]
        silent = [m for m in there if m.is_dead or now_s >= m.heard_s + self._timeout_s]
        for member in silent:
            member.is_lost, member.beat = True, None
        due_s = self.next_due_s()  # whoever is heard meanwhile makes it later
        self._look_s = due_s if due_s is not None else -math.inf
        return silent

    def next_due_s(self) -> float | None:
        """When one of them will have been silent for too long."""
        return min((m.heard_s + self._timeout_s for m in self.by_task.values() if m.takes_orders), default=None)
