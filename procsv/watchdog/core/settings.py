"""What the watchdog was told, as its parts take it.

Made by host.py from the start's options, which the command line has checked.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from procsv.base.outcome import NO_STEP
from procsv.ipc.shm.heartbeat import Phase
from procsv.watchdog.core.events import SERVICES, SUMMARY
from procsv.watchdog.core.hangs.escalation import Waits
from procsv.watchdog.core.hangs.trainer_liveness import PHASE_S_MAX, SERVICE_S_MAX, Limits
from procsv.watchdog.core.restart_policy import Policy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from procsv.ipc.messaging.start import Start


@dataclass(frozen=True, slots=True)
class Settings:
    policy: Policy = field(default_factory=Policy)
    grace_s: float = 25.0  # for a stop, everything included: trainer 17, services 5, margin 3
    limits: Limits = field(default_factory=Limits)
    waits: Waits = field(default_factory=Waits)
    standby: str = "off"  # warm: a process waits that has imported TensorFlow; hot: and has run the program's start
    memory_limit: int = 0  # bytes that the trainer's tree may use; 0: as many as there are
    learned_step_s: float = 0.0  # the median of an earlier launch in this logdir; 0.0: none is known
    observes: bool = False  # the program was started by somebody else: it is neither ended nor started again
    services: tuple[str, ...] = SERVICES
    saved_step: int = NO_STEP  # what an earlier launch in this logdir has left on disk, as far as can be seen


def settings_of(start: Start, learned_step_s: float = 0.0, saved_step: int = NO_STEP) -> Settings:
    """The options in `start`; what is not there has its default."""
    options = start.options

    def seconds(name: str, default: float) -> float:
        return float(options.get(name, default))

    policy = Policy(
        restarts=not start.observes,
        failures_max=int(options.get("max-failures", Policy().failures_max)),
        delay_s_min=seconds("backoff-min-s", Policy().delay_s_min),
        delay_s_max=seconds("backoff-max-s", Policy().delay_s_max),
        early_failures_max=int(options.get("early-failures", Policy().early_failures_max)),
        same_failures_max=int(options.get("same-failures", Policy().same_failures_max)),
        suspect_crashes_max=int(options.get("suspect-crashes", Policy().suspect_crashes_max)),
        service_failures_max=int(options.get("service-failures", Policy().service_failures_max)),
        service_period_s=seconds("service-period-s", Policy().service_period_s),
    )
    waits = Waits(seconds("hang-abort-s", Waits().abort_s), seconds("hang-kill-s", Waits().kill_s))
    memory_limit = int(options.get("memory-limit", "0"))
    limits = _limits(options)
    return Settings(
        policy,
        start.grace_s,
        limits,
        waits,
        start.standby,
        memory_limit,
        learned_step_s,
        observes=start.observes > 0,
        services=(SUMMARY,) if start.home else SERVICES,
        saved_step=saved_step,
    )


def _limits(options: Mapping[str, str]) -> Limits:
    told = options.get("hang-timeout", "auto")
    phase_s = {
        phase: float(options.get(f"hang-{phase.name.lower()}-s", default_s)) for phase, default_s in PHASE_S_MAX.items()
    }
    phase_s[Phase.STEP] = 0.0  # it has a rule of its own
    step_s = None if told in ("auto", "off") else float(told)
    return Limits(told != "off", step_s, phase_s, float(options.get("hang-service-s", SERVICE_S_MAX)))
