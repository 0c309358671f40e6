"""A snapshot's index tells where its checkpoint goes and where its tensors are."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from procsv.ipc.shm.slot_index import TENSOR_ALIGNMENT_BYTES, align, checkpoint_prefix, pack_strings, unpack_strings
from tests.ipc.shm.snapshots import PLAN


@pytest.mark.parametrize(
    ("pads", "step", "prefix"),
    [
        (False, -1, "/l/model.ckpt"),
        (False, 0, "/l/model.ckpt-0"),
        (False, 12, "/l/model.ckpt-12"),
        (True, -1, "/l/model.ckpt"),
        (True, 12, "/l/model.ckpt-00000012"),
    ],
)
def test_a_checkpoint_is_named_after_its_step_if_it_has_one(pads: bool, step: int, prefix: str) -> None:
    assert checkpoint_prefix(msgspec.structs.replace(PLAN, pad_step_number=pads), step) == prefix


@given(st.integers(0, 2**40))
def test_a_tensor_starts_at_the_next_aligned_offset(offset: int) -> None:
    place = align(offset)
    assert place % TENSOR_ALIGNMENT_BYTES == 0
    assert offset <= place < offset + TENSOR_ALIGNMENT_BYTES


@given(st.lists(st.binary()))
def test_strings_are_read_back_unchanged(values: list[bytes]) -> None:
    assert unpack_strings(pack_strings(values)) == values
