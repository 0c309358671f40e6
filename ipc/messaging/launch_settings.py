"""Settings of a launch: what `procsv launch` was told.

Made by procsv/cli/launch.py, which has checked every value, and handed in Start to every process of the run.  To add a
setting, add a field here and an option of the same name in procsv/cli/launching/.
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
    """The shortest and the longest of some durations."""

    least_s: float
    most_s: float


class LaunchSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Durations in seconds, sizes in bytes.  The defaults are those of the options."""

    resume: bool = False  # a run that is complete: its program is run again
    drop_in: bool = False  # the program finds procsv's classes where TensorFlow's own would be
    snapshot_s: float | Literal["auto"] = "auto"  # between two snapshots; 0.0: none
    standby: Literal["warm", "hot", "off"] = (
        "off"  # warm: has imported TensorFlow; hot: has also run the program's start
    )
    malloc: Literal["keep", "system"] = "keep"  # keep: the memory of a step is kept for the next one
    grace_s: float = 25.0  # for a stop, everything included

    max_failures: int = 5  # in a row with no newly durable step; then the run is given up
    backoff: Range = Range(1.0, 60.0)  # from a failure to the restart
    early_failures: int = 2  # exceptions or exit codes before the first step ever; then the run is given up
    same_failures: int = 3  # of one exception at one step; then the run is given up as deterministic
    repeated_failures: int = 5  # of one kind in a row, each with less than min_kept_s; then it is given up; 0: never
    min_kept_s: float = 60.0  # of training that is kept: what an attempt must leave to be of use
    min_goodput: float = 0.05  # of the last goodput_attempts attempts; below it, the run is given up; 0.0: never
    goodput_attempts: int = 10
    suspect_crashes: int = 2  # of what was resumed from one state; then an older state is resumed
    disk_wait_s: float = 3600.0  # for room on a full disk; then the run fails
    service_failures: int = 5  # of one service within service_period_s; then the run fails
    service_period_s: float = 300.0

    hang_timeout_s: float | Literal["auto", "off"] = "auto"  # of a step; auto: learned
    hang_limits_s: dict[str, float] = msgspec.field(default_factory=HANG_LIMITS_S.copy)  # a missing one has its default
    hang_abort_s: float = 5.0  # from the dump of a hanging process's stacks to SIGABRT; no option sets it
    hang_kill_s: float = 10.0  # from SIGABRT to SIGKILL; no option sets it
    session_s: float = 60.0  # to the first session; then it is said that nothing is saved; no option sets it

    workers: int = 0  # beside the chief; with one of these three, the run has several tasks
    ps: int = 0
    evaluators: int = 0
    has_chief: bool = True  # else worker.0 is the one whose state is saved
    min_workers: int | None = None  # that have to be left when others are given up, for the run to go on; None: all
    restart: Literal["auto", "task", "gang"] = "auto"  # what is started again when one of them ends (restart_table.py)
    peer_timeout_s: float = 10.0  # of a run on several machines: a watchdog that is silent for so long is lost
    coordinator_timeout_s: float = 300.0  # for all launches to come, and for a coordinator that is lost to be back
    consistent_snapshots: bool = False  # all tasks that train are held between two steps while the chief captures

    steps_total: int = 0  # at which training ends, for the status line; 0: not told
    memory_limit: int = 0  # of the trainer's process tree; 0: none
    log_limit: int = 512 * 2**20  # of the program's log; 0: none
    metrics_port: str = ""  # HOST:PORT at which Prometheus is served; "": none
    on_event: str = ""  # command line; "": none
    notify: str = ""  # URLs, as Apprise takes them; they may hold passwords
    on_event_s: float = 30.0  # then the command is killed
    misplaced: str = ""  # an option of launch that stands after TARGET, where it is the program's
    detach: bool = False  # the watchdog's terminal is a log
    group_readable: bool = False  # run.json, journal, logs and crash reports: for the logdir's group, too
    preempt_signal: Literal["SIGTERM", "SIGUSR1", "SIGUSR2"] = "SIGTERM"
    plan: str = ""  # JSON of a fault plan (procsv/faults/plan.py); "": no faults

    @property
    def tasks(self) -> tuple[TaskId, ...]:
        """Of a run that has several; else none is named, and it has a trainer."""
        if not (self.workers or self.ps or self.evaluators):
            return ()
        return list_tasks(self.workers, self.ps, self.evaluators, has_chief=self.has_chief)

    @property
    def chosen(self) -> dict[str, str]:
        """What differs from the defaults, for people; a command or a fault plan may hold more than they are to see."""
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
        """How long one step may take; None: learned."""
        return self.hang_timeout_s if isinstance(self.hang_timeout_s, float | int) else None

    def hang_limit_s(self, phase: str) -> float:
        """How long `phase`, or "service", may go without progress."""
        return self.hang_limits_s.get(phase, HANG_LIMITS_S[phase])


_DEFAULTS = LaunchSettings(standby="warm")  # as the option says
_PRIVATE = frozenset({"notify", "on_event", "plan"})
