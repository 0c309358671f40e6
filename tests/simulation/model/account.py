"""The invariants' own memory of a simulated world. Only they write to it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from procsv.base.identity import TaskId
from procsv.ipc.messaging.checkpoint_messages import Durable
from procsv.watchdog.core.events import Ended
from tests.simulation.model import history
from tests.simulation.model.group.fewer import GivenUp


@dataclass(slots=True)
class Budget:
    """The failures of one task in one launch, counted from what its watchdog received. A gang has one budget."""

    failures: int = 0
    early: int = 0
    same: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    durable_step: int = -1
    was_ready: bool = False
    has_gone_back: bool = False  # before a suspect state
    is_broken: bool = False  # for a gang: the first member has ended and none has started since
    last: Ended | None = None


@dataclass(slots=True)
class Account:
    """The memory of the invariants."""

    best: Durable | None = None  # the newest acknowledged checkpoint
    acknowledged: dict[str, int] = field(default_factory=dict)  # path -> step
    taken: dict[tuple[str, int, int], tuple[int, int]] = field(default_factory=dict)  # step and value of each snapshot
    finished: history.Finished | None = None  # the last attempt that reached its last step
    restored_steps: set[int] = field(default_factory=set)  # steps of restored checkpoints
    suspected: int = -1  # a step that the next trainer need not resume from
    spoilt: set[str] = field(default_factory=set)  # paths that a fault has damaged
    passed_over: set[str] = field(default_factory=set)  # paths of suspect states, which are not resumed from
    disk_version: int = -1
    records: dict[str, tuple[str, int]] = field(default_factory=dict)  # record -> file and place
    checked: dict[str, int] = field(default_factory=dict)  # file -> records scanned at
    last_in: dict[str, tuple[int, int]] = field(default_factory=dict)  # file -> number and step of the last record
    died: dict[tuple[TaskId, int], history.Died] = field(default_factory=dict)
    budgets: dict[TaskId, Budget] = field(default_factory=dict)
    newest_heard: dict[tuple[TaskId, TaskId], int] = field(default_factory=dict)  # (server, task) -> incarnation
    newest: dict[TaskId, int] = field(default_factory=dict)  # the newest attempt of each task
    ring: int = 0  # the newest ring, of the tasks that train in step, that has made a step
    ring_states: dict[int, tuple[int, int]] = field(default_factory=dict)  # step -> state, of that ring
    has_model: bool = False  # the servers hold a whole model, and none has been lost since
    given_up: GivenUp | None = None  # in the newest launch
    ends_at_once: bool = False  # all tasks, without waiting for their programs
