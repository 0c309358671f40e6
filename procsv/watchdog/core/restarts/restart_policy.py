"""Decide how long to wait after an end, and when to give up.

causes.py finds what ended the process. Used by next_start.py for the trainer and by services.py for
the services. Pure: time, the random source and every fact are arguments.

Progress, which means a newly durable step, resets the count of failures. Uptime never does: a
trainer that imports for a minute, restores, and dies at the same step every time is not healthy.
Progress must also be worth the time that the restarts cost (goodput.py).
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
# An exit with 75, or because another task was lost, is followed by a restart without delay. After this many such exits
# in a row with nothing saved between them, it looks like a loop, and restarts are delayed.
RETURNS_AT_ONCE = 5
RECYCLES_AT_ONCE = 1  # the same for planned restarts
NOT_OURS = "the program was not started by `procsv launch`: start it again"

SERVICE_KILLS = 4  # the limit on deaths by SIGKILL is this many times the limit on other deaths
DOUBLINGS_MAX = 32  # of a delay; more would exceed any limit, and in the end overflow a float
# Each delay before a trainer starts varies by this share, up or down, so that runs that died of one cause do not
# restart together.
JITTER = 0.2


# -- the trainer ---------------------------------------------------------------------------------------------
class Death(msgspec.Struct, frozen=True):
    """An end of a trainer that was not requested."""

    exit: Exit
    words: LastWords | None
    step: int  # the last one read; NO_STEP if the trainer never reported one
    attempt: CountedAttempt = CountedAttempt()  # how much training the attempt kept
    no_room: bool = False  # a full disk caused the death, or may have
    now_s: float = 0.0  # monotonic

    @property
    def is_by_itself(self) -> bool:
        """Whether the program ended by itself, and not by an action from outside."""
        return (self.exit.code is not None and not self.is_a_peers) or self.exit.signal in CRASH_SIGNALS

    @property
    def is_a_peers(self) -> bool:
        """Whether the trainer ended because another task is gone, which is not its own failure."""
        return self.exit.code is not None and self.words is not None and bool(self.words.lost_peer)


class Restart(msgspec.Struct, frozen=True):
    delay_s: float


class GiveUp(msgspec.Struct, frozen=True):
    """`is_final` False: a step is being saved right now and may still count as progress. Wait for
    that save, then decide again.
    """

    why: str
    is_final: bool
    even_so: str = ""  # why to give up even if that step counts


Verdict = Restart | GiveUp


class History(msgspec.Struct):
    """What is known of a task's past in this launch when a restart is decided."""

    launch: LaunchSettings
    rng: random.Random
    restarts: bool = True  # False: procsv did not start the program, and cannot restart it
    no_progress_count: int = 0
    durable_step: int = NO_STEP  # the highest that counted as progress
    was_ready: bool = False  # a first step has ended in this launch
    room_s: float | None = None  # monotonic: when a full disk first ended an attempt; None once a step is saved
    _room_deaths: int = 0  # ends by a full disk, in a row
    _idle_returns: int = 0  # ends in a row that are not failures, with no progress between them
    _early: int = 0  # failures before the first step
    _same: Counter[tuple[str, str, int]] = msgspec.field(default_factory=Counter)  # by exception, message and step
    _crashes_from: Counter[int] = msgspec.field(default_factory=Counter)  # by the step that the attempt resumed from
    # A state became suspect, so an older one is restored, and no newer step has become durable since.
    _has_gone_back: bool = False
    _attempts: Attempts = msgspec.field(default_factory=lambda: Attempts(LaunchSettings()))

    def __post_init__(self) -> None:
        self._attempts = Attempts(self.launch)

    def ready(self, restored_step: int) -> None:
        """Note that the first step after a restore has ended. The restored step is not progress of
        this launch.

        If an older state had to be restored, progress counts from it. Not so if it was chosen
        because a newer one is suspect: redoing the steps up to the crash would then count as
        progress, and reset the count every time.
        """
        if not self.was_ready or (restored_step < self.durable_step and not self._has_gone_back):
            self.durable_step = restored_step
        self.was_ready = True

    def served(self) -> None:
        """Note that the task serves variables to other tasks, which is its purpose."""
        self.was_ready = True

    def end_serving(self, seconds: float) -> float:
        """Count the `seconds` of serving as kept training, and return them. Enough of them is
        progress.
        """
        if seconds >= self.launch.min_kept_s:
            self.no_progress_count = self._idle_returns = 0
        return seconds

    def durable(self, step: int) -> bool:
        """`step` is durable on disk. Return True if that is progress, which resets the count
        of failures.
        """
        if step <= self.durable_step:
            return False
        self.durable_step, self.room_s, self._room_deaths = step, None, 0
        self.no_progress_count = self._idle_returns = 0
        self._crashes_from.clear()
        self._has_gone_back = False
        self._same = Counter({key: count for key, count in self._same.items() if key[2] >= step})
        return True

    def decide_restart(self, death: Death) -> Verdict:
        """Count a death, and decide whether to restart after a delay or to give up."""
        if not self.restarts:
            return GiveUp(NOT_OURS, is_final=True)
        kind = classify(death.exit)
        if death.no_room and kind is CauseKind.FAILURE:
            return self._wait_for_room(death)
        useless = self._attempts.add_attempt(death.attempt)
        if kind is CauseKind.CHECKPOINTED or (kind is CauseKind.FAILURE and death.is_a_peers):
            return Restart(self._return_delay_s(RETURNS_AT_ONCE))
        self.no_progress_count += 1
        if why := self._permanent(death, kind) or self._early_failure(death) or self._same_failure(death):
            return GiveUp(why, is_final=True)
        if self.is_spent():
            return GiveUp(self.spent_why(), is_final=False, even_so=useless)
        if useless:
            return GiveUp(useless, is_final=True)
        return Restart(self.delay_s())

    def _wait_for_room(self, death: Death) -> Verdict:
        """Wait after a full disk, which is not a failure. But not forever: the full disk may be one
        that procsv does not watch.
        """
        if not death.is_by_itself:
            return Restart(self._return_delay_s(RETURNS_AT_ONCE))
        self.room_s = death.now_s if self.room_s is None else self.room_s
        self._room_deaths += 1
        if why := self.late_for_room(death.now_s):
            return GiveUp(why, is_final=True)
        return Restart(self._doubled_s(self._room_deaths - 1))

    def late_for_room(self, now_s: float) -> str:
        """Return why the wait for room has ended, or "" while it goes on."""
        is_late = self.room_s is not None and now_s - self.room_s >= self.launch.disk_wait_s
        return f"the disk has been full for {show_duration(self.launch.disk_wait_s)} (--disk-wait)" if is_late else ""

    def is_spent(self) -> bool:
        return self.no_progress_count >= self.launch.max_failures

    def spent_why(self) -> str:
        return f"{self.no_progress_count} failures in a row without a new step on disk (--max-failures)"

    def delay_s(self) -> float:
        """Return the delay before the next start. Once a step was trained, there is none after the
        first failure, which need not recur.
        """
        counted = self.no_progress_count - self.was_ready
        return self._doubled_s(counted - 1) if counted > 0 else 0.0

    def suspects(self, death: Death, resumed_step: int, newest_step: int) -> bool:
        """Whether the state that the dead trainer resumed from may be the cause.

        Only the trainer's own crashes count, not kills from outside, and none counts if there is a
        newer state.
        """
        if resumed_step < 0 or newest_step > resumed_step or not death.is_by_itself or death.no_room:
            return False
        self._crashes_from[resumed_step] += 1
        is_suspect = self._crashes_from[resumed_step] >= self.launch.suspect_crashes
        self._has_gone_back = self._has_gone_back or is_suspect
        return is_suspect

    def forgive(self) -> None:
        """Reset all counts of failures, because a user intervenes."""
        self.no_progress_count = self._idle_returns = self._early = self._room_deaths = 0
        self.room_s = None
        self._same.clear()
        self._crashes_from.clear()
        self._has_gone_back = False
        self._attempts.forget_attempts()

    def recycle_delay_s(self, attempt: CountedAttempt) -> float:
        """Return the delay before a planned restart: none, unless it follows another one and
        nothing was saved between them.
        """
        self._attempts.add_attempt(attempt)
        return self._return_delay_s(RECYCLES_AT_ONCE)

    def not_spawned_delay_s(self) -> float:
        """Return the delay after the system would not start a process (EAGAIN, ENOMEM), which is
        not the trainer's failure.
        """
        return self._doubled_s(0)

    def _return_delay_s(self, at_once: int) -> float:
        """Return the delay after an end that is not a failure: none for the first `at_once` in a
        row with nothing new saved, then longer each time.
        """
        self._idle_returns += 1
        late = self._idle_returns - at_once
        return 0.0 if late <= 0 else self._doubled_s(late - 1)

    def _doubled_s(self, times: int) -> float:
        """Return the minimum delay, doubled `times` times, limited, and jittered."""
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
                return f"{name} before the first step, which a restart cannot fix"
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
    IDLE = auto()  # killed from outside while the service had nothing to do; never counts
    KILLED = auto()  # by SIGKILL while starting or working, or while stopped; repeated kills suggest a lack of memory
    FAILED = auto()  # any other death while starting or working, or an exit of its own
    HUNG = auto()  # ended by us because it made no progress


class ServiceHistory(msgspec.Struct):
    """The deaths of one service since it last did some work. Those older than `service_period_s` no
    longer count, except hangs.
    """

    launch: LaunchSettings = msgspec.field(default_factory=LaunchSettings)
    _deaths_s: dict[ServiceDeath, list[float]] = msgspec.field(default_factory=dict)

    def worked(self) -> None:
        self._deaths_s.clear()

    def died(self, death: ServiceDeath, now_s: float) -> float | None:
        """Return the seconds until the next start, or None if the run must fail."""
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
        """Return how many deaths of that kind fail the run."""
        return self.launch.service_failures * (SERVICE_KILLS if death is ServiceDeath.KILLED else 1)
