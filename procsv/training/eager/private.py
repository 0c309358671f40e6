"""Look up the private names of TensorFlow that this package relies on.

Names in TensorFlow's modules are looked up once, when this module is imported. If a name is
missing, it is None here, and the function that needs it handles this case. The import does not
start TensorFlow's eager runtime, because a program may still configure its devices.
"""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

READ_MANY = "_ReadVariablesOp"
DEFERRED = ("_serialize_to_tensors", "_restore_from_tensors")  # methods of Keras' variables
GRAPH_KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"  # the entry with the object graph; part of the file format

_filled: list[type] = []  # classes of Keras' variables that `fill_late_variables` has changed


def _find_in_tensorflow(module: str, *names: str) -> Any:
    """Return what the path `names` leads to in TensorFlow's `module`; None if a name is missing."""
    try:
        found: Any = importlib.import_module(f"tensorflow.python.{module}")
        for name in names:
            found = getattr(found, name)
    except (ImportError, AttributeError):
        return None
    return found


serialize_graph_view = _find_in_tensorflow("checkpoint.save_util", "serialize_graph_view")
has_serializer = _find_in_tensorflow("training.saving.saveable_object_util", "trackable_has_serialize_to_tensor")
extract_local_name = _find_in_tensorflow("trackable.trackable_utils", "extract_local_name")
resource_variable = _find_in_tensorflow("ops.resource_variable_ops", "BaseResourceVariable")
context = _find_in_tensorflow("eager.context", "context")
mirrored_variable = _find_in_tensorflow("distribute.values", "MirroredVariable")
distributed_variable = _find_in_tensorflow("distribute.values", "DistributedVariable")
hash_table = _find_in_tensorflow("ops.lookup_ops", "MutableHashTable")
event_writer = _find_in_tensorflow("ops.summary_ops_v2", "_ResourceSummaryWriter")
async_checkpoint = _find_in_tensorflow("checkpoint.async_checkpoint_helper", "AsyncCheckpointHelper")
execute = _find_in_tensorflow("eager.execute", "execute")
find_op = _find_in_tensorflow("framework.op_def_registry", "get")
reads_many = None not in (context, execute, find_op) and find_op(READ_MANY) is not None


def saved_by(checkpoint: Any) -> Any:
    """Return the tf.train.Checkpoint that `checkpoint` saves with.

    `checkpoint` may be TensorFlow's helper for asynchronous checkpoints, which wraps one.
    """
    if async_checkpoint is not None and isinstance(checkpoint, async_checkpoint):
        return checkpoint.checkpointer()
    return checkpoint


def view_graph(checkpoint: Any) -> Any:
    """Return the ObjectGraphView that a tf.train.Checkpoint saves with.

    None means that procsv does not find it, so the Checkpoint has to write itself.
    """
    if None in (serialize_graph_view, has_serializer, extract_local_name, resource_variable):
        return None
    view = getattr(getattr(checkpoint, "_saver", None), "_graph_view", None)
    return view if hasattr(view, "breadth_first_traversal") else None


def find_unsavable(checkpoint: Any) -> tuple[str, Any] | None:
    """Find an iterator in `checkpoint` that TensorFlow cannot save.

    Return the path of the iterator in the checkpoint, and TensorFlow's error. Return None if there
    is no such iterator. An iterator over a Python generator is an example. The call changes nothing
    in the checkpoint.
    """
    view = view_graph(checkpoint)
    nodes, paths = view.breadth_first_traversal() if view is not None else ((), {})
    for node in nodes:
        if isinstance(node, tf.data.Iterator) and hasattr(node, "_serialize_to_tensors"):
            try:
                node._serialize_to_tensors()
            except tf.errors.FailedPreconditionError as error:
                return ".".join(reference.name for reference in paths[node]), error
    return None


def fill_late_variables() -> None:
    """Change Keras' variables so that those made after a restore start with the restored values.

    Keras builds a model by calling it without data. A variable that is made in this call has no
    memory yet, so TensorFlow cannot assign the restored value to it. Keras hides the error, and the
    first layer keeps its random values. With this change, a variable without memory takes the
    restored value as its initial value.
    """
    kind = getattr(sys.modules.get("keras.src.backend.tensorflow.core"), "Variable", None)
    if kind is None or kind in _filled or not all(hasattr(kind, name) for name in DEFERRED):
        return
    _filled.append(kind)
    serialize, restore = (getattr(kind, name) for name in DEFERRED)

    def serialize_late(self: Any) -> Any:
        is_late = getattr(self, "_value", self) is None
        return {"VARIABLE_VALUE": tf.zeros([], self.dtype)} if is_late else serialize(self)  # only its type counts

    def restore_late(self: Any, restored: dict[str, Any]) -> Any:
        if getattr(self, "_value", self) is not None:
            return restore(self, restored)
        (value,) = restored.values()
        value.shape.assert_is_compatible_with(self.shape)
        self._initializer = lambda shape, dtype=None: tf.cast(value, dtype or value.dtype)
        return None

    for name, change in zip(DEFERRED, (serialize_late, restore_late), strict=True):
        setattr(kind, name, change)


def variables_of_layers(nodes: Sequence[Any]) -> list[Any]:
    """Return the variables of the Keras layers among `nodes`.

    Left out are metrics, and the seeds of random layers that have drawn no number.
    """
    found = dict[int, Any]()
    for node in nodes:
        if "keras" in sys.modules and isinstance(node, sys.modules["keras"].layers.Layer):
            metrics = {id(one) for one in node.metrics_variables}
            found.update((id(one), one) for one in node.variables if id(one) not in metrics)
    return [one for one in found.values() if not _is_unused_seed(one)]


def _is_unused_seed(variable: Any) -> bool:
    """Return whether `variable` has the seed and count of a random layer that has drawn no number.

    An LSTM without dropout has such a variable, too.
    """
    if not variable.path.endswith("seed_generator_state"):
        return False
    return int((components_of(variable) or [variable])[0].numpy()[1]) == 0


def is_optimizer(node: Any) -> bool:
    """Return whether a trackable is an optimizer of Keras, which tracks the variables it trains."""
    return "keras" in sys.modules and isinstance(node, sys.modules["keras"].optimizers.Optimizer)


def nodes_without_optimizers(root: Any) -> list[Any]:
    """Return the objects that a restore of `root` reaches before its optimizers are built."""
    nodes, seen = [root], {id(root)}
    for node in nodes:
        for child in tf.train.TrackableView.children(node).values():
            if id(child) not in seen and not is_optimizer(child):
                seen.add(id(child))
                nodes.append(child)
    return nodes


def is_event_writer_known() -> bool:
    return event_writer is not None


def find_event_writers() -> list[Any]:
    """Return the tf.summary writers of this process that write eagerly.

    Searches all objects, which takes some milliseconds.
    """
    kinds = (event_writer, *event_writer.__subclasses__())  # every object refers to its class
    found = (one for one in gc.get_referrers(*kinds) if isinstance(one, event_writer))
    return [one for one in found if hasattr(getattr(one, "_resource", None), "numpy")]


def oldest_writer(writers: Sequence[Any]) -> Any:
    """Return the open tf.summary writer that was made first; None if none is open."""
    is_open = [one for one in writers if not getattr(one, "_closed", False)]
    # TensorFlow numbers its tensors in order.
    return min(is_open, key=lambda one: getattr(one._resource, "_id", 0), default=None)


def was_restored(checkpoint: Any) -> bool | None:
    """Return whether the program has restored `checkpoint` from a file.

    True: the Checkpoint itself was restored, or every object attached to it. False: nothing that it
    tracks was restored. None: only some of what it tracks was restored, or procsv cannot tell.
    """
    own, *others = (_is_restored(one) for one in (checkpoint, *_attached_to(checkpoint)))
    if own or (others and all(others)):
        return True
    view = view_graph(checkpoint)
    return None if view is None or any(map(_is_restored, view.breadth_first_traversal()[0])) else False


def _is_restored(trackable: Any) -> bool:
    """Return whether TensorFlow marked an object with the number of a restore (-1: none)."""
    return int(getattr(trackable, "_self_update_uid", 0)) >= 0


def _attached_to(checkpoint: Any) -> list[Any]:
    references = getattr(checkpoint, "_self_unconditional_checkpoint_dependencies", None) or ()
    return [one.ref for one in references if one.name != "save_counter"]


def read_variables(handles: Sequence[Any], dtypes: Sequence[Any]) -> list[Any]:
    """Read resource variables of one device, as tensors that share their buffers."""
    if not reads_many:
        return [tf.raw_ops.ReadVariableOp(resource=h, dtype=d) for h, d in zip(handles, dtypes, strict=True)]
    enums = [dtype.as_datatype_enum for dtype in dtypes]
    attributes = ("N", len(handles), "dtypes", enums)
    tensors: list[Any] = execute(READ_MANY.encode(), len(handles), list(handles), attributes, context())
    return tensors


def components_of(owner: Any) -> list[Any]:
    """Return the variables of a distributed variable, one for each replica.

    `owner` may also be a wrapper of a distributed variable, such as a variable of Keras. For all
    other objects the list is empty.
    """
    for candidate in (owner, getattr(owner, "value", None)):
        if distributed_variable is not None and isinstance(candidate, distributed_variable):
            return list(candidate.values)
    return []


def count_of(counter: Any) -> int:
    """Return the value of a counting variable. A strategy may have made one for each replica."""
    return int((components_of(counter) or [counter])[0])


def exports_copies(owner: Any) -> bool:
    """Return whether a trackable returns copies when it is saved. A copy does not change later.

    A DenseHashTable, for example, returns its live memory instead.
    """
    return hash_table is not None and isinstance(getattr(owner, "obj", owner), hash_table)


def is_mirrored(owner: Any) -> bool:
    """Return whether a trackable is, or wraps, a variable whose replicas are updated alike."""
    kind = mirrored_variable
    return kind is not None and (isinstance(owner, kind) or isinstance(getattr(owner, "value", None), kind))


def is_of_many_tasks(owner: Any) -> bool:
    """Return whether a distributed variable has replicas in other tasks.

    Only a call in which all these tasks take part can read them.
    """
    for candidate in (owner, getattr(owner, "value", None)):
        extended = getattr(getattr(candidate, "distribute_strategy", None), "extended", None)
        if components_of(candidate) and (in_many := getattr(extended, "_in_multi_worker_mode", None)) is not None:
            return bool(in_many())
    return False


def is_apart(owner: Any, in_optimizers: frozenset[int]) -> bool:
    """Return whether the value of a strategy's variable may differ between tasks.

    A variable that is not mirrored has a value of its own in each task. The values of a mirrored
    variable may differ if nothing combines its updates. But weights and optimizer variables are
    updated alike in all tasks, even then. `in_optimizers` has the ids of the optimizer variables.
    """
    if not is_mirrored(owner):
        return True
    is_free = components_of(owner)[0].aggregation == tf.VariableAggregation.NONE
    return is_free and not owner.trainable and id(owner) not in in_optimizers


def variables_of_optimizers(nodes: Sequence[Any]) -> frozenset[int]:
    """Return the ids of all variables of the optimizers among `nodes`."""
    found = [node.variables for node in nodes if hasattr(node, "apply_gradients") and hasattr(node, "variables")]
    return frozenset(id(one) for variables in found for one in (variables() if callable(variables) else variables))


def view_tensor(tensor: Any) -> Any:
    """Return a NumPy array of `tensor`'s own memory.

    The array is a copy if the tensor is on another device, or if this version of TensorFlow gives
    no access to the memory.
    """
    view = getattr(tensor, "_numpy", None)
    return tensor.numpy() if view is None else view()


def children_of(node: Any) -> list[Any]:
    """Return the objects attached to a trackable.

    Two calls return the same objects unless something was attached or removed in between. An
    optimizer of the older kind does not attach its slots, although they are saved with it. They are
    included here.
    """
    references = getattr(node, "_self_unconditional_checkpoint_dependencies", None)
    children = [] if references is None else list(references)
    if hasattr(type(node), "get_slot_names"):  # hasattr on a replicated variable itself would read its replicas
        for kept in (getattr(node, "_slots", {}), getattr(node, "_non_slot_dict", {})):
            for value in kept.values():
                children.extend(value.values() if isinstance(value, dict) else [value])
    if isinstance(node, list | tuple):
        children.extend(node)
    elif isinstance(node, dict):
        children.extend(node.values())
    return children
