"""Measure the goodput of a run, and judge whether another restart is worth its time.

Used by attempt_record.py and restart_policy.py. Pure. Goodput is the share of a run's time that
went into steps that were kept. Starting, restoring, compiling, waiting before a restart, and steps
lost in a crash do not count.
"""

from __future__ import annotations

from collections import Counter, deque

import msgspec

from procsv.base.units import show_duration
from procsv.ipc.messaging.launch_settings import LaunchSettings


class Earlier(msgspec.Struct, frozen=True):
    """The earlier launches of the run."""

    kept_s: float = 0.0  # how long they trained steps that were kept
    ran_s: float = 0.0  # how long they were active


class Goodput(msgspec.Struct):
    started_s: float  # of the launch
    earlier: Earlier = Earlier()
    _kept_s: float = 0.0
    _ready_s: float | None = None  # when the running trainer ended its first step
    _first_step: int = 0

    def start_training(self, ended_s: float, step: int) -> None:
        self._ready_s, self._first_step = ended_s, step

    def end_training(self, now_s: float, last_step: int, resume_step: int, unsaved_s: float | None = None) -> float:
        """Return how many seconds of a dead trainer's training are kept.

        The steps after `resume_step` are lost. `unsaved_s`: the time since the last save, if the
        program's steps are its saves; this time is lost, too. None otherwise.
        """
        if self._ready_s is None:
            return 0.0
        trained_s = max(0.0, now_s - (unsaved_s or 0.0) - self._ready_s)
        steps = last_step - self._first_step
        lost = min(steps, last_step - resume_step)
        kept_s = trained_s * (1 - max(0, lost) / steps) if steps > 0 else 0.0
        self._kept_s += kept_s
        self._ready_s = None
        return kept_s

    def stood_still(self, seconds: float) -> None:
        """Do not count `seconds` in which the trainer was alive but did not train."""
        if self._ready_s is not None:
            self._ready_s += seconds

    def value(self, now_s: float) -> float:
        """Return the goodput of the whole run, from 0 to 1."""
        return self._share(now_s, self.earlier)

    def of_launch(self, now_s: float) -> float:
        """Return the goodput of this launch, from 0 to 1."""
        return self._share(now_s, Earlier())

    def _share(self, now_s: float, earlier: Earlier) -> float:
        going_s = max(0.0, now_s - self._ready_s) if self._ready_s is not None else 0.0
        kept_s, ran_s = self._kept_s + going_s + earlier.kept_s, now_s - self.started_s + earlier.ran_s
        return round(min(1.0, kept_s / ran_s), 4) if ran_s > 0 else 0.0


class CountedAttempt(msgspec.Struct, frozen=True):
    """An attempt of a task, after its end."""

    seconds: float = 0.0  # since the end of the previous attempt
    kept_s: float = 0.0  # how many of these seconds were training whose steps are kept
    failure: str = ""  # what ended the attempt (causes.name_failure); "": planned, or killed from outside
    by_kernel: bool = False  # killed by the kernel, out of memory; another program may have used the memory


class Attempts(msgspec.Struct):
    """The last attempts of a task.

    They show whether restarts still pay. That an attempt has saved a new step is not enough: it
    must also keep enough training.
    """

    launch: LaunchSettings
    _row: list[CountedAttempt] = msgspec.field(default_factory=list)  # consecutive attempts with the same failure
    _last: deque[CountedAttempt] = msgspec.field(default_factory=deque)

    def add_attempt(self, attempt: CountedAttempt) -> str:
        """Count an attempt. Return why another attempt would be useless; "" if it would not be.

        A planned end or a kill from outside says nothing about the program. So an attempt with such
        an end is not counted as a repeated failure. It ends a repetition only if it kept enough
        training. It counts for the goodput of the last attempts only if its own goodput was
        high enough; otherwise it was cut short. A kill by the kernel counts for the goodput, but
        not as a repeated failure.
        """
        if attempt.kept_s >= self.launch.min_kept_s:
            self._row.clear()
        elif attempt.failure and not attempt.by_kernel:
            self._row = [one for one in self._row if one.failure == attempt.failure] + [attempt]
            del self._row[: -(self.launch.repeated_failures or 1)]
        if attempt.failure or attempt.kept_s >= self.launch.min_goodput * attempt.seconds:
            self._last.append(attempt)  # otherwise the attempt was cut short
        while len(self._last) > self.launch.goodput_attempts:
            self._last.popleft()
        why = (self._repeated() or self._wasted()) if attempt.failure else ""
        return f"no useful progress: {why}" if why else ""

    def forget_attempts(self) -> None:
        self._row.clear()
        self._last.clear()

    def _repeated(self) -> str:
        times = len(self._row)
        if not 0 < self.launch.repeated_failures <= times:
            return ""
        kept_s = sum(attempt.kept_s for attempt in self._row)
        in_a_row = "" if times == 1 else f", {times} times in a row"
        return f"{self._row[-1].failure}{in_a_row}, with {show_duration(kept_s)} of training kept in all"

    def _wasted(self) -> str:
        seconds = sum(attempt.seconds for attempt in self._last)
        kept_s = sum(attempt.kept_s for attempt in self._last)
        if len(self._last) < self.launch.goodput_attempts or kept_s >= self.launch.min_goodput * seconds:
            return ""
        failures = Counter(attempt.failure for attempt in self._last if attempt.failure)
        ((failure, times),) = failures.most_common(1)
        return (
            f"in the last {len(self._last)} attempts {show_duration(kept_s)} of {show_duration(seconds)} were training that "
            f"is kept; most often, {times} times, they ended with {failure}"
        )
