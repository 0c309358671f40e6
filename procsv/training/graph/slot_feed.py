"""A snapshot, fed to the outputs of the Saver's own restore ops.

No file is read, and resource variables share the mapped memory until their first update.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from procsv.ipc.shm.slot_file import SlotReader
from procsv.ipc.shm.slot_index import TensorEntry, unpack_strings
from procsv.training.graph.graph_diff import Kinds, compare, kinds_of, saved_in
from procsv.training.graph.saver_ops import RestoreGraph, Unsupported, read_restore_graph
from procsv.training.snapshots.source import CannotRestore

tf1 = tf.compat.v1


def feed_from_slot(reader: SlotReader, session: Any, saver: Any) -> None:
    """Restores what `saver` restores; CannotRestore if it cannot be fed with what `reader` has."""
    try:
        graph = read_restore_graph(saver, session.graph)
    except Unsupported as why:
        raise CannotRestore(str(why)) from None
    _check(kinds_of(graph, saver, session.graph), reader)
    feeds = _match(graph, reader)
    tf1.Session.run(session, session.graph.get_operation_by_name(graph.restore_op), feeds)


def _check(wanted: Kinds, reader: SlotReader) -> None:
    """CannotRestore names what the snapshot lacks, or has in another shape or type."""
    changes = compare(wanted, saved_in(e for shard in reader.contents.shards for e in shard))
    if changes:
        raise CannotRestore(f"the graph has changed since: {changes}")


def _match(graph: RestoreGraph, reader: SlotReader) -> dict[Any, Any]:
    """An array for each restore output."""
    entries = {(e.key, e.slice): e for shard in reader.contents.shards for e in shard}
    return {tensor: _array(entries[key], tensor, reader) for key, tensor in graph.outputs.items()}


def _array(entry: TensorEntry, tensor: Any, reader: SlotReader) -> Any:
    dtype = tensor.dtype.base_dtype
    if dtype.is_quantized:
        raise CannotRestore(f"{entry.key} is {dtype.name}, which cannot be fed")
    if entry.dtype == "string":
        values = unpack_strings(reader.map[entry.offset : entry.offset + entry.size])
        strings = np.empty(len(values), dtype=object)
        strings[:] = values
        return strings.reshape(entry.shape)
    numpy_dtype = np.dtype(dtype.as_numpy_dtype)
    count = entry.size // numpy_dtype.itemsize
    return np.frombuffer(reader.map, numpy_dtype, count, entry.offset).reshape(entry.shape)
