"""Directory of the checkpoints: its plan, whether it is known what lies there, and what others save in it.

Used by core.py.  Pure: what the directory holds comes as events, what is to be looked at goes out as actions.  Which checkpoints of
other writers are adopted is decided in external_saves.py; here is when it is looked for them, and until when the end of the run waits.
"""

from __future__ import annotations

import math

from procsv.ipc.messaging.checkpoint_messages import CheckpointPlan, Unwritable
from procsv.services.checkpoint.core.actions import Action, Announce, TakeStock
from procsv.services.checkpoint.core.external_saves import ExternalSaves
from procsv.services.checkpoint.core.facts import AdoptionResult, DiskState, Scan, Verified
from procsv.services.checkpoint.core.save_scheduler import RETRY_S_MIN
from procsv.services.checkpoint.core.states import States

ADOPTION_S_MAX = 5.0  # how long the end of the run waits for the next of the program's last saves to be adopted


class Directory:
    """`plan`: None until somebody has said it."""

    def __init__(self, states: States, *, can_scan: bool) -> None:
        """`can_scan` False: of a URL."""
        self._states, self.can_scan = states, can_scan
        self.external_saves = ExternalSaves()
        self.plan: CheckpointPlan | None = None
        self.is_stocked = False  # whether it is known what lies there
        self._stock_again_s: float | None = None
        self._last_scan = 0  # the one after which the run may end
        self._adopt_by_s = math.inf
        self._scanned_at = 0  # the durable sequence when the scan began
        self._trouble = ""  # as last announced

    # -- what lies there --------------------------------------------------------------------------------------
    @property
    def known_plan(self) -> CheckpointPlan | None:
        """The plan, once it is known what lies there."""
        return self.plan if self.is_stocked else None

    def follow_plan(self, plan: CheckpointPlan) -> TakeStock:
        """Another plan than before."""
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
        """It could not be read: it is tried again."""
        self._stock_again_s = now_s + RETRY_S_MIN

    def take_stock_again(self, now_s: float) -> list[Action]:
        if self.plan is None or self._stock_again_s is None or now_s < self._stock_again_s:
            return []
        self._stock_again_s = None
        return [TakeStock(self.plan)]

    # -- what others have saved -------------------------------------------------------------------------------
    @property
    def next_scan(self) -> int:
        """The number of the next scan to begin."""
        return self.external_saves.scans_begun + 1

    @property
    def scans_done(self) -> float:
        """How many have ended; where there are none, nobody waits for one."""
        return self.external_saves.scans_done if self.can_scan else math.inf

    def scan_if_due(self, now_s: float) -> list[Action]:
        """Begins a scan, or goes on with what one has found, if it is time."""
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
        """Announces what is wrong with the directory, or that nothing is any more, if that is new."""
        was, self._trouble = self._trouble, trouble
        return [Announce(Unwritable(trouble))] if trouble != was else []

    def examined(self, examined: Verified, now_s: float) -> list[Action]:
        assert self.plan is not None, "an examination without a plan"
        return self.external_saves.examined(examined, self.plan, now_s)

    def adopted(self, taken: AdoptionResult, now_s: float) -> list[Action]:
        """An external checkpoint has its manifest, or not yet."""
        self.external_saves.adopted(taken, now_s)
        if taken.durable is None:
            return []
        self._states.adopted(taken.durable, taken.is_latest)
        if self._adopt_by_s < math.inf:
            self._adopt_by_s = now_s + ADOPTION_S_MAX
        return [Announce(taken.durable)]

    # -- the end of the run -----------------------------------------------------------------------------------
    def finish_adoption(self, now_s: float) -> None:
        """What was saved until now is adopted; nothing comes any more."""
        self.external_saves.writers_are_gone(True)
        self._last_scan, self._adopt_by_s = self.next_scan, now_s + ADOPTION_S_MAX

    def is_adopting(self, now_s: float) -> bool:
        """Whether the end of the run still waits for external checkpoints."""
        if not self.is_stocked or now_s >= self._adopt_by_s:
            return False
        return self.scans_done < self._last_scan or not self.external_saves.is_idle

    def next_due_s(self) -> float:
        """The monotonic time at which time alone changes something."""
        scan_s = self.external_saves.next_due_s() if self.is_stocked and self.can_scan else math.inf
        return min(self._stock_again_s or math.inf, self._adopt_by_s, scan_s)
