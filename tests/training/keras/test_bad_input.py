"""Data, models or files that do not fit the saved state are refused with a helpful sentence, and
nothing is overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import procsv
from procsv.base.errors import UserError
from procsv.training.keras import backup, fit_start, hooks
from procsv.training.keras.file_writer import FileWriter
from procsv.training.keras.fit_start import EndedFits
from procsv.training.keras.progress import FitNumbers
from procsv.training.keras.state import FitState
from tests.support.numpy_state import numpy_plan

pytestmark = pytest.mark.filterwarnings("ignore:Your input ran out of data")

X = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
Y = X.sum(1, keepdims=True)


class Interrupted(Exception):
    """A program that ends in the middle of a fit."""


class Interrupt(keras.callbacks.Callback):
    """Raises after six batches of the first start."""

    def get_state(self) -> None:
        """Return nothing: this callback has no state of the fit."""

    def set_state(self, state: None) -> None: ...

    is_first = True
    seen = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen += 1
        if self.is_first and self.seen == 6:
            raise Interrupted


class Unbuildable(keras.Model):
    """Branches on the values of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, inputs: Any) -> Any:
        return self.dense(inputs) if float(inputs[0, 0]) > -99 else inputs


def dense_model() -> Any:
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(1)])


def of_unknown_size(batches: int) -> Any:
    data = tf.data.Dataset.from_tensor_slices((X[: 16 * batches], Y[: 16 * batches]))
    return data.filter(lambda a, b: True).batch(8)


def generator(batches: int) -> Iterator[Any]:
    for number in range(batches):
        yield X[16 * (number % 4) :][:16], Y[16 * (number % 4) :][:16]


ONCE = generator(9)  # it cannot be started again


def start(directory: Path, data: Any, is_first: bool, model: Any = None, **options: Any) -> Any:
    """Run one start of a program."""
    backup.numbers = FitNumbers()
    keras.backend.clear_session()
    keras.utils.set_random_seed(3)
    model = dense_model() if model is None else model()
    model.compile("adam", "mse", jit_compile=False, run_eagerly=isinstance(model, Unbuildable))
    interrupt = Interrupt()
    interrupt.is_first = is_first
    ours = procsv.keras.BackupAndRestore(directory, save_freq=1, delete_checkpoint=False)
    try:
        return model.fit(data, epochs=3, verbose=0, shuffle=False, callbacks=[interrupt, ours], **options)
    finally:
        hooks.abandon_all()


def spoil(how: Callable[[Path], object], pattern: str) -> Callable[[Path], None]:
    def spoiled(directory: Path) -> None:
        found = list(directory.glob(pattern))
        assert found
        for path in found:
            how(path)

    return spoiled


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


# first data, later data, how the files are damaged, fit options, model, expected message
CASES: dict[str, tuple[Callable[[], Any], Callable[[], Any], Any, dict[str, Any], Any, str]] = {
    "shorter data": (lambda: of_unknown_size(4), lambda: of_unknown_size(1), None, {}, None, r" data .* 2\. "),
    "a generator that goes on": (lambda: ONCE, lambda: ONCE, None, {"steps_per_epoch": 4}, None, r" data .* \d\. "),
    "an unbuilt model": (lambda: of_unknown_size(4), lambda: of_unknown_size(4), None, {}, Unbuildable, r"call model\.build\(input_shape\) before fit"),
    "truncated files": (lambda: of_unknown_size(4), lambda: of_unknown_size(4), spoil(truncate, "backup-*.data-*"), {}, None, "backup"),
    "garbage": (lambda: of_unknown_size(4), lambda: of_unknown_size(4), spoil(lambda p: p.write_bytes(b"x" * 99), "backup-*.index"), {}, None, "backup"),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_what_does_not_fit_the_state_is_refused_in_words_and_nothing_is_overwritten(case: str, tmp_path: Path) -> None:
    first, then, spoiling, options, model, said = CASES[case]
    with pytest.raises(Interrupted):
        start(tmp_path / "run", first(), True, model, **options)
    if spoiling is not None:
        spoiling(tmp_path / "run")
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").glob("backup-*")}
    with pytest.raises(UserError, match=said) as refused:
        start(tmp_path / "run", then(), False, model, **options)
    assert "\n" not in str(refused.value).partition("none of ")[0]
    after = {path.name: path.read_bytes() for path in (tmp_path / "run").rglob("*backup-*") if path.is_file()}
    assert set(before.values()) <= set(after.values())


# -- the ends of earlier fits ------------------------------------------------------------------------------------
def checkpoint_of(directory: Path, name: str, size: int = 1000) -> str:
    return str(tf.train.Checkpoint(v=tf.Variable(tf.ones(size))).write(str(directory / name)))


def test_a_damaged_end_of_an_earlier_fit_is_not_used(tmp_path: Path) -> None:
    ended, path = EndedFits(tmp_path / "fits"), checkpoint_of(tmp_path, "backup-7")
    ended.keep_end("a1", 7, path)
    (tmp_path / "backup-7.data-00000-of-00001").unlink()  # retention
    found = ended.find_end("a1")
    assert found is not None
    assert tf.train.load_checkpoint(found).get_tensor("v/.ATTRIBUTES/VARIABLE_VALUE").sum() == 1000
    assert ended.find_end("a2") is None
    truncate(tmp_path / "fits/fit-000000000007-a1.data-00000-of-00001")
    assert ended.find_end("a1") is None


def test_the_stored_ends_of_fits_take_the_space_of_a_few_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit_start, "SMALL_BYTES", 0)
    ended, path = EndedFits(tmp_path / "fits"), checkpoint_of(tmp_path, "backup-1")
    removed = [ended.keep_end(f"a{number}", number, path) for number in range(8)]
    assert removed == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [ended.find_end(f"a{number}") is not None for number in range(8)] == [False] * 4 + [True] * 4
    assert len(list((tmp_path / "fits").iterdir())) == 8


def test_small_ends_of_fits_are_all_kept(tmp_path: Path) -> None:
    ended, path = EndedFits(tmp_path / "fits"), checkpoint_of(tmp_path, "backup-1")
    assert [ended.keep_end(f"a{number}", number, path) for number in range(30)] == [0] * 30
    assert ended.find_end("a0") is not None


# -- changed models ------------------------------------------------------------------------------------------------
def state_of(units: int, directory: Path) -> FitState:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(units, name="hidden"), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    runtime: Any = None  # this fit writes no files
    return FitState(
        model,
        numpy_plan(directory),
        lambda place: True,
        lambda: {"fit": 1, "callbacks": []},
        lambda: 5,
        lambda _: None,
        lambda: 0,
        FileWriter(runtime),
    )


def test_a_model_of_other_shapes_is_refused_with_its_variables_names_and_the_fix(tmp_path: Path) -> None:
    path = str(state_of(8, tmp_path).tracked.write(str(tmp_path / "backup-5")))
    same = state_of(8, tmp_path)
    same.restore(path)
    with pytest.raises(UserError, match=r"hidden/kernel was \(4, 8\), is \(4, 9\).*--new") as refused:
        state_of(9, tmp_path).restore(path)
    assert "VARIABLE_VALUE" not in str(refused.value)
