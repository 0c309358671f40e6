"""A fit interrupted at any batch takes each batch once and in the order of an undisturbed fit,
random layers included.
"""

from __future__ import annotations

import contextlib
import random
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import procsv
from procsv.base.errors import UserError
from procsv.training.keras import backup, hooks, position, private
from procsv.training.keras.epochs import Epochs, captured_variables
from procsv.training.keras.position import DataPosition
from procsv.training.keras.progress import FitNumbers

BATCHES = 5


class Data(keras.utils.PyDataset):
    """Batch n holds the number n."""

    def __len__(self) -> int:
        return BATCHES

    def __getitem__(self, index: int) -> Any:
        return np.full((4, 2), index, "float32"), np.full((4, 1), index, "float32")


class ShufflesItself(Data):
    """Shuffles in place: each order follows from the previous one."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.order = list(range(BATCHES))

    def on_epoch_end(self) -> None:
        random.shuffle(self.order)

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(self.order[index])


class ShufflesFirst(ShufflesItself):
    """Shuffles in place before each epoch."""

    def on_epoch_begin(self) -> None:
        random.shuffle(self.order)

    def on_epoch_end(self) -> None: ...


class DrawsItself(Data):
    """Adds a hundred times something to a batch's number, drawn from a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(4)

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return x + 100 * self.rng.integers(1000), y


def drawn() -> Any:
    """Draw batches from a generator that several passes share."""
    rng = random.Random(4)

    def draw() -> Iterator[Any]:
        for number in range(BATCHES):
            yield np.full((4, 2), number + 100 * rng.randrange(1000), "float32"), np.zeros((4, 1), "float32")

    batches = tf.data.Dataset.from_generator(draw, output_signature=(tf.TensorSpec((4, 2)), tf.TensorSpec((4, 1))))
    return batches.apply(tf.data.experimental.assert_cardinality(BATCHES))


def augmented() -> Any:
    """Map with a random layer that adds a hundred times something to a batch's number."""
    generator = keras.random.SeedGenerator(7)

    def add(x: Any, y: Any) -> Any:
        return x + 100 * tf.cast(keras.random.randint((), 0, 1000, seed=generator), tf.float32), y

    numbers = tf.data.Dataset.range(BATCHES).shuffle(BATCHES, seed=1)
    batches = numbers.map(lambda n: (tf.fill([4, 2], tf.cast(n, tf.float32)), tf.zeros([4, 1])))
    return batches.map(add).prefetch(2)


def cached() -> Any:
    """Cache the first order and the first random numbers: each epoch takes these."""
    return augmented().cache().prefetch(2)


def repeated() -> Any:
    """Repeat a shuffle: the fit takes fewer batches of it than a pass has."""
    numbers = tf.data.Dataset.range(BATCHES).shuffle(BATCHES, seed=1).repeat()
    return numbers.map(lambda n: (tf.fill([4, 2], tf.cast(n, tf.float32)), tf.zeros([4, 1])))


def split() -> Any:
    """Split a shuffle: the training and the evaluations each take an order of it in turn."""
    numbers = tf.data.Dataset.range(2 * BATCHES).shuffle(2 * BATCHES, seed=1)
    batches = numbers.map(lambda n: (tf.fill([4, 2], tf.cast(n, tf.float32)), tf.zeros([4, 1])))
    return batches.skip(BATCHES), batches.take(BATCHES)


class Interrupted(Exception):
    """A program that ends in the middle of a fit."""


class Taken(keras.callbacks.Callback):
    """Records each trained batch and raises after that many."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.left, self.taken = after, list[int]()

    def get_state(self) -> list[int]:
        """Return the trained batches, so that those of an interrupted attempt after its last
        snapshot do not count.
        """
        return self.taken

    def set_state(self, state: list[int]) -> None:
        self.taken = list(state)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        random.random()  # callbacks draw, too
        self.taken.append(round(logs["at"]))
        self.left -= 1
        if self.left == 0:
            raise Interrupted


class Model(keras.Model):
    """Its logs tell which batch it has trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, inputs: Any) -> Any:
        return self.dense(inputs)

    def train_step(self, data: Any) -> Any:
        return {**super().train_step(data), "at": data[0][0, 0]}

    def test_step(self, data: Any) -> Any:
        return {**super().test_step(data), "at": data[0][0, 0]}


def fit(directory: Path, data: Any, shuffle: bool, *after: int, steps: int | None = None) -> list[int]:
    """Run one start of a program, with a fit for each of `after`. Return the batches on which their states were trained."""
    backup.numbers = FitNumbers()
    keras.backend.clear_session()
    keras.utils.set_random_seed(3)
    batches, found = data(), list[int]()
    with contextlib.suppress(Interrupted):
        for count in after:
            model, taken = Model(), Taken(count)
            model.compile("sgd", "mse", jit_compile=False)
            ours = procsv.keras.BackupAndRestore(directory, save_freq=1, delete_checkpoint=False)
            try:
                model.fit(batches, epochs=4, verbose=0, shuffle=shuffle, steps_per_epoch=steps, callbacks=[taken, ours])
            finally:
                found += taken.taken
    hooks.abandon_all()
    return found


KINDS: dict[str, tuple[Any, bool]] = {
    "shuffled by fit": (Data, True),
    "shuffled by fit, two threads": (lambda: Data(workers=2), True),
    "shuffles itself": (ShufflesItself, False),
    "shuffles itself first": (ShufflesFirst, False),
    "a random layer in map": (augmented, False),
    "draws from a generator of its own": (DrawsItself, False),
    "a function that draws from a generator": (drawn, False),
    "a cache of random elements": (cached, False),
}


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_every_batch_is_taken_once_in_the_order_of_an_undisturbed_fit(kind: str, tmp_path: Path) -> None:
    data, shuffle = KINDS[kind]
    wanted = fit(tmp_path / "alone", data, shuffle, 0)
    for epoch in range(4):
        assert sorted(batch % 100 for batch in wanted[epoch * BATCHES :][:BATCHES]) == list(range(BATCHES))
    for after in (5, 2, 6):  # at the last batch, in the middle, twice in an epoch
        fit(tmp_path / "run", data, shuffle, after)
    assert fit(tmp_path / "run", data, shuffle, 0) == wanted


SHARED: dict[str, tuple[Any, int | None]] = {
    "shuffled, with a random layer": (augmented, None),
    "a repeated shuffle": (repeated, 4),
    "shuffles itself": (ShufflesItself, None),
    "a function that draws from a generator": (drawn, None),
    "a cache of random elements": (cached, None),
}


@pytest.mark.long
@pytest.mark.parametrize("kind", SHARED)
def test_a_second_fit_on_the_same_data_goes_on_where_the_first_one_had_left_them(kind: str, tmp_path: Path) -> None:
    data, steps = SHARED[kind]
    wanted = fit(tmp_path / "alone", data, False, 0, 0, steps=steps)
    for after in (1, 6):
        fit(tmp_path / "run", data, False, 0, after, steps=steps)
    assert fit(tmp_path / "run", data, False, 0, 0, steps=steps) == wanted


@pytest.mark.long
def test_a_shuffle_that_training_and_evaluations_share_goes_on_as_in_an_undisturbed_fit(tmp_path: Path) -> None:
    def evaluate(directory: Path, after: int) -> Any:
        backup.numbers = FitNumbers()
        keras.backend.clear_session()
        keras.utils.set_random_seed(3)
        model, taken, (batches, validation) = Model(), Taken(after), split()
        model.compile("sgd", "mse", jit_compile=False)
        ours = procsv.keras.BackupAndRestore(directory, save_freq=1, delete_checkpoint=False)
        options: Any = {"validation_data": validation, "shuffle": False, "callbacks": [taken, ours]}
        with contextlib.suppress(Interrupted):
            return model.fit(batches, epochs=6, verbose=0, **options).history["val_at"], taken.taken
        hooks.abandon_all()
        return None

    wanted = evaluate(tmp_path / "alone", 0)
    for after in (7, 3, 10):
        evaluate(tmp_path / "run", after)
    assert evaluate(tmp_path / "run", 0) == wanted


def test_a_batch_size_that_leaves_the_number_of_batches_is_refused_as_another_place() -> None:
    def place(size: int) -> Any:
        arrays = np.zeros((40, 2), "float32")
        epochs = private.EpochIterator(
            x=arrays, batch_size=size, distribute_strategy=tf.distribute.get_strategy(), steps_per_execution=1
        )
        return DataPosition(Epochs(epochs), "replay")

    before, now = place(8), place(9)
    assert before.shape == now.shape
    before.check_data(place(8).read_position())
    with pytest.raises(UserError, match="batch size: 8 then, 9 now"):
        now.check_data(before.read_position())


def test_a_replay_reports_its_duration_and_each_batch_counts_as_progress(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(position, "TELL_AFTER_S", 0.0)
    data = tf.data.Dataset.range(40).map(lambda n: (n, n)).repeat().batch(2)
    epochs = private.EpochIterator(
        x=data, steps_per_epoch=10, steps_per_execution=1, distribute_strategy=tf.distribute.get_strategy()
    )
    place, replayed = position.DataPosition(Epochs(epochs), "replay"), list[int]()
    place.on_replayed = lambda: replayed.append(1)
    saved = position.Saved([14], 14, None, True, place.shape, began=place.read_position().began)
    place.go_to(saved, 3)
    next(place.enumerate_steps(getattr(epochs, private.ENUMERATES)))
    assert len(replayed) == 14
    said = capfd.readouterr().err
    told = r"procsv: replaying 13 batches, about [\d.]+ s, .* several epochs"
    assert re.search(told, said)
    assert re.search(r'data="none"\) .*data="iterator" ', said)
    assert said.count("replaying") == 1


def test_a_pipeline_keeps_its_counters_but_not_the_tables_it_reads() -> None:
    counter, table = tf.Variable(0), tf.Variable(tf.zeros((1000, 8)))
    data = tf.data.Dataset.range(4).map(lambda n: (counter.assign_add(1), table[n]))
    assert [one is counter for one in captured_variables(data.batch(2))] == [True]


def test_a_large_variable_that_a_pipeline_writes_is_reported_once_as_not_kept(
    capfd: pytest.CaptureFixture[str],
) -> None:
    rows = {name: tf.Variable(tf.zeros((1000, 8)), name=name) for name in ("whole", "part", "called", "chosen", "read")}

    def called(n: Any) -> Any:
        rows["called"].scatter_nd_update([[n]], [tf.ones(8)])
        return n

    def choose(n: Any) -> Any:
        return tf.cond(n > 2, lambda: rows["chosen"].assign_add(rows["read"])[0, 0], lambda: tf.constant(0.0))

    def write(n: Any) -> Any:
        rows["part"][0].assign(rows["whole"].assign_add(rows["read"])[n])
        return tf.function(called)(n)

    data = tf.data.Dataset.range(4).map(write).map(choose)
    for _ in range(2):
        epochs = private.EpochIterator(x=data.batch(2), distribute_strategy=tf.distribute.get_strategy())
        position.DataPosition(Epochs(epochs), "replay")
    said = capfd.readouterr().err
    assert said.count("snapshots leave out") == 1
    named = {name for name in rows if f"{name} (31.2 KiB)" in said}
    assert named == {"whole", "part", "called", "chosen"}


def test_a_thread_that_predicts_while_a_fit_begins_does_not_give_the_fit_its_data(tmp_path: Path) -> None:
    other = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])

    class Looking(keras.callbacks.Callback):
        def set_model(self, model: Any) -> None:  # which Keras calls when the data are there already
            super().set_model(model)
            asking = threading.Thread(target=other.predict, args=(np.zeros((4, 2)),), kwargs={"verbose": 0})
            asking.start()
            asking.join()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            made.append(list(hooks.fit_of(self.model)._progress.position.made))

    backup.numbers, made = FitNumbers(), list[list[int]]()
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    model.fit(Data(), verbose=0, callbacks=[Looking(), procsv.keras.BackupAndRestore(tmp_path / "run")])
    assert made == [[number] for number in range(1, BATCHES + 1)]
