"""Checkpoints at a URL are whole, verified, rotated and proof against kills."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from procsv.base.system.system_clock import SystemClock
from procsv.ipc.shm.slot_index import prefix_of
from procsv.services.checkpoint.core.facts import SavableState
from procsv.services.checkpoint.remote import gfile
from procsv.services.checkpoint.remote.catalog import take_remote_inventory
from procsv.services.checkpoint.remote.fence import WRITER
from procsv.services.checkpoint.remote.url_files import UrlFiles
from procsv.services.checkpoint.store.checkpoint_store import Store
from tests.support.power_loss import Killed

CHANGES = ("_write_pieces", "make_dirs", "remove", "remove_tree", "move")


@dataclass
class Place:
    """A directory at a URL, and the service's side of it."""

    run: Any
    url: str
    plan: Any
    publish: Callable[..., Any]
    acknowledged: int = -1

    def store(self) -> Store:
        start = self.run.start(logdir=str(self.run.logdir))
        store = Store(start, SystemClock(), UrlFiles(start))
        store.lineage()
        store.open()
        return store

    def save(self, store: Store, step: int, named: bool = True) -> str:
        pool = self.run.pool(size=4000)
        values = {"a": np.full(50, step, np.float32), "global_step": np.array(step, np.int64)}
        info = self.publish(pool, self.plan, values, step, step, named=named)
        try:
            durable = store.persist(SavableState.of_slot(info), "periodic", self.plan)
        finally:
            pool.unlink()
        self.acknowledged = step
        return durable.path

    def names(self) -> list[str]:
        return sorted(tf.io.gfile.listdir(self.url))

    def check(self, to_come: int = -2) -> str:
        """Check that a service that starts now finds the acknowledged step, or the next one, whole."""
        store = self.store()
        found = store.find_checkpoint(self.plan)
        assert (found.rejected, found.error) == ((), "")
        if found.checkpoint is None:
            assert self.acknowledged == -1
            return ""
        assert found.checkpoint.step in (self.acknowledged, to_come)
        for path in found.kept:
            holds(path, tf.compat.v1.train.NewCheckpointReader(path).get_tensor("global_step"))
        assert tf.train.latest_checkpoint(self.url) == found.checkpoint.path == found.kept[-1]
        holds(found.checkpoint.path, found.checkpoint.step)
        return found.checkpoint.path


def holds(path: str, step: int) -> None:
    reader = tf.compat.v1.train.NewCheckpointReader(path)
    assert reader.get_tensor("a").tobytes() == np.full(50, step, np.float32).tobytes()
    assert reader.get_tensor("global_step") == step


@pytest.fixture(params=["file", "ram"])
def place(request: pytest.FixtureRequest, run: Any, plan: Any, publish: Any, tmp_path: Path) -> Place:
    return make_place(request.param, run, plan, publish, tmp_path)


@pytest.fixture
def on_disk(run: Any, plan: Any, publish: Any, tmp_path: Path) -> Place:
    return make_place("file", run, plan, publish, tmp_path)


def make_place(scheme: str, run: Any, plan: Any, publish: Any, tmp_path: Path) -> Place:
    url = f"{scheme}://{tmp_path / 'far' / 'away'}"
    meta = tmp_path / "meta"
    meta.write_bytes(b"graph")
    return Place(run, url, plan(save_path=f"{url}/model.ckpt", max_to_keep=2, meta_path=str(meta)), publish)


def test_tensorflows_filesystem_writes_verifies_finds_and_rotates_checkpoints(place: Place) -> None:
    store = place.store()
    assert place.store().find_checkpoint(place.plan).checkpoint is None
    paths = [place.save(store, step) for step in (1, 2, 3)]

    assert paths[-1] == f"{place.url}/model.ckpt-3"
    assert place.check() == paths[-1]
    parts = ("data-00000-of-00001", "index", "manifest.json", "meta")
    there = ["checkpoint", *(f"model.ckpt-{step}.{part}" for step in (2, 3) for part in parts), WRITER]
    assert place.names() == there
    suspect = place.store().find_checkpoint(place.plan, before=3)
    assert suspect.checkpoint is not None
    assert (suspect.checkpoint.path, suspect.kept) == (paths[1], tuple(paths[1:]))
    stock = place.store().list_checkpoints(place.plan)
    assert (stock.newest_step, stock.top_sequence, stock.kept) == (3, 3, tuple(paths[1:]))


def saved_by_tensorflow(place: Place, *steps: int) -> None:
    tf.io.gfile.makedirs(place.url)
    for step in steps:
        tf.raw_ops.SaveV2(
            prefix=f"{place.url}/model.ckpt-{step}",
            tensor_names=["global_step"],
            shape_and_slices=[""],
            tensors=[np.int64(step)],
        )


def test_a_checkpoint_of_tensorflows_own_saver_is_read_whole_before_it_is_chosen(place: Place) -> None:
    saved_by_tensorflow(place, 5, 6)
    tf.io.gfile.remove(f"{place.url}/model.ckpt-6.data-00000-of-00001")
    with tf.io.gfile.GFile(f"{place.url}/model.ckpt-6.data-00000-of-00001", "wb") as file:
        file.write(b"12345678")

    found = place.store().find_checkpoint(place.plan)

    assert found.checkpoint is not None
    assert (found.checkpoint.path, found.checkpoint.step) == (f"{place.url}/model.ckpt-5", 5)
    assert [Path(r.path).name for r in found.rejected] == ["model.ckpt-6"]


def test_a_checkpoint_that_cannot_be_read_now_is_left_in_place(on_disk: Place, tmp_path: Path) -> None:
    saved_by_tensorflow(on_disk, 5, 6)
    data = tmp_path / "far" / "away" / "model.ckpt-6.data-00000-of-00001"
    data.rename(tmp_path / "aside")
    data.mkdir()

    found = on_disk.store().find_checkpoint(on_disk.plan)

    assert found.checkpoint is not None
    assert found.checkpoint.step == 5
    assert "cannot be read" in found.rejected[0].why
    data.rmdir()
    (tmp_path / "aside").rename(data)
    again = on_disk.store().find_checkpoint(on_disk.plan)
    assert again.checkpoint is not None
    assert (again.checkpoint.step, again.rejected) == (6, ())


def test_a_urls_inventory_shows_what_is_whole_and_what_is_not(on_disk: Place, tmp_path: Path) -> None:
    store = on_disk.store()
    for step in (1, 2):
        on_disk.save(store, step)
    (tmp_path / "far" / "away" / "model.ckpt-1.index").write_bytes(b"short")

    scanned, verified = (take_remote_inventory(on_disk.url + "/", verify) for verify in (False, True))

    assert [(item.step, item.listed, item.latest, item.reason) for item in scanned.checkpoints] == [
        (1, True, False, "periodic"),
        (2, True, True, "periodic"),
    ]
    assert [item.error is None for item in scanned.checkpoints] == [False, True]
    assert "5 bytes" in str(scanned.checkpoints[0].error)
    assert [item.verified for item in verified.checkpoints] == [False, True]
    with pytest.raises(FileNotFoundError):
        take_remote_inventory(on_disk.url + "er", False)


def test_a_copied_directory_is_read_in_its_new_place(on_disk: Place, tmp_path: Path) -> None:
    path = on_disk.save(on_disk.store(), 1)
    state = tmp_path / "far" / "away" / "checkpoint"
    state.write_text('model_checkpoint_path: "gs://elsewhere/model.ckpt-1"\n')
    found = on_disk.store().find_checkpoint(on_disk.plan)
    assert found.checkpoint is not None
    assert found.checkpoint.path == path


@pytest.fixture
def breakable(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int, BaseException], list[str]]]:
    """Break at the change of that number. A write in progress is half done."""

    def install(at: int, error: BaseException) -> list[str]:
        made: list[str] = []

        def stand_in(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any) -> Any:
                if isinstance(error, Killed) and len(made) >= at:
                    raise error
                made.append(name)
                if len(made) == at:
                    if name == "_write_pieces":
                        half = b"".join(args[1])
                        real(args[0], iter((half[: len(half) // 2],)))
                    raise error
                return real(*args)

            return call

        monkeypatch.undo()
        for name in CHANGES:
            monkeypatch.setattr(gfile, name, stand_in(name, getattr(gfile, name)))
        return made

    yield install
    monkeypatch.undo()


@pytest.mark.parametrize("named", [True, False], ids=["each its name", "one name"])
@pytest.mark.parametrize("error", [Killed(), OSError(errno.EIO, os.strerror(errno.EIO))], ids=["killed", "failed"])
def test_a_save_interrupted_at_any_change_leaves_what_was_acknowledged(
    on_disk: Place, breakable: Any, monkeypatch: pytest.MonkeyPatch, named: bool, error: BaseException
) -> None:
    store, step = on_disk.store(), 1
    on_disk.save(store, step, named)
    for at in itertools.count(1):
        step += 1
        made = breakable(at, error)
        try:
            on_disk.save(store, step, named)
        except (Killed, OSError):
            monkeypatch.undo()
            on_disk.check(to_come=step)
        monkeypatch.undo()
        if len(made) < at:
            break
        step += 1
        store = on_disk.store()  # as after a service restart
        on_disk.save(store, step, named)
        on_disk.check()
        assert [name for name in on_disk.names() if name.startswith(".") or name == "procsv-staging"] == []
    assert at > 8, "nothing was broken"


def test_an_unknown_scheme_is_an_error_that_names_it(run: Any, plan: Any, publish: Any) -> None:
    place = Place(run, "nowhere://x", plan(save_path="nowhere://x/model.ckpt"), publish)
    with pytest.raises(OSError, match="nowhere"):
        place.save(place.store(), 1)


def test_a_urls_prefix_keeps_its_slashes(plan: Any) -> None:
    from procsv.ipc.shm.slot_index import Contents

    contents = Contents(plan(save_path="gs://a/b/model.ckpt"), False, (), 7, "t")
    assert prefix_of(contents) == "gs://a/b/model.ckpt-7"
