"""The slot state table allows the life of a slot and keeps its invariants on every path."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from procsv.base.errors import ProcsvBug
from procsv.ipc.shm.slot_state import TRANSITIONS, SlotEvent, SlotState, next_state

S, E = SlotState, SlotEvent
BEGINS, PUBLISHES, ABANDONS = E.TRAINER_BEGINS, E.TRAINER_PUBLISHES, E.TRAINER_ABANDONS
OPENS, ADOPTS, REMOVES = E.READER_OPENS, E.NEXT_TRAINER_ADOPTS, E.SERVICE_REMOVES


def after(*events: SlotEvent) -> SlotState:
    """Return the state of a fresh slot after these events."""
    state = S.FREE
    for event in events:
        state = next_state(state, event)
    return state


@pytest.mark.parametrize(
    ("events", "state"),
    [
        ((BEGINS, PUBLISHES), S.READY),  # a snapshot
        ((BEGINS, PUBLISHES, OPENS, OPENS), S.READY),  # saved and restored from
        ((BEGINS, PUBLISHES, BEGINS, PUBLISHES), S.READY),  # the next snapshot in the same slot
        ((BEGINS, ABANDONS, BEGINS, PUBLISHES), S.READY),  # one failed before it
        ((BEGINS, ADOPTS), S.FREE),  # torn: the trainer died
        ((BEGINS, PUBLISHES, ADOPTS, BEGINS, PUBLISHES), S.READY),  # adopted once its state was on disk
        ((BEGINS, PUBLISHES, OPENS, REMOVES), S.REMOVED),  # a trainer had restored from it
    ],
)
def test_a_slot_goes_through_the_states_that_trainers_and_services_need(
    events: tuple[SlotEvent, ...], state: SlotState
) -> None:
    assert after(*events) is state


@pytest.mark.parametrize(
    ("events", "wrong"),
    [
        ((), PUBLISHES),
        ((), OPENS),
        ((BEGINS,), BEGINS),
        ((BEGINS,), OPENS),
        ((BEGINS, PUBLISHES), PUBLISHES),
        ((BEGINS, PUBLISHES), ABANDONS),
        ((BEGINS, ABANDONS), PUBLISHES),
        ((BEGINS, ADOPTS), OPENS),
    ],
)
def test_an_impossible_transition_is_a_bug_that_names_it(events: tuple[SlotEvent, ...], wrong: SlotEvent) -> None:
    state = after(*events)
    with pytest.raises(ProcsvBug, match=f"{wrong.name} in {state.name}"):
        next_state(state, wrong)


def ways(state: SlotState, length: int) -> Iterator[tuple[SlotEvent, ...]]:
    """Yield all paths of up to `length` events through the table."""
    yield ()
    if length:
        for (before, event), to in TRANSITIONS.items():
            if before is state:
                yield from ((event, *rest) for rest in ways(to, length - 1))


def test_on_every_path_only_the_last_published_contents_can_be_read() -> None:
    for way in ways(S.FREE, 7):
        for position, event in enumerate(way):
            if event is OPENS:
                assert next(e for e in reversed(way[:position]) if e is not OPENS) is PUBLISHES, way


def test_on_every_path_only_a_begun_slot_is_published() -> None:
    for way in ways(S.FREE, 7):
        assert all(way[at - 1] is BEGINS for at, event in enumerate(way) if event is PUBLISHES), way


def test_no_transition_leaves_a_removed_slot() -> None:
    assert not [event for state, event in TRANSITIONS if state is S.REMOVED]


@pytest.mark.parametrize("state", [S.FREE, S.WRITING, S.READY])
def test_whatever_a_dead_trainer_leaves_can_be_adopted_and_removed(state: SlotState) -> None:
    assert next_state(state, ADOPTS) is S.FREE
    assert next_state(state, REMOVES) is S.REMOVED
