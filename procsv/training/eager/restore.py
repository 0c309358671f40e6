"""Put a state into objects that exist: from a slot in shared memory, without a copy of what a variable holds.

Called by an EagerState.  A variable gets the slot's own memory, by DLPack, and leaves it at its first update.  What was saved
of objects that are made later (an optimizer's slots, say) TensorFlow alone can keep for them: then the checkpoint is read.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from procsv.ipc.shm.slot_index import TensorEntry, unpack_strings
from procsv.ipc.shm.slot_reader import SlotReader
from procsv.training.eager import private, replicas
from procsv.training.eager.object_graph import ObjectGraph, Tracked, variant_tensor
from procsv.training.snapshots.source import CannotRestore


def restore_from_slot(reader: SlotReader, graph: ObjectGraph) -> None:
    """Restores all of `graph`; CannotRestore, before anything is changed, if the slot has not exactly that."""
    entries = check_slot(reader, graph)
    owners: dict[int, list[Tracked]] = {}
    for number in graph.others:
        owners.setdefault(id(graph.tracked[number].owner), []).append(graph.tracked[number])
    for items in owners.values():
        values = {private.extract_local_name(i.key): _tensor(entries[i.key, i.slice], reader) for i in items}
        _restore_object(items[0].owner, values)
    for item in graph.tracked:
        for variable in (item.variable, *item.copies) if item.variable is not None else ():
            replicas.assign(variable, _tensor(entries[item.key, item.slice], reader))
    besides = {e.key: e for shard in reader.contents.shards for e in shard if replicas.is_of_replica(e.key)}
    replicas.put_back(graph, besides, lambda key: _tensor(besides[key], reader))


def restore_own(path: str, graph: ObjectGraph) -> None:
    """Gives each replica what was saved of one: TensorFlow has taken it for what those of all tasks come to, and has shared it out."""
    saved = tf.train.load_checkpoint(path) if graph.own else None
    for item in graph.own:
        if saved is not None and saved.has_tensor(item.key):
            for variable in (item.variable, *item.copies):
                replicas.assign(variable, tf.constant(saved.get_tensor(item.key), variable.dtype.base_dtype))


def _restore_object(owner: Any, values: dict[str, Any]) -> None:
    if isinstance(owner, tf.train.experimental.PythonState):
        (text,) = values.values()
        owner.deserialize(text.numpy())
    else:
        owner._restore_from_tensors(values)


def check_slot(reader: SlotReader, graph: ObjectGraph) -> dict[tuple[str, str], TensorEntry]:
    """The slot's entries; CannotRestore if they are not exactly those of `graph`.

    A key is the path to its object, so that the same keys are the same objects.
    """
    entries = {
        (e.key, e.slice): e for shard in reader.contents.shards for e in shard if not replicas.is_of_replica(e.key)
    }
    if entries.pop((private.GRAPH_KEY, ""), None) is None:
        raise CannotRestore("it holds no objects")
    now = {(item.key, item.slice): item for item in graph.tracked}
    if later := sorted(key for key, _ in entries.keys() - now.keys()):
        raise CannotRestore(f"{len(later)} of its values belong to objects that are not made yet ({later[0]})")
    if new := sorted(key for key, _ in now.keys() - entries.keys()):
        raise CannotRestore(f"it lacks {len(new)} of the program's values ({new[0]})")
    for key, item in now.items():
        entry = entries[key]
        if item.dtype != entry.dtype:
            raise CannotRestore(f"{item.key} is {item.dtype}, and was {entry.dtype}")
        if item.variable is not None and not item.variable.shape.is_compatible_with(entry.shape):
            raise CannotRestore(f"{item.key} is of shape {item.variable.shape}, and was of {entry.shape}")
        if item.variable is None and (item.slice or not hasattr(type(item.owner), "_restore_from_tensors")):
            raise CannotRestore(f"{item.key} is restored by TensorFlow alone")
    return entries


def _tensor(entry: TensorEntry, reader: SlotReader) -> Any:
    if entry.dtype == "variant":
        return variant_tensor(_packed(entry, reader), entry.shape)
    if entry.dtype == "string":
        return tf.constant(_packed(entry, reader), tf.string, shape=entry.shape)
    dtype = tf.as_dtype(entry.dtype)
    numpy_dtype = np.dtype(dtype.as_numpy_dtype)
    plain = numpy_dtype if numpy_dtype.isbuiltin == 1 else np.dtype(f"u{numpy_dtype.itemsize}")
    array = np.frombuffer(reader.map, plain, entry.size // plain.itemsize, entry.offset).reshape(entry.shape)
    if not array.size or plain is not numpy_dtype or dtype == tf.bool:
        return tf.constant(array.view(numpy_dtype), dtype)
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())  # shares the memory: of a private mapping


def _packed(entry: TensorEntry, reader: SlotReader) -> list[bytes]:
    return unpack_strings(reader.map[entry.offset : entry.offset + entry.size])
