"""Track the program's states: in slots, staged as files, and on disk.

Part of the core.  core.py passes on everything that it learns.  `durable` is the newest state that
is verified on disk.  A newer state is *unsaved* (see `is_saved`).  This module never decides when
to save or whom to notify.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from procsv.base.identity import TaskId
from procsv.ipc.messaging.checkpoint_messages import Durable
from procsv.ipc.shm.slot_state import SlotInfo, SlotState
from procsv.services.checkpoint.core.facts import DiskState, FoundCheckpoint, SavableState

BAD_MAX = 1000  # how many unreadable states are remembered


class States(msgspec.Struct):
    """The states in memory, and those known to be on disk."""

    run: str
    chief: TaskId  # the task whose state is saved; slots of other tasks are ignored
    lineage: frozenset[str] = frozenset()  # earlier runs of this logdir; their snapshots may be restored
    asks_directory: bool = False  # the directory, once it is listed, may add an earlier run to `lineage`

    durable: Durable | None = None
    durable_sequence: int = 0
    newest_step: int = -1  # of the newest checkpoint, by its manifest or name
    checkpoint_sequence: int = 0  # of the newest checkpoint; 0 if it is not ours
    run_began: float = -math.inf  # Unix seconds
    _newest_time: float = math.inf  # when another writer wrote the newest checkpoint; inf: ours, or unknown
    kept: tuple[str, ...] = ()  # our own checkpoints that are kept now, oldest first
    top_sequence: int = 0  # the highest sequence ever seen
    newest_noted: SavableState | None = None  # this run's newest state that was ever in memory; see `restored`
    slots: tuple[SlotInfo, ...] = ()
    staged: list[SavableState] = msgspec.field(default_factory=list)
    _bad: dict[tuple[str, int], None] = msgspec.field(default_factory=dict)  # unreadable states, oldest first

    # -- observations -----------------------------------------------------------------------------------------
    def see(self, slots: Iterable[SlotInfo]) -> None:
        """Notes the slots that exist now, of any task and in any state."""
        self.slots = tuple(slot for slot in slots if slot.task == self.chief)
        self.heard_of(max((s.sequence for s in self.slots if self.is_ours(s.run)), default=0))
        for slot in self.slots:
            if slot.state is SlotState.READY and slot.run == self.run:
                self.note_in_memory(SavableState.of_slot(slot))

    def heard_of(self, sequence: int) -> None:
        self.top_sequence = max(self.top_sequence, sequence)

    def note_in_memory(self, state: SavableState) -> None:
        """Notes a state of this run that is in memory, or was a moment ago."""
        self.heard_of(state.sequence)
        if self.newest_noted is None or state.sequence > self.newest_noted.sequence:
            self.newest_noted = state

    def restored(self, incarnation: int) -> None:
        """Notes that a trainer has restored.

        It has taken an older state if an earlier trainer's state was lost, so `lost_state` no longer
        reports the loss.
        """
        if self.newest_noted is not None and self.newest_noted.incarnation < incarnation:
            self.newest_noted = None

    def take_staged(self, state: SavableState) -> None:
        if state.run == self.run:
            self.note_in_memory(state)
        self.heard_of(state.sequence)
        if all(state.staged != other.staged for other in self.staged):
            self.staged.append(state)

    def stocked(self, stock: DiskState) -> None:
        """Notes the checkpoints on disk for a new plan."""
        self.asks_directory = False
        self.run_began = self.run_began if stock.run_began is None else stock.run_began
        if stock.previous_owner:
            self.lineage |= {stock.previous_owner}
            self.see(self.slots)
        self.heard_of(stock.top_sequence)
        if self.durable is None or stock.newest_step > self.newest_step:
            self._note_newest(stock.newest_step, stock.newest_sequence, stock.newest_time)
        if not self.kept:
            self.kept = stock.kept
        if stock.durable is not None and stock.durable.sequence > self.durable_sequence:
            self.durable, self.durable_sequence = stock.durable, stock.durable.sequence

    def saved(self, durable: Durable) -> None:
        self.durable, self.kept = durable, durable.all_paths
        self.durable_sequence = durable.sequence
        self.heard_of(durable.sequence)
        # If none of these holds, the program has saved a later state by itself, and that state stays the newest.
        if self.checkpoint_sequence or self._precedes_run or durable.step > self.newest_step:
            self._note_newest(durable.step, durable.sequence)

    def searched(self, found: FoundCheckpoint) -> None:
        """Notes the result of a search.  A checkpoint that the search rejected is not durable."""
        good = found.checkpoint
        self.kept = found.kept
        if self.durable is not None and self.durable.path in {rejection.path for rejection in found.rejected}:
            self.durable, self.durable_sequence = None, good.sequence if good else 0  # so its state is saved again
        self._note_newest(*((good.step, good.sequence) if good is not None else (-1, 0)))

    def adopted(self, durable: Durable, is_latest: bool) -> None:
        """Notes that an external checkpoint has its manifest.

        `is_latest`: the `checkpoint` file names it as the latest.
        """
        self.kept = durable.all_paths
        if is_latest:
            self._note_newest(durable.step, durable.sequence)

    def scanned(self, step: int, sequence: int, is_outdated: bool, time: float = math.inf) -> None:
        """Notes the newest checkpoint in a scan.

        `is_outdated`: this service has saved another checkpoint since the scan began.
        """
        if not is_outdated or (not sequence and step > self.newest_step):
            self._note_newest(step, sequence, time)

    def _note_newest(self, step: int, sequence: int, time: float = math.inf) -> None:
        self.newest_step, self.checkpoint_sequence, self._newest_time = step, sequence, time

    def forget_disk(self) -> None:
        """Forgets the checkpoints on disk, because the new plan saves under another path."""
        self.kept = ()
        self._note_newest(-1, 0)

    def lose(self, state: SavableState, is_bad: bool) -> bool:
        """Notes a state that could not be read.

        The service does not try it again if it is damaged (`is_bad`) or staged.  Returns True if it
        is damaged and the damage was not known yet: a save and a verification may both find it.
        """
        is_news = (state.name, state.sequence) not in self._bad
        if is_bad or state.slot is None:
            self._bad[state.name, state.sequence] = None
            if len(self._bad) > BAD_MAX:
                del self._bad[next(iter(self._bad))]
        return is_bad and is_news

    # -- conclusions ------------------------------------------------------------------------------------------
    def is_ours(self, run: str) -> bool:
        return run == self.run or run in self.lineage

    def is_saved(self, run: str, incarnation: int, sequence: int) -> bool:
        """Whether this snapshot, or a newer one, is on disk.

        A later attempt's snapshot is newer, even if its sequence is lower.
        """
        durable = self.durable
        if durable is not None:
            this, saved = self._attempt(run, incarnation), self._attempt(durable.run, durable.incarnation)
            if this != saved:
                return this < saved
        return sequence <= self.durable_sequence

    def has_newer_checkpoint(self, state: SavableState) -> bool:
        """Whether the newest checkpoint holds a later state than `state`.

        Our own checkpoints are compared by sequence, because a program may restart its steps at 0.
        A state of this run is later than another writer's checkpoint from before the run.
        """
        if self._precedes_run and state.run == self.run:
            return False
        if not self.checkpoint_sequence or state.step == self.newest_step:
            return state.step < self.newest_step
        durable = self.durable
        if durable is not None and durable.sequence == self.checkpoint_sequence:
            this, saved = self._attempt(state.run, state.incarnation), self._attempt(durable.run, durable.incarnation)
            if this != saved:
                return this < saved
        return state.sequence < self.checkpoint_sequence

    @property
    def _precedes_run(self) -> bool:
        """Whether the newest checkpoint is another writer's, from before this run."""
        return not self.checkpoint_sequence and self._newest_time < self.run_began

    def _attempt(self, run: str, incarnation: int) -> int:
        """Returns the number of the attempt within this launch.

        0 for all earlier launches: their sequences continue from launch to launch.
        """
        return incarnation if run == self.run else 0

    def in_memory(self) -> list[SavableState]:
        ready = [info for info in self.slots if info.state is SlotState.READY and self.is_ours(info.run)]
        there = [*map(SavableState.of_slot, ready), *self.staged]
        return [s for s in there if (s.name, s.sequence) not in self._bad] if self._bad else there

    @property
    def unsaved(self) -> SavableState | None:
        """The newest state that is in memory and not on disk."""
        return _newest(s for s in self.in_memory() if not self.is_saved(s.run, s.incarnation, s.sequence))

    @property
    def lost_state(self) -> SavableState | None:
        """The newest state, if it was lost from memory before it was on disk; None otherwise."""
        noted = self.newest_noted
        if noted is None or self.is_saved(noted.run, noted.incarnation, noted.sequence):
            return None
        return noted if noted.sequence > self.newest_sequence else None

    @property
    def newest_slot(self) -> SavableState | None:
        return _newest(s for s in self.in_memory() if s.slot is not None)

    @property
    def newest_staged(self) -> SavableState | None:
        return _newest(s for s in self.in_memory() if s.slot is None)

    @property
    def newest_sequence(self) -> int:
        return max((s.sequence for s in self.in_memory()), default=0)

    @property
    def durable_step(self) -> int:
        return max(self.newest_step, self.durable.step if self.durable is not None else -1)

    def take_superseded(self, busy: SavableState | None) -> list[SavableState]:
        """Forgets the staged states that no process needs any more, and returns them.

        `busy`: the state being saved, which stays.
        """
        if not self.staged:
            return []
        newest = self.newest_sequence
        over = [s for s in self.staged if s.sequence < newest or self.is_saved(s.run, s.incarnation, s.sequence)]
        old = [s for s in over if s != busy]
        for state in old:
            self.staged.remove(state)
        return old


def _newest(states: Iterable[SavableState]) -> SavableState | None:
    return max(states, key=lambda s: s.sequence, default=None)
