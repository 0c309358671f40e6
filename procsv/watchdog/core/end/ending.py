"""End a run, whatever the reason, by ending its tasks in order.

Used by run.py. Pure. Once no task runs any more, the services end, and the run with them
(closing.py):

    stop asked, training done, or given up
      -> the trainer ends                                       (its share of the grace, then it is killed)
      -> TrainerExited to the checkpoint service, FlushDone     (what the trainer had is on disk)
      -> Finish to both services, which exit
      -> Quit
"""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterable

import msgspec

from procsv.base.cluster import PS, STEPLESS
from procsv.base.grace import HEAD_START_S, SERVICES_SHARE, TRAINER_SHARE
from procsv.base.identity import TaskId
from procsv.base.journal import entries
from procsv.base.run.manifest import Reason
from procsv.watchdog.core.actions import Action, EndStarts, Say, Signal, WriteEntry, WriteRun
from procsv.watchdog.core.cluster import Roster
from procsv.watchdog.core.events import StopAsked, TaskLost
from procsv.watchdog.core.reporting import wording
from procsv.watchdog.core.services import ServiceSupervisor
from procsv.watchdog.core.task.lifecycle import TaskState


class Request(msgspec.Struct, frozen=True):
    """What to ask of each task. `at_once`: the tasks to end without waiting for their program."""

    why: str
    reason: Reason = "final"
    at_once: frozenset[TaskId] = frozenset()


class EndOrder(msgspec.Struct):
    """Decides which tasks to ask to end now: workers and evaluators, then the chief, which saves,
    then the servers.

    The chief's last state contains what the workers have trained, and is read from the servers. The
    other members of a gang, and workers that only serve a coordinator, come after the chief: it
    cannot end its step without them, and it has saved what they hold.
    """

    chief: TaskId
    request: Request | None = None
    _told: set[TaskId] = msgspec.field(default_factory=set)
    _chief_s: float = 0.0  # when the chief's turn comes, whatever the workers do

    def begin_end(self, request: Request, now_s: float) -> None:
        """Begin to end the tasks. A second request asks the tasks in `at_once` again."""
        if self.request is None:
            self._chief_s = now_s + HEAD_START_S
        self.request = request
        self._told -= request.at_once

    def take_due(self, running_on: Collection[TaskId], now_s: float, needed: Collection[TaskId] = ()) -> list[TaskId]:
        """Return the tasks of `running_on` whose turn it is. `needed`: the tasks that the chief
        needs to end a step.
        """
        if self.request is None:
            return []
        due = [task for task in self._turn(running_on, now_s, needed) if task not in self._told]
        due += [task for task in running_on if task in self.request.at_once - self._told and task not in due]
        self._told.update(due)
        return due

    def next_due_s(self, running_on: Collection[TaskId]) -> float | None:
        is_waiting = self.request is not None and self.chief in running_on and self.chief not in self._told
        return self._chief_s if is_waiting else None

    def _turn(self, running_on: Iterable[TaskId], now_s: float, needed: Collection[TaskId]) -> list[TaskId]:
        servers = [task for task in running_on if task.role == PS and task != self.chief]
        others = [task for task in running_on if task not in servers]
        first = [task for task in others if task != self.chief and task not in needed]
        if first and now_s < self._chief_s:
            return first
        if self.chief in others:
            return [*first, self.chief]
        return others or servers


BEFORE_ITS_STATE = (TaskState.PENDING, TaskState.IMPORTING, TaskState.CONNECTED, TaskState.RESTORING)


class Ending:
    """Decides when and how the run ends. Its public attributes are unset while the run goes on."""

    def __init__(self, roster: Roster) -> None:
        self._roster, self._grace_s = roster, roster.settings.launch.grace_s
        self.stop_source = ""  # who asked for the end; set before anything else is done
        self.failure = ""  # why the run cannot continue, if the cause is not the trainer
        self.is_taken = False  # another machine has taken the logdir
        self.lost_host = ""  # the machine whose loss ends the run; the program's exit code does not show it
        self.restarts_elsewhere = False  # it ends to begin again at once on the remaining machines
        self.services_s: float | None = None  # the services' deadline, once no task runs any more
        self._stop_s = 0.0
        self._starts_are_over = False  # the hosts know that there are no more starts
        self._others_are_stopped = False  # the other tasks were ended after the chief, or after one was given up
        self._order = EndOrder(roster.chief.task)

    @property
    def has_begun(self) -> bool:
        return self.services_s is not None or bool(self.stop_source) or self._others_are_stopped

    def next_due_s(self) -> list[float | None]:
        return [self.services_s, self._order.next_due_s([task.task for task in self._roster.running_on()])]

    # -- what ends it --------------------------------------------------------------------------------------
    def stop_asked(self, event: StopAsked, now_s: float, killed: frozenset[TaskId] = frozenset()) -> list[Action]:
        """End the run on request. `killed`: the tasks to kill without asking them first."""
        wanted: list[Action] = []
        again, running_on, chief = bool(self.stop_source), self._roster.running_on(), self._roster.chief
        self.restarts_elsewhere = bool(event.spare) and (self.restarts_elsewhere or not again)
        self.stop_source = self.stop_source or event.source
        if not again:
            self._stop_s = now_s
            wanted.append(WriteRun())  # before any signal: nothing is restarted from here on
            wanted += self._wake_services()
            if event.is_notice:
                notice = entries.PreemptNotice(grace=self._grace_s, source=event.source)
                wanted.append(WriteEntry(notice, chief.task, chief.incarnation))
        if running_on and (event.now or not again):
            is_before = all(task.is_before_session for task in running_on)
            handled = all(task.progress.handles_stop for task in running_on)
            text = wording.stopping(event.source, event.now, is_before, self._grace_s, event.spare, is_handled=handled)
            wanted.append(Say(text))
        if self.services_s is not None:  # no task runs; the services get no more time than a stop gives them
            self.services_s = min(self.services_s, self._services_s(now_s))
        elif event.now or not again:
            why = f"{event.source} asked for an immediate stop" if event.now else event.source
            at_once = frozenset(self._roster.tasks) if event.now else killed
            self._order.begin_end(Request(why, "preempt" if event.is_notice else "final", at_once), now_s)
        return wanted

    def service_lost(
        self, service: ServiceSupervisor, why: str, now_s: float, last_lines: tuple[str, ...]
    ) -> list[Action]:
        """End the run after the loss of a critical service: ask the program to stop, then end
        everything.

        A task that has not received its state yet will never get it from a lost service, so it is
        not waited for.
        """
        said = "\n".join(f"  {line}" for line in last_lines)
        if self._roster.settings.observes or not service.spec.is_critical:
            text = f"{why}; procsv does not restart it, and the program continues"
            return [Say(text, is_bad=True, traceback=said)]
        self.failure = self.failure or why
        told = Say(f"giving up: {why}", is_bad=True, traceback=said)
        if self.has_begun:
            return [told]
        self.stop_source, self._stop_s = "a lost service", now_s
        tasks = self._roster.tasks if service is self._roster.keeper else {}
        stateless = frozenset(name for name, task in tasks.items() if task.life.state in BEFORE_ITS_STATE)
        self._order.begin_end(Request(why, at_once=stateless), now_s)
        return [told, WriteRun()]

    def host_lost(self, lost: TaskLost, now_s: float) -> list[Action]:
        """End the run after the loss of a machine, with what is saved.

        The run begins again if a spare machine can take over. Otherwise its scheduler must start it
        again.
        """
        if self.has_begun:
            return []
        self.lost_host = lost.host
        at_once = self._need_no_time(lost.task) if lost.spare else frozenset[TaskId]()
        asked = StopAsked(f"the loss of {lost.host}", now=False, spare=lost.spare)
        return self.stop_asked(asked, now_s, at_once)

    def _need_no_time(self, lost: TaskId) -> frozenset[TaskId]:
        """Return the tasks to end at once, because all begin again and these have nothing to save:
        all tasks, if the chief needs `lost` to end a step; otherwise all but chief and servers.
        """
        tasks, chief = self._roster.tasks, self._roster.chief.task
        is_stuck = lost.role == PS or lost in self._roster.gang.members
        return frozenset(task for task in tasks if is_stuck or not (task == chief or task.role == PS))

    def logdir_taken(self, by: str, now_s: float) -> list[Action]:
        """End the program at once: nothing more may be written to the logdir, so its state in
        memory is useless.
        """
        if self.is_taken:
            return []
        self.is_taken = True
        self.failure = (
            f"{by} has taken over the logdir, so this run no longer writes there; what is not on disk is lost"
        )
        if not self.stop_source:
            self.stop_source, self._stop_s = "a logdir that was taken", now_s
        at_once = frozenset[TaskId]() if self._roster.settings.observes else frozenset(self._roster.tasks)
        self._order.begin_end(Request(self.failure, at_once=at_once), now_s)
        return [Say(f"giving up: {self.failure}", is_bad=True)]

    # -- the tasks -----------------------------------------------------------------------------------------
    def advance_end(self, now_s: float) -> list[Action]:
        """Do what the state of all tasks requires: end the other tasks, or restart a gang whose old
        processes are gone.
        """
        roster, gang = self._roster, self._roster.gang
        if gang.failure and not self.has_begun:
            self.failure = gang.failure
            self._end_others(Request(self.failure, at_once=gang.members), now_s)
        if not self.is_over and not self.has_begun:
            gang.regroup(now_s)
        if self.is_over and roster.running_on() and not self.has_begun:
            broken = gang.members if roster.given_up() else frozenset[TaskId]()  # they can no longer end a step
            self._end_others(Request("the run ends", at_once=broken), now_s)
        wanted = self._end_tasks(now_s)
        if self._order.request is not None and self._has_lost_server():
            for task in roster.running_on():
                if task.task.role not in STEPLESS and not task.progress.handles_stop:
                    task.stopping.lose_server(now_s)
        if (self.has_begun or self.is_over) and not self._starts_are_over:
            self._starts_are_over = True
            wanted.append(EndStarts())
        return wanted

    @property
    def is_over(self) -> bool:
        """Whether the chief has ended for good, or a task was given up that the run needs."""
        return self._roster.chief.ends_run or bool(self._roster.given_up())

    def _has_lost_server(self) -> bool:
        """Whether a server has ended before the tasks that it serves. It is not restarted, because
        the run ends.
        """
        servers = [
            task for name, task in self._roster.tasks.items() if name.role == PS and task is not self._roster.chief
        ]
        return any(task.progress.has_served and not task.pid for task in servers)

    def _end_others(self, request: Request, now_s: float) -> None:
        self._others_are_stopped = True
        self._order.begin_end(request, now_s)

    def _end_tasks(self, now_s: float) -> list[Action]:
        """Ask the tasks whose turn it is to end. Repeat this while there are any: a task without a
        process ends immediately, and the next may have its turn.
        """
        wanted: list[Action] = []
        roster, followers = self._roster, self._roster.gang.followers
        needed = followers | {one.task for one in roster.running_on() if one.is_serving and one is not roster.chief}
        while (request := self._order.request) is not None:
            # Followers cannot end a step without the chief, so they are ended at once, unless the chief was done: then
            # they may be ending by themselves, too.
            lost = frozenset[TaskId]() if roster.chief.life.state is TaskState.DONE else followers
            due = self._order.take_due([task.task for task in roster.running_on()], now_s, needed)
            for task in due:
                is_at_once = task in request.at_once or task in lost
                wanted += roster.tasks[task].stop(is_at_once, request.why, now_s, request.reason)
            if not due:
                break
        return wanted

    # -- the services --------------------------------------------------------------------------------------
    def begin_closing(self, now_s: float) -> list[Action]:
        """No task runs any more: set the services' deadline."""
        if self.services_s is not None:
            return []
        finish_s_max = max((one.spec.finish_s_max for one in self._roster.services.values()), default=0.0)
        self.services_s = self._services_s(now_s) if self.stop_source else now_s + finish_s_max
        return [WriteRun(), *self._wake_services()]

    def _services_s(self, now_s: float) -> float:
        """Return a stopped run's deadline for its services. With 25 s of grace it is 22 s after the
        stop, but at least 5 s from now.
        """
        after_stop_s = self._stop_s + self._grace_s * (TRAINER_SHARE + SERVICES_SHARE)
        return max(after_stop_s, now_s + self._grace_s * SERVICES_SHARE)

    def _wake_services(self) -> list[Action]:
        """Send SIGCONT to the services: one that is stopped (SIGSTOP) would not receive the message
        that the run ends. The others ignore it.
        """
        running = [service for service in self._roster.services.values() if service.pid]
        return [Signal(service.task, service.incarnation, signal.SIGCONT) for service in running]
