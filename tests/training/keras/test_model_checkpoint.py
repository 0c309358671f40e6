"""procsv.keras.ModelCheckpoint writes the same files as Keras' own in the same fit, byte for byte."""

from __future__ import annotations

import filecmp
import logging
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import procsv
from procsv.training.keras import hooks, model_checkpoint

# Keras' own saving warns with a newer NumPy.
pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.skipif(not model_checkpoint.knows_files, reason="an older Keras, which writes its files itself"),
]

X = np.random.default_rng(0).normal(size=(64, 6)).astype("float32")
Y = X.sum(1, keepdims=True)
SUFFIXES = (".weights.h5", ".keras")
WAYS: dict[str, dict[str, Any]] = {
    "batch{batch}": {"save_freq": 3},
    "best{epoch}": {"save_best_only": True, "monitor": "loss", "mode": "max"},
}


class OwnSaving(keras.layers.Dense):
    """A layer that decides what is saved of it."""

    def save_own_variables(self, store: Any) -> None:
        store["the kernel"] = self.kernel
        store["the bias"] = self.bias


@pytest.fixture(autouse=True)
def _end_run() -> Iterator[None]:
    """End the run of a fit that has raised."""
    yield
    hooks.abandon_all()


def dense() -> Any:
    layers: list[Any] = [keras.layers.Dense(16, "relu"), keras.layers.BatchNormalization(), keras.layers.Dropout(0.2)]
    return keras.Sequential([keras.Input((6,)), *layers, keras.layers.Dense(1)])


def functional() -> Any:
    inputs, shared = keras.Input((6,)), keras.layers.Dense(6)
    twice = keras.layers.add([shared(shared(inputs)), inputs])
    sequence = keras.layers.Reshape((3, 2))(twice)
    found = keras.layers.Bidirectional(keras.layers.GRU(4))(sequence)
    return keras.Model(inputs, keras.layers.Dense(1)(found))


def embedding() -> Any:
    layers: list[Any] = [keras.layers.Discretization([-1.0, 0.0, 1.0]), keras.layers.Embedding(4, 3)]
    return keras.Sequential([keras.Input((6,)), *layers, keras.layers.Flatten(), keras.layers.Dense(1)])


def mixed() -> Any:
    layers: list[Any] = [keras.layers.Dense(8, dtype="mixed_bfloat16"), keras.layers.Dense(8, dtype="bfloat16")]
    return keras.Sequential([keras.Input((6,)), *layers, keras.layers.Dense(1, dtype="float32")])


class Subclassed(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.parts = {"a": keras.layers.Dense(4), "b": [keras.layers.Dense(2), keras.layers.Dense(1)]}

    def call(self, inputs: Any) -> Any:
        for layer in (self.parts["a"], *self.parts["b"]):
            inputs = layer(inputs)
        return inputs


def own_saving() -> Any:
    return keras.Sequential([keras.Input((6,)), OwnSaving(4), keras.layers.Dense(1)])


class Slower(keras.callbacks.Callback):
    """Changes the learning rate, which is in the configuration."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = 0.01 / (epoch + 1)


def callbacks_in(directory: Path, ours: Any, theirs: Any, **options: Any) -> list[Any]:
    return [
        kind(f"{directory}/{name}-{{epoch}}{suffix}", save_weights_only=suffix == ".weights.h5", **options)
        for suffix in SUFFIXES
        for kind, name in ((ours, "ours"), (theirs, "theirs"))
    ]


def assert_same(directory: Path, epoch: int) -> None:
    ours, theirs = (directory / f"{name}-{epoch}.weights.h5" for name in ("ours", "theirs"))
    assert filecmp.cmp(ours, theirs, shallow=False)
    with (
        zipfile.ZipFile(directory / f"ours-{epoch}.keras") as a,
        zipfile.ZipFile(directory / f"theirs-{epoch}.keras") as b,
    ):
        assert a.testzip() is None
        assert a.namelist() == b.namelist()
        for name in set(a.namelist()) - {"metadata.json"}:  # which contains the time
            assert a.read(name) == b.read(name), name


@pytest.mark.long
@pytest.mark.parametrize("build", [dense, functional, embedding, mixed, Subclassed, own_saving])
def test_the_files_are_the_ones_that_keras_would_write(
    build: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keras.backend.clear_session()
    keras.utils.set_random_seed(2)
    model = build()
    optimizer = keras.optimizers.AdamW(0.01, use_ema=True) if build is dense else keras.optimizers.SGD(0.01, 0.9)
    model.compile(optimizer, "mse", metrics=["mae"], jit_compile=False)
    found = callbacks_in(tmp_path, procsv.keras.ModelCheckpoint, keras.callbacks.ModelCheckpoint)
    with caplog.at_level(logging.WARNING, "procsv"):
        model.fit(
            X, Y, epochs=4, verbose=0, callbacks=[*found, Slower(), procsv.keras.BackupAndRestore(tmp_path / "run")]
        )
    for epoch in range(1, 5):
        assert_same(tmp_path, epoch)
    by_keras = [one.getMessage() for one in caplog.records if "by Keras " in one.getMessage()]
    assert len(by_keras) == (2 if build is own_saving else 0), by_keras  # one for each callback
    if build is dense:
        again, theirs = (keras.models.load_model(tmp_path / f"{name}-4.keras") for name in ("ours", "theirs"))
        for one, other in zip(again.weights, theirs.weights, strict=True):
            np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
    assert not list(tmp_path.glob(".procsv-*"))


def test_keras_writes_the_files_of_an_unsupervised_fit_whole_or_not_at_all(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = dense()
    model.compile("sgd", "mse", jit_compile=False)
    found = callbacks_in(tmp_path, procsv.keras.ModelCheckpoint, keras.callbacks.ModelCheckpoint)
    with caplog.at_level(logging.WARNING, "procsv"):
        model.fit(X, Y, epochs=2, verbose=0, callbacks=found)
    for epoch in (1, 2):
        assert_same(tmp_path, epoch)
    assert caplog.text.count("protect this fit") == 2  # once for each callback


def test_a_path_that_is_a_directory_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "model.keras").mkdir()
    model = dense()
    model.compile("sgd", "mse", jit_compile=False)
    with pytest.raises(OSError, match=r"model\.keras is a directory"):
        model.fit(X, Y, verbose=0, callbacks=[procsv.keras.ModelCheckpoint(tmp_path / "model.keras")])


def test_batches_and_the_best_value_are_counted_as_keras_does(tmp_path: Path) -> None:
    model = dense()
    model.compile("sgd", "mse", jit_compile=False)
    kinds = {"ours": procsv.keras.ModelCheckpoint, "theirs": keras.callbacks.ModelCheckpoint}
    found = [
        kind(f"{tmp_path}/{name}-{way}.weights.h5", save_weights_only=True, **options)
        for name, kind in kinds.items()
        for way, options in WAYS.items()
    ]
    model.fit(
        X, Y, batch_size=8, epochs=3, verbose=0, callbacks=[*found, procsv.keras.BackupAndRestore(tmp_path / "r")]
    )
    theirs = sorted(tmp_path.glob("theirs-*"))
    assert len(theirs) >= 4
    for file in theirs:
        assert filecmp.cmp(file, tmp_path / file.name.replace("theirs", "ours"), shallow=False), file.name


class Reads(keras.callbacks.Callback):
    """Runs after a ModelCheckpoint and compares its file with the model."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path, self.are_same = path, list[bool]()

    def compare(self) -> None:
        other = keras.models.clone_model(self.model)
        other.load_weights(self.path)
        pairs = zip(self.model.get_weights(), other.get_weights(), strict=True)
        self.are_same.append(all((one == two).all() for one, two in pairs))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.compare()


def test_a_later_callback_finds_the_file_of_this_epoch(tmp_path: Path) -> None:
    keras.utils.set_random_seed(2)
    layers = [keras.Input((6,)), keras.layers.Dense(1000), keras.layers.Dense(2000), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile("sgd", "mse", jit_compile=False)
    path = tmp_path / "last.weights.h5"
    saves, reads = procsv.keras.ModelCheckpoint(path, save_weights_only=True), Reads(path)
    by_batch = procsv.keras.ModelCheckpoint(tmp_path / "batch.weights.h5", save_weights_only=True, save_freq=1)
    at_batch = Reads(tmp_path / "batch.weights.h5")
    of_program = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: at_batch.compare())
    at_batch.set_model(model)
    ours = procsv.keras.BackupAndRestore(tmp_path / "run")
    model.fit(X, Y, epochs=4, verbose=0, callbacks=[saves, reads, by_batch, of_program, ours])
    assert reads.are_same == [True] * 4
    assert at_batch.are_same
    assert all(at_batch.are_same)
