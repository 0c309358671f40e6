"""Decide whether a capture of a graph may mix updates of neighbouring steps.

The modules that plan and take captures ask this one. If a capture may mix updates, the manifest of
its checkpoint says so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from procsv.base.cluster import PS, STEPLESS

VARIABLE_OPS = frozenset({"VarHandleOp", "VariableV2", "Variable"})


def changes_between_steps(graph: Any) -> bool:
    """Return whether threads of the program may change variables while no task makes a step.

    SyncReplicasOptimizer's threads do.
    """
    return any(op.type.endswith("ConditionalAccumulator") for op in graph.get_operations())


def may_mix(graph: Any, environment: Mapping[str, str]) -> bool:
    """Return whether other tasks may change the variables of `graph` during a capture.

    Other tasks may change variables that parameter servers hold. If TF_CONFIG says that exactly one
    task trains, there is no other task. Without TF_CONFIG, there may be others.

    SyncReplicasOptimizer is no exception: a thread of the chief applies the next update as soon as
    the other tasks' gradients have arrived, which may be during a capture.
    """
    devices = (tf.DeviceSpec.from_string(op.device) for op in graph.get_operations() if op.type in VARIABLE_OPS)
    if not any(device.job == PS for device in devices):
        return False
    try:
        cluster = json.loads(environment.get("TF_CONFIG") or "{}").get("cluster", {})
    except ValueError:  # the program will report it
        return True
    training = [address for role, addresses in cluster.items() if role not in STEPLESS for address in addresses]
    return len(training) != 1
