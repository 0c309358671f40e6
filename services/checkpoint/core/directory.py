"""Decide when to scan the checkpoint directory, and which checkpoints of other writers to adopt.

Part of the core (core.py).  Pure: the directory's contents arrive as events, and requests to scan
it leave as actions.  The program may call a Saver at any time.  A scan is due when the filesystem
hints at a change, and when the trainer reports a save.  A hint may be lost, so a scan is also due
every RESCAN_S.

In this module, an *external* checkpoint is any checkpoint that this service did not write.  It has
no manifest, or a manifest for another index.  To *adopt* it means to give it a manifest.  An
external checkpoint is verified and adopted once it has stayed unchanged for a while, or at once if
its writer is known to have finished.  It is *settled* once it is adopted, unusable or too old.  If
it fails verification, it is left alone until it changes.
"""

from __future__ import annotations

import math

import msgspec

from procsv.ipc.messaging.checkpoint_messages import CheckpointPlan, Unwritable
from procsv.ipc.messaging.endpoint import Received
from procsv.services.checkpoint.core.actions import (
    Acknowledge,
    Action,
    Adopt,
    Announce,
    Examine,
    ListCheckpoints,
    MakeOwn,
    ScanDirectory,
)
from procsv.services.checkpoint.core.facts import AdoptionResult, DiskState, Scan, Sighting, Signature, Verified
from procsv.services.checkpoint.core.save_scheduler import RETRY_S_MIN
from procsv.services.checkpoint.core.states import States

RESCAN_S = 5.0  # between scans, even without a hint
SCAN_S_MIN = 0.1  # between scans, however many hints there are
GATHER_S = 0.1  # from a hint to its scan: a commit makes a dozen changes, and one scan shows them all
# How long a checkpoint must stay unchanged before it is examined.
CALM_S = 0.3  # if the `checkpoint` file names it
CALM_UNNAMED_S = 2.0  # if not
BUSY_S = 0.5  # before the next try while another Saver holds the lock
ADOPTION_S_MAX = 5.0  # how long shutdown waits for each of the program's last saves to be adopted


class ExternalSaves(msgspec.Struct):
    """External checkpoints as the scans have seen them.  Times are monotonic, except `_baseline_s`.

    `_since` holds the checkpoints that are still to be settled.  It maps the path to the signature
    and to the time at which a scan first saw that signature.  After a failed attempt to read the
    checkpoint, that time is set into the future, so that the next attempt waits.

    `_done` holds the settled checkpoints: path -> signature.

    `_told` holds the trainer's reports that are still to be acknowledged.

    `_baseline_s` is in Unix seconds, and checkpoints from before it are too old.  While it is None,
    everything that the first scan shows is too old.
    """

    scans_begun: int = 0
    scans_done: int = 0
    _scan_s: float = 0.0  # when the next scan is due
    _earliest_s: float = 0.0  # no scan begins before this, even after a hint
    _hinted_s: float = math.inf  # when the next scan is due because of a hint or report
    _baseline_s: float | None = None
    _since: dict[str, tuple[Signature, float]] = msgspec.field(default_factory=dict)
    _done: dict[str, Signature] = msgspec.field(default_factory=dict)
    _told: dict[str, list[Received]] = msgspec.field(default_factory=dict)
    _own: set[str] = msgspec.field(default_factory=set)  # reported as the supervised Saver's, not settled yet
    _adopted_as_external: set[str] = msgspec.field(
        default_factory=set
    )  # adopted as another Saver's; the trainer may report later that its own Saver saved it
    _busy: Sighting | None = None  # the checkpoint that is being examined or adopted
    _examined: Verified | None = None  # the last checkpoint that was verified but could not be adopted yet
    _writers_are_gone: bool = False  # the trainer is dead, so nobody is still writing

    # -- events -----------------------------------------------------------------------------------------------
    def start_directory(self, run_began: float | None) -> None:
        """Starts with a new directory.

        Checkpoints from before `run_began` (Unix seconds) are too old.
        """
        self._baseline_s = run_began
        self._since, self._done, self._scan_s = {}, {}, 0.0

    def hint(self, now_s: float) -> None:
        """Schedules a scan because something has changed in the directory."""
        self._hinted_s = min(self._hinted_s, now_s + GATHER_S)

    def own_save_reported(self, asker: Received, path: str) -> None:
        """Notes the trainer's report that the supervised Saver has finished saving `path`."""
        self._told.setdefault(path, []).append(asker)
        self._own.add(path)
        self._done.pop(path, None)
        self._hinted_s = -math.inf

    def note_writers_gone(self, are_gone: bool) -> None:
        """Notes whether all writers are dead, and requests a scan now.

        Once they are dead, a checkpoint is examined without waiting for it to stay unchanged.
        """
        self._writers_are_gone = are_gone
        self._hinted_s, self._earliest_s = -math.inf, 0.0

    @property
    def is_idle(self) -> bool:
        """Whether all checkpoints that the scans have seen are settled."""
        return self._busy is None and not self._since

    # -- scans ----------------------------------------------------------------------------------------------
    def request_scan(self, plan: CheckpointPlan | None, now_s: float) -> list[Action]:
        """Requests a scan if one is due."""
        if plan is None or self.scans_done < self.scans_begun or now_s < self.next_due_s():
            return []
        self.scans_begun += 1
        self._hinted_s = self._scan_s = math.inf
        return [ScanDirectory(plan)]

    def next_due_s(self) -> float:
        """Returns when the next scan is due.

        Infinite during a scan: its result sets the next time.
        """
        if self.scans_done < self.scans_begun:
            return math.inf
        return max(self._earliest_s, min(self._hinted_s, self._scan_s))

    def scanned(self, scan: Scan, plan: CheckpointPlan, now_s: float) -> list[Action]:
        """Sorts the checkpoints that a scan has found, and begins to examine one that is ready."""
        self.scans_done, self._earliest_s = self.scans_begun, now_s + SCAN_S_MIN
        external = {s.path: s for s in scan.external}
        # Checkpoints that the trainer has reported are new, whatever the clock said when they were saved.
        unreported = [s for s in scan.external if s.path not in self._own]
        old = [s for s in unreported if self._baseline_s is None or s.time < self._baseline_s]
        self._done.update({s.path: s.signature for s in old})
        self._baseline_s = -math.inf if self._baseline_s is None else self._baseline_s
        news = [s for s in scan.external if self._done.get(s.path) != s.signature]
        self._since = {s.path: self._seen_since(s, now_s) for s in news}
        self._done = {path: signature for path, signature in self._done.items() if path in external}
        out = self._answer_about({s.path for s in news}, plan)
        calm_s = {s.path: self._since[s.path][1] + self._calm_s(s) for s in news}
        self._scan_s = min([now_s + RESCAN_S, *(due_s for due_s in calm_s.values() if due_s > now_s)])
        ready = [s for s in news if calm_s[s.path] <= now_s]
        if ready and self._busy is None:
            self._busy = min(ready, key=lambda s: s.time)
            known, self._examined = self._examined, None
            if known is not None and (known.path, known.signature) == (self._busy.path, self._busy.signature):
                out += self.examined(known, plan, now_s)
            else:
                out.append(Examine(self._busy, plan))
        return out

    def _seen_since(self, sighting: Sighting, now_s: float) -> tuple[Signature, float]:
        before = self._since.get(sighting.path)
        return before if before is not None and before[0] == sighting.signature else (sighting.signature, now_s)

    def _calm_s(self, sighting: Sighting) -> float:
        if sighting.path in self._own or self._writers_are_gone:
            return 0.0
        return CALM_S if sighting.listed else CALM_UNNAMED_S

    def _answer_about(self, open_paths: set[str], plan: CheckpointPlan) -> list[Action]:
        """Acknowledges settled reports: the checkpoint is adopted, unusable or gone.

        If it was adopted as another Saver's, also assigns it to the supervised Saver.
        """
        settled = [path for path in self._told if path not in open_paths]
        late = self._adopted_as_external.intersection(settled)
        self._adopted_as_external -= late
        self._own &= open_paths
        out: list[Action] = [MakeOwn(path, plan) for path in sorted(late)]
        return out + [Acknowledge(asker) for path in settled for asker in self._told.pop(path)]

    # -- adoption --------------------------------------------------------------------------------------------
    def examined(self, examined: Verified, plan: CheckpointPlan, now_s: float) -> list[Action]:
        """Adopts an external checkpoint that was examined.

        A checkpoint that could not be read waits for a later scan.
        """
        assert self._busy is not None, "examined unasked"
        if not examined.is_read:
            self._since[examined.path] = (examined.signature, now_s + RESCAN_S)
            self._busy, self._hinted_s = None, -math.inf
            return []
        if examined.error:
            self._done[examined.path] = examined.signature
        if not examined.files:
            self._end_with(examined.path)
            return []
        return [Adopt(examined, examined.path in self._own, plan)]

    def adopted(self, taken: AdoptionResult, now_s: float) -> None:
        """Handles the result of an adoption.

        If nothing was adopted, the checkpoint may have changed, or another Saver may hold the lock.
        Then a later scan decides again.
        """
        examined = taken.examined
        if taken.durable is None:
            self._earliest_s = now_s + BUSY_S
            self._examined = examined  # the next try reads the checkpoint again only if it has changed
        else:
            self._done[examined.path] = examined.signature
            self._adopted_as_external = (
                self._adopted_as_external - {examined.path}
                if taken.own
                else self._adopted_as_external | {examined.path}
            )
        self._end_with(examined.path)

    def _end_with(self, path: str) -> None:
        self._since.pop(path, None)
        self._busy, self._hinted_s = None, -math.inf


class Directory:
    """The checkpoint directory.  `plan` is None until a trainer or a snapshot supplies it."""

    def __init__(self, states: States, *, can_scan: bool) -> None:
        """`can_scan`: False if the directory is a URL."""
        self._states, self.can_scan = states, can_scan
        self.external_saves = ExternalSaves()
        self.plan: CheckpointPlan | None = None
        self.is_stocked = False  # whether the contents are known
        self._stock_again_s: float | None = None
        self._last_scan = 0  # number of the scan that must end before the run may end
        self._adopt_by_s = math.inf  # until when the end of the run waits for adoptions
        self._scanned_at = 0  # the newest durable sequence when the scan began
        self._trouble = ""  # as last announced

    # -- contents ---------------------------------------------------------------------------------------------
    @property
    def known_plan(self) -> CheckpointPlan | None:
        """The plan, once the directory's contents are known."""
        return self.plan if self.is_stocked else None

    def follow_plan(self, plan: CheckpointPlan) -> ListCheckpoints:
        """Switches to a new plan."""
        if self.plan is not None and plan.save_path != self.plan.save_path:
            self._states.forget_disk()
        self.plan = plan
        self.is_stocked = False
        return ListCheckpoints(plan)

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
        return [ListCheckpoints(self.plan)]

    # -- checkpoints of other writers -------------------------------------------------------------------------
    @property
    def next_scan(self) -> int:
        """The number of the next scan that will begin."""
        return self.external_saves.scans_begun + 1

    @property
    def scans_done(self) -> float:
        """How many scans have ended.

        Infinite for a URL, which is never scanned: so nothing waits for a scan.
        """
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
            self._states.scanned(scan.newest_step, scan.newest_sequence, is_outdated, scan.newest_time)
        return self.external_saves.scanned(scan, self.plan, now_s)

    def take_trouble(self, trouble: str) -> list[Action]:
        """Announces a new problem with the directory, or that the problem is gone."""
        was, self._trouble = self._trouble, trouble
        return [Announce(Unwritable(trouble))] if trouble != was else []

    def examined(self, examined: Verified, now_s: float) -> list[Action]:
        assert self.plan is not None, "an examination without a plan"
        return self.external_saves.examined(examined, self.plan, now_s)

    def adopted(self, taken: AdoptionResult, now_s: float) -> list[Action]:
        """Handles the result of an adoption.

        The external checkpoint now has its manifest, or a later scan tries again.
        """
        self.external_saves.adopted(taken, now_s)
        if taken.durable is None:
            return []
        self._states.adopted(taken.durable, taken.is_latest)
        if self._adopt_by_s < math.inf:
            self._adopt_by_s = now_s + ADOPTION_S_MAX
        return [Announce(taken.durable)]

    # -- the end of the run -----------------------------------------------------------------------------------
    def finish_adoption(self, now_s: float) -> None:
        """Sets a deadline for adopting the program's saves.

        All writers are dead, so no more saves follow.
        """
        self.external_saves.note_writers_gone(True)
        self._last_scan, self._adopt_by_s = self.next_scan, now_s + ADOPTION_S_MAX

    def is_adopting(self, now_s: float) -> bool:
        """Whether shutdown still waits for external checkpoints."""
        if not self.is_stocked or now_s >= self._adopt_by_s:
            return False
        return self.scans_done < self._last_scan or not self.external_saves.is_idle

    def next_due_s(self) -> float:
        """Returns the monotonic time at which to decide again, even without another event."""
        scan_s = self.external_saves.next_due_s() if self.is_stocked and self.can_scan else math.inf
        return min(self._stock_again_s or math.inf, self._adopt_by_s, scan_s)
