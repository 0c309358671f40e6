"""Messages between the watchdogs of a run on several machines: the coordinator's, which decides, and its members'.

Pure data, as in messages.py.  They travel over TCP, between holders of the run's keys alone (curve_transport.py).  What a task and the
coordinator say to each other goes through the task's member as it is.  Times are the sender's monotonic clock; `sent_s` beside them
lets the receiver put them on its own (watchdog/machines/core/membership.py).
"""

from __future__ import annotations

import msgspec

from procsv.base.identity import TaskId
from procsv.base.outcome import Exit, LastWords
from procsv.ipc.messaging.checkpoint_messages import StateOffer
from procsv.ipc.messaging.message import CHECKPOINT, COMMAND_LINE, MEMBER, WATCHDOG, Contract, Message
from procsv.ipc.shm.heartbeat import Heartbeat


class LaunchLock(msgspec.Struct, frozen=True):
    """The lock that a launch holds on a directory of its own, by which others know which of two launches is dead.

    Described by watchdog/machines/joining.py, sent by a member of a run on several machines, judged by its coordinator (watchdog/machines/core/succession.py).

    A lock has one holder at a time, and dies with the last process that has inherited it: of two launches that have had the same one,
    the earlier is dead with all that it has started.
    """

    directory: str  # boot, device and inode: the same for every container on that system
    taken_s: float  # Unix time: a container may have a monotonic clock of its own.  One that was set back shows nothing

    def follows(self, other: LaunchLock | None) -> bool:
        """Whether who has had `other` is dead."""
        return other is not None and self.directory == other.directory and self.taken_s > other.taken_s


# -- joining -------------------------------------------------------------------------------------------------
class TermTold(Message, frozen=True):
    """Says which run is being formed here, or goes on, or why there is none: what a term's file says where launches meet in a directory."""

    contract = Contract(WATCHDOG, COMMAND_LINE)

    run: str
    refused: str = ""
    exit_code: int = 0  # of the members, where it is refused


class AskTerm(Message, frozen=True):
    """Asks, of no run yet, which one is being formed, or goes on.  Asked again until it is told."""

    contract = Contract(COMMAND_LINE, WATCHDOG, is_reliable=False)


class Welcome(Message, frozen=True):
    """Tells a member what run it is part of: the Start of the coordinator's watchdog, with the addresses of all tasks."""

    contract = Contract(WATCHDOG, MEMBER)

    start: str  # JSON (start.py)


class Refused(Message, frozen=True):
    """Tells a member that it is not part of the run, why, and with which code it is to end."""

    contract = Contract(WATCHDOG, MEMBER)

    why: str
    exit_code: int


class BeginAnew(Message, frozen=True):
    """Tells a member that the run before does not go on, and why: it is to end what it has of it, and to ask again without."""

    contract = Contract(WATCHDOG, MEMBER)

    why: str


class MustWait(Message, frozen=True):
    """Tells a launch that has asked to join why it is not answered yet, for people."""

    contract = Contract(WATCHDOG, MEMBER, is_reliable=False)

    why: str


class Running(msgspec.Struct, frozen=True):
    """A task that lives on while there is no coordinator."""

    incarnation: int
    pid: int
    is_ready: bool  # its first step has ended, as the coordinator before was told
    in_step: bool  # it takes each step together with others


class Served(msgspec.Struct, frozen=True):
    """The run whose coordinator a member has lost."""

    start: str  # as in Welcome
    running: Running | None  # its task; None: that has ended, or it has none


class MirrorOffer(msgspec.Struct, frozen=True):
    """What a launch has of the memory of a chief whose machine is lost, and how it is fetched."""

    host: str  # at which it is fetched
    run: str  # that took the snapshot
    step: int
    offer: StateOffer


class Join(Message, frozen=True):
    """Asks to host a task of the run.  Answered once all members have asked; in a run that goes on, once who has had the task is dead.

    With `served`, it asks whether that run goes on; Welcome says so then, and BeginAnew that it does not.
    """

    contract = Contract(MEMBER, WATCHDOG, (Welcome, Refused, BeginAnew))

    task: TaskId
    host: str  # its name, for people
    address: str  # host:port that the task will have; "" for one that nobody speaks to
    version: str  # of procsv
    line: tuple[str, ...]  # the target and its arguments, which must be the coordinator's
    pid: int
    served: Served | None = None
    mirror: MirrorOffer | None = None
    launch: str = ""  # which of all launches it is
    lock: LaunchLock | None = None  # of the launch's own directory; None: it has none that could be relied on


# -- a copy of the chief's memory ----------------------------------------------------------------------------
class KeepMirror(Message, frozen=True):
    """Orders to keep a copy of the newest snapshot that the chief has in memory, from now on.

    `bytes_per_s`: that the coordinator's machine can afford to send, over all copies.
    """

    contract = Contract(WATCHDOG, MEMBER)

    bytes_per_s: float


class SnapshotOffered(Message, frozen=True):
    """Says how the newest snapshot of the chief is fetched; without `offer`, that it cannot be."""

    contract = Contract(CHECKPOINT | WATCHDOG, MEMBER)

    step: int
    offer: StateOffer | None


class AskSnapshot(Message, frozen=True):
    """Asks for the newest snapshot of the chief, once there is one of a higher sequence than `after`.  The coordinator passes it on."""

    contract = Contract(MEMBER, CHECKPOINT | WATCHDOG, (SnapshotOffered,))

    after: int


class MirrorKept(Message, frozen=True):
    """Says of which step, and of which snapshot, the copy is from now on."""

    contract = Contract(MEMBER, WATCHDOG)

    step: int
    sequence: int


# -- coordinator -> member -----------------------------------------------------------------------------------
class StartTask(Message, frozen=True):
    """Orders to start that attempt of the task.  Answered, in time, by TaskStarted."""

    contract = Contract(WATCHDOG, MEMBER)

    task: TaskId
    incarnation: int


class SignalTask(Message, frozen=True):
    """Orders to send the signal to the task's own process."""

    contract = Contract(WATCHDOG, MEMBER)

    task: TaskId
    incarnation: int
    number: int


class FreezeTask(Message, frozen=True):
    """Orders to stop the task's own process by a signal, and to let it go on so many seconds later: a fault of the plan."""

    contract = Contract(WATCHDOG, MEMBER)

    task: TaskId
    incarnation: int
    seconds: float


class KillTask(Message, frozen=True):
    """Orders to kill all that the task has started, and itself."""

    contract = Contract(WATCHDOG, MEMBER)

    task: TaskId
    incarnation: int


class ClearTask(Message, frozen=True):
    """Orders to end what a dead task has left.  TaskCleared follows once nothing is left."""

    contract = Contract(WATCHDOG, MEMBER)

    task: TaskId
    incarnation: int


class TellTask(Message, frozen=True):
    """Carries a message to that attempt of the task, as its own watchdog would send it."""

    contract = Contract(WATCHDOG, MEMBER)

    task: TaskId
    incarnation: int
    body: bytes  # (messages.py)


class TellState(Message, frozen=True):
    """Carries the checkpoint service's answer to what that attempt is to start from."""

    contract = Contract(WATCHDOG, MEMBER)

    task: TaskId
    incarnation: int
    body: bytes  # (messages.py)


class EndMember(Message, frozen=True):
    """Tells that the run is over, and the exit code of all its members."""

    contract = Contract(WATCHDOG, MEMBER)

    exit_code: int


class MoveMember(Message, frozen=True):
    """Tells that the run has ended for the loss of a machine, and begins again at once: this launch is to do so with that task."""

    contract = Contract(WATCHDOG, MEMBER)

    task: TaskId  # or its own name, if it still has none
    spares: tuple[TaskId, ...]  # the launches that have none


class CoordinatorBeat(Message, frozen=True):
    """Says, again and again, that the coordinator is there."""

    contract = Contract(WATCHDOG, MEMBER, is_reliable=False)


# -- member -> coordinator -----------------------------------------------------------------------------------
class TaskStarted(Message, frozen=True):
    """Says that the task's process runs, or why it could not be started."""

    contract = Contract(MEMBER, WATCHDOG)

    task: TaskId
    incarnation: int
    pid: int
    error: str = ""


class TaskEnded(Message, frozen=True):
    """Says that the task's process is dead and reaped, with all that tells of its cause."""

    contract = Contract(MEMBER, WATCHDOG)

    task: TaskId
    incarnation: int
    exit: Exit
    beat: Heartbeat | None
    words: LastWords | None
    stacks: str
    oom: str
    sent_s: float


class TaskCleared(Message, frozen=True):
    """Says that nothing of that attempt is left."""

    contract = Contract(MEMBER, WATCHDOG)

    task: TaskId
    incarnation: int


class TaskSaid(Message, frozen=True):
    """Carries what the task has told its watchdog."""

    contract = Contract(MEMBER, WATCHDOG)

    task: TaskId
    incarnation: int
    body: bytes  # (messages.py)
    sent_s: float


class AskState(Message, frozen=True):
    """Asks for the task what it is to start from, as that has asked its checkpoint service.  TellState follows, in time.

    `durable_only`: of what is on disk; else what is in memory is offered (StateOffer).
    """

    contract = Contract(MEMBER, WATCHDOG)

    task: TaskId
    incarnation: int
    durable_only: bool = False


class MemberNotice(Message, frozen=True):
    """Says that this machine was told to end: by that signal."""

    contract = Contract(MEMBER, WATCHDOG)

    source: str
    now: bool
    is_notice: bool


class MemberBeat(Message, frozen=True):
    """Says, again and again, how the member's task is."""

    contract = Contract(MEMBER, WATCHDOG, is_reliable=False)

    sent_s: float
    task: TaskId
    beat: Heartbeat | None = None
    is_stopped: bool = False  # by a signal
    usage: dict[str, float | int] = msgspec.field(default_factory=dict)  # uptime, rss and cpu, as in `procsv status`
