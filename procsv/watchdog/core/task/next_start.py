"""Decide whether and when a task starts again after an end.

Used by trainer.py, which carries out the decision. Pure. The tasks of a gang share the chief's
record of failures, and resume from the chief's state. They start together, once the last process of
the old gang is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import msgspec
from msgspec import UNSET

from procsv.base.identity import TaskId
from procsv.base.journal import entries
from procsv.base.outcome import NO_STEP
from procsv.watchdog.core.actions import Action, Say, WriteEntry
from procsv.watchdog.core.reporting import wording
from procsv.watchdog.core.restarts.restart_policy import Death, GiveUp, History, Restart, Verdict
from procsv.watchdog.core.settings import Settings
from procsv.watchdog.core.task.lifecycle import LifecycleEvent, Reaction
from procsv.watchdog.core.task.progress import TaskProgress


class Past(msgspec.Struct, frozen=True):
    """The attempt that has ended."""

    incarnation: int
    death: Death
    recycled: str  # why it was asked to save and end for a restart; "" if it was not
    is_planned: bool  # it was asked to end for a restart, and did so, or was killed because it was late
    serves: bool  # it serves variables to other tasks
    unsaved_s: float | None = None  # how long it trained after its last save (TaskProgress.unsaved_s)


class NextStart:
    def __init__(self, task: TaskId, settings: Settings, rng: Random, progress: TaskProgress) -> None:
        self._task, self._progress = task, progress
        self._observes, self._is_detached = settings.observes, settings.launch.detach
        self.history = History(settings.launch, rng, restarts=not settings.observes)
        self.due_s: float | None = None  # monotonic time
        self.gave_up = ""  # why there is no next start
        # Returns how many workers are left after this task was given up; None if the run ends.
        self.goes_on_with: Callable[[], int | None] = lambda: None
        self.ended_run = False  # giving up this task ended the run, and that has been reported
        self.gang_size = 0  # tasks in its gang, this one included; 0: it is in none
        self.awaits_room = False  # a full disk ended the attempt, and the next start waits for room
        # Monotonic: no start before this time even if there seems to be room. The disk that we check may not be the full one.
        self._room_due_s = 0.0
        self.awaits_gang = False  # the start waits until the whole gang is gone
        self.lost_peer = ""  # why the attempt was ended, if another member of its gang had ended
        self._kept = progress  # the progress of the task whose state is resumed; in a gang, this is the chief
        self._past: Past | None = None
        # A decision to give up that is not final: the state that is being saved may count as progress.
        self._verdict: GiveUp | None = None
        self._unprinted_end = ""  # how the last attempt ended, until that is printed

    # -- its gang ------------------------------------------------------------------------------------------
    def bind(self, chief: NextStart, size: int) -> None:
        """Make the task a member of a gang of `size` tasks.

        From now on it uses the chief's record of failures, and resumes from the chief's state.
        """
        self.history, self.gang_size, self._kept = chief.history, size, chief._kept

    def rejoin(self, start_s: float) -> None:
        """Let the task start at `start_s`: all old processes of its gang are gone."""
        self.awaits_gang, self.due_s = False, start_s

    # -- the attempt that is started -----------------------------------------------------------------------
    def begin_attempt(self) -> None:
        """Note that the next attempt starts now, and which state it can resume from."""
        kept = self._kept
        is_early = self.history.durable_step == NO_STEP
        self._progress.start_attempt(kept.snapshots.memory_step if is_early else kept.resume_step)
        self.due_s, self.lost_peer = None, ""

    # -- what follows --------------------------------------------------------------------------------------
    def decide(self, past: Past, now_s: float) -> tuple[int, Reaction]:
        """After a death, decide when the next attempt starts, or that none does.

        If the decision depends on a save that is under way, `weigh` decides later. Also return the
        step of the state that the attempt resumed from, if that state is now suspect because such
        attempts crash repeatedly; otherwise NO_STEP.
        """
        self._past = past
        if self.lost_peer:
            return NO_STEP, self._start_again(0.0, now_s)
        if past.is_planned:
            return NO_STEP, self._start_again(self.history.end_planned(past.death.attempt), now_s)
        return self._count(past.death, now_s)

    def see_room(self, has_room: bool, now_s: float) -> Reaction:
        """After a check of the full disk, schedule the next start, give up, or continue to wait."""
        if has_room:
            self.awaits_room = False
            return self._start_again(max(0.0, self._room_due_s - now_s), now_s)
        if why := self.history.disk_wait_over_why(now_s):
            self.awaits_room = False
            return self._give_up(why)
        return Reaction([])

    def _await_room(self, delay_s: float, now_s: float, *, is_first: bool) -> Reaction:
        self.awaits_room, self._room_due_s = True, now_s + delay_s
        if not is_first:
            return Reaction([])
        kept = self._kept
        text = wording.awaits_room(self.history.launch.disk_wait_s, kept.snapshots.memory_step, kept.saved_step)
        return Reaction([Say(text, is_bad=True)])

    def _count(self, death: Death, now_s: float) -> tuple[int, Reaction]:
        is_first = self.history.disk_full_s is None  # no earlier attempt since the last save was ended by a full disk
        verdict, kept = self.history.decide_restart(death), self._kept
        resumed_step, newest_step = self._progress.resumed_step, max(kept.resume_step, kept.snapshots.taken_step)
        may_save = self._progress.keeps_state or self.gang_size > 0  # the state that it trained is saved
        is_over = isinstance(verdict, GiveUp) and verdict.is_final
        suspected_step = NO_STEP
        if may_save and self.history.count_crash(death, resumed_step, newest_step) and not is_over:
            suspected_step = kept.suspected_step = resumed_step
        return suspected_step, self._follow(verdict, death, now_s, is_first=is_first, may_save=may_save)

    def _follow(self, verdict: Verdict, death: Death, now_s: float, *, is_first: bool, may_save: bool) -> Reaction:
        if isinstance(verdict, Restart) and death.no_room and death.is_own_end:
            return self._await_room(verdict.delay_s, now_s, is_first=is_first)
        if isinstance(verdict, Restart):
            return self._start_again(verdict.delay_s, now_s)
        if verdict.is_final or not may_save:
            resumes = ", and it resumes" if self._observes and self._progress.resume_step >= 0 else ""
            return self._give_up(verdict.why + resumes)
        self._verdict = verdict  # `weigh` decides again once the save under way has ended
        return Reaction([])

    def weigh(self, now_s: float) -> Reaction:
        """Decide again, if the decision was put off. Call this once the last state is on disk or
        cannot be saved, because then the progress is known.
        """
        verdict, self._verdict = self._verdict, None
        if verdict is None:
            return Reaction([])
        if self.history.is_spent():
            return self._give_up(verdict.why)
        # There was progress after all.
        return self._give_up(verdict.why_regardless) if verdict.why_regardless else self._start_again(0.0, now_s)

    def stop_asked(self) -> None:
        """Cancel any pending decision about a restart."""
        self._verdict, self.awaits_room = None, False

    def _start_again(self, delay_s: float, now_s: float) -> Reaction:
        self.due_s, past, kept = now_s + delay_s, self._past, self._kept
        assert past is not None, "a restart after no attempt"
        why = past.recycled or self.lost_peer
        restarting = entries.Restarting(
            delay=round(delay_s, 3),
            lost_steps=self._progress.lost_steps,
            lost_seconds=UNSET if past.unsaved_s is None else round(past.unsaved_s, 3),
            why=why,
        )
        journal = WriteEntry(restarting, self._task, past.incarnation)
        if self.lost_peer:
            return Reaction([journal])  # the end of the other task is already reported
        resumes = self.gang_size > 0 or (
            self._progress.keeps_state and not self._progress.outlives_attempts and not past.serves
        )
        memory_step, saved_step = kept.snapshots.memory_step, kept.saved_step
        text = wording.starting_again(
            delay_s,
            memory_step,
            saved_step,
            keeps_state=resumes,
            count=self.gang_size,
            habit=kept.habit,
            was_seen=kept.step != NO_STEP,
            suspected_step=kept.suspected_step,
        )
        unprinted, self._unprinted_end = self._unprinted_end, ""
        return Reaction([journal, Say(f"{unprinted}; {text}" if unprinted else text, is_bad=bool(unprinted))])

    def _give_up(self, why: str) -> Reaction:
        wanted = self.tell_end()
        past, self.gave_up = self._past, why
        assert past is not None, "given up after no attempt"
        # On a terminal the program's own output, with its traceback, is directly above.
        words = past.death.words
        traceback = words.traceback if words and self._is_detached else ""
        left = self.goes_on_with()
        self.ended_run = left is None
        entry = entries.GaveUp(why=why) if left is None else entries.TaskGivenUp(why=why, workers=left)
        wanted.append(WriteEntry(entry, self._task, past.incarnation))
        if not self._observes:  # an observed program is never restarted, so there is nothing to say
            text = f"gave up: {why}" if left is None else wording.goes_on_without(self._task, why, left)
            wanted.append(Say(text, is_bad=True, traceback=traceback))
        return Reaction(wanted, LifecycleEvent.GAVE_UP, why)

    # -- reports about the last attempt --------------------------------------------------------------------
    def keep_end(self, text: str) -> list[Action]:
        """Print how the last attempt ended. For a member of a gang, print that later, together with
        what follows.
        """
        self._unprinted_end = text
        return [] if self.gang_size else self.tell_end()

    def tell_end(self) -> list[Action]:
        """Print how the last attempt ended, unless that was printed."""
        unprinted, self._unprinted_end = self._unprinted_end, ""
        return [Say(unprinted, is_bad=True)] if unprinted else []
