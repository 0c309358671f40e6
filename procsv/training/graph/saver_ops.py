"""Read the tensors that a Saver saves and restores from the Saver's own graph ops.

A SaveConfig reads once what its Saver saves. Each restore reads what the Saver restores. Reading
adds nothing to the graph. If a Saver does more than read and assign tensors, the functions here
raise UnsupportedSaver with the reason. Then the Saver's own op writes the checkpoints.

The search follows the graph from `saver_def.save_tensor_name` back to the SaveV2 ops. The inputs of
a SaveV2 op are the file name, the tensors' names, the tensors' slices and the tensors.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import tensorflow as tf

from procsv.ipc.shm.slot_index import DTYPES, PACKED
from procsv.training.summaries.graph_walk import (
    REF_VARIABLES,
    RESOURCE_READS,
    closure,
    elements_of,
    needed_ops,
    sources_of,
)

tf1 = tf.compat.v1

SAVE_OP = "SaveV2"
FIRST_TENSOR = 3  # index of the first tensor among a save op's inputs
RESTORE_OPS = {"RestoreV2", "RestoreSlice", "Restore"}
# Ops that may lie between the save tensor and the save ops. They compute the file name or order the writes.
PLUMBING = {
    "Const",
    "Identity",
    "MergeV2Checkpoints",
    "NoOp",
    "Pack",
    "Placeholder",
    "PlaceholderWithDefault",
    "RegexFullMatch",
    "Select",
    "SelectV2",
    "ShardedFilename",
    "StaticRegexFullMatch",
    "StringJoin",
}
UNFETCHABLE = {"variant", "resource"}


class UnsupportedSaver(Exception):
    """Only a Saver's own ops can save or restore its tensors. The message says why."""


class SavedTensor(msgspec.Struct, frozen=True):
    """One tensor that a save op writes."""

    key: str
    slice: str  # which part of a partitioned variable, as SaveV2 spells it; "": the tensor is the whole variable
    tensor: Any  # tf.Tensor
    dtype: str


class SaveGraph(msgspec.Struct, frozen=True):
    """What a Saver writes: one shard for each save op, in the order of the shard numbers."""

    sharded: bool
    shards: tuple[tuple[SavedTensor, ...], ...]


class RestoreGraph(msgspec.Struct, frozen=True):
    """How to feed a Saver's restore: outputs of its restore ops, and the op that assigns them."""

    restore_op: Any  # tf.Operation
    outputs: dict[tuple[str, str], Any]  # (key, slice) -> tf.Tensor to feed


def read_save_graph(saver: Any, graph: Any) -> SaveGraph:
    """Return what `saver` saves in `graph`, or raise UnsupportedSaver with the reason."""
    if not isinstance(saver, tf1.train.Saver):
        raise UnsupportedSaver(f"{type(saver).__name__} is not a tf.compat.v1.train.Saver")
    if type(saver).save is not tf1.train.Saver.save or type(saver).restore is not tf1.train.Saver.restore:
        raise UnsupportedSaver(f"{type(saver).__name__} has a save or restore of its own")
    if saver.saver_def is None:
        raise UnsupportedSaver("the Saver is not built (defer_build=True): call build() before the Supervisor is made")
    if saver._is_empty:
        raise UnsupportedSaver("the Saver is empty")
    if saver.saver_def.version != tf1.train.SaverDef.V2:
        raise UnsupportedSaver("the Saver writes checkpoints in the V1 format: give it write_version=V2")
    save_ops, sharded = _find_save_ops(saver.saver_def, graph)
    filename = graph.as_graph_element(saver.saver_def.filename_tensor_name).op
    numbered = sorted((_shard_number(op, filename), op.name, op) for op in save_ops)
    if (sharded and [n for n, _, _ in numbered] != list(range(len(numbered)))) or (not sharded and len(save_ops) != 1):
        raise UnsupportedSaver(f"{len(save_ops)} save ops whose shard numbers are {[n for n, _, _ in numbered]}")
    shards = tuple(_entries(op, graph) for _, _, op in numbered)
    return SaveGraph(sharded, shards)


def _find_save_ops(saver_def: Any, graph: Any) -> tuple[list[Any], bool]:
    """Return the save ops that the save tensor depends on, and whether they write shards."""
    ops = closure([graph.as_graph_element(saver_def.save_tensor_name).op], _sources_of_saving)
    found = [op for op in ops if op.type == SAVE_OP]
    if not found:
        raise UnsupportedSaver(f"no save op above {saver_def.save_tensor_name}")
    merges = sum(op.type == "MergeV2Checkpoints" for op in ops)
    if merges > 1:
        raise UnsupportedSaver(f"{merges} merges of shards")
    return found, bool(merges)


def _sources_of_saving(op: Any) -> list[Any]:
    """Return the ops that must run before `op`, without those that compute tensors to save.

    Raise UnsupportedSaver if `op` is neither a save op nor plumbing. Constants are included,
    because they may depend on other ops: if a Saver was built under tf.control_dependencies,
    TensorFlow drops the dependency from the save op and keeps it at the op's constant inputs.
    """
    if op.type != SAVE_OP and op.type not in PLUMBING:
        raise UnsupportedSaver(f"saving also runs {op.name}, an op of type {op.type}")
    return [*(t.op for t in list(op.inputs)[: FIRST_TENSOR if op.type == SAVE_OP else None]), *op.control_inputs]


def _shard_number(save_op: Any, filename: Any) -> int:
    """Return the number of the shard that a save op writes.

    It is the number in the op ShardedFilename, or 0 if there is no such op. `filename` is the op
    that a save feeds with the file name. If the save op's file name does not come from there, raise
    UnsupportedSaver.
    """

    def sources(op: Any) -> list[Any]:
        if op.name == filename.name:
            return []
        if op.type not in PLUMBING:
            raise UnsupportedSaver(f"the file name of {save_op.name} is computed by {op.name}, an op of type {op.type}")
        return [t.op for t in op.inputs]

    ops = closure([save_op.inputs[0].op], sources)
    if not any(op.name == filename.name for op in ops):
        raise UnsupportedSaver(f"the file name of {save_op.name} does not come from {filename.name}")
    return next((int(_constant(op.inputs[1].op)) for op in ops if op.type == "ShardedFilename"), 0)


def _entries(op: Any, graph: Any) -> tuple[SavedTensor, ...]:
    names = _strings(op.inputs[1].op)
    slices = _strings(op.inputs[2].op)
    tensors = list(op.inputs)[FIRST_TENSOR:]
    if not len(names) == len(slices) == len(tensors):
        raise UnsupportedSaver(f"{op.name}: {len(names)} names, {len(slices)} slices, {len(tensors)} tensors")
    entries = []
    for key, spec, tensor in zip(names, slices, tensors, strict=True):
        dtype = tensor.dtype.base_dtype.name
        if dtype in UNFETCHABLE or not graph.is_fetchable(tensor):
            raise UnsupportedSaver(f"{key} is a {dtype} tensor, which cannot be fetched")
        if dtype not in DTYPES and dtype not in PACKED:
            raise UnsupportedSaver(f"{key} is a {dtype} tensor, which TensorFlow alone can save")
        entries.append(SavedTensor(key, spec, tensor, dtype))
    return tuple(entries)


def read_restore_graph(saver: Any, graph: Any) -> RestoreGraph:
    """Return how to restore without a file what `saver` restores.

    Raise UnsupportedSaver, with the reason, if that is impossible.
    """
    name = saver.saver_def.restore_op_name
    outputs: dict[tuple[str, str], Any] = {}
    ops = closure([graph.get_operation_by_name(name)], lambda op: () if op.type in RESTORE_OPS else sources_of(op))
    for op in (op for op in ops if op.type in RESTORE_OPS):
        keys = _strings(op.inputs[1].op)
        slices = _strings(op.inputs[2].op) if op.type != "Restore" else [""] * len(keys)
        for key, spec, tensor in zip(keys, slices, op.outputs, strict=True):
            if not graph.is_feedable(tensor):
                raise UnsupportedSaver(f"{key} cannot be fed")
            if (key, spec) in outputs:
                raise UnsupportedSaver(f"{key} is restored twice")
            outputs[key, spec] = tensor
    if not outputs:
        raise UnsupportedSaver(f"no restore op above {name}")
    return RestoreGraph(graph.get_operation_by_name(name), outputs)


def is_restore(fetches: Any, graph: Any) -> bool:
    """Return whether `fetches` is a Saver's restore op, which Savers fetch by its name."""
    if not isinstance(fetches, str) or ":" in fetches:
        return False
    top = graph.get_operation_by_name(fetches)
    groups = closure([top], lambda op: (o for o in op.control_inputs if o.type == "NoOp"))  # one for each shard
    assignments = {op for group in groups for op in group.control_inputs}
    values = {t.op for assignment in assignments for t in assignment.inputs}
    return any(op.type in RESTORE_OPS or any(t.op.type in RESTORE_OPS for t in op.inputs) for op in values)


def _constant(op: Any) -> Any:
    while op.type == "Identity":
        op = op.inputs[0].op
    if op.type != "Const":
        raise UnsupportedSaver(f"{op.name} is not a constant but an op of type {op.type}")
    return tf.make_ndarray(op.get_attr("value"))


def _strings(op: Any) -> list[str]:
    return [x.decode() if isinstance(x, bytes) else str(x) for x in _constant(op).reshape(-1).tolist()]


# -- side effects ------------------------------------------------------------------------------------------------
_HANDLES = {
    "VarHandleOp",
    "HashTableV2",
    "MutableHashTableV2",
    "MutableDenseHashTableV2",
    "MutableHashTableOfTensorsV2",
}
_REF_PASSING = {"RefSwitch", "RefMerge", "RefEnter"}


def is_harmless(graph: Any, fetches: Any, saved: Iterable[Any]) -> bool:
    """Return whether running `fetches` certainly changes none of the tensors `saved`.

    `fetches` is what the program gave to Session.run. This matters if the machine is about to go
    away during a long call. If the call only evaluates, it writes no variable, so the state can be
    captured while the call runs. An op that is not known as a read counts as a write.
    """
    known, found = elements_of(graph, fetches), [_writers_of(tensor) for tensor in saved]
    writers = [one for one in found if one is not None]
    if known is None or len(writers) < len(found):
        return False
    return needed_ops(known[0]).isdisjoint(set[Any]().union(*writers))


def writes(graph: Any, fetches: Any, tensor: Any) -> bool:
    """Return whether running `fetches` certainly runs an op that may change what `tensor` reads."""
    known, writers = elements_of(graph, fetches), _writers_of(tensor)
    return known is not None and writers is not None and not needed_ops(known[0]).isdisjoint(writers)


def _writers_of(tensor: Any) -> set[Any] | None:
    """Return the ops that may change what `tensor` reads; None if its kind is unknown."""
    op = tensor.op
    while op.type == "Identity":
        op = op.inputs[0].op
    if op.type == "Const":
        return set()
    if op.type in REF_VARIABLES:
        return closure(_ref_users(op), _ref_users)
    if op.inputs and op.inputs[0].op.type in _HANDLES and op.type in RESOURCE_READS:
        return {user for user in op.inputs[0].op.outputs[0].consumers() if user.type not in RESOURCE_READS}
    return None


def _ref_users(op: Any) -> list[Any]:
    """Return the ops that take a reference to a variable from `op`, to write or to pass it on."""
    refs = (output for output in op.outputs if output.dtype._is_ref_dtype)
    users = (user for ref in refs for user in ref.consumers())
    return [user for user in users if user.type in _REF_PASSING or any(arg.is_ref for arg in user.op_def.input_arg)]
