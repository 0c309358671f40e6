"""Private names of Keras' EpochIterator, which goes through the data of a fit."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def dataset_of(iterator: Any) -> Any:
    """What an EpochIterator makes its iterators of."""
    return iterator._get_iterator()


def element_spec(iterator: Any) -> Any:
    """Shapes and types of a batch."""
    spec = iterator._distributed_dataset.element_spec
    return tf.nest.map_structure(lambda one: getattr(one, "_value_specs", (one,))[0], spec)  # of one replica


def evaluation_data(model: Any) -> Any:
    """The EpochIterator of the data that a fit evaluates by, which lives as long as the fit."""
    return getattr(model, "_eval_epoch_iterator", None)


def batch_size(epochs: Any) -> int | None:
    """Of the data that an EpochIterator has; None: not known."""
    told = getattr(epochs.data_adapter, "batch_size", None)
    dataset = None if isinstance(told, int) else epochs._distributed_dataset
    while dataset is not None:
        size = getattr(dataset, "_batch_size", None)
        if size is not None:
            return int(size)
        dataset = getattr(dataset, "_input_dataset", None)
    return told if isinstance(told, int) else None


def set_place(epochs: Any, **place: Any) -> None:
    """Sets Keras' own account of the place in the data: `num_batches`, `current_iterator`, `steps_seen`."""
    for name, value in place.items():
        setattr(epochs, f"_{name}", value)
