"""Supervise one task of a run through all its attempts. Each attempt is one trainer.

run.py has one TrainerSupervisor for each task. A TrainerSupervisor feeds events to the lifecycle
table (lifecycle.py), and turns the table's actions into actions for the event loop. It has four
helpers: stopping.py ends an attempt, trainer_news.py reads its heartbeats and messages,
next_start.py decides whether another attempt follows, and trainer_facts.py holds the state of the
task. Pure: nothing here reads a clock, a process or a file. Methods receive the time, and what was
observed, as arguments.

If a helper handles an event, its actions come first. The table's actions follow, and then WriteRun,
which writes run.json, if the state of the lifecycle has changed. `start` and `not_started` return
no WriteRun. `died` adds the reports about the end after WriteRun.
"""

from __future__ import annotations

from random import Random

from msgspec.structs import replace

from procsv.base import exit_codes
from procsv.base.clock import first_due_s
from procsv.base.identity import TaskId
from procsv.base.journal import entries
from procsv.base.outcome import NO_STEP, Exit
from procsv.base.run.manifest import Reason
from procsv.base.units import show_duration
from procsv.ipc.messaging import checkpoint_messages, watchdog_messages
from procsv.ipc.shm.heartbeat import NOT_RETURNED, Heartbeat
from procsv.watchdog.core.actions import Action, Say, StartAttempt, WriteEntry, WriteRun
from procsv.watchdog.core.events import Ended, NotStarted, Preparing, Said
from procsv.watchdog.core.reporting import wording
from procsv.watchdog.core.restarts.causes import CauseKind, classify
from procsv.watchdog.core.restarts.restart_policy import Death
from procsv.watchdog.core.settings import AdoptedTask, Settings
from procsv.watchdog.core.task.lifecycle import LifecycleAction, LifecycleEvent, Reaction, TaskState
from procsv.watchdog.core.task.next_start import Past
from procsv.watchdog.core.task.trainer_facts import TrainerFacts
from procsv.watchdog.core.task.trainer_news import TrainerNews, TrainerWatch

_LATE = {TaskState.STOPPING: LifecycleEvent.KILL_ASKED, TaskState.RECYCLING: LifecycleEvent.RECYCLE_LATE}
_DEATHS = {CauseKind.DONE: LifecycleEvent.FINISHED, CauseKind.CHECKPOINTED: LifecycleEvent.CHECKPOINTED}


class TrainerSupervisor(TrainerFacts):
    def __init__(self, task: TaskId, incarnation: int, settings: Settings, rng: Random, now_s: float) -> None:
        super().__init__(task, incarnation, settings, rng, now_s)
        self._observes = settings.observes
        self._state_of: TrainerSupervisor = self  # the task from whose state the attempts resume
        self._news = TrainerNews(self)
        self._watch = TrainerWatch(task, self.hanging, self.protection, self.progress, self.record, settings.observes)

    # -- starts --------------------------------------------------------------------------------------------
    def start(self, now_s: float) -> list[Action]:
        if not self.standby_wait_s:
            return self._do((LifecycleAction.SPAWN,), now_s)
        self.next.due_s = now_s
        return self._do(self.life.handle(LifecycleEvent.AWAITS_STANDBY), now_s)

    def note_standby(self, news: Preparing) -> None:
        """Note how long a due start waits for the standby, and whether the standby is alive.

        The task's host, the launch on whose machine the task runs, keeps the standby.
        """
        self.standby_wait_s, self.standby_is_alive = news.wait_s, news.is_alive

    def adopt(self, one: AdoptedTask, now_s: float) -> list[Action]:
        """Take over a trainer that a previous coordinator started. The attempt continues."""
        self.incarnation, self.pid, self.was_connected = one.incarnation, one.pid, True
        self.hanging.start_watch(now_s)
        self.protection.start_attempt(now_s)
        adopted = WriteEntry(entries.Adopted(pid=one.pid, host=one.host), self.task, self.incarnation)
        wanted: list[Action] = [adopted, Say(wording.goes_on_after_coordinator(self.task, one))]
        if one.is_ready:
            self.record.adopted(self.incarnation, now_s)
            self.history.ready(self.durable_step)
            wanted += self._handle(LifecycleEvent.READY, now_s)
        return wanted

    def not_started(self, news: NotStarted, now_s: float) -> list[Action]:
        state = self.life.state
        self.stopping.never_began()
        if state is TaskState.STOPPING:  # the attempt was asked to end before its process existed, so it has ended
            return self._do(self.life.handle(LifecycleEvent.NOT_STARTED, news.error), now_s)
        wanted: list[Action] = []
        self.next.due_s = now_s
        # In RECYCLING, the attempt was asked to end before its process existed, so nothing failed. With
        # `is_tried_again`, the host has already reported the failure.
        if state is not TaskState.RECYCLING and not news.is_tried_again:
            wanted.append(Say(f"cannot start the {self.task}: {news.error}; trying again", is_bad=True))
            self.next.due_s += self.history.not_spawned_delay_s()
        # Drop the table's action DECIDE_RESTART: no attempt has died, and `next.due_s` is already set.
        self.life.handle(LifecycleEvent.NOT_STARTED, news.error)
        if news.is_tried_again:
            wanted += self.stopping.clear(self.incarnation, now_s)
        return wanted

    # -- heartbeats and messages ---------------------------------------------------------------------------
    def beat(self, beat: Heartbeat, now_s: float) -> list[Action]:
        """Handle the running trainer's current heartbeat."""
        return self._follow(self._news.read_beat(beat), now_s) if self.pid else []

    def see_memory(self, step: int) -> None:
        """Note the step of the newest snapshot in memory."""
        self.snapshots.see_memory(step, self.progress.own_step)

    def said(self, said: Said, now_s: float) -> list[Action]:
        """Handle a message from the newest attempt. Ignore a message from an older attempt."""
        if said.incarnation != self.incarnation:
            return []
        if not self.pid:
            return self._news.said_at_its_end(said.body)
        return self._follow(self._news.said(said.body), now_s)

    # -- the end of an attempt -----------------------------------------------------------------------------
    def died(self, ended: Ended, now_s: float) -> list[Action]:
        if ended.incarnation != self.incarnation:
            return []
        wanted: list[Action] = []
        if ended.beat is not None:
            wanted += self._news.read_beat(ended.beat).wanted
        self.progress.see_taken(ended.taken_step)
        # `beat.returned` is the exit code of a main module that has run to its end. It counts only if the program had a
        # session. In other programs, the main module may return at once while other threads do the work.
        is_known = ended.beat is not None and self.hanging.liveness.had_session
        code = ended.beat.returned if ended.beat is not None and is_known else NOT_RETURNED
        # If the main module had returned before a signal killed the process, the main module's exit code counts.
        if code != NOT_RETURNED and ended.exit.code is None:
            wanted.append(Say(wording.killed_after_its_end(ended.exit, code)))
            ended = replace(ended, exit=Exit(code, None))
        has_not_returned = ended.beat is None or ended.beat.returned == NOT_RETURNED
        was_told_to_end = self.got_notice if self.life.is_live else self.life.state is TaskState.RECYCLING
        if ended.exit.code == exit_codes.DONE and has_not_returned and was_told_to_end and not self._observes:
            # The process exited with 0, although the main module had not returned. The program probably called
            # os._exit(0) after its loop was asked to end, so treat the program as stopped, not as complete.
            ended = replace(ended, exit=Exit(exit_codes.RESUMABLE, None))
        # If a program returns 0 after a request to end, its exit code becomes 75 (bootstrap.py). So a main module that
        # returned another code did not end because of the request: it had ended before, or it failed. There is
        # one exception: bootstrap.py keeps the 0 if the run ends and the program has its own SIGTERM handler.
        is_in_time = code in (NOT_RETURNED, exit_codes.RESUMABLE)
        is_asked = (
            is_in_time and self.life.state in (TaskState.STOPPING, TaskState.RECYCLING) and not self.next.lost_peer
        )
        is_stopping = is_asked or self.ends_run
        kind, told = self.record.died(ended, self.pid, self.hanging, now_s, is_stopping=is_stopping)
        wanted += told
        self.hanging.end_watch()
        self.pid = 0
        if self.progress.keeps_state:
            is_clean = is_stopping or kind in (CauseKind.DONE, CauseKind.CHECKPOINTED)
            self.last_save.ask_about(self.incarnation, is_clean=is_clean)
        if kind is CauseKind.DONE and self.progress.handles_stop and self.life.state is TaskState.RECYCLING:
            # The program's own handler ended the program as asked, so exit code 0 does not mean that it was complete.
            kind = CauseKind.CHECKPOINTED
        how = f"{ended.exit} at step {self.progress.own_step}"
        event = _DEATHS.get(kind, LifecycleEvent.CRASHED)
        # The 0 proves that the program was complete before it was asked to stop, unless the program has its own SIGTERM
        # handler. Such a program may have returned 0 because of the request (the exception above).
        is_returned = code != NOT_RETURNED and not self.progress.handles_stop
        if event is LifecycleEvent.FINISHED and is_returned and self.life.state is TaskState.STOPPING:
            event = LifecycleEvent.COMPLETED
        wanted += self._handle(event, now_s, how)
        wanted += self.record.tell_report()
        wanted += self.next.tell_end()
        was_killed = ended.exit.signal is not None and not (is_asked or self.ends_run or ended.lost)
        if was_killed and self.progress.keeps_state and not self._observes:
            wanted += self.protection.warn(self.task, self.incarnation, now_s, is_killed=True)
        return wanted

    def tree_gone(self, incarnation: int, now_s: float) -> list[Action]:
        is_news = incarnation == self.incarnation and self.stopping.note_cleared()
        return self._handle(LifecycleEvent.TREE_GONE, now_s) if is_news else []

    # -- the gang ------------------------------------------------------------------------------------------
    def bind(self, chief: TrainerSupervisor, size: int) -> None:
        """Make the task a member of a gang of `size` tasks.

        All members share the chief's record of failures, and resume from the chief's state.
        """
        self._state_of = chief
        self.next.bind(chief.next, size)

    def end_with_gang(self, why: str, now_s: float) -> list[Action]:
        """End the attempt because its gang restarts. This does not count as a failure of the task.

        The next start waits until all members of the gang have ended.
        """
        self.next.awaits_gang = True
        if self.life.state is TaskState.DONE:
            self.ends_run, self.next.due_s = False, now_s
        elif self.life.state is not TaskState.BACKOFF:
            frozen = "a signal (SIGSTOP) had stopped it; " if self.record.is_frozen else ""
            self.next.lost_peer = f"{frozen}{why}"
        return self._handle(LifecycleEvent.GANG_BREAKS, now_s, why)

    # -- the last state ------------------------------------------------------------------------------------
    def durable(self, news: checkpoint_messages.Durable) -> None:
        self.progress.durable(news)
        self.history.durable(news.step)

    def settled(
        self, news: watchdog_messages.FlushDone, of: watchdog_messages.TrainerExited, now_s: float
    ) -> list[Action]:
        """Handle the checkpoint service's answer: the last state is on disk, or cannot be saved.

        `of`: the question that the service answers. Do nothing if this question is no longer open.
        """
        return self.decide_postponed(now_s) if self.last_save.flush_answered(of, news.error) else []

    def decide_postponed(self, now_s: float) -> list[Action]:
        """Decide whether to restart, if the decision had to wait for the save of the last state.

        Call this once that state is on disk, or cannot be saved.
        """
        return self._follow(self.next.weigh(now_s), now_s)

    def go_back(self, step: int) -> list[Action]:
        """Let the next attempt resume from an older state than the one at `step`.

        Attempts that resumed from that state crashed repeatedly.
        """
        # If another task of the gang crashed, this task may still run until it is ended with the gang.
        self.last_save.avoid(step, self.incarnation, is_running=bool(self.pid))
        suspected = WriteEntry(entries.StateSuspected(step=step), self.task, self.incarnation)
        return [Say(wording.going_back(step), is_bad=True), suspected]

    # -- requests ------------------------------------------------------------------------------------------
    def stop(self, now: bool, why: str, now_s: float, reason: Reason = "final") -> list[Action]:
        """End the task because the run ends.

        `now`: kill the trainer instead of asking it to end. `reason`: recorded in its last checkpoint.
        """
        if now:
            self.stopping.we_killed = why
        self.stopping.reason = reason
        self.next.stop_asked()
        return self._handle(LifecycleEvent.KILL_ASKED if now else LifecycleEvent.STOP_ASKED, now_s, why)

    def recycle(self, why: str, by_hand: bool, now_s: float) -> list[Action]:
        """Ask the trainer to save and end, then restart it. This does not count as a failure.

        `by_hand`: a user asked for the restart, so forget all failures, and start now if the next
        start is delayed.
        """
        if by_hand:
            self.history.forgive()
            self.next.due_s = now_s if self.next.due_s is not None else None
        wanted: list[Action] = []
        if self.life.is_live:
            self.stopping.recycle(why)
            wanted.append(Say(f"restarting the program: {why}"))
        return [*wanted, *self._handle(LifecycleEvent.RECYCLE_ASKED, now_s, why)]

    def preempt(self, grace_s: float, source: str, now_s: float) -> list[Action]:
        """Give the trainer a preemption notice, kill it after the grace period, and restart it."""
        if not self.pid or not self.life.is_live:
            return []
        notice = WriteEntry(entries.PreemptNotice(grace=grace_s, source=source), self.task, self.incarnation)
        told = Say(f"{source}: preempting the program, {show_duration(grace_s)} of grace")
        self.stopping.preempt(source, grace_s)
        return [notice, told, *self._handle(LifecycleEvent.RECYCLE_ASKED, now_s, source)]

    # -- checks and deadlines ------------------------------------------------------------------------------
    def watch(self, beat: Heartbeat | None, is_stopped: bool, activity: int | None, now_s: float) -> list[Action]:
        """Check whether the running trainer makes progress.

        `activity`: a number that changes whenever one of the trainer's processes does anything;
        None if nobody has read it.
        """
        state = self.life.state
        found = self._watch.watch_trainer(state, self.incarnation, beat, is_stopped, activity, now_s)
        return self._follow(found, now_s)

    def see_room(self, has_room: bool, now_s: float) -> list[Action]:
        """Handle a check of the logdir's disk, if this task waits for room on that disk."""
        return self._follow(self.next.see_room(has_room, now_s), now_s) if self.next.awaits_room else []

    def check_deadlines(self, now_s: float) -> list[Action]:
        wanted: list[Action] = []
        if self.life.state is TaskState.HUNG:
            wanted += self.hanging.climb(self.incarnation, now_s)
            if self.hanging.is_to_be_killed(now_s):
                wanted += self._do((LifecycleAction.KILL_TREE,), now_s)
        late = _LATE.get(self.life.state)
        if self.stopping.take_overdue_stop(now_s, is_killed=late is not None):
            if self._observes:
                wanted.append(Say(wording.NOT_STOPPED, is_bad=True))
            elif late is not None:
                wanted += self._handle(late, now_s, self.stopping.we_killed)
        if self.stopping.take_surviving_tree(now_s):
            wanted += self._handle(LifecycleEvent.TREE_STAYS, now_s)
        start_s = self._start_s()
        if start_s is not None and now_s >= start_s and self.life.state is TaskState.BACKOFF:
            wanted += self._handle(LifecycleEvent.DELAY_OVER, now_s)
        return wanted

    def _start_s(self) -> float | None:
        """Return the latest time of the next start: when it is due, plus the wait for a standby.

        None if no start is planned, if other members of the gang have not ended, or while processes
        of the last trainer are left.
        """
        if self.next.due_s is None or not self.stopping.tree_is_gone or self.next.awaits_gang:
            return None
        return self.next.due_s + self.standby_wait_s

    def awaits_start(self, now_s: float) -> bool:
        """Whether the next start is due, but waits for the standby."""
        start_s, due_s = self._start_s(), self.next.due_s
        is_due = start_s is not None and due_s is not None and due_s <= now_s < start_s
        return is_due and self.life.state is TaskState.BACKOFF

    def next_due_s(self) -> float | None:
        """Return when `check_deadlines` next has something to do; None if there is no deadline."""
        return first_due_s((self._start_s(), *self.stopping.dues_s(), self.hanging.next_due_s()))

    # -- the lifecycle table -------------------------------------------------------------------------------
    def _follow(self, reaction: Reaction, now_s: float) -> list[Action]:
        """Return a helper's actions, then the actions that the table has for its event."""
        wanted, event, detail = reaction
        return wanted if event is None else [*wanted, *self._handle(event, now_s, detail)]

    def _handle(self, event: LifecycleEvent, now_s: float, detail: str = "") -> list[Action]:
        was = self.life.state
        wanted = self._do(self.life.handle(event, detail), now_s)
        return wanted if self.life.state is was else [*wanted, WriteRun()]

    def _do(self, actions: tuple[LifecycleAction, ...], now_s: float) -> list[Action]:
        return [wanted for action in actions for wanted in self._do_one(action, now_s)]

    def _do_one(self, action: LifecycleAction, now_s: float) -> list[Action]:
        match action:
            case LifecycleAction.SPAWN:
                return self._spawn(now_s)
            case LifecycleAction.DUMP_STACKS:
                return self.hanging.start_escalation(self.incarnation, now_s)
            case LifecycleAction.REPORT_HANG:
                return self.hanging.report_hang(
                    self.incarnation, now_s, "procsv did not start it, so procsv does not end it"
                )
            case LifecycleAction.REPORT_PROGRESS:
                return self._watch.report_progress(self.incarnation)
            case LifecycleAction.TELL_STOP:
                self.hanging.end_watch()
                ends_run = self.life.state is TaskState.STOPPING
                return self.stopping.tell(self.incarnation, ends_run=ends_run, now_s=now_s)
            case LifecycleAction.KILL_TREE:
                self.hanging.end_watch()
                return self.stopping.kill(self.incarnation, now_s)
            case LifecycleAction.CLEAN_UP:
                last = self.record.last_death
                has_ended = last is not None and last.exit.code == 0 and not self._observes
                return self.stopping.clear(self.incarnation, now_s, has_ended=has_ended)
            case LifecycleAction.DECIDE_RESTART:
                return self._decide_restart(now_s)
            case LifecycleAction.ALERT:
                text = (
                    f"processes of {self.task} {self.incarnation} are still there after SIGKILL, probably because they "
                    "wait for a disk or a device. They may still write to the logdir, so procsv does not restart the "
                    "task until they are gone. Repair the disk or the device, or reboot"
                )
                return [Say(text, is_bad=True)]
            case LifecycleAction.END_RUN:
                self.ends_run, self.next.due_s = True, None
                return []

    def _spawn(self, now_s: float) -> list[Action]:
        if self.record.last_death is not None and self.record.last_death.incarnation == self.incarnation:
            self.incarnation += 1
            self.restarts += 1
        due_s = self.next.due_s if self.next.due_s is not None else now_s
        self.next.begin_attempt()
        self.got_notice = False
        self.stopping.start_attempt()
        self.hanging.start_watch(now_s)
        self.protection.start_attempt(now_s)
        return [StartAttempt(self.task, self.incarnation, due_s)]

    def _decide_restart(self, now_s: float) -> list[Action]:
        ended, stopping = self.record.last_death, self.stopping
        assert ended is not None, "asked to decide on a restart, but no attempt has died"
        if self.ends_run:
            return []
        if self._observes and ended.exit.code in (exit_codes.RESUMABLE, exit_codes.INTERRUPTED):
            # The observed program stopped by itself, or by Ctrl-C.
            return self._handle(LifecycleEvent.STOP_ASKED, now_s, str(ended.exit))
        is_own_end = classify(ended.exit) is CauseKind.CHECKPOINTED or (
            self.progress.handles_stop and ended.exit.code is not None
        )
        is_planned = stopping.was_killed_late or (bool(stopping.recycled) and is_own_end)
        no_room = ended.no_room or (ended.words is not None and ended.words.no_room)
        death = Death(ended.exit, ended.words, self.progress.own_step, self.record.last, no_room, now_s)
        past = Past(
            self.incarnation, death, stopping.recycled, is_planned, self.protection.serves, self.record.unsaved_s
        )
        suspected_step, decided = self.next.decide(past, now_s)
        gone_back = self._state_of.go_back(suspected_step) if suspected_step != NO_STEP else []
        return [*gone_back, *self._follow(decided, now_s)]
