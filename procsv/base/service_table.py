"""Table of the services: what each one is, and how a run treats it.

Read by the watchdog, by tasks, services and the command line.  A new service is a row here, its
package, and that package in pyproject.toml; who sends it what is said in ipc/messaging/message.py.
"""

from __future__ import annotations

import msgspec

from procsv.base.identity import CHECKPOINT, SUMMARY, TaskId


class ServiceSpec(msgspec.Struct, frozen=True):
    """One service.  Each keeps a lock, a socket and a heartbeat by its task's name."""

    task: TaskId
    module: str  # what `python -m` runs
    is_critical: bool  # lost for good, it fails the run; else the run goes on without it
    keeps_state: bool  # hears of each trainer's death, settles what it left, and finishes after that
    takes_events: bool = False  # hears the run's own metrics, the last of them before it is told to finish
    finish_s_max: float = 900.0  # from the end of training: big checkpoints on slow disks; then it is killed


_ROWS = (
    ServiceSpec(CHECKPOINT, "procsv.services.checkpoint", is_critical=True, keeps_state=True),
    ServiceSpec(SUMMARY, "procsv.services.summary", is_critical=True, keeps_state=False, takes_events=True),
)
SERVICES = {spec.task: spec for spec in _ROWS}  # in the order in which they are started
