"""The tasks of a run that has several, and what each is told of the others.

Pure.  Used by the command line (what is asked for makes sense), the watchdog (addresses), and every task's start (TF_CONFIG, and
words in the arguments of programs that read their role from flags).  A run of one task has no cluster: it is a trainer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from procsv.base.identity import TaskId

CHIEF = TaskId("chief")
EVALUATOR, PS, WORKER = "evaluator", "ps", "worker"
SPARE = "spare"  # no task: a launch that is to take over one of a machine that is lost
STEPLESS = frozenset({PS, EVALUATOR})  # roles of tasks that make no steps

GRPC_OPTIONS = "TF_GRPC_DEFAULT_OPTIONS"  # channel arguments for all of TensorFlow's channels, as NAME=VALUE,NAME=VALUE
# Of a peer whose port refuses: TensorFlow would look again after a second, gRPC's default; less than 100 ms gRPC does not take.
RECONNECT, RECONNECT_MS = "grpc.initial_reconnect_backoff_ms", 100

Cluster = Mapping[
    str, Sequence[str]
]  # host:port of each task, by role and in the order of the indexes; evaluators have none


def list_tasks(workers: int, ps: int, evaluators: int, *, has_chief: bool = True) -> tuple[TaskId, ...]:
    """The tasks, that whose state is saved first: the chief, or worker.0 where there is none."""
    chief = (CHIEF,) if has_chief else ()
    numbered = ((WORKER, workers), (PS, ps), (EVALUATOR, evaluators))
    return chief + tuple(TaskId(role, index) for role, count in numbered for index in range(count))


def role_of(name: str) -> str:
    """The role that a task's name begins with; names that come from files may be anything."""
    return name.partition(".")[0]


def needs_address(task: TaskId) -> bool:
    """Whether others speak to it: an evaluator only reads files, and a spare launch has no task yet."""
    return task.role not in (EVALUATOR, SPARE)


def list_spares(count: int) -> tuple[TaskId, ...]:
    return tuple(TaskId(SPARE, index) for index in range(count))


def make_cluster(addresses: Mapping[TaskId, str]) -> dict[str, list[str]]:
    """`addresses`: of the tasks that have one, in any order."""
    cluster: dict[str, list[str]] = {}
    for task in sorted(addresses):
        cluster.setdefault(task.role, []).append(addresses[task])
    return cluster


def task_environment(cluster: Cluster, task: TaskId, grpc_options: str = "") -> dict[str, str]:
    """What a task's environment says of it.

    TF_CONFIG as TensorFlow's TFConfigClusterResolver reads it; TF_GRPC_REUSE_PORT, because the watchdog holds the task's port;
    TF_GRPC_DEFAULT_OPTIONS, by which others find a task that comes back soon.  `grpc_options`: what is in that one already.
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
    """`args` with {task_type}, {task_index}, and for each role with addresses {worker_hosts} and the like, replaced.

    Hosts are joined by commas.  A role that the cluster does not have has none.
    """
    words = {"{task_type}": task.role, "{task_index}": str(task.index)}
    words |= {f"{{{role}_hosts}}": ",".join(cluster.get(role, ())) for role in (CHIEF.role, WORKER, PS)}
    return tuple(_replace(arg, words) for arg in args)


def _replace(arg: str, words: Mapping[str, str]) -> str:
    for word, value in words.items():
        arg = arg.replace(word, value)
    return arg
