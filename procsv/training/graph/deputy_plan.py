"""The plan by which a server captures the variables of all servers while there is no chief: the chief's own ops, and where all goes.

Laid by the chief's Capture once the servers have filled a slot, read by a deputy (deputy.py).  There is one only where all that is saved
lies on servers, the global step too; when it is withdrawn, runtime/capture_turn.py says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import tensorflow as tf

from procsv.training.runtime.context import current
from procsv.training.snapshots.source import StateSpec

tf1 = tf.compat.v1

COLOCATION = "_class"  # names ops that are not in the plan; every op has its device by now


class DeputyPlan(msgspec.Struct, frozen=True):
    """Ops by name, in a graph of their own; variables in them are the living ones, by device and shared name."""

    graph: bytes  # a serialized GraphDef
    order: str  # the placeholder's tensor
    takes: tuple[str, ...]
    copies: tuple[str, ...]
    fetched: dict[int, str]  # tensors that the servers do not capture, by the number of the array: strings, tables
    by_server: tuple[tuple[int, ...], ...]  # for each take: the numbers of the arrays that it captures
    shapes: tuple[tuple[int, ...], ...]  # of the arrays; () of those that are fetched
    spec: StateSpec
    target: str  # of the run, for people
    can_be_held: bool  # nothing but the steps of tasks changes the variables


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

    def looks(self) -> int:
        """How often this process has looked at the model: to be asked as a capture begins."""
        runtime = current()
        return runtime.capture_turn.looks if runtime is not None and runtime.capture_turn is not None else 0

    def keep(self, looks: int, step_s: float) -> None:
        """The servers have filled a slot for the chief, by a capture at that number of looks.  Off the training thread.

        `step_s`: that a step of the chief takes.
        """
        runtime = current()
        if runtime is not None and runtime.capture_turn is not None:
            target, interval_s = runtime.start.target, runtime.snapshots.interval_s
            runtime.capture_turn.note_snapshot(interval_s, step_s, looks, lambda: self._plan(target))

    def _plan(self, target: str) -> bytes:
        self._data = self._data or msgspec.msgpack.encode(self._make(target))
        return self._data
