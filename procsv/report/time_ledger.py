"""The time ledger: every second of a run is training kept, training redone, down, starting, stalled or stopped.

Used by `procsv report`, by drills and by the page.  Pure: journal entries in, an account out.  Knows no file and no clock.

    kept      training whose steps are in the result (or in the state that the next start goes on from)
    redone    training that was lost with a crash, and had to be done again
    starting  from `procsv launch`, or the start of a trainer, to the end of its first step: imports, restore, compile
    down      no trainer: from a death to the next start, and from the last trainer's end to the end of the run; or no
              session: from the loss of the connection to a server to the first step of the next session
    stalled   a trainer that hung, from its last progress to its death; or one that a signal had stopped (SIGSTOP)
    stopped   no run was active: between two launches.  A task that has outlived its launch, and is adopted by the next, was at it all the time

Of several tasks the account of the run is that of the task whose state is saved.  Each has one of its own, too, which covers the same
time: what a server or an evaluator runs counts as kept, and what follows the end of a task that has done its work as stopped.

The journal has the time of day alone.  A clock that is set back while the run goes on is taken as no time at all, so
that no span is negative; one that is set forward cannot be told from time.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, NamedTuple

from procsv.base.cluster import STEPLESS, role_of
from procsv.base.identity import TRAINER
from procsv.base.outcome import NO_STEP
from procsv.report.account import Account, Incarnation, Kind, Remark, Span, Training

Entry = dict[str, Any]


def take_account(
    entries: Iterable[Entry], until_s: float | None = None, step: int = NO_STEP, is_running: bool = False
) -> Account | None:
    """The account of a journal; None of an empty one.

    Of a run that has not ended by itself, `until_s` is the Unix time up to which somebody was seen to run it (now, if
    `is_running`), and `step` the global step as read then.
    """
    book = Book()
    for entry in entries:
        book.enter_event(entry)
    return book.close(until_s, step, is_running)


def take_accounts(
    entries: Iterable[Entry], until_s: float | None = None, step: int = NO_STEP, is_running: bool = False
) -> tuple[Account | None, dict[str, Account]]:
    """The account of a journal, as `take_account`; and one of each task, by its name, where a launch had several."""
    book, books = Book(), dict[str, Book]()
    for entry in entries:
        book.enter_event(entry)
        for task in entry.get("tasks", ()) if entry.get("event") == "run_started" else ():
            books.setdefault(task, Book(keeps_remarks=False, task=task))
        for each in books.values():
            each.enter_event(entry)
    account, accounts = book.close(until_s, step, is_running), dict[str, Account]()
    for task, each in books.items():
        one = each.close(until_s, NO_STEP, is_running)
        if one is not None and account is not None:
            if one.end_s < account.end_s:  # a later launch was without it
                one.spans.append(Span("stopped", one.end_s, account.end_s, 0))
                one.end_s = account.end_s
            accounts[task] = one
    if account is not None and accounts:
        # The run's account is that of one of them, and each has counted its own.
        account.others_failures = sum(one.failures for one in accounts.values()) - account.failures
    return account, accounts


class Book:
    def __init__(self, keeps_remarks: bool = True, task: str = "") -> None:
        """Without remarks the book of a long run stays small.  `task`: whose book it is; "": the task whose state is saved."""
        self._keeps_remarks, self._task = keeps_remarks, task
        self._serves = role_of(task) in STEPLESS  # while it runs, it does what it is for
        self._account = Account(0.0, 0.0)
        self._is_empty = True
        self._chief = str(TRAINER)  # the task whose state is saved: its time is the run's
        self._trainings: list[Training] = []
        self._other: list[Span] = []
        self._kind: Kind = "stopped"
        self._since_s = 0.0
        self._time_s = self._heard_s = 0.0  # of the last entry, corrected, and of the one before it
        self._set_back_s = 0.0  # by how much the clock was set back until now
        self._training: Training | None = None  # of the trainer that runs
        self._outlived: Outlived | None = None  # what ran when its launch was lost: it may live on
        self._is_open = False  # a launch has begun and not ended

    def enter_event(self, entry: Entry) -> None:
        self._heard_s = self._time_s
        event, now_s = entry.get("event", ""), self._correct(float(entry.get("time", 0.0)))
        if self._is_empty:
            self._is_empty = False
            since_s = self._asked_s(entry, now_s) if event == "run_started" else now_s
            self._account = Account(since_s, since_s)
            self._since_s = since_s
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
            self._remark(entry, now_s)

    def _correct(self, time_s: float) -> float:
        if time_s + self._set_back_s < self._time_s:
            self._set_back_s = self._time_s - time_s
        self._time_s = time_s + self._set_back_s
        return self._time_s

    # -- launches --------------------------------------------------------------------------------------------
    def _launched(self, entry: Entry, now_s: float) -> None:
        self._account.launches += 1
        tasks = entry.get("tasks", (str(TRAINER),))
        self._chief = self._task or next(iter(tasks), str(TRAINER))
        if self._is_open:  # the watchdog before was killed: the run went on until it was seen last
            seen_s = min(max(self._heard_s, float(entry.get("seen_until") or 0.0) + self._set_back_s), now_s)
            self._note_outlived()
            self._end_trainer(seen_s, None)
            self._switch_to("stopped", seen_s)
        if self._chief not in tasks:
            self._switch_to("stopped", now_s)
            self._is_open = False
            return
        self._switch_to("starting", self._asked_s(entry, now_s))
        self._is_open = True
        self._account.outcome = self._account.gave_up = ""
        self._account.without.clear()  # each launch tries them again
        if entry.get("role") == str(TRAINER):  # a Supervisor without a watchdog: nobody has started it
            self._spawned(entry, now_s)

    def _asked_s(self, entry: Entry, now_s: float) -> float:
        """When somebody said `procsv launch`: the watchdog's own start is part of the time, too."""
        asked_s = float(entry.get("asked_at") or now_s) + (self._set_back_s if entry.get("asked_at") else 0.0)
        return min(max(asked_s, self._since_s), now_s)

    def _launch_ended(self, event: str, entry: Entry, now_s: float) -> None:
        if not self._is_open:
            return
        self._end_trainer(now_s, entry.get("step"))
        self._switch_to("stopped", now_s)
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
        self._switch_to("starting", now_s)
        self._account.incarnations.append(Incarnation(entry["incarnation"], entry.get("pid", 0), now_s))
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
            made = (len(self._trainings), len(self._other))
            self._outlived = Outlived(last.number, last.last_step, self._training, self._kind, self._since_s, *made)

    def _adopted(self, entry: Entry, now_s: float) -> None:
        """It has lived on while nobody looked, and did all the time what it did when its launch was lost."""
        last, before = self._last(), self._outlived
        if last is None or before is None or not last.number == before.number == entry.get("incarnation"):
            self._spawned(entry, now_s)
            return
        del self._trainings[before.trainings :], self._other[before.others :]
        last.end_s, last.last_step, last.pid = None, before.last_step, entry.get("pid", last.pid)
        self._training, self._kind, self._since_s = before.training, before.kind, before.since_s
        self._outlived = None

    def _ready(self, entry: Entry, now_s: float) -> None:
        last = self._last()
        if last is None or last.end_s is not None or self._training is not None:
            return
        last.ready_s = now_s
        self._switch_to("kept", now_s)  # the kind is known when it is over
        self._training = Training(last.number, now_s, entry.get("step", 0))

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
            self._was_further(before[-1], reached)
        self._lose(max(last.restored_step, 0), before)

    def _was_further(self, one: Incarnation, step: int) -> None:
        """It had come further than was read of it last: its state says so."""
        one.last_step = step
        if self._made_steps(one):
            self._trainings[-1].last_step = self._trainings[-1].kept_step = step

    def _lose(self, step: int, before: list[Incarnation]) -> None:
        """What was trained beyond the state of `step`, which is gone on from, has to be done again."""
        for training in self._trainings:
            training.kept_step = min(training.kept_step, step)
        if before:
            with_death = max(0, before[-1].last_step - max(step, 0))
            before[-1].lost_steps = before[-1].lost_with_sessions + with_death

    def _session_lost(self, entry: Entry, now_s: float) -> None:
        """The connection to a server is gone; the trainer lives, and makes another session."""
        if (last := self._running(entry)) is None:
            return
        last.lost_sessions += 1
        if self._training is not None:
            self._training.last_step = max(entry.get("step", NO_STEP), self._training.first_step)
            self._end_training(now_s)
        self._switch_to("down", now_s)

    def _session_recovered(self, entry: Entry, now_s: float) -> None:
        if (last := self._running(entry)) is None:
            return
        restored_step, lost = max(entry.get("step", NO_STEP), 0), entry.get("lost_steps", 0)
        last.lost_with_sessions += lost
        last.lost_steps += lost
        self._lose(restored_step, [])
        if self._training is None:
            self._switch_to("kept", now_s)
            self._training = Training(last.number, now_s, entry.get("at", restored_step))

    def _hangs(self, entry: Entry, now_s: float) -> None:
        since_s = now_s - float(entry.get("seconds") or 0.0)
        if self._training is None:
            self._switch_to("stalled", max(self._since_s, since_s))
        else:
            self._stall(self._training, entry, since_s)

    def _stall(self, training: Training, entry: Entry, since_s: float) -> None:
        training.last_step = max(entry.get("step", NO_STEP), training.first_step)
        self._end_training(max(training.start_s, since_s))
        self._switch_to("stalled", self._since_s)

    def _goes_on(self, entry: Entry, now_s: float) -> None:
        """What hung, and was not ended, makes progress again."""
        last = self._last()
        if last is None or last.end_s is not None or self._kind != "stalled" or self._training is not None:
            return
        if last.ready_s is None:
            self._switch_to("starting", now_s)
            return
        self._switch_to("kept", now_s)
        self._training = Training(last.number, now_s, entry.get("step", 0))

    def _frozen(self, entry: Entry, now_s: float) -> None:
        """It was stopped by a signal for some seconds, up to now."""
        training, last = self._training, self._last()
        if training is None or last is None or last.number != entry.get("incarnation"):
            return
        self._stall(training, entry, now_s - float(entry.get("seconds") or 0.0))
        self._switch_to("kept", now_s)
        self._training = Training(last.number, now_s, training.last_step)

    def _exited(self, entry: Entry, now_s: float) -> None:
        if (last := self._running(entry)) is None:
            return
        last.code, last.signal = entry.get("code"), entry.get("signal")
        last.cause, last.evidence = entry.get("cause", ""), entry.get("evidence", "")
        self._end_trainer(now_s, entry.get("step"))
        is_over = self._task and last.cause in ("completed", "stopped")  # and the others go on
        self._switch_to("stopped" if is_over else "down", now_s)

    def _end_trainer(self, now_s: float, step: int | None) -> None:
        last = self._last()
        if last is None or last.end_s is not None:
            return
        if self._training is not None:
            known = (step or 0, self._training.first_step, self._training.last_step)
            self._training.last_step = max(known)
            self._end_training(now_s)
        reached = (self._trainings[-1].last_step if self._made_steps(last) else NO_STEP, step or NO_STEP)
        last.end_s, last.last_step = now_s, max(reached)

    def _made_steps(self, last: Incarnation) -> bool:
        return bool(self._trainings) and self._trainings[-1].incarnation == last.number

    def _end_training(self, now_s: float) -> None:
        assert self._training is not None
        self._training.end_s, self._training.kept_step = now_s, self._training.last_step
        self._trainings.append(self._training)
        self._training = None
        self._since_s = now_s

    # -- the rest --------------------------------------------------------------------------------------------
    def _last(self) -> Incarnation | None:
        return self._account.incarnations[-1] if self._account.incarnations else None

    def _running(self, entry: Entry) -> Incarnation | None:
        """The trainer that `entry` is about, if it has not ended."""
        last = self._last()
        is_its_own = last is not None and last.end_s is None and last.number == entry.get("incarnation")
        return last if is_its_own else None

    def _switch_to(self, kind: Kind, now_s: float) -> None:
        """The time since the last turn was of the kind it was; from `now_s` on it is `kind`."""
        last = self._last()
        if now_s > self._since_s and self._training is None:
            number = last.number if last is not None and self._kind in ("starting", "stalled") else 0
            self._other.append(Span(self._kind, self._since_s, now_s, number))
        self._kind, self._since_s = kind, max(now_s, self._since_s)

    def _remark(self, entry: Entry, now_s: float) -> None:
        fields = {key: value for key, value in entry.items() if key not in ("time", "event", "role", "incarnation")}
        remark = Remark(now_s, entry["event"], entry.get("role", ""), entry.get("incarnation", 0), fields)
        self._account.remarks.append(remark)

    def so_far(self, wall_s: float, step: int) -> Account | None:
        """The account of a run that goes on, up to now; the book stays open."""
        return copy.deepcopy(self).close(wall_s, step, is_running=True)

    def close(self, until_s: float | None, step: int, is_running: bool) -> Account | None:
        account = self._account
        if self._is_empty:
            return None
        account.end_s = self._since_s
        if self._is_open:
            account.end_s = self._time_s if until_s is None else max(until_s + self._set_back_s, self._time_s)
            account.outcome = "running" if is_running else "interrupted"
            self._close_open(account.end_s, step)
            last = self._last()
            if last is not None and last.end_s is None and not is_running:
                last.end_s = account.end_s  # with its watchdog, or soon after
        elif account.outcome != "completed":
            self._lose(account.durable_step, account.incarnations)
        account.spans = sorted(
            (*self._other, *(span for training in self._trainings for span in training.spans())),
            key=lambda span: span.start_s,
        )
        account.last_step = max((training.last_step for training in self._trainings), default=account.durable_step)
        return account

    def _close_open(self, end_s: float, step: int) -> None:
        """A run that goes on, or one whose watchdog was killed: up to now, or as far as was heard of it."""
        if self._training is not None:
            self._training.last_step = max(step, self._training.first_step, self._training.last_step)
            self._end_training(end_s)
            last = self._last()
            if last is not None:
                last.last_step = self._trainings[-1].last_step
        else:
            self._switch_to(self._kind, end_s)


class Outlived(NamedTuple):
    """An attempt that ran when its launch was lost, and the book as it stood then."""

    number: int
    last_step: int
    training: Training | None
    kind: Kind
    since_s: float
    trainings: int  # how many there were
    others: int


_OF_TRAINER = {
    "spawned": Book._spawned,
    "promoted": Book._promoted,
    "adopted": Book._adopted,
    "ready": Book._ready,
    "recovered": Book._recovered,
    "session_lost": Book._session_lost,
    "session_recovered": Book._session_recovered,
    "hang_detected": Book._hangs,
    "hang_over": Book._goes_on,
    "frozen": Book._frozen,
    "exited": Book._exited,
}

REMARKABLE = frozenset(
    {
        "run_started",
        "exited",
        "recovered",
        "restarting",
        "session_lost",
        "session_recovered",
        "fit_begun",
        "checkpoint_durable",
        "checkpoint_failed",
        "checkpoint_rejected",
        "checkpoints_deleted",
        "hang_detected",
        "hang_over",
        "frozen",
        "preempt_notice",
        "service_restarted",
        "promoted",
        "adopted",
        "fault",
        "fault_skipped",
        "member_lost",
        "gave_up",
        "task_given_up",
        "stopped",
        "run_completed",
    }
)
