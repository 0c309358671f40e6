"""When two machines save at one URL, the one that started last has it and the other one finds out."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from procsv.base.identity import TRAINER
from procsv.base.run.paths import RunPaths
from procsv.ipc.shm.slot_file import SlotPool
from procsv.services.checkpoint.remote import gfile
from procsv.services.checkpoint.remote.fence import WRITER, RemoteFenced
from procsv.services.checkpoint.store.checkpoint_store import SEQUENCES_SKIPPED, Store
from tests.checkpoint.conftest import Run
from tests.checkpoint.test_checkpoint_remote import CHANGES, Place, make_place

KEEP = 9


@pytest.fixture
def other_machine(tmp_path: Path) -> Iterator[Run]:
    """Return another run with its own directories."""
    paths = RunPaths(tmp_path / "other", tmp_path / "other-run", tmp_path / "other-shm")
    for path in (paths.logdir, paths.run_dir, paths.shm_dir):
        path.mkdir()
    made = Run(paths.logdir, paths)
    yield made
    made.close()


@pytest.fixture(params=["file", "ram"])
def both(
    request: pytest.FixtureRequest, run: Any, other_machine: Run, plan: Any, publish: Any, tmp_path: Path
) -> tuple[Place, Place]:
    older = make_place(request.param, run, plan, publish, tmp_path)
    older.plan = plan(save_path=f"{older.url}/model.ckpt", max_to_keep=KEEP)
    return older, Place(other_machine, older.url, older.plan, publish)


def test_a_run_that_was_superseded_saves_nothing_more_and_says_why(both: tuple[Place, Place]) -> None:
    older, newer = both
    first = older.store()
    older.save(first, 1)
    second = newer.store()
    stock = second.list_checkpoints(newer.plan)
    assert (stock.newest_step, stock.top_sequence) == (1, 1 + SEQUENCES_SKIPPED), (
        "what the first has in the making is older"
    )
    for store in (first, older.store()):  # a restarted service of the older run takes nothing back
        with pytest.raises(RemoteFenced):
            older.save(store, 2)
    newer.save(second, 3)
    newer.save(newer.store(), 4)  # nor is a restarted service of the second fenced off by its own run
    newer.check()
    assert newer.names() == sorted({*newer.names(), "checkpoint", WRITER})


def test_the_next_start_on_the_same_machine_takes_over_the_directory(both: tuple[Place, Place]) -> None:
    older, newer = both
    older.save(older.store(), 1)
    newer.save(newer.store(), 2)
    older.run.id = "f" * 16
    older.save(older.store(), 3)
    older.check()


@pytest.fixture
def standstill(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[], None]], list[str]]:
    """Freeze before the change of that number while something happens that takes minutes."""

    def install(at: int, happens: Callable[[], None]) -> list[str]:
        made, is_inside = list[str](), list[bool]()

        def stand_in(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any) -> Any:
                if not is_inside:
                    made.append(name)
                    if len(made) == at:
                        is_inside.append(True)
                        happens()
                        is_inside.clear()
                return real(*args)

            return call

        monkeypatch.undo()
        for name in CHANGES:
            monkeypatch.setattr(gfile, name, stand_in(name, getattr(gfile, name)))
        return made

    return install


def test_a_save_frozen_before_any_of_its_changes_costs_the_next_run_nothing(
    both: tuple[Place, Place], standstill: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    older, newer = both
    fenced, step = 0, 0
    for at in itertools.count(1):
        step += 10
        older.run.id, newer.run.id = f"{2 * step:016x}", f"{2 * step + 1:016x}"
        store, going_on = older.store(), list[Store]()
        older.save(store, step)

        def take_over(step: int = step, going_on: list[Store] = going_on) -> None:
            going_on.append(newer.store())
            newer.save(going_on[0], step + 2)

        made = standstill(at, take_over)
        try:
            older.save(store, step + 1)
        except OSError:
            fenced += 1
        monkeypatch.undo()
        if len(made) < at:
            break
        taken = f"{newer.url}/model.ckpt-{step + 2}"
        assert taken in tf.train.get_checkpoint_state(newer.url).all_model_checkpoint_paths or fenced
        (after,) = going_on  # the service that has saved it
        newer.save(after, step + 3)
        assert taken in after.find_checkpoint(newer.plan).kept, f"lost by what was done behind change {at}"
        newer.check()
    assert at > 5, "nothing was changed"
    assert fenced > 3


def test_a_restarted_service_still_knows_and_reports_the_directorys_previous_run(
    both: tuple[Place, Place],
) -> None:
    older, newer = both
    older.save(older.store(), 1)
    copy = SlotPool(newer.run.paths.shm_dir, older.run.id, TRAINER, 1)  # a copy of its memory from another machine
    copy.reserve(4000)
    newer.publish(copy, newer.plan, {"a": np.zeros(50, np.float32)}, 7, 70)
    copy.close()

    first = newer.store()
    assert first.lineage() == frozenset(), "the directory alone tells"
    assert first.list_checkpoints(newer.plan).previous_owner == older.run.id
    assert newer.store().lineage() == {older.run.id}
