"""List the services, and how a run treats each.

The watchdog, tasks, services and the command line read the table.  A new service needs a row here,
its package, and that package in pyproject.toml; ipc/messaging/message.py defines who may send it
what.
"""

from __future__ import annotations

import msgspec

from procsv.base.identity import CHECKPOINT, SUMMARY, TaskId


class ServiceSpec(msgspec.Struct, frozen=True):
    """One service.  It has a lock, a socket and a heartbeat named after its task."""

    task: TaskId
    module: str  # what `python -m` runs
    is_critical: bool  # whether the run fails without it
    keeps_state: bool  # it saves the state that a dead trainer has left; it gets Finish only after that
    takes_events: bool = False  # it receives the run's own metrics, the last of them before Finish
    finish_s_max: float = 900.0  # it is killed this long after training ends; big checkpoints on slow disks take long


_ROWS = (
    ServiceSpec(CHECKPOINT, "procsv.services.checkpoint", is_critical=True, keeps_state=True),
    ServiceSpec(SUMMARY, "procsv.services.summary", is_critical=True, keeps_state=False, takes_events=True),
)
SERVICES = {spec.task: spec for spec in _ROWS}  # in starting order
