"""The life of a slot: every listed pair goes where the table says, every other is a bug."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procsv.base.errors import ProcsvBug
from procsv.ipc.shm.slot_state import TRANSITIONS, SlotEvent, SlotState, next_state

PAIRS = list(itertools.product(SlotState, SlotEvent))
S, E = SlotState, SlotEvent


@pytest.mark.parametrize(("state", "event"), [pair for pair in PAIRS if pair in TRANSITIONS])
def test_every_listed_pair_goes_where_its_row_says(state: SlotState, event: SlotEvent) -> None:
    assert next_state(state, event) is TRANSITIONS[state, event]


@pytest.mark.parametrize(("state", "event"), [pair for pair in PAIRS if pair not in TRANSITIONS])
def test_every_unlisted_pair_is_a_bug_and_says_which(state: SlotState, event: SlotEvent) -> None:
    with pytest.raises(ProcsvBug, match=f"{event.name} in {state.name}"):
        next_state(state, event)


@pytest.mark.parametrize(
    ("state", "event", "after"),
    [
        (S.FREE, E.TRAINER_BEGINS, S.WRITING),
        (S.WRITING, E.TRAINER_PUBLISHES, S.READY),
        (S.WRITING, E.TRAINER_DIES, S.FREE),
        (S.READY, E.NEWER_IS_READY, S.FREE),
        (S.READY, E.SERVICE_TAKES, S.READING),
        (S.READY, E.TRAINER_DIES, S.READY),
        (S.READING, E.SAVED, S.FREE),
        (S.READING, E.SERVICE_DIES, S.READY),
        (S.READY, E.TRAINER_RESTORES, S.RETIRED),
        (S.READING, E.TRAINER_RESTORES, S.RETIRED),
    ],
)
def test_the_design_s_own_rows_hold(state: SlotState, event: SlotEvent, after: SlotState) -> None:
    assert next_state(state, event) is after


@given(st.data())
def test_on_every_way_a_slot_is_written_only_when_free_and_read_only_when_whole(data: st.DataObject) -> None:
    state, is_whole = SlotState.FREE, False
    for _ in range(30):
        event = data.draw(st.sampled_from(sorted((e for s, e in TRANSITIONS if s is state), key=lambda e: e.name)))
        if event is E.TRAINER_BEGINS:
            assert state is S.FREE
            is_whole = False
        if event is E.TRAINER_PUBLISHES:
            is_whole = True
        state = next_state(state, event)
        assert is_whole or state in (S.FREE, S.WRITING)


def test_a_retired_slot_is_never_written_again() -> None:
    assert {TRANSITIONS[pair] for pair in TRANSITIONS if pair[0] is S.RETIRED} == {S.RETIRED}
