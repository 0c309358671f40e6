"""Track the members of a run for its coordinator: joins, losses, successors, and clock offsets.

Pure. A member is the watchdog on another machine, and hosts one task. It counts as lost after
`peer_timeout_s` without a message. Whether its machine is gone, cut off or frozen cannot be known
here and does not matter: the run no longer counts on what it hosts.

Two living launches never have the same task. If a newcomer asks for the place of another launch, it
gets the place at once if its lock proves that the other launch is dead. Otherwise it waits until
that launch counts as lost.
"""

from __future__ import annotations

import math
from enum import Enum, auto

import msgspec

from procsv.base.cluster import SPARE
from procsv.base.identity import TaskId
from procsv.base.journal import entries
from procsv.base.units import show_duration
from procsv.ipc.messaging.member_messages import Join, LaunchLock
from procsv.ipc.shm.heartbeat import Heartbeat
from procsv.watchdog.core.events import Noted, TaskLost

BEAT_S_MAX = 2.0  # between two beats of a member, and of the coordinator
BEATS_MISSED = 5  # a member is lost after at least this many missed beats
STOOD_STILL_S = 2.0  # a longer gap between two checks (normally 0.5 s) means that this process itself stood still
STRETCH_S = 10.0  # messages are compared over this time: a few beats, and too short for clocks to drift apart


def beat_interval_s(peer_timeout_s: float) -> float:
    return min(BEAT_S_MAX, peer_timeout_s / BEATS_MISSED)


class OtherClock(msgspec.Struct):
    """The monotonic clock of another machine, estimated from the times in its messages.

    The smallest recent difference comes from the fastest message, so it is the best estimate. Older
    differences are dropped, because clocks drift, and because a machine's clock stands still while
    a hypervisor pauses the machine.
    """

    ahead_s: float | None = None  # how far our clock is ahead of theirs
    _began_s: float = 0.0  # the start of the stretch that `_least_s` covers
    _least_s: float = 0.0
    _before_s: float = 0.0  # the smallest difference of the previous stretch

    def see(self, sent_s: float, now_s: float) -> None:
        ahead_s = now_s - sent_s
        stretches = 2 if self.ahead_s is None else int((now_s - self._began_s) // STRETCH_S)
        if stretches:
            self._before_s = self._least_s if stretches == 1 else ahead_s
            self._began_s, self._least_s = now_s, ahead_s
        self._least_s = min(self._least_s, ahead_s)
        self.ahead_s = min(self._before_s, self._least_s)

    def here(self, theirs_s: float) -> float:
        """Convert their time to our clock. A message must have been seen before."""
        assert self.ahead_s is not None, "a time before any message"
        return theirs_s + self.ahead_s


class Member(msgspec.Struct):
    """The watchdog on another machine, from its joining on."""

    number: int  # its number in the run, from 1; the coordinator is 0
    task: TaskId  # its task, or a spare launch's name
    host: str
    address: str  # of the task, for TensorFlow; "" if no task connects to it
    pid: int  # of the watchdog
    heard_s: float
    is_lost: bool = False
    is_leaving: bool = False  # it has reported that its machine will end
    clock: OtherClock = msgspec.field(default_factory=OtherClock)
    beat: Heartbeat | None = None  # its task's, converted to our clock
    is_stopped: bool = False
    usage: dict[str, float | int] = msgspec.field(default_factory=dict)
    launch: str = ""  # identifies the launch
    lock: LaunchLock | None = None  # on the launch's own directory
    is_dead: bool = False  # its launch is certainly dead
    is_waiting: bool = False  # it replaces a lost launch, and stays silent until the run restarts

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


class Membership:
    """All members, by the task that they host."""

    def __init__(self, expected: tuple[TaskId, ...], peer_timeout_s: float) -> None:
        """`expected`: the tasks of the other launches, then the spare launches, in the order of
        their numbers.
        """
        self.expected, self.by_task = expected, dict[TaskId, Member]()
        self._by_number = dict[int, Member]()
        self._look_s = -math.inf  # no member can be lost before this time
        self._looked_s = math.inf  # the last check
        self._received_s = -math.inf  # by then, all that was sent while we stood still has been received
        self._timeout_s = peer_timeout_s
        self._first_spare = 1 + sum(task.role != SPARE for task in expected)  # the first spare launch's number

    @property
    def with_tasks(self) -> dict[TaskId, Member]:
        return {task: member for task, member in self.by_task.items() if task.role != SPARE}

    @property
    def spares(self) -> list[Member]:
        """The launches that could take over a task, in the order in which they do."""
        return [self.by_task[name] for name in sorted(self.by_task) if name.role == SPARE and self.by_task[name].stays]

    def next_hosts(self) -> dict[TaskId, Member] | None:
        """Assign the tasks after a loss: each to its own launch if it stays, otherwise to a spare.

        The result also has the spares that remain, under their own names. None if there are too
        few launches.
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
        """The tasks and spares for which no launch has come yet."""
        return tuple(task for task in self.expected if task not in self.by_task and task not in self._moved)

    @property
    def _moved(self) -> frozenset[TaskId]:
        """The spares that already have a task: they took it over under an earlier coordinator."""
        numbers = {member.number for task, member in self.by_task.items() if task.role != SPARE}
        return frozenset(TaskId(SPARE, number - self._first_spare) for number in numbers if number >= self._first_spare)

    def why_refused(self, number: int, task: TaskId, ours: tuple[str, str], theirs: tuple[str, str]) -> str:
        """Say why a launch may not host `task`; "" if it may. `ours`, `theirs`: the version of
        procsv, and the command.
        """
        if task not in self.expected:
            return f"{task} is not a task of this run, which has {', '.join(map(str, self.expected))} besides the coordinator"
        if number < self._first_spare and task != (own := self.expected[number - 1]):
            return f"{task} is not the task of that launch, which has {own}"
        if (here := self.by_task.get(task)) is not None and here.number != number:
            return f"{task} is hosted by {here.host} (process {here.pid}) already: each task has one launch"
        for what, our, their in zip(("procsv", "the command"), ours, theirs, strict=True):
            if our != their:
                return f"{what} of the coordinator is {our}, but here it is {their}: start all launches with the same"
        return ""

    def is_taken(self, number: int, task: TaskId) -> bool:
        """Whether another launch has the place that this one asks for, or the place no longer
        exists.
        """
        here = self.by_task.get(task)
        return task not in self.expected or (here is not None and here.number != number)

    def join(self, member: Member) -> None:
        self.by_task[member.task] = self._by_number[member.number] = member
        self._look_s = -math.inf

    def died(self, member: Member) -> None:
        """Mark the member's launch as dead, on evidence other than its silence."""
        member.is_dead, self._look_s = True, -math.inf

    def is_taken_over(self, task: TaskId) -> bool:
        """Whether a spare launch has `task` because another machine was lost."""
        here = self.by_task.get(task)
        return here is not None and task.role != SPARE and here.number >= self._first_spare

    def send_away(self, task: TaskId) -> None:
        """Forget the host of `task`, which must ask again."""
        del self._by_number[self.by_task.pop(task).number]

    def find(self, number: int) -> Member | None:
        return self._by_number.get(number)

    def heard(self, member: Member, now_s: float) -> None:
        member.heard_s = now_s

    def newly_lost(self, now_s: float) -> list[Member]:
        """Return the members that died or became silent since the last call; they stay lost.

        If this process itself stood still (a paused machine, for example), messages have piled up.
        It then takes the time of one beat to receive them before it counts anyone as lost. It does
        so at most at every other check. Otherwise a process that stands still again and again would
        never lose a member.
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
        due_s = self.next_due_s()  # a message from a member makes it later
        self._look_s = due_s if due_s is not None else -math.inf
        return silent

    def next_due_s(self) -> float | None:
        """Return when the next member would count as lost."""
        return min((m.heard_s + self._timeout_s for m in self.by_task.values() if m.takes_orders), default=None)


# -- a launch that asks for a place that another launch already has ---------------------------------------------------
class Claim(Enum):
    """What an asking launch is entitled to."""

    AGAIN = auto()  # it already has the place, and asks again because the answer was lost with its connection
    SUCCEEDS = auto()  # the previous launch is dead, and the task keeps its address: the newcomer takes over
    BEGINS = auto()  # the previous launch is dead, but the task's address would change: all tasks restart
    WAITS = auto()  # the previous launch may be alive
    GONE = auto()  # the run continues without that place, or ends


def judge_claim(member: Member | None, join: Join) -> Claim:
    """Judge a request to join. `member`: the launch that has the place now; None if unknown."""
    if member is None or member.task != join.task:
        return Claim.GONE
    if join.launch and member.launch == join.launch:
        return Claim.AGAIN
    if join.served is not None:
        return Claim.GONE  # the asking launch was lost, and has been replaced
    if not member.takes_orders:
        return Claim.WAITS  # the run is about to end, or to restart
    if join.lock is None or not join.lock.follows(member.lock):
        return Claim.WAITS
    return Claim.SUCCEEDS if member.address == join.address else Claim.BEGINS


# -- what the loss of a member means for the run, as an event for its core --------------------------------------------
def member_lost(task: TaskId, host: str, silent_s: float, spare: str = "", *, is_killed: bool = False) -> TaskLost:
    """Return the event for a member that is lost.

    Its machine is silent, or its launch was killed (`is_killed`), as another launch on that machine
    has proved. `spare`: the host that can take over the task; "" if there is none.
    """
    why = f"{host} has been silent for {show_duration(silent_s)}"
    if is_killed:
        why = f"the launch on {host} was killed, and the next one there has another address"
    follows = f"all tasks restart, with {spare} in its place" if spare else "the run stops"
    return TaskLost(
        task=task,
        why=why,
        entry=entries.MemberLost(host=host, silent=round(silent_s, 3), spare=spare),
        text=f"{why}, where {task} runs: {follows}",
        host=host,
        spare=spare,
    )


def member_replaced(task: TaskId, host: str, before: int, pid: int) -> TaskLost:
    """Return the event for a member that another launch replaces.

    The task's launch (process `before`) was killed. Another launch on its machine (process `pid`)
    takes over.
    """
    return TaskLost(
        task=task,
        why=f"its launch on {host} (process {before}) was killed",
        entry=entries.MemberReplaced(host=host, before=before, pid=pid),
        text=f"the launch of {task} on {host} (process {before}) was killed; process {pid} replaces it",
    )


def spare_lost(name: TaskId, host: str, silent_s: float) -> Noted:
    """Return the event for a spare that is silent, or announced its end (`silent_s` 0.0)."""
    why = f"{host} has been silent for {show_duration(silent_s)}" if silent_s else f"{host} announced its end"
    entry = entries.SpareLost(host=host, silent=round(silent_s, 3))
    text = f"{why}; it is a spare without a task, and will not take one over"
    return Noted(task=name, incarnation=1, entry=entry, text=text, is_bad=True)
