"""Judge whether procsv protects a program: whether it sees a session and saves its state.

If it does not, the user is warned. Used by trainer.py. Pure. The judgement covers all attempts of a
launch: if one of them had a session, the program counts as a program with a session.
"""

from __future__ import annotations

import math

import msgspec

from procsv.base.identity import TaskId
from procsv.base.journal import entries
from procsv.base.outcome import SaveHabit
from procsv.ipc.messaging.launch_settings import LaunchSettings
from procsv.ipc.shm.heartbeat import Heartbeat, Phase, Spacing
from procsv.watchdog.core.actions import Action, Say, WriteEntry
from procsv.watchdog.core.hangs.trainer_liveness import WITHOUT_SESSION
from procsv.watchdog.core.reporting import wording


class Protection(msgspec.Struct):
    launch: LaunchSettings
    has_session: bool = False  # the program has, or had, a session of ours
    is_saved: bool = False  # procsv takes snapshots of it
    serves: bool = False  # it serves variables, and another process saves them
    restores: bool | None = True  # as SaveHabit.restores
    _is_unsaved: bool = False  # it trains, but procsv takes no snapshots
    _started_s: float = math.inf  # when the first attempt started
    _is_warned: bool = False

    def start_attempt(self, now_s: float) -> None:
        self._started_s = min(self._started_s, now_s)

    def see(self, beat: Heartbeat) -> Say | None:
        """Read the program's heartbeat.

        Return a message if snapshots begin after the warning that nothing is saved; otherwise None.
        """
        is_news = not self.is_saved and beat.snapshots.spacing is not Spacing.NONE
        self.is_saved |= is_news
        self.has_session |= self.is_saved or beat.phase not in WITHOUT_SESSION or beat.step >= 0
        self.serves |= beat.phase is Phase.SERVE
        self._is_unsaved = not self.is_saved and (self._is_unsaved or beat.phase is Phase.STEP)
        return Say("a session has begun: its state is saved from here on") if is_news and self._is_warned else None

    def see_first_step(self, task: TaskId, incarnation: int, habit: SaveHabit, saved_step: int) -> list[Action]:
        """Note the first step of an attempt. If the program restored nothing, return the warning.

        `saved_step`: of the state that the program could have restored.
        """
        self.has_session = True
        is_news = habit.restores is False and self.restores is not False
        self.restores = habit.restores
        if not is_news:
            return []
        told = WriteEntry(entries.NotRestored(step=saved_step), task, incarnation)
        return [told, Say(wording.not_restored(saved_step, habit), is_bad=True)]

    def is_protected(self, is_over: bool) -> bool | None:
        """Whether procsv saves the program's state, and the program restores it.

        None while that is unknown, and for a program whose variables another process saves.
        `is_over`: the run has ended, so a program without a session will not open one any more.
        """
        if self.serves and not self.is_saved:
            return None
        if self.restores is not True and self.is_saved:
            return self.restores
        return (
            False if self._is_unsaved or ((self._is_warned or is_over) and not self.is_saved) else self.is_saved or None
        )

    def warn(self, task: TaskId, incarnation: int, now_s: float, *, is_killed: bool = False) -> list[Action]:
        """Warn once that nothing is saved.

        Do so if the program has not opened a session in the time allowed, or was killed before
        (`is_killed`).
        """
        seconds = now_s - self._started_s
        if self._is_warned or self.has_session or not (is_killed or seconds >= self.launch.session_s):
            return []
        self._is_warned = True
        told = WriteEntry(entries.Unprotected(seconds=round(seconds, 1)), task, incarnation)
        return [told, Say(wording.unprotected(seconds, self.launch.drop_in, is_killed=is_killed), is_bad=True)]
