"""Read a TF_CONFIG that was set from outside: a cluster, and this process's task in it.  Pure.

procsv/base/placement.py calls it.  It reads what TensorFlow's TFConfigClusterResolver reads, and
reports mistakes before a program has spent its start-up time.  It never changes TF_CONFIG; the
program gets the same text.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator

import msgspec

from procsv.base.cluster import CHIEF, EVALUATOR, PS, SPARE, WORKER, Cluster
from procsv.base.encoding import decode_json
from procsv.base.errors import UserError
from procsv.base.identity import TaskId
from procsv.base.schedulers.variables import Environment

VARIABLE = "TF_CONFIG"
ALONE = "--cluster local runs this task by itself"
_ROLES = (CHIEF.role, WORKER, PS, EVALUATOR)


class _Task(msgspec.Struct, frozen=True):
    type: str
    index: int | str = 0  # TensorFlow also accepts "1"


class _Config(msgspec.Struct, frozen=True):
    """The fields of TF_CONFIG that procsv needs.

    The others (environment, rpc_layer) are only for TensorFlow.
    """

    cluster: dict[str, list[str]] = {}
    task: _Task | None = None


class ClusterMember(msgspec.Struct, frozen=True):
    """One task's view of a cluster, already checked."""

    task: TaskId  # has an address in the cluster, unless it is an evaluator or a spare launch
    cluster: Cluster

    @property
    def addresses(self) -> dict[TaskId, str]:
        """host:port of each task in the cluster."""
        return {TaskId(role, index): text for role, texts in self.cluster.items() for index, text in enumerate(texts)}

    @property
    def identity(self) -> str:
        """Identifies the cluster; it is the same for all tasks of the cluster.

        It does not change when all tasks restart, because nothing in TF_CONFIG shows a restart.
        """
        text = json.dumps(self.cluster, sort_keys=True)
        return f"tf-config:{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def names_a_task(environment: Environment) -> bool:
    """Whether there is a TF_CONFIG with a cluster and a task; UserError if it cannot be read.

    A TF_CONFIG without a task is for clients of a cluster, and one without a cluster for a single
    program.
    """
    config = _decode(environment)
    return bool(config.cluster) and config.task is not None


def read_member(environment: Environment) -> ClusterMember:
    """Reads the task of this process and its cluster; UserError says what is wrong with them."""
    config = _decode(environment)
    if not config.cluster or config.task is None:
        lacking = "no cluster" if not config.cluster else "no task"
        raise UserError(f"TF_CONFIG has {lacking}, so it does not say which task of which run this is; {ALONE}")
    for fault in (*_faults_of_cluster(config.cluster), *_faults_of_task(config.task, config.cluster)):
        raise UserError(f"TF_CONFIG has {fault}; {ALONE}")
    return ClusterMember(TaskId(config.task.type, int(config.task.index)), config.cluster)


def _decode(environment: Environment) -> _Config:
    try:
        return decode_json((environment.get(VARIABLE) or "{}").encode(errors="replace"), _Config)
    except msgspec.DecodeError as error:
        raise UserError(
            f'TF_CONFIG is not what TensorFlow reads ({error}); it is JSON such as {{"cluster": {{"worker": ["host:2222"]}}, '
            f'"task": {{"type": "worker", "index": 0}}}}; {ALONE}'
        ) from error


def _faults_of_cluster(cluster: Cluster) -> Iterator[str]:
    for role in cluster:
        if role not in _ROLES:
            yield f"tasks of the type {role!r} in its cluster, and procsv knows {', '.join(_ROLES)}"
    if len(cluster.get(CHIEF.role, ())) > 1:
        yield f"{len(cluster[CHIEF.role])} chiefs in its cluster, and there can be only one"
    if not cluster.get(CHIEF.role) and not cluster.get(WORKER):
        yield "neither a chief nor a worker in its cluster, so nobody's state would be saved"
    addresses = Counter(address for texts in cluster.values() for address in texts)
    for address, count in addresses.items():
        host, _, port = address.rpartition(":")
        if not (host and port.isascii() and port.isdecimal() and 1 <= int(port) <= 65535):
            yield f"the address {address!r} in its cluster, which is not host:port"
        if count > 1:
            yield f"the address {address} {count} times in its cluster"


def _faults_of_task(task: _Task, cluster: Cluster) -> Iterator[str]:
    if task.type not in (*_ROLES, SPARE):
        yield f"a task of the type {task.type!r}, and procsv knows {', '.join(_ROLES)}"
    index = str(task.index)
    if not (index.isascii() and index.isdecimal()):
        yield f"a task with the index {index!r}, and indexes count from 0"
    elif task.type not in (EVALUATOR, SPARE) and int(index) >= len(cluster.get(task.type, ())):
        yield f"{task.type} {index} for its task, and no address of it in its cluster ({_show(cluster)})"


def _show(cluster: Cluster) -> str:
    return ", ".join(f"{role}: {' '.join(texts)}" for role, texts in cluster.items())
