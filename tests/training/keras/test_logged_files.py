"""CSVLogger and TensorBoard write every row and point once, in one place, across restarts."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import procsv
from procsv.training.keras import backup, hooks
from procsv.training.keras.callbacks import LoggedFiles
from procsv.training.keras.progress import FitNumbers

# Keras' own way to read a variable warns with a newer NumPy.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

X = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
Y = X.sum(1, keepdims=True)


class Interrupted(Exception):
    """A program that ends in the middle of a fit."""


class Interrupt(keras.callbacks.Callback):
    def __init__(self, after: int) -> None:
        super().__init__()
        self.left = after

    def get_state(self) -> None:
        """Return nothing: this callback has no state of the fit."""

    def set_state(self, state: None) -> None: ...

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.left -= 1
        if self.left == 0:
            raise Interrupted


@pytest.fixture(autouse=True)
def _end_run() -> Any:
    yield
    end_program()


def end_program() -> None:
    hooks.abandon_all()
    backup.numbers = FitNumbers()


def fit(directory: Path, after: int = 0, *, board: str = "board", append: bool = False) -> None:
    keras.backend.clear_session()
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dropout(0.3), keras.layers.Dense(1)]
    )
    model.compile("adam", "mse", jit_compile=False)
    callbacks: list[Any] = [
        keras.callbacks.CSVLogger(directory / "log.csv", append=append),
        keras.callbacks.TensorBoard(str(directory / board), update_freq=1),
        Interrupt(after),
        procsv.keras.BackupAndRestore(directory / "run", save_freq=1, snapshot_secs=None, delete_checkpoint=False),
    ]
    try:
        model.fit(X, Y, epochs=4, batch_size=16, verbose=0, callbacks=callbacks, validation_data=(X[:16], Y[:16]))
    except Interrupted:
        assert after
        callbacks[0].csv_file.close()
        callbacks[1].on_train_end()  # close its writers as the end of a process does
    end_program()


def points(directory: Path) -> list[tuple[str, str, int, Any]]:
    """Return all scalars and Keras' models: place, tag, step and value."""
    return [
        (path.parent.name, value.tag, event.step, tf.make_ndarray(value.tensor).item())
        for path in sorted(directory.rglob("*.tfevents.*"))
        for record in tf.data.TFRecordDataset(str(path))
        for event in [tf.compat.v1.Event.FromString(record.numpy())]
        for value in event.summary.value
        if value.metadata.plugin_data.plugin_name in ("scalars", "graph_keras_model")
    ]


@pytest.mark.long
def test_rows_and_points_exist_once_after_restarts_even_of_a_moved_run(tmp_path: Path) -> None:
    alone, run = tmp_path / "alone", tmp_path / "run"
    for directory in (alone, run):
        directory.mkdir()
    fit(alone)
    for after in (6, 3, 5):
        fit(run, after)
        run = run.rename(tmp_path / f"moved-{after}")
    fit(run)
    assert (run / "log.csv").read_text() == (alone / "log.csv").read_text()
    wanted = sorted(points(alone))
    assert len(wanted) > 20
    assert sorted(points(run / "board")) == wanted


@pytest.mark.long
def test_a_copied_run_leaves_the_originals_files_alone(tmp_path: Path) -> None:
    original, copy = tmp_path / "original", tmp_path / "copy"
    original.mkdir()
    fit(original, 6)
    shutil.copytree(original, copy)
    before = {path: path.read_bytes() for path in original.rglob("*") if path.is_file()}
    fit(copy)
    assert {path: path.read_bytes() for path in original.rglob("*") if path.is_file()} == before
    fit(original)
    assert (copy / "log.csv").read_text() == (original / "log.csv").read_text()
    assert sorted(points(copy)) == sorted(points(original))


@pytest.mark.long
def test_a_program_that_names_another_directory_continues_there_with_the_model_and_later_points(tmp_path: Path) -> None:
    fit(tmp_path, 6, board="board-1")
    before = sorted(points(tmp_path / "board-1"))
    fit(tmp_path, board="board-2")
    assert sorted(points(tmp_path / "board-1")) == before
    later = points(tmp_path / "board-2")
    assert [tag for _, tag, _, _ in later].count("keras") == 1
    assert {step for where, tag, step, _ in later if tag == "epoch_loss"} == {1, 2, 3}


@pytest.mark.long
def test_rows_are_appended_to_a_csv_file_with_other_contents(tmp_path: Path) -> None:
    fit(tmp_path, 10)
    (tmp_path / "log.csv").write_text("epoch,loss,val_loss\n" + 30 * "0,1.0,1.0\n")
    fit(tmp_path)
    lines = (tmp_path / "log.csv").read_text().splitlines()
    assert lines[:31] == ["epoch,loss,val_loss", *30 * ["0,1.0,1.0"]]
    assert [line[0] for line in lines[31:]] == ["2", "3"]


def test_event_files_of_a_start_that_left_no_state_are_removed_and_others_stay(tmp_path: Path) -> None:
    board = keras.callbacks.TensorBoard(str(tmp_path), write_graph=False)
    board.set_model(keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]))
    train = tmp_path / "train"
    train.mkdir()
    now_s = int(time.time())
    told, lost, strange, older = (
        train / f"events.out.tfevents.{begun_s}.a.host.{pid}.7.v2"
        for begun_s, pid in ((now_s, 70), (now_s, 71), (now_s, 72), (1, os.getpid()))
    )
    for path in (told, lost, strange, older):
        path.touch()
    with tf.summary.create_file_writer(str(train)).as_default():
        tf.summary.scalar("of the program", 1.0, step=1)
    state = {"kept": {}, "settings": {}, "files": {f"train/{told.name}": 0}}
    LoggedFiles([board]).remove_repeated([("TensorBoard", state)], lambda: {70, 71})
    assert not lost.exists()
    assert {told, strange, older} < set(train.iterdir())
    assert [(tag, step) for _, tag, step, _ in points(tmp_path)] == [("of the program", 1)]


@pytest.mark.long
def test_a_fit_that_starts_over_empties_its_rows_and_one_that_appends_keeps_the_old_ones(tmp_path: Path) -> None:
    for append in (False, True):
        directory = tmp_path / str(append)
        directory.mkdir()
        (directory / "log.csv").write_text("epoch,loss,val_loss\n9,9,9\n")
        fit(directory, append=append)
        lines = (directory / "log.csv").read_text().splitlines()
        assert len(lines) == (6 if append else 5)
        assert lines[0] == "epoch,loss,val_loss"
        assert lines[1].startswith("9,9,9" if append else "0,")
