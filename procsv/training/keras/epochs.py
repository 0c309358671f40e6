"""Iterate over the data of a fit through Keras' EpochIterator.

Only this module uses the private attributes of an EpochIterator. The EpochIterator has had three
forms: since Keras 3.7, in 3.5 and 3.6, and in 3.3 and 3.4. private.py tells them apart.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import keras
import tensorflow as tf

from procsv.training.keras.private import ENUMERATES, EpochIterator

# Whether iterators are kept from one epoch to the next. Until Keras 3.6 that was so only with steps_per_epoch.
KEEPS_ITERATORS = ENUMERATES == "_enumerate_iterator"
Wrapped = Callable[[Callable[[], None]], None]  # calls an epoch hook of a PyDataset, which is its argument


def _has_last_batch() -> bool:
    """Test whether a step names its last batch, as it does since Keras 3.11."""
    if not KEEPS_ITERATORS:
        return False
    adapter = SimpleNamespace(on_epoch_begin=lambda: None, on_epoch_end=lambda: None)
    place = {"_num_batches": 1, "_steps_seen": 0, "_current_iterator": None, "_get_iterator": lambda: [0]}
    epochs = SimpleNamespace(steps_per_epoch=None, steps_per_execution=1, data_adapter=adapter, **place)
    return len(next(EpochIterator._enumerate_iterator(epochs))) == 3


HAS_LAST_BATCH = _has_last_batch()


def make_step(first: int, size: int, iterator: Any) -> Any:
    """Return the arguments of one training call: its batch numbers and their iterator."""
    return (first, first + size - 1, iterator) if HAS_LAST_BATCH else (first, iterator)


COUNTER_BYTES_MAX = 4096  # a larger variable of a pipeline is no counter
# The prefixes of the ops that write to all or part of a variable.
WRITES = ("Assign", "ResourceApply", "ResourceScatter", "ResourceStridedSliceAssign")


class Epochs:
    """One EpochIterator."""

    def __init__(self, keras_iterator: Any) -> None:
        self.keras_iterator = keras_iterator

    @property
    def steps_per_epoch(self) -> int | None:
        count: int | None = self.keras_iterator.steps_per_epoch
        return count

    @property
    def steps_per_execution(self) -> int:
        return int(self.keras_iterator.steps_per_execution)

    @property
    def num_batches(self) -> int | None:
        """The number of batches in the data; None if unknown."""
        count: int | None = self.keras_iterator._num_batches
        return count

    @property
    def batches_in_epoch(self) -> int | None:
        count: int | None = self.keras_iterator.num_batches  # steps_per_epoch, or all batches of the data
        return count

    @property
    def steps_seen(self) -> int:
        return int(self.keras_iterator._steps_seen)

    @property
    def shape(self) -> list[int | None]:
        """The numbers that say how the fit takes its data. They are the same in a resumed fit."""
        return [self.steps_per_epoch, self.steps_per_execution, self.num_batches]

    @property
    def dataset(self) -> Any:
        """What the iterators are made from."""
        return self.keras_iterator._distributed_dataset

    def replace_dataset(self, dataset: Any) -> None:
        """Make iterators from `dataset` from here on."""
        self.keras_iterator._distributed_dataset = dataset

    @property
    def current_iterator(self) -> Any:
        """The iterator that outlives its epoch; None if there is none."""
        return getattr(self.keras_iterator, "_current_iterator", None)

    @property
    def element_spec(self) -> Any:
        """The shapes and types of a batch, for one replica."""
        spec = self.dataset.element_spec
        return tf.nest.map_structure(lambda one: getattr(one, "_value_specs", (one,))[0], spec)

    @property
    def batch_size(self) -> int | None:
        """The size of a batch; None if unknown."""
        told = getattr(self.keras_iterator.data_adapter, "batch_size", None)
        dataset = None if isinstance(told, int) else self.dataset
        while dataset is not None:
            size = getattr(dataset, "_batch_size", None)
            if size is not None:
                return int(size)
            dataset = getattr(dataset, "_input_dataset", None)
        return told if isinstance(told, int) else None

    @property
    def py_dataset(self) -> Any:
        """The PyDataset that the data comes from; None for other data."""
        return getattr(self.keras_iterator.data_adapter, "py_dataset", None)

    @property
    def is_saved_by_tensorflow(self) -> bool:
        """Whether TensorFlow can save the position of an iterator over this data."""
        return not hasattr(self.keras_iterator.data_adapter, "generator") and self.py_dataset is None

    def wrap_epoch_hooks(self, begin: Wrapped, end: Wrapped) -> None:
        """In each epoch, call `begin(hook)` and `end(hook)` instead of the PyDataset's two hooks.

        The hooks are `on_epoch_begin` and `on_epoch_end`. `begin` and `end` call them.
        """
        dataset = self.py_dataset
        hooks = {"on_epoch_begin": begin, "on_epoch_end": end}
        made: dict[str, Callable[[], None]] = {
            name: functools.partial(wrap, getattr(dataset, name))
            for name, wrap in hooks.items()
            if hasattr(dataset, name)
        }
        self.keras_iterator.data_adapter.py_dataset = _Hooked(dataset, made)

    def begin_epoch(self) -> None:
        """Tell the data that an epoch begins, as Keras does since 3.5."""
        begin = getattr(self.keras_iterator.data_adapter, "on_epoch_begin", None)
        if begin is not None:
            begin()

    def last_batch_of(self, batch: int) -> int:
        """Return the last batch of a call of the training function. Keras reports the call as `batch`.

        That is the call's last batch, or in older versions its first.
        """
        if HAS_LAST_BATCH or not (KEEPS_ITERATORS or self.batches_in_epoch):
            return batch
        return batch + self.steps_per_execution - 1

    def set_place(self, **place: Any) -> None:
        """Set Keras' record of the position: `num_batches`, `current_iterator` and `steps_seen`."""
        for name, value in place.items():
            setattr(self.keras_iterator, f"_{name}", value)

    # -- the remaining steps of an epoch, as Keras' EpochIterator would make them --------------------------------
    def steps_after(self, last_batch: int, current: Any) -> Iterator[Any]:
        """Yield what an EpochIterator gives `fit` after `last_batch`; after -1, the whole epoch."""
        way = self._as_from_3_7 if KEEPS_ITERATORS else self._as_until_3_6
        yield from way(last_batch + 1, current)
        self.keras_iterator.data_adapter.on_epoch_end()

    def _as_from_3_7(self, first: int, current: Any) -> Iterator[Any]:
        """Enumerate as Keras 3.7 does: if the number of batches is known, an iterator stays after its
        epoch, until the next epoch begins with it or makes another one.
        """
        size = self.steps_per_execution
        self.set_place(current_iterator=current)
        if first == 0 and self.steps_per_epoch is None:  # an epoch begins, and does not use the previous one's iterator
            current = iter(self.dataset)
            self.set_place(current_iterator=current, steps_seen=0)
        steps_per_epoch = self.steps_per_epoch or self.num_batches or -1
        if steps_per_epoch > 0:
            for step in range(first, steps_per_epoch, size):
                if self._is_exhausted():
                    if self.steps_per_epoch:
                        self.keras_iterator._interrupted_warning()
                    break
                self.set_place(steps_seen=self.steps_seen + size)
                yield make_step(step, size, self.current_iterator)
            if self._is_exhausted():
                again = iter(self.dataset)
                self.set_place(current_iterator=again, steps_seen=0)
            return
        self.set_place(current_iterator=None)  # this epoch's iterator ends with it
        step = first
        while True:
            self.set_place(steps_seen=step + size)
            yield make_step(step, size, current)
            step += size

    def _is_exhausted(self) -> bool:
        return bool(self.num_batches and self.steps_seen >= self.num_batches)

    def _as_until_3_6(self, first: int, current: Any) -> Iterator[Any]:
        """Enumerate as Keras 3.6 does: the iterator outlives its epoch only with
        steps_per_epoch.
        """
        size, batches = self.steps_per_execution, self.batches_in_epoch
        self.set_place(current_iterator=current if self.steps_per_epoch else None)
        if batches:
            for step in range(first, batches, size):
                yield step, current
            return
        last = first - 1
        while True:
            last += size
            self.set_place(steps_seen=last + 1)
            yield last, current


def evaluation_data(model: Any) -> Epochs | None:
    """Return the data that a fit evaluates on, which lives as long as the fit."""
    found = getattr(model, "_eval_epoch_iterator", None)
    return None if found is None else Epochs(found)


class _Hooked:
    """A PyDataset with other hooks, which only Keras' adapter sees."""

    def __init__(self, dataset: Any, hooks: dict[str, Callable[[], None]]) -> None:
        self._dataset = dataset
        vars(self).update(hooks)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)

    def __getitem__(self, index: int) -> Any:
        return self._dataset[index]


# -- the functions of a pipeline, and the variables in them ------------------------------------------------------
def shuffles_itself(dataset: Any) -> bool:
    """Return whether a PyDataset may change between two epochs, in hooks of its own."""
    return any(
        getattr(type(dataset), name, None) is not getattr(keras.utils.PyDataset, name, None)
        for name in ("on_epoch_begin", "on_epoch_end")  # Keras 3.3 has only the second
    )


def pipeline_of(epochs: Epochs) -> list[Any]:
    """Return the steps of the tf.data pipeline that the program has passed to `fit`, the last one
    first.

    Other data have none: Keras makes their pipeline anew for each fit.
    """
    return steps_of(getattr(epochs.keras_iterator.data_adapter, "_dataset", None))


def steps_of(dataset: Any) -> list[Any]:
    """Return the steps of a tf.data pipeline, the last one first; none of other data."""
    steps = [dataset] if isinstance(dataset, tf.data.Dataset) else list[Any]()
    for one in steps:
        steps += one._inputs()
    return steps


def shuffles(dataset: Any) -> bool:
    """Return whether this step of a pipeline shuffles: then each iterator gets another order."""
    return hasattr(dataset, "_reshuffle_each_iteration")


def repeats_shuffled(dataset: Any, is_repeated: bool = False) -> bool:
    """Return whether one iterator over a pipeline shuffles many times.

    `is_repeated`: a later step of the pipeline repeats the elements of this one.
    """
    is_repeated = is_repeated or type(dataset).__name__ == "_RepeatDataset"
    return (is_repeated and shuffles(dataset)) or any(repeats_shuffled(one, is_repeated) for one in dataset._inputs())


def caches_random(steps: list[Any], draws: bool) -> bool:
    """Return whether a pipeline caches elements that would differ from iterator to iterator without
    the cache, or come in another order.

    `draws`: the program's functions draw from random generators.
    """
    caches = [one for one in steps if type(one).__name__ == "CacheDataset"]
    return any(draws or captured_variables(one) or any(map(shuffles, steps_of(one))) for one in caches)


def reads_ahead(dataset: Any) -> bool:
    """Return whether a pipeline reads ahead: it finds its end before the program asks for it."""
    return any("Prefetch" in type(one).__name__ or "Parallel" in type(one).__name__ for one in steps_of(dataset))


def functions_of(dataset: Any) -> list[Any]:
    """Return the functions of a tf.data pipeline, such as those passed to `map`.

    Each has `function`, which is traced, and `_func`, which the program wrote.
    """
    if not isinstance(dataset, tf.data.Dataset):
        return []
    own = [value for value in vars(dataset).copy().values() if hasattr(value, "_func") and hasattr(value, "function")]
    return [*own, *(one for each in dataset._inputs() for one in functions_of(each))]


def captured_variables(dataset: Any) -> list[Any]:
    """Return the small variables that a pipeline's functions use. Keras' random layers keep the
    counters of their seeds in such variables.

    Every snapshot holds them. Larger variables are left out: most are tables that the functions
    only read, such as the weights of an embedding.
    """
    found = {id(variable): variable for one in functions_of(dataset) for variable in one.function.graph.variables}
    return [one for one in found.values() if is_small(one)]


def is_small(variable: Any) -> bool:
    """Return whether a variable may be a counter."""
    return int(variable.shape.num_elements() or 0) * int(variable.dtype.size) <= COUNTER_BYTES_MAX


def unkept_variables(dataset: Any) -> list[Any]:
    """Return the larger variables that a pipeline's functions write to, but no snapshot holds."""
    found = dict[int, Any]()
    for one in functions_of(dataset):
        graph = one.function.graph
        large = [variable for variable in graph.variables if not is_small(variable)]
        found |= {id(variable): variable for variable in written_variables(graph, large)}
    return list(found.values())


def written_variables(graph: Any, variables: list[Any]) -> list[Any]:
    """Return the variables among `variables` that the function of `graph` writes to."""
    if not variables:
        return []
    definition, inside = graph.as_graph_def(), {id(outer): inner.op.name for outer, inner in graph.captures}
    functions = {function.signature.name: function for function in definition.library.function}
    names = {id(variable): inside.get(id(variable.handle), "") for variable in variables}
    return [one for one in variables if names[id(one)] and _is_written(names[id(one)], definition.node, functions)]


def _is_written(name: str, nodes: Any, functions: dict[str, Any]) -> bool:
    """Return whether one of `nodes`, or a function that it calls, writes to the variable `name`."""
    for node in nodes:
        if name not in node.input:
            continue
        if node.op.startswith(WRITES) and node.input[0] == name:
            return True
        names = [one.name for attr in node.attr.values() for one in (attr.func, *attr.list.func)]
        for function in [functions[one] for one in names if one in functions]:
            inputs = function.signature.input_arg  # the branches of an `if` get every input but the condition
            at = list(node.input).index(name) - len(node.input) + len(inputs)
            if at >= 0 and _is_written(inputs[at].name, function.node_def, functions):
                return True
    return False
