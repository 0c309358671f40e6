"""The task of a member's machine: started as the coordinator orders, from a standby of this machine where one is ready.

Used by member_loop.py.  When the standby is made, and what its death means, is decided in host/standby.py, as on the coordinator's
machine; a start that was to come from it and cannot is made cold at once.
"""

from __future__ import annotations

import signal
from collections.abc import Callable

from procsv.base.clock import Clock
from procsv.base.identity import STANDBY, TaskId
from procsv.base.journal import entries
from procsv.ipc.messaging.member_messages import TaskSaid, TaskStarted
from procsv.ipc.messaging.messages import encode_body
from procsv.ipc.messaging.watchdog_messages import Note
from procsv.ipc.shm.heartbeat_file import RunHeartbeats
from procsv.watchdog.core import actions, events
from procsv.watchdog.edge.console import Console
from procsv.watchdog.edge.processes import Processes
from procsv.watchdog.edge.resources.machine import MachineMemory
from procsv.watchdog.edge.standby_link import StandbyLink
from procsv.watchdog.host.ports import Dead
from procsv.watchdog.host.standby import (
    ImportMore,
    MakeStandby,
    NotPromoted,
    Promote,
    Promoted,
    Standby,
    StandbySaid,
    Todo,
)
from procsv.watchdog.machines.core.orders import OrderedStart

Tell = Callable[[TaskStarted | TaskSaid], object]


class OwnTask:
    def __init__(
        self, task: TaskId, processes: Processes, heartbeats: RunHeartbeats, console: Console, clock: Clock, tell: Tell
    ) -> None:
        """`tell`: says to the coordinator what a start has come to, and what of the standby belongs in the journal."""
        self.task, self.processes, self.heartbeats = task, processes, heartbeats
        self._console, self._clock, self._tell = console, clock, tell
        self._out: list[Todo] = []
        mode = processes.start.settings.standby
        self._standby = Standby("warm" if mode == "warm" else "off", self._out)
        self._ordered = OrderedStart()
        self._link, self._memory = StandbyLink(processes), MachineMemory()
        self.incarnation = 0  # of the newest attempt
        self._promoted = 0  # of the newest that was to come from a standby

    @property
    def is_starting(self) -> bool:
        """Whether a standby is to become it, and has not answered yet."""
        return self._standby.is_becoming(self.task, self._promoted)

    def start(self, incarnation: int) -> None:
        """Starts that attempt, from a standby if one is ready or nearly so; the coordinator is told once it runs, or cannot."""
        now_s = self._clock.monotonic()
        self._ordered.order(incarnation, now_s)
        self._start_due(now_s)

    def _start_due(self, now_s: float) -> None:
        if incarnation := self._ordered.take_due(self._standby, now_s):
            self._out.append(self._standby.start_of(self.task, incarnation, now_s))
        self._perform()

    def signal(self, incarnation: int, number: int) -> None:
        """As the coordinator orders.  One that is to end before it has begun does not begin."""
        if number != signal.SIGTERM or not self._refuse(incarnation, "it was asked to end before it had begun"):
            self.processes.signal(self.task, incarnation, number)

    def kill(self, incarnation: int) -> None:
        if not self._refuse(incarnation, "it was ended before it had begun"):
            self.processes.kill_tree(self.task, incarnation)

    def _refuse(self, incarnation: int, why: str) -> bool:
        """Whether that attempt (0: any) has been waiting for a standby; it is not started then, as the coordinator is told."""
        refused = self._ordered.withdraw(incarnation)
        if refused:
            self._tell(TaskStarted(self.task, refused, 0, why))
        return bool(refused)

    def forget_order(self) -> None:
        """Whoever has ordered a start decides no more: what has not begun does not begin."""
        self._ordered.withdraw()

    def hear(self) -> None:
        """Hears the standby.  To be called before `ended`: what it has said before it died."""
        now_s = self._clock.monotonic()
        for event in self._link.hear():
            match event:
                case Promoted():
                    self._standby.promoted(event, now_s)
                    self._begun(event.incarnation, event.pid)
                    self._note(entries.Promoted(pid=event.pid, standby=event.number))
                case NotPromoted():
                    self._not_promoted(event, now_s)
                case StandbySaid():
                    self._standby.said(event, now_s)
        self._perform()

    def has_ended(self, dead: Dead) -> bool:
        """Whether it is the task that has ended, and not a standby, or one that was to become the task and has not yet."""
        now_s = self._clock.monotonic()
        is_becoming = self._standby.is_becoming(dead.task, dead.incarnation)
        if dead.task != STANDBY and not is_becoming:
            self._standby.trainer_died()
            return True
        self._standby.died(events.Ended(dead.task, dead.incarnation, dead.exit), now_s)
        if is_becoming:
            self.heartbeats.drop(self.task)
            self._out.append(actions.Start(self.task, dead.incarnation))
        self._perform()
        return False

    def has_loaded(self) -> None:
        """It has written down what it has imported: now a standby can be made."""
        self._standby.loaded(self._clock.monotonic())

    def check_deadlines(self, now_s: float) -> None:
        room: int | None = None
        if self._standby.is_due(now_s):
            running = self.processes.find(self.task, self.incarnation)
            pid = running.child.pid if running is not None else 0
            room = self._memory.room_for_standby(pid, self.processes.start.settings.memory_limit)
        if self.processes.find(self.task, self.incarnation) is None:
            self._standby.no_task_runs(now_s)
        self._standby.check_deadlines(now_s, room)
        self._perform()
        self._start_due(now_s)

    def leave(self) -> None:
        """No standby is needed any more, nor a start that waits for one."""
        self._refuse(0, "this launch ends")
        self._standby.unwanted(self._clock.monotonic(), "the run ends")
        self._perform()

    # -- what follows --------------------------------------------------------------------------------------
    def _perform(self) -> None:
        while self._out:
            match self._out.pop(0):
                case MakeStandby(number, mode):
                    self._make_standby(number, mode)
                case actions.Start(_, incarnation):
                    self._start_cold(incarnation)
                case Promote(number, task, incarnation):
                    self._promote(number, task, incarnation)
                case ImportMore(number):
                    self._link.import_more(number)
                case actions.Signal(task, number, which):
                    self.processes.signal(task, number, which)
                case actions.KillTree(task, number):
                    self.processes.kill_tree(task, number)
                case actions.Say(text, is_bad):
                    self._console.say(text, is_bad=is_bad)
                case actions.Journal(entries.StandbyReady() as ready):
                    self._note(ready)
                case _:
                    pass  # the ends of standbys

    def _make_standby(self, number: int, mode: str) -> None:
        try:
            self._standby.pid = self.processes.spawn(STANDBY, number, mode)
        except OSError:
            self._standby.not_spawned(self._clock.monotonic())

    def _start_cold(self, incarnation: int) -> None:
        try:
            self.heartbeats.follow(self.task, incarnation)
            pid = self.processes.spawn(self.task, incarnation, "")
        except OSError as error:
            self.heartbeats.drop(self.task)
            self._tell(TaskStarted(self.task, incarnation, 0, str(error)))
            return
        self._begun(incarnation, pid)

    def _promote(self, number: int, task: TaskId, incarnation: int) -> None:
        self._promoted = incarnation
        try:
            self.heartbeats.follow(task, incarnation)
            self._link.promote(number, task, incarnation)
        except OSError as error:
            self._not_promoted(NotPromoted(number, task, incarnation, str(error)), self._clock.monotonic())

    def _not_promoted(self, event: NotPromoted, now_s: float) -> None:
        self.heartbeats.drop(self.task)
        self._standby.not_promoted(event, now_s)
        self._out.append(actions.Start(self.task, event.incarnation))

    def _note(self, entry: entries.Promoted | entries.StandbyReady) -> None:
        note = encode_body(Note(entry))
        self._tell(TaskSaid(self.task, self.incarnation, note, self._clock.monotonic()))

    def _begun(self, incarnation: int, pid: int) -> None:
        self.incarnation = incarnation
        self._console.follow(self.processes.start.paths.log(self.task, incarnation))
        self._tell(TaskStarted(self.task, incarnation, pid))
