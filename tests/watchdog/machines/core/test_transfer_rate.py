"""The frequency and speed of copies follow from the snapshots, the network and a bound on the cost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procsv.watchdog.machines.core.memory_copy import (
    AGAIN_S_MAX,
    AVERAGE_BYTES_PER_S,
    BYTES_PER_S_MAX,
    BYTES_PER_S_MIN,
    SPACING_S_MIN,
    START_BYTES_PER_S,
    TRAVEL_SHARE,
    WAY_SHARE,
    TransferRate,
    affordable,
)

MIB = 2**20


def travel(
    size: int, interval_s: float, carries: float, copies: int, average: float = AVERAGE_BYTES_PER_S
) -> tuple[list[float], list[float], TransferRate]:
    """Return how long each copy travels, and how late after its publication each copied snapshot
    arrives.

    A snapshot is published every `interval_s`; the network carries that many bytes a second.
    """
    pace, now_s, travels, late = TransferRate(), 0.0, list[float](), list[float]()
    pace.begin_transfers(0.0, average)
    newest = 0
    for _ in range(copies):
        assert pace.due_s is not None
        now_s = max(now_s, pace.due_s)
        pace.asked()
        newest = max(newest + 1, int(now_s / interval_s))
        now_s = max(now_s, newest * interval_s)  # the copy waits for the next one
        took_s = size / min(carries, pace.offered(newest, size, now_s))
        now_s += took_s
        travels.append(took_s)
        late.append(now_s - newest * interval_s)
        pace.fetched(size, took_s, now_s)
    return travels, late, pace


def test_a_copy_is_requested_once_and_again_only_when_that_has_ended() -> None:
    pace = TransferRate()
    assert not pace.is_due(1e9), "nobody has ordered it"
    pace.begin_transfers(5.0)
    assert pace.is_due(5.0)
    pace.asked()
    assert not pace.is_due(1e9)
    pace.fetched(1, 0.01, 6.0)
    assert (pace.is_due(6.0), pace.is_due(5.99 + SPACING_S_MIN)) == (False, True)
    pace.stop()
    assert not pace.is_due(1e9)


@pytest.mark.parametrize("size", [1000, 100 * MIB, 1000 * MIB])
def test_if_the_network_allows_it_a_copy_takes_a_small_part_of_the_time_between_two_snapshots(size: int) -> None:
    interval_s = max(1.0, size / (20 * MIB))
    travels, late, _ = travel(size, interval_s, 1e10, 20)
    assert travels[-1] <= TRAVEL_SHARE * interval_s + 1e-9
    assert late[-1] == pytest.approx(travels[-1]), "it is not waited for"


def test_snapshots_that_come_faster_than_they_may_be_copied_are_skipped_and_none_waits_for_long() -> None:
    size, interval_s = 320 * MIB, 0.5
    _, late, _ = travel(size, interval_s, 1e10, 50)
    period_s = size / AVERAGE_BYTES_PER_S
    assert max(late[10:]) <= interval_s + size / BYTES_PER_S_MAX + 1e-9, "what is fetched is the newest there is"
    assert period_s == 5.0


@pytest.mark.parametrize("carries", [4 * MIB, 40 * MIB, 110 * MIB])
def test_a_slower_network_keeps_a_share_for_the_training(carries: int) -> None:
    travels, _, _ = travel(512 * MIB, 5.0, carries, 200)
    full_s = 512 * MIB / carries
    crowded = [took_s for took_s in travels if took_s <= full_s + 1e-6]
    assert len(crowded) <= 0.35 * len(travels), "now and then it is tried whether there is more by now"
    assert max(travels[1:]) <= full_s / WAY_SHARE + 1e-6


def test_one_briefly_delayed_copy_does_not_slow_down_the_next_ones() -> None:
    pace, now_s, size = TransferRate(), 0.0, 24 * MIB
    pace.begin_transfers(now_s)
    rates = []
    for sequence, held_up_s in enumerate([0.0, 0.0, 1.5, 0.0, 0.0, 1.5, 1.5, 0.0], start=1):
        rates.append(pace.offered(sequence, size, now_s))
        took_s = size / rates[-1] + held_up_s
        pace.fetched(size, took_s, now_s + took_s)
        now_s += 5.0
    assert rates[:7] == [rates[0]] * 7
    assert rates[7] < rates[0] / 2, "two in a row: that is the way"


def test_a_machine_with_more_processors_can_afford_more() -> None:
    assert [affordable(processors) / MIB for processors in (0.5, 1, 8, 12, 32, 64, 192)] == [
        64,
        64,
        64,
        96,
        256,
        512,
        512,
    ]


def test_if_both_machines_can_afford_it_no_snapshot_of_a_large_model_is_skipped() -> None:
    size, interval_s = 200 * MIB, 1.0
    travels, late, pace = travel(size, interval_s, 1e10, 50, affordable(32))
    assert max(late[20:]) == pytest.approx(size / BYTES_PER_S_MAX), "none is waited for"
    assert max(travels[20:]) == pytest.approx(size / BYTES_PER_S_MAX), "it may not travel faster"
    assert pace.due_s is not None
    assert pace.due_s < 55 * interval_s


def test_what_a_machine_can_afford_does_not_make_a_copy_faster_than_its_interval_needs() -> None:
    travels, _, _ = travel(640 * MIB, 600.0, 1e10, 5, affordable(64))
    assert travels == pytest.approx([10.0] * 5)


@given(
    st.lists(st.tuples(st.integers(1, 2**33), st.floats(1e5, 1e10), st.integers(1, 5)), min_size=1, max_size=30),
    st.floats(0.01, 100.0),
    st.sampled_from([1, 32, 192]),
)
def test_copies_never_cost_more_bytes_a_second_than_the_average(
    fetches: list[tuple[int, float, int]], wait_s: float, processors: int
) -> None:
    pace, now_s, sequence, total = TransferRate(), 0.0, 0, 0
    pace.begin_transfers(now_s, affordable(processors))
    for size, carries, more in fetches:
        assert pace.is_due(now_s)
        pace.asked()
        now_s, sequence = now_s + wait_s, sequence + more
        bytes_per_s = pace.offered(sequence, size, now_s)
        assert BYTES_PER_S_MIN <= bytes_per_s <= BYTES_PER_S_MAX
        took_s, total = size / min(carries, bytes_per_s), total + size
        now_s += took_s
        pace.fetched(size, took_s, now_s)
        assert pace.due_s is not None
        now_s = pace.due_s
    assert total <= affordable(processors) * now_s * (1 + 1e-9)


def test_another_machine_is_asked_as_if_there_had_been_none_before() -> None:
    _, _, pace = travel(512 * MIB, 5.0, 4 * MIB, 5)
    assert pace.bytes_per_s < START_BYTES_PER_S
    pace.begin_transfers(1000.0)
    assert pace.offered(1, 512 * MIB, 1000.0) == START_BYTES_PER_S


def test_retries_after_failures_become_rarer_and_one_success_is_enough() -> None:
    pace, waits = TransferRate(), []
    for _ in range(8):
        pace.failed(100.0)
        assert pace.due_s is not None
        waits.append(pace.due_s - 100.0)
    assert waits == sorted(waits)
    assert (waits[0], waits[1], waits[-1]) == (10.0, 20.0, AGAIN_S_MAX)
    pace.fetched(1, 0.0, 100.0)
    pace.failed(100.0)
    assert pace.due_s == 110.0
