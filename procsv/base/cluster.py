"""List the tasks of a run that has several, and describe the cluster to each task.

Pure.  The command line uses it to check its options, and the watchdog to assign addresses.  The
start of every task uses it for TF_CONFIG, and for the arguments of programs that read their role
from flags.  A run of one task, the trainer, has no cluster.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from procsv.base.identity import TaskId

CHIEF = TaskId("chief")
EVALUATOR, PS, WORKER = "evaluator", "ps", "worker"
SPARE = "spare"  # a launch without a task, which takes over the task of a lost machine
STEPLESS = frozenset({PS, EVALUATOR})  # roles of tasks that make no training steps

GRPC_OPTIONS = "TF_GRPC_DEFAULT_OPTIONS"  # arguments for all of TensorFlow's channels, as NAME=VALUE,NAME=VALUE
# If a peer's port refuses a connection, TensorFlow retries after a second, gRPC's default.  gRPC's minimum is 100 ms.
RECONNECT, RECONNECT_MS = "grpc.initial_reconnect_backoff_ms", 100

# Role -> host:port of each task, in the order of the indexes; evaluators have no address.
Cluster = Mapping[str, Sequence[str]]


def list_tasks(workers: int, ps: int, evaluators: int, *, has_chief: bool = True) -> tuple[TaskId, ...]:
    """Lists the tasks, first the task whose state is saved.

    That is the chief, or worker.0 without a chief.
    """
    chief = (CHIEF,) if has_chief else ()
    numbered = ((WORKER, workers), (PS, ps), (EVALUATOR, evaluators))
    return chief + tuple(TaskId(role, index) for role, count in numbered for index in range(count))


def role_of(name: str) -> str:
    """Returns the role in a task's name.  Names from files may be anything."""
    return name.partition(".")[0]


def needs_address(task: TaskId) -> bool:
    """Whether other tasks connect to `task`.

    An evaluator only reads files, and a spare launch has no task yet.
    """
    return task.role not in (EVALUATOR, SPARE)


def list_spares(count: int) -> tuple[TaskId, ...]:
    return tuple(TaskId(SPARE, index) for index in range(count))


def make_cluster(addresses: Mapping[TaskId, str]) -> dict[str, list[str]]:
    """Makes a cluster.  `addresses`: task -> address for the tasks that have one, in any order."""
    cluster: dict[str, list[str]] = {}
    for task in sorted(addresses):
        cluster.setdefault(task.role, []).append(addresses[task])
    return cluster


def task_environment(cluster: Cluster, task: TaskId, grpc_options: str = "") -> dict[str, str]:
    """Returns the environment variables that describe a task to its program.

    TF_CONFIG is for TensorFlow's TFConfigClusterResolver.  TF_GRPC_REUSE_PORT is needed because the
    watchdog also binds the task's port, to reserve it.  TF_GRPC_DEFAULT_OPTIONS lets other tasks
    reconnect soon to a restarted task.  `grpc_options` is the present value of that variable.
    """
    config = {"cluster": cluster, "task": {"type": task.role, "index": task.index}}
    options = list(filter(None, grpc_options.split(",")))
    if not any(option.startswith(f"{RECONNECT}=") for option in options):
        options.append(f"{RECONNECT}={RECONNECT_MS}")
    return {
        "TF_CONFIG": json.dumps(config),
        "PROCSV_TASK": str(task),
        "TF_GRPC_REUSE_PORT": "1",
        GRPC_OPTIONS: ",".join(options),
    }


def fill_in(args: Sequence[str], cluster: Cluster, task: TaskId) -> tuple[str, ...]:
    """Replaces the words in braces in `args`: {task_type}, {task_index} and the hosts of a role.

    {chief_hosts}, {worker_hosts} and {ps_hosts} become addresses, joined by commas.  If the cluster
    does not have the role, they become an empty string.
    """
    words = {"{task_type}": task.role, "{task_index}": str(task.index)}
    words |= {f"{{{role}_hosts}}": ",".join(cluster.get(role, ())) for role in (CHIEF.role, WORKER, PS)}
    return tuple(_replace(arg, words) for arg in args)


def _replace(arg: str, words: Mapping[str, str]) -> str:
    for word, value in words.items():
        arg = arg.replace(word, value)
    return arg
