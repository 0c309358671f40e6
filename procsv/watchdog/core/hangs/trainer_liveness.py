"""Liveness of a trainer: a deadline for each phase, a learned one for a step.

Used by escalation.py.  Pure: the heartbeat and the time are arguments.  What counts is progress, which the heartbeat shows: a new
phase, a new step, a call of the session that has ended, a module that was imported.  That a process answers, or beats, proves
nothing: a thread of it may do that while training is stuck.

    phase     at most                                                    progress within it
    import    300 s       until the session is asked for                 anything that its processes do
    connect   1800 s      until the state is being loaded                -
    restore   600 s                                                      -
    compile   1800 s      until the first step has ended                 a call ended
    step      20 x the median step, within 120 s and 1800 s; or as told  a call ended, the step rose
    save      900 s       the last checkpoint, a Saver's own             -
    stop      900 s       threads are joined, the program has returned   -
    idle      unlimited   between two sessions, and after the last       -
    serve     unlimited   a parameter server, as long as others want it  -

Before its first session a program shows nothing but whether its processes do anything (tree_activity.py): it may be no training at all.
One that does nothing is suspected, and nothing more.  Only where an attempt before it had a session is it known to be a hang.

`procsv.extend(seconds)` pushes whatever deadline there is.  Time in which the watchdog itself did not look (it was
stopped, or the whole machine was) does not count, nor time in which the task waits for another (waiting.py).
"""

from __future__ import annotations

import bisect
import math
from collections import Counter, deque

import msgspec

from procsv.ipc.messaging.launch_settings import LaunchSettings
from procsv.ipc.shm.heartbeat import Heartbeat, Phase
from procsv.watchdog.core.hangs.tree_activity import TreeActivity

STEP_S_LEAST, STEP_S_MOST = 120.0, 1800.0  # of the learned limit
STEP_MEDIANS = 20.0  # the limit is so many times the median step
STEPS_KNOWN_MIN = 3  # measured before the median is believed; until then a step may take STEP_S_MOST
STEPS_KNOWN_MAX = 201  # measured last; the median is over these
LOOK_GAP_S_MAX = 5.0  # between two looks; of a longer gap only so much counts
WITHOUT_SESSION = frozenset({Phase.IMPORT, Phase.STOP})  # phases that need none; STOP: the program has returned
# A heartbeat that has not been written for so long makes a trainer suspect, and nothing more.  A server does nothing but be there,
# and those who wait for one that is frozen get no error: it has hung.
SILENT_S_MIN = 10.0


class Hang(msgspec.Struct, frozen=True):
    """No progress for longer than the phase allows."""

    phase: Phase
    seconds: float
    limit_s: float
    step: int
    told: str = ""  # where there is more to say than the phase


class StepTimes(msgspec.Struct):
    """How long a step takes, by its median; `known_s` is what an earlier launch has learned (0.0: nothing)."""

    known_s: float = 0.0
    _measured: deque[float] = msgspec.field(default_factory=deque)
    _sorted: list[float] = msgspec.field(
        default_factory=list
    )  # the same: of many tasks, each is asked for it every second

    def add_step(self, seconds: float) -> None:
        if len(self._measured) == STEPS_KNOWN_MAX:
            del self._sorted[bisect.bisect_left(self._sorted, self._measured.popleft())]
        self._measured.append(seconds)
        bisect.insort(self._sorted, seconds)

    @property
    def median_s(self) -> float:
        """0.0 as long as nothing is known."""
        if len(self._measured) < STEPS_KNOWN_MIN:
            return self.known_s
        middle = len(self._sorted) // 2
        return self._sorted[middle] if len(self._sorted) % 2 else (self._sorted[middle - 1] + self._sorted[middle]) / 2

    @property
    def limit_s(self) -> float:
        median_s = self.median_s
        if not median_s:
            return STEP_S_MOST
        return min(STEP_S_MOST, max(STEP_S_LEAST, STEP_MEDIANS * median_s))


class Liveness(msgspec.Struct):
    """One task's trainers, one after the other.  `steps` outlives them, and so does the record of hangs."""

    launch: LaunchSettings
    steps: StepTimes
    calls: StepTimes = msgspec.field(
        default_factory=StepTimes
    )  # of the task's own: of several, each sees all steps rise
    _last: Heartbeat | None = None
    _quiet_s: float = 0.0  # since the last progress, as far as we looked
    _looked_s: float = 0.0
    _stepped_s: float | None = None  # when the step last rose
    _called_s: float | None = None  # when a call of its own has last ended
    _hang_step: int = -1  # the highest at which a hang was found
    _hangs: Counter[Phase] = msgspec.field(default_factory=Counter)  # with no step beyond that one since
    _has_session: bool = False  # the trainer that runs has, or had, one
    _had_session: bool = False  # or one before it
    _tree: TreeActivity = msgspec.field(default_factory=TreeActivity)

    def start_watch(self, now_s: float) -> None:
        """A new trainer is started: nothing that the one before said counts for it."""
        self._last, self._stepped_s, self._called_s, self._has_session = None, None, None, False
        self.calls = StepTimes()
        self._quiet_s, self._looked_s = 0.0, now_s
        self._tree = TreeActivity()

    def see_session(self) -> None:
        """The trainer that runs has a session: from here on it is known what it is to do."""
        self._has_session = self._had_session = True

    def wants_activity(self, now_s: float) -> bool:
        """Whether it is to be looked whether the program's processes do anything."""
        return not self._has_session and self.launch.watches_for_hangs and self._tree.is_due(self._limit_s, now_s)

    def read_activity(self, activity: int | None, now_s: float) -> None:
        """A number that changes when a process of the program does anything; None if it was not looked at."""
        if activity is not None:
            self._tree.look(activity, self._limit_s, now_s)

    def stand_by(self, now_s: float) -> None:
        """It waits for another task: the time since the last look is not its own."""
        self._looked_s = max(self._looked_s, now_s)

    def read_heartbeat(self, beat: Heartbeat | None, now_s: float, waits_for_disk: bool = False) -> None:
        """The heartbeat as it is now; None before the first.  A trainer that waits for a disk makes no progress all the same."""
        if beat is not None and beat.phase not in WITHOUT_SESSION:
            self.see_session()
        self._quiet_s += min(max(0.0, now_s - self._looked_s), LOOK_GAP_S_MAX)
        self._looked_s = now_s
        last = self._last
        if beat is None or (last is not None and _progress(beat) == _progress(last)):
            self._last = beat or last
            return
        self._quiet_s, self._last = 0.0, beat
        self._measure(last, beat, now_s)
        self._measure_calls(last, beat, now_s)

    def _measure_calls(self, last: Heartbeat | None, beat: Heartbeat, now_s: float) -> None:
        if beat.phase is not Phase.STEP or last is None:
            self._called_s = None
        elif beat.moved > last.moved:
            if self._called_s is not None:
                self.calls.add_step((now_s - self._called_s) / (beat.moved - last.moved))
            self._called_s = now_s

    def _measure(self, last: Heartbeat | None, beat: Heartbeat, now_s: float) -> None:
        if beat.phase is not Phase.STEP or last is None or last.phase is not Phase.STEP:
            self._stepped_s = now_s if beat.phase is Phase.STEP else None
            return
        steps = beat.step - last.step if beat.step >= 0 else beat.work - last.work
        if steps <= 0:
            return
        if self._stepped_s is not None:
            self.steps.add_step((now_s - self._stepped_s) / steps)
        self._stepped_s = now_s
        if beat.step > self._hang_step:
            self._hangs.clear()

    def hang(self, now_s: float) -> Hang | None:
        """Whether the deadline has passed, of a trainer that is known to open a session."""
        return self._find(now_s) if self._had_session else None

    def suspicion(self, now_s: float) -> Hang | None:
        """The same of a program that may be no training."""
        return self._find(now_s) if not self._had_session else None

    def _find(self, now_s: float) -> Hang | None:
        quiet_s = self._quiet_s if self._has_session else self._tree.idle_s(now_s)
        if quiet_s <= 0.0:  # as of most tasks at most times
            return None
        limit_s = self._limit_s
        extended_s = self._last.extended_s if self._last is not None else 0.0
        if not self.launch.watches_for_hangs or quiet_s <= limit_s or now_s <= extended_s:
            return None
        told = "its heartbeat has stopped, while others wait for it" if self._phase is Phase.SERVE else ""
        return Hang(self._phase, quiet_s, limit_s, self._last.step if self._last is not None else -1, told)

    @property
    def _phase(self) -> Phase:
        return self._last.phase if self._last is not None else Phase.IMPORT

    @property
    def _limit_s(self) -> float:
        return self.limit_s(self._phase)

    def count_hang(self, hang: Hang) -> None:
        """A hang is acted upon.  The next try gets twice the time, unless the limit is what the user has said."""
        self._hangs[hang.phase] += 1
        self._hang_step = max(self._hang_step, hang.step)

    def limit_s(self, phase: Phase) -> float:
        """How long `phase` may go without progress.

        Twice as long after each hang that led to no new step: a program that is only slow (it loads its data for ten
        minutes, say) is not killed at the same place for ever.
        """
        again = 2.0 ** min(self._hangs[phase], 10)
        if phase is Phase.SERVE:
            return max(SILENT_S_MIN, STEP_MEDIANS * self.steps.median_s) * again
        if phase is not Phase.STEP:
            limit_s = math.inf if phase is Phase.IDLE else self.launch.hang_limit_s(phase.name.lower()) * again
            # The first step is a step, too: whoever allows an hour for one allows it for the first.
            return max(limit_s, self.launch.step_s_max or 0.0) if phase is Phase.COMPILE else limit_s
        if self.launch.step_s_max is not None:
            return self.launch.step_s_max
        return min(STEP_S_MOST, self.steps.limit_s * again)

    def is_silent(self, now_s: float) -> bool:
        """Whether the heartbeat itself has stopped: frozen, or a call that lets no other thread run.  Proves nothing."""
        return self._last is not None and now_s - self._last.beat_s > SILENT_S_MIN


def _progress(beat: Heartbeat) -> tuple[Phase, int, int, float]:
    return beat.phase, beat.step, beat.work, beat.beat_s if beat.phase is Phase.SERVE else 0.0
