"""The table of contents of a snapshot: where its checkpoint goes, and where its tensors lie."""

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
def test_a_checkpoint_is_named_by_its_step_if_there_is_one(pads: bool, step: int, prefix: str) -> None:
    assert checkpoint_prefix(msgspec.structs.replace(PLAN, pad_step_number=pads), step) == prefix


@given(st.integers(0, 2**40))
def test_a_tensor_begins_at_the_next_place_where_one_may(offset: int) -> None:
    place = align(offset)
    assert place % TENSOR_ALIGNMENT_BYTES == 0
    assert offset <= place < offset + TENSOR_ALIGNMENT_BYTES


@given(st.lists(st.binary()))
def test_strings_come_back_as_they_were(values: list[bytes]) -> None:
    assert unpack_strings(pack_strings(values)) == values
