"""Directories and URLs keep the same contract for the checkpoint store."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from procsv.base.run import lease
from procsv.base.run.manifest import Manifest
from procsv.base.system.system_clock import SystemClock
from procsv.ipc.shm.slot_index import prefix_of
from procsv.ipc.shm.slot_reader import SlotReader
from procsv.services.checkpoint.core.facts import Verified
from procsv.services.checkpoint.format.manifest import MANIFEST_VERSION, BadCheckpoint, sum_file
from procsv.services.checkpoint.remote.url_files import UrlFiles
from procsv.services.checkpoint.store import write
from procsv.services.checkpoint.store.checkpoint_files import CheckpointFiles
from procsv.services.checkpoint.store.local_files import LocalFiles


@dataclass
class Place:
    """An empty place, and what a service does there."""

    run: Any
    directory: str
    plan: Any
    publish: Callable[..., Any]
    is_url: bool

    def files(self) -> CheckpointFiles:
        """Return the files of a service that starts now."""
        start = self.run.start()
        files: CheckpointFiles = UrlFiles(start) if self.is_url else LocalFiles(start, SystemClock())
        files.recover()
        return files

    def save(self, files: CheckpointFiles, step: int, *, named: bool = True, serving: str = "") -> tuple[str, ...]:
        """Save, and return the list that the place then has."""
        pool = self.run.pool(size=4000)
        values = {"a": np.full(50, step, np.float32), "global_step": np.array(step, np.int64)}
        reader = SlotReader(self.publish(pool, self.plan, values, step, step, named=named))
        try:
            with files.new_staging(self.plan, step, 4000) as staging:
                name = Path(prefix_of(reader.contents)).name
                write.write_files(reader.contents, reader.map, str(staging.directory / name))
            sums = {file.name: sum_file(file) for file in staging.directory.iterdir()}
            made = Manifest(MANIFEST_VERSION, step, step, 1, self.run.id, "periodic", float(step), sums)
            return files.commit(staging, self.plan, files.path_of(self.plan, name), made, serving)
        finally:
            reader.close()
            pool.unlink()

    def flip(self, path: str) -> None:
        """Damage a checkpoint's data."""
        data = f"{path}.data-00000-of-00001"
        with tf.io.gfile.GFile(data, "rb") as file:
            whole = file.read()
        tf.io.gfile.remove(data)  # ram:// appends what is written to an older file
        with tf.io.gfile.GFile(data, "wb") as file:
            file.write(whole[:-1] + b"?")


@pytest.fixture(params=["directory", "file://", "ram://"])
def place(request: pytest.FixtureRequest, run: Any, plan: Any, publish: Any, tmp_path: Path) -> Place:
    is_url = request.param != "directory"
    directory = f"{request.param}{tmp_path}/far/away" if is_url else str(run.logdir)
    return Place(run, directory, plan(save_path=f"{directory}/model.ckpt", max_to_keep=2), publish, is_url)


def restored(files: CheckpointFiles, place: Place, before: int = -1) -> int:
    """Return the restored step. Its bytes must be the saved ones."""
    found = files.find_checkpoint(place.plan, before)
    if found.checkpoint is None:
        return -1
    reader = tf.compat.v1.train.NewCheckpointReader(found.checkpoint.path)
    assert reader.get_tensor("a").tobytes() == np.full(50, found.checkpoint.step, np.float32).tobytes()
    return found.checkpoint.step


def test_an_empty_place_has_nothing_to_restore_and_is_no_error(place: Place) -> None:
    files = place.files()
    assert files.has_logdir()
    listing = files.listing(place.plan)
    assert (listing.candidates, listing.kept, listing.exists) == ([], (), False)
    assert files.previous_owner(place.plan) == ""
    found = files.find_checkpoint(place.plan, -1)
    assert (found.checkpoint, found.kept, found.rejected, found.error) == (None, (), (), "")


def test_a_commit_puts_a_checkpoint_in_place_lists_it_and_deletes_the_surplus_one(place: Place) -> None:
    files = place.files()
    paths = [files.path_of(place.plan, f"model.ckpt-{step}") for step in (1, 2, 3)]
    assert paths[0] == f"{place.directory}/model.ckpt-1"
    lists = [place.save(files, step) for step in (1, 2, 3)]
    assert lists == [(paths[0],), (paths[0], paths[1]), (paths[1], paths[2])]
    for reader in (files, place.files()):
        listing = reader.listing(place.plan)
        assert [(one.path, one.step, one.sequence, one.listed) for one in listing.candidates] == [
            (paths[2], 3, 3, True),
            (paths[1], 2, 2, True),
        ]
        assert listing.kept == reader.own(listing.kept, place.plan) == (paths[1], paths[2])
        assert [listing.verify_checkpoint(path) for path in listing.kept] == [2, 3]
        assert not listing.is_there(paths[0])
        assert (restored(reader, place), restored(reader, place, before=3)) == (3, 2)
    assert tf.train.latest_checkpoint(place.directory) == paths[2]


def test_another_savers_checkpoint_under_our_name_counts_by_its_own_checksums(place: Place) -> None:
    files = place.files()
    for step in (1, 3):
        (*_, path) = place.save(files, step)
    for suffix in (".index", ".data-00000-of-00001"):
        tf.io.gfile.remove(path + suffix)
    tensors = {"a": np.full(50, 7, np.float32), "global_step": np.array(7, np.int64)}
    tf.raw_ops.SaveV2(
        prefix=path, tensor_names=[*tensors], shape_and_slices=[""] * 2, tensors=[*map(tf.constant, tensors.values())]
    )
    assert restored(files, place) == 7
    assert files.listing(place.plan).kept[-1] == path


def test_a_listed_checkpoint_in_another_directory_stays_listed_and_is_never_deleted(place: Place) -> None:
    files = place.files()
    elsewhere = f"{place.directory}/others"
    tf.io.gfile.makedirs(elsewhere)
    theirs = f"{elsewhere}/model.ckpt-7"
    for suffix in (".index", ".data-00000-of-00001"):
        with tf.io.gfile.GFile(theirs + suffix, "wb") as file:
            file.write(b"precious")
    with tf.io.gfile.GFile(f"{place.directory}/checkpoint", "w") as file:
        file.write(f'model_checkpoint_path: "{theirs}"\nall_model_checkpoint_paths: "{theirs}"\n')
    for step in (11, 12, 13, 14):
        listed = place.save(files, step)
    assert [path.rpartition("/")[2] for path in listed if path != theirs] == ["model.ckpt-13", "model.ckpt-14"]
    for suffix in (".index", ".data-00000-of-00001"):
        assert tf.io.gfile.exists(theirs + suffix)


def test_a_checkpoint_being_restored_is_deleted_with_the_next_commit(place: Place) -> None:
    files = place.files()
    (first,) = place.save(files, 1)
    place.save(files, 2)
    assert place.save(files, 3, serving=first)[0] == first
    assert files.listing(place.plan).verify_checkpoint(first) == 1
    assert first not in place.save(files, 4)
    assert not files.listing(place.plan).is_there(first)


def test_a_commit_under_a_used_name_replaces_that_checkpoint(place: Place) -> None:
    files = place.files()
    for step in (1, 2, 3):
        assert place.save(files, step, named=False) == (f"{place.directory}/model.ckpt",)
        assert restored(place.files(), place) == step


def test_a_bad_checkpoint_is_moved_aside_and_unlisted_and_the_older_one_is_found_until_none_is_left(
    place: Place,
) -> None:
    files = place.files()
    older, newer = [place.save(files, step)[-1] for step in (1, 2)]
    place.flip(newer)
    with pytest.raises(BadCheckpoint, match="checksum"):
        files.listing(place.plan).verify_checkpoint(newer)
    found = files.find_checkpoint(place.plan, -1)
    assert [(bad.path, "checksum" in bad.why) for bad in found.rejected] == [(newer, True)]
    assert found.kept == (older,)
    again = place.files()
    assert (restored(again, place), again.find_checkpoint(place.plan, -1).rejected) == (1, ())
    assert tf.io.gfile.exists(f"{newer}.rejected/model.ckpt-2.index")
    tf.io.gfile.remove(f"{older}.index")
    nothing = place.files().find_checkpoint(place.plan, -1)
    assert nothing.checkpoint is None
    assert older in nothing.error


def test_an_error_while_writing_leaves_only_what_was_there(place: Place) -> None:
    files = place.files()
    place.save(files, 1)

    def fail() -> None:
        with files.new_staging(place.plan, 2, 4000) as staging:
            made.append(staging.directory)
            (staging.directory / "model.ckpt-2.index").write_bytes(b"half")
            raise OSError(errno.EIO, "bad")

    made = list[Path]()
    with pytest.raises(OSError, match="bad"):
        fail()
    assert [directory.exists() for directory in made] == [False]
    assert restored(files, place) == 1
    place.save(files, 2)
    assert restored(files, place) == 2


def test_staging_left_by_a_service_is_gone_when_the_next_one_has_started(place: Place) -> None:
    files = place.files()
    made = files.new_staging(place.plan, 1, 4000)
    left = made.__enter__().directory  # as after a kill: the block never ends
    (left / "model.ckpt-1.index").write_bytes(b"half")
    after = place.files()
    assert not left.exists()
    assert restored(after, place) == -1


def test_a_checkpoint_that_does_not_fit_is_an_error_before_a_byte_is_written(place: Place) -> None:
    files = place.files()
    with pytest.raises(OSError, match=r"no room"):
        files.new_staging(place.plan, 1, 2**62)
    assert restored(files, place) == -1


def test_nothing_is_written_once_another_machine_has_the_logdir(place: Place) -> None:
    files = place.files()
    files.check_lease()
    machine = lease.ProcessSpace("node17", "b", "p")
    theirs = lease.Lease(run="f" * 16, place=machine, pid=1, started=0.0, what="procsv launch train.py")
    lease.LeaseFile(place.run.start().paths).create(theirs)
    with pytest.raises(OSError, match="node17"):
        files.check_lease()


def test_another_writers_save_is_adopted_whole_or_left_alone(place: Place) -> None:
    files = place.files()
    place.save(files, 1)
    path = files.path_of(place.plan, "model.ckpt-7")
    seen = Verified(path, (("model.ckpt-7.index", 1, 1, 1),), 7, {}, 7.0, 0.0)  # gone since it was seen
    taken = files.adopt_checkpoint(place.plan, seen, True, 1, "")
    assert (taken.examined, taken.own, taken.durable, taken.is_latest) == (seen, True, None, False)
    files.make_own(place.plan, path, "")
    assert restored(files, place) == 1
