"""Layout of a slot: the place of each tensor.  Pure: sizes in, places out.

A state source makes one layout for its tensors, and slot_fill.py writes them by it.  Large tensors
come first.  Small ones follow in packs, so that a few calls write thousands of them: for a small
tensor the call costs more than the bytes.  Every tensor starts at a multiple of 64 bytes, also
within a pack.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from procsv.ipc.shm.slot_header import HEADER_BYTES
from procsv.ipc.shm.slot_index import align

SMALL_BYTES_MAX = 16 << 10  # up to this size a tensor goes into a pack
PACK_BYTES_MAX = 1 << 20  # one call may block other Python threads for this long (about 0.1 ms)
UNKNOWN = -1  # the offset of a tensor of unknown size: each snapshot places it after all others


class Pack(msgspec.Struct, frozen=True):
    """Small tensors that are adjacent in the slot."""

    members: list[int]  # their numbers
    sizes: list[int]  # in bytes
    offset: int
    end: int
    _template: list[Any]  # alternately a placeholder for a member and the zeros up to the next member

    @staticmethod
    def of(members: list[int], sizes: list[int], offset: int) -> Pack:
        template: list[Any] = []
        for size in sizes:
            template += [b"", bytes(align(size) - size)]
        return Pack(
            members=members, sizes=sizes, offset=offset, end=offset + sum(map(align, sizes)), _template=template
        )

    def fits(self, arrays: list[Any]) -> bool:
        """Whether the members (numpy arrays) have the expected sizes."""
        return [array.nbytes for array in arrays] == self.sizes

    def join(self, arrays: list[Any]) -> bytes:
        """The bytes from `offset` to `end`; members are in C order, of any dtype but object."""
        items = self._template.copy()
        items[::2] = arrays
        return b"".join(items)


class SlotLayout(msgspec.Struct, frozen=True):
    """`offsets` by number; `end` is the first byte after all tensors with a known place."""

    offsets: list[int]
    packs: list[Pack]
    single: list[int]  # numbers of the tensors in no pack
    end: int


def lay_out(sizes: list[int | None], groups: Iterable[list[int]]) -> SlotLayout:
    """Places tensors of these sizes (None: unknown).

    Each of `groups` lists numbers of tensors that may share a pack.  A pack has members of one
    group only.
    """
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
    """Splits `sizes` into parts that fit into one pack each."""
    bunch, room = dict[int, int](), PACK_BYTES_MAX
    for number, size in sizes.items():
        if bunch and align(size) > room:
            yield bunch
            bunch, room = {}, PACK_BYTES_MAX
        bunch[number] = size
        room -= align(size)
    if bunch:
        yield bunch
