"""Decide when to scan the checkpoint directory, and how long shutdown waits for what a scan finds.

Part of the core (core.py).  It tracks the plan for the directory and whether the directory's
contents are known.  Pure: the contents arrive as events, and requests to look leave as actions.
external_saves.py decides which checkpoints of other writers to adopt.
"""

from __future__ import annotations

import math

from procsv.ipc.messaging.checkpoint_messages import CheckpointPlan, Unwritable
from procsv.services.checkpoint.core.actions import Action, Announce, TakeStock
from procsv.services.checkpoint.core.external_saves import ExternalSaves
from procsv.services.checkpoint.core.facts import AdoptionResult, DiskState, Scan, Verified
from procsv.services.checkpoint.core.save_scheduler import RETRY_S_MIN
from procsv.services.checkpoint.core.states import States

ADOPTION_S_MAX = 5.0  # how long shutdown waits for the next of the program's last saves to be adopted


class Directory:
    """The checkpoint directory.  `plan` is None until a trainer or a snapshot supplies it."""

    def __init__(self, states: States, *, can_scan: bool) -> None:
        """`can_scan`: False if the directory is a URL."""
        self._states, self.can_scan = states, can_scan
        self.external_saves = ExternalSaves()
        self.plan: CheckpointPlan | None = None
        self.is_stocked = False  # whether the contents are known
        self._stock_again_s: float | None = None
        self._last_scan = 0  # the scan that must end before the run may
        self._adopt_by_s = math.inf
        self._scanned_at = 0  # the durable sequence when the scan began
        self._trouble = ""  # as last announced

    # -- contents ---------------------------------------------------------------------------------------------
    @property
    def known_plan(self) -> CheckpointPlan | None:
        """The plan, once the directory's contents are known."""
        return self.plan if self.is_stocked else None

    def follow_plan(self, plan: CheckpointPlan) -> TakeStock:
        """Switches to a new plan."""
        if self.plan is not None and plan.save_path != self.plan.save_path:
            self._states.forget_disk()
        self.plan = plan
        self.is_stocked = False
        return TakeStock(plan)

    def stocked(self, stock: DiskState) -> None:
        if not self.is_stocked:
            self.external_saves.start_directory(stock.run_began)
        self.is_stocked = True
        self._states.stocked(stock)

    def not_stocked(self, now_s: float) -> None:
        """Schedules another try after the directory could not be read."""
        self._stock_again_s = now_s + RETRY_S_MIN

    def take_stock_again(self, now_s: float) -> list[Action]:
        if self.plan is None or self._stock_again_s is None or now_s < self._stock_again_s:
            return []
        self._stock_again_s = None
        return [TakeStock(self.plan)]

    # -- checkpoints of other writers -------------------------------------------------------------------------
    @property
    def next_scan(self) -> int:
        """The number of the next scan that will begin."""
        return self.external_saves.scans_begun + 1

    @property
    def scans_done(self) -> float:
        """How many scans have ended; infinite where there are none, so that nobody waits for one."""
        return self.external_saves.scans_done if self.can_scan else math.inf

    def scan_if_due(self, now_s: float) -> list[Action]:
        """Begins a scan if one is due."""
        looks = self.external_saves.request_scan(self.known_plan if self.can_scan else None, now_s)
        if looks:
            self._scanned_at = self._states.durable_sequence
        return looks

    def scanned(self, scan: Scan, now_s: float) -> list[Action]:
        assert self.plan is not None, "a scan without a plan"
        if scan.newest_step is not None:
            is_outdated = self._scanned_at != self._states.durable_sequence
            self._states.scanned(scan.newest_step, scan.newest_sequence, is_outdated)
        return self.external_saves.scanned(scan, self.plan, now_s)

    def take_trouble(self, trouble: str) -> list[Action]:
        """Announces a new problem with the directory, or that the problem is gone."""
        was, self._trouble = self._trouble, trouble
        return [Announce(Unwritable(trouble))] if trouble != was else []

    def examined(self, examined: Verified, now_s: float) -> list[Action]:
        assert self.plan is not None, "an examination without a plan"
        return self.external_saves.examined(examined, self.plan, now_s)

    def adopted(self, taken: AdoptionResult, now_s: float) -> list[Action]:
        """Handles the result of an adoption: the external checkpoint has its manifest, or not yet."""
        self.external_saves.adopted(taken, now_s)
        if taken.durable is None:
            return []
        self._states.adopted(taken.durable, taken.is_latest)
        if self._adopt_by_s < math.inf:
            self._adopt_by_s = now_s + ADOPTION_S_MAX
        return [Announce(taken.durable)]

    # -- the end of the run -----------------------------------------------------------------------------------
    def finish_adoption(self, now_s: float) -> None:
        """Sets a deadline to adopt everything saved until now; nothing more will be saved."""
        self.external_saves.writers_are_gone(True)
        self._last_scan, self._adopt_by_s = self.next_scan, now_s + ADOPTION_S_MAX

    def is_adopting(self, now_s: float) -> bool:
        """Whether shutdown still waits for external checkpoints."""
        if not self.is_stocked or now_s >= self._adopt_by_s:
            return False
        return self.scans_done < self._last_scan or not self.external_saves.is_idle

    def next_due_s(self) -> float:
        """Returns the monotonic time at which something changes without another event."""
        scan_s = self.external_saves.next_due_s() if self.is_stocked and self.can_scan else math.inf
        return min(self._stock_again_s or math.inf, self._adopt_by_s, scan_s)
