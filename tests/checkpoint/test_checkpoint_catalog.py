"""The catalog finds the newest good checkpoint, whatever a bad disk has done to the others."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import tensorflow as tf

from procsv.base.run.manifest import FileId
from procsv.base.run.saved_step import saved_step
from procsv.base.system.system_clock import SystemClock
from procsv.services.checkpoint.core.facts import SavableState
from procsv.services.checkpoint.format.manifest import BadCheckpoint, decode_manifest, encode_manifest, manifest_or_none
from procsv.services.checkpoint.format.names import all_files, manifest_of
from procsv.services.checkpoint.format.state_file import StateFile, read_state, state_text
from procsv.services.checkpoint.store.catalog import (
    Catalog,
    list_checkpoints,
    listed_paths,
    read_list,
    step_of,
    verify_foreign,
)
from procsv.services.checkpoint.store.scan import examine, scan_directory
from tests.support.commits import local_store

tf1 = tf.compat.v1


@pytest.fixture
def save(run: Any, store: Any, plan: Any, publish: Any) -> Callable[..., Any]:
    """Save steps 1, 2, … and return the checkpoints' paths."""
    pool = run.pool()

    def do(*steps: int, its_plan: Any = None) -> list[str]:
        paths = []
        for step in steps:
            values = {"a": np.full(500, step, np.float32), "global_step": np.array(step, np.int64)}
            info = publish(pool, its_plan or plan(), values, step, step)
            paths.append(store.persist(SavableState.of_slot(info), "periodic", its_plan or plan()).path)
        return paths

    return do


def foreign(directory: Path, *steps: int) -> None:
    """Write checkpoints with TensorFlow."""
    with tf1.Graph().as_default(), tf1.Session() as session:
        step_variable = tf1.get_variable("global_step", initializer=np.int64(0))
        tf1.get_variable("text", initializer=np.array([b"some", b"text" * 100], dtype=object))
        session.run(tf1.global_variables_initializer())
        saver = tf1.train.Saver()
        for step in steps:
            session.run(step_variable.assign(step))
            saver.save(session, str(directory / "model.ckpt"), global_step=step)


def flip(path: Path, at: int = 100) -> None:
    data = bytearray(path.read_bytes())
    data[at % len(data)] ^= 4
    path.write_bytes(data)


def data_of(path: str) -> Path:
    return Path(path + ".data-00000-of-00001")


DAMAGE: dict[str, Callable[[str], object]] = {
    "a bit of the data": lambda p: flip(data_of(p)),
    "a bit of the index": lambda p: flip(Path(p + ".index")),
    "data cut short": lambda p: data_of(p).write_bytes(data_of(p).read_bytes()[:-7]),
    "index cut short": lambda p: Path(p + ".index").write_bytes(Path(p + ".index").read_bytes()[:-7]),
    "data missing": lambda p: data_of(p).unlink(),
    "index missing": lambda p: Path(p + ".index").unlink(),
    "everything empty": lambda p: [q.write_bytes(b"") for q in (data_of(p), Path(p + ".index"))],
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("ours", [True, False])
def test_a_damaged_newest_checkpoint_is_moved_aside_and_the_previous_one_is_used(
    run: Any, store: Any, plan: Any, save: Any, damage: str, ours: bool
) -> None:
    if ours:
        save(1, 2, 3)
    else:
        foreign(run.logdir, 1, 2, 3)
    newest = str(run.logdir / "model.ckpt-3")
    DAMAGE[damage](newest)

    found = store.find_checkpoint(plan())

    assert (str(run.logdir / "model.ckpt-2"), 2) == (found.checkpoint.path, found.checkpoint.step)
    assert [newest] == [r.path for r in found.rejected]
    assert [p.name for p in run.logdir.glob("model.ckpt-3.*") if p.name != "model.ckpt-3.rejected"] == []
    assert (run.logdir / "model.ckpt-3.rejected").is_dir()
    assert tf.train.latest_checkpoint(str(run.logdir)) == str(run.logdir / "model.ckpt-2")
    assert store.find_checkpoint(plan()).rejected == (), "reported twice"


@pytest.fixture
def bad_sectors(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, int], None]:
    """Let the next reads of a file fail, as on a disk with bad sectors or a lost network filesystem."""

    def install(path: Path, readings: int) -> None:
        left = [readings]
        real = os.readv

        def readv(fd: int, buffers: Any) -> int:
            if left[0] and os.path.samestat(os.fstat(fd), path.stat()):
                left[0] -= 1
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return real(fd, buffers)

        monkeypatch.setattr(os, "readv", readv)

    return install


def test_one_failed_read_costs_no_step(run: Any, plan: Any, save: Any, bad_sectors: Any) -> None:
    paths = save(1, 2)
    bad_sectors(data_of(paths[1]), 1)
    found: Any = local_store(run.start()).find_checkpoint(plan())
    assert (found.checkpoint.step, found.rejected, found.kept) == (2, (), tuple(paths))


@pytest.mark.parametrize("damaged", [False, True])
def test_a_checkpoint_that_cannot_be_read_now_is_skipped_stays_listed_and_is_used_once_it_can_be_read(
    run: Any, plan: Any, save: Any, bad_sectors: Any, damaged: bool
) -> None:
    paths = save(1, 2, 3)
    if damaged:
        flip(data_of(paths[1]))
    bad_sectors(data_of(paths[2]), 2)
    store: Any = local_store(run.start())
    found = store.find_checkpoint(plan())
    assert found.checkpoint.step == (1 if damaged else 2)
    assert "cannot be read" in found.rejected[0].why
    assert tf.train.latest_checkpoint(str(run.logdir)) == paths[2]
    again = store.find_checkpoint(plan())
    assert (again.checkpoint.step, again.rejected) == (3, ())
    assert again.kept == tuple(path for path in paths if not (damaged and path == paths[1]))


def test_a_checkpoint_file_that_cannot_be_read_now_is_left_alone(run: Any, store: Any, plan: Any, save: Any) -> None:
    save(1, 2)
    text = (run.logdir / "checkpoint").read_bytes()
    (run.logdir / "checkpoint").rename(run.logdir / "aside")
    (run.logdir / "checkpoint").mkdir()  # EISDIR: root may read every file
    assert store.find_checkpoint(plan()).checkpoint.step == 2
    (run.logdir / "checkpoint").rmdir()
    (run.logdir / "aside").rename(run.logdir / "checkpoint")
    assert (store.find_checkpoint(plan()).checkpoint.step, (run.logdir / "checkpoint").read_bytes()) == (2, text)


def test_a_checkpoint_file_that_cannot_be_read_is_not_called_garbled(tmp_path: Path) -> None:
    unreadable, garbled = tmp_path / "unreadable", tmp_path / "garbled"
    unreadable.mkdir()
    garbled.write_bytes(b"\xff\xfe")
    assert read_list(unreadable) == ([], f"{unreadable} cannot be read: Is a directory", False)
    assert (read_list(garbled)[0], read_list(garbled)[2]) == ([], True)


def test_a_garbled_manifest_makes_its_checkpoint_suspect(run: Any, store: Any, plan: Any, save: Any) -> None:
    save(1, 2)
    (run.logdir / "model.ckpt-2.manifest.json").write_text("{")
    assert store.find_checkpoint(plan()).checkpoint.step == 1


@pytest.mark.parametrize("index", ["as old as the manifest", "missing", "missing, as all else is"])
def test_a_garbled_manifest_is_void_only_if_the_index_was_written_after_it(run: Any, save: Any, index: str) -> None:
    (path,) = save(1)
    manifest = Path(f"{path}.manifest.json")
    manifest.write_text("{")
    if index.startswith("missing"):
        Path(f"{path}.index").unlink()
        if index != "missing":
            data_of(path).unlink()
    else:
        written = manifest.stat().st_mtime_ns
        os.utime(f"{path}.index", ns=(written, written))
    with pytest.raises(BadCheckpoint, match="manifest"):
        Catalog().verify_checkpoint(path)


def test_a_manifest_from_before_the_checksum_is_read() -> None:
    data = b'{"version": 1, "step": 5, "sequence": 2, "incarnation": 1, "run": "r", "reason": "final", "time": 1.0,' + (
        b' "files": {"model.ckpt-5.index": {"size": 9, "xxh3_128": "00"}}}'
    )
    assert decode_manifest(data).step == 5


def test_a_checkpoint_is_read_again_if_another_takes_the_name_of_a_deleted_one(run: Any, save: Any) -> None:
    (path,) = save(1)
    catalog, data = Catalog(), data_of(path)
    catalog.verify_checkpoint(path)
    before = data.stat()
    flip(data)
    os.utime(data, ns=(before.st_atime_ns, before.st_mtime_ns))
    catalog.forget_checkpoints([path])
    with pytest.raises(BadCheckpoint):
        catalog.verify_checkpoint(path)


def test_a_checkpoint_in_two_old_format_files_needs_both_of_them(tmp_path: Path) -> None:
    with tf1.Graph().as_default(), tf1.Session() as session:
        tf1.get_variable("a", initializer=1.0)
        session.run(tf1.global_variables_initializer())
        whole = Path(tf1.train.Saver(write_version=tf1.train.SaverDef.V1).save(session, str(tmp_path / "v1")))
    for number in (0, 1):
        shutil.copy(whole, tmp_path / f"model.ckpt-7-{number:05d}-of-00002")
    path = str(tmp_path / "model.ckpt-7-?????-of-00002")
    assert verify_foreign(path) == 7
    assert verify_foreign(str(whole)) == -1
    second = tmp_path / "model.ckpt-7-00001-of-00002"
    second.write_bytes(second.read_bytes()[:-1])
    with pytest.raises(BadCheckpoint, match="00001-of-00002"):
        verify_foreign(path)
    second.unlink()
    with pytest.raises(BadCheckpoint, match="1 of its 2 "):
        verify_foreign(path)
    with pytest.raises(BadCheckpoint, match="0 of its 10002 "):
        verify_foreign(str(tmp_path / "model.ckpt-8-?????-of-10002"))


def test_a_checkpoint_holds_its_own_step_and_otherwise_its_name_gives_it(tmp_path: Path, run: Any) -> None:
    foreign(run.logdir, 5)
    ours = str(run.logdir / "model.ckpt-5")
    assert step_of(ours, otherwise=9) == 5
    with tf1.Graph().as_default(), tf1.Session() as session:
        tf1.get_variable("a", initializer=1.0)
        session.run(tf1.global_variables_initializer())
        without = tf1.train.Saver().save(session, str(tmp_path / "without"))
    assert step_of(without, otherwise=9) == 9
    assert step_of(str(tmp_path / "gone"), otherwise=9) == 9


def test_checkpoints_moved_aside_repeatedly_are_numbered_in_order(run: Any, plan: Any) -> None:
    for _ in range(4):
        foreign(run.logdir, 5)
        list_checkpoints(plan()).move_aside(str(run.logdir / "model.ckpt-5"))
    names = ["model.ckpt-5.rejected", *(f"model.ckpt-5.rejected.{number}" for number in (2, 3, 4))]
    assert sorted(path.name for path in run.logdir.glob("*.rejected*")) == names


def test_checkpoints_without_a_manifest_are_used_if_their_own_checksums_agree(run: Any, store: Any, plan: Any) -> None:
    foreign(run.logdir, 5, 7)
    found = store.find_checkpoint(plan())
    assert (found.checkpoint.step, found.rejected, len(found.kept)) == (7, (), 2)


def test_a_checkpoint_that_the_user_saved_over_ours_is_used(run: Any, store: Any, plan: Any, save: Any) -> None:
    save(3)
    foreign(run.logdir, 3)
    found = store.find_checkpoint(plan())
    assert (found.checkpoint.step, found.rejected) == (3, ())


@pytest.mark.parametrize("back_s", [-2.0, 3600.0, 365 * 86400.0])
@pytest.mark.parametrize("is_of_before", [False, True], ids=["", "an older manifest"])
def test_a_checkpoint_that_the_user_saves_over_ours_after_the_clock_was_set_back_is_used(
    run: Any, store: Any, plan: Any, save: Any, back_s: float, is_of_before: bool
) -> None:
    (ours,) = save(3)
    at = time.time() + back_s
    for file in run.logdir.glob("model.ckpt-3*"):  # as if it had been saved with the clock ahead
        os.utime(file, (at, at))
    rewrite_manifest(ours, index=None if is_of_before else FileId(*id_of_index(ours)))
    assert scan_directory(plan()).external == ()
    foreign(run.logdir, 3)
    found = store.find_checkpoint(plan())
    assert (found.checkpoint.step, found.rejected) == (3, ())
    if not is_of_before:
        (sighting,) = scan_directory(plan()).external
        assert store.adopt_checkpoint(plan(), examine(sighting, SystemClock()), True, 1).durable is not None
        assert scan_directory(plan()).external == ()


def test_checkpoints_of_others_are_recognized_by_the_manifest_of_an_earlier_procsv(
    run: Any, store: Any, plan: Any
) -> None:
    foreign(run.logdir, 3)
    path = str(run.logdir / "model.ckpt-3")
    store.list_checkpoints(plan())
    (sighting,) = scan_directory(plan()).external
    store.adopt_checkpoint(plan(), examine(sighting, SystemClock()), True, 1)
    rewrite_manifest(path, index=None)
    assert scan_directory(plan()).external == ()
    at = time.time() - 3600.0
    foreign(run.logdir, 3)
    os.utime(f"{path}.index", (at, at))
    assert [sighting.path for sighting in scan_directory(plan()).external] == [path]


def test_a_manifest_that_does_not_match_whole_files_is_void_and_one_of_these_very_files_is_not(
    run: Any, plan: Any, save: Any
) -> None:
    (path,) = save(3)
    manifest = manifest_or_none(path)
    assert manifest is not None
    wrong = {name: msgspec.structs.replace(found, xxh3_128="00") for name, found in manifest.files.items()}
    rewrite_manifest(path, files=wrong)
    with pytest.raises(BadCheckpoint, match=f"{Path(path).name}.* checksum"):
        Catalog().verify_checkpoint(path)
    rewrite_manifest(path, step=9, index=FileId(0, 0, 0))
    assert Catalog().verify_checkpoint(path) == 3, "its own step"


@pytest.mark.parametrize("keeps_times", [False, True], ids=["cp", "rsync"])
def test_a_copy_restores_by_its_manifests_and_counts_as_our_own_save(
    run: Any, plan: Any, save: Any, tmp_path: Path, keeps_times: bool
) -> None:
    save(1, 2)
    copy = tmp_path / "copy"
    shutil.copytree(run.logdir, copy, copy_function=shutil.copy2 if keeps_times else shutil.copy)
    there = plan(save_path=str(copy / "model.ckpt"))
    store: Any = local_store(run.start(logdir=str(copy)))
    before = [manifest_or_none(str(copy / f"model.ckpt-{step}")) for step in (1, 2)]
    found = store.find_checkpoint(there)
    assert (found.checkpoint.step, found.checkpoint.sequence, found.rejected) == (2, 2, ())
    assert [Path(path).name for path in found.kept] == ["model.ckpt-1", "model.ckpt-2"]

    for sighting in scan_directory(there).external:
        assert store.adopt_checkpoint(there, examine(sighting, SystemClock()), False, 1).durable is None
    seen = scan_directory(there)
    assert (seen.external, seen.newest_step, seen.newest_sequence) == ((), 2, 2), "it is not read again"
    after = [manifest_or_none(str(copy / f"model.ckpt-{step}")) for step in (1, 2)]
    for old, new in zip(before, after, strict=True):
        assert old is not None
        assert new is not None
        assert new.index != old.index
        assert msgspec.structs.replace(new, index=old.index) == old


def id_of_index(path: str) -> tuple[int, int, int]:
    found = Path(f"{path}.index").stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def rewrite_manifest(path: str, **changes: Any) -> None:
    """Rewrite a manifest with other fields and the same time."""
    manifest, file = manifest_or_none(path), manifest_of(path)
    assert manifest is not None
    stat = file.stat()
    file.write_bytes(encode_manifest(msgspec.structs.replace(manifest, **changes)))
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def test_when_every_checkpoint_is_bad_the_error_names_each_and_stays_an_error(
    run: Any, store: Any, plan: Any, save: Any
) -> None:
    for path in save(1, 2):
        flip(data_of(path))
    for _ in range(2):
        found = store.find_checkpoint(plan())
        assert found.checkpoint is None
        assert "model.ckpt-2" in found.error
        assert "step 0" in found.error


def test_rejected_files_alone_are_not_a_fresh_start(run: Any, store: Any, plan: Any, save: Any) -> None:
    flip(data_of(save(1)[0]))
    store.find_checkpoint(plan())
    (run.logdir / "checkpoint").unlink()
    found = store.find_checkpoint(plan())
    assert found.checkpoint is None
    assert "only remains" in found.error


def test_an_empty_logdir_is_fresh(store: Any, plan: Any) -> None:
    found = store.find_checkpoint(plan())
    assert (found.checkpoint, found.error) == (None, "")


@pytest.mark.parametrize("text", [b"", b"garbage {", b"\x00\xff\x80", b'model_checkpoint_path: ""', None])
def test_without_a_readable_checkpoint_file_the_checkpoints_are_found_by_name(
    run: Any, store: Any, plan: Any, save: Any, text: bytes | None
) -> None:
    save(9, 10)
    (run.logdir / "checkpoint").unlink()
    if text is not None:
        (run.logdir / "checkpoint").write_bytes(text)
    found = store.find_checkpoint(plan())
    assert (found.checkpoint.step, found.rejected) == (10, ())
    assert text is None or tf.train.latest_checkpoint(str(run.logdir)) == found.checkpoint.path


def test_a_garbled_checkpoint_file_without_checkpoints_is_an_error(run: Any, store: Any, plan: Any) -> None:
    (run.logdir / "checkpoint").write_text("garbage {")
    found = store.find_checkpoint(plan())
    assert found.checkpoint is None
    assert "garbled" in found.error


def test_a_moved_logdir_still_restores(run: Any, store: Any, plan: Any, save: Any, tmp_path: Path) -> None:
    save(1, 2)
    moved = tmp_path / "moved"
    shutil.move(run.logdir, moved)
    run.logdir.mkdir()
    found = store.find_checkpoint(plan(save_path=str(moved / "model.ckpt")))
    assert (str(moved / "model.ckpt-2"), ()) == (found.checkpoint.path, found.rejected)


def test_a_checkpoint_listed_in_two_spellings_is_one(run: Any, store: Any, plan: Any, save: Any) -> None:
    """TensorFlow's Saver does this in a relative logdir for checkpoints that it did not save itself."""
    save(1, 2)
    listed = "".join(f'all_model_checkpoint_paths: "{path}model.ckpt-2"\n' for path in (f"{run.logdir}/", ""))
    (run.logdir / "checkpoint").write_text(f'model_checkpoint_path: "model.ckpt-2"\n{listed}')
    assert store.find_checkpoint(plan()).kept == (str(run.logdir / "model.ckpt-2"),)


def test_a_copied_logdir_restores_its_own_files_and_leaves_the_original_alone(
    run: Any, store: Any, plan: Any, save: Any, tmp_path: Path
) -> None:
    save(1, 2)
    copy = tmp_path / "copy"
    shutil.copytree(run.logdir, copy)
    (copy / "model.ckpt-2.index").write_bytes(b"damaged")
    found = store.find_checkpoint(plan(save_path=str(copy / "model.ckpt")))
    assert (found.checkpoint.path, found.kept) == (str(copy / "model.ckpt-1"), (str(copy / "model.ckpt-1"),))
    assert (run.logdir / "model.ckpt-2.index").exists()
    assert not list(run.logdir.glob("*.rejected"))


def test_relative_paths_in_a_checkpoint_file_are_relative_to_its_directory(tmp_path: Path) -> None:
    elsewhere = str(tmp_path / "elsewhere" / "model.ckpt-2")
    state = StateFile("model.ckpt-3", ("sub/model.ckpt-1", elsewhere, "model.ckpt-3"))
    here = tmp_path / "logdir"
    assert listed_paths(state, here) == [str(here / "model.ckpt-3"), elsewhere, str(here / "sub" / "model.ckpt-1")]


def test_the_order_of_the_checkpoint_file_is_respected(run: Any, store: Any, plan: Any, save: Any) -> None:
    """A user who points the file at an older checkpoint means it."""
    paths = save(1, 2, 3)
    text = (run.logdir / "checkpoint").read_text().replace(f'model_checkpoint_path: "{paths[2]}"', "", 1)
    (run.logdir / "checkpoint").write_text(f'model_checkpoint_path: "{paths[0]}"\n{text}')
    assert store.find_checkpoint(plan()).checkpoint.step == 1


def test_a_checkpoint_being_restored_is_not_deleted_until_the_trainer_has_it(
    run: Any, store: Any, plan: Any, save: Any
) -> None:
    few = plan(max_to_keep=1)
    save(1, its_plan=few)
    assert store.find_checkpoint(few).checkpoint.step == 1
    save(2, its_plan=few)
    assert (run.logdir / "model.ckpt-1.index").exists()
    store.release()
    save(3, its_plan=few)
    assert [p.name for p in run.logdir.glob("*.index")] == ["model.ckpt-3.index"]


def test_a_full_disk_is_noticed_before_anything_is_written(
    run: Any, store: Any, save: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(1)
    real = os.statvfs(run.logdir)
    full = os.statvfs_result((*real[:4], 10, *real[5:]))
    with monkeypatch.context() as patch:
        patch.setattr(os, "statvfs", lambda _: full)
        with pytest.raises(OSError, match=r"40.0 KiB"):
            save(2)
    assert [Path(p).name for p in save(2)] == ["model.ckpt-2"]


def test_the_checkpoint_file_is_written_and_read_as_tensorflow_does_it(tmp_path: Path) -> None:
    odd = [str(tmp_path / 'mödel "x"\\.ckpt-1'), str(tmp_path / "m-2")]
    (tmp_path / "checkpoint").write_bytes(state_text(odd[1], odd, relative=False))
    theirs = tf.train.get_checkpoint_state(str(tmp_path))
    assert odd == list(theirs.all_model_checkpoint_paths)
    from tensorflow.python.checkpoint import checkpoint_management

    for relative in (False, True):
        checkpoint_management.update_checkpoint_state_internal(
            str(tmp_path), odd[1], list(odd), save_relative_paths=relative
        )
        assert (tmp_path / "checkpoint").read_bytes() == state_text(odd[1], odd, relative)
    ours = read_state(tmp_path / "checkpoint")
    assert ours is not None
    assert (ours.latest, len(ours.all_paths)) == ("m-2", 2)


def test_checkpoints_from_a_given_step_on_can_be_skipped_and_stay_in_place(store: Any, plan: Any, save: Any) -> None:
    paths = save(1, 2, 3)

    found = store.find_checkpoint(plan(), before=3)
    assert found.checkpoint.path == paths[1]
    assert found.kept == tuple(paths)
    assert store.find_checkpoint(plan(), before=1).checkpoint is None
    assert store.find_checkpoint(plan(), before=1).kept == tuple(paths)
    assert store.find_checkpoint(plan()).checkpoint.path == paths[2]


def test_a_checkpoint_whose_files_are_links_to_elsewhere_is_valid(run: Any, save: Any, tmp_path: Path) -> None:
    (path,) = save(1)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for file in all_files(path):
        file.rename(elsewhere / file.name)
        file.symlink_to(elsewhere / file.name)
    assert Catalog().verify_checkpoint(path) == 1
    assert saved_step(Path(path).parent) == 1
