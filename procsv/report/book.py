"""Book of a run, or of one of its tasks: what each line of the journal means for its account.

Used by time_ledger.py, which says what the kinds of time are, and by the watchdog's metrics.  Pure.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

from procsv.base.cluster import STEPLESS, role_of
from procsv.base.identity import TRAINER
from procsv.base.outcome import NO_STEP
from procsv.report.account import Account, Incarnation
from procsv.report.journal_clock import JournalClock
from procsv.report.remarks import REMARKABLE, as_remark
from procsv.report.timeline import Mark, Timeline

Entry = dict[str, Any]


class Outlived(NamedTuple):
    """An attempt that ran when its launch was lost, and the timeline as it stood then."""

    number: int
    last_step: int
    mark: Mark


class Book:
    """Journal lines in, in their order; at any time, the account that they come to."""

    def __init__(self, keeps_remarks: bool = True, task: str = "") -> None:
        """Without remarks the book of a long run stays small.  `task`: whose book it is; "": the task whose state is saved."""
        self._keeps_remarks, self._task = keeps_remarks, task
        self._serves = role_of(task) in STEPLESS  # while it runs, it does what it is for
        self._account = Account(0.0, 0.0)
        self._is_empty = True
        self._chief = str(TRAINER)  # the task whose state is saved: its time is the run's
        self._clock, self._line = JournalClock(), Timeline()
        self._outlived: Outlived | None = None  # what ran when its launch was lost: it may live on
        self._is_open = False  # a launch has begun and not ended

    def enter_event(self, entry: Entry) -> None:
        event, now_s = entry.get("event", ""), self._clock.read(float(entry.get("time", 0.0)))
        if self._is_empty:
            self._is_empty = False
            since_s = self._asked_s(entry, now_s) if event == "run_started" else now_s
            self._account, self._line = Account(since_s, since_s), Timeline(since_s)
        if event == "run_started":
            self._launched(entry, now_s)
        elif event in ("run_completed", "stopped", "gave_up"):
            self._launch_ended(event, entry, now_s)
        elif event == "task_given_up":
            self._account.without[entry.get("role", "")] = str(entry.get("why", ""))
        elif entry.get("role") == self._chief and event in _OF_TRAINER:
            _OF_TRAINER[event](self, entry, now_s)
        elif event == "checkpoint_durable":
            self._account.durable_step = max(self._account.durable_step, entry.get("step", NO_STEP))
        if self._keeps_remarks and event in REMARKABLE:
            self._account.remarks.append(as_remark(entry, now_s))

    # -- launches --------------------------------------------------------------------------------------------
    def _launched(self, entry: Entry, now_s: float) -> None:
        self._account.launches += 1
        tasks = entry.get("tasks", (str(TRAINER),))
        self._chief = self._task or next(iter(tasks), str(TRAINER))
        if self._is_open:  # the watchdog before was killed: the run went on until it was seen last
            seen_s = min(
                max(self._clock.heard_s, float(entry.get("seen_until") or 0.0) + self._clock.set_back_s), now_s
            )
            self._note_outlived()
            self._end_trainer(seen_s, None)
            self._line.switch_to("stopped", seen_s)
        host = entry.get("hosts", {}).get(self._chief, "")
        if host and self._account.hosts[-1:] != [host]:
            self._account.hosts.append(host)
        if self._chief not in tasks:
            self._line.switch_to("stopped", now_s)
            self._is_open = False
            return
        self._line.switch_to("starting", self._asked_s(entry, now_s))
        self._is_open = True
        self._account.outcome = self._account.gave_up = ""
        self._account.without.clear()  # each launch tries them again
        if entry.get("role") == str(TRAINER):  # a Supervisor without a watchdog: nobody has started it
            self._spawned(entry, now_s)

    def _asked_s(self, entry: Entry, now_s: float) -> float:
        """When somebody said `procsv launch`: the watchdog's own start is part of the time, too."""
        asked_s = float(entry.get("asked_at") or now_s) + (self._clock.set_back_s if entry.get("asked_at") else 0.0)
        return min(max(asked_s, self._line.since_s), now_s)

    def _launch_ended(self, event: str, entry: Entry, now_s: float) -> None:
        if not self._is_open:
            return
        self._end_trainer(now_s, entry.get("step"))
        self._line.switch_to("stopped", now_s)
        self._account.outcome = {"run_completed": "completed", "gave_up": "gave up"}.get(event, "stopped")
        self._account.gave_up = str(entry.get("why", "")) if event == "gave_up" else ""
        self._is_open = False

    # -- the trainer -----------------------------------------------------------------------------------------
    def _spawned(self, entry: Entry, now_s: float) -> None:
        if entry.get("role") != self._chief:
            return
        if (last := self._running(entry)) is not None:
            last.pid = entry.get("pid", last.pid)  # promoted: said already
            return
        self._end_trainer(now_s, None)
        self._line.switch_to("starting", now_s)
        self._account.incarnations.append(Incarnation(entry["incarnation"], entry.get("pid", 0), now_s))
        self._line.incarnation = entry["incarnation"]
        self._outlived = None
        if self._serves:
            self._ready(entry, now_s)

    def _promoted(self, entry: Entry, now_s: float) -> None:
        if self._running(entry) is None:
            self._spawned({**entry, "role": self._chief}, now_s)
        self._account.incarnations[-1].is_promoted = True

    def _note_outlived(self) -> None:
        """Its launch is lost.  What ran then is kept in mind until another attempt begins: several launches may be lost in a row."""
        last = self._last()
        if last is not None and last.end_s is None:
            self._outlived = Outlived(last.number, last.last_step, self._line.mark())

    def _adopted(self, entry: Entry, now_s: float) -> None:
        """It has lived on while nobody looked, and did all the time what it did when its launch was lost."""
        last, before = self._last(), self._outlived
        if last is None or before is None or not last.number == before.number == entry.get("incarnation"):
            self._spawned(entry, now_s)
            return
        last.end_s, last.last_step, last.pid = None, before.last_step, entry.get("pid", last.pid)
        self._line.go_back_to(before.mark)
        self._outlived = None

    def _ready(self, entry: Entry, now_s: float) -> None:
        last = self._last()
        if last is None or last.end_s is not None or self._line.training is not None:
            return
        last.ready_s = now_s
        self._line.start_training(now_s, entry.get("step", 0))

    def _recovered(self, entry: Entry, now_s: float) -> None:
        last = self._last()
        if last is None:
            return
        last.source, last.origin = entry.get("source", ""), entry.get("from", "")
        last.restored_step, last.recovery_seconds = entry.get("step", NO_STEP), entry.get("seconds")
        before = self._account.incarnations[:-1]
        # Of a model on servers, others had trained on: their steps are lost with it.
        reached = max(last.restored_step, 0) + lost if (lost := entry.get("lost_steps")) else last.restored_step
        if before and reached > before[-1].last_step:
            before[-1].last_step = reached  # it had come further than was read of it last: its state says so
            self._line.extend_last(before[-1].number, reached)
        self._lose(max(last.restored_step, 0), before)

    def _lose(self, step: int, before: list[Incarnation]) -> None:
        """What was trained beyond the state of `step`, which is gone on from, has to be done again."""
        self._line.lose(step)
        if before:
            with_death = max(0, before[-1].last_step - max(step, 0))
            before[-1].lost_steps = before[-1].lost_with_sessions + with_death

    def _restarting(self, entry: Entry, now_s: float) -> None:
        if (last := self._last()) is not None and self._line.made_steps(last.number) and self._line.training is None:
            last.lost_seconds = float(entry.get("lost_seconds") or 0.0)
            self._line.lose_end(last.lost_seconds)

    def _session_lost(self, entry: Entry, now_s: float) -> None:
        """The connection to a server is gone; the trainer lives, and makes another session."""
        if (last := self._running(entry)) is None:
            return
        last.lost_sessions += 1
        if self._line.training is not None:
            self._line.end_training(now_s, entry.get("step", NO_STEP))
        self._line.switch_to("down", now_s)

    def _session_recovered(self, entry: Entry, now_s: float) -> None:
        if (last := self._running(entry)) is None:
            return
        restored_step, lost = max(entry.get("step", NO_STEP), 0), entry.get("lost_steps", 0)
        last.lost_with_sessions += lost
        last.lost_steps += lost
        self._lose(restored_step, [])
        if self._line.training is None:
            self._line.start_training(now_s, entry.get("at", restored_step))

    def _hangs(self, entry: Entry, now_s: float) -> None:
        self._line.stall(now_s - float(entry.get("seconds") or 0.0), entry.get("step", NO_STEP))

    def _goes_on(self, entry: Entry, now_s: float) -> None:
        """What hung, and was not ended, makes progress again."""
        last, line = self._last(), self._line
        if last is None or last.end_s is not None or line.kind != "stalled" or line.training is not None:
            return
        if last.ready_s is None:
            line.switch_to("starting", now_s)
        else:
            line.start_training(now_s, entry.get("step", 0))

    def _frozen(self, entry: Entry, now_s: float) -> None:
        """It was stopped by a signal for some seconds, up to now."""
        training, last = self._line.training, self._last()
        if training is None or last is None or last.number != entry.get("incarnation"):
            return
        self._line.stall(now_s - float(entry.get("seconds") or 0.0), entry.get("step", NO_STEP))
        self._line.start_training(now_s, training.last_step)

    def _exited(self, entry: Entry, now_s: float) -> None:
        if (last := self._running(entry)) is None:
            return
        last.code, last.signal = entry.get("code"), entry.get("signal")
        last.cause, last.evidence = entry.get("cause", ""), entry.get("evidence", "")
        self._end_trainer(now_s, entry.get("step"))
        is_over = self._task and last.cause in ("completed", "stopped")  # and the others go on
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

    def _running(self, entry: Entry) -> Incarnation | None:
        """The trainer that `entry` is about, if it has not ended."""
        last = self._last()
        is_its_own = last is not None and last.end_s is None and last.number == entry.get("incarnation")
        return last if is_its_own else None

    def so_far(self, wall_s: float, step: int) -> Account | None:
        """The account of a run that goes on, up to now; the book stays open."""
        return copy.deepcopy(self).close(wall_s, step, is_running=True)

    def close(self, until_s: float | None, step: int, is_running: bool) -> Account | None:
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
                last.end_s = account.end_s  # with its watchdog, or soon after
        elif account.outcome != "completed":
            self._lose(account.durable_step, account.incarnations)
        account.spans, last_step = self._line.spans(), self._line.last_step
        account.last_step = account.durable_step if last_step is None else last_step
        return account

    def _close_open(self, end_s: float, step: int) -> None:
        """A run that goes on, or one whose watchdog was killed: up to now, or as far as was heard of it."""
        if (training := self._line.training) is None:
            self._line.switch_to(self._line.kind, end_s)
            return
        self._line.end_training(end_s, max(step, training.last_step))
        if (last := self._last()) is not None:
            last.last_step = training.last_step


_OF_TRAINER = {
    "spawned": Book._spawned,
    "promoted": Book._promoted,
    "adopted": Book._adopted,
    "ready": Book._ready,
    "recovered": Book._recovered,
    "restarting": Book._restarting,
    "session_lost": Book._session_lost,
    "session_recovered": Book._session_recovered,
    "hang_detected": Book._hangs,
    "hang_over": Book._goes_on,
    "frozen": Book._frozen,
    "exited": Book._exited,
}
