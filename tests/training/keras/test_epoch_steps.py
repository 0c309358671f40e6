"""A resumed epoch gives Keras' fit the rest of what Keras' own iterator would have given."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from procsv.training.keras import epochs as keras_epochs
from procsv.training.keras import private
from procsv.training.keras.epochs import Epochs, make_step

X = np.arange(48, dtype="float32").reshape(24, 2)


def epochs_of(steps_per_epoch: int | None, size: int, is_known: bool) -> Epochs:
    """Return epochs over 12 batches."""
    data = tf.data.Dataset.from_tensor_slices((X, X))
    data = data if is_known else data.filter(lambda a, b: True)
    strategy = tf.distribute.get_strategy()
    return Epochs(
        private.EpochIterator(
            x=data.batch(2), steps_per_epoch=steps_per_epoch, steps_per_execution=size, distribute_strategy=strategy
        )
    )


def by_keras(epochs: Epochs) -> Iterator[Any]:
    """Return the steps that Keras itself makes."""
    return iter(getattr(epochs.keras_iterator, private.ENUMERATES)())


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize(("steps_per_epoch", "is_known"), [(None, True), (9, True), (None, False)])
def test_the_rest_of_an_epoch_is_what_keras_gives(steps_per_epoch: int | None, size: int, is_known: bool) -> None:
    whole, rest = epochs_of(steps_per_epoch, size, is_known), epochs_of(steps_per_epoch, size, is_known)
    count = 12 if steps_per_epoch is None else steps_per_epoch
    wanted = [step[:-1] for step in islice(by_keras(whole), count // size)]
    taken = whole.last_batch_of(wanted[1][-1])  # two calls were made
    rest.set_place(steps_seen=2 * size)
    current = iter(rest.dataset)
    left = [step[:-1] for step in islice(rest.steps_after(taken, current), count // size - 2)]
    assert left == wanted[2:]


def test_a_step_is_divided_as_this_keras_does() -> None:
    theirs = next(by_keras(epochs_of(None, 3, True)))
    ours = make_step(0, 3, None)
    assert theirs[:-1] == ours[:-1]


@pytest.mark.parametrize(
    ("has_last", "keeps", "num_batches", "last"),
    [(True, True, 12, 3), (False, True, None, 6), (False, False, 12, 6), (False, False, None, 3)],
    ids=["3.11", "3.7", "3.3", "3.3, unknown size"],
)
def test_the_batch_that_keras_reports_at_the_end_of_a_call_is_understood(
    has_last: bool, keeps: bool, num_batches: int | None, last: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keras_epochs, "HAS_LAST_BATCH", has_last)
    monkeypatch.setattr(keras_epochs, "KEEPS_ITERATORS", keeps)
    epochs = Epochs(SimpleNamespace(num_batches=num_batches, steps_per_execution=4))
    assert epochs.last_batch_of(3) == last


def test_a_keras_that_iterates_an_epoch_differently_is_recognized_as_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert private.ENUMERATES

    class Another:
        def _enumerate_iterator(self) -> Any:
            yield from range(3)

    monkeypatch.setattr(private, "EpochIterator", Another)
    assert private.find_enumerates() == ""
    monkeypatch.setattr(private, "ENUMERATES", "")
    assert "TFEpochIterator._enumerate_iterator" in private.find_missing()
