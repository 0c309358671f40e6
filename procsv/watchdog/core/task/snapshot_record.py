"""Record of a trainer's snapshots: the newest in memory, what went with its memory, and why none could be taken.

Used by trainer.py.  Pure.  The checkpoint service knows of most of this itself, but for what happened before it was started, and
for states that never came as far as a snapshot.
"""

from __future__ import annotations

import msgspec

from procsv.base.journal.entries import SnapshotFailed
from procsv.base.outcome import NO_STEP
from procsv.watchdog.core.actions import Say


class SnapshotRecord(msgspec.Struct):
    """One task's trainers, one after the other."""

    memory_step: int = NO_STEP  # of the newest snapshot that is in memory now
    taken_step: int = NO_STEP  # of the newest that the trainer has taken, whether it is still there or not
    untaken: str = ""  # why there is no snapshot of late; "" if there is
    last_untaken: str = ""  # why the last state of the trainer that runs was never in memory
    _lost_step: int = NO_STEP  # of the newest snapshot of a trainer that died, and its memory with it

    def start_attempt(self) -> None:
        self.taken_step, self.untaken, self.last_untaken = NO_STEP, "", ""

    def see_memory(self, step: int, trained_step: int) -> None:
        """The step of the newest snapshot that is in memory now, and how far the trainer has come."""
        self.memory_step = step
        if step <= trained_step:  # else another's, of a state that was not resumed from
            self.taken_step = max(self.taken_step, step)

    def recovered(self) -> None:
        """A trainer has resumed from what there was: it has done without the rest."""
        self.last_untaken, self._lost_step = "", NO_STEP

    def died(self, memory_step: int, has_saved: bool) -> None:
        """`memory_step`: of what the dead trainer has left.  `has_saved`: it ended by itself, its last state in good hands."""
        self.memory_step = memory_step
        if not has_saved and memory_step < self.taken_step:
            self._lost_step = self.taken_step

    def failed(self, news: SnapshotFailed) -> list[Say]:
        """The program's state cannot be taken, of which the checkpoint service knows nothing."""
        what = f"step {news.step} could not be taken: {news.error}"
        if news.is_last:
            self.last_untaken = what
            return []
        self.untaken = what
        return [Say(f"no snapshot: {what}; training goes on, and so do the tries", is_bad=True)]

    def resumed(self, step: int) -> Say:
        """It can be taken again."""
        self.untaken = ""
        return Say(f"snapshots are taken again, from step {step} on")

    def lost(self, durable_step: int) -> str:
        """Why the last state is not on disk, as far as the checkpoint service may not know; "" if it is."""
        if self.last_untaken or self._lost_step <= durable_step:
            return self.last_untaken
        return f"step {self._lost_step} was in memory alone, and is lost from there"
