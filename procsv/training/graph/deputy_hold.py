"""The hold of a server that captures while there is no chief: the workers stand between two steps meanwhile, as they do for the chief.

Used by deputy.py under `--consistent-snapshots`.  A chief that was killed in a step may have left the servers at it, so the first captures
after its death are mixed, whoever is held.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from procsv.base.cluster import STEPLESS
from procsv.training.runtime.context import Runtime
from procsv.training.runtime.step_gate import SETTLE_S, GateHolder, Hold, gather_s_of


class DeputyHold:
    """Holds the workers for one capture at a time."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        start = runtime.start
        self._workers = [task for task in start.settings.tasks if task.role not in STEPLESS and task != start.chief]
        self._chief_seen_s = runtime.clock.monotonic()
        self._gate: GateHolder | None = None  # while there is no chief
        self._was_whole: bool | None = None  # likewise

    def chief_seen(self) -> None:
        """There is a chief now."""
        self._chief_seen_s, self._was_whole = self._runtime.clock.monotonic(), None
        if self._gate is not None:
            self._gate.close()  # the next one of them may make it anew
        self._gate = None

    @contextlib.contextmanager
    def holding(self, step_s: float) -> Iterator[Hold]:
        """The block runs in any case; whether all was held, the Hold says behind it.  `step_s`: of a chief's step."""
        runtime = self._runtime
        is_settled = runtime.clock.monotonic() - self._chief_seen_s >= SETTLE_S
        try:
            self._gate = self._gate or GateHolder(runtime.paths, self._workers, runtime.clock)
        except FileNotFoundError:
            hold = Hold(why=f"{runtime.paths.gate} was removed")
            yield hold
        else:
            with self._gate.hold(gather_s_of(step_s)) as hold:
                yield hold
            if hold.is_whole and not is_settled:
                hold.is_whole, hold.why = False, f"{runtime.start.chief} may have died in a step just now"
        if hold.is_whole != self._was_whole:
            self._was_whole = hold.is_whole
            runtime.note("held", is_exact=hold.is_whole, ms=round(hold.held_s * 1e3, 3), why=hold.why)
