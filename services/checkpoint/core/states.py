"""States of the program: in slots, staged as files, and on disk.

Part of the core (core.py), which shows it everything that is seen.  `durable` is the newest state that is verified on
disk; a state is *unsaved* if it is newer (`is_saved`).  Never decides when anything is saved, nor who is told.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from procsv.base.identity import TaskId
from procsv.ipc.messaging.checkpoint_messages import Durable
from procsv.ipc.shm.slot_state import SlotInfo, SlotState
from procsv.services.checkpoint.core.facts import DiskState, FoundCheckpoint, SavableState

BAD_MAX = 1000  # states that could not be read, and are remembered


class States(msgspec.Struct):
    """What is in memory, and what is known of the disk."""

    run: str
    chief: TaskId  # whose state it is; other tasks' slots are not looked at
    lineage: frozenset[str] = frozenset()  # runs before this one in this logdir: their snapshots count
    asks_directory: bool = False  # whether the directory of the checkpoints is still to tell of one

    durable: Durable | None = None
    durable_sequence: int = 0
    newest_step: int = -1  # of the newest checkpoint, as far as its manifest or name says
    checkpoint_sequence: int = 0  # of the same one; 0: none of ours
    kept: tuple[str, ...] = ()
    top_sequence: int = 0  # the highest that was ever heard of
    told: SavableState | None = None  # the newest of this run that was ever in memory
    slots: tuple[SlotInfo, ...] = ()
    staged: list[SavableState] = msgspec.field(default_factory=list)
    _bad: dict[tuple[str, int], None] = msgspec.field(default_factory=dict)  # the newest of them

    # -- what is seen -----------------------------------------------------------------------------------------
    def see(self, slots: Iterable[SlotInfo]) -> None:
        """The slots that are there now, of whichever task, in whatever state."""
        self.slots = tuple(slot for slot in slots if slot.task == self.chief)
        self.heard_of(max((s.sequence for s in self.slots if self.is_ours(s.run)), default=0))
        for slot in self.slots:
            if slot.state is SlotState.READY and slot.run == self.run:
                self.note_in_memory(SavableState.of_slot(slot))

    def heard_of(self, sequence: int) -> None:
        self.top_sequence = max(self.top_sequence, sequence)

    def note_in_memory(self, state: SavableState) -> None:
        """A state of this run that is in memory, or was a moment ago."""
        self.heard_of(state.sequence)
        if self.told is None or state.sequence > self.told.sequence:
            self.told = state

    def restored(self, incarnation: int) -> None:
        """A trainer has its state: what those before it had is not to be saved any more."""
        if self.told is not None and self.told.incarnation < incarnation:
            self.told = None

    def take_staged(self, state: SavableState) -> None:
        if state.run == self.run:
            self.note_in_memory(state)
        self.heard_of(state.sequence)
        if all(state.staged != other.staged for other in self.staged):
            self.staged.append(state)

    def stocked(self, stock: DiskState) -> None:
        """The checkpoints on disk, for a new plan."""
        self.asks_directory = False
        if stock.run_before:
            self.lineage |= {stock.run_before}
            self.see(self.slots)
        self.heard_of(stock.top_sequence)
        if self.durable is None or stock.newest_step > self.newest_step:
            self._note_newest(stock.newest_step, stock.newest_sequence)
        if not self.kept:
            self.kept = stock.kept
        if stock.durable is not None and stock.durable.sequence > self.durable_sequence:
            self.durable, self.durable_sequence = stock.durable, stock.durable.sequence

    def saved(self, durable: Durable) -> None:
        self.durable, self.kept = durable, durable.all_paths
        self.durable_sequence = durable.sequence
        self.heard_of(durable.sequence)
        if (
            self.checkpoint_sequence or durable.step > self.newest_step
        ):  # else the program has saved a later state by itself
            self._note_newest(durable.step, durable.sequence)

    def searched(self, found: FoundCheckpoint) -> None:
        """A search has ended: a checkpoint that it rejected is not durable."""
        good = found.checkpoint
        self.kept = found.kept
        if self.durable is not None and self.durable.path in {rejection.path for rejection in found.rejected}:
            self.durable, self.durable_sequence = None, good.sequence if good else 0  # so it is saved once more
        self._note_newest(*((good.step, good.sequence) if good is not None else (-1, 0)))

    def adopted(self, durable: Durable, is_latest: bool) -> None:
        """An external checkpoint has its manifest."""
        self.kept = durable.all_paths
        if is_latest:
            self._note_newest(durable.step, durable.sequence)

    def scanned(self, step: int, sequence: int, is_outdated: bool) -> None:
        """The newest checkpoint by a scan; `is_outdated`: we have saved another since the scan began."""
        if not is_outdated or (not sequence and step > self.newest_step):
            self._note_newest(step, sequence)

    def _note_newest(self, step: int, sequence: int) -> None:
        self.newest_step, self.checkpoint_sequence = step, sequence

    def forget_disk(self) -> None:
        """Checkpoints go to another place from now on."""
        self.kept = ()
        self._note_newest(-1, 0)

    def lose(self, state: SavableState, is_bad: bool) -> bool:
        """A state could not be read; True if it is bad and that is news (a save and a check may both find it)."""
        is_news = (state.name, state.sequence) not in self._bad
        if is_bad or state.slot is None:
            self._bad[state.name, state.sequence] = None
            if len(self._bad) > BAD_MAX:
                del self._bad[next(iter(self._bad))]
        return is_bad and is_news

    # -- what follows -----------------------------------------------------------------------------------------
    def is_ours(self, run: str) -> bool:
        return run == self.run or run in self.lineage

    def is_saved(self, run: str, incarnation: int, sequence: int) -> bool:
        """Whether this snapshot, or a newer one, is on disk.  Between attempts the later one is newer, whatever the sequences."""
        durable = self.durable
        if durable is not None:
            this, saved = self._attempt(run, incarnation), self._attempt(durable.run, durable.incarnation)
            if this != saved:
                return this < saved
        return sequence <= self.durable_sequence

    def is_behind(self, state: SavableState) -> bool:
        """Whether the newest checkpoint is of a later state.  Of ours the sequence tells: a program may let its steps begin anew."""
        if not self.checkpoint_sequence or state.step == self.newest_step:
            return state.step < self.newest_step
        durable = self.durable
        if durable is not None and durable.sequence == self.checkpoint_sequence:
            this, saved = self._attempt(state.run, state.incarnation), self._attempt(durable.run, durable.incarnation)
            if this != saved:
                return this < saved
        return state.sequence < self.checkpoint_sequence

    def _attempt(self, run: str, incarnation: int) -> int:
        """The attempt of this run; 0 for all of the runs before it, which count their snapshots on from one another."""
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
    def find_lost(self) -> SavableState | None:
        """The newest state of all, if it is nowhere: its memory was removed, or damaged, before it was on disk."""
        told = self.told
        if told is None or self.is_saved(told.run, told.incarnation, told.sequence):
            return None
        return told if told.sequence > self.newest_sequence else None

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
        """Staged states that nobody needs any more; they are forgotten.  `busy` is being saved."""
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
