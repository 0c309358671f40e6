"""Liveness of a trainer: a learned limit for a step, and a generous one for everything else.

Used by escalation.py.  Pure: heartbeat, activity and time are arguments.  Two things count as progress.  One is in the heartbeat: a
new phase, a new step, a call of the session that has ended, a replayed batch, an imported module.  The other is activity of the
program's processes (TreeActivity): CPU time, I/O, output.  That a process answers, or beats, proves nothing: a thread of it may
do that while training is stuck.

    phase     what                                                  at most               activity is progress
    step      a step is under way                                   20 x the median step, no
                                                                    within 120 s and 1800 s
    step      told by --hang-timeout: from one step to the next     as told               no
    program   callbacks, evaluations, the code between two calls    1800 s                yes
              of a session or of `step()`, between two trainings
    import    until the session is asked for                        1800 s                yes
    connect   until the state is being loaded                       1800 s                yes
    restore   the state is put back                                 1800 s                yes
    compile   until the first step has ended, a replay included     1800 s                yes
    save      the last checkpoint, a Saver's own                    1800 s                yes
    stop      threads are joined; the main module has run to its    1800 s                yes
              end: then it is no hang, and the program is complete
    serve     a parameter server, as long as others want it         10 s of silence       no

Only a step is short and known: nobody can say how long a callback takes that uploads a model or waits for another program.

Before its first session a program shows nothing but its activity: it may be no training at all.  One that does nothing is
suspected, and nothing more.  Only where an attempt before it had a session is it known to be a hang.

A limit may be wrong.  After each hang the next try gets twice the time; one that needs it, and goes on, has proved the limit too
short: it stays doubled, which is said once.

`procsv.extend(seconds)` pushes whatever deadline there is.  Time in which the watchdog itself did not look (it was
stopped, or the whole machine was) does not count, nor time in which the task waits for another (`find_awaited`).
"""

from __future__ import annotations

import bisect
import math
from collections import Counter, deque

import msgspec

from procsv.ipc.messaging.launch_settings import LaunchSettings
from procsv.ipc.shm.heartbeat import NOT_RETURNED, Heartbeat, Phase

LOOK_S_MAX = 10.0  # between two looks at all processes and threads of a program, which cost a few milliseconds
LOOKS_PER_LIMIT = 8


class TreeActivity(msgspec.Struct):
    """Whether any process of a program has done anything, where procsv does not see into it.

    What was read of the machine is a number that changes whenever a thread of the program has run.  A thread that makes a system
    call or writes output has run; one that waits has not.
    """

    _last: int | None = None
    _looked_s: float = -math.inf
    _idle_s: float = 0.0  # up to the last look; of a longer pause between two only so much counts

    @property
    def is_seen(self) -> bool:
        return self._last is not None

    def is_due(self, limit_s: float, now_s: float) -> bool:
        return now_s - self._looked_s >= _look_s(limit_s)

    def note_activity(self, activity: int | None, limit_s: float, now_s: float) -> None:
        """`activity` as it is now; None if it was not looked at, or cannot be."""
        if activity is None:
            return
        passed_s = min(now_s - self._looked_s, 2 * _look_s(limit_s))
        self._idle_s = self._idle_s + passed_s if activity == self._last else 0.0
        self._last, self._looked_s = activity, now_s

    def idle_s(self, now_s: float) -> float:
        """How long nothing has run; 0.0 but right after a look, since it may have gone on meanwhile."""
        return self._idle_s if now_s == self._looked_s else 0.0


def _look_s(limit_s: float) -> float:
    return min(LOOK_S_MAX, limit_s / LOOKS_PER_LIMIT)


STEP_S_LEAST, STEP_S_MOST = 120.0, 1800.0  # of the learned limit
STEP_MEDIANS = 20.0  # the limit is so many times the median step
STEPS_KNOWN_MIN = 3  # measured before the median is believed; until then a step may take STEP_S_MOST
STEPS_KNOWN_MAX = 201  # measured last; the median is over these
LOOK_GAP_S_MAX = 5.0  # between two looks; of a longer gap only so much counts
TRAINING = frozenset({Phase.STEP, Phase.PROGRAM})  # a fit is in its callbacks, or between two calls, again and again
WAITS_S_MIN = 5.0  # of a step that seems to wait for another task
DOUBLED_MAX = 10  # times; of a limit
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


class TooShort(msgspec.Struct, frozen=True):
    """A limit that a healthy program has outlasted, once it was let."""

    phase: Phase
    limit_s: float
    took_s: float
    now_s: float  # the limit from here on


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
    had_session: bool = False  # or one before it
    _tree: TreeActivity = msgspec.field(default_factory=TreeActivity)
    _is_training: bool = False  # the trainer that runs has made steps
    _still_s: float = 0.0  # the longest time without any progress since the heartbeat showed some
    _doubled: Counter[Phase] = msgspec.field(default_factory=Counter)  # of limits that have proved too short
    _too_short: TooShort | None = None  # not told yet

    def start_watch(self, now_s: float) -> None:
        """A new trainer is started: nothing that the one before said counts for it."""
        self._last, self._stepped_s, self._called_s, self._has_session = None, None, None, False
        self.calls = StepTimes()
        self._quiet_s = self._still_s = 0.0
        self._looked_s, self._is_training = now_s, False
        self._tree = TreeActivity()

    def see_session(self) -> None:
        """The trainer that runs has a session: from here on it is known what it is to do."""
        self._has_session = self.had_session = True

    def wants_activity(self, now_s: float) -> bool:
        """Whether it is to be looked whether the program's processes do anything."""
        if not self.launch.watches_for_hangs or not self._tree.is_due(self._limit_s, now_s):
            return False
        if not self._has_session:
            return True
        # In training a callback ends soon, and only one that takes its time is worth a look.
        return self._counts_activity and self._quiet_s >= min(LOOK_S_MAX, self._limit_s / LOOKS_PER_LIMIT)

    def read_activity(self, activity: int | None, now_s: float) -> None:
        """A number that changes when a process of the program does anything; None if it was not looked at."""
        if activity is not None:
            self._tree.note_activity(activity, self._limit_s, now_s)

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
        self._weigh_limit()
        self._quiet_s, self._still_s, self._last = 0.0, 0.0, beat
        self._is_training |= beat.phase is Phase.STEP
        self._measure(last, beat, now_s)
        self._measure_calls(last, beat, now_s)

    def _weigh_limit(self) -> None:
        """It has gone on: whether only because it was let for longer than the limit that had ended it before."""
        phase, hangs = self.phase, self._hangs[self.phase]
        limit_s = self._limit_after(phase, self._doubled[phase])
        if hangs and self._still_s > limit_s:
            self._doubled[phase] += hangs
            del self._hangs[phase]
            self._too_short = TooShort(phase, limit_s, self._still_s, self.limit_s(phase))

    def take_too_short(self) -> TooShort | None:
        """A limit that has proved too short; once."""
        news, self._too_short = self._too_short, None
        return news

    def _trains(self, beat: Heartbeat) -> bool:
        return self._is_training and beat.phase in TRAINING

    def _measure_calls(self, last: Heartbeat | None, beat: Heartbeat, now_s: float) -> None:
        if not self._trains(beat) or last is None:
            self._called_s = None
        elif beat.moved > last.moved:
            if self._called_s is not None:
                self.calls.add_step((now_s - self._called_s) / (beat.moved - last.moved))
            self._called_s = now_s

    def _measure(self, last: Heartbeat | None, beat: Heartbeat, now_s: float) -> None:
        if not self._trains(beat) or last is None or last.phase not in TRAINING:
            self._stepped_s = now_s if self._trains(beat) else None
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
        return self._find(now_s) if self.had_session else None

    def suspicion(self, now_s: float) -> Hang | None:
        """The same of a program that may be no training."""
        return self._find(now_s) if not self.had_session else None

    def _find(self, now_s: float) -> Hang | None:
        quiet_s = self._without_progress_s(now_s)
        self._still_s = max(self._still_s, quiet_s)
        if quiet_s <= 0.0:  # as of most tasks at most times
            return None
        limit_s = self._limit_s
        extended_s = self._last.extended_s if self._last is not None else 0.0
        if not self.launch.watches_for_hangs or quiet_s <= limit_s or now_s <= extended_s:
            return None
        told = "its heartbeat has stopped, while others wait for it" if self.phase is Phase.SERVE else ""
        return Hang(
            phase=self.phase,
            seconds=quiet_s,
            limit_s=limit_s,
            step=self._last.step if self._last is not None else -1,
            told=told,
        )

    def _without_progress_s(self, now_s: float) -> float:
        if not self._has_session:
            return self._tree.idle_s(now_s)
        if self._counts_activity and self._tree.is_seen:  # a task of another machine is not
            return min(self._quiet_s, self._tree.idle_s(now_s))
        return self._quiet_s

    @property
    def phase(self) -> Phase:
        """As it counts: what is not certainly a step has no learned limit."""
        if self._last is None:
            return Phase.IMPORT
        between = self._last.phase is Phase.STEP and not self._last.in_step and self.launch.step_s_max is None
        return Phase.PROGRAM if between else self._last.phase

    @property
    def waits_in_step(self) -> bool:
        """Whether a step takes so long that it may be waiting for another task."""
        return self.phase is Phase.STEP and self._quiet_s >= WAITS_S_MIN

    @property
    def _counts_activity(self) -> bool:
        return self.phase not in (Phase.STEP, Phase.SERVE)

    @property
    def has_returned(self) -> bool:
        """Whether the main module of the program has run to its end."""
        return self._last is not None and self._last.returned != NOT_RETURNED

    @property
    def _limit_s(self) -> float:
        return self.limit_s(self.phase)

    def count_hang(self, hang: Hang) -> None:
        """A hang is acted upon.  The next try gets twice the time, unless the limit is what the user has said."""
        self._hangs[hang.phase] += 1
        self._hang_step = max(self._hang_step, hang.step)

    def limit_s(self, phase: Phase) -> float:
        """How long `phase` may go without progress.

        Twice as long after each hang that led to no new step: a program that is only slow (it loads its data for an hour,
        say) is not killed at the same place for ever.
        """
        return self._limit_after(phase, self._hangs[phase] + self._doubled[phase])

    def _limit_after(self, phase: Phase, doublings: int) -> float:
        again = 2.0 ** min(doublings, DOUBLED_MAX)
        if phase is Phase.SERVE:
            return max(SILENT_S_MIN, STEP_MEDIANS * self.steps.median_s) * again
        if phase is not Phase.STEP:
            limit_s = math.inf if phase is Phase.IDLE else self.launch.hang_limit_s(phase.name.lower()) * again
            # The first step is a step, too, and the rest of a program may always take as long as one.
            is_as_long = phase in (Phase.COMPILE, Phase.PROGRAM)
            return max(limit_s, self.launch.step_s_max or 0.0) if is_as_long else limit_s
        if self.launch.step_s_max is not None:
            return self.launch.step_s_max
        return min(STEP_S_MOST, self.steps.limit_s * again)

    def is_silent(self, now_s: float) -> bool:
        """Whether the heartbeat itself has stopped: frozen, or a call that lets no other thread run.  Proves nothing."""
        return self._last is not None and now_s - self._last.beat_s > SILENT_S_MIN


def _progress(beat: Heartbeat) -> tuple[Phase, int, int, float]:
    return beat.phase, beat.step, beat.work, beat.beat_s if beat.phase is Phase.SERVE else 0.0
