"""Holder of the tasks on other machines: the end of the chief that captures.

Made by the chief's bootstrap, in a run on several machines.  It speaks to each task itself, past the watchdogs (held_task.py), and learns
from its own watchdog where each is.  Killed anywhere, frozen, or cut off: each task goes on by itself, at its own limit.

`hold` is called by one thread at a time, that which captures; `told` by the link's.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping

from procsv.base.clock import Clock
from procsv.base.errors import PeerError
from procsv.base.identity import TaskId
from procsv.base.system.failpoints import declare, failpoint
from procsv.ipc.messaging.bulk_transport import BulkClient
from procsv.ipc.messaging.curve_transport import KeyPair
from procsv.ipc.messaging.hold_messages import HoldOffer, HoldTold
from procsv.ipc.messaging.zmq_transport import new_context
from procsv.training.holds import frames
from procsv.training.holds.gathering import Gathering
from procsv.training.holds.limits import (
    ASK_S,
    RELEASE_S_MAX,
    SILENT_ORDERS_MAX,
    capture_limit_s,
    gather_limit_s,
    link_s_of,
)
from procsv.training.runtime.step_gate import HELD_S_MAX, SETTLE_S, Hold

FRAME_BYTES_MAX = 1024
WAIT_S_MIN = 0.001  # ZeroMQ waits for whole milliseconds

declare("trainer.held")


class _Place:
    """Where one task is held."""

    def __init__(self, incarnation: int, client: BulkClient | None, settled_s: float) -> None:
        """`client`: None: the task has ended for good; from `settled_s` on nothing of it is under way on the servers."""
        self.incarnation, self.client, self.settled_s = incarnation, client, settled_s
        self.is_silent = False  # it has not answered when it was spoken to last
        self.round_trip_s: float | None = None


class FarHolder:
    def __init__(self, hosts: Mapping[TaskId, str], clock: Clock, ask: Callable[[], None], *, is_first: bool) -> None:
        """`hosts`: the machines of the others that train.  `ask`: has them told.  `is_first`: no chief was there before this one."""
        self._hosts, self._clock, self._ask = dict(hosts), clock, ask
        self._owner, self._number, self._context = uuid.uuid4().hex, 0, new_context()
        self._places: dict[TaskId, _Place] = {}
        self._lock = threading.Lock()
        self._told: dict[TaskId, HoldTold] = {}  # since the last capture, by the link's thread
        self._asked_s = self._begun_s = clock.monotonic()
        self._is_settled = is_first
        ask()

    def told(self, news: HoldTold) -> None:
        """Any thread."""
        with self._lock:
            before = self._told.get(news.task)
            if before is None or news.incarnation >= before.incarnation:
                self._told[news.task] = news

    def close(self) -> None:
        for place in self._places.values():
            if place.client is not None:
                place.client.close(linger_ms=0)
        self._places.clear()
        self._context.term()

    @contextlib.contextmanager
    def hold(self, gather_s: float) -> Iterator[Hold]:
        """Keeps the other tasks between two steps for the block, as far as that can be had within `gather_s`; the block runs in any case."""
        hold = Hold(why=self._why_unknown())
        gathering = self._gather(gather_s, hold) if not hold.why else None
        gathered_s = self._clock.monotonic()
        try:
            if not hold.why:
                failpoint("trainer.held")  # killed here: all stand, and go on at their limit
            yield hold
        finally:
            ended_s = self._clock.monotonic()
            if not hold.why:
                self._send(frames.LetGo(self._owner, self._number))
        if gathering is not None and not hold.why:
            self._hear_until(gathering, RELEASE_S_MAX, lambda: gathering.is_decided)
            took_long = ended_s - gathered_s > HELD_S_MAX
            hold.why = "the capture took longer than steps are held" if took_long else gathering.why_not_whole()
            hold.held_s = gathering.held_s
        hold.is_whole = not hold.why

    # -- who can be held -----------------------------------------------------------------------------------
    def _why_unknown(self) -> str:
        """Why it makes no sense to hold anybody now; "" if it does."""
        now_s = self._clock.monotonic()
        self._take_told(now_s)
        self._hear_all()
        if why := self._why_not_held(now_s):
            for place in self._places.values():
                if place.client is not None and place.is_silent:
                    place.client.send(frames.pack(frames.Probe()))
            if now_s - self._asked_s >= ASK_S:
                self._asked_s = now_s
                self._ask()
            return why
        if not self._is_settled and now_s - self._begun_s < SETTLE_S:
            return "the chief before this one may have died in a step just now"
        self._is_settled = True
        return ""

    def _why_not_held(self, now_s: float) -> str:
        for task in self._hosts:
            place = self._places.get(task)
            if place is None:
                return f"it is not known where {task} is held"
            if place.is_silent:
                return f"{task} does not answer"
            if now_s < place.settled_s:
                return f"{task} has just ended"  # maybe in a step, which the servers are at
        return ""

    def _take_told(self, now_s: float) -> None:
        with self._lock:
            told, self._told = self._told, {}
        for task, news in told.items():
            before = self._places.get(task)
            is_over = news.offer is None
            if task not in self._hosts or (before is not None and not _is_news(before, news)):
                continue
            if before is not None and before.client is not None:
                before.client.close(linger_ms=0)
            self._places.pop(task, None)
            client = None if is_over else self._connect(task, news.offer)
            if client is not None or is_over:
                settled_s = now_s + SETTLE_S if is_over and not news.is_between else now_s
                self._places[task] = _Place(news.incarnation, client, settled_s)

    def _connect(self, task: TaskId, offer: HoldOffer | None) -> BulkClient | None:
        assert offer is not None, "there is a place"
        keys = KeyPair(offer.client_public, offer.client_secret)
        where = f"{self._hosts[task]}:{offer.port}"
        try:
            return BulkClient(where, keys, offer.server_key, FRAME_BYTES_MAX, SILENT_ORDERS_MAX, self._context)
        except PeerError:
            return None

    # -- a hold --------------------------------------------------------------------------------------------
    def _gather(self, gather_s: float, hold: Hold) -> Gathering:
        """Has all stand; `hold` says why not, if they do not."""
        self._number += 1
        running = {task: place for task, place in self._places.items() if place.client is not None}
        link_s = max((link_s_of(place.round_trip_s) for place in running.values()), default=0.0)
        limit_s = gather_limit_s(gather_s, link_s)
        gathering = Gathering(running, self._number, self._clock.monotonic(), limit_s)
        self._send(frames.Hold(self._owner, self._number, limit_s))
        self._hear_until(gathering, limit_s, lambda: not gathering.wait_s(self._clock.monotonic()))
        for task in gathering.silent:
            running[task].is_silent = True
        for task, seconds in gathering.round_trips.items():
            running[task].round_trip_s = seconds
        hold.why = gathering.why_not_gathered(self._clock.monotonic())
        if hold.why:
            self._send(frames.LetGo(self._owner, self._number))
            hold.held_s = self._clock.monotonic() - gathering.begun_s
        else:
            self._send(frames.Capturing(self._owner, self._number, capture_limit_s(link_s)))
        return gathering

    def _send(self, order: frames.Order) -> None:
        for place in self._places.values():
            if place.client is not None:
                place.client.send(frames.pack(order))  # not taken: nobody is there, and that is found by its silence

    def _hear_until(self, gathering: Gathering, limit_s: float, is_over: Callable[[], bool]) -> None:
        until_s = self._clock.monotonic() + limit_s
        while not is_over() and self._clock.monotonic() < until_s:
            heard = [self._hear(task, gathering) for task in gathering.said]
            first = next(iter(gathering.said))
            if not any(heard) and (client := self._places[first].client) is not None:
                client.wait(WAIT_S_MIN)

    def _hear_all(self) -> None:
        """What has come since the last hold: an answer that came too late is one."""
        for task in self._places:
            self._hear(task, None)

    def _hear(self, task: TaskId, gathering: Gathering | None) -> bool:
        """Whether that task has said anything."""
        place, has_spoken = self._places[task], False
        while place.client is not None and (received := place.client.receive()) is not None:
            with contextlib.suppress(PeerError):
                answer = frames.read_answer(received)
                place.is_silent, has_spoken = False, True
                if gathering is not None:
                    gathering.heard(task, answer, self._clock.monotonic())
        return has_spoken


def _is_news(before: _Place, news: HoldTold) -> bool:
    """Whether it is of a later attempt, or of the end of that one."""
    if news.incarnation != before.incarnation:
        return news.incarnation > before.incarnation
    return news.offer is None and before.client is not None
