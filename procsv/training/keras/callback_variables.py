"""Find the variables that the program's callbacks hold.

These are the variables of a second model, of a metric or of an average of weights, for instance.
state.py saves and restores them together with the fit's own. For variables that cannot be saved,
callbacks.py logs a line. procsv looks for none in a callback with `get_state` and `set_state`,
which defines its own state.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from procsv.training.keras.callback_state import find_leaves

HOLDERS = (keras.Layer, keras.metrics.Metric, keras.optimizers.Optimizer, tf.Module)
GENERATORS = (tf.random.Generator, keras.random.SeedGenerator)
FITS_MODEL = {"model", "_model"}  # the attributes of a callback in which Keras keeps the fit's model
ITEMS_MAX = 1000  # a larger container is not searched to its end
DEPTH_MAX = 4  # of containers within containers
Counts = dict[str, int]
Spec = list[list[Any]]  # the shape and the type of each variable


def find_variables(holder: Any) -> dict[str, tuple[list[Any], bool]]:
    """Return the variables in each attribute of a callback, and whether it holds nothing else."""
    found = {name: variables_in(value) for name, (_, _, value) in find_leaves(holder) if name not in FITS_MODEL}
    return {name: both for name, both in found.items() if both[0]}


def count_variables(holder: Any) -> Counts:
    """Return how many variables each attribute of a callback holds."""
    return {name: len(variables) for name, (variables, _) in find_variables(holder).items()}


def variables_in(value: Any, depth: int = 0) -> tuple[list[Any], bool]:
    """Return the variables in `value`, and whether procsv can save `value` by saving them.

    It can if `value` holds nothing else, and if the rank of each variable is known.
    """
    kind = type(value)
    if hasattr(kind, "assign") and hasattr(value, "shape"):
        is_saved = getattr(value.shape, "rank", 0) is not None
        return [value], is_saved
    if kind in (list, tuple, dict, deque):
        items = list(value.copy().values() if kind is dict else value)  # another thread may change it
        if depth == DEPTH_MAX:
            return [], False
        parts = [variables_in(item, depth + 1) for item in items[:ITEMS_MAX]]
        return [one for own, _ in parts for one in own], len(items) <= ITEMS_MAX and all(is_all for _, is_all in parts)
    if isinstance(value, GENERATORS):
        return [value.state], True
    if not isinstance(value, HOLDERS):
        return [], False
    # An optimizer that is not built has not trained. Metrics of a compiled model are reset before each use.
    optimizer: Any = getattr(value, "optimizer", None)
    return [*value.variables, *(optimizer.variables if getattr(optimizer, "built", False) else ())], True


def find_saved(callbacks: Sequence[Any], counts_of: Callable[[Any], Counts | None]) -> dict[str, list[Any]]:
    """Return the variables to save, by class, number within the class, and attribute.

    `counts_of` returns what a callback held after `on_train_begin`, or None if procsv does not save
    its variables. A restarted program can restore only variables that exist by then.
    """
    numbers, found = Counter[str](), dict[str, list[Any]]()
    for callback in callbacks:
        kind, counts = type(callback).__qualname__, counts_of(callback)
        numbers[kind] += 1
        for name, (variables, is_all) in (find_variables(callback) if counts is not None else {}).items():
            if is_all and counts is not None and counts.get(name) == len(variables):
                found[f"{kind} {numbers[kind]} {name}"] = variables
    return found


def ids_of(variables: Iterable[Any]) -> set[int]:
    """Return the ids of variables, and of the TensorFlow variables in those of Keras."""
    both = (one for variable in variables for one in (variable, getattr(variable, "value", None)))
    return {id(one) for one in both if hasattr(type(one), "assign")}


def spec_of(variables: Iterable[Any]) -> Spec:
    return [[list(variable.shape), tf.as_dtype(variable.dtype).base_dtype.name] for variable in variables]


def make_placeholders(spec: Spec) -> list[Any]:
    """Return variables that take the saved values for which the program has no variables."""
    with tf.init_scope():
        return [tf.Variable(tf.zeros([size or 0 for size in shape], kind), shape=shape) for shape, kind in spec]
