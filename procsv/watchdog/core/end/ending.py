"""End a run, whatever the reason, by ending its tasks in order.

Used by run.py. Pure. Once no task runs any more, closing.py ends the services and then the run:

    stop asked, training done, or given up
      -> the trainer ends           (it has its share of the grace period, then it is killed)
      -> TrainerExited is sent to the checkpoint service
      -> FlushDone is the answer    (the trainer's last state is on disk, or cannot be saved)
      -> Finish is sent to the checkpoint service, which exits
      -> Quit

The summary service gets its Finish as soon as no task runs.
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
    """What to ask of each task.

    `why`: the reason, for the journal and people. `reason`: the one that the last checkpoint
    records. `at_once`: the tasks to kill instead.
    """

    why: str
    reason: Reason = "final"
    at_once: frozenset[TaskId] = frozenset()


class EndOrder(msgspec.Struct):
    """Decide which tasks to ask to end now.

    Workers and evaluators end first, then the chief, then the servers. The chief saves as it ends:
    its last state contains what the workers have trained, and is read from the servers, if any.
    Two kinds of tasks end only after the chief: the other members of a gang, and workers that only
    run functions for the chief (TensorFlow's ClusterCoordinator). The chief cannot end its step
    without them, and it saves what they hold.
    """

    chief: TaskId
    request: Request | None = None
    _asked: set[TaskId] = msgspec.field(default_factory=set)  # the tasks that `take_due` has returned
    _chief_s: float = 0.0  # when the chief is asked at the latest, even if workers still run

    def begin_end(self, request: Request, now_s: float) -> None:
        """Begin to end the tasks.

        A second request replaces the first one. The tasks in its `at_once` are asked again.
        """
        if self.request is None:
            self._chief_s = now_s + HEAD_START_S
        self.request = request
        self._asked -= request.at_once

    def take_due(self, running_on: Collection[TaskId], now_s: float, needed: Collection[TaskId] = ()) -> list[TaskId]:
        """Return the tasks to ask now, each task once.

        `running_on`: the tasks that have not ended. `needed`: the tasks without which the chief
        cannot end its step.
        """
        if self.request is None:
            return []
        due = [task for task in self._turn(running_on, now_s, needed) if task not in self._asked]
        due += [task for task in running_on if task in self.request.at_once - self._asked and task not in due]
        self._asked.update(due)
        return due

    def next_due_s(self, running_on: Collection[TaskId]) -> float | None:
        is_waiting = self.request is not None and self.chief in running_on and self.chief not in self._asked
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
    """Decide when and how the run ends. Until its end begins, the public attributes are empty."""

    def __init__(self, roster: Roster) -> None:
        self._roster, self._grace_s = roster, roster.settings.launch.grace_s
        self.stop_source = ""  # who or what asked for the end; "" if nobody has
        self.failure = ""  # why the run cannot continue, if that is not a task's fault
        self.is_taken = False  # another machine has taken the logdir
        self.lost_host = ""  # the machine whose loss ends the run
        self.restarts_elsewhere = False  # the run ends only to restart at once on the remaining machines
        self.services_s: float | None = None  # the services' deadline, once no task runs any more
        self._stop_s = 0.0  # when the stop was asked
        self._starts_are_over = False  # EndStarts was returned
        # The other tasks are being ended, because the chief has ended, a task that the run needs was given up, or the gang
        # is not restarted.
        self._others_are_stopped = False
        self._order = EndOrder(roster.chief.task)

    @property
    def has_begun(self) -> bool:
        return self.services_s is not None or bool(self.stop_source) or self._others_are_stopped

    def next_due_s(self) -> list[float | None]:
        return [self.services_s, self._order.next_due_s([task.task for task in self._roster.running_on()])]

    # -- what ends it --------------------------------------------------------------------------------------
    def stop_asked(self, event: StopAsked, now_s: float, killed: frozenset[TaskId] = frozenset()) -> list[Action]:
        """End the run on request. `killed`: the tasks to kill without asking them first.

        A second request asks the tasks again only if it says `now`. If it names no spare, the run
        no longer restarts elsewhere.
        """
        wanted: list[Action] = []
        again, running_on, chief = bool(self.stop_source), self._roster.running_on(), self._roster.chief
        self.restarts_elsewhere = bool(event.spare) and (self.restarts_elsewhere or not again)
        self.stop_source = self.stop_source or event.source
        if not again:
            self._stop_s = now_s
            wanted.append(WriteRun())  # first, so that run.json records the stop before any signal is sent
            wanted += self._wake_services()
            if event.is_notice:
                notice = entries.PreemptNotice(grace=self._grace_s, source=event.source)
                wanted.append(WriteEntry(notice, chief.task, chief.incarnation))
        if running_on and (event.now or not again):
            is_before = all(task.is_before_session for task in running_on)
            handled = all(task.progress.handles_stop for task in running_on)
            text = wording.stopping(event.source, event.now, is_before, self._grace_s, event.spare, is_handled=handled)
            wanted.append(Say(text))
        if self.services_s is not None:  # no task runs, so shorten the services' deadline to what a stop allows
            self.services_s = min(self.services_s, self._services_s(now_s))
        elif event.now or not again:
            why = f"{event.source} asked for an immediate stop" if event.now else event.source
            at_once = frozenset(self._roster.tasks) if event.now else killed
            self._order.begin_end(Request(why, "preempt" if event.is_notice else "final", at_once), now_s)
        return wanted

    def service_lost(
        self, service: ServiceSupervisor, why: str, now_s: float, last_lines: tuple[str, ...]
    ) -> list[Action]:
        """End the run after the loss of a critical service.

        Ask the tasks to stop. If the lost service keeps the state, tasks that have not received
        their state yet will never get it, so kill these at once. If the service is not critical, or
        procsv only observes the program, only report the loss.
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
        """End the run after the loss of a machine: the other tasks save and stop.

        If a spare machine can take over, the run restarts at once. Then tasks that have nothing to
        save are killed. Without a spare, a user or a scheduler must launch the run again.
        """
        if self.has_begun:
            return []
        self.lost_host = lost.host
        at_once = self._nothing_to_save(lost.task) if lost.spare else frozenset[TaskId]()
        asked = StopAsked(f"the loss of {lost.host}", now=False, spare=lost.spare)
        return self.stop_asked(asked, now_s, at_once)

    def _nothing_to_save(self, lost: TaskId) -> frozenset[TaskId]:
        """Return the tasks to kill at once before all tasks restart: they have nothing to save.

        Usually these are all tasks but the chief and the servers. If the chief cannot end its step
        without `lost`, they are all tasks: the chief's newest snapshot is all that it could save.
        """
        tasks, chief = self._roster.tasks, self._roster.chief.task
        is_stuck = lost.role == PS or lost in self._roster.gang.members
        return frozenset(task for task in tasks if is_stuck or not (task == chief or task.role == PS))

    def logdir_taken(self, by: str, now_s: float) -> list[Action]:
        """End the run because another machine has taken its logdir.

        The run may no longer write there, so the state in memory is useless. Kill the tasks, but
        only ask an observed program to end.
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
        """Return what the state of all tasks requires.

        Restart a gang once its old processes are gone. Once the run is over, end the other tasks in
        their order, and prepare no more starts. Shorten the time of tasks that wait for a parameter
        server that has ended.
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
        """Whether the chief has ended and will not restart, or a needed task was given up."""
        return self._roster.chief.ends_run or bool(self._roster.given_up())

    def _has_lost_server(self) -> bool:
        """Whether a parameter server that had served has ended.

        The run is ending, so that server will not restart.
        """
        servers = [
            task for name, task in self._roster.tasks.items() if name.role == PS and task is not self._roster.chief
        ]
        return any(task.progress.has_served and not task.pid for task in servers)

    def _end_others(self, request: Request, now_s: float) -> None:
        self._others_are_stopped = True
        self._order.begin_end(request, now_s)

    def _end_tasks(self, now_s: float) -> list[Action]:
        """Ask each task to end when it is the task's turn (EndOrder). Repeat until no task is due.

        A task without a process ends immediately, so the next task may be due at once.
        """
        wanted: list[Action] = []
        roster, followers = self._roster, self._roster.gang.followers
        needed = followers | {one.task for one in roster.running_on() if one.is_serving and one is not roster.chief}
        while (request := self._order.request) is not None:
            # The followers cannot end a step without the chief, so kill them at once. If the chief has completed the
            # training, ask them instead: they may be about to end by themselves.
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
        """Set the services' deadline, unless it is set. Called once no task runs any more."""
        if self.services_s is not None:
            return []
        finish_s_max = max((one.spec.finish_s_max for one in self._roster.services.values()), default=0.0)
        self.services_s = self._services_s(now_s) if self.stop_source else now_s + finish_s_max
        return [WriteRun(), *self._wake_services()]

    def _services_s(self, now_s: float) -> float:
        """Return when the services of a stopped run must have ended.

        With 25 s of grace, that is 22 s after the stop, but at least 5 s from now.
        """
        after_stop_s = self._stop_s + self._grace_s * (TRAINER_SHARE + SERVICES_SHARE)
        return max(after_stop_s, now_s + self._grace_s * SERVICES_SHARE)

    def _wake_services(self) -> list[Action]:
        """Send SIGCONT to the services. A service that runs ignores it.

        A service that is stopped (SIGSTOP) would not receive the message that the run ends.
        """
        running = [service for service in self._roster.services.values() if service.pid]
        return [Signal(service.task, service.incarnation, signal.SIGCONT) for service in running]
