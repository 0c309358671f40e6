"""Look up the private names of Keras' fits and models that this package relies on, once, at import.

`missing` lists the names that this Keras lacks or has in another form. If there are any,
BackupAndRestore refuses to work and says why. Only epochs.py uses the names of an EpochIterator,
and only model_checkpoint.py the names of model files. Other modules set private attributes only of
callbacks: backup.py sets Keras' counters, and callbacks.py `_set_monitor_op`.
"""

from __future__ import annotations

import dis
import functools
import importlib
import inspect
import itertools
import random
import sys
from collections.abc import Callable, Sequence
from types import CodeType, FrameType
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from procsv.training.keras.content_digest import is_library

# Keras' method that iterates over an epoch has had three forms: since Keras 3.7, in 3.5 and 3.6, and in 3.3 and 3.4.
# ENUMERATES_BY has, for each, the method's name and the names in its code. position.py replaces one such iteration when
# a fit is resumed.
_UNTIL_3_4 = {
    "steps_per_epoch",
    "_current_iterator",
    "iter",
    "_distributed_dataset",
    "range",
    "steps_per_execution",
    "num_batches",
    "_steps_seen",
    "data_adapter",
    "on_epoch_end",
}
ENUMERATES_BY = (
    (
        "_enumerate_iterator",
        {
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
        },
    ),
    ("enumerate_epoch", {*_UNTIL_3_4, "on_epoch_begin"}),
    ("enumerate_epoch", _UNTIL_3_4),
)


def find_private(module: str, name: str) -> Any:
    """Return a name of Keras' `module`, or its submodule of that name; None if there is neither."""
    try:
        found = getattr(importlib.import_module(f"keras.src.{module}"), name, None)
        return importlib.import_module(f"keras.src.{module}.{name}") if found is None else found
    except ImportError:
        return None


CallbackList = find_private("callbacks.callback_list", "CallbackList")
EpochIterator: Any = (
    find_private("backend.tensorflow.trainer", "TFEpochIterator") if keras.backend.backend() == "tensorflow" else None
)
Trainer = find_private("trainers.trainer", "Trainer")
get_global_attribute = find_private("backend.common.global_state", "get_global_attribute")
eager_context = getattr(importlib.import_module("tensorflow.python.eager.context"), "context", None)


def find_enumerates() -> str:
    """Return the method by which this Keras iterates over an epoch, or "" if it is unknown."""
    for name, made_of in ENUMERATES_BY:
        code = getattr(getattr(EpochIterator, name, None), "__code__", None)
        if code is not None and set(code.co_names) == made_of:
            return name
    return ""


ENUMERATES = find_enumerates()

HOOKS = (
    "on_train_begin",
    "on_epoch_begin",
    "on_train_batch_end",
    "on_test_begin",
    "on_test_batch_end",
    "on_test_end",
    "on_predict_batch_end",
    "on_train_end",
)
FIT_NAMES = ("_symbolic_build", "_get_metrics_result_or_logs")
EPOCHS = "epoch_iterator"  # the variable of `fit` that holds its EpochIterator


def find_missing() -> list[str]:
    """Return the names that this Keras lacks or has in another form. Call it before patching."""
    found: dict[str, Any] = {"CallbackList": CallbackList, "TFEpochIterator": EpochIterator, "Trainer": Trainer}
    found |= {"global_state": get_global_attribute, "context": eager_context}
    lacks = [name for name, value in found.items() if value is None]
    if lacks:
        return lacks
    lacks += [f"CallbackList.{name}" for name in HOOKS if not hasattr(CallbackList, name)]
    lacks += [f"Trainer.{name}" for name in FIT_NAMES if not hasattr(Trainer, name)]
    if not ENUMERATES:
        lacks.append("TFEpochIterator._enumerate_iterator")
    trainer = find_private("backend.tensorflow.trainer", "TensorFlowTrainer")
    if trainer is None or EPOCHS not in inspect.unwrap(trainer.fit).__code__.co_varnames:
        lacks.append(f"{EPOCHS} in TensorFlowTrainer.fit")
    return lacks


missing = find_missing()


def call_synchronously(callbacks: Any) -> None:
    """Have a CallbackList end each batch on the training thread before the next one begins."""
    callbacks._async_train = False


def runs_code_of_the_program(callback: Any) -> bool:
    """Return whether a callback runs functions of the program.

    It does if its class is neither Keras' nor ours, or if it is a LambdaCallback.
    """
    kind = type(callback)
    return issubclass(kind, keras.callbacks.LambdaCallback) or kind.__module__.partition(".")[0] not in (
        "keras",
        "procsv",
    )


def is_built(model: Any) -> bool:
    """Return whether all layers have their weights."""
    flatten = getattr(model, "_flatten_layers", None)
    return flatten is not None and all(layer.built for layer in flatten())


def is_alone(model: Any) -> bool:
    """Return whether one replica trains the model, without a strategy."""
    return type(model.distribute_strategy) is type(tf.distribute.get_strategy())


def layer_kinds(model: Any) -> list[str]:
    """Return the classes of a model and all its layers, in order."""
    return [type(layer).__qualname__ for layer in layers_of(model)]


def layers_of(model: Any) -> list[Any]:
    """Return a model and all its layers, in order."""
    flatten = getattr(model, "_flatten_layers", None)
    return [model, *model.layers] if flatten is None else list(flatten(include_self=True, recursive=True))


def loss_weights(model: Any) -> Any:
    """Return the loss weights that the program passed to `compile`."""
    return getattr(getattr(model, "_compile_loss", None), "_user_loss_weights", None)


def user_metrics(model: Any) -> Any:
    """Return the metrics that the program passed to `compile`."""
    compiled = getattr(model, "_compile_metrics", None)
    return [getattr(compiled, name, None) for name in ("_user_metrics", "_user_weighted_metrics")]


def build(model: Any, element_spec: Any, with_optimizer: bool = True) -> None:
    """Create all variables of model, metrics and optimizer, without a batch and without a step."""
    leaves_out = not with_optimizer and model.optimizer is not None and not model.optimizer.built
    if leaves_out:
        model.optimizer.built = True
    try:
        with model.distribute_strategy.scope():
            model._symbolic_build(data_batch=element_spec)
    finally:
        if leaves_out:
            model.optimizer.built = False


def replace_results(model: Any, answer: Callable[[Any], Any]) -> None:
    """Have `answer` turn the logs of the last batch into the logs of the epoch."""
    model._get_metrics_result_or_logs = answer


def keep_with(thing: Any, name: str, value: Any) -> None:
    """Set an attribute of ours on one of Keras' objects."""
    setattr(thing, name, value)


def begin_at(model: Any, epoch: int | None) -> None:
    """Have the next fit begin at `epoch`, or at its own `initial_epoch` for None."""
    model._initial_epoch = epoch


def global_seeds() -> list[Any]:
    """Return the state of the generator that seeds layers without a seed of their own."""
    generator = get_global_attribute("global_seed_generator")
    return [] if generator is None else [generator.state]


def seeds_of(model: Any) -> list[Any]:
    """Return the variables of a model's random generators and of the global one."""
    return [v for v in (*model.variables, *global_seeds()) if v.name == "seed_generator_state"]


def eager_seed_source() -> Any:
    """Return the random.Random that seeds eager operations; None before the first one."""
    return None if eager_context is None else getattr(eager_context(), "_rng", None)


PLACES_MAX = 1000  # remembered places in a program's loops: see `place_in_loops`


class RunSeeds:
    """Seeds for layers and initializers that the program leaves unseeded.

    They are random, but the same in each attempt of a run. procsv takes a fit that starts from
    other weights for another fit. So without these seeds, an unseeded program would have to train
    all of its fits again after a crash in the last one. A program that has seeded `random`, as
    keras.utils.set_random_seed does, gets Keras' own seeds.
    """

    def __init__(self) -> None:
        self._run: str | None = None  # the name of the run
        self._drawn = dict[str, int]()  # how many seeds, by the place in the program's loops
        self._unseeded: set[tuple[int, ...]] = set()  # states that `random` has while nobody has seeded it
        self.find_attempt: Callable[[], tuple[str, Any] | None] = lambda: None

    def randint(self, least: int, most: int) -> int:
        """Draw like random.randint, which Keras calls.

        A program may skip what it has done, such as the members of an ensemble. So the seeds of a
        pass of a loop do not depend on the passes before it.
        """
        self._begin()
        if not self._is_unseeded():
            return random.randint(least, most)
        place = place_in_loops(sys._getframe(1))
        number = self._drawn.pop(place, 0) + 1
        self._drawn[place] = number  # the newest last
        if len(self._drawn) > PLACES_MAX:
            del self._drawn[next(iter(self._drawn))]
        return random.Random(f"{self._run} {place} {number}").randint(least, most)

    def _begin(self) -> None:
        if self._run is None and (found := self.find_attempt()) is not None:
            self._run, first_state = found
            self._take_for_unseeded(first_state)

    def _take_for_unseeded(self, state: Any) -> None:
        """Note that `random` is unseeded in `state`, and in the state after its next change.

        The generator makes 624 numbers at a time. Until it makes the next ones, only the last item
        of its state changes, which is left out here.
        """
        later = random.Random()
        later.setstate(state)
        later.random()
        self._unseeded = {state[1][:-1], later.getstate()[1][:-1]}

    def _is_unseeded(self) -> bool:
        """Return whether `random` is unseeded; False if too many draws leave that unknown."""
        return self._run is not None and random.getstate()[1][:-1] in self._unseeded

    def read_seeds(self) -> Any:
        """Return the state of the seeds; None if Keras draws from `random` itself."""
        return self._drawn.copy() if self._is_unseeded() else None

    def write_seeds(self, state: Any) -> None:
        """Restore the state of the seeds. Call it after restoring `random`."""
        if isinstance(state, dict):  # an older procsv saved something else
            self._begin()
            self._drawn = dict(state)
            self._take_for_unseeded(random.getstate())


def place_in_loops(frame: FrameType | None) -> str:
    """Return the passes of the program's `for` loops that `frame` and its callers are in; ""
    outside of any.

    The numbers and texts that a loop has given to its variables identify the pass.
    """
    found = list[str]()
    while frame is not None:
        code = frame.f_code
        if not is_library(frame.f_globals.get("__name__") or ""):
            names = [name for begin, end, names in _loops_of(code) if begin <= frame.f_lasti < end for name in names]
            values = {name: frame.f_locals.get(name, frame.f_globals.get(name)) for name in names}
            passes = {name: value for name, value in values.items() if type(value) in (bool, int, float, str)}
            found += [f"{code.co_qualname} {passes}"] if passes else []
        frame = frame.f_back
    return "; ".join(found)


@functools.cache
def _loops_of(code: CodeType) -> list[tuple[int, int, list[str]]]:
    """Return where each `for` loop of `code` begins and ends, and the variables that it sets."""
    steps, loops = list(dis.get_instructions(code)), list[tuple[int, int, list[str]]]()
    for number, step in enumerate(steps):
        if step.opname == "FOR_ITER":
            stored = itertools.takewhile(lambda one: one.opname.startswith(("STORE", "UNPACK")), steps[number + 1 :])
            targets = [one.argval for one in stored if one.opname.startswith("STORE")]
            names = [name for one in targets for name in (one if isinstance(one, tuple) else (one,))]
            loops.append((step.offset, step.argval, names))
    return loops


run_seeds = RunSeeds()


def take_default_seeds(find_attempt: Callable[[], tuple[str, Any] | None]) -> None:
    """Have Keras draw missing seeds from `run_seeds`.

    A Keras that draws them in another way is left alone. `find_attempt` returns a name that all
    attempts of a run share, and the state of `random` when this attempt began. Outside of a run it
    returns None.
    """
    run_seeds.find_attempt = find_attempt
    generator = find_private("random", "seed_generator")
    if getattr(generator, "python_random", None) is random:
        generator.python_random = run_seeds


def read_random() -> dict[str, Any]:
    source = eager_seed_source()
    return {
        "python": random.getstate(),
        "keras": run_seeds.read_seeds(),
        "numpy": np.random.get_state(),
        "eager": None if source is None else source.getstate(),
    }


def write_random(saved: dict[str, Any]) -> None:
    random.setstate(saved["python"])
    run_seeds.write_seeds(saved["keras"])
    np.random.set_state(saved["numpy"])
    source = eager_seed_source()
    if source is not None and saved["eager"] is not None:
        source.setstate(saved["eager"])


def is_random_generator(value: Any) -> bool:
    """Return whether `value` is a random generator that only the program knows, and not a global
    one.
    """
    is_global = value is getattr(random.random, "__self__", None) or value is getattr(np.random.rand, "__self__", None)
    return type(value) in (random.Random, np.random.Generator, np.random.RandomState) and not is_global


def read_trainable(model: Any) -> list[bool]:
    """Return for the model and each of its layers whether it is to be trained."""
    return [bool(layer.trainable) for layer in layers_of(model)]


def write_trainable(model: Any, flags: Sequence[bool]) -> None:
    """Set what `read_trainable` returned, unless the model has another number of layers now.

    A layer passes its own flag on to the layers in it, which follow.
    """
    layers = layers_of(model)
    for layer, flag in zip(layers, flags, strict=True) if len(layers) == len(flags) else ():
        if bool(layer.trainable) != flag:
            layer.trainable = flag


# -- the training function -------------------------------------------------------------------------------------
def has_own_step(model: Any) -> bool:
    """Return whether the program has its own `train_step`."""
    return type(model).train_step is not keras.Model.train_step


def training_functions(model: Any) -> list[Any]:
    """Return the `tf.function`s of a model's training function, or none if it runs eagerly.

    The one that takes an iterator comes first.
    """
    waiting, seen, functions = [model.train_function], set[int](), list[Any]()
    while waiting:
        one = waiting.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        if hasattr(one, "_list_all_concrete_functions"):
            functions.append(one)
        else:  # a function that wraps another one
            cells = getattr(one, "__closure__", None) or ()
            waiting += [cell.cell_contents for cell in cells if callable(_content_of(cell))]
    return functions


def traced_graphs(model: Any) -> list[Any]:
    """Return the graphs that a model's training function has been traced into."""
    traced = [concrete for one in training_functions(model) for concrete in one._list_all_concrete_functions()]
    return [concrete.graph for concrete in traced]


def _content_of(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # the cell is empty
        return None


# -- private names of TensorBoard -------------------------------------------------------------------------------
def event_dirs(board: Any) -> dict[str, str]:
    """Return the directories that a TensorBoard callback writes to, by purpose."""
    return {"train": board._train_dir, "validation": board._val_dir}


def train_writer(board: Any) -> Any:
    """Return the writer of a TensorBoard callback for training; None if it has not written yet."""
    return board._writers.get("train")


def flush_writers(board: Any) -> None:
    for writer in board._writers.values():
        writer.flush()


def holds_only_the_model(path: str) -> bool:
    """Return whether an event file holds nothing but the model that the callback was given."""
    events = [
        tf.compat.v1.Event.FromString(record.numpy()) for record in tf.data.TFRecordDataset(path, buffer_size=1 << 18)
    ]
    return all(
        event.WhichOneof("what") == "file_version"
        or all(value.metadata.plugin_data.plugin_name == "graph_keras_model" for value in event.summary.value)
        for event in events
    )


def open_writers_again(board: Any) -> None:
    """Have a TensorBoard callback reopen its writers and continue at the step in its attributes."""
    board._close_writers()
    board._writers = {}
    board._is_tracing = board._profiler_started = False
    for _ in range(len(board._prev_summary_state)):
        board._pop_writer()
    board._push_writer(board._train_writer, board._global_train_batch)
