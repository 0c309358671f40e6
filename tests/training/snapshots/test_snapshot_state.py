"""A snapshot's state table: each pair of state and event has one result, and any other pair is a bug."""

import itertools

import pytest

from procsv.base.errors import ProcsvBug
from procsv.training.snapshots.snapshot_state import SnapshotEvent, SnapshotState, next_state

# A dot means that it cannot happen.
EXPECTED = """
            CAPTURE    COPY     OUTGROW    LOSE       PUBLISH    SAVE     FAIL
REQUESTED   CAPTURED   .        .          .          .          .        FAILED
CAPTURED    .          COPIED   REQUESTED  REQUESTED  .          .        FAILED
COPIED      .          .        .          .          PUBLISHED  .        FAILED
PUBLISHED   .          .        .          REQUESTED  .          DURABLE  FAILED
DURABLE     .          .        .          .          .          .        .
FAILED      .          .        .          REQUESTED  .          DURABLE  FAILED
"""


def _expected() -> dict[tuple[SnapshotState, SnapshotEvent], SnapshotState]:
    head, *rows = (line.split() for line in EXPECTED.strip().splitlines())
    return {
        (SnapshotState[row[0]], SnapshotEvent[event]): SnapshotState[after]
        for row in rows
        for event, after in zip(head, row[1:], strict=True)
        if after != "."
    }


@pytest.mark.parametrize(("state", "event"), list(itertools.product(SnapshotState, SnapshotEvent)))
def test_a_pair_leads_where_the_table_says_or_is_a_bug_that_names_it(
    state: SnapshotState, event: SnapshotEvent
) -> None:
    after = _expected().get((state, event))
    if after is not None:
        assert next_state(state, event) is after
    else:
        with pytest.raises(ProcsvBug, match=f"{event.name} in {state.name}"):
            next_state(state, event)
