"""Steps of an epoch that is resumed in its middle, as Keras' own EpochIterator makes those of a whole one.

Called by position.py, with the epoch's iterator at its place.  Keras' way has changed twice; which one this Keras has is found by
private_epochs.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from procsv.training.keras import private_epochs


def steps_after(epochs: Any, last_batch: int, current: Any) -> Iterator[Any]:
    """What an EpochIterator gives to `fit` after `last_batch`; -1: all of the epoch."""
    way = _as_from_3_7 if private_epochs.KEEPS_ITERATORS else _as_until_3_6
    yield from way(epochs, last_batch + 1, current)
    epochs.data_adapter.on_epoch_end()


def _as_from_3_7(epochs: Any, first: int, current: Any) -> Iterator[Any]:
    """With an iterator that outlives its epoch, even where the next one begins with another."""
    size = epochs.steps_per_execution
    private_epochs.set_place(epochs, current_iterator=current)
    if first == 0 and epochs.steps_per_epoch is None:  # between two epochs: the last iterator is not used any more
        current = iter(private_epochs.dataset_of(epochs))
        private_epochs.set_place(epochs, current_iterator=current, steps_seen=0)
    steps_per_epoch = epochs.steps_per_epoch or epochs._num_batches or -1
    if steps_per_epoch > 0:
        for step in range(first, steps_per_epoch, size):
            if epochs._num_batches and epochs._steps_seen >= epochs._num_batches:
                if epochs.steps_per_epoch:
                    epochs._interrupted_warning()
                break
            private_epochs.set_place(epochs, steps_seen=epochs._steps_seen + size)
            yield private_epochs.make_step(step, size, epochs._current_iterator)
        if epochs._num_batches and epochs._steps_seen >= epochs._num_batches:
            again = iter(private_epochs.dataset_of(epochs))
            private_epochs.set_place(epochs, current_iterator=again, steps_seen=0)
        return
    private_epochs.set_place(epochs, current_iterator=None)  # this epoch's is nobody's afterwards
    step = first
    while True:
        private_epochs.set_place(epochs, steps_seen=step + size)
        yield private_epochs.make_step(step, size, current)
        step += size


def _as_until_3_6(epochs: Any, first: int, current: Any) -> Iterator[Any]:
    """With an iterator that outlives its epoch only where the program says how many steps one has."""
    size = epochs.steps_per_execution
    private_epochs.set_place(epochs, current_iterator=current if epochs.steps_per_epoch else None)
    if epochs.num_batches:
        for step in range(first, epochs.num_batches, size):
            yield step, current
        return
    last = first - 1
    while True:
        last += size
        private_epochs.set_place(epochs, steps_seen=last + 1)
        yield last, current
