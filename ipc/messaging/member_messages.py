"""Define the messages between the watchdogs of a coordinator and its members.

The coordinator decides.  The messages are pure data, bodies for messages.py.  They travel over TCP,
only between holders of the run's keys (curve_transport.py).  Messages between a task and the
coordinator pass through the member that hosts the task; it forwards them unchanged.  Times are on
the sender's monotonic clock; with `sent_s` the receiver converts them to its own
(watchdog/machines/core/membership.py).
"""

from __future__ import annotations

import msgspec

from procsv.base.identity import TaskId
from procsv.base.outcome import Exit, LastWords
from procsv.ipc.messaging.checkpoint_messages import StateOffer
from procsv.ipc.messaging.message import CHECKPOINT, COMMAND_LINE, MEMBER, WATCHDOG, Contract, Message
from procsv.ipc.shm.heartbeat import Heartbeat


class LaunchLock(msgspec.Struct, frozen=True):
    """Describes the lock that a launch holds on a directory of its own.

    A lock has one holder at a time, and ends with the last process that has inherited it.  So if
    two launches have held the same lock, the earlier one is dead with all its processes.

    A member makes this description (watchdog/machines/joining.py) and sends it with Join.  The
    coordinator compares it with the lock of the launch that hosted the task before
    (watchdog/machines/core/membership.py).
    """

    directory: str  # boot, device and inode: the same for every container on that system
    taken_s: float  # Unix time, as a container may have its own monotonic clock; useless if the clock was set back

    def follows(self, other: LaunchLock | None) -> bool:
        """Whether the holder of `other` is dead."""
        return other is not None and self.directory == other.directory and self.taken_s > other.taken_s


# -- joining -------------------------------------------------------------------------------------------------
class TermTold(Message, frozen=True):
    """Says which run begins or continues here, or why there is none.

    Answers launches that ask at the coordinator's address.  If launches meet in the logdir, a
    term's file tells them the same.
    """

    contract = Contract(WATCHDOG, COMMAND_LINE)

    run: str
    refused: str = ""
    exit_code: int = 0  # for the members, if the run is refused


class AskTerm(Message, frozen=True):
    """Asks which run begins or continues at this address.  The launch that asks does not belong to
    a run yet, and repeats the question until it is answered.
    """

    contract = Contract(COMMAND_LINE, WATCHDOG, is_reliable=False)


class Welcome(Message, frozen=True):
    """Tells a member its run: the Start of the coordinator, with the addresses of all tasks."""

    contract = Contract(WATCHDOG, MEMBER)

    start: str  # JSON (start.py)


class Refused(Message, frozen=True):
    """Tells a member that it is not part of the run, why, and which exit code to use.

    `has_run`: False if no run has begun, for example because launches are missing.  Then the
    member's copy of the chief's memory may still be needed.
    """

    contract = Contract(WATCHDOG, MEMBER)

    why: str
    exit_code: int
    has_run: bool = True


class BeginAnew(Message, frozen=True):
    """Tells a member that its previous run has ended, and why; it ends its task and restarts."""

    contract = Contract(WATCHDOG, MEMBER)

    why: str


class MustWait(Message, frozen=True):
    """Tells a launch why its request to join is not answered yet; the text is for people."""

    contract = Contract(WATCHDOG, MEMBER, is_reliable=False)

    why: str


class Running(msgspec.Struct, frozen=True):
    """A task that keeps running while its run has no coordinator."""

    incarnation: int
    pid: int
    is_ready: bool  # its first step has ended, and the previous coordinator received that message
    in_step: bool  # it takes each step together with other tasks


class Served(msgspec.Struct, frozen=True):
    """The run whose coordinator a member has lost."""

    start: str  # as in Welcome
    running: Running | None  # the member's task; None if it has ended, or the member has none


class MirrorOffer(msgspec.Struct, frozen=True):
    """How to fetch a launch's copy of the chief's snapshot, after the chief's machine was lost."""

    host: str  # where to fetch it
    run: str  # the run that took the snapshot
    step: int
    offer: StateOffer


class Join(Message, frozen=True):
    """Asks to host a task of the run.

    The coordinator of a new run answers once all members have asked.  The coordinator of a run that
    continues answers once the task's previous host is dead.  With `served`, the member asks whether
    that run continues: Welcome means yes, BeginAnew no.
    """

    contract = Contract(MEMBER, WATCHDOG, (Welcome, Refused, BeginAnew))

    task: TaskId
    host: str  # name of the machine, for people
    address: str  # the task's future host:port; "" if no other task connects to it
    version: str  # of procsv
    line: tuple[str, ...]  # the target and its arguments, which must equal the coordinator's
    pid: int
    served: Served | None = None
    mirror: MirrorOffer | None = None
    launch: str = ""  # identifies the launch
    lock: LaunchLock | None = None  # on the launch's own directory; None if it has no reliable lock


# -- a copy of the chief's memory ----------------------------------------------------------------------------
class KeepMirror(Message, frozen=True):
    """Orders a member to keep a copy of the chief's newest snapshot in memory, from now on.

    `bytes_per_s`: the average rate at which the coordinator's machine can afford to send copies.
    """

    contract = Contract(WATCHDOG, MEMBER)

    bytes_per_s: float


class SnapshotOffered(Message, frozen=True):
    """Says how to fetch the chief's newest snapshot; if `offer` is None, it cannot be fetched."""

    contract = Contract(CHECKPOINT | WATCHDOG, MEMBER)

    step: int
    offer: StateOffer | None


class AskSnapshot(Message, frozen=True):
    """Asks for the chief's newest snapshot once its sequence exceeds `after`.  The coordinator
    forwards the question.
    """

    contract = Contract(MEMBER, CHECKPOINT | WATCHDOG, (SnapshotOffered,))

    after: int


class MirrorKept(Message, frozen=True):
    """Says which step and which snapshot the member's copy now holds."""

    contract = Contract(MEMBER, WATCHDOG)

    step: int
    sequence: int


# -- coordinator -> member -----------------------------------------------------------------------------------
class StartTask(Message, frozen=True):
    """Orders a member to start this attempt of the task; it then sends TaskStarted."""

    contract = Contract(WATCHDOG, MEMBER)

    task: TaskId
    incarnation: int


class SignalTask(Message, frozen=True):
    """Orders a member to send the signal to the task's own process."""

    contract = Contract(WATCHDOG, MEMBER)

    task: TaskId
    incarnation: int
    number: int


class FreezeTask(Message, frozen=True):
    """Orders a member to stop the task's own process by a signal, for a fault plan.  The member
    continues the process `seconds` later.
    """

    contract = Contract(WATCHDOG, MEMBER)

    task: TaskId
    incarnation: int
    seconds: float


class KillTask(Message, frozen=True):
    """Orders a member to kill the task and all processes that it has started."""

    contract = Contract(WATCHDOG, MEMBER)

    task: TaskId
    incarnation: int


class ClearTask(Message, frozen=True):
    """Orders a member to end all processes that a dead task has left; it then sends TaskCleared."""

    contract = Contract(WATCHDOG, MEMBER)

    task: TaskId
    incarnation: int


class TellTask(Message, frozen=True):
    """Carries a message to this attempt of the task.  The attempt receives it as if it came from
    its own watchdog.
    """

    contract = Contract(WATCHDOG, MEMBER)

    task: TaskId
    incarnation: int
    body: bytes  # (messages.py)


class TellState(Message, frozen=True):
    """Carries the checkpoint service's answer: the state that this attempt starts from."""

    contract = Contract(WATCHDOG, MEMBER)

    task: TaskId
    incarnation: int
    body: bytes  # (messages.py)


class EndMember(Message, frozen=True):
    """Says that the run is over, and gives the exit code of all its members."""

    contract = Contract(WATCHDOG, MEMBER)

    exit_code: int


class MoveMember(Message, frozen=True):
    """Says that the run restarts after losing a machine, and that this launch joins with `task`."""

    contract = Contract(WATCHDOG, MEMBER)

    task: TaskId  # the launch's own name if it still has no task
    spares: tuple[TaskId, ...]  # the launches without a task


class CoordinatorBeat(Message, frozen=True):
    """Shows periodically that the coordinator is alive."""

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
    """Says that the task's process is dead and reaped, with everything that may show the cause."""

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
    """Says that no process of that attempt is left."""

    contract = Contract(MEMBER, WATCHDOG)

    task: TaskId
    incarnation: int


class TaskSaid(Message, frozen=True):
    """Carries a message from the task to its watchdog."""

    contract = Contract(MEMBER, WATCHDOG)

    task: TaskId
    incarnation: int
    body: bytes  # (messages.py)
    sent_s: float


class AskState(Message, frozen=True):
    """Forwards a task's question to the checkpoint service: from which state to start.

    TellState follows.  `durable_only`: asks for a state on disk; otherwise the answer may offer a
    state in memory (StateOffer).
    """

    contract = Contract(MEMBER, WATCHDOG)

    task: TaskId
    incarnation: int
    durable_only: bool = False


class MemberNotice(Message, frozen=True):
    """Says that this machine has received a signal to end, or a preemption notice."""

    contract = Contract(MEMBER, WATCHDOG)

    source: str  # name of the signal
    now: bool  # end at once; a second signal to end asks for this
    is_notice: bool  # True: a preemption notice; False: a signal to end


class MemberBeat(Message, frozen=True):
    """Reports periodically on the member's task."""

    contract = Contract(MEMBER, WATCHDOG, is_reliable=False)

    sent_s: float
    task: TaskId
    beat: Heartbeat | None = None
    is_stopped: bool = False  # by a signal
    usage: dict[str, float | int] = msgspec.field(default_factory=dict)  # uptime, rss and cpu, as in `procsv status`
