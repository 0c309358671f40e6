"""The private names of Keras' fits and models that this room rests on, looked up once, at import.

`missing` lists those that this Keras lacks, or has in another form: then BackupAndRestore refuses, in words.  Those of an
EpochIterator are used in epochs.py, those of model files in model_checkpoint.py, and nothing else here sets any.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

# What Keras' own way through an epoch is made of, by the method that it is: position.py goes through one in its place when a fit is
# resumed.  From Keras 3.7 on; of 3.5 and 3.6; of 3.3 and 3.4.
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
    """A name of Keras' `module`, or the module in it that is called so; None if it is not there."""
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
    """The method by which this Keras goes through an epoch; "" if it is none that is known."""
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


def find_missing() -> list[str]:
    """The names that this Keras does not have as they are needed; to be asked before anything is patched."""
    found: dict[str, Any] = {"CallbackList": CallbackList, "TFEpochIterator": EpochIterator, "Trainer": Trainer}
    found |= {"global_state": get_global_attribute, "context": eager_context}
    lacks = [name for name, value in found.items() if value is None]
    if lacks:
        return lacks
    lacks += [f"CallbackList.{name}" for name in HOOKS if not hasattr(CallbackList, name)]
    lacks += [f"Trainer.{name}" for name in FIT_NAMES if not hasattr(Trainer, name)]
    if not ENUMERATES:
        lacks.append("TFEpochIterator._enumerate_iterator")
    return lacks


missing = find_missing()


def call_synchronously(callbacks: Any) -> None:
    """Has a CallbackList end each batch on the thread that trains, before the next begins."""
    callbacks._async_train = False


def runs_code_of_the_program(callback: Any) -> bool:
    """Whether a callback is of the program's own: neither Keras' nor ours."""
    kind = type(callback)
    return issubclass(kind, keras.callbacks.LambdaCallback) or kind.__module__.partition(".")[0] not in (
        "keras",
        "procsv",
    )


def is_built(model: Any) -> bool:
    """Whether all layers have their weights."""
    flatten = getattr(model, "_flatten_layers", None)
    return flatten is not None and all(layer.built for layer in flatten())


def is_alone(model: Any) -> bool:
    """Whether it is trained by one replica, without a strategy."""
    return type(model.distribute_strategy) is type(tf.distribute.get_strategy())


def layer_kinds(model: Any) -> list[str]:
    """The classes of a model and all its layers, in their order."""
    return [type(layer).__qualname__ for layer in layers_of(model)]


def layers_of(model: Any) -> list[Any]:
    """A model and all its layers, in their order."""
    flatten = getattr(model, "_flatten_layers", None)
    return [model, *model.layers] if flatten is None else list(flatten(include_self=True, recursive=True))


def loss_weights(model: Any) -> Any:
    """As the program has passed them to `compile`."""
    return getattr(getattr(model, "_compile_loss", None), "_user_loss_weights", None)


def build(model: Any, element_spec: Any) -> None:
    """Makes all variables of model, metrics and optimizer, without a batch and without a step."""
    with model.distribute_strategy.scope():
        model._symbolic_build(data_batch=element_spec)


def replace_results(model: Any, answer: Callable[[Any], Any]) -> None:
    """`answer` takes the logs of the last batch, and gives those of the epoch."""
    model._get_metrics_result_or_logs = answer


def keep_with(thing: Any, name: str, value: Any) -> None:
    """An attribute of ours at an object of Keras'."""
    setattr(thing, name, value)


def begin_at(model: Any, epoch: int | None) -> None:
    """Makes the fit that is about to begin start at `epoch`; with None, at its own `initial_epoch`."""
    model._initial_epoch = epoch


def global_seeds() -> list[Any]:
    """The state of the generator that Keras' layers without a seed draw theirs from."""
    generator = get_global_attribute("global_seed_generator")
    return [] if generator is None else [generator.state]


def seeds_of(model: Any) -> list[Any]:
    """The variables of a model's generators of random numbers, and of the global one."""
    return [v for v in (*model.variables, *global_seeds()) if v.name == "seed_generator_state"]


def eager_seed_source() -> Any:
    """The random.Random from which eager operations draw their seeds; None before the first."""
    return None if eager_context is None else getattr(eager_context(), "_rng", None)


class RunSeeds:
    """Seeds of layers and initializers that the program gives none: random, but the same in each attempt of a run.

    A fit that starts from other weights than before is another fit.  So a program without a seed would have to train all of its
    fits again after a crash in the last one.  A program that has seeded `random`, as keras.utils.set_random_seed does, gets what Keras
    gives it.
    """

    def __init__(self) -> None:
        self._numbers: random.Random | None = None
        self._unseeded: set[tuple[int, ...]] = set()  # what the state of `random` is as long as nobody seeds it
        self.find_attempt: Callable[[], tuple[str, Any] | None] = lambda: None

    def randint(self, least: int, most: int) -> int:
        """As random.randint, which Keras calls."""
        if self._numbers is None and (found := self.find_attempt()) is not None:
            name, first_state = found
            self._numbers = random.Random(name)
            self._take_for_unseeded(first_state)
        numbers = self._numbers if self._is_unseeded() else None
        return (numbers or random).randint(least, most)

    def _take_for_unseeded(self, state: Any) -> None:
        """`state`, and what it is after the next draws: the generator's numbers change once for 624 of them."""
        later = random.Random()
        later.setstate(state)
        later.random()
        self._unseeded = {state[1][:-1], later.getstate()[1][:-1]}

    def _is_unseeded(self) -> bool:
        """False also where so much was drawn that nobody can tell."""
        return self._numbers is not None and random.getstate()[1][:-1] in self._unseeded

    def read_seeds(self) -> Any:
        """Its state; None where Keras draws from `random` itself."""
        return self._numbers.getstate() if self._numbers is not None and self._is_unseeded() else None

    def write_seeds(self, state: Any) -> None:
        """After `random` has its state back."""
        if state is not None:
            self._numbers = random.Random()
            self._numbers.setstate(state)
            self._take_for_unseeded(random.getstate())


run_seeds = RunSeeds()


def take_default_seeds(find_attempt: Callable[[], tuple[str, Any] | None]) -> None:
    """Has Keras draw the seeds of what has none from `run_seeds`; a Keras that draws them in another way is left alone.

    `find_attempt`: a name that the attempts of a run share, and the state that `random` had when this attempt began; None outside of
    a run.
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


# -- the training function -------------------------------------------------------------------------------------
def has_own_step(model: Any) -> bool:
    """Whether the program has written the training step itself."""
    return type(model).train_step is not keras.Model.train_step


def training_functions(model: Any) -> list[Any]:
    """The `tf.function`s of a model's training function, the one that takes an iterator first; none if it runs eagerly."""
    waiting, seen, functions = [model.train_function], set[int](), list[Any]()
    while waiting:
        one = waiting.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        if hasattr(one, "_list_all_concrete_functions"):
            functions.append(one)
        else:  # a function around it
            cells = getattr(one, "__closure__", None) or ()
            waiting += [cell.cell_contents for cell in cells if callable(_content_of(cell))]
    return functions


def traced_graphs(model: Any) -> list[Any]:
    """The graphs of a model's training function, as far as it was traced."""
    traced = [concrete for one in training_functions(model) for concrete in one._list_all_concrete_functions()]
    return [concrete.graph for concrete in traced]


def _content_of(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return None


# -- private names of TensorBoard -------------------------------------------------------------------------------
def event_dirs(board: Any) -> dict[str, str]:
    """Where a TensorBoard callback writes, by what for."""
    return {"train": board._train_dir, "validation": board._val_dir}


def train_writer(board: Any) -> Any:
    """What a TensorBoard callback writes the training by; None where it has written nothing yet."""
    return board._writers.get("train")


def flush_writers(board: Any) -> None:
    for writer in board._writers.values():
        writer.flush()


def holds_only_the_model(path: str) -> bool:
    """Whether an event file has nothing in it but the model that the callback writes when it is given one."""
    events = [
        tf.compat.v1.Event.FromString(record.numpy()) for record in tf.data.TFRecordDataset(path, buffer_size=1 << 18)
    ]
    return all(
        event.WhichOneof("what") == "file_version"
        or all(value.metadata.plugin_data.plugin_name == "graph_keras_model" for value in event.summary.value)
        for event in events
    )


def open_writers_again(board: Any) -> None:
    """Has a TensorBoard callback write where its attributes say now, with the step that they say."""
    board._close_writers()
    board._writers = {}
    board._is_tracing = board._profiler_started = False
    for _ in range(len(board._prev_summary_state)):
        board._pop_writer()
    board._push_writer(board._train_writer, board._global_train_batch)
