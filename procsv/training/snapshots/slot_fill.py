"""From a capture to a READY slot: copy, hash and drop each view, then publish the slot.

Arrays that cannot be held as views are copied earlier, within `capture`, by `SlotCopy`.  The
snapshotter's thread does the rest while training runs.  numpy and xxhash process large arrays
without the GIL; small tensors are copied pack by pack.  A kill anywhere here leaves a slot in
WRITING: torn, and never read.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import xxhash

from procsv.base.system.failpoints import declare, failpoint
from procsv.ipc.shm.slot_file import SlotWriter
from procsv.ipc.shm.slot_header import HEADER_BYTES
from procsv.ipc.shm.slot_index import Contents, TensorEntry, align, pack_strings
from procsv.ipc.shm.slot_state import SlotInfo
from procsv.training.snapshots.slot_layout import UNKNOWN, Pack, SlotLayout
from procsv.training.snapshots.source import Captured, CheckpointEntry, StateSpec

CHUNK_BYTES = 1 << 20  # copy and hash in turns, so that the hash reads from the cache

declare("trainer.copy")
PIECE_BYTES = 2 << 20  # `SlotCopy` copies this much at once, in about 0.1 ms, with the GIL held


class SlotCopy:
    """Copies arrays into the slot while the training thread waits, within a source's `capture`.

    `held` says for each number whether the capture holds that array as a view.  The other arrays
    are copied.  While this class copies a piece, it keeps the GIL, because the training thread
    would wait up to 5 ms to get it back from a busy Python thread.  Between two pieces other
    threads may take the GIL.
    """

    def __init__(self, layout: SlotLayout, sizes: list[int | None], held: Sequence[bool]) -> None:
        """The members of each pack in `layout` are either all held or all copied."""
        self._offsets, self._sizes = layout.offsets, sizes
        self._single = [number for number in layout.single if not held[number]]
        self._packs = [pack for pack in layout.packs if not held[pack.members[0]]]

    def copy(self, arrays: list[Any], into: mmap.mmap) -> list[bool]:
        """Copies arrays into the slot, and returns for each of `arrays` whether the slot has it.

        It replaces each array that is in the slot by its shape.  An array of unexpected size is
        replaced by a copy outside the slot.
        """
        copied = [False] * len(arrays)
        for number in self._single:
            array, size = arrays[number], self._sizes[number]
            if array.nbytes == size:
                _copy(into, self._offsets[number], array)
                arrays[number], copied[number] = array.shape, True
            elif array.dtype != object:  # string arrays are already copies
                arrays[number] = np.array(array, copy=True)
        for pack in self._packs:
            members = [arrays[number] for number in pack.members]
            is_as_expected = pack.fits(members)
            if is_as_expected:
                into[pack.offset : pack.end] = pack.join(members)
            for number, array in zip(pack.members, members, strict=True):
                arrays[number] = array.shape if is_as_expected else np.array(array, copy=True)
                copied[number] = is_as_expected
        return copied


def _copy(into: mmap.mmap, offset: int, array: Any) -> None:
    size = array.nbytes
    if size <= PIECE_BYTES:
        into[offset : offset + size] = array
        return
    data = flat_bytes(array)
    for start in range(0, size, PIECE_BYTES):
        end = min(start + PIECE_BYTES, size)
        into[offset + start : offset + end] = data[start:end]


def flat_bytes(array: Any) -> Any:
    """The bytes of `array` in C order, as a flat uint8 array; a view if possible."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def fill_and_publish(writer: SlotWriter, spec: StateSpec, captured: Captured, sequence: int, target: str) -> SlotInfo:
    """Fills `writer`'s slot with `captured` and makes it READY; NoRoom if it cannot grow."""
    failpoint("trainer.copy")
    if captured.view is not None:
        captured.arrays, captured.view = captured.view(captured.arrays), None
    spec = captured.spec or spec  # making the views may have found more to save
    filling = _Filling(spec, captured)
    writer.make_room(filling.end - HEADER_BYTES)
    filling.fill(writer.memory)
    contents = filling.contents(spec, captured.step, target)
    return writer.publish_slot(sequence, captured.step, contents, filling.end)


class _Filling:
    """One snapshot on its way into a slot.  Its lists have one item for each tensor, by number."""

    def __init__(self, spec: StateSpec, captured: Captured) -> None:
        self._captured, self._layout = captured, spec.layout
        self.offsets, self.sizes = spec.layout.offsets.copy(), [size or 0 for size in spec.sizes]
        pairs = zip(captured.arrays, captured.copied, strict=True)
        self.shapes = [array if copied else array.shape for array, copied in pairs]
        self.hashes = [0] * len(self.offsets)
        self._elsewhere = frozenset[int]() if captured.elsewhere is None else captured.elsewhere.numbers
        self._late = self._place_the_late()

    def _place_the_late(self) -> dict[int, Any]:
        """Places the tensors that have no place in the layout, and returns their bytes.

        These are strings, and tensors of unexpected size.
        """
        late, self.end = dict[int, Any](), self._layout.end
        for number, array in enumerate(self._captured.arrays):
            if self._captured.copied[number]:
                continue
            if self.offsets[number] == UNKNOWN or array.nbytes != self.sizes[number]:
                data = late[number] = _bytes_of(array)
                self.offsets[number], self.sizes[number] = self.end, data.nbytes
                self.end = align(self.end + data.nbytes)
        return late

    def fill(self, memory: mmap.mmap) -> None:
        place = np.frombuffer(memory, np.uint8)
        for number in self._layout.single:
            if number not in self._elsewhere:
                self._fill_one(number, place)
        for pack in self._layout.packs:
            if pack.members[0] in self._elsewhere:  # all members are
                continue
            if self._captured.copied[pack.members[0]]:  # all members are
                self._hash(pack, memory)
            elif self._late.keys().isdisjoint(pack.members):
                memory[pack.offset : pack.end] = pack.join([self._captured.arrays[number] for number in pack.members])
                for number in pack.members:
                    self._captured.arrays[number] = None
                self._hash(pack, memory)
            else:
                for number in pack.members:
                    self._fill_one(number, place)
        if self._captured.elsewhere is not None:
            for number, digest in self._captured.elsewhere.copy().items():
                self.hashes[number] = digest

    def _fill_one(self, number: int, memory: Any) -> None:
        """Copies one tensor and drops its view, so the variable's next update need not copy it."""
        place = memory[self.offsets[number] : self.offsets[number] + self.sizes[number]]
        if self._captured.copied[number]:
            self.hashes[number] = xxhash.xxh3_64_intdigest(place)
            return
        data = self._late.pop(number, None)
        if data is None:
            data = flat_bytes(self._captured.arrays[number])
        self._captured.arrays[number] = None
        self.hashes[number] = _copy_and_hash(place, data)

    def _hash(self, pack: Pack, memory: mmap.mmap) -> None:
        digest = xxhash.xxh3_64_intdigest
        with memoryview(memory) as view:
            for number, size in zip(pack.members, pack.sizes, strict=True):
                offset = self.offsets[number]
                self.hashes[number] = digest(view[offset : offset + size])

    def contents(self, spec: StateSpec, step: int, target: str) -> Contents:
        def entry_of(item: CheckpointEntry) -> TensorEntry:
            n = item.number
            return TensorEntry(
                key=item.key,
                slice=item.slice,
                dtype=item.dtype,
                shape=self.shapes[n],
                offset=self.offsets[n],
                size=self.sizes[n],
                hash=self.hashes[n],
            )

        shards = tuple(tuple(map(entry_of, shard)) for shard in spec.shards)
        number = self._captured.number
        if number is None:
            number = step if spec.has_step else -1
        plan = msgspec.structs.replace(spec.plan, is_mixed=False) if self._captured.is_exact else spec.plan
        return Contents(
            plan=plan,
            sharded=spec.sharded,
            shards=shards,
            named_step=number,
            target=target,
            logged=self._captured.logged,
            logged_s=self._captured.logged_s,
        )


def _bytes_of(array: Any) -> Any:
    if array.dtype == object:
        return np.frombuffer(pack_strings([bytes(x) for x in array.reshape(-1).tolist()]), np.uint8)
    return flat_bytes(array)


def _copy_and_hash(target: Any, data: Any) -> int:
    hasher = xxhash.xxh3_64()
    for start in range(0, data.nbytes, CHUNK_BYTES):
        piece = target[start : start + CHUNK_BYTES]
        np.copyto(piece, data[start : start + CHUNK_BYTES])
        hasher.update(piece)
    return hasher.intdigest()
