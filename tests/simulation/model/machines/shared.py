"""The logdir that all machines see: its disk, its lease, its terms and its writers.

It is strongly consistent, as a local disk is: the others read at once what one machine has written.
A machine that is cut off from it waits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec

from procsv.base.run.lease import Lease, LeaseFile, LeaseKeeper, ProcessSpace, lost_to
from procsv.base.run.terms import Term
from procsv.base.system.fenced_rename import Fenced, FencedRename
from tests.simulation.model.checkpoints import HOME, STATE_FILE
from tests.simulation.model.clock import SimClock
from tests.simulation.model.disk import Node, SimDisk


class SharedDisk(SimDisk):
    """Calls `on_change` with the run that changes checkpoint files or the `checkpoint` file, and the change."""

    def __init__(self, rng: Random, on_change: Callable[[str, str], None]) -> None:
        super().__init__(rng)
        self.writer = ""  # the run whose process is using it
        self._on_change = on_change

    def _change(self, *names: tuple[str, Node | None]) -> None:
        for path, _ in names:
            if not path.startswith(HOME) and not path.endswith(".new"):
                self._on_change(self.writer, path)
        super()._change(*names)


class SharedLogdir:
    def __init__(self, clock: SimClock, rng: Random, on_change: Callable[[str, str], None]) -> None:
        self.clock, self.disk = clock, SharedDisk(rng, on_change)
        self.lease: Lease | None = None
        self.lease_s = 0.0  # when it was written, by the storage's clock
        self.fences: set[str] = set()  # the runs that can replace it
        self.last_writer = ""  # the last writer of run.json
        self.ended = "", 0  # the run that has written its end, and its exit code
        self.terms: dict[int, Term] = {}
        self.last_incarnation = 0

    def write_term(self, term: Term) -> Term:
        """Do terms.write_term: link(2) gives each number to one process only."""
        numbered = msgspec.structs.replace(term, number=max(self.terms, default=0) + 1)
        self.terms[numbered.number] = numbered
        return numbered

    def newest_term(self, scheduler: str) -> Term | None:
        own = [number for number, term in self.terms.items() if term.scheduler == scheduler]
        return self.terms[max(own)] if own else None

    def forget_terms(self, below: int) -> None:
        self.terms = {number: term for number, term in self.terms.items() if number >= below}

    def withdraw_terms(self, run: str) -> None:
        self.terms = {number: term for number, term in self.terms.items() if term.run != run}

    @property
    def latest(self) -> tuple[str, ...]:
        """Return what the `checkpoint` file lists."""
        node = self.disk.files.get(STATE_FILE)
        return node.content if node is not None else ()


class SimLeaseFile(LeaseFile):
    """The lease.json in the logdir."""

    def __init__(self, logdir: SharedLogdir, *, has_run_json: bool = True) -> None:
        self._logdir, self._has_run_json = logdir, has_run_json

    def holder(self) -> Lease | None:
        return self._logdir.lease

    def successor(self, run: str) -> Lease | None:
        last = self._logdir.last_writer if self._has_run_json else ""
        return (
            None if last in ("", run) else Lease(run=last, place=place_of("another"), pid=1, started=0.0, what="launch")
        )

    def age_s(self) -> float:
        return self._logdir.clock.now_s - self._logdir.lease_s

    def take_lease(self, lease: Lease, *, is_new: bool = False) -> None:
        if is_new and self._logdir.lease is not None:
            raise FileExistsError
        self._make_fence(lease.run)
        self.replace(lease)
        self._logdir.fences = {lease.run}

    def replace(self, lease: Lease) -> None:
        if lease.run not in self._logdir.fences:
            raise Fenced(lease.run)
        self._logdir.lease, self._logdir.lease_s = lease, self._logdir.clock.now_s

    def remove(self, run: str) -> None:
        if self._logdir.lease is not None and self._logdir.lease.run == run:
            self._logdir.lease = None
        self._remove_fence(run)

    def _fence_home(self, run: str) -> Path:
        return Path(run)

    def _make_fence(self, run: str) -> FencedRename:
        self._logdir.fences.add(run)
        return FencedRename(self._fence_home(run))

    def _remove_fence(self, run: str) -> None:
        self._logdir.fences.discard(run)


class SimLeaseKeeper(LeaseKeeper):
    def __init__(self, logdir: SharedLogdir, lease: Lease, now_s: float, *, has_run_json: bool = True) -> None:
        self.lease, self._file, self._due_s = lease, SimLeaseFile(logdir, has_run_json=has_run_json), now_s
        self._is_behind_its_look = False

    def stand_still_behind_look(self) -> None:
        """Freeze its machine right after it has found its lease in order; its pending action comes
        first when it wakes.
        """
        if lost_to(self._file, self.lease.run) is None:
            self._is_behind_its_look, self._due_s = True, 0.0

    def renew(self, now_s: float, wall_s: float) -> Lease | None:
        if self._is_behind_its_look:
            self._is_behind_its_look = False
            with contextlib.suppress(Fenced):
                self._file.replace(self.lease)
        return super().renew(now_s, wall_s)


def place_of(machine: str) -> ProcessSpace:
    return ProcessSpace(machine, f"boot of {machine}", "pids")
