"""Retention keeps the same checkpoints as tf.train.Saver, and more faithfully."""

from __future__ import annotations

import itertools
import random
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tensorflow as tf

from procsv.ipc.messaging.checkpoint_messages import KEEP_NEVER_HOURS
from procsv.services.checkpoint.core.retention import ListedCheckpoint, Rule, first_keep, repair, retain

if TYPE_CHECKING:
    from pathlib import Path

tf1 = tf.compat.v1


def keep(times: list[float], max_to_keep: int, every_n_hours: float = KEEP_NEVER_HOURS, since: float = 0.0) -> Any:
    """Save at each of `times`. Return what is listed and what is on disk at the end."""
    listed: list[ListedCheckpoint] = []
    disk: list[str] = []
    next_keep = first_keep(since, every_n_hours)
    for number, now in enumerate(times):
        outcome = retain(listed, ListedCheckpoint(str(number), now), Rule(max_to_keep, every_n_hours, next_keep))
        by_path = {k.path: k for k in [*listed, ListedCheckpoint(str(number), now)]}
        listed, next_keep = [by_path[p] for p in outcome.listed], outcome.next_keep
        disk = [p for p in [*disk, str(number)] if p not in outcome.delete]
    return [k.path for k in listed], disk


def test_only_the_newest_are_kept() -> None:
    assert keep([1.0, 2.0, 3.0, 4.0, 5.0], 2) == (["3", "4"], ["3", "4"])


def test_max_to_keep_0_keeps_all_and_lists_the_last() -> None:
    assert keep([1.0, 2.0, 3.0], 0) == (["2"], ["0", "1", "2"])


def test_a_lowered_limit_removes_the_whole_excess_at_once() -> None:
    listed = [ListedCheckpoint(str(n), float(n)) for n in range(6)]
    outcome = retain(listed, ListedCheckpoint("6", 6.0), Rule(2, KEEP_NEVER_HOURS))
    assert (outcome.listed, outcome.delete) == (("5", "6"), ("0", "1", "2", "3", "4"))


def test_a_reused_name_moves_to_the_end() -> None:
    outcome = retain([ListedCheckpoint("a", 1.0), ListedCheckpoint("b", 2.0)], ListedCheckpoint("a", 3.0), Rule(5, 1.0))
    assert (outcome.listed, outcome.delete) == (("b", "a"), ())


def test_the_default_of_every_n_hours_keeps_none_forever() -> None:
    assert first_keep(1e9, KEEP_NEVER_HOURS) == float("inf")


def test_one_an_hour_is_kept_forever_to_the_second() -> None:
    assert keep([3600.0, 3600.5, 7200.0, 7200.5, 9000.0], 1, every_n_hours=1.0) == (["4"], ["1", "3", "4"])


def kept(*names: str) -> list[ListedCheckpoint]:
    """Make a list. "other-…" is external, and each name's number is its age."""
    return [ListedCheckpoint(name, float(name.rpartition("-")[2]), name.startswith("other")) for name in names]


def test_after_a_pause_of_months_one_an_hour_is_kept_and_not_all() -> None:
    hour, months = 3600.0, 90 * 86400.0
    before = [hour / 6 * n for n in range(72)]
    after = [before[-1] + months + hour / 6 * n for n in range(1, 721)]
    _, kept = keep([*before, *after], 5, every_n_hours=1.0)
    assert 119 <= sum(int(path) >= len(before) for path in kept[:-5]) <= 121


def test_after_the_clock_was_set_back_one_is_kept_within_the_hour() -> None:
    hour, year = 3600.0, 365 * 86400.0
    next_keep = first_keep(2 * year, 1.0)
    listed, lasting = list[ListedCheckpoint](), 0
    for number in range(24):
        new = ListedCheckpoint(str(number), year + hour / 6 * number)
        outcome = retain(listed, new, Rule(1, 1.0, next_keep))
        lasting += len(listed) + 1 - len(outcome.listed) - len(outcome.delete)
        listed, next_keep = [new], outcome.next_keep
    assert lasting == 3


def test_with_a_period_of_0_every_dropped_checkpoint_is_kept_forever() -> None:
    assert keep([1.0, 2.0, 3.0], 1, every_n_hours=0.0) == (["2"], ["0", "1", "2"])


def test_an_earlier_state_is_dropped_before_later_ones_that_were_saved_first() -> None:
    later = {"7", "8"}
    outcome = retain(kept("3", "7", "8"), ListedCheckpoint("5", 9.0), Rule(3, KEEP_NEVER_HOURS), later)
    assert (outcome.listed, outcome.delete) == (("5", "7", "8"), ("3",))
    outcome = retain(kept("3", "7", "8", "9"), ListedCheckpoint("5", 9.0), Rule(5, KEEP_NEVER_HOURS), {*later, "9"})
    assert outcome.listed == ("3", "5", "7", "8", "9")
    outcome = retain(kept("7", "8"), ListedCheckpoint("5", 9.0), Rule(2, KEEP_NEVER_HOURS), later)
    assert (outcome.listed, outcome.delete) == (("7", "8"), ("5",)), "a later state was given up for an earlier one"


def test_external_checkpoints_are_listed_but_not_counted_and_never_deleted() -> None:
    outcome = retain(kept("1", "other-2", "3"), ListedCheckpoint("4", 4.0), Rule(1, KEEP_NEVER_HOURS))
    assert (outcome.listed, outcome.delete) == (("other-2", "4"), ("1", "3"))
    assert retain(kept("1", "other-2"), ListedCheckpoint("4", 4.0), Rule(0, KEEP_NEVER_HOURS)).listed == (
        "other-2",
        "4",
    )


def test_what_a_saver_with_its_own_list_has_dropped_comes_back_before_its_entries() -> None:
    outcome = repair(kept("1", "2", "3"), kept("other-4"), Rule(3, KEEP_NEVER_HOURS))
    assert (outcome.listed, outcome.delete) == (("1", "2", "3", "other-4"), ())
    again = repair(kept(*outcome.listed), kept("other-5"), Rule(3, KEEP_NEVER_HOURS))
    assert again.listed == ("1", "2", "3", "other-4", "other-5")


@pytest.mark.parametrize(("hours", "gone"), [(KEEP_NEVER_HOURS, ("1",)), (1.0, ())])
def test_what_a_saver_with_the_whole_list_has_dropped_stays_dropped_and_is_deleted_unless_kept_forever(
    hours: float, gone: tuple[str, ...]
) -> None:
    outcome = repair(kept("1", "2", "3"), kept("2", "3", "4"), Rule(3, hours))
    assert (outcome.listed, outcome.delete) == (("2", "3", "4"), gone)


@pytest.mark.parametrize(
    ("max_to_keep", "hours", "gone"),
    [(0, KEEP_NEVER_HOURS, ()), (1, KEEP_NEVER_HOURS, ("1", "2")), (1, 1.0, ())],
)
def test_nothing_that_a_saver_has_dropped_is_deleted_if_all_or_some_are_kept_forever(
    max_to_keep: int, hours: float, gone: tuple[str, ...]
) -> None:
    outcome = repair(kept("1", "2"), kept("3"), Rule(max_to_keep, hours))
    assert (outcome.listed, outcome.delete) == (("3",), gone)


def test_if_all_are_kept_our_newest_comes_back_before_what_another_saver_lists() -> None:
    outcome = repair(kept("1", "2"), kept("other-4"), Rule(0, KEEP_NEVER_HOURS))
    assert (outcome.listed, outcome.delete) == (("2", "other-4"), ())


def test_the_whole_excess_of_a_list_that_another_writer_made_is_deleted() -> None:
    outcome = repair(kept("1", "2", "3"), kept("1", "2", "3", "4"), Rule(2, KEEP_NEVER_HOURS))
    assert (outcome.listed, outcome.delete) == (("3", "4"), ("1", "2"))


def test_the_latest_is_what_the_file_says_and_a_lost_file_is_rewritten() -> None:
    rule = Rule(5, KEEP_NEVER_HOURS)
    assert repair(kept("1", "2", "3"), kept("3", "1"), rule).listed == ("2", "3", "1")
    assert repair(kept("1", "2"), [], rule).listed == ("1", "2")


@pytest.mark.parametrize("seed", range(8))
def test_retention_keeps_the_same_checkpoints_as_tensorflows_saver(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    max_to_keep, hours = (
        rng.choice([0, 1, 2, 4]),
        rng.choice([1.5, 2.0, 10_000.0]),
    )  # longer than any pause: after one, it keeps everything until it has caught up
    times = list(itertools.accumulate(rng.choice([60.0, 1200.0, 5000.0]) for _ in range(12)))
    clock = [0.0]
    with tf1.Graph().as_default(), tf1.Session() as session:
        variable = tf1.get_variable("x", initializer=np.float32(1))
        session.run(variable.initializer)
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", lambda: clock[0])
            saver = tf1.train.Saver(max_to_keep=max_to_keep, keep_checkpoint_every_n_hours=hours)
            for number, now in enumerate(times):
                clock[0] = now
                saver.save(session, str(tmp_path / "m"), global_step=number, write_meta_graph=False)
        state = tf.train.get_checkpoint_state(str(tmp_path))
    theirs = sorted(int(p.name[2:-6]) for p in tmp_path.glob("*.index"))
    listed, disk = keep(times, max_to_keep, hours)

    assert theirs == sorted(int(p) for p in disk)
    assert [p.rpartition("-")[2] for p in state.all_model_checkpoint_paths] == listed
