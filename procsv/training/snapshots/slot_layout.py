"""Layout of a slot: the place of each tensor.  Pure: sizes in, places out.

Made once by a Capture; followed by it and by slot_fill.py.  Large tensors lie one after the other.  Small ones lie
behind them in packs, so that thousands of them are written by a few calls: what a small tensor costs is the call, not
its bytes.  Every tensor begins at a multiple of 64 bytes, in a pack, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from procsv.ipc.shm.slot_header import HEADER_BYTES
from procsv.ipc.shm.slot_index import align

SMALL_BYTES_MAX = 16 << 10  # up to this size a tensor goes into a pack
PACK_BYTES_MAX = 1 << 20  # so long one call may keep other Python threads waiting (some 0.1 ms)
UNKNOWN = -1  # the place of a tensor whose size is not known beforehand: behind all others, anew for each snapshot


class Pack(msgspec.Struct, frozen=True):
    """Small tensors that are neighbours in the slot."""

    members: list[int]  # their numbers
    sizes: list[int]  # in bytes
    offset: int
    end: int
    _template: list[Any]  # a place for each member, each followed by the zeros up to the next

    @staticmethod
    def of(members: list[int], sizes: list[int], offset: int) -> Pack:
        template: list[Any] = []
        for size in sizes:
            template += [b"", bytes(align(size) - size)]
        return Pack(
            members=members, sizes=sizes, offset=offset, end=offset + sum(map(align, sizes)), _template=template
        )

    def fits(self, arrays: list[Any]) -> bool:
        """Whether the members (numpy arrays) are as large as was expected."""
        return [array.nbytes for array in arrays] == self.sizes

    def join(self, arrays: list[Any]) -> bytes:
        """The bytes from `offset` to `end`; the members are in C order, of any dtype but objects."""
        items = self._template.copy()
        items[::2] = arrays
        return b"".join(items)


class SlotLayout(msgspec.Struct, frozen=True):
    """`offsets` by number; `end` is the first byte after all tensors whose place is known."""

    offsets: list[int]
    packs: list[Pack]
    single: list[int]  # the numbers of those in no pack
    end: int


def lay_out(sizes: list[int | None], groups: Iterable[list[int]]) -> SlotLayout:
    """Places for tensors of these sizes (None: unknown).  A pack holds members of one of the `groups` of numbers only."""
    offsets, packs, at = [UNKNOWN] * len(sizes), list[Pack](), HEADER_BYTES
    small = {number: size for number, size in enumerate(sizes) if size is not None and size <= SMALL_BYTES_MAX}
    single = [number for number in range(len(sizes)) if number not in small]
    for number in single:
        size = sizes[number]
        if size is not None:
            offsets[number], at = at, align(at + size)
    for group in groups:
        for members in _bunches({number: small[number] for number in group if number in small}):
            packs.append(Pack.of(list(members), list(members.values()), at))
            for number, size in members.items():
                offsets[number], at = at, align(at + size)
    return SlotLayout(offsets, packs, single, at)


def _bunches(sizes: dict[int, int]) -> Iterable[dict[int, int]]:
    """Parts whose members fit into one pack."""
    bunch, room = dict[int, int](), PACK_BYTES_MAX
    for number, size in sizes.items():
        if bunch and align(size) > room:
            yield bunch
            bunch, room = {}, PACK_BYTES_MAX
        bunch[number] = size
        room -= align(size)
    if bunch:
        yield bunch
