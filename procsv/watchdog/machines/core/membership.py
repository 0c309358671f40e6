"""Track the members of a run for its coordinator: joins, losses, successors, and clock offsets.

Pure. A member is a launch on another machine. It hosts one task, or none if it is a spare. A member
that sends no message for `--peer-timeout` (10 s by default) counts as lost. Whether its machine is
gone, cut off or frozen cannot be known here and does not matter: the run no longer counts on that
member or its task.

`Membership` has only one launch for each task. A launch that was lost may still be alive on a machine
that was cut off. If it comes back after another launch got its place, it is refused.

A new launch may ask for a place that another launch still has. It gets the place at once if it
holds the lock that the other launch held, because that lock is released only when the launch and
all its processes are dead. Otherwise the new launch waits until the other one counts as lost.
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

BEAT_S_MAX = 2.0  # the longest time between two beats, the messages that show that a member or the coordinator is alive
BEATS_MISSED = 5  # a member is lost after at least this many missed beats
STOOD_STILL_S = 2.0  # a longer gap between two checks (normally 0.5 s) means that this process itself stood still
WINDOW_S = 10.0  # of the clock estimate: long enough for several beats, too short for clocks to drift noticeably


def beat_interval_s(peer_timeout_s: float) -> float:
    return min(BEAT_S_MAX, peer_timeout_s / BEATS_MISSED)


class OtherClock(msgspec.Struct):
    """The monotonic clock of another machine, estimated from the times in its messages.

    Each message gives a difference: our time when it arrives minus their time when they sent it.
    The smallest recent difference comes from the fastest message, so it is the best estimate. Older
    differences are dropped, because clocks drift, and because a machine's clock stands still while
    a hypervisor pauses the machine.
    """

    ahead_s: float | None = None  # how far our clock is ahead of theirs
    _began_s: float = 0.0  # the start of the current window
    _least_s: float = 0.0  # the smallest difference in the current window
    _before_s: float = 0.0  # the smallest difference in the previous window

    def see(self, sent_s: float, now_s: float) -> None:
        ahead_s = now_s - sent_s
        windows = 2 if self.ahead_s is None else int((now_s - self._began_s) // WINDOW_S)
        if windows:
            self._before_s = self._least_s if windows == 1 else ahead_s
            self._began_s, self._least_s = now_s, ahead_s
        self._least_s = min(self._least_s, ahead_s)
        self.ahead_s = min(self._before_s, self._least_s)

    def here(self, theirs_s: float) -> float:
        """Convert their time to our clock. A message must have been seen before."""
        assert self.ahead_s is not None, "a time before any message"
        return theirs_s + self.ahead_s


class Member(msgspec.Struct):
    """A launch on another machine that has joined the run."""

    number: int  # its number in the run, from 1; the coordinator is 0
    task: TaskId  # its task; for a spare, the spare's name
    host: str
    address: str  # of the task, for TensorFlow; "" if no task connects to it
    pid: int  # of the launch, that is, of its watchdog
    heard_s: float  # when its newest message came
    is_lost: bool = False
    is_leaving: bool = False  # it has reported that its machine will end
    clock: OtherClock = msgspec.field(default_factory=OtherClock)
    beat: Heartbeat | None = None  # of its task, converted to our clock
    is_stopped: bool = False  # a signal such as SIGSTOP has stopped its task's process
    usage: dict[str, float | int] = msgspec.field(default_factory=dict)
    launch: str = ""  # identifies the launch
    lock: LaunchLock | None = None  # on the launch's own directory
    is_dead: bool = False  # its launch is certainly dead
    # It gets the place of a lost launch when the run restarts. Until then its silence does not count.
    is_waiting: bool = False

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
        """`expected`: in the order of the members' numbers, the tasks of the members and then the
        names of the spares.
        """
        self.expected, self.by_task = expected, dict[TaskId, Member]()
        self._by_number = dict[int, Member]()
        self._next_check_s = -math.inf  # no member can be lost before this time
        self._last_check_s = math.inf
        self._received_s = -math.inf  # by then we have received the messages that piled up while we stood still
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
        """Say why launch `number` may not host `task`; "" if it may. The launch that asks prints
        this. `ours`, `theirs`: the version of procsv, and the command.
        """
        if task not in self.expected:
            tasks = ", ".join(map(str, self.expected))
            return f"this run has no {task}: its launches, apart from the coordinator, are {tasks}"
        if number < self._first_spare and task != (own := self.expected[number - 1]):
            return f"this launch asks to host {task}, but its task in this run is {own}"
        if (here := self.by_task.get(task)) is not None and here.number != number:
            return f"{task} is hosted by {here.host} (process {here.pid}) already: each task has one launch"
        (our_version, our_command), (version, command) = ours, theirs
        if our_version != version:
            return (
                f"the coordinator runs procsv {our_version}, but this launch runs procsv {version}: use one version "
                "everywhere"
            )
        if our_command != command:
            return (
                f"the coordinator's command is {our_command}, but this launch's command is {command}: give all "
                "launches the same command"
            )
        return ""

    def is_taken(self, number: int, task: TaskId) -> bool:
        """Whether another launch has the place that this one asks for, or the place no longer
        exists.
        """
        here = self.by_task.get(task)
        return task not in self.expected or (here is not None and here.number != number)

    def join(self, member: Member) -> None:
        self.by_task[member.task] = self._by_number[member.number] = member
        self._next_check_s = -math.inf

    def died(self, member: Member) -> None:
        """Mark the member's launch as dead, on evidence other than its silence."""
        member.is_dead, self._next_check_s = True, -math.inf

    def is_taken_over(self, task: TaskId) -> bool:
        """Whether a spare launch has `task` because another machine was lost."""
        here = self.by_task.get(task)
        return here is not None and task.role != SPARE and here.number >= self._first_spare

    def send_away(self, task: TaskId) -> None:
        """Forget the launch that hosts `task`. It must ask to join again."""
        del self._by_number[self.by_task.pop(task).number]

    def find(self, number: int) -> Member | None:
        return self._by_number.get(number)

    def heard(self, member: Member, now_s: float) -> None:
        member.heard_s = now_s

    def newly_lost(self, now_s: float) -> list[Member]:
        """Return the members that died or became silent since the last call; they stay lost.

        If this process itself stood still (on a paused machine, for example), messages have piled
        up. It then waits one beat to receive them before it declares anyone lost. It never does
        this twice in a row. Otherwise a process that stands still again and again would never
        declare a member lost.
        """
        before_s, self._last_check_s = self._last_check_s, now_s
        if now_s - before_s > STOOD_STILL_S and before_s >= self._received_s:
            self._received_s = now_s + beat_interval_s(self._timeout_s)
        if now_s < max(self._next_check_s, self._received_s):
            return []
        there = [m for m in self.by_task.values() if m.takes_orders]
        silent = [m for m in there if m.is_dead or now_s >= m.heard_s + self._timeout_s]
        for member in silent:
            member.is_lost, member.beat = True, None
        due_s = self.next_due_s()  # messages from members can only make it later
        self._next_check_s = due_s if due_s is not None else -math.inf
        return silent

    def next_due_s(self) -> float | None:
        """Return when the next member would count as lost."""
        return min((m.heard_s + self._timeout_s for m in self.by_task.values() if m.takes_orders), default=None)


# -- a launch that asks for a place that another launch already has ---------------------------------------------------
class Claim(Enum):
    """The result for a launch that asks for a place: what it gets, and why."""

    AGAIN = auto()  # it already has the place, and asks again because the answer was lost with its connection
    SUCCEEDS = auto()  # the previous launch is dead, and the task keeps its address: the newcomer takes over
    BEGINS = auto()  # the previous launch is dead, but the task's address would change: all tasks restart
    WAITS = auto()  # the previous launch may be alive, or the run is about to restart or to end
    GONE = auto()  # the run no longer has that place, or another launch has replaced the asking one


def judge_claim(member: Member | None, join: Join) -> Claim:
    """Judge a request to join. `member`: the launch that has the place now; None if there is
    none.
    """
    if member is None or member.task != join.task:
        return Claim.GONE
    if join.launch and member.launch == join.launch:
        return Claim.AGAIN
    if join.served is not None:
        return Claim.GONE  # the launch has served this run before, so it was lost and has been replaced
    if not member.takes_orders:
        return Claim.WAITS  # the run is about to end, or to restart
    if join.lock is None or not join.lock.follows(member.lock):
        return Claim.WAITS
    return Claim.SUCCEEDS if member.address == join.address else Claim.BEGINS


# -- what the loss of a member means for the run, as an event for its core --------------------------------------------
def member_lost(task: TaskId, host: str, silent_s: float, spare: str = "", *, is_killed: bool = False) -> TaskLost:
    """Return the event for a member that is lost, because `host` is silent.

    With `is_killed`, the member is lost because its launch was killed. Another launch on that
    machine has proved it. `spare`: the host that can take over the task; "" if there is none.
    """
    why = f"{host} has been silent for {show_duration(silent_s)}"
    if is_killed:
        why = f"the launch on {host} was killed, and the next launch there has another address"
    follows = f"all tasks restart, with {task} on {spare}" if spare else "the run stops"
    return TaskLost(
        task=task,
        why=why,
        entry=entries.MemberLost(host=host, silent=round(silent_s, 3), spare=spare),
        text=f"{task} is lost ({why}): {follows}",
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
    text = f"the spare on {host} is lost ({why}): it had no task"
    return Noted(task=name, incarnation=1, entry=entry, text=text, is_bad=True)
