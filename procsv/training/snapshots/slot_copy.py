"""Copy into the slot, while the training thread waits, what cannot be held as a view.

Used by sources of state, within `capture`.  Each piece is copied without giving the interpreter away: to get it back from
a busy Python thread takes up to 5 ms, which training would wait for.  Between pieces others get it.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np

from procsv.training.snapshots.slot_layout import Layout

PIECE_BYTES = 2 << 20  # some 0.1 ms


class SlotCopy:
    """The copying of those arrays of a layout that are not `held` (by number)."""

    def __init__(self, layout: Layout, sizes: list[int | None], held: Sequence[bool]) -> None:
        """The packs of `layout` hold members of one kind only."""
        self._offsets, self._sizes = layout.offsets, sizes
        self._single = [number for number in layout.single if not held[number]]
        self._packs = [pack for pack in layout.packs if not held[pack.members[0]]]

    def copy(self, arrays: list[Any], into: mmap.mmap) -> list[bool]:
        """Which of `arrays` are in the slot then: of those only the shape is left.  Of another size: copied elsewhere."""
        copied = [False] * len(arrays)
        for number in self._single:
            array, size = arrays[number], self._sizes[number]
            if array.nbytes == size:
                _copy(into, self._offsets[number], array)
                arrays[number], copied[number] = array.shape, True
            elif array.dtype != object:  # strings reach Python as copies
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
    """The bytes of `array` in C order, as a flat uint8 array; a view where the memory allows."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
