"""Filesystem events hint that another saver has changed the checkpoint directory."""

from __future__ import annotations

import os
import queue
import resource
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from procsv.base.system.system_clock import SystemClock
from procsv.ipc.messaging.checkpoint_messages import CheckpointPlan
from procsv.services.checkpoint.core.facts import SavableState
from procsv.services.checkpoint.fs_events import OWN_S, OwnChanges, Watch, filesystem_of, is_of_interest
from tests.checkpoint.conftest import Run, some_tensors
from tests.support.commits import local_store
from tests.support.fake_clock import FakeClock


def put_index(directory: Path) -> None:
    """Put an index in place as a Saver does."""
    (directory / "m.tmp").write_bytes(b"")
    (directory / "m.tmp").rename(directory / "m.index")


def test_a_new_index_gives_a_hint_even_after_the_directory_was_recreated(tmp_path: Path) -> None:
    changed = threading.Event()
    watch = Watch(changed.set, OwnChanges(SystemClock()))
    directory = tmp_path / "saved"
    try:
        watch.keep_watching(directory)  # not there yet
        directory.mkdir()
        watch.keep_watching(directory)
        watch.keep_watching(directory)
        put_index(directory)
        assert changed.wait(300.0)
        shutil.rmtree(directory)
        directory.mkdir()
        for _ in range(300):  # the filesystem reports the end of the first directory in its own time
            changed.clear()
            watch.keep_watching(directory)
            put_index(directory)
            if changed.wait(0.1):
                break
        assert changed.is_set()
    finally:
        watch.close()


class NotingWatch(Watch):
    """Records which files were news."""

    def __init__(self, own: OwnChanges) -> None:
        super().__init__(lambda: None, own)
        self.news: queue.SimpleQueue[str] = queue.SimpleQueue()

    def is_news(self, path: bytes | str) -> bool:
        is_news = super().is_news(path)
        if is_news:
            self.news.put(Path(os.fsdecode(path)).name)
        return is_news


def test_what_a_commit_puts_in_place_and_removes_gives_no_hint(
    run: Run, publish: Callable[..., Any], plan: Callable[..., CheckpointPlan]
) -> None:
    own = OwnChanges(FakeClock())  # a clock that stands still, however busy the machine is
    watch = NotingWatch(own)
    pool, only_one = run.pool(), plan(max_to_keep=1)

    def save(step: int, *on_change: Any) -> None:
        info = publish(pool, only_one, some_tensors(step), step, step)
        local_store(run.start(), *on_change).persist(SavableState.of_slot(info), "periodic", only_one)

    try:
        save(1)
        watch.keep_watching(run.logdir)
        for step in (2, 3):
            save(step, own.expect)
        put_index(run.logdir)
        (run.logdir / "m.index").rename(run.logdir / "procsv" / "m.index")  # reported late, like the removals before it
        assert [watch.news.get(timeout=300.0) for _ in range(2)] == ["m.index"] * 2
    finally:
        watch.close()


def test_a_commits_own_changes_are_ignored_for_a_while_and_no_others_are() -> None:
    clock = FakeClock()
    own = OwnChanges(clock)
    own.expect(["/l/m-7.index", "/l/checkpoint"])
    clock.advance(OWN_S - 0.1)
    own.expect(["/l/m-8.index"])
    assert [own.has(path) for path in ("/l/m-7.index", "/l/checkpoint", "/l/m-8.index")] == [True] * 3
    assert not own.has("/l/m-9.index")
    clock.advance(0.1)
    assert [own.has(path) for path in ("/l/m-7.index", "/l/m-8.index")] == [False, True]


def test_a_machine_without_free_watches_is_reported_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    watch = Watch(lambda: None, OwnChanges(SystemClock()))
    watch.keep_watching(tmp_path)  # load its modules first
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            watch.keep_watching(tmp_path / name)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        watch.close()
    said = capsys.readouterr().err
    assert said.count(": procsv scans it") == 1


def test_only_a_possible_checkpoint_gives_a_hint() -> None:
    of_interest = {name: is_of_interest(f"/l/{name}") for name in ("m-7.index", "checkpoint", "mine")}
    others = ["events.out.tfevents.1.host", "m-7.data-00000-of-00001", "graph.pbtxt", "m-7.manifest.json"]
    assert all(of_interest.values())
    assert not any(is_of_interest(f"/l/{name}") for name in others)
    assert not is_of_interest("")


MOUNTS = [
    ("/", "ext4"),
    ("/mnt/my data", "nfs4"),
    ("/mnt/my data/local", "xfs"),
    ("/runs", "ext4"),
    ("/runs", "fuse.sshfs"),
]


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/me/run", "ext4"),
        ("/mnt/my data/run", "nfs4"),
        ("/mnt/my data", "nfs4"),
        ("/mnt/my data/local/run", "xfs"),
        ("/mnt/my database", "ext4"),
        ("/runs/1", "fuse.sshfs"),
    ],
)
def test_a_directorys_filesystem_is_its_nearest_mount(path: str, kind: str) -> None:
    assert filesystem_of(path, MOUNTS) == kind
