"""Restore a graph session from a slot in shared memory, or from a checkpoint.

A GraphState calls this module. To restore from a slot, `feed_from_slot` runs the Saver's restore
op, and feeds the slot's values in place of what the op would read from a file. Resource variables
then share the mapped memory until their first update. To restore from a checkpoint,
`restore_or_send` runs the Saver's own `restore`. If the graph has changed since the checkpoint, the
error names the changes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import tensorflow as tf

from procsv.base import exit_codes
from procsv.base.errors import UserError
from procsv.base.location import literal_path
from procsv.ipc.shm.slot_index import TensorEntry, unpack_strings
from procsv.ipc.shm.slot_reader import SlotReader
from procsv.training.graph.saver_ops import RestoreGraph, UnsupportedSaver, read_restore_graph, read_save_graph
from procsv.training.snapshots.source import CannotRestore

tf1 = tf.compat.v1

# -- how a graph differs from a saved state -----------------------------------------------------------------------
NAMES_MAX = 10  # how many names of each kind are listed; the rest are counted


OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"  # a key that a tf.train.Checkpoint adds to its files

Specs = Mapping[tuple[str, str], Any]  # tf.TensorSpec by key and slice; the slice "" stands for the whole


class Changes(msgspec.Struct, frozen=True):
    """How a graph differs from a saved state. Only the user can know which of the two is right."""

    missing: list[str]  # keys of the graph that the state lacks
    differing: list[str]  # a sentence for each key whose shape or type differs
    unused: list[str]  # saved keys that the graph does not know

    def __bool__(self) -> bool:
        return bool(self.missing or self.differing)

    def __str__(self) -> str:
        said = []
        if self.missing:
            said.append(f"it lacks {_named(self.missing)}, which the graph has")
        if self.differing:
            said.append(_named(self.differing, "; "))
        if self.unused:
            said.append(f"it has {_named(self.unused)}, which the graph does not have")
        return "; ".join(said)


def _named(names: list[str], between: str = ", ") -> str:
    rest = len(names) - NAMES_MAX
    return between.join(sorted(names)[:NAMES_MAX]) + (f" and {rest} more" if rest > 0 else "")


def specs_of(restore: RestoreGraph, saver: Any, graph: Any) -> dict[tuple[str, str], Any]:
    """Return the type of each tensor that `saver` restores, and its shape if it is known.

    The shapes are unknown if the Saver may change them (`reshape=True`), or if its ops do not show
    what it saves.
    """
    shapes: dict[tuple[str, str], Any] = {}
    if not getattr(saver, "_reshape", False):
        with contextlib.suppress(UnsupportedSaver):  # then the ops do not show the shapes
            saved = read_save_graph(saver, graph)
            shapes = {(item.key, item.slice): item.tensor.shape for shard in saved.shards for item in shard}
    return {key: tf.TensorSpec(shapes.get(key), t.dtype.base_dtype) for key, t in restore.outputs.items()}


def compare(wanted: Specs, there: Specs) -> Changes:
    """Return how the graph differs from a saved state: `wanted` and `there` are their specs."""
    missing = [key for key, part in wanted if (key, part) not in there]
    differing = [
        f"{key} is {_shown(spec)} in the graph and {_shown(there[key, part])} in it"
        for (key, part), spec in wanted.items()
        if (key, part) in there and not spec.is_compatible_with(there[key, part])
    ]
    wanted_keys = {key for key, _ in wanted}
    return Changes(missing, differing, [key for key, _ in there if key not in wanted_keys])


def _shown(spec: Any) -> str:
    shape = "?" if spec.shape.rank is None else ", ".join("?" if n is None else str(n) for n in spec.shape.as_list())
    return f"{spec.dtype.name} [{shape}]"


def changes_since(path: str, saver: Any, graph: Any) -> Changes:
    """Return how the graph differs from checkpoint `path`. A partitioned variable counts as one.

    Raise UnsupportedSaver if the ops of `saver` do not show what it restores.
    """
    reader = tf.train.load_checkpoint(path)
    dtypes = reader.get_variable_to_dtype_map()
    shapes = reader.get_variable_to_shape_map()
    there = {(key, ""): tf.TensorSpec(shape, dtypes[key]) for key, shape in shapes.items()}
    whole = {}
    for (key, part), spec in specs_of(read_restore_graph(saver, graph), saver, graph).items():
        *size, _ = part.split() if part else [""]
        whole[key, ""] = tf.TensorSpec(tuple(map(int, size)), spec.dtype) if part else spec
    return compare(whole, there)


# -- from a slot ---------------------------------------------------------------------------------------------
def feed_from_slot(reader: SlotReader, session: Any, saver: Any) -> None:
    """Restore what `saver` restores, from a slot.

    Raise CannotRestore if the slot lacks a tensor or has it in another shape or type, or if the
    Saver does more than assign tensors.
    """
    try:
        graph = read_restore_graph(saver, session.graph)
    except UnsupportedSaver as why:
        raise CannotRestore(str(why)) from None
    entries = {(e.key, e.slice): e for shard in reader.contents.shards for e in shard}
    there = {key: tf.TensorSpec(e.shape, e.dtype) for key, e in entries.items()}
    changes = compare(specs_of(graph, saver, session.graph), there)
    if changes:
        raise CannotRestore(f"the graph has changed since: {changes}")
    feeds = {tensor: _array(entries[key], tensor, reader) for key, tensor in graph.outputs.items()}
    tf1.Session.run(session, graph.restore_op, feeds)


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


# -- from a checkpoint ---------------------------------------------------------------------------------------
class GraphChanged(UserError):
    """The graph differs from the saved state. Another start cannot fix that."""

    def __init__(self, text: str) -> None:
        super(UserError, self).__init__(None, None, text)  # for an OpError: no node and no op
        self.exit_code = exit_codes.GAVE_UP


class KeysMissing(GraphChanged, tf.errors.NotFoundError):
    """The saved state lacks tensors of the graph. TensorFlow raises a NotFoundError for this."""


class KeysDiffer(GraphChanged, tf.errors.InvalidArgumentError):
    """The saved state has tensors of the graph in another shape or type.

    TensorFlow raises an InvalidArgumentError for this.
    """


def restore_or_send(saver: Any, session: Any, path: str) -> None:
    """Restore checkpoint `path`. If the servers cannot read it, read it here and send it to them.

    A Saver's restore ops read the files on the machine where their variables are. This may be a
    server's machine that shares no files with the chief. One call sends all values, so they must
    fit into one message (2 GB). If sending fails, too, raise TensorFlow's first error.
    """
    with literal_path(path) as readable:
        _restore_or_send(saver, session, readable)


def _restore_or_send(saver: Any, session: Any, path: str) -> None:
    try:
        restore_checkpoint(saver, session, path)
    except KeysMissing:
        raise
    except tf.errors.NotFoundError as not_there:
        if not session.sess_str:
            raise  # the session is in this process, so reading the files here would fail, too
        try:
            graph = read_restore_graph(saver, session.graph)
            reader = tf.train.load_checkpoint(path)
            feeds = {tensor: _part(reader.get_tensor(key), spec) for (key, spec), tensor in graph.outputs.items()}
            tf1.logging.info("procsv: the servers cannot read %s: reading it here and sending it to them", path)
            tf1.Session.run(session, graph.restore_op, feeds)
        except (UnsupportedSaver, ValueError, TypeError, tf.errors.OpError) as why_not:
            tf1.logging.warning("procsv: %s cannot be sent to the servers either: %s", path, why_not)
            raise not_there from why_not


def _part(whole: Any, spec: str) -> Any:
    """Return the part of a partitioned variable that `spec` describes.

    `spec` is the variable's shape, then "start,length" for each dimension, or "-" for all of it.
    """
    if not spec:
        return whole
    ranges = spec.split()[-1].split(":")
    bounds = [None if r == "-" else [int(x) for x in r.split(",")] for r in ranges]
    return np.asarray(whole)[tuple(slice(None) if b is None else slice(b[0], b[0] + b[1]) for b in bounds)]


def restore_checkpoint(saver: Any, session: Any, path: str) -> None:
    """Restore with `saver.restore`, and name every change of the graph that prevents it.

    Raises KeysMissing or KeysDiffer. TensorFlow's own error names one key or none. TensorFlow also
    puts a value of another shape into a resource variable without a warning, so this function
    compares the shapes first.
    """
    changes = None
    if getattr(type(saver), "restore", None) is tf1.train.Saver.restore:  # an overridden one may map names differently
        try:
            changes = changes_since(path, saver, session.graph)
        except (UnsupportedSaver, tf.errors.OpError, ValueError):
            changes = None  # TensorFlow's restore will report what is wrong
    if changes is not None and changes.differing:
        raise KeysMissing(_error_text(path, changes)) if changes.missing else KeysDiffer(_error_text(path, changes))
    try:
        saver.restore(session, path)
    except tf.errors.NotFoundError as error:  # only now: TensorFlow may find a key under its name in the object graph
        if not changes:
            raise
        raise KeysMissing(_error_text(path, changes)) from error


def _error_text(path: str, changes: Changes) -> str:
    if OBJECT_GRAPH in changes.unused:
        return (
            f"Restoring from checkpoint failed: {path} was made by a program of another kind, with a "
            "tf.train.Checkpoint; this one restores by a Saver.  Give it a directory of its own: procsv launch --new "
            "…, or --logdir with another directory"
        )
    mismatch = "a mismatch between the current graph and the graph from the checkpoint"
    what = "keys of the graph are missing from the checkpoint" if changes.missing else mismatch
    return (  # begins with TensorFlow's words
        f"Restoring from checkpoint failed: {what}.  The graph has changed since {path} was made: {changes}.  Change "
        "it back, restore what fits with a Saver of your own (Supervisor: saver=, init_fn=), or start anew in "
        "another logdir."
    )
