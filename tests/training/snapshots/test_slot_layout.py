"""Tensors are laid out in a slot without overlap and aligned."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from procsv.ipc.shm.slot_header import HEADER_BYTES
from procsv.ipc.shm.slot_index import TENSOR_ALIGNMENT_BYTES
from procsv.training.snapshots.slot_layout import PACK_BYTES_MAX, SMALL_BYTES_MAX, UNKNOWN, SlotLayout, lay_out

sizes_of = st.lists(
    st.none() | st.integers(0, 200) | st.integers(SMALL_BYTES_MAX - 2, SMALL_BYTES_MAX + 2) | st.just(5 << 20),
    max_size=300,
)


def _lay_out(sizes: list[int | None]) -> SlotLayout:
    numbers = range(len(sizes))
    return lay_out(sizes, ([n for n in numbers if n % 3], [n for n in numbers if not n % 3]))


@given(sizes_of)
def test_every_tensor_of_known_size_has_its_own_aligned_place(sizes: list[int | None]) -> None:
    layout = _lay_out(sizes)

    at = HEADER_BYTES
    for offset, size in sorted((o, s) for o, s in zip(layout.offsets, sizes, strict=True) if s is not None):
        assert offset % TENSOR_ALIGNMENT_BYTES == 0
        assert offset >= at
        at = offset + size
    assert layout.end >= at
    assert [o == UNKNOWN for o in layout.offsets] == [s is None for s in sizes]


@given(sizes_of)
def test_every_tensor_is_copied_once_alone_or_in_a_pack_of_its_own_group(sizes: list[int | None]) -> None:
    layout = _lay_out(sizes)

    assert sorted(layout.single + [n for pack in layout.packs for n in pack.members]) == list(range(len(sizes)))
    for pack in layout.packs:
        assert len({n % 3 == 0 for n in pack.members}) == 1
        assert pack.end - pack.offset <= max(PACK_BYTES_MAX, SMALL_BYTES_MAX + TENSOR_ALIGNMENT_BYTES)


def test_a_pack_writes_what_its_members_would_write_singly() -> None:
    arrays = [np.arange(n, dtype=np.float32) for n in (3, 0, 16, 17)] + [np.array(7, np.int64), np.ones((2, 3), bool)]
    (pack,) = lay_out([a.nbytes for a in arrays], [list(range(len(arrays)))]).packs

    assert pack.fits(arrays)
    assert not pack.fits([np.arange(4, dtype=np.float32), *arrays[1:]])
    wanted, at = bytearray(pack.end - pack.offset), 0
    for array in arrays:
        wanted[at : at + array.nbytes] = array.tobytes()
        at += -(-array.nbytes // TENSOR_ALIGNMENT_BYTES) * TENSOR_ALIGNMENT_BYTES
    assert pack.join(arrays) == bytes(wanted)
