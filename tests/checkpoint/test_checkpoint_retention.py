"""What is kept: as tf.train.Saver keeps it, and more faithfully."""

from __future__ import annotations

import itertools
import random
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tensorflow as tf

from procsv.services.checkpoint.retention import KEEP_NEVER_HOURS, Kept, first_keep, retain

if TYPE_CHECKING:
    from pathlib import Path

tf1 = tf.compat.v1


def keep(times: list[float], max_to_keep: int, every_n_hours: float = KEEP_NEVER_HOURS, since: float = 0.0) -> Any:
    """Saves at each of `times`: what is listed, what is on disk, at the end."""
    listed: list[Kept] = []
    disk: list[str] = []
    next_keep = first_keep(since, every_n_hours)
    for number, now in enumerate(times):
        outcome = retain(
            listed,
            Kept(str(number), now),
            max_to_keep=max_to_keep,
            every_n_hours=every_n_hours,
            next_keep=next_keep,
        )
        by_path = {k.path: k for k in [*listed, Kept(str(number), now)]}
        listed, next_keep = [by_path[p] for p in outcome.listed], outcome.next_keep
        disk = [p for p in [*disk, str(number)] if p not in outcome.delete]
    return [k.path for k in listed], disk


def test_only_the_newest_are_kept() -> None:
    assert keep([1.0, 2.0, 3.0, 4.0, 5.0], 2) == (["3", "4"], ["3", "4"])


def test_0_keeps_all_and_lists_the_last() -> None:
    assert keep([1.0, 2.0, 3.0], 0) == (["2"], ["0", "1", "2"])


def test_a_lowered_limit_takes_all_the_excess_at_once() -> None:
    listed = [Kept(str(n), float(n)) for n in range(6)]
    outcome = retain(listed, Kept("6", 6.0), max_to_keep=2, every_n_hours=KEEP_NEVER_HOURS, next_keep=float("inf"))
    assert (outcome.listed, outcome.delete) == (("5", "6"), ("0", "1", "2", "3", "4"))


def test_a_name_used_again_moves_to_the_end() -> None:
    outcome = retain(
        [Kept("a", 1.0), Kept("b", 2.0)], Kept("a", 3.0), max_to_keep=5, every_n_hours=1.0, next_keep=float("inf")
    )
    assert (outcome.listed, outcome.delete) == (("b", "a"), ())


def test_the_default_of_every_n_hours_keeps_nothing_for_good() -> None:
    assert first_keep(1e9, KEEP_NEVER_HOURS) == float("inf")


@pytest.mark.parametrize("seed", range(8))
def test_the_same_checkpoints_are_kept_as_by_tensorflows_saver(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    max_to_keep, hours = rng.choice([0, 1, 2, 4]), rng.choice([0.5, 2.0, 10_000.0])
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
