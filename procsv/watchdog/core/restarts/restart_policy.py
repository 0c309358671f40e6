"""Decide how long to wait before restarting a process that has ended, and when to give up.

causes.py finds what ended the process. Used by next_start.py for the trainer and by services.py for
the services. Pure: time, the random source and every fact are arguments.

A trainer makes progress when a new step is on disk. Progress resets the count of failures. Uptime
does not: a trainer that imports for a minute, restores, and dies at the same step every time is not
healthy. A task that serves variables to other tasks has no steps of its own, so for such a task
uptime counts instead (`end_serving`).

Progress alone is not enough. procsv also gives up if the attempts of a trainer keep too little
training for the time that they take (goodput.py).

Some attempts end without a failure: with exit code 75, because another task was lost, by a kill
from outside during a full disk, or for a planned restart. Such an end is called *harmless* here.
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from enum import Enum, auto

import msgspec

from procsv.base import exit_codes
from procsv.base.outcome import NO_STEP, Exit, LastWords
from procsv.base.units import show_duration
from procsv.ipc.messaging.launch_settings import LaunchSettings
from procsv.watchdog.core.restarts.causes import CRASH_SIGNALS, CauseKind, classify, first_line
from procsv.watchdog.core.restarts.goodput import Attempts, CountedAttempt

PERMANENT_EXCEPTIONS = frozenset({"ImportError", "ModuleNotFoundError", "SyntaxError", "IndentationError", "TabError"})
# The restart after a harmless end has no delay. But if nothing is saved between this many harmless ends, the program
# seems to be in a loop, so the next restarts are delayed.
HARMLESS_AT_ONCE = 5
PLANNED_AT_ONCE = 1  # the same limit for planned restarts; History._harmless_ends counts both kinds of end together
NOT_OURS = "the program was not started by `procsv launch`, so procsv cannot start it again; start it yourself"

SERVICE_KILLS = 4  # the limit on deaths by SIGKILL is this many times the limit on other deaths
DOUBLINGS_MAX = 32  # of a delay; more doublings would exceed any limit, and many more would overflow a float
# Each delay before a trainer starts varies by this share, up or down, so that runs that died of the same cause do not
# all restart at the same time.
JITTER = 0.2


# -- the trainer ---------------------------------------------------------------------------------------------
class Death(msgspec.Struct, frozen=True):
    """The end of an attempt, with the facts that determine whether it is restarted."""

    exit: Exit
    words: LastWords | None
    step: int  # the last step read; NO_STEP if the trainer never reported a step
    attempt: CountedAttempt = CountedAttempt()  # how much training the attempt kept
    no_room: bool = False  # a full disk caused the death, or may have
    now_s: float = 0.0  # monotonic

    @property
    def is_own_end(self) -> bool:
        """Whether the program exited or crashed on its own, and was not killed from outside.

        An exit because another task is gone does not count.
        """
        return (self.exit.code is not None and not self.is_from_lost_peer) or self.exit.signal in CRASH_SIGNALS

    @property
    def is_from_lost_peer(self) -> bool:
        """Whether the trainer exited because another task is gone, which is not its own failure."""
        return self.exit.code is not None and self.words is not None and bool(self.words.lost_peer)


class Restart(msgspec.Struct, frozen=True):
    delay_s: float


class GiveUp(msgspec.Struct, frozen=True):
    """Do not restart.

    `is_final` is False if a state may still be on its way to disk, which would count as progress.
    Then the caller waits for that save, and decides again.
    """

    why: str
    is_final: bool
    why_regardless: str = ""  # why to give up even if that save is progress; "": if it is progress, restart


Verdict = Restart | GiveUp


class History(msgspec.Struct):
    """A task's failures and progress in this launch, which determine its restarts."""

    launch: LaunchSettings
    rng: random.Random
    restarts: bool = True  # False: procsv did not start the program, and cannot restart it
    no_progress_count: int = 0
    durable_step: int = NO_STEP  # the highest step on disk that counted as progress
    was_ready: bool = False  # a first step has ended in this launch
    disk_full_s: float | None = None  # monotonic: when a full disk first ended an attempt; None once a step is saved
    _disk_full_deaths: int = 0  # in a row
    _harmless_ends: int = 0  # since the last progress
    _early: int = 0  # failures before the first step
    _same: Counter[tuple[str, str, int]] = msgspec.field(default_factory=Counter)  # by exception, message and step
    _crashes_from: Counter[int] = msgspec.field(default_factory=Counter)  # by the step that the attempt resumed from
    # A state became suspect, so an older state is restored, and no new step has reached the disk since.
    _has_gone_back: bool = False
    _attempts: Attempts = msgspec.field(default_factory=lambda: Attempts(LaunchSettings()))

    def __post_init__(self) -> None:
        self._attempts = Attempts(self.launch)

    def ready(self, restored_step: int) -> None:
        """Note that the first step after a restore has ended.

        The first restore of a launch sets the step from which progress counts. A later restore of
        an older state sets that step back, unless the older state was chosen because a newer state
        is suspect. If the step were set back then, redoing the steps up to the crash would count as
        progress after every restart, and reset the count of failures.
        """
        if not self.was_ready or (restored_step < self.durable_step and not self._has_gone_back):
            self.durable_step = restored_step
        self.was_ready = True

    def served(self) -> None:
        """Note that the task serves variables to other tasks. This counts like a first step."""
        self.was_ready = True

    def end_serving(self, seconds: float) -> float:
        """Note that an attempt has ended that served variables for `seconds`.

        A task that served for at least `min_kept_s` has made progress, which resets the count of
        failures. Return the seconds that count as kept training. For a server, these are all.
        """
        if seconds >= self.launch.min_kept_s:
            self.no_progress_count = self._harmless_ends = 0
        return seconds

    def durable(self, step: int) -> bool:
        """Note that `step` is on disk. Return True if this is progress.

        Progress resets the count of failures.
        """
        if step <= self.durable_step:
            return False
        self.durable_step, self.disk_full_s, self._disk_full_deaths = step, None, 0
        self.no_progress_count = self._harmless_ends = 0
        self._crashes_from.clear()
        self._has_gone_back = False
        self._same = Counter({key: count for key, count in self._same.items() if key[2] >= step})
        return True

    def decide_restart(self, death: Death) -> Verdict:
        """Count a death. Decide whether to restart, and after what delay, or to give up."""
        if not self.restarts:
            return GiveUp(NOT_OURS, is_final=True)
        kind = classify(death.exit)
        if death.no_room and kind is CauseKind.FAILURE:
            return self._after_full_disk(death)
        why_useless = self._attempts.add_attempt(death.attempt)
        if kind is CauseKind.CHECKPOINTED or (kind is CauseKind.FAILURE and death.is_from_lost_peer):
            return Restart(self._harmless_delay_s(HARMLESS_AT_ONCE))
        self.no_progress_count += 1
        if why := self._permanent(death, kind) or self._early_failure(death) or self._same_failure(death):
            return GiveUp(why, is_final=True)
        if self.is_spent():
            return GiveUp(self.spent_why(), is_final=False, why_regardless=why_useless)
        if why_useless:
            return GiveUp(why_useless, is_final=True)
        return Restart(self.delay_s())

    def _after_full_disk(self, death: Death) -> Verdict:
        """Decide after a full disk, which is not a failure: restart, with a growing delay.

        The caller also waits until there is room on the disks that procsv checks. But the full disk
        may be another one, so procsv gives up once --disk-wait is over.
        """
        if not death.is_own_end:
            return Restart(self._harmless_delay_s(HARMLESS_AT_ONCE))
        self.disk_full_s = death.now_s if self.disk_full_s is None else self.disk_full_s
        self._disk_full_deaths += 1
        if why := self.disk_wait_over_why(death.now_s):
            return GiveUp(why, is_final=True)
        return Restart(self._doubled_s(self._disk_full_deaths - 1))

    def disk_wait_over_why(self, now_s: float) -> str:
        """Return why to stop waiting for room on a full disk; "" while --disk-wait is not over."""
        is_over = self.disk_full_s is not None and now_s - self.disk_full_s >= self.launch.disk_wait_s
        return f"the disk has been full for {show_duration(self.launch.disk_wait_s)} (--disk-wait)" if is_over else ""

    def is_spent(self) -> bool:
        return self.no_progress_count >= self.launch.max_failures

    def spent_why(self) -> str:
        return f"{self.no_progress_count} failures in a row without a new step on disk (--max-failures)"

    def delay_s(self) -> float:
        """Return the delay before the next start, after a failure.

        Once this launch has trained a step, there is no delay after the first failure in a row,
        because such a failure is often a one-off.
        """
        counted = self.no_progress_count - self.was_ready
        return self._doubled_s(counted - 1) if counted > 0 else 0.0

    def count_crash(self, death: Death, resumed_step: int, newest_step: int) -> bool:
        """Count a crash against the state that the dead trainer resumed from.

        Return True once this state is suspect: --suspect-crashes attempts have crashed after they
        resumed from it. Only the trainer's own crashes count, not kills from outside or a full
        disk. If there is a newer state, the crash does not count, because training has got past the
        state that the trainer resumed from.
        """
        if resumed_step < 0 or newest_step > resumed_step or not death.is_own_end or death.no_room:
            return False
        self._crashes_from[resumed_step] += 1
        is_suspect = self._crashes_from[resumed_step] >= self.launch.suspect_crashes
        self._has_gone_back = self._has_gone_back or is_suspect
        return is_suspect

    def forgive(self) -> None:
        """Forget all failures, because a user has asked for a restart."""
        self.no_progress_count = self._harmless_ends = self._early = self._disk_full_deaths = 0
        self.disk_full_s = None
        self._same.clear()
        self._crashes_from.clear()
        self._has_gone_back = False
        self._attempts.forget_attempts()

    def end_planned(self, attempt: CountedAttempt) -> float:
        """Count an attempt that was ended for a planned restart. Return the delay of the restart.

        There is no delay, unless an earlier attempt has also ended harmlessly and nothing has been
        saved since.
        """
        self._attempts.add_attempt(attempt)
        return self._harmless_delay_s(PLANNED_AT_ONCE)

    def not_spawned_delay_s(self) -> float:
        """Return the delay after the system could not start a process (EAGAIN, ENOMEM).

        This is not a failure of the trainer, so it is not counted.
        """
        return self._doubled_s(0)

    def _harmless_delay_s(self, at_once: int) -> float:
        """Count a harmless end, and return the delay after it.

        Until something is saved, there is no delay after the first `at_once` harmless ends, and a
        growing delay after each further one.
        """
        self._harmless_ends += 1
        delayed = self._harmless_ends - at_once
        return 0.0 if delayed <= 0 else self._doubled_s(delayed - 1)

    def _doubled_s(self, times: int) -> float:
        """Return the minimum delay, doubled `times` times, limited to the maximum, with jitter."""
        delay_s = self.launch.backoff.least_s * 2.0 ** min(times, DOUBLINGS_MAX)
        return min(delay_s, self.launch.backoff.most_s) * self.rng.uniform(1 - JITTER, 1 + JITTER)

    def _permanent(self, death: Death, kind: CauseKind) -> str:
        if kind is CauseKind.PERMANENT:
            return f"{death.exit} marks an error that a restart cannot fix"
        if self.was_ready or death.exit.code is None:
            return ""
        words = death.words
        if words is not None and words.type:
            name = words.type.rpartition(".")[2]
            if words.permanent or name in PERMANENT_EXCEPTIONS:
                return f"{name} before the first step: a restart cannot fix that"
        elif death.exit.code == exit_codes.USAGE:  # permanent only while the program has never trained
            option = self.launch.misplaced
            hint = f"; if {option} was meant for procsv launch, put it before the program's name" if option else ""
            return f"exit code 2 before the first step: the program does not understand its arguments{hint}"
        return ""

    def _early_failure(self, death: Death) -> str:
        if self.was_ready or death.exit.code is None:
            return ""
        self._early += 1
        return (
            f"{self._early} failures before the first step (--early-failures)"
            if self._early >= self.launch.early_failures
            else ""
        )

    def _same_failure(self, death: Death) -> str:
        words = death.words
        if words is None or not words.type or death.exit.code is None:
            return ""
        step = death.step if words.step is None else words.step
        key = (words.type, _fingerprint(words.message), step)
        self._same[key] += 1
        if self._same[key] < self.launch.same_failures:
            return ""
        return f"deterministic: {words.type} at step {step}, {self._same[key]} times"


def _fingerprint(message: str) -> str:
    """Return a message without the parts that differ each time, such as addresses."""
    return re.sub(r"0x[0-9a-fA-F]+", "0x", first_line(message))


# -- services ------------------------------------------------------------------------------------------------
class ServiceDeath(Enum):
    IDLE = auto()  # killed by a signal while it had nothing to do; never counts
    # Killed by SIGKILL while starting or working, or killed by us because a SIGSTOP had stopped it for too long.
    # Repeated kills suggest a lack of memory.
    KILLED = auto()
    FAILED = auto()  # any other death while starting or working, or an exit while it had nothing to do
    HUNG = auto()  # killed by us because it made no progress, without a SIGSTOP


class ServiceHistory(msgspec.Struct):
    """The deaths of one service since it last finished some work.

    Deaths older than `service_period_s` no longer count, except hangs.
    """

    launch: LaunchSettings = msgspec.field(default_factory=LaunchSettings)
    _deaths_s: dict[ServiceDeath, list[float]] = msgspec.field(default_factory=dict)

    def worked(self) -> None:
        self._deaths_s.clear()

    def died(self, death: ServiceDeath, now_s: float) -> float | None:
        """Count a death. Return the seconds until the next start.

        Return None if there have been too many deaths of this kind: the service is not restarted.
        """
        if death is ServiceDeath.IDLE:
            return 0.0
        period_s = math.inf if death is ServiceDeath.HUNG else self.launch.service_period_s
        recent = [death_s for death_s in self._deaths_s.get(death, []) if now_s - death_s < period_s]
        recent.append(now_s)
        self._deaths_s[death] = recent
        if len(recent) >= self.deaths_max(death):
            return None
        return 0.1 * 4.0 ** (len(recent) - 1) if death is ServiceDeath.FAILED else 0.1

    def deaths_max(self, death: ServiceDeath) -> int:
        """Return after how many deaths of this kind the service is *lost*, that is, not restarted."""
        return self.launch.service_failures * (SERVICE_KILLS if death is ServiceDeath.KILLED else 1)
