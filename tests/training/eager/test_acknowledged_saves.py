"""An acknowledged save is on disk, whatever an earlier program or attempt has left in the directory."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from msgspec.structs import replace

import procsv
from procsv.base.errors import UserError
from procsv.ipc.messaging.checkpoint_messages import Durable, SaveFailed
from procsv.services.checkpoint.format.manifest import read_manifest
from procsv.services.checkpoint.format.names import manifest_of
from procsv.training.snapshots import restore_client
from procsv.training.snapshots.snapshotter import Snapshotter
from procsv.training.snapshots.training_run import training_of
from tests.support.launched import launched

KEY = "v/.ATTRIBUTES/VARIABLE_VALUE"


def value_in(path: str) -> float:
    return float(tf.train.load_checkpoint(path).get_tensor(KEY))


def save_without_restoring(directory: Path, value: float, saves: int) -> list[float]:
    """Run a program from start to end. Return the contents of its files right after each acknowledgement."""
    v, found = tf.Variable(0.0), []
    with procsv.CheckpointManager(tf.train.Checkpoint(v=v), directory, snapshot_secs=None) as manager:
        for _ in range(saves):
            v.assign(value)
            path = manager.save()
            manager.sync()
            found.append(value_in(path))
    return found


def test_a_program_that_saves_without_restoring_finds_its_own_state_in_its_file(tmp_path: Path) -> None:
    assert save_without_restoring(tmp_path / "run", 1.0, saves=3) == [1.0] * 3
    assert save_without_restoring(tmp_path / "run", 2.0, saves=1) == [2.0]
    assert value_in(f"{tmp_path}/run/ckpt-1") == 2.0
    newest, older = (read_manifest(manifest_of(f"{tmp_path}/run/ckpt-{number}")) for number in (1, 3))
    assert newest is not None
    assert older is not None
    assert newest.sequence > older.sequence  # the service orders states by it


PROGRAM = """
import os, signal, sys
import tensorflow as tf
import procsv

is_first = not os.path.exists(sys.argv[1])
open(sys.argv[1], "w").close()
v = tf.Variable(0.0)
manager = procsv.CheckpointManager(tf.train.Checkpoint(v=v), snapshot_secs=None)
for _ in range(3 if is_first else 1):
    v.assign(1.0 if is_first else 2.0)
    path = manager.save()
manager.sync()
print("file holds", tf.train.load_checkpoint(path).get_tensor("v/.ATTRIBUTES/VARIABLE_VALUE"), flush=True)
if is_first:
    os.kill(os.getpid(), signal.SIGKILL)
manager.close()
"""


@pytest.mark.long
def test_an_attempt_that_starts_over_finds_its_own_state_in_its_file(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    with launched(tmp_path / "run", "--backoff", "0.1s..1s", str(program), str(tmp_path / "mark")) as run:
        run.assert_completed()
        assert re.findall(r"file holds ([\d.]+)", run.said()) == ["1.0", "2.0"], run.summary()


def test_only_messages_about_this_attempts_snapshots_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[Any] = []
    v = tf.Variable(1.0)
    with procsv.CheckpointManager(tf.train.Checkpoint(v=v), tmp_path / "run", snapshot_secs=None) as manager:
        path = manager.save(wait=True)
        assert path is not None
        training, start = training_of(manager), read_manifest(manifest_of(path))
        assert start is not None
        with monkeypatch.context() as patch:
            patch.setattr(Snapshotter, "on_durable", lambda _, news: heard.append(news))
            patch.setattr(Snapshotter, "on_failed", lambda _, news: heard.append(news))
            mine = Durable(9, 0, start.incarnation, "p", "manual", 0, 0.0, (), run=start.run)
            failed = SaveFailed(9, 0, "no room", 0.0, start.incarnation, start.run)
            for durable in (replace(mine, run="another"), replace(mine, incarnation=start.incarnation + 1), mine):
                training.on_durable(durable)
            for why in (replace(failed, run="another"), replace(failed, incarnation=start.incarnation + 1), failed):
                training.on_failed(why)
    assert [news for news in heard if news.sequence == 9] == [mine, failed]
    assert len(re.findall("step 0 .*: no room", caplog.text)) == 1, (
        "that step may never be saved: a newer one takes its place"
    )


def test_a_program_trains_where_no_checkpoint_service_can_number_its_snapshots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def lost(*_args: Any, **_more: Any) -> Any:
        raise UserError("no checkpoint service")

    monkeypatch.setattr(restore_client, "_ask_state", lost)
    assert save_without_restoring(tmp_path / "run", 1.0, saves=1) == [1.0]  # though it really exists
    assert "saves may fail: " in caplog.text


def test_a_program_that_does_not_restore_saves_beside_checkpoints_that_it_cannot_use(tmp_path: Path) -> None:
    assert save_without_restoring(tmp_path / "run", 1.0, saves=2) == [1.0] * 2
    for index in (tmp_path / "run").glob("*.index"):
        index.write_bytes(b"torn")
    assert save_without_restoring(tmp_path / "run", 2.0, saves=1) == [2.0]
