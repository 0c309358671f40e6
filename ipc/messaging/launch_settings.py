"""Define the settings of a launch: the options of `procsv launch`.

procsv/cli/launch.py checks every value and creates them; Start passes them to every process of the
run.  To add a setting, add a field here and an option of the same name in procsv/cli/launching/.
"""

from __future__ import annotations

import signal
from typing import Literal

import msgspec

from procsv.base.cluster import list_tasks
from procsv.base.identity import TaskId

# How long a phase of the program, and the main loop of a service, may go without progress.
HANG_LIMITS_S = dict.fromkeys(("program", "import", "connect", "restore", "compile", "save", "stop"), 1800.0) | {
    "service": 60.0
}


class Range(msgspec.Struct, frozen=True):
    """The shortest and the longest duration."""

    least_s: float
    most_s: float


class LaunchSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings, with durations in seconds and sizes in bytes.

    The defaults are the same as the options', except for `standby`.  Four settings have no option:
    hang_abort_s, hang_kill_s, session_s and misplaced.  With workers, ps or evaluators, the run has
    several tasks.
    """

    resume: bool = False  # run the program of a complete run again
    drop_in: bool = False  # replace TensorFlow's classes in the program by procsv's
    snapshot_s: float | Literal["auto"] = "auto"  # interval between snapshots; 0.0: none
    # warm: the standby has imported what the program imports; hot: it has also run the program up to its session.
    standby: Literal["warm", "hot", "off"] = "off"
    malloc: Literal["keep", "system"] = "keep"  # keep: the memory of a step is kept for the next one
    grace_s: float = 25.0  # from a stop signal until everything has ended

    max_failures: int = 5  # give the run up after this many failures in a row without a newly durable step
    backoff: Range = Range(1.0, 60.0)  # from a failure to the restart
    early_failures: int = 2  # give up after this many exceptions or exit codes before the first step of this launch
    same_failures: int = 3  # give up as deterministic after this many failures by the same exception at the same step
    # Give up after this many failures of one kind in a row, by attempts that each kept less than min_kept_s; 0: never.
    repeated_failures: int = 5
    min_kept_s: float = 60.0  # how much kept training makes an attempt useful
    min_goodput: float = 0.05  # give up if the last goodput_attempts attempts are below this; 0.0: never
    goodput_attempts: int = 10
    suspect_crashes: int = 2  # resume an older state after this many crashes of attempts that resumed the same state
    disk_wait_s: float = 3600.0  # how long to wait for room on a full disk before the run fails
    service_failures: int = 5  # fail the run after this many failures of one service within service_period_s
    service_period_s: float = 300.0

    hang_timeout_s: float | Literal["auto", "off"] = "auto"  # for a step; auto: learned
    hang_limits_s: dict[str, float] = msgspec.field(default_factory=HANG_LIMITS_S.copy)  # overrides of HANG_LIMITS_S
    hang_abort_s: float = 5.0  # from the dump of a hanging process's stacks to SIGABRT
    hang_kill_s: float = 10.0  # from SIGABRT to SIGKILL
    session_s: float = 60.0  # how long to wait for a first session before warning that nothing is saved

    workers: int = 0  # without the chief
    ps: int = 0
    evaluators: int = 0
    has_chief: bool = True  # if False, the state of worker.0 is saved
    min_workers: int | None = None  # the run goes on without given-up workers while this many remain; None: all must
    restart: Literal["auto", "task", "gang"] = "auto"  # which tasks to restart when one ends (restart_table.py)
    peer_timeout_s: float = 10.0  # on several machines: a watchdog that is silent for this long counts as lost
    coordinator_timeout_s: float = 300.0  # how long to wait until all launches join, or a lost coordinator returns
    consistent_snapshots: bool = False  # hold all training tasks between two steps while the chief captures

    steps_total: int = 0  # the step at which training ends, for the status line; 0: unknown
    memory_limit: int = 0  # for the trainer's process tree; 0: none
    log_limit: int = 512 * 2**20  # for the program's log; 0: none
    metrics_port: str = ""  # HOST:PORT at which Prometheus is served; "": none
    on_event: str = ""  # command line; "": none
    notify: str = ""  # URLs for Apprise; they may contain passwords
    on_event_s: float = 30.0  # the on_event command is killed after this long
    misplaced: str = ""  # an option of `procsv launch` that the user has put after TARGET, so the program gets it
    detach: bool = False  # the watchdog writes to a log instead of a terminal
    group_readable: bool = False  # the logdir's group may read run.json, journal, logs and crash reports
    preempt_signal: Literal["SIGTERM", "SIGUSR1", "SIGUSR2"] = "SIGTERM"
    plan: str = ""  # JSON of a fault plan (procsv/faults/plan.py); "": no faults

    @property
    def tasks(self) -> tuple[TaskId, ...]:
        """The tasks of a run that has several; empty for a run with a single trainer."""
        if not (self.workers or self.ps or self.evaluators):
            return ()
        return list_tasks(self.workers, self.ps, self.evaluators, has_chief=self.has_chief)

    @property
    def chosen(self) -> dict[str, str]:
        """The settings that differ from the defaults, for people.

        Shows "set" for values that may contain secrets: commands, URLs and fault plans.
        """
        found = {name: getattr(self, name) for name in self.__struct_fields__}
        told = {name: value for name, value in found.items() if value != getattr(_DEFAULTS, name)}
        return {name: "set" if name in _PRIVATE else str(value) for name, value in told.items()}

    @property
    def notice_signals(self) -> frozenset[signal.Signals]:
        """The signals that announce a preemption."""
        return frozenset({signal.SIGTERM, signal.Signals[self.preempt_signal]})

    @property
    def watches_for_hangs(self) -> bool:
        return self.hang_timeout_s != "off"

    @property
    def step_s_max(self) -> float | None:
        """How long one step may take; None if it is learned."""
        return self.hang_timeout_s if isinstance(self.hang_timeout_s, float | int) else None

    def hang_limit_s(self, phase: str) -> float:
        """Returns how long `phase`, or "service", may go without progress."""
        return self.hang_limits_s.get(phase, HANG_LIMITS_S[phase])


_DEFAULTS = LaunchSettings(standby="warm")  # the defaults of the options
_PRIVATE = frozenset({"notify", "on_event", "plan"})
