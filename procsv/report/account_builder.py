"""Build the account of a run, or of one of its tasks, from the lines of its journal.

An account says how much of the time was kept, redone, starting, down, stalled or stopped
(time_ledger.py defines these kinds), what each attempt did, and which notable events the report
lists. Used by time_ledger.py and by the watchdog's metrics. Pure.
"""

from __future__ import annotations

import copy
from collections import Counter
from typing import NamedTuple

import msgspec

from procsv.base.cluster import STEPLESS, role_of
from procsv.base.identity import TRAINER
from procsv.base.journal import entries
from procsv.base.journal.line import Line
from procsv.base.outcome import NO_STEP
from procsv.report.account import Account, Incarnation
from procsv.report.timeline import Timeline, TimelineMark

_REMARKABLE = (  # events that the report lists
    entries.RunStarted
    | entries.Exited
    | entries.Recovered
    | entries.Restarting
    | entries.SessionLost
    | entries.SessionRecovered
    | entries.FitBegun
    | entries.CheckpointDurable
    | entries.CheckpointFailed
    | entries.CheckpointRejected
    | entries.CheckpointsDeleted
    | entries.HangDetected
    | entries.HangOver
    | entries.Frozen
    | entries.PreemptNotice
    | entries.ServiceRestarted
    | entries.Promoted
    | entries.Adopted
    | entries.Fault
    | entries.FaultSkipped
    | entries.MemberLost
    | entries.MemberReplaced
    | entries.GaveUp
    | entries.TaskGivenUp
    | entries.Stopped
    | entries.RunCompleted
)


class JournalClock:
    """Correct the times of journal lines for a clock that was set back.

    Times are Unix seconds, read from a clock that somebody may set. If the clock was set back
    between two lines, the time between these lines counts as zero, so that no span is negative. If
    the clock was set forward, that looks like time that passed.
    """

    def __init__(self) -> None:
        self.time_s = self.previous_s = 0.0  # of the newest line, and of the line before it
        self.set_back_s = 0.0  # by how much the clock has been set back so far

    def correct_time(self, time_s: float) -> float:
        """Return the corrected time of the next line."""
        self.previous_s = self.time_s
        if time_s + self.set_back_s < self.time_s:
            self.set_back_s = self.time_s - time_s
        self.time_s = time_s + self.set_back_s
        return self.time_s


class Survivor(NamedTuple):
    """An attempt that was running when its launch was lost, and the timeline at that time."""

    number: int
    last_step: int
    mark: TimelineMark


class AccountBuilder:
    """Builds an account from journal lines, which the caller enters in their order.

    `so_far` returns the account at any time, and `close_account` the final one.
    """

    def __init__(self, keeps_remarks: bool = True, task: str = "") -> None:
        """Begin an empty account.

        `keeps_remarks`: keep the events that the report lists; False keeps the account of a long
        run small. `task`: the task whose account this is; "" for the task whose state is saved.
        """
        self._keeps_remarks, self._task = keeps_remarks, task
        self._serves = role_of(task) in STEPLESS  # all its running time counts as kept
        self._account = Account(0.0, 0.0)
        self._is_empty = True
        self._subject = str(TRAINER)  # the task whose time is counted: `task`, or the task whose state is saved
        self._clock, self._line = JournalClock(), Timeline()
        self._survivor: Survivor | None = None  # the attempt that may have survived its launch
        self._lost_with_sessions = Counter[int]()  # steps lost when a session, not a process, was lost; by attempt
        self._is_open = False  # a launch has begun and has not ended

    def enter(self, line: Line) -> None:
        now_s = self._clock.correct_time(line.time)
        if self._is_empty:
            self._is_empty = False
            since_s = self._asked_s(line.entry, now_s) if isinstance(line.entry, entries.RunStarted) else now_s
            self._account, self._line = Account(since_s, since_s), Timeline(since_s)
        match line.entry:
            case entries.RunStarted() as started:
                self._launched(line, started, now_s)
            case entries.RunCompleted(step=step):
                self._launch_ended("completed", now_s, step)
            case entries.Stopped(step=step):
                self._launch_ended("stopped", now_s, step)
            case entries.GaveUp(why=why):
                self._launch_ended("gave up", now_s, None, why)
            case entries.TaskGivenUp(why=why):
                self._account.without[line.role] = why
            case entries.CheckpointDurable(step=step):
                self._account.durable_step = max(self._account.durable_step, step)
            case _ if line.role == self._subject:
                self._enter_trainer_line(line, now_s)
        if self._keeps_remarks and isinstance(line.entry, _REMARKABLE):
            self._account.remarks.append(msgspec.structs.replace(line, time=now_s))

    def _enter_trainer_line(self, line: Line, now_s: float) -> None:
        number = line.incarnation
        match line.entry:
            case entries.Spawned(pid=pid):
                self._spawned(number, pid, now_s)
            case entries.Promoted(pid=pid):
                self._promoted(number, pid, now_s)
            case entries.Adopted(pid=pid):
                self._adopted(number, pid, now_s)
            case entries.Ready(step=step):
                self._ready(step, now_s)
            case entries.Recovered() as recovered:
                self._recovered(recovered)
            case entries.Restarting(lost_seconds=lost_seconds):
                self._restarting(lost_seconds or 0.0)
            case entries.SessionLost(step=step):
                self._session_lost(number, step, now_s)
            case entries.SessionRecovered() as recovered:
                self._session_recovered(number, recovered, now_s)
            case entries.HangDetected(seconds=seconds, step=step):
                self._line.stall(now_s - seconds, step)
            case entries.HangOver(step=step):
                self._goes_on(step, now_s)
            case entries.Frozen(seconds=seconds, step=step):
                self._frozen(number, seconds, step, now_s)
            case entries.Exited() as exited:
                self._exited(number, exited, now_s)

    # -- launches --------------------------------------------------------------------------------------------
    def _launched(self, line: Line, started: entries.RunStarted, now_s: float) -> None:
        self._account.launches += 1
        tasks = started.tasks or (str(TRAINER),)
        self._subject = self._task or next(iter(tasks), str(TRAINER))
        if self._is_open:
            # The previous watchdog was killed. Its launch counts as ended with the last sign of life: the previous line,
            # or the time that its run.json gives (`seen_until`).
            seen_s = min(max(self._clock.previous_s, (started.seen_until or 0.0) + self._clock.set_back_s), now_s)
            self._note_survivor()
            self._end_trainer(seen_s, None)
            self._line.switch_to("stopped", seen_s)
        host = started.hosts.get(self._subject, "")
        if host and self._account.hosts[-1:] != [host]:
            self._account.hosts.append(host)
        if self._subject not in tasks:
            self._line.switch_to("stopped", now_s)
            self._is_open = False
            return
        self._line.switch_to("starting", self._asked_s(started, now_s))
        self._is_open = True
        self._account.outcome = self._account.gave_up = ""
        self._account.without.clear()  # each launch tries all tasks again
        if line.role == self._subject:  # its watchdog, an observer, did not start it: there is no Spawned line
            self._spawned(line.incarnation, started.pid, now_s)

    def _asked_s(self, started: entries.RunStarted, now_s: float) -> float:
        """Return when the user gave the launch command, so that the watchdog's own start counts."""
        asked_s = started.asked_at + self._clock.set_back_s if started.asked_at else now_s
        return min(max(asked_s, self._line.since_s), now_s)

    def _launch_ended(self, outcome: str, now_s: float, step: int | None, why: str = "") -> None:
        if not self._is_open:
            return
        self._end_trainer(now_s, step)
        self._line.switch_to("stopped", now_s)
        self._account.outcome, self._account.gave_up = outcome, why
        self._is_open = False

    # -- the trainer -----------------------------------------------------------------------------------------
    def _spawned(self, number: int, pid: int, now_s: float) -> None:
        if (last := self._running(number)) is not None:
            last.pid = pid  # a promotion has already entered the attempt
            return
        self._end_trainer(now_s, None)
        self._line.switch_to("starting", now_s)
        self._account.incarnations.append(Incarnation.at_start(number, pid, now_s))
        self._line.incarnation = number
        self._survivor = None
        if self._serves:
            self._ready(0, now_s)

    def _promoted(self, number: int, pid: int, now_s: float) -> None:
        if self._running(number) is None:
            self._spawned(number, pid, now_s)
        self._account.incarnations[-1].is_promoted = True

    def _note_survivor(self) -> None:
        """Remember the running attempt of a lost launch until another attempt begins.

        The attempt may survive several lost launches in a row.
        """
        last = self._last()
        if last is not None and last.end_s is None:
            self._survivor = Survivor(last.number, last.last_step, self._line.mark())

    def _adopted(self, number: int, pid: int, now_s: float) -> None:
        """Resume an attempt that survived its launch.

        The gap counts as whatever the attempt was doing when its launch was lost.
        """
        last, before = self._last(), self._survivor
        if last is None or before is None or not last.number == before.number == number:
            self._spawned(number, pid, now_s)
            return
        last.end_s, last.last_step, last.pid = None, before.last_step, pid
        self._line.go_back_to(before.mark)
        self._survivor = None

    def _ready(self, step: int, now_s: float) -> None:
        last = self._last()
        if last is None or last.end_s is not None or self._line.training is not None:
            return
        last.ready_s = now_s
        self._line.start_training(now_s, step)

    def _recovered(self, recovered: entries.Recovered) -> None:
        last = self._last()
        if last is None:
            return
        last.source, last.origin = recovered.source, recovered.origin
        last.restored_step, last.recovery_seconds = recovered.step, recovered.seconds
        before = self._account.incarnations[:-1]
        reached = last.restored_step
        if recovered.lost_steps:
            # The model is on parameter servers, and other tasks may have trained it beyond the restored step.
            reached = max(reached, 0) + recovered.lost_steps
        if before and reached > before[-1].last_step:
            before[-1].last_step = reached  # the restored state is newer than the step last read
            self._line.extend_last(before[-1].number, reached)
        self._lose(max(last.restored_step, 0), before)

    def _lose(self, step: int, before: list[Incarnation]) -> None:
        """Count the steps after `step` as steps to redo, because training resumes from `step`."""
        self._line.lose(step)
        if before:
            lost_at_exit = max(0, before[-1].last_step - max(step, 0))
            before[-1].lost_steps = self._lost_with_sessions[before[-1].number] + lost_at_exit

    def _restarting(self, lost_seconds: float) -> None:
        """Count `lost_seconds`, the time after the ended attempt's last step, as time to redo."""
        if (last := self._last()) is not None and self._line.made_steps(last.number) and self._line.training is None:
            last.lost_seconds = lost_seconds
            self._line.lose_end(lost_seconds)

    def _session_lost(self, number: int, step: int, now_s: float) -> None:
        """The connection to a server was lost; the trainer lives and makes another session."""
        if (last := self._running(number)) is None:
            return
        last.lost_sessions += 1
        if self._line.training is not None:
            self._line.end_training(now_s, step)
        self._line.switch_to("down", now_s)

    def _session_recovered(self, number: int, recovered: entries.SessionRecovered, now_s: float) -> None:
        if (last := self._running(number)) is None:
            return
        self._lost_with_sessions[number] += recovered.lost_steps
        last.lost_steps += recovered.lost_steps
        self._lose(max(recovered.step, 0), [])
        if self._line.training is None:
            self._line.start_training(now_s, recovered.at)

    def _goes_on(self, step: int, now_s: float) -> None:
        """A hung trainer that was not ended makes progress again."""
        last, line = self._last(), self._line
        if last is None or last.end_s is not None or line.kind != "stalled" or line.training is not None:
            return
        if last.ready_s is None:
            line.switch_to("starting", now_s)
        else:
            line.start_training(now_s, step)

    def _frozen(self, number: int, seconds: float, step: int, now_s: float) -> None:
        """A signal had stopped the trainer for `seconds`. Now the trainer runs again."""
        training, last = self._line.training, self._last()
        if training is None or last is None or last.number != number:
            return
        self._line.stall(now_s - seconds, step)
        self._line.start_training(now_s, training.last_step)

    def _exited(self, number: int, exited: entries.Exited, now_s: float) -> None:
        if (last := self._running(number)) is None:
            return
        last.code, last.signal = exited.code, exited.signal
        last.cause, last.evidence = exited.cause, exited.evidence
        self._end_trainer(now_s, exited.step)
        is_over = self._task and last.cause in ("completed", "stopped")  # this task is done, the others continue
        self._line.switch_to("stopped" if is_over else "down", now_s)

    def _end_trainer(self, now_s: float, step: int | None) -> None:
        last = self._last()
        if last is None or last.end_s is not None:
            return
        if (training := self._line.training) is not None:
            self._line.end_training(now_s, max(step or 0, training.last_step))
        last.end_s, last.last_step = now_s, max(self._line.step_of(last.number), step or NO_STEP)

    # -- the rest --------------------------------------------------------------------------------------------
    def _last(self) -> Incarnation | None:
        return self._account.incarnations[-1] if self._account.incarnations else None

    def _running(self, number: int) -> Incarnation | None:
        """Return the trainer with this attempt number, unless it has ended."""
        last = self._last()
        is_its_own = last is not None and last.end_s is None and last.number == number
        return last if is_its_own else None

    def so_far(self, wall_s: float, step: int) -> Account | None:
        """Return the account of an active run up to now; more lines may follow."""
        return copy.deepcopy(self).close_account(wall_s, step, is_running=True)

    def close_account(self, until_s: float | None, step: int, is_running: bool) -> Account | None:
        account = self._account
        if self._is_empty:
            return None
        account.end_s = self._line.since_s
        if self._is_open:
            account.end_s = (
                self._clock.time_s if until_s is None else max(until_s + self._clock.set_back_s, self._clock.time_s)
            )
            account.outcome = "running" if is_running else "interrupted"
            self._close_open(account.end_s, step)
            last = self._last()
            if last is not None and last.end_s is None and not is_running:
                last.end_s = account.end_s  # it ended with its watchdog, or soon after
        elif account.outcome != "completed":
            # The next launch resumes from the newest checkpoint. Steps after it are lost.
            self._lose(account.durable_step, account.incarnations)
        account.spans, last_step = self._line.spans(), self._line.last_step
        account.last_step = account.durable_step if last_step is None else last_step
        return account

    def _close_open(self, end_s: float, step: int) -> None:
        """Close the timeline of a launch that has no end in the journal.

        `end_s` is now if the run is active. If its watchdog was killed, `end_s` is when the run was
        last seen active.
        """
        if (training := self._line.training) is None:
            self._line.switch_to(self._line.kind, end_s)
            return
        self._line.end_training(end_s, max(step, training.last_step))
        if (last := self._last()) is not None:
            last.last_step = training.last_step
