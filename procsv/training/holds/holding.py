"""Holds of the tasks on other machines, as the chief decides on them: news, answers and the time in, orders out.  Pure.

Used by far_holder.py, and by one hold after the other: `begin`, `gathered` once there is nothing more to wait for, `captured`, and `end`
once there is nothing more to wait for.  Between them it is told what has come.  A hold itself is gathering.py's.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from procsv.base.identity import TaskId
from procsv.ipc.messaging.hold_messages import HoldTold
from procsv.training.holds import frames
from procsv.training.holds.gathering import Gathering
from procsv.training.holds.limits import ASK_S, RELEASE_S_MAX, capture_limit_s, gather_limit_s, link_s_of
from procsv.training.runtime.step_hold import HELD_S_MAX, SETTLE_S, Hold

Orders = list[tuple[TaskId, frames.Order]]


class _Place(msgspec.Struct):
    """Where one task is held."""

    incarnation: int
    has_ended: bool  # for good: nobody is there
    settled_s: float  # from then on nothing of it is under way on the servers
    is_silent: bool = False  # it has not answered when it was spoken to last
    round_trip_s: float | None = None


class Holding:
    def __init__(self, tasks: Iterable[TaskId], owner: str, now_s: float, *, is_first: bool) -> None:
        """`tasks`: the others that train.  `owner`: a name that no other chief has.  `is_first`: no chief was there before this one."""
        self._tasks, self._owner, self._number = tuple(tasks), owner, 0
        self._places: dict[TaskId, _Place] = {}
        self._asked_s = self._begun_s = now_s
        self._is_settled = is_first
        self._gathering: Gathering | None = None  # of the hold that there is
        self._limit_s = 0.0  # of its capture
        self._gathered_s = 0.0
        self._captured_s: float | None = None
        self.hold = Hold()  # the newest one
        self.wants_news = False  # of where the tasks are held

    # -- where tasks are held ------------------------------------------------------------------------------
    def told(self, news: HoldTold, now_s: float) -> bool:
        """Whether it is news: then its offer counts, and none before it.  Between two holds only."""
        before = self._places.get(news.task)
        if news.task not in self._tasks or (before is not None and not _is_news(before, news)):
            return False
        has_ended = news.offer is None
        settled_s = now_s + SETTLE_S if has_ended and not news.is_between else now_s
        self._places[news.task] = _Place(news.incarnation, has_ended, settled_s)
        return True

    def cannot_be_reached(self, task: TaskId) -> None:
        """What it offers makes no sense."""
        del self._places[task]

    def heard(self, task: TaskId, answer: frames.Answer, now_s: float) -> None:
        """That has come from there; a late answer is one, too."""
        if (place := self._places.get(task)) is not None:
            place.is_silent = False
        if self._gathering is not None:
            self._gathering.heard(task, answer, now_s)

    # -- a hold --------------------------------------------------------------------------------------------
    def begin(self, gather_s: float, now_s: float) -> Orders:
        """Has all stand within `gather_s`, if they can be held."""
        self.hold, self._gathering, self._captured_s = Hold(), None, None
        self.hold.why = self._why_not_held(now_s)
        if self.hold.why:
            self.wants_news = now_s - self._asked_s >= ASK_S
            self._asked_s = now_s if self.wants_news else self._asked_s
            return [(task, frames.Probe()) for task in self._running if self._places[task].is_silent]
        self.wants_news = False
        if not self._is_settled and now_s - self._begun_s < SETTLE_S:
            self.hold.why = "the chief before this one may have died in a step just now"
            return []
        self._is_settled = True
        return self._begin(gather_s, now_s)

    def _begin(self, gather_s: float, now_s: float) -> Orders:
        self._number += 1
        running = self._running
        link_s = max((link_s_of(self._places[task].round_trip_s) for task in running), default=0.0)
        limit_s, self._limit_s = gather_limit_s(gather_s, link_s), capture_limit_s(link_s)
        self._gathering = Gathering(running, self._number, now_s, limit_s)
        return self._to_all(frames.Hold(self._owner, self._number, limit_s))

    def wait_s(self, now_s: float) -> float:
        """How long it is still worth waiting for answers; 0: not at all."""
        if self._gathering is None:
            return 0.0
        if self._captured_s is None:
            return self._gathering.wait_s(now_s)
        return 0.0 if self._gathering.is_decided else max(0.0, self._captured_s + RELEASE_S_MAX - now_s)

    def gathered(self, now_s: float) -> Orders:
        """From now on it is captured, whether all stand (`hold.why` says why not) or not."""
        self._gathered_s, gathering = now_s, self._gathering
        if gathering is None:
            return []
        for task in gathering.silent:
            self._places[task].is_silent = True
        for task, seconds in gathering.round_trips.items():
            self._places[task].round_trip_s = seconds
        self.hold.why = gathering.why_not_gathered(now_s)
        if not self.hold.why:
            return self._to_all(frames.Capturing(self._owner, self._number, self._limit_s))
        self._gathering, self.hold.held_s = None, now_s - gathering.begun_s
        return self._to_all(frames.LetGo(self._owner, self._number))

    def captured(self, now_s: float) -> Orders:
        """The capture has ended, in whatever way."""
        self._captured_s = now_s
        return self._to_all(frames.LetGo(self._owner, self._number)) if self._gathering is not None else []

    def end(self) -> None:
        """What has not come by now has not been said; `hold` says what the hold was."""
        gathering, self._gathering = self._gathering, None
        assert self._captured_s is not None, "it has been captured"
        if gathering is not None:
            took_long = self._captured_s - self._gathered_s > HELD_S_MAX
            why = "the capture took longer than steps are held" if took_long else gathering.why_not_whole()
            self.hold.why, self.hold.held_s = why, gathering.held_s
        self.hold.is_whole = not self.hold.why

    # -- small things --------------------------------------------------------------------------------------
    @property
    def _running(self) -> list[TaskId]:
        return [task for task, place in self._places.items() if not place.has_ended]

    def _to_all(self, order: frames.Order) -> Orders:
        return [(task, order) for task in self._running]

    def _why_not_held(self, now_s: float) -> str:
        """Why it makes no sense to hold anybody now; "" if it does."""
        for task in self._tasks:
            place = self._places.get(task)
            if place is None:
                return f"it is not known where {task} is held"
            if place.is_silent:
                return f"{task} does not answer"
            if now_s < place.settled_s:
                return f"{task} has just ended"  # maybe in a step, which the servers are at
        return ""


def _is_news(before: _Place, news: HoldTold) -> bool:
    """Whether it is of a later attempt, or of the end of that one."""
    if news.incarnation != before.incarnation:
        return news.incarnation > before.incarnation
    return news.offer is None and not before.has_ended
