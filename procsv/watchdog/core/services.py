"""Supervise the services: keep each one alive, and track whether checkpoints are saved.

Used by run.py and service_events.py. Pure. A ServiceSupervisor decides four things about one
service: when it starts, whether it hangs, whether its death counts, and whether it has finished.
`Saves` turns the checkpoint service's reports into journal entries and messages.
"""

from __future__ import annotations

import signal
from collections import OrderedDict
from enum import Enum, auto

import msgspec

from procsv.base.errors import strip_numbers
from procsv.base.identity import CHECKPOINT, TaskId
from procsv.base.journal import entries
from procsv.base.outcome import NO_STEP, Exit
from procsv.base.service_table import ServiceSpec
from procsv.ipc.messaging.checkpoint_messages import Durable, SavedKey, SaveFailed, Unwritable
from procsv.ipc.shm.heartbeat import Heartbeat, Phase
from procsv.watchdog.core.actions import Action, KillTree, Say, WriteEntry
from procsv.watchdog.core.events import AT_DISK, STOPPED, Ended
from procsv.watchdog.core.hangs.escalation import HangEscalation
from procsv.watchdog.core.hangs.service_liveness import ServiceLiveness
from procsv.watchdog.core.hangs.stack_parser import where_it_crashed
from procsv.watchdog.core.restarts.causes import Cause, blame_plan, find_cause
from procsv.watchdog.core.restarts.restart_policy import ServiceDeath, ServiceHistory
from procsv.watchdog.core.settings import Settings

NOT_SPAWNED_S = 1.0  # how long to wait after the system could not start a process


class ServiceState(Enum):
    WAITING = auto()  # for its (next) start
    STARTING = auto()  # its start was ordered; it does not serve yet
    SERVING = auto()
    FINISHING = auto()  # asked to finish
    ENDED = auto()  # (terminal) finished, or no longer needed
    LOST = auto()  # (terminal) will not be restarted; the run fails if the service is critical

    @property
    def word(self) -> str:
        return self.name.lower()


class ServiceSupervisor:
    """One service, through all its processes."""

    def __init__(self, spec: ServiceSpec, settings: Settings) -> None:
        self.spec = spec
        self.history = ServiceHistory(settings.launch)
        self.hanging = HangEscalation(spec.task, ServiceLiveness(settings.launch), settings.launch)
        self.state = ServiceState.WAITING
        self.incarnation = self.pid = 0
        self.restart_s: float | None = None  # monotonic time of the next start
        self.why_lost = ""
        self.why_killed = ""  # why we killed it
        self._work = 0
        self._phase = Phase.IDLE

    @property
    def task(self) -> TaskId:
        return self.spec.task

    @property
    def is_up(self) -> bool:
        """Whether it receives messages."""
        return self.state in (ServiceState.SERVING, ServiceState.FINISHING)

    @property
    def is_over(self) -> bool:
        return self.state in (ServiceState.ENDED, ServiceState.LOST)

    def start(self, now_s: float) -> int:
        """Note that a new process is started, and return its number (its attempt)."""
        self.incarnation += 1
        self.hanging.start_watch(now_s)
        self.state, self.restart_s = ServiceState.STARTING, None
        self._work, self._phase = 0, Phase.IDLE
        return self.incarnation

    def is_due(self, now_s: float) -> bool:
        return self.restart_s is not None and now_s >= self.restart_s

    def beat(self, beat: Heartbeat) -> None:
        if beat.work > self._work:
            self._work = beat.work
            self.history.worked()
        self._phase = beat.phase

    def watch(self, beat: Heartbeat | None, doing: str, now_s: float) -> list[Action]:
        """End its process in steps if the process makes no progress.

        `doing`: what the process is doing: AT_DISK, STOPPED, or "" for anything else.
        """
        if not self.pid:
            return []
        wanted: list[Action] = []
        if self.hanging.is_found(beat, doing == STOPPED, now_s, doing == AT_DISK):
            wanted += self.hanging.start_escalation(self.incarnation, now_s)
        wanted += self.hanging.climb(self.incarnation, now_s)
        if self.hanging.is_to_be_killed(now_s):
            wanted.append(KillTree(self.task, self.incarnation))
        return wanted

    @property
    def is_quiet(self) -> bool:
        """Whether `watch` needs to know what its process is doing."""
        return bool(self.pid) and self.hanging.liveness.is_quiet

    def next_due_s(self) -> float | None:
        """Return when it next has something to do, if nothing happens before; None: no deadline."""
        return self.restart_s if self.restart_s is not None else self.hanging.next_due_s()

    def ready(self, incarnation: int) -> None:
        if incarnation == self.incarnation and self.state is ServiceState.STARTING:
            self.state = ServiceState.SERVING

    def finish(self) -> None:
        if self.is_up:
            self.state = ServiceState.FINISHING

    def drop(self) -> None:
        """Cancel its restart: it is no longer needed."""
        self.restart_s = None
        if self.state is ServiceState.WAITING:
            self.state = ServiceState.ENDED

    def kill(self, why: str) -> None:
        """Note that the watchdog kills it, so that its death leads to no message and no restart."""
        self.state, self.why_killed = ServiceState.ENDED, why

    def cause(self, event: Ended) -> Cause:
        if event.exit.code == 0 and self.state is not ServiceState.FINISHING:
            return Cause("exit-code", "exit code 0 before it was asked to finish")
        hang = "" if self.why_killed else self.hanging.evidence(event.exit, event.stacks)
        where = where_it_crashed(event.stacks)
        cause = find_cause(event.exit, None, False, self.why_killed, hang, event.oom, where)
        return blame_plan(cause, event.exit, event.fault)

    def exited(self, event: Ended, cause: Cause) -> entries.Exited:
        """Return the journal entry of its death."""
        return entries.Exited(
            pid=self.pid,
            code=event.exit.code,
            signal=event.exit.signal_name,
            cause=cause.word,
            evidence=cause.evidence,
            step=event.beat.step if event.beat is not None else NO_STEP,
        )

    def ended(self, exit: Exit, needed: bool, now_s: float) -> None:
        """Handle its death: schedule its next start, or note that it has ended or is lost."""
        was, self.pid = self.state, 0
        self.hanging.end_watch()
        if not needed or (was is ServiceState.FINISHING and exit.code == 0):
            self.state = ServiceState.ENDED
            return
        self._start_again(self._classify_death(was, exit), str(exit), now_s)

    def _classify_death(self, was: ServiceState, exit: Exit) -> ServiceDeath:
        """Classify a death, for the limits on deaths.

        SIGKILL and SIGSTOP come from outside, so such deaths count less. A hang without SIGSTOP is
        the service's own failure.
        """
        if self.hanging.evidence(exit, ""):
            return ServiceDeath.KILLED if self.hanging.was_stopped else ServiceDeath.HUNG
        is_idle = was is ServiceState.SERVING and self._phase is not Phase.SAVE
        if is_idle and exit.signal is not None:
            return ServiceDeath.IDLE
        return ServiceDeath.KILLED if exit.signal == signal.SIGKILL else ServiceDeath.FAILED

    def not_spawned(self, now_s: float) -> None:
        """Try again soon: the system could not start it, which is not a failure of the service."""
        self.state, self.restart_s = ServiceState.WAITING, now_s + NOT_SPAWNED_S

    def _start_again(self, death: ServiceDeath, how: str, now_s: float) -> None:
        delay_s = self.history.died(death, now_s)
        if delay_s is None:
            self.state = ServiceState.LOST
            times = self.history.deaths_max(death)
            within = f"failed {times} times within {self.history.launch.service_period_s:.0f} s"
            what = f"hung {times} times without finishing a job" if death is ServiceDeath.HUNG else within
            self.why_lost = f"the {self.task} service {what} (the last time: {how})"
        else:
            self.state, self.restart_s = ServiceState.WAITING, now_s + delay_s


REMEMBERED_MAX = 1000  # checkpoints remembered as journaled


class Saves(msgspec.Struct):
    """Whether saves succeed, for the journal, the terminal and `status`.

    The checkpoint service retries a failed save until it succeeds. Each new kind of error is
    journaled and printed once. `status` shows the error until a save succeeds.
    """

    try_s: float | None = None  # monotonic time of the next try, while saves fail
    _error: str = ""  # why the newest save failed; "" once a save succeeds
    _trouble: str = ""  # what is wrong with the checkpoint directory
    _said: set[str] = msgspec.field(default_factory=set)  # errors journaled since saving last worked, without numbers
    _known: OrderedDict[SavedKey, None] = msgspec.field(default_factory=OrderedDict)

    @property
    def error(self) -> str:
        """Why the newest state is not on disk; "" if saving works."""
        return self._error or self._trouble

    def is_news(self, news: Durable) -> bool:
        """Remember a checkpoint. Return whether it has not been reported to us before.

        The service reports each checkpoint to every connected process, and once more when it
        answers a request.
        """
        if news.key in self._known:
            return False
        self._known[news.key] = None
        while len(self._known) > REMEMBERED_MAX:
            self._known.popitem(last=False)
        return True

    def durable(self, news: Durable, incarnation: int) -> list[Action]:
        """Return what to journal and print about a new checkpoint.

        A checkpoint that the program wrote itself does not show that procsv's saves succeed again.
        """
        durable = entries.CheckpointDurable(
            step=news.step,
            path=news.path,
            reason=news.reason,
            bytes=news.bytes,
            seconds=round(news.seconds, 3),
            trainer=news.incarnation,
        )
        out: list[Action] = [WriteEntry(durable, CHECKPOINT, incarnation)]
        if self._error and news.sequence:
            out.append(Say(f"checkpoints are saved again: step {news.step} is on disk"))
            self._error, self.try_s = "", None
            self._said.clear()
        return out

    def failed(self, news: SaveFailed, incarnation: int, now_s: float, durable_step: int = NO_STEP) -> list[Action]:
        """Return what to journal and print about a failed save. `durable_step`: the step that is on
        disk now.
        """
        self._error, self.try_s = news.error, now_s + news.retry_in
        kept = f"step {durable_step} is on disk" if durable_step != NO_STEP else "nothing is on disk yet"
        text = (
            f"the checkpoint of step {news.step} could not be saved: {news.error}; {kept}. "
            "Training continues, and procsv keeps trying"
        )
        return self._once(entries.CheckpointFailed(step=news.step, error=news.error), incarnation, text)

    def unwritable(self, news: Unwritable, incarnation: int, step: int) -> list[Action]:
        """Return what to journal and print about a damaged or repaired checkpoint directory.

        `step`: the trainer's.
        """
        was, self._trouble = self._trouble, news.error
        if news.error:
            text = f"checkpoints cannot be saved: {news.error}; training continues, and procsv keeps trying"
            return self._once(entries.CheckpointFailed(step=step, error=news.error), incarnation, text)
        if not self._error:
            self._said.clear()
        return [Say("checkpoints can be saved again where they belong")] if was else []

    def _once(self, failed: entries.CheckpointFailed, incarnation: int, text: str) -> list[Action]:
        if strip_numbers(failed.error) in self._said:
            return []
        self._said.add(strip_numbers(failed.error))
        return [WriteEntry(failed, CHECKPOINT, incarnation), Say(text, is_bad=True)]
