"""Save and restore what each replica of a strategy holds by itself.

Under MirroredStrategy, a variable consists of one variable on each replica. TensorFlow's checkpoint
has one value for it: the first replica's, or a combination of all. TensorFlow restores this value
into all replicas. But the values of metrics, normalization statistics and gradients that a loop
accumulates may differ between replicas. Training continues with the same bits only if every replica
gets its own value back. So a snapshot also has the values of the replicas, wherever they differ.
The keys of these values belong to no object of the checkpoint. TensorFlow ignores such keys, and
restores what it would have restored without them.

An EagerState uses this module. For each snapshot it compares the replicas byte by byte, because no
rule could tell from a variable's kind whether they differ. It compares off the training thread.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import tensorflow as tf

from procsv.base.units import show_count
from procsv.training.eager import private
from procsv.training.eager.object_graph import CannotCapture, ObjectGraph, PerReplica, array_of, view_of
from procsv.training.runtime.log import say_once
from procsv.training.snapshots.slot_layout import UNKNOWN
from procsv.training.snapshots.source import Captured, CheckpointEntry, StateSpec

PREFIX = "procsv/replicas/"  # of a replica's key; the replica's number and the variable's own key follow
CHUNK_BYTES = 1 << 26  # how much is compared at a time

# For each Checkpoint: the path from which the replicas' values were restored last.
_put_back: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


def is_of_replica(key: str) -> bool:
    return key.startswith(PREFIX)


# -- saving ----------------------------------------------------------------------------------------------------
def add_differing(
    groups: Sequence[PerReplica], captured: Captured, make_arrays: Callable[[list[Any]], list[Any]]
) -> None:
    """Extend a capture: its snapshot also gets the values of the `groups` whose replicas differ.

    A group is a variable with several replicas. `captured` already has the values of all groups,
    behind its other values. The replicas are compared when the capture's `view` runs, off the
    training thread.
    """
    spec = captured.spec
    assert spec is not None, "an EagerState gives one with each capture"
    count = len(spec.sizes)

    def view(values: list[Any]) -> list[Any]:
        kept = [group for group in groups if _differ(group, values)]
        arrays = make_arrays(values[:count])
        arrays += [array_of(values[number]) for group in kept for number in group.numbers]
        captured.spec = _extend(spec, kept)
        captured.copied += [False] * (len(arrays) - count)
        return arrays

    captured.view = view


def _extend(spec: StateSpec, groups: Sequence[PerReplica]) -> StateSpec:
    named = [(_key_of(group, place), group.dtype) for group in groups for place in range(len(group.variables))]
    first = len(spec.sizes)
    numbers = list(range(first, first + len(named)))
    entries = [CheckpointEntry(key, "", dtype, number) for (key, dtype), number in zip(named, numbers, strict=True)]
    layout = msgspec.structs.replace(
        spec.layout,
        offsets=spec.layout.offsets + [UNKNOWN] * len(named),  # after what every snapshot has
        single=spec.layout.single + numbers,
    )
    return msgspec.structs.replace(
        spec, shards=((*spec.shards[0], *entries),), sizes=spec.sizes + [None] * len(named), layout=layout
    )


def _key_of(group: PerReplica, place: int) -> str:
    return f"{PREFIX}{group.first + place}/{group.key}"


def _differ(group: PerReplica, values: Sequence[Any]) -> bool:
    """Return whether some replica may have another value than the one that TensorFlow saves.

    If TensorFlow saves a combination, the answer is True without a comparison.
    """
    return group.like is None or not all(are_equal(values[group.like], values[number]) for number in group.numbers)


def are_equal(one: Any, other: Any) -> bool:
    """Return whether two tensors hold the same bytes."""
    if one.shape != other.shape:
        return False
    if one.dtype in (tf.string, tf.variant):
        return bool(np.array_equal(array_of(one), array_of(other)))
    if "CPU" in one.device and "CPU" in other.device:
        return _are_alike(*(np.ascontiguousarray(view_of(each)).reshape(-1).view(np.uint8) for each in (one, other)))
    with tf.device(one.device):  # this copies `other` to the device of `one`, in pieces, and nothing to the host
        return _are_alike(_bytes_of(one), _bytes_of(other))


def _are_alike(one: Any, other: Any) -> bool:
    for start in range(0, int(one.shape[0]), CHUNK_BYTES):
        mine, theirs = one[start : start + CHUNK_BYTES], other[start : start + CHUNK_BYTES]
        if not (np.array_equal(mine, theirs) if isinstance(mine, np.ndarray) else bool(tf.reduce_all(mine == theirs))):
            return False
    return True


def _bytes_of(tensor: Any) -> Any:
    with tf.device(tensor.device):
        whole = tf.cast(tensor, tf.uint8) if tensor.dtype == tf.bool else tf.bitcast(tensor, tf.uint8)
        return tf.reshape(whole, [-1])


def write_whole(write: Callable[[str], Any], groups: Sequence[PerReplica], values: Sequence[Any], path: Path) -> str:
    """Have `write` make a checkpoint at `path`, and add the replicas' values where they differ.

    Return the path. `values` has the values of all variables, by number.
    """
    kept = [group for group in groups if _differ(group, values)]
    if not kept:
        # A kill in here leaves a directory without an index, which nothing takes for a checkpoint.
        return str(write(str(path)))
    parts = path.parent / "parts"
    own, besides = str(write(str(parts / "own"))), str(parts / "replicas")
    keys = [_key_of(group, place) for group in kept for place in range(len(group.variables))]
    tensors = [values[number] for group in kept for number in group.numbers]
    with tf.device("CPU"):
        tf.raw_ops.SaveV2(prefix=besides, tensor_names=keys, shape_and_slices=[""] * len(keys), tensors=tensors)
        tf.raw_ops.MergeV2Checkpoints(
            checkpoint_prefixes=[own, besides], destination_prefix=str(path), delete_old_dirs=True
        )
    return str(path)


# -- restoring -------------------------------------------------------------------------------------------------
def put_back_replicas(graph: ObjectGraph, keys: Iterable[str], read: Callable[[str], Any], is_all: bool = True) -> None:
    """Give the replicas of each variable their own saved values, if every replica has one.

    Report the variables whose replicas do not get their own values. `keys` are the keys of the
    saved state, and `read` returns the value of a key. If `is_all`, the program restores everything
    that was saved, so this also reports saved variables that the program does not have.
    """
    saved: dict[str, dict[int, str]] = {}
    for key in keys:
        number, _, of = key.removeprefix(PREFIX).partition("/")
        if is_of_replica(key) and number.isdecimal():
            saved.setdefault(of, {})[int(number)] = key
    lost: list[tuple[str, str]] = []
    for group in graph.per_replica:
        found = saved.pop(group.key, {})
        if sorted(found) == group.replicas:
            for replica, variable in zip(group.replicas, group.variables, strict=True):
                assign(variable, read(found[replica]))
        elif found:
            now = max(group.replicas) + 1
            lost.append((group.key, f"{max(found) + 1} replicas saved it, and {now} resume from it"))
        elif group.like is None:
            lost.append((group.key, "the saved state has no value for each replica"))
    made = {item.key for item in graph.tracked}
    lost += [(key, "there is one replica now") for key in sorted(saved.keys() & made)]
    if is_all:
        lost += [(key, "they are made after the restore") for key in sorted(saved.keys() - made)]
    _say_lost(lost)


def _say_lost(lost: Sequence[tuple[str, str]]) -> None:
    if lost:
        why = lost[0][1]
        say_once(
            f"the saved values of the single replicas of {_name([key for key, _ in lost])} cannot be restored: {why}. "
            "All replicas have the one value that TensorFlow restores"
        )


def _name(keys: Sequence[str]) -> str:
    first, more = keys[0].partition("/.ATTRIBUTES")[0], " and others" if len(keys) > 1 else ""
    return f"{show_count(len(keys), 'variable')} ({first}{more})"


def warn_of_tasks(graph: ObjectGraph) -> None:
    """Report variables that may differ between tasks, because only the chief's value is saved."""
    if graph.apart:
        say_once(
            f"{_name(graph.apart)} may differ between the tasks, and a checkpoint has only the chief's value. After a "
            "restart all tasks have that value, so the run may end with other bits than an uninterrupted one"
        )


def warn_of_one_value(checkpoint: Any, why: str) -> None:
    """Report that TensorFlow writes the checkpoints, with one value for all replicas."""
    view = private.view_graph(checkpoint)
    nodes = view.breadth_first_traversal()[0] if view is not None else ()
    if any(len(private.components_of(getattr(node, "obj", node))) > 1 for node in nodes):
        say_once(
            "after a restart all replicas of the strategy have the same value of each variable, even if their values "
            f"differ now: {why}"
        )


def assign(variable: Any, value: Any) -> None:
    """Assign a value to a resource variable directly, without its strategy."""
    with tf.device(variable.handle.device):
        tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)


def put_back_from_file(graph: ObjectGraph, path: str) -> None:
    """Restore the replicas' values after TensorFlow has restored the checkpoint at `path`."""
    reader, keys = _open_checkpoint(path)
    if graph.per_replica or any(map(is_of_replica, keys)):
        put_back_replicas(graph, keys, lambda key: tf.constant(reader.get_tensor(key)))


def _open_checkpoint(path: str) -> tuple[Any, list[str]]:
    """Return a reader of a checkpoint, and its keys.

    If the format is older or the file is missing, return None and no keys.
    """
    try:
        reader = tf.compat.v1.train.NewCheckpointReader(path)
        return reader, list(reader.get_variable_to_shape_map())
    except (tf.errors.OpError, ValueError, RuntimeError):
        return None, []


def after_read(checkpoint: Any, path: Any) -> None:
    """Restore the replicas' values after the program itself has restored `checkpoint`."""
    reader, keys = _open_checkpoint(str(path))
    if not any(map(is_of_replica, keys)):
        return
    with contextlib.suppress(CannotCapture, tf.errors.OpError):  # the first save reports what is wrong with it
        graph = ObjectGraph(private.saved_by(checkpoint))
        put_back_replicas(graph, keys, lambda key: tf.constant(reader.get_tensor(key)), is_all=False)
        _put_back[checkpoint] = os.path.realpath(path)


def check_put_back(checkpoint: Any, graph: ObjectGraph, path: str) -> None:
    """Report saved values of replicas that the program's own restore of `path` has not put back."""
    if graph.per_replica and _put_back.get(checkpoint) != os.path.realpath(path):
        found = sorted(
            {key.removeprefix(PREFIX).partition("/")[2] for key in _open_checkpoint(path)[1] if is_of_replica(key)}
        )
        _say_lost(
            [
                (key, "the program restored it before it made its CheckpointManager, or by another Checkpoint")
                for key in found
            ]
        )


def watch_reads(checkpoint: Any) -> None:
    """Restore the replicas' values whenever the program restores `checkpoint` by itself."""
    read = getattr(checkpoint, "read", None)
    if read is None or getattr(read, "is_watched", False):
        return

    def read_all(save_path: Any, *args: Any, **kwargs: Any) -> Any:
        status = read(save_path, *args, **kwargs)
        after_read(checkpoint, save_path)
        return status

    read_all.is_watched = True  # type: ignore[attr-defined]
    checkpoint.read = read_all
