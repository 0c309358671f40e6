"""A failing disk call, once or from then on, leaves acknowledged checkpoints intact, and the next
save succeeds after the repair.
"""

from __future__ import annotations

import errno
import itertools
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from procsv.base.run.manifest import Manifest
from procsv.base.system import disk
from procsv.services.checkpoint.core.facts import FoundCheckpoint
from procsv.services.checkpoint.format import manifest
from procsv.services.checkpoint.store import catalog
from procsv.services.checkpoint.store.commit import finish_deletions
from tests.support.commits import Commits
from tests.support.power_loss import Killed, Recording, read_tree, write_tree

# steps saved before, the step saved while the disk is bad, a name for each step, max_to_keep
SCENARIOS: dict[str, tuple[list[int], int, bool, int]] = {
    "the first": ([], 1, True, 5),
    "one that pushes out the oldest": ([1, 2], 4, True, 2),
    "the same name again": ([2], 2, True, 5),
    "a name without a step": ([1], 2, False, 5),
    "more shards under the same name": ([1], 3, False, 5),
    "fewer shards under the same name": ([3], 4, False, 5),
}
ERRORS = [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT]


@pytest.fixture
def make_case(run: Any, plan: Any, publish: Any, tmp_path: Path) -> Iterator[Callable[[bool, int], Commits]]:
    directory = run.paths.shm_dir / "logdir"  # in memory: many commits
    directory.mkdir()
    (tmp_path / "meta").write_bytes(b"graph")

    def make(named: bool, keep: int) -> Commits:
        fields = {"save_path": str(directory / "model.ckpt"), "meta_path": str(tmp_path / "meta")}
        return Commits(run, plan(max_to_keep=keep, **fields), publish, named)

    yield make
    shutil.rmtree(directory)


def step_of(found: FoundCheckpoint) -> int:
    return found.checkpoint.step if found.checkpoint else -1


@pytest.mark.parametrize("for_good", [False, True], ids=["once", "for good"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_failed_disk_call_leaves_what_was_acknowledged_and_the_next_save_is_good(
    make_case: Any, name: str, for_good: bool
) -> None:
    before, last, named, keep = SCENARIOS[name]
    case: Commits = make_case(named, keep)
    case.save_all(before)
    told, tree = case.told, read_tree(case.logdir)
    failed = 0
    for at in itertools.count(1):
        write_tree(case.logdir, tree)
        case.told = told
        store = case.open_store()
        bad = Recording(case.logdir, fail_from=at, fail_count=10**9 if for_good else 1, error=ERRORS[at % len(ERRORS)])
        with bad:
            try:
                case.commit(last, store)
            except OSError:
                failed += 1
                assert case.told == told
                if for_good and named:  # it can be restored while the disk cannot be written
                    found = case.store().find_checkpoint(case.plan)
                    assert step_of(found) in (told.step if told else -1, last)
        if case.told == told:
            found = store.find_checkpoint(case.plan)
            # A commit that could not even be undone was complete and is finished.
            assert step_of(found) in (told.step if told else -1, last if for_good else -1), f"call {at}"
            assert found.rejected == ()
        case.commit(last, store)
        case.check(case.told)
        if bad.calls < at:
            break
    assert failed > 10, "the disk was not watched"


def test_a_file_whose_fsync_failed_is_discarded_and_never_synced_again(make_case: Any) -> None:
    case: Commits = make_case(True, 5)
    store = case.open_store()
    with Recording(case.logdir) as good:
        case.commit(1, store)
    first = next(n for n, op in enumerate(good.ops, 1) if op.what == "fsync" and op.path.endswith("of-00001"))

    with (
        Recording(case.logdir, fail_from=first, fail_count=1, error=errno.EIO) as bad,
        pytest.raises(OSError, match="Input/output"),
    ):
        case.commit(2, store)

    assert not [op for op in bad.ops if op.what == "rename" and "ckpt-2" in op.path]
    assert list((case.logdir / "procsv" / "staging").iterdir()) == []


def test_an_interrupted_commit_with_damaged_files_leaves_the_older_checkpoint_of_that_name(make_case: Any) -> None:
    case: Commits = make_case(False, 5)
    case.save_all([1])
    told = case.told
    with Recording(case.logdir) as recording:
        case.commit(2, case.open_store())
    intent = next(n for n, op in enumerate(recording.ops, 1) if op.path.endswith("/intent.json") and "/2." in op.path)
    for at in range(intent + 2, intent + 8):  # from the intent to the files in place
        write_tree(case.logdir, recording.start)
        case.told = told
        with Recording(case.logdir, kill_at=at) as cut, pytest.raises(Killed):
            case.commit(2, case.open_store())
        assert cut.is_dead
        for path in (*case.logdir.glob("procsv/staging/2.*/*.data-*"), *case.logdir.glob("procsv/staging/2.*/*.index")):
            path.write_bytes(path.read_bytes()[:-1])

        case.check(told)


def test_an_interrupted_commit_that_cannot_be_read_now_is_completed_once_it_can(
    make_case: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    case: Commits = make_case(False, 5)
    case.save_all([1])
    with Recording(case.logdir) as recording:
        case.commit(2, case.open_store())
    intent = next(n for n, op in enumerate(recording.ops, 1) if op.path.endswith("/intent.json") and "/2." in op.path)
    for at in range(intent + 2, intent + 8):  # from the intent to the files in place
        write_tree(case.logdir, recording.start)
        with Recording(case.logdir, kill_at=at), pytest.raises(Killed):
            case.commit(2, case.open_store())
        with monkeypatch.context() as bad_disk:
            bad_disk.setattr(os, "readv", fail)
            store = case.open_store()
        assert step_of(store.find_checkpoint(case.plan)) == 2


def test_a_save_inspects_each_kept_checkpoint_only_a_few_times(make_case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    case: Commits = make_case(True, 20)
    case.save_all(list(range(1, 20)))
    store, read = case.open_store(), Counter[str]()
    store.list_checkpoints(case.plan)
    real = manifest.read_manifest

    def seen(path: Path) -> Manifest | None:
        read[path.name] += 1
        return real(path)

    for module in (manifest, catalog):
        monkeypatch.setattr(module, "read_manifest", seen)
    case.commit(20, store)
    assert set(read) == {f"model.ckpt-{step}.manifest.json" for step in range(1, 21)}
    assert max(read.values()) <= 3, "for the listing, for what is to be kept, and for what is announced"


def test_every_disk_call_of_the_store_can_be_replaced_in_a_test() -> None:
    made = {
        name for name, call in vars(disk).items() if callable(call) and getattr(call, "__module__", "") == disk.__name__
    }
    of_them = {"write_all", "write_file", "copy", "link_or_copy", "unlink_if_there", "make_dirs", "remove_tree"}
    of_them |= {"begin_writing_back", "set_direct"}
    of_the_watchdog = {"has_room", "free_bytes"}
    assert made - of_them - of_the_watchdog - {"try_to_remove_tree", "fsync_files"} == set(disk.CALLS)


def test_a_deletion_cut_off_after_the_index_is_finished_and_nothing_else_is_deleted(make_case: Any) -> None:
    case: Commits = make_case(True, 5)
    case.save_all([1, 2, 4])
    logdir = case.logdir
    whole = {path.name for path in logdir.iterdir()}
    of_two = {name for name in whole if name.startswith("model.ckpt-2.")}
    assert len(of_two) > 3, "index, data, graph and manifest"
    finish_deletions(logdir, "model.ckpt", {str(logdir / "model.ckpt-4")})
    assert {path.name for path in logdir.iterdir()} == whole, "each has its index"

    for number in (1, 2, 4):
        (logdir / f"model.ckpt-{number}.index").unlink()
    (logdir / "model.ckpt-1.manifest.json").write_text("garbled")
    finish_deletions(logdir, "other", {str(logdir / f"model.ckpt-{number}") for number in (1, 2, 4)})
    assert of_two <= {path.name for path in logdir.iterdir()} | {"model.ckpt-2.index"}
    finish_deletions(logdir, "model.ckpt", {str(logdir / "model.ckpt-4")})
    left = {path.name for path in logdir.iterdir()}
    assert not left & of_two
    assert left == whole - of_two - {"model.ckpt-1.index", "model.ckpt-4.index"}


def test_damage_to_a_finished_commit_is_left_for_the_catalog_and_damage_to_an_unfinished_one_undoes_it(
    make_case: Any,
) -> None:
    case: Commits = make_case(True, 5)
    with Recording(case.logdir) as recording:
        case.commit(1, case.open_store())
    index, manifest = case.logdir / "model.ckpt-1.index", case.logdir / "model.ckpt-1.manifest.json"
    for is_garbled in (False, True):
        write_tree(case.logdir, recording.start)
        with Recording(case.logdir, kill_at=recording.calls - 1), pytest.raises(Killed):
            case.commit(1, case.open_store())
        assert manifest.exists()
        assert any((case.logdir / "procsv" / "staging").iterdir()), "only its tidying was cut short"
        index.write_bytes(index.read_bytes()[:-1])
        if is_garbled:
            manifest.write_text("garbled")
        case.open_store()
        assert index.exists() == (not is_garbled)
