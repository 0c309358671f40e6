"""The private names of Keras that this room rests on, looked up once, at import; nothing else here touches them.

`missing` lists those that this Keras lacks, or has in another form: then BackupAndRestore refuses, in words.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import keras

# What Keras' own _enumerate_iterator is made of: position.py goes through an epoch in its place when a fit is resumed.
ENUMERATES_BY = {
    "iter",
    "range",
    "data_adapter",
    "on_epoch_begin",
    "steps_per_epoch",
    "_num_batches",
    "_current_iterator",
    "_get_iterator",
    "_steps_seen",
    "steps_per_execution",
    "_interrupted_warning",
    "on_epoch_end",
}


def _find(module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(f"keras.src.{module}"), name, None)
    except ImportError:
        return None


CallbackList = _find("callbacks.callback_list", "CallbackList")
EpochIterator = (
    _find("backend.tensorflow.trainer", "TFEpochIterator") if keras.backend.backend() == "tensorflow" else None
)
Trainer = _find("trainers.trainer", "Trainer")
get_global_attribute = _find("backend.common.global_state", "get_global_attribute")
eager_context = getattr(importlib.import_module("tensorflow.python.eager.context"), "context", None)

HOOKS = ("on_train_begin", "on_epoch_begin", "on_train_batch_end", "on_train_end")
FIT_NAMES = ("_symbolic_build", "_get_metrics_result_or_logs")


def find_missing() -> list[str]:
    """The names that this Keras does not have as they are needed; to be asked before anything is patched."""
    found: dict[str, Any] = {"CallbackList": CallbackList, "TFEpochIterator": EpochIterator, "Trainer": Trainer}
    found |= {"global_state": get_global_attribute, "context": eager_context}
    lacks = [name for name, value in found.items() if value is None]
    if lacks:
        return lacks
    lacks += [f"CallbackList.{name}" for name in HOOKS if not hasattr(CallbackList, name)]
    lacks += [f"Trainer.{name}" for name in FIT_NAMES if not hasattr(Trainer, name)]
    enumerates = getattr(EpochIterator, "_enumerate_iterator", None)
    code = getattr(enumerates, "__code__", None)
    if code is None or set(code.co_names) != ENUMERATES_BY:
        lacks.append("TFEpochIterator._enumerate_iterator")
    return lacks


missing = find_missing()


def dataset_of(iterator: Any) -> Any:
    """What an EpochIterator makes its iterators of."""
    return iterator._get_iterator()


def element_spec(iterator: Any) -> Any:
    """Shapes and types of a batch."""
    return iterator._distributed_dataset.element_spec


def build(model: Any, element_spec: Any) -> None:
    """Makes all variables of model, metrics and optimizer, without a batch and without a step."""
    model._symbolic_build(data_batch=element_spec)


def set_place(epochs: Any, **place: Any) -> None:
    """Sets Keras' own account of the place in the data: `num_batches`, `current_iterator`, `steps_seen`."""
    for name, value in place.items():
        setattr(epochs, f"_{name}", value)


def replace_results(model: Any, answer: Callable[[Any], Any]) -> None:
    """`answer` takes the logs of the last batch, and gives those of the epoch."""
    model._get_metrics_result_or_logs = answer


def keep_with(thing: Any, name: str, value: Any) -> None:
    """An attribute of ours at an object of Keras'."""
    setattr(thing, name, value)


def begin_at(model: Any, epoch: int | None) -> None:
    """The fit that is about to begin goes from `epoch` on; None: from where it is told."""
    model._initial_epoch = epoch


def global_seeds() -> list[Any]:
    """The state of the generator that Keras' layers without a seed draw theirs from."""
    generator = get_global_attribute("global_seed_generator")
    return [] if generator is None else [generator.state]


def eager_seed_source() -> Any:
    """The random.Random from which eager operations draw their seeds; None before the first."""
    return None if eager_context is None else getattr(eager_context(), "_rng", None)
