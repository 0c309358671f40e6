"""Mixing of steps: whether what is captured of a graph may have updates of neighbouring steps in it.

Called by save_config.py and state.py.  The manifests of such checkpoints say so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from procsv.base.cluster import PS, STEPLESS

VARIABLE_OPS = frozenset({"VarHandleOp", "VariableV2", "Variable"})


def changes_between_steps(graph: Any) -> bool:
    """Whether threads of the program may change the variables of `graph` while no task makes a step, as SyncReplicasOptimizer's do."""
    return any(op.type.endswith("ConditionalAccumulator") for op in graph.get_operations())


def may_mix(graph: Any, environment: Mapping[str, str]) -> bool:
    """Whether other tasks may change the variables of `graph` while they are captured: servers have them, and not one trains.

    Without a TF_CONFIG that says how many train, there may be others.  In SyncReplicasOptimizer's graphs, too, a thread of the
    chief applies the next update whenever the gradients are there.
    """
    devices = (tf.DeviceSpec.from_string(op.device) for op in graph.get_operations() if op.type in VARIABLE_OPS)
    if not any(device.job == PS for device in devices):
        return False
    try:
        cluster = json.loads(environment.get("TF_CONFIG") or "{}").get("cluster", {})
    except ValueError:  # the program's own business
        return True
    training = [address for role, addresses in cluster.items() if role not in STEPLESS for address in addresses]
    return len(training) != 1
