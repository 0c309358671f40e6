"""Shared memory: slots that outlive the trainer that fills them, with the real state table
(ipc/shm/slot_state.py).

It models ipc/shm/slot_file.py by operation: headers, locks and contents. A header has the real
fields, so that the checkpoint service compares the same things.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from procsv.base.identity import TaskId, attempt_name
from procsv.ipc.messaging.checkpoint_messages import CheckpointPlan
from procsv.ipc.messaging.endpoint import Address
from procsv.ipc.shm.slot_state import SlotEvent, SlotInfo, SlotState, next_state


class SlotIsGone(Exception):
    """The slot no longer holds that snapshot."""


@dataclass(slots=True, eq=False)
class Slot:
    """One file."""

    info: SlotInfo
    value: int = 0  # the model's variables
    plan: CheckpointPlan | None = None
    is_good: bool = True
    writer: int = 0  # pid that holds the exclusive lock
    readers: list[int] = field(default_factory=list)  # pids that hold the shared one

    @property
    def is_locked(self) -> bool:
        return bool(self.writer or self.readers)

    def move(self, event: SlotEvent) -> None:
        self.info = msgspec.structs.replace(self.info, state=next_state(self.info.state, event))


class SimMemory:
    """The run's directory on the shared-memory filesystem."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.slots: dict[Path, Slot] = {}
        self.staged: dict[str, tuple[int, int, int]] = {}  # prefix -> sequence, step, value
        self.drafts: set[Path] = set()  # incomplete copies from another machine

    def infos(self) -> list[SlotInfo]:
        """Do slot_header.scan_slots(any_state=True): newest sequence first."""
        return sorted((slot.info for slot in self.slots.values()), key=lambda info: -info.sequence)

    def newest_ready(self, task: TaskId) -> Slot | None:
        ready = [slot for slot in self.slots.values() if slot.info.state is SlotState.READY and slot.info.task == task]
        return max(ready, key=lambda slot: slot.info.sequence, default=None)

    def newest_step(self, task: TaskId) -> int:
        newest = self.newest_ready(task)
        return newest.info.step if newest is not None else -1

    def read(self, info: SlotInfo) -> Slot:
        """Return the slot as SlotReader opens it. Raises SlotIsGone if it is not what `info` says."""
        slot = self.slots.get(info.path)
        if slot is None:
            raise SlotIsGone(f"slot {info.path.name} is gone")
        if slot.writer:
            raise SlotIsGone(f"slot {info.path.name} is being written again")
        if slot.info != msgspec.structs.replace(info, state=SlotState.READY):
            raise SlotIsGone(f"slot {info.path.name} no longer holds snapshot {info.sequence}")
        return slot

    def remove(self, expected: SlotInfo) -> bool:
        """Do slot_reader.remove_slot."""
        slot = self.slots.get(expected.path)
        if slot is not None and not slot.is_locked and slot.info == expected:
            slot.move(SlotEvent.SERVICE_REMOVES)
            del self.slots[expected.path]
            return True
        return slot is None

    def release(self, pid: int) -> None:
        """Release a dead process's locks, as the kernel does."""
        for slot in self.slots.values():
            if slot.writer == pid:
                slot.writer = 0  # torn: nobody reads what is WRITING
            if pid in slot.readers:
                slot.readers.remove(pid)

    def clear(self) -> None:
        self.slots.clear()
        self.staged.clear()
        self.drafts.clear()
        self.plan = None


class SimArena:
    """The slots of one attempt of a task: procsv.ipc.shm.slot_file.SlotPool."""

    def __init__(self, memory: SimMemory, me: Address, pid: int, plan: CheckpointPlan) -> None:
        self._memory, self._me, self._pid, self._plan = memory, me, pid, plan
        self._own: list[Slot] = []

    def reserve(self, count: int, never: Path | None) -> None:
        self._own = list(filter(self._is_there, self._own))
        newest = self._memory.newest_ready(self._me.task)
        for path in sorted(self._memory.slots):
            slot = self._memory.slots[path]
            is_own = slot.info.task == self._me.task
            if (
                is_own
                and len(self._own) < count
                and path != never
                and slot not in self._own
                and slot is not newest
                and not slot.is_locked
            ):
                self._take(slot)
        number = 0
        while len(self._own) < count:
            path = self._memory.directory / f"slot.{attempt_name(self._me.task, self._me.incarnation)}.{number}"
            number += 1
            if path not in self._memory.slots:
                slot = Slot(self._marked(path, SlotState.FREE))
                self._memory.slots[path] = slot
                self._take(slot)

    def _take(self, slot: Slot) -> None:
        slot.move(SlotEvent.NEXT_TRAINER_ADOPTS)
        self._mark(slot)
        self._own.append(slot)

    def _mark(self, slot: Slot) -> None:
        slot.info = self._marked(slot.info.path, slot.info.state)

    def _marked(self, path: Path, state: SlotState) -> SlotInfo:
        return SlotInfo(path, state, self._me.task, self._me.incarnation, 0, -1, self._me.run, 0, 0, 0)

    def has_lost(self) -> bool:
        """Return whether slots of ours were removed; `reserve` makes others."""
        return not all(map(self._is_there, self._own))

    def _is_there(self, slot: Slot) -> bool:
        return self._memory.slots.get(slot.info.path) is slot

    def begin_snapshot(self) -> Slot | None:
        """Return a slot to fill, or None if the service reads all but the newest READY one."""
        newest = max((slot.info.sequence for slot in self._own), default=0)
        for slot in sorted(self._own, key=lambda slot: slot.info.sequence):
            if slot.is_locked or (slot.info.sequence and slot.info.sequence >= newest):
                continue
            slot.move(SlotEvent.TRAINER_BEGINS)
            self._mark(slot)
            slot.writer = self._pid
            return slot
        return None

    def publish(self, slot: Slot, sequence: int, step: int, value: int) -> SlotInfo:
        slot.value, slot.plan, slot.is_good = value, self._plan, True
        slot.info = msgspec.structs.replace(slot.info, sequence=sequence, step=step, toc_hash=value)
        slot.move(SlotEvent.TRAINER_PUBLISHES)
        slot.writer = 0
        return slot.info

    def abandon(self, slot: Slot) -> None:
        slot.move(SlotEvent.TRAINER_ABANDONS)
        self._mark(slot)
        slot.writer = 0
