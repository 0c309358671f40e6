"""Keeps one service alive: when to start it, when its death counts, when it has finished.

Used by core.py, one Keeper a service.  Pure.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING

from procsv.ipc.pulse import Beat, Phase
from procsv.watchdog.restart import SERVICE_KILLS, ServiceDeath, ServiceHistory

if TYPE_CHECKING:
    from procsv.ipc.process import Exit

NOT_SPAWNED_S = 1.0  # until the next try, where the system would not start a process


class ServiceState(Enum):
    WAITING = auto()  # for its (next) start
    STARTING = auto()  # asked for, and not yet serving
    SERVING = auto()
    FINISHING = auto()  # told to finish
    ENDED = auto()  # (terminal) finished, or no longer needed
    LOST = auto()  # (terminal) will not be started again: the run fails

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclass(slots=True)
class Keeper:
    """One service, through its incarnations.  Its methods answer what is to be done about it."""

    role: str
    history: ServiceHistory = field(default_factory=ServiceHistory)
    state: ServiceState = ServiceState.WAITING
    incarnation: int = 0
    pid: int = 0
    restart_s: float | None = None  # monotonic time of the next start
    why_lost: str = ""
    why_killed: str = ""  # by us
    _work: int = 0
    _phase: Phase = Phase.IDLE

    @property
    def is_up(self) -> bool:
        """Whether it hears what it is told."""
        return self.state in (ServiceState.SERVING, ServiceState.FINISHING)

    @property
    def is_over(self) -> bool:
        return self.state in (ServiceState.ENDED, ServiceState.LOST)

    def start(self) -> int:
        """A new process is asked for; its incarnation."""
        self.incarnation += 1
        self.state, self.restart_s = ServiceState.STARTING, None
        self._work, self._phase = 0, Phase.IDLE
        return self.incarnation

    def is_due(self, now_s: float) -> bool:
        return self.restart_s is not None and now_s >= self.restart_s

    def beat(self, beat: Beat) -> None:
        if beat.work > self._work:
            self._work = beat.work
            self.history.worked()
        self._phase = beat.phase

    def ready(self, incarnation: int) -> bool:
        """True if that is news."""
        if incarnation != self.incarnation or self.state is not ServiceState.STARTING:
            return False
        self.state = ServiceState.SERVING
        return True

    def finish(self) -> None:
        """It has been told to finish."""
        if self.is_up:
            self.state = ServiceState.FINISHING

    def drop(self) -> None:
        """It is not needed any more, and will not be started again."""
        self.restart_s = None
        if self.state is ServiceState.WAITING:
            self.state = ServiceState.ENDED

    def kill(self, why: str) -> None:
        """We have killed it: its death is no news."""
        self.state, self.why_killed = ServiceState.ENDED, why

    def ended(self, exit: Exit, needed: bool, now_s: float) -> None:
        """It is dead: wait for the next start, be over, or be lost."""
        was, self.pid = self.state, 0
        if not needed or (was is ServiceState.FINISHING and exit.code == 0):
            self.state = ServiceState.ENDED
            return
        self._start_again(self._weigh(was, exit), str(exit), now_s)

    def _weigh(self, was: ServiceState, exit: Exit) -> ServiceDeath:
        """SIGKILL comes from outside, whatever the service was at."""
        is_idle = was is ServiceState.SERVING and self._phase is not Phase.SAVE
        if is_idle and exit.signal is not None:
            return ServiceDeath.IDLE
        return ServiceDeath.KILLED if exit.signal == signal.SIGKILL else ServiceDeath.FAILED

    def not_spawned(self, now_s: float) -> None:
        """The system would not start it: not its failure."""
        self.state, self.restart_s = ServiceState.WAITING, now_s + NOT_SPAWNED_S

    def _start_again(self, death: ServiceDeath, how: str, now_s: float) -> None:
        delay_s = self.history.died(death, now_s)
        if delay_s is None:
            self.state = ServiceState.LOST
            policy = self.history.policy
            times = policy.service_failures_max * (SERVICE_KILLS if death is ServiceDeath.KILLED else 1)
            within = f"{policy.service_period_s:.0f} s"
            self.why_lost = f"the {self.role} service failed {times} times within {within} (the last time: {how})"
        else:
            self.state, self.restart_s = ServiceState.WAITING, now_s + delay_s
