"""Judge whether a trainer is alive. A step has a learned limit; other phases have fixed, long limits.

Used by escalation.py. Pure: heartbeat, activity and time are arguments. In this file, a parameter
server counts as a trainer, too.

Progress is a change in the heartbeat: a new phase or step, a finished call of the session, an
imported module, or an earlier batch that a resumed Keras fit reads again (a *replayed* batch). A
new timestamp is not progress, because one thread may write the heartbeat while training is stuck in
another. Only for a parameter server a new timestamp is enough, since its heartbeat shows nothing
else.

In most phases, activity of the program's processes (TreeActivity) also counts as progress: CPU
time, I/O, output. The last column of this table says in which:

    phase     what                                                  at most            activity
    step      a step is under way                                   20 x the median    no
                                                                    step, but at least
                                                                    120 s and at most
                                                                    1800 s
    step      with --hang-timeout: from one step to the next,       as set             no
              if the program has not entered another phase
    program   callbacks, evaluations, and other code between calls  1800 s             yes
              of the session or of `step()`, or between trainings
    import    until the program creates its session                 1800 s             yes
    connect   until procsv chooses the state to restore             1800 s             yes
    restore   procsv chooses and restores the state                 1800 s             yes
    compile   until the first step has ended, including replayed    1800 s             yes
              batches
    save      the program waits for a save: the final checkpoint,   1800 s             yes
              or one by its own Saver
    stop      the session or the program ends: it joins threads,    1800 s             yes
              for example
    serve     a parameter server                                    20 x the median    no
                                                                    step, but at least
                                                                    10 s
    idle      a service (no trainer has this phase)                 no limit

--hang-limits changes the limits of 1800 s, except for a step. The limits of program and compile are
at least as long as --hang-timeout. If the main module has returned, exceeding the limit of stop is
not a hang: the program counts as complete, and procsv ends its process (trainer_news.py).

Only a step is short and predictable. A callback may take any time: it may upload a model, or wait
for another program.

Before its first session, a program shows only its activity, and it may not be training at all. If
such a program does nothing, the watchdog suspects a hang and reports that, but does not end the
program. If an earlier attempt had a session, the program does train. Then doing nothing is a hang.

A limit may be too short. After each hang, the limit of its phase doubles, until the program trains
a new step. There are two exceptions: --hang-timeout never doubles as the limit of a step, and the
learned limit never exceeds 1800 s. If the next attempt exceeds the old limit and then makes
progress, the old limit was too short. The limit then stays doubled for the rest of the launch, and
the watchdog reports that once.

`procsv.extend(seconds)` extends any deadline. Three kinds of time do not count:

* long pauses between two checks, except for their first 5 s: the watchdog or the whole machine was
  stopped;
* time in which the task waits for another task (`find_awaited` in cluster.py);
* time in which a debugger holds the program.
"""

from __future__ import annotations

import bisect
import math
from collections import Counter, deque

import msgspec

from procsv.ipc.messaging.launch_settings import LaunchSettings
from procsv.ipc.shm.heartbeat import NOT_RETURNED, Heartbeat, Phase

# The longest time between two checks of all processes and threads of a program. A check costs a few milliseconds.
LOOK_S_MAX = 10.0
LOOKS_PER_LIMIT = 8  # at least this many checks within a limit


class TreeActivity(msgspec.Struct):
    """Whether any process of a program has done anything.

    This is used where the heartbeat does not show what the program does. The activity is a number
    that changes whenever a thread of the program has run. A thread that makes a system call or
    writes output has run; a thread that waits has not.
    """

    _last: int | None = None
    _looked_s: float = -math.inf
    _idle_s: float = 0.0  # up to the last check; a long pause between two checks counts only in part

    @property
    def is_seen(self) -> bool:
        return self._last is not None

    def is_due(self, limit_s: float, now_s: float) -> bool:
        return now_s - self._looked_s >= _look_s(limit_s)

    def note_activity(self, activity: int | None, limit_s: float, now_s: float) -> None:
        """Note the current `activity`; None if it was not checked, or cannot be."""
        if activity is None:
            return
        passed_s = min(now_s - self._looked_s, 2 * _look_s(limit_s))
        self._idle_s = self._idle_s + passed_s if activity == self._last else 0.0
        self._last, self._looked_s = activity, now_s

    def idle_s(self, now_s: float) -> float:
        """Return how long nothing has run, if the check was made right now.

        Otherwise return 0.0: something may have run since the check.
        """
        return self._idle_s if now_s == self._looked_s else 0.0


def _look_s(limit_s: float) -> float:
    return min(LOOK_S_MAX, limit_s / LOOKS_PER_LIMIT)


STEP_S_LEAST, STEP_S_MOST = 120.0, 1800.0  # bounds of the learned limit
STEP_MEDIANS = 20.0  # the learned limit is this many median steps
STEPS_KNOWN_MIN = 3  # steps measured before the median is used; until then a step may take STEP_S_MOST
STEPS_KNOWN_MAX = 201  # the median covers this many of the latest steps
LOOK_GAP_S_MAX = 5.0  # a pause between two checks counts for at most this long, and for at most half the limit
TRAINING = frozenset({Phase.STEP, Phase.PROGRAM})  # a fit alternates between steps and other code
WAITS_S_MIN = 5.0  # a step that takes longer may be waiting for another task
DOUBLED_MAX = 10  # how many times a limit is doubled at most
# Phases that do not prove that the program has had a session. Any program that has returned is in phase STOP.
WITHOUT_SESSION = frozenset({Phase.IMPORT, Phase.STOP})
# A trainer whose heartbeat is older than this may hang, or not (`is_silent`). A parameter server with such a heartbeat
# counts as hanging: it has nothing to do but to serve, and tasks that wait for a frozen server get no error.
SILENT_S_MIN = 10.0


class Hang(msgspec.Struct, frozen=True):
    """A process has made no progress for longer than its phase allows."""

    phase: Phase
    seconds: float
    limit_s: float
    step: int
    detail: str = ""  # a description, if the phase alone does not say enough


class TooShort(msgspec.Struct, frozen=True):
    """A limit that proved too short: with more time, the program exceeded it and then made progress."""

    phase: Phase
    limit_s: float
    took_s: float
    new_limit_s: float


class StepTimes(msgspec.Struct):
    """The median time of a step. `known_s`: the median learned by an earlier launch (0.0: none)."""

    known_s: float = 0.0
    _measured: deque[float] = msgspec.field(default_factory=deque)
    # The same times, sorted, because the median of every task is read every second.
    _sorted: list[float] = msgspec.field(default_factory=list)

    def add_step(self, seconds: float) -> None:
        if len(self._measured) == STEPS_KNOWN_MAX:
            del self._sorted[bisect.bisect_left(self._sorted, self._measured.popleft())]
        self._measured.append(seconds)
        bisect.insort(self._sorted, seconds)

    @property
    def median_s(self) -> float:
        """The median; 0.0 while it is unknown."""
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
    """The liveness of one task, across all its attempts.

    `steps` and the counts of hangs are kept from one attempt to the next.
    """

    launch: LaunchSettings
    steps: StepTimes
    # The times of the task's own calls. `steps` does not show them: with several tasks, the calls of all tasks raise the
    # same global step.
    calls: StepTimes = msgspec.field(default_factory=StepTimes)
    _last: Heartbeat | None = None
    _quiet_s: float = 0.0  # observed time since the last progress
    _looked_s: float = 0.0
    _stepped_s: float | None = None  # when the step last rose
    _called_s: float | None = None  # when the last call of this task ended
    _hang_step: int = -1  # the highest step at which a hang was found
    # Hangs by phase, counted until the step exceeds _hang_step.
    _hangs: Counter[Phase] = msgspec.field(default_factory=Counter)
    _has_session: bool = False  # the running trainer has, or had, a session
    had_session: bool = False  # this trainer or an earlier one had a session
    _tree: TreeActivity = msgspec.field(default_factory=TreeActivity)
    _is_training: bool = False  # the running trainer has made steps
    # Since the heartbeat last showed progress: the longest time without activity that counts. Activity may come and go
    # while the heartbeat shows nothing.
    _still_s: float = 0.0
    _doubled: Counter[Phase] = msgspec.field(default_factory=Counter)  # doublings of limits that proved too short
    _too_short: TooShort | None = None  # not reported yet

    def start_watch(self, now_s: float) -> None:
        """Start to watch a new trainer. What the previous trainer reported no longer counts."""
        self._last, self._stepped_s, self._called_s, self._has_session = None, None, None, False
        self.calls = StepTimes()
        self._quiet_s = self._still_s = 0.0
        self._looked_s, self._is_training = now_s, False
        self._tree = TreeActivity()

    def see_session(self) -> None:
        """Note that the running trainer has a session, so the program does train."""
        self._has_session = self.had_session = True

    def wants_activity(self, now_s: float) -> bool:
        """Whether it is time to check the activity of the program's processes."""
        if not self.launch.watches_for_hangs or not self._tree.is_due(self._limit_s, now_s):
            return False
        if not self._has_session:
            return True
        # Most callbacks end soon, so check only when one is slow.
        return self._counts_activity and self._quiet_s >= min(LOOK_S_MAX, self._limit_s / LOOKS_PER_LIMIT)

    def read_activity(self, activity: int | None, now_s: float) -> None:
        """Read the activity: a number that changes whenever a process of the program does anything.

        None: the activity was not checked.
        """
        if activity is not None:
            self._tree.note_activity(activity, self._limit_s, now_s)

    def skip_time(self, now_s: float) -> None:
        """Do not count the time since the last check.

        The task waits for another task, or a debugger holds it.
        """
        self._looked_s = max(self._looked_s, now_s)

    def read_heartbeat(self, beat: Heartbeat | None, now_s: float, waits_for_disk: bool = False) -> None:
        """Read the current heartbeat; None before the first one.

        `waits_for_disk` is for services and is ignored here: the time in which a trainer waits for
        a disk counts as time without progress.
        """
        if beat is not None and beat.phase not in WITHOUT_SESSION:
            self.see_session()
        self._quiet_s += min(max(0.0, now_s - self._looked_s), LOOK_GAP_S_MAX, self._limit_s / 2)
        self._looked_s = now_s
        last = self._last
        if beat is None or (last is not None and _progress(beat) == _progress(last)):
            self._last = beat or last
            return
        self._check_earlier_limit()
        self._quiet_s, self._still_s, self._last = 0.0, 0.0, beat
        self._is_training |= beat.phase is Phase.STEP
        self._measure(last, beat, now_s)
        self._measure_calls(last, beat, now_s)

    def _check_earlier_limit(self) -> None:
        """Check whether the limit that ended earlier attempts was too short. Called after progress.

        If it was, keep the doubled limit for the rest of the launch.
        """
        phase, hangs = self.phase, self._hangs[self.phase]
        limit_s = self._limit_after(phase, self._doubled[phase])
        if hangs and self._still_s > limit_s:
            self._doubled[phase] += hangs
            del self._hangs[phase]
            self._too_short = TooShort(phase, limit_s, self._still_s, self.limit_s(phase))

    def take_too_short(self) -> TooShort | None:
        """Return a limit that has proved too short, once; None if there is none to report."""
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
        """Return the hang if the limit is exceeded; otherwise None.

        Return None, too, for a program that has not had a session in any attempt: see `suspicion`.
        """
        return self._find(now_s) if self.had_session else None

    def suspicion(self, now_s: float) -> Hang | None:
        """Return the suspected hang of a program that has not had a session in any attempt.

        Such a program may not be training at all. Return None if the limit is not exceeded.
        """
        return self._find(now_s) if not self.had_session else None

    def _find(self, now_s: float) -> Hang | None:
        quiet_s = self._without_progress_s(now_s)
        self._still_s = max(self._still_s, quiet_s)
        if quiet_s <= 0.0:  # a shortcut: this is true for most tasks most of the time
            return None
        limit_s = self._limit_s
        extended_s = self._last.extended_s if self._last is not None else 0.0
        if not self.launch.watches_for_hangs or quiet_s <= limit_s or now_s <= extended_s:
            return None
        detail = "its heartbeat has stopped, while others wait for it" if self.phase is Phase.SERVE else ""
        return Hang(
            phase=self.phase,
            seconds=quiet_s,
            limit_s=limit_s,
            step=self._last.step if self._last is not None else -1,
            detail=detail,
        )

    def _without_progress_s(self, now_s: float) -> float:
        if not self._has_session:
            return self._tree.idle_s(now_s)
        if self._counts_activity and self._tree.is_seen:  # activity on another machine is not seen
            return min(self._quiet_s, self._tree.idle_s(now_s))
        return self._quiet_s

    @property
    def phase(self) -> Phase:
        """The phase whose limit applies.

        If the heartbeat says STEP, but it is not certain that a step is running, return PROGRAM:
        the learned limit is for steps only. If the user has set a limit, return STEP even then,
        because the user's limit counts from one step to the next.
        """
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
        """Whether the program's main module has returned."""
        return self._last is not None and self._last.returned != NOT_RETURNED

    @property
    def _limit_s(self) -> float:
        return self.limit_s(self.phase)

    def count_hang(self, hang: Hang) -> None:
        """Count a hang for which the trainer is ended. This doubles the phase's limit (`limit_s`)."""
        self._hangs[hang.phase] += 1
        self._hang_step = max(self._hang_step, hang.step)

    def limit_s(self, phase: Phase) -> float:
        """Return how long `phase` may go without progress.

        The limit doubles after each hang, until the program trains a new step. So a program that is
        only slow, for example because it loads data for an hour, is not killed at the same place
        again and again. The user's limit for a step does not double, and the learned limit doubles
        only up to STEP_S_MOST.
        """
        return self._limit_after(phase, self._hangs[phase] + self._doubled[phase])

    def _limit_after(self, phase: Phase, doublings: int) -> float:
        again = 2.0 ** min(doublings, DOUBLED_MAX)
        if phase is Phase.SERVE:
            return max(SILENT_S_MIN, STEP_MEDIANS * self.steps.median_s) * again
        if phase is not Phase.STEP:
            limit_s = math.inf if phase is Phase.IDLE else self.launch.hang_limit_s(phase.name.lower()) * again
            # A user who allows a long step also allows it for the first step, and for the code between steps.
            is_as_long = phase in (Phase.COMPILE, Phase.PROGRAM)
            return max(limit_s, self.launch.step_s_max or 0.0) if is_as_long else limit_s
        if self.launch.step_s_max is not None:
            return self.launch.step_s_max
        return min(STEP_S_MOST, self.steps.limit_s * again)

    def is_silent(self, now_s: float) -> bool:
        """Whether the heartbeat has stopped.

        This does not prove a hang: the process may be stopped, or in a call that holds the GIL.
        """
        return self._last is not None and now_s - self._last.beat_s > SILENT_S_MIN


def _progress(beat: Heartbeat) -> tuple[Phase, int, int, float]:
    return beat.phase, beat.step, beat.work, beat.beat_s if beat.phase is Phase.SERVE else 0.0
