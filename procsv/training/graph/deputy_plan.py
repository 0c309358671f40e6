"""The plan by which a server captures the variables of all servers while there is no chief: the chief's own ops, and where all goes.

Laid by the chief's Capture in shared memory once the servers have filled a slot, read by a deputy (deputy.py).  There is one only where
all that is saved lies on servers, the global step too.  Whoever is about to change the model other than by training withdraws it first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import msgspec
import tensorflow as tf

from procsv.base.system.atomic_file import replace_file
from procsv.training.runtime.context import Runtime, current
from procsv.training.snapshots.source import StateSpec

tf1 = tf.compat.v1

COLOCATION = "_class"  # names ops that are not in the plan; every op has its device by now


class DeputyPlan(msgspec.Struct, frozen=True):
    """Ops by name, in a graph of their own; variables in them are the living ones, by device and shared name."""

    graph: bytes  # a serialized GraphDef
    order: str  # the placeholder's tensor
    takes: tuple[str, ...]
    copies: tuple[str, ...]
    by_server: tuple[tuple[int, ...], ...]  # for each take: the numbers of the arrays that it captures
    shapes: tuple[tuple[int, ...], ...]  # of the arrays
    spec: StateSpec
    target: str  # of the run, for people


def graph_above(tensors: list[Any]) -> bytes:
    """The ops that make `tensors`, serialized; what hides ops of ours from the program's graph does not hide them here."""
    found: dict[str, Any] = {}
    todo = [tensor.op for tensor in tensors]
    while todo:
        op = todo.pop()
        if op.name not in found:
            found[op.name] = op.node_def
            todo += [each.op for each in op.inputs] + list(op.control_inputs)
    graph = tf1.GraphDef(node=found.values())
    graph.versions.CopyFrom(tensors[0].graph.graph_def_versions)
    for node in graph.node:
        node.attr.pop(COLOCATION, None)
    data: bytes = graph.SerializeToString()
    return data


class PlanKeeper:
    """Lays the plan of one Capture, and how often it is to be carried out."""

    def __init__(self, make: Callable[[str], DeputyPlan]) -> None:
        """`make`: makes the plan, for the target of the run."""
        self._make = make
        self._data = b""

    def keep(self) -> None:
        """The servers have filled a slot for the chief.  Off the training thread."""
        runtime = current()
        if runtime is None or runtime.capture_turn is None:
            return
        runtime.capture_turn.note_snapshot(runtime.snapshots.interval_s)
        path = runtime.paths.deputy_plan
        if self._data and path.exists():
            return
        self._data = self._data or msgspec.msgpack.encode(self._make(runtime.start.target))
        with contextlib.suppress(OSError):  # no room: tried again after the next
            # killed in here: no plan, or that of the chief before
            replace_file(path, self._data, durable=False)


def withdraw_plan(runtime: Runtime) -> None:
    """From here on no server captures by itself."""
    if runtime.capture_turn is not None:
        runtime.paths.deputy_plan.unlink(missing_ok=True)
