"""Private names of what Keras writes: model files, and TensorBoard's events."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from procsv.training.graph.patches import AttributePatch
from procsv.training.keras.private import find_private

saving = find_private("saving", "saving_lib")
BaseOptimizer = find_private("optimizers.base_optimizer", "BaseOptimizer")
Store = getattr(saving, "H5IOStore", None)
knows_files = (
    None not in (Store, BaseOptimizer)
    and hasattr(saving, "_serialize_model_as_json")
    and any("_h5_entry_group" in one.__code__.co_names for one in vars(Store).values() if hasattr(one, "__code__"))
)
# Whether to save is asked apart from the saving, as from Keras 3.10 on.
decides_apart = hasattr(keras.callbacks.ModelCheckpoint, "_should_save_model")


@contextlib.contextmanager
def noting_stored(keep: Callable[[str, Any], None]) -> Iterator[None]:
    """Gives `keep` the dataset and the value of all that Keras stores in a file meanwhile, optimizers' variables as such."""

    class Noting(Store):  # type: ignore[misc, valid-type]  # keras is untyped
        def __setitem__(self, key: str, value: Any) -> None:
            super().__setitem__(key, value)
            keep(f"{self._h5_entry_group.name}/{key}", value)

    def save_own_variables(self: Any, store: Any) -> None:
        for number, variable in enumerate(self.variables):
            store[str(number)] = variable

    with (
        AttributePatch(saving, "H5IOStore", lambda _: Noting),
        AttributePatch(BaseOptimizer, "save_own_variables", lambda _: save_own_variables),
    ):
        yield


def saves_by_itself(model: Any) -> str:
    """Says which of a model's parts is not saved in Keras' own way; "" if all are."""
    for part in (model, model.optimizer, *model._flatten_layers()):
        for name in ("save_own_variables", "save_assets"):
            home = getattr(getattr(type(part), name, None), "__module__", None)
            if home is not None and home.partition(".")[0] not in ("keras", __name__.partition(".")[0]):
                return f"{type(part).__qualname__} has a {name} of its own"
    return ""


def describe(model: Any) -> tuple[str, str]:
    """A model's configuration and metadata, as a .keras archive has them."""
    config, metadata = saving._serialize_model_as_json(model)
    return config, metadata


# -- TensorBoard -----------------------------------------------------------------------------------------------
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
