"""procsv.keras.BackupAndRestore without `procsv launch` resumes fits, leaves other things alone and
refuses what it cannot do.
"""

from __future__ import annotations

import copy
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import procsv
from procsv.base.errors import UserError
from procsv.training.keras import backup, private
from procsv.training.keras.progress import FitKind, FitNumbers, FitProgress, Series
from procsv.training.snapshots.training_run import FINAL_SAVE_S_MAX
from tests.support.launched import environment
from tests.support.naming import Naming

X = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
Y = X.sum(1, keepdims=True)


class Interrupted(Exception):
    """A program that ends in the middle of a fit."""


class Interrupt(keras.callbacks.Callback):
    """Raises after that many batches."""

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
def _programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make each fit of a test the first one of a program."""
    monkeypatch.setattr(backup, "numbers", _Forgetful())


class _Forgetful(FitNumbers):
    def begin_fit(self, directory: str, kind: FitKind | None) -> Series:
        series = Series()
        series.begin_fit(kind)
        return series


def fit(
    directory: Path,
    after: int = 0,
    units: int = 8,
    epochs: int = 3,
    batch_size: int = 16,
    others: Sequence[Any] = (),
    **options: Any,
) -> tuple[Any, Any]:
    keras.backend.clear_session()
    keras.utils.set_random_seed(3)
    layers = [keras.Input((4,)), keras.layers.Dense(units), keras.layers.Dropout(0.3), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile("adam", "mse", jit_compile=False)
    ours = procsv.keras.BackupAndRestore(directory, **{"save_freq": 1, "delete_checkpoint": False, **options})
    callbacks = [*others, Interrupt(after), ours]
    history = model.fit(X, Y, epochs=epochs, batch_size=batch_size, verbose=0, callbacks=callbacks)
    return model, history


def interrupted(directory: Path, after: int, **options: Any) -> None:
    with pytest.raises(Interrupted):
        fit(directory, after, **options)
    _end_run()


def _end_run() -> None:
    """Do what the end of the program does."""
    from procsv.training.keras import hooks

    hooks.abandon_all()


def digest(model: Any, history: Any) -> tuple[list[bytes], Any]:
    variables = [*model.variables, *model.optimizer.variables]
    return [np.asarray(variable).tobytes() for variable in variables], history.history


class Average(keras.callbacks.Callback):
    """Averages the weights into a second model that it makes when the fit begins, and counts in a variable."""

    made: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.count = tf.Variable(0.0)

    def on_train_begin(self, logs: Any = None) -> None:
        self.average = keras.models.clone_model(self.model)
        Average.made = self.average

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.count.assign_add(1.0)
        for one, other in zip(self.average.weights, self.model.weights, strict=True):
            one.assign(one + (other - one) / self.count)


def average(directory: Path, after: int = 0) -> list[bytes]:
    fit(directory, after, others=[Average()])
    return [np.asarray(one).tobytes() for one in Average.made.weights]


def test_a_callbacks_second_model_and_variables_continue_after_a_restart(tmp_path: Path) -> None:
    wanted = average(tmp_path / "alone")
    with pytest.raises(Interrupted):
        average(tmp_path / "run", 6)
    _end_run()
    assert average(tmp_path / "run") == wanted


def test_a_state_without_the_variables_of_a_callback_is_restored_and_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(FitProgress, "find_variables", lambda _: {})
    with pytest.raises(Interrupted):
        average(tmp_path / "run", 6)
    monkeypatch.undo()
    monkeypatch.setattr(backup, "numbers", _Forgetful())
    _end_run()
    model, _ = fit(tmp_path / "run", others=[Average()])
    assert int(np.asarray(model.optimizer.iterations)) == 12
    assert "Average.average, Average.count" in caplog.text


def test_a_state_with_variables_that_the_callback_no_longer_has_is_restored_and_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(Interrupted):
        average(tmp_path / "run", 6)
    _end_run()
    monkeypatch.setattr(Average, "on_train_begin", lambda self, logs=None: None)
    monkeypatch.setattr(Average, "on_train_batch_end", lambda self, batch, logs=None: None)
    model, _ = fit(tmp_path / "run", others=[Average()])
    assert int(np.asarray(model.optimizer.iterations)) == 12
    assert "Average.average" in caplog.text
    assert "Average.count" not in caplog.text


@pytest.mark.long
def test_an_interrupted_fit_ends_as_an_undisturbed_one(tmp_path: Path) -> None:
    wanted = digest(*fit(tmp_path / "alone"))
    interrupted(tmp_path / "run", 6)
    assert digest(*fit(tmp_path / "run")) == wanted


def test_the_backup_is_a_checkpoint_that_tensorflow_reads(tmp_path: Path) -> None:
    model, _ = fit(tmp_path / "run")
    other = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dropout(0.3), keras.layers.Dense(1)]
    )
    other.compile("adam", "mse")
    other.optimizer.build(other.trainable_variables)
    path = tf.train.latest_checkpoint(str(tmp_path / "run"))
    tf.train.Checkpoint(model=other, optimizer=other.optimizer).read(path).expect_partial()
    assert [w.tobytes() for w in other.get_weights()] == [w.tobytes() for w in model.get_weights()]
    assert int(np.asarray(other.optimizer.iterations)) == 12


@pytest.mark.long
def test_a_finished_fit_is_not_trained_again_and_one_with_more_epochs_continues(tmp_path: Path) -> None:
    wanted = digest(*fit(tmp_path / "run"))
    model, history = fit(tmp_path / "run", after=1)  # a single batch would raise
    assert digest(model, history) == wanted
    model, history = fit(tmp_path / "run", epochs=5)
    assert history.epoch == [0, 1, 2, 3, 4]
    assert int(np.asarray(model.optimizer.iterations)) == 20


@pytest.mark.long
def test_a_finished_fits_backups_are_deleted_as_keras_does(tmp_path: Path) -> None:
    fit(tmp_path / "run", delete_checkpoint=True)
    assert not (tmp_path / "run").exists()
    fit(tmp_path / "run", epochs=1)
    (tmp_path / "run" / "notes.txt").write_text("mine")
    fit(tmp_path / "run", delete_checkpoint=True)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["notes.txt", "procsv"]


def test_a_fit_without_the_callback_is_keras_own_and_one_with_false_is_off(tmp_path: Path) -> None:
    fit(tmp_path / "run", save_freq=False)
    assert not (tmp_path / "run" / "checkpoint").exists()
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    assert len(model.fit(X, Y, epochs=2, verbose=0).epoch) == 2


@pytest.mark.long
def test_without_its_position_in_the_data_an_epoch_starts_over(tmp_path: Path) -> None:
    interrupted(tmp_path / "run", 6)
    model, history = fit(tmp_path / "run", data="none")
    assert history.epoch == [0, 1, 2]
    assert int(np.asarray(model.optimizer.iterations)) == 6 - 1 + 8  # the batch that raised did not complete


def test_a_search_can_copy_the_callback_for_each_of_its_fits(tmp_path: Path) -> None:
    ours = procsv.keras.BackupAndRestore(tmp_path, delete_checkpoint=False)
    for one in (copy.deepcopy(ours), copy.deepcopy([ours])[0]):
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", jit_compile=False)
        model.fit(X, Y, verbose=0, callbacks=[one])
        assert one is not ours
    assert tf.train.latest_checkpoint(str(tmp_path))


def test_the_callback_is_a_subclass_of_keras_own(tmp_path: Path) -> None:
    assert isinstance(procsv.keras.BackupAndRestore(tmp_path), keras.callbacks.BackupAndRestore)


@pytest.mark.long
def test_a_fit_of_another_model_starts_over_and_the_change_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    interrupted(tmp_path / "run", 6)
    model, history = fit(tmp_path / "run", units=9)
    assert history.epoch == [0, 1, 2]
    assert int(np.asarray(model.optimizer.iterations)) == 12
    assert "(Dense (layer 3) units: 8 then, 9 now)" in capfd.readouterr().err


class Counting(keras.losses.Loss):
    """Counts the batches and moves a center with each."""

    def __init__(self) -> None:
        super().__init__()
        self.count, self.center = tf.Variable(0.0), tf.Variable(tf.zeros(2000))

    def call(self, wanted: Any, found: Any) -> Any:
        self.center.assign(0.9 * self.center + tf.reduce_mean(found))
        return tf.square(wanted - found) / self.count.assign_add(1.0) + self.center[0] * found


class TwoOptimizers(keras.Model):
    """Keeps its optimizers in a list, where neither Keras nor TensorFlow looks for them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = keras.layers.Dense(8), keras.layers.Dense(1)
        self.both, self.measure = [keras.optimizers.Adam(), keras.optimizers.Adam(1e-2)], Counting()

    def call(self, inputs: Any) -> Any:
        return self.last(self.first(inputs))

    def train_step(self, data: Any) -> Any:
        with tf.GradientTape(persistent=True) as tape:
            loss = self.measure(data[1], self(data[0]))
        for optimizer, layer in zip(self.both, (self.first, self.last), strict=True):
            weights = layer.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


@pytest.mark.long
def test_what_a_step_counts_in_beside_model_and_optimizer_is_part_of_the_state(tmp_path: Path) -> None:
    def train(directory: Path, after: int = 0) -> list[bytes]:
        keras.backend.clear_session()
        keras.utils.set_random_seed(3)
        model = TwoOptimizers()
        model.compile(jit_compile=False)
        ours = procsv.keras.BackupAndRestore(directory, save_freq=1, delete_checkpoint=False)
        model.fit(X, Y, epochs=3, batch_size=16, verbose=0, callbacks=[Interrupt(after), ours])
        of_optimizers = [variable for one in model.both for variable in one.variables]
        found = [*model.variables, *of_optimizers, model.measure.count, model.measure.center]
        return [np.asarray(variable).tobytes() for variable in found]

    wanted = train(tmp_path / "alone")
    for after in (6, 1):
        with pytest.raises(Interrupted):
            train(tmp_path / "run", after)
        _end_run()
    assert train(tmp_path / "run") == wanted


# -- refusals --------------------------------------------------------------------------------------------------
CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "another batch size": ({"batch_size": 8}, "4 then, 8 now"),
}


@pytest.mark.long
@pytest.mark.parametrize("change", CHANGES)
def test_data_that_does_not_fit_the_state_is_refused_and_nothing_is_overwritten(tmp_path: Path, change: str) -> None:
    wanted = digest(*fit(tmp_path / "alone"))
    interrupted(tmp_path / "run", 6)
    options, said = CHANGES[change]
    before = sorted(path.name for path in (tmp_path / "run").glob("backup-*"))
    with pytest.raises(UserError, match=said):
        fit(tmp_path / "run", **options)
    assert sorted(path.name for path in (tmp_path / "run").glob("backup-*")) == before
    assert digest(*fit(tmp_path / "run")) == wanted


def test_other_callbacks_are_refused(tmp_path: Path) -> None:
    interrupted(tmp_path / "run", 6)
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dropout(0.3), keras.layers.Dense(1)]
    )
    model.compile("adam", "mse")
    ours = procsv.keras.BackupAndRestore(tmp_path / "run")
    with pytest.raises(UserError, match=r"the callbacks have changed.*Interrupt, History then, History now"):
        model.fit(X, Y, epochs=3, batch_size=16, verbose=0, callbacks=[ours])


def test_a_directory_with_other_checkpoints_is_refused(tmp_path: Path) -> None:
    tf.train.Checkpoint(v=tf.Variable(1.0)).save(str(tmp_path / "run" / "backup"))
    with pytest.raises(UserError, match=re.escape(str(tmp_path / "run"))):
        fit(tmp_path / "run")


BAD: list[tuple[Callable[[Path], Any], type[Exception], str]] = [
    (lambda _: procsv.keras.BackupAndRestore(), UserError, "name the directory"),
    (lambda _: procsv.keras.BackupAndRestore("gs://bucket/run"), UserError, "gs:"),
    (lambda _: procsv.keras.BackupAndRestore(""), ValueError, "`backup_dir`"),
    (lambda path: procsv.keras.BackupAndRestore(path, "hourly"), ValueError, "`save_freq`"),
    (lambda path: procsv.keras.BackupAndRestore(path, data="all"), ValueError, "data is 'all'"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("make", "kind", "said"), BAD)
def test_wrong_arguments_are_refused_in_words(
    make: Callable[[Path], Any], kind: type[Exception], said: str, tmp_path: Path
) -> None:
    with pytest.raises(kind, match=said):
        make(tmp_path)


def test_a_distribution_strategy_is_refused_in_words(tmp_path: Path) -> None:
    with tf.distribute.experimental.CentralStorageStrategy(["/cpu:0"]).scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    with pytest.raises(UserError, match="CentralStorageStrategy"):
        model.fit(X, Y, verbose=0, callbacks=[procsv.keras.BackupAndRestore(tmp_path)])


# -- Keras' private names ----------------------------------------------------------------------------------------
def test_a_keras_that_lacks_a_needed_feature_is_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert private.missing == []
    monkeypatch.setattr(private, "missing", ["TFEpochIterator._enumerate_iterator"])
    with pytest.raises(UserError, match=r"lacks TFEpochIterator\._enumerate_iterator: use keras\.callbacks"):
        procsv.keras.BackupAndRestore(tmp_path)


@pytest.mark.parametrize("name", ["CallbackList", "EpochIterator", "Trainer", "get_global_attribute", "eager_context"])
def test_each_missing_private_name_is_reported(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private, name, None)
    assert private.find_missing()


def test_importing_procsv_imports_no_keras() -> None:
    code = "import sys, procsv; assert not {'keras', 'tensorflow'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# -- programs that end -------------------------------------------------------------------------------------------
LEFT_OPEN = """
import os, shutil, sys
import keras, numpy, procsv

class Fail(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 2:
            raise RuntimeError

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse", jit_compile=False)
try:
    data = numpy.zeros((64, 4), "float32"), numpy.zeros((64, 1), "float32")
    model.fit(*data, batch_size=8, verbose=0, callbacks=[procsv.keras.BackupAndRestore(sys.argv[1]), Fail()])
except RuntimeError:
    while os.path.exists(sys.argv[1]):  # the watchdog may be about to write something there
        shutil.rmtree(sys.argv[1], ignore_errors=True)
"""


@pytest.mark.long
def test_a_fit_left_open_whose_directory_is_deleted_keeps_neither_program_nor_memory_alive(tmp_path: Path) -> None:
    directory = tmp_path / "backup"
    begun_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", LEFT_OPEN, str(directory)],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    ours = [line for line in done.stderr.splitlines() if line.startswith("procsv: ")]
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - begun_s < FINAL_SAVE_S_MAX / 2
    assert ours[-1] == Naming("procsv: gave up: ", f": {directory} ")
    assert not any("again" in line or "report" in line for line in ours), "nothing can be written there"
    assert not directory.exists()
    # Its memory would be left: conftest.py fails a test that leaves any.
