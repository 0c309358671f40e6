"""Tensors that a Saver saves and restores, read from its own graph ops.

Called once by the Supervisor for the Saver it was given.  Adds nothing to the graph.  A Saver whose save or
restore does anything else than reading and assigning tensors is Unsupported, with the reason: its own op then
writes the checkpoint.

From `saver_def.save_tensor_name` back to the SaveV2 ops: inputs are file name, names, slices, tensors.
"""

from __future__ import annotations

from typing import Any

import msgspec
import tensorflow as tf

from procsv.ipc.shm.slot_index import Format
from procsv.training.summaries.graph_walk import closure, sources_of

tf1 = tf.compat.v1

SAVE_OPS = {"SaveV2": 3, "SaveSlices": 3, "Save": 2}  # op type -> index of its first tensor
RESTORE_OPS = {"RestoreV2", "RestoreSlice", "Restore"}
# What may lie between the save tensor and the save ops: it computes the file name or orders the writes.
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
    "ShardedFilespec",
    "StaticRegexFullMatch",
    "StringJoin",
}
UNFETCHABLE = {"variant", "resource"}


class Unsupported(Exception):
    """This Saver can only be run by its own op.  The text says why."""


class SavedTensor(msgspec.Struct, frozen=True):
    """One tensor that a save op writes."""

    key: str
    slice: str
    tensor: Any  # tf.Tensor
    dtype: str


class SaveGraph(msgspec.Struct, frozen=True):
    """What the Saver writes: as many shards as it has save ops, in the order of their numbers."""

    format: Format
    sharded: bool
    shards: tuple[tuple[SavedTensor, ...], ...]


class RestoreGraph(msgspec.Struct, frozen=True):
    """How the Saver's restore can be fed: the outputs of its restore ops, and the op that assigns them."""

    restore_op: Any  # tf.Operation
    outputs: dict[tuple[str, str], Any]  # (key, slice) -> tf.Tensor to feed


def read_save_graph(saver: Any, graph: Any) -> SaveGraph:
    """What `saver` (a tf.compat.v1.train.Saver) saves in `graph`; Unsupported with the reason."""
    if not isinstance(saver, tf1.train.Saver):
        raise Unsupported(f"{type(saver).__name__} is not a tf.compat.v1.train.Saver")
    if type(saver).save is not tf1.train.Saver.save or type(saver).restore is not tf1.train.Saver.restore:
        raise Unsupported(f"{type(saver).__name__} has a save or restore of its own")
    if saver.saver_def is None:
        raise Unsupported("the Saver is not built (defer_build=True): call build() before the Supervisor is made")
    if saver._is_empty:
        raise Unsupported("the Saver is empty")
    save_ops, sharded = _find_save_ops(saver.saver_def, graph)
    kinds = {op.type for op in save_ops}
    if len(kinds) != 1:
        raise Unsupported(f"save ops of several kinds: {sorted(kinds)}")
    filename = graph.as_graph_element(saver.saver_def.filename_tensor_name).op
    numbered = sorted((_shard_number(op, filename), op.name, op) for op in save_ops)
    if (sharded and [n for n, _, _ in numbered] != list(range(len(numbered)))) or (not sharded and len(save_ops) != 1):
        raise Unsupported(f"{len(save_ops)} save ops whose shard numbers are {[n for n, _, _ in numbered]}")
    shards = tuple(_entries(op, graph) for _, _, op in numbered)
    return SaveGraph("v2" if kinds == {"SaveV2"} else "v1", sharded, shards)


def _find_save_ops(saver_def: Any, graph: Any) -> tuple[list[Any], bool]:
    """The save ops above the save tensor, and whether what they write is sharded."""
    ops = closure([graph.as_graph_element(saver_def.save_tensor_name).op], _sources_of_saving)
    found = [op for op in ops if op.type in SAVE_OPS]
    if not found:
        raise Unsupported(f"no save op above {saver_def.save_tensor_name}")
    merges = sum(op.type == "MergeV2Checkpoints" for op in ops)
    if merges > 1:
        raise Unsupported(f"{merges} merges of shards")
    return found, bool(merges) or any(op.type == "ShardedFilespec" for op in ops)


def _sources_of_saving(op: Any) -> list[Any]:
    """What runs before `op`: of a save op, not its data.

    All else must be plumbing, the constants included: under tf.control_dependencies the edge sits on them and is pruned
    from the save op itself.
    """
    if op.type not in SAVE_OPS and op.type not in PLUMBING:
        raise Unsupported(f"saving also runs {op.name}, an op of type {op.type}")
    return [*(t.op for t in list(op.inputs)[: SAVE_OPS.get(op.type)]), *op.control_inputs]


def _shard_number(save_op: Any, filename: Any) -> int:
    """The number of a save op's shard: its file name is the fed one, or ShardedFilename(name, number, count)."""

    def sources(op: Any) -> list[Any]:
        if op.name == filename.name:
            return []
        if op.type not in PLUMBING:
            raise Unsupported(f"the file name of {save_op.name} is computed by {op.name}, an op of type {op.type}")
        return [t.op for t in op.inputs]

    ops = closure([save_op.inputs[0].op], sources)
    if not any(op.name == filename.name for op in ops):
        raise Unsupported(f"the file name of {save_op.name} does not come from {filename.name}")
    return next((int(_constant(op.inputs[1].op)) for op in ops if op.type == "ShardedFilename"), 0)


def _entries(op: Any, graph: Any) -> tuple[SavedTensor, ...]:
    names = _strings(op.inputs[1].op)
    slices = [""] * len(names) if op.type == "Save" else _strings(op.inputs[2].op)
    tensors = list(op.inputs)[SAVE_OPS[op.type] :]
    if not len(names) == len(slices) == len(tensors):
        raise Unsupported(f"{op.name}: {len(names)} names, {len(slices)} slices, {len(tensors)} tensors")
    entries = []
    for key, spec, tensor in zip(names, slices, tensors, strict=True):
        dtype = tensor.dtype.base_dtype.name
        if dtype in UNFETCHABLE or not graph.is_fetchable(tensor):
            raise Unsupported(f"{key} is a {dtype} tensor, which cannot be fetched")
        entries.append(SavedTensor(key, spec, tensor, dtype))
    return tuple(entries)


def read_restore_graph(saver: Any, graph: Any) -> RestoreGraph:
    """How to restore `saver` without a file; Unsupported with the reason."""
    name = saver.saver_def.restore_op_name
    outputs: dict[tuple[str, str], Any] = {}
    ops = closure([graph.get_operation_by_name(name)], lambda op: () if op.type in RESTORE_OPS else sources_of(op))
    for op in (op for op in ops if op.type in RESTORE_OPS):
        keys = _strings(op.inputs[1].op)
        slices = _strings(op.inputs[2].op) if op.type != "Restore" else [""] * len(keys)
        for key, spec, tensor in zip(keys, slices, op.outputs, strict=True):
            if not graph.is_feedable(tensor):
                raise Unsupported(f"{key} cannot be fed")
            if (key, spec) in outputs:
                raise Unsupported(f"{key} is restored twice")
            outputs[key, spec] = tensor
    if not outputs:
        raise Unsupported(f"no restore op above {name}")
    return RestoreGraph(graph.get_operation_by_name(name), outputs)


def is_restore(fetches: Any, graph: Any) -> bool:
    """Whether a call that fetches this is a Saver's restore, which fetches its op by name."""
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
        raise Unsupported(f"{op.name} is not a constant but an op of type {op.type}")
    return tf.make_ndarray(op.get_attr("value"))


def _strings(op: Any) -> list[str]:
    return [x.decode() if isinstance(x, bytes) else str(x) for x in _constant(op).reshape(-1).tolist()]
