"""The private names of TensorFlow that this room rests on, each with what is done where a version lacks it.

Looked up once, at import, and nowhere else; a name that is not there is None, and the function below that needs it says
what its caller does without.  Nothing here starts TensorFlow's eager runtime: a program may still configure its devices.
"""

from __future__ import annotations

import gc
import importlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

READ_MANY = "_ReadVariablesOp"
GRAPH_KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"  # of the entry that holds the object graph: part of the file format


def _find_in_tensorflow(module: str, *names: str) -> Any:
    """`names`, each an attribute of the one before, in TensorFlow's `module`; None if one is not there."""
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
    """The tf.train.Checkpoint that `checkpoint` saves by: it may be a helper that has it write on a thread of its own, later."""
    if async_checkpoint is not None and isinstance(checkpoint, async_checkpoint):
        return checkpoint.checkpointer()
    return checkpoint


def view_graph(checkpoint: Any) -> Any:
    """The ObjectGraphView that `checkpoint` (a tf.train.Checkpoint) saves by; None: not known, it has to save itself."""
    if None in (serialize_graph_view, has_serializer, extract_local_name, resource_variable):
        return None
    view = getattr(getattr(checkpoint, "_saver", None), "_graph_view", None)
    return view if hasattr(view, "breadth_first_traversal") else None


def find_unsavable(checkpoint: Any) -> tuple[str, Any] | None:
    """The iterator of `checkpoint` that TensorFlow cannot save, by its path in there, and TensorFlow's error; None: there is none.

    An iterator over a Python generator, for example.  Nothing that is saved is changed.
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


def is_event_writer_known() -> bool:
    return event_writer is not None


def find_event_writers() -> list[Any]:
    """The tf.summary writers of this process that write eagerly.  Looks through all objects: takes some milliseconds."""
    kinds = (event_writer, *event_writer.__subclasses__())  # an object refers to its own class
    found = (one for one in gc.get_referrers(*kinds) if isinstance(one, event_writer))
    return [one for one in found if hasattr(getattr(one, "_resource", None), "numpy")]


def oldest_writer(writers: Sequence[Any]) -> Any:
    """The one of several tf.summary writers that is open and was made first; None if none is open."""
    is_open = [one for one in writers if not getattr(one, "_closed", False)]
    return min(is_open, key=lambda one: getattr(one._resource, "_id", 0), default=None)  # TensorFlow counts its tensors


def was_restored(checkpoint: Any) -> bool | None:
    """Whether `checkpoint`, or each of the objects that it was made of, was restored from a file; None: some of what it tracks was."""
    own, *others = (_is_restored(one) for one in (checkpoint, *_attached_to(checkpoint)))
    if own or (others and all(others)):
        return True
    view = view_graph(checkpoint)
    return None if view is None or any(map(_is_restored, view.breadth_first_traversal()[0])) else False


def _is_restored(trackable: Any) -> bool:
    """TensorFlow numbers its restores, and marks each object with its last one; -1: none."""
    return int(getattr(trackable, "_self_update_uid", 0)) >= 0


def _attached_to(checkpoint: Any) -> list[Any]:
    references = getattr(checkpoint, "_self_unconditional_checkpoint_dependencies", None) or ()
    return [one.ref for one in references if one.name != "save_counter"]


def read_variables(handles: Sequence[Any], dtypes: Sequence[Any]) -> list[Any]:
    """The values of resource variables of one device, as tensors that share their buffers."""
    if not reads_many:
        return [tf.raw_ops.ReadVariableOp(resource=h, dtype=d) for h, d in zip(handles, dtypes, strict=True)]
    enums = [dtype.as_datatype_enum for dtype in dtypes]
    attributes = ("N", len(handles), "dtypes", enums)
    tensors: list[Any] = execute(READ_MANY.encode(), len(handles), list(handles), attributes, context())
    return tensors


def components_of(owner: Any) -> list[Any]:
    """The variables of each replica that make up a distributed one, or what wraps it as Keras' do; none of any other."""
    for candidate in (owner, getattr(owner, "value", None)):
        if distributed_variable is not None and isinstance(candidate, distributed_variable):
            return list(candidate.values)
    return []


def count_of(counter: Any) -> int:
    """The value of a variable that counts, which a strategy may have made for each of its replicas."""
    return int((components_of(counter) or [counter])[0])


def exports_copies(owner: Any) -> bool:
    """Whether what a trackable gives to be saved is its own from then on.  A DenseHashTable's export is its live memory."""
    return hash_table is not None and isinstance(getattr(owner, "obj", owner), hash_table)


def is_mirrored(owner: Any) -> bool:
    """Whether a trackable is a variable whose replicas are updated alike, or wraps one."""
    kind = mirrored_variable
    return kind is not None and (isinstance(owner, kind) or isinstance(getattr(owner, "value", None), kind))


def is_of_many_tasks(owner: Any) -> bool:
    """Whether a distributed variable has replicas in other tasks, which only a call of all of them can read."""
    for candidate in (owner, getattr(owner, "value", None)):
        extended = getattr(getattr(candidate, "distribute_strategy", None), "extended", None)
        if components_of(candidate) and (in_many := getattr(extended, "_in_multi_worker_mode", None)) is not None:
            return bool(in_many())
    return False


def is_apart(owner: Any, in_optimizers: frozenset[int]) -> bool:
    """Whether a variable of a strategy over several tasks may have another value in each: nothing brings these together.

    Weights and what optimizers keep are updated alike, which `in_optimizers` tells of the latter.
    """
    if not is_mirrored(owner):
        return True
    is_free = components_of(owner)[0].aggregation == tf.VariableAggregation.NONE
    return is_free and not owner.trainable and id(owner) not in in_optimizers


def variables_of_optimizers(nodes: Sequence[Any]) -> frozenset[int]:
    """Which objects are variables of the optimizers among `nodes`, by their ids."""
    found = [node.variables for node in nodes if hasattr(node, "apply_gradients") and hasattr(node, "variables")]
    return frozenset(id(one) for variables in found for one in (variables() if callable(variables) else variables))


def view_tensor(tensor: Any) -> Any:
    """A numpy array of `tensor`'s own memory (a copy where a version gives none, and of another device's memory)."""
    view = getattr(tensor, "_numpy", None)
    return tensor.numpy() if view is None else view()


def children_of(node: Any) -> list[Any]:
    """What is attached to a trackable, as objects that stay the same for as long as that does not change."""
    references = getattr(node, "_self_unconditional_checkpoint_dependencies", None)
    children = [] if references is None else list(references)
    if isinstance(node, list | tuple):
        children.extend(node)
    elif isinstance(node, dict):
        children.extend(node.values())
    return children
