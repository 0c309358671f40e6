"""Start, signal and end the processes of this machine, and watch until all are gone.

Used by event_loop.py. standby.py decides how a task is started: cold, or from a standby. Every
order to start is answered, whether or not it led to a process.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from procsv.base.clock import Clock, first_due_s
from procsv.base.identity import STANDBY, TaskId
from procsv.base.journal import entries
from procsv.base.journal.entries import Entry
from procsv.ipc.messaging.launch_settings import LaunchSettings
from procsv.ipc.messaging.message import Message
from procsv.ipc.shm.heartbeat import Heartbeat
from procsv.watchdog.core.actions import KillTree, Say, Signal, StartAttempt, WriteEntry
from procsv.watchdog.core.events import Event, NotStarted, Preparing, Started, TreeGone
from procsv.watchdog.core.reporting import wording
from procsv.watchdog.host.ports import Dead, Heartbeats, MemoryPort, PostMortemPort, ProcessTable, StandbyPort, TaskHost
from procsv.watchdog.host.standby import (
    ImportMore,
    MakeStandby,
    NotPromoted,
    Promote,
    Promoted,
    Standby,
    StandbySaid,
    StandbyState,
    Todo,
)


class Machine(msgspec.Struct, frozen=True):
    """The parts of a machine that the host acts on."""

    clock: Clock
    processes: ProcessTable
    standby: StandbyPort
    heartbeats: Heartbeats
    post_mortem: PostMortemPort
    memory: MemoryPort


class Attempt(NamedTuple):
    incarnation: int
    pid: int


class HeldStart(NamedTuple):
    task: TaskId
    incarnation: int
    due_s: float  # monotonic: when the start became due


class LocalHost(TaskHost):
    def __init__(
        self,
        machine: Machine,
        tasks: tuple[TaskId, ...],
        settings: LaunchSettings,
        journal: Callable[[Entry, TaskId, int], None],
        say: Callable[[str, bool], None],
        send: Callable[[TaskId, Message], None],
    ) -> None:
        """`tasks`: this machine's tasks. A standby is made only if it fits in memory beside the
        first of them.
        """
        self._clock, self._processes, self._link = machine.clock, machine.processes, machine.standby
        self._heartbeats, self._post_mortem, self._memory = machine.heartbeats, machine.post_mortem, machine.memory
        self._tasks, self._first, self._memory_limit = frozenset(tasks), tasks[0], settings.memory_limit
        self._journal, self._say, self._send = journal, say, send
        self._todo: list[Todo] = []
        self.standby = Standby(settings.standby, self._todo)
        self._running: dict[TaskId, Attempt] = {}  # only tasks, not services
        self._held: list[HeldStart] = []  # starts that wait for the standby
        self._clearing: dict[TaskId, int] = {}  # the attempts whose trees are being removed
        self._promoting_must_end = False  # the attempt that the standby is becoming was asked to end, or killed
        self._starts_are_over = False
        self._news: list[Event] = []
        self._reported = self._preparing()  # the last Preparing that `answers` returned

    # -- orders --------------------------------------------------------------------------------------------
    def prepare_first(self) -> None:
        """Prepare a standby for the first start.

        An earlier launch recorded the program's imports, so the standby can import them once for
        all tasks.
        """
        self.standby.make_before_first_trainer()

    def start(self, task: TaskId, incarnation: int, due_s: float) -> None:
        if not task.runs_program:
            self._start_cold(task, incarnation)
            return
        self._held.append(HeldStart(task, incarnation, due_s))
        self._start_held()

    def signal(self, task: TaskId, incarnation: int, number: int) -> None:
        """Signal an attempt. SIGTERM to an attempt that has not begun cancels its start."""
        if number == signal.SIGTERM and self._withdraw(task, incarnation, "it was asked to end before it had started"):
            return
        self._promoting_must_end |= number == signal.SIGTERM and self.standby.is_becoming(task, incarnation)
        self._processes.signal(task, incarnation, number)

    def kill_tree(self, task: TaskId, incarnation: int) -> None:
        if self._withdraw(task, incarnation, "it was killed before it had started"):
            return
        self._promoting_must_end |= self.standby.is_becoming(task, incarnation)
        self._processes.kill_tree(task, incarnation)

    def _withdraw(self, task: TaskId, incarnation: int, why: str) -> bool:
        """Cancel a start that has been waiting. Return whether there was one."""
        found = [held for held in self._held if (held.task, held.incarnation) == (task, incarnation)]
        for held in found:
            self._held.remove(held)
            self._news.append(NotStarted(task, incarnation, why))
        return bool(found)

    def send(self, task: TaskId, body: Message) -> None:
        self._send(task, body)

    def withdraw_starts(self, why: str) -> None:
        """Cancel all starts that have been waiting."""
        for held in list(self._held):
            self._withdraw(held.task, held.incarnation, why)

    def clear_tree(self, task: TaskId, incarnation: int, has_ended: bool) -> None:
        if has_ended and (left := self._processes.name_strays(task)):
            self._say(wording.left_behind(left), True)
        self._clearing[task] = incarnation
        self._look_at_trees()

    def end_starts(self) -> None:
        """End the standby and make no other, because the run ends."""
        self._starts_are_over = True
        now_s = self._clock.monotonic()
        self.standby.unwanted(now_s, "the run ends")
        self._let_standby_leave(now_s)
        self._perform()

    def imports_known(self, task: TaskId, incarnation: int) -> None:
        """Note that the attempt has recorded its imports so far, so a standby can import them."""
        running = self._running.get(task)
        if running is not None and running.incarnation == incarnation and not self._starts_are_over:
            self.standby.loaded(self._clock.monotonic())
            self._perform()

    # -- news ----------------------------------------------------------------------------------------------
    @property
    def is_starting(self) -> bool:
        """Whether a standby was told to become a task, and has not answered yet."""
        return self.standby.state is StandbyState.PROMOTING

    @property
    def is_clearing(self) -> bool:
        return bool(self._clearing)

    def answers(self) -> list[Event]:
        """Return the immediate results of the orders. To be called after each order."""
        preparing, news = self._preparing(), self._news
        self._news = []
        if preparing == self._reported:
            return news
        self._reported = preparing
        return [preparing, *news]

    def _preparing(self) -> Preparing:
        return Preparing(self._tasks, self.standby.wait_s, bool(self.standby.pid))

    def poll(self) -> Iterator[Event]:
        yield from self.poll_starts()  # first: a standby may have answered before it died
        for dead in self._processes.ended():
            self._ended(dead)
            yield from self.answers()
            self._post_mortem.clear(dead)  # if we are killed before this, the next launch clears
        self._look_at_trees()
        yield from self.answers()

    def poll_starts(self) -> Iterator[Event]:
        """Yield the results of starts that were not answered immediately."""
        for word in self._link.poll_standby():
            now_s = self._clock.monotonic()
            match word:
                case Promoted():
                    self._promoted(word, now_s)
                case NotPromoted():
                    self._not_promoted(word, now_s)
                case StandbySaid():
                    self.standby.said(word, now_s)
            self._perform()
            yield from self.answers()

    def _ended(self, dead: Dead) -> None:
        """Handle a death.

        If a standby dies before it answers an order to become a task, the task has not started, and
        is started again. But if the task was asked to end before that, the standby's death counts
        as the task's end.
        """
        now_s, task, incarnation = self._clock.monotonic(), dead.task, dead.incarnation
        ended = self._post_mortem.examine(dead, self._heartbeats.drop_heartbeat(task))
        is_becoming = self.standby.is_becoming(task, incarnation)
        if is_becoming and self._promoting_must_end:
            self._promoted(Promoted(self.standby.number, task, incarnation, dead.pid), now_s)
        elif is_becoming or task == STANDBY:
            self.standby.died(ended, now_s)
            if is_becoming:
                self._news.append(NotStarted(task, incarnation, "the standby", is_tried_again=True))
            self._perform()
            return
        if task.runs_program:
            self._running.pop(task, None)
            self.standby.trainer_died()
            self._let_standby_leave(now_s)
        self._perform()
        self._news.append(ended)

    def _let_standby_leave(self, now_s: float) -> None:
        if self._starts_are_over and not self._running:
            self.standby.no_task_runs(now_s)

    def _look_at_trees(self) -> None:
        for task, incarnation in list(self._clearing.items()):
            if self._processes.clear_tree(task):
                del self._clearing[task]
                self._news.append(TreeGone(task, incarnation))

    def beats(self) -> dict[TaskId, Heartbeat]:
        return self._heartbeats.read_heartbeats()

    def stopped(self) -> frozenset[TaskId]:
        return frozenset(task for task in self._tasks if self._processes.is_stopped(task))

    def traced(self) -> frozenset[TaskId]:
        return frozenset(task for task in self._tasks if self._processes.is_traced(task))

    def usage(self, task: TaskId) -> Mapping[str, float | int]:
        return self._processes.usage(task)

    # -- time ----------------------------------------------------------------------------------------------
    def next_due_s(self) -> float | None:
        """Return when `tick` must be called at the latest."""
        return first_due_s((self.standby.next_due_s(), *(self._held_until_s(held) for held in self._held)))

    def tick(self, *, is_awaited: bool) -> list[Event]:
        """Do what is due. `is_awaited`: a due start waits for the standby."""
        now_s, room = self._clock.monotonic(), None
        self._post_mortem.note_kills(now_s)
        if is_awaited or self._held:
            self.standby.expedite_import(now_s)
        if self.standby.is_due(now_s):
            first = self._running.get(self._first)
            room = self._memory.room_for_standby(first.pid if first is not None else 0, self._memory_limit)
        self.standby.check_deadlines(now_s, room)
        self._let_standby_leave(now_s)
        self._perform()
        self._start_held()
        return self.answers()

    # -- starts --------------------------------------------------------------------------------------------
    def _held_until_s(self, held: HeldStart) -> float:
        return held.due_s + self.standby.wait_s

    def _start_held(self) -> None:
        for held in list(self._held):
            now_s = self._clock.monotonic()
            if now_s >= self._held_until_s(held):
                self._held.remove(held)
                self._todo.append(self.standby.start_of(held.task, held.incarnation, now_s))
                self._perform()

    def _start_cold(self, task: TaskId, incarnation: int) -> None:
        try:
            self._heartbeats.follow_heartbeat(task, incarnation)
            pid = self._processes.spawn(task, incarnation, "")
        except OSError as error:
            self._heartbeats.drop_heartbeat(task)
            self._news.append(NotStarted(task, incarnation, str(error)))
            return
        self._begun(Started(task, incarnation, pid))

    def _promote(self, start: Promote) -> None:
        self._promoting_must_end = False
        try:
            self._heartbeats.follow_heartbeat(start.task, start.incarnation)
            self._link.promote(start.number, start.task, start.incarnation)
        except OSError as error:
            why = NotPromoted(start.task, start.incarnation, str(error))
            self._not_promoted(why, self._clock.monotonic())

    def _promoted(self, word: Promoted, now_s: float) -> None:
        self.standby.promoted(word, now_s)
        how = entries.Promoted(pid=word.pid, standby=word.number)
        self._begun(Started(word.task, word.incarnation, word.pid, how))

    def _not_promoted(self, word: NotPromoted, now_s: float) -> None:
        self._heartbeats.drop_heartbeat(word.task)
        self.standby.not_promoted(word, now_s)
        self._news.append(NotStarted(word.task, word.incarnation, word.error, is_tried_again=True))

    def _begun(self, started: Started) -> None:
        if started.task.runs_program:
            self._running[started.task] = Attempt(started.incarnation, started.pid)
        self._news.append(started)

    # -- the standby ---------------------------------------------------------------------------------------
    def _perform(self) -> None:
        """Carry out what standby.py decides."""
        while self._todo:
            match self._todo.pop(0):
                case StartAttempt(task, incarnation):
                    self._start_cold(task, incarnation)
                case Promote() as start:
                    self._promote(start)
                case MakeStandby(number, mode):
                    self._make_standby(number, mode)
                case ImportMore(number):
                    self._link.import_more(number)
                case Signal(task, incarnation, number):
                    self._processes.signal(task, incarnation, number)
                case KillTree(task, incarnation):
                    self._processes.kill_tree(task, incarnation)
                case WriteEntry(entry, task, incarnation):
                    self._journal(entry, task, incarnation)
                case Say(text, is_bad):
                    self._say(text, is_bad)

    def _make_standby(self, number: int, mode: str) -> None:
        try:
            pid = self._processes.spawn(STANDBY, number, mode)
        except OSError:
            self.standby.not_spawned(self._clock.monotonic())
            return
        self.standby.pid = pid
        self._journal(entries.Spawned(pid=pid), STANDBY, number)
