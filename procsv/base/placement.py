"""Place of a launch among those that a scheduler has started together: which task of the run is its own, and what is known of the others.

Pure: the environment is an argument.  Called by `procsv launch` before anything is started, so that a command line that does not
fit what the scheduler has started is an error of all launches, and of the same words.  Asks no scheduler and no name server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, get_args

import msgspec

from procsv.base.cluster import CHIEF, EVALUATOR, PS, WORKER, list_tasks, needs_address
from procsv.base.errors import UserError
from procsv.base.identity import TaskId
from procsv.base.schedulers import indexed_job, slurm, tf_config
from procsv.base.schedulers.variables import Environment, read_port
from procsv.base.units import show_count

Kind = Literal["slurm", "tf-config", "indexed-job"]
CLUSTERS = ("auto", "local", *get_args(Kind))  # what --cluster can be told

Tasks = tuple[TaskId, ...]


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """One launch of several, each of which has one task.  All but `rank`, `task` and `host` is the same in all of them.

    Two launches may be on one host.
    """

    kind: Kind
    rank: int  # of the task, in `tasks`
    ranks: int
    task: TaskId
    tasks: Tasks  # of the run, in the order of list_tasks: the first one's launch coordinates
    scheduler: str  # identity of this start of the run by its scheduler: what has another one is not of it
    host: str  # as the scheduler names it.  Slurm's names of nodes need not resolve: members say themselves where they are
    addresses: (
        Mapping[TaskId, str] | None
    )  # host:port for TensorFlow, of all tasks that need one; None: each picks its own
    coordinator: (
        str | None
    )  # host:port at which the coordinator hears the others; None: it is only known from its files

    @property
    def coordinates(self) -> bool:
        """Whether this launch has the task whose state is saved."""
        return self.rank == 0


def find_placement(cluster: str, environment: Mapping[str, str], tasks: Tasks) -> Placement | None:
    """Place of the launch with this environment; None: it has all tasks itself.

    `cluster`: one of CLUSTERS.  `tasks`: those of --workers, --ps and --evaluators, none where none of these was given.
    UserError: the environment does not say what `cluster` needs, or not what `tasks` says.
    """
    reader = _READERS.get(_detect(environment, tasks) if cluster == "auto" else cluster)
    placement = reader(environment, tasks) if reader is not None else None
    return placement if placement is not None and placement.ranks > 1 else None


def _detect(environment: Environment, tasks: Tasks) -> str:
    if environment.get("PROCSV_ROLE"):  # a launch by a task of another run, which has that run's variables
        return "local"
    if tf_config.names_a_task(environment):
        return "tf-config"
    if tasks and slurm.has_several_processes(
        environment
    ):  # without tasks each is a training of its own, of a sweep for one
        return "slurm"
    return "indexed-job" if indexed_job.says_a_task(environment) else "local"


def _place_in_step(environment: Environment, tasks: Tasks) -> Placement:
    step = slurm.read_step(environment)
    asked = tasks or (CHIEF,)
    if step.ranks != len(asked):
        raise UserError(
            f"the step has {show_count(step.ranks, 'task')}, {_said(tasks)} {len(asked)} ({_count(asked)}): "
            f"start it with srun --ntasks={len(asked)}, or change --workers, --ps and --evaluators"
        )
    return Placement(
        kind="slurm",
        rank=step.rank,
        ranks=step.ranks,
        task=asked[step.rank],
        tasks=asked,
        scheduler=step.identity,
        host=step.node,
        addresses=None,
        coordinator=None,
    )


def _place_in_cluster(environment: Environment, tasks: Tasks) -> Placement:
    member = tf_config.read_member(environment)
    addresses, port = member.addresses, read_port(environment, "PROCSV_PORT")
    everyone = _tasks_of_cluster(addresses, tasks)
    if member.task not in everyone:  # an evaluator: no cluster has them, so the others would not know of it
        raise UserError(
            f"TF_CONFIG makes this {member.task}, and clusters do not say how many evaluators there are: "
            f"give --evaluators {member.task.index + 1} to all launches of the run"
        )
    hosts = {task: address.rpartition(":")[0] for task, address in addresses.items()}
    return Placement(
        kind="tf-config",
        rank=everyone.index(member.task),
        ranks=len(everyone),
        task=member.task,
        tasks=everyone,
        scheduler=member.identity,
        host=hosts.get(member.task) or environment.get("HOSTNAME", ""),
        addresses=addresses,
        coordinator=f"{hosts[everyone[0]]}:{port}" if port is not None else None,
    )


def _tasks_of_cluster(addresses: Mapping[TaskId, str], asked: Tasks) -> Tasks:
    """Tasks of a cluster, and the evaluators that were asked for; UserError if other tasks were, too, and differ."""
    evaluators = max(_number_of(EVALUATOR, asked), _number_of(EVALUATOR, addresses))
    workers, ps = (_number_of(role, addresses) for role in (WORKER, PS))
    found = list_tasks(workers, ps, evaluators, has_chief=CHIEF in addresses)
    names_roles = any(task.role in (WORKER, PS) for task in asked)
    if names_roles and set(filter(needs_address, asked)) != set(filter(needs_address, found)):
        raise UserError(
            f"TF_CONFIG has a cluster of {len(addresses)} ({_count(addresses)}), {_said(asked)} {len(asked)} ({_count(asked)}): "
            "leave these options out, or have both say the same; --cluster local leaves TF_CONFIG aside"
        )
    return found


def _place_in_jobset(environment: Environment, tasks: Tasks) -> Placement:
    pod = indexed_job.read_pod(environment)
    everyone = tasks or (CHIEF,)
    if pod.task not in everyone:
        raise UserError(
            f"this pod is {pod.task} by PROCSV_TASK_TYPE and JOB_COMPLETION_INDEX, {_said(tasks)} {len(everyone)} "
            f"({_count(everyone)}): give all pods the options for what the JobSet starts"
        )
    needing, port = filter(needs_address, everyone), indexed_job.TENSORFLOW_PORT
    return Placement(
        kind="indexed-job",
        rank=everyone.index(pod.task),
        ranks=len(everyone),
        task=pod.task,
        tasks=everyone,
        scheduler=pod.identity,
        host=pod.host_of(pod.task),
        addresses={task: f"{pod.host_of(task)}:{port}" for task in needing},
        coordinator=f"{pod.host_of(everyone[0])}:{pod.port}",
    )


_READERS: dict[str, Callable[[Environment, Tasks], Placement]] = {
    "slurm": _place_in_step,
    "tf-config": _place_in_cluster,
    "indexed-job": _place_in_jobset,
}


def _said(tasks: Tasks) -> str:
    """The options that have asked for `tasks`, and a verb for their number."""
    numbers = {role: _number_of(role, tasks) for role in (WORKER, PS, EVALUATOR)}
    options = {WORKER: "--workers", PS: "--ps", EVALUATOR: "--evaluators"}
    words = [f"{options[role]} {number}" for role, number in numbers.items() if number]
    words += ["--no-chief"] if tasks and CHIEF not in tasks else []
    return (
        f"{' '.join(words)} {'makes' if len(words) == 1 else 'make'}" if words else "a command without --workers makes"
    )


def _count(tasks: Mapping[TaskId, str] | Tasks) -> str:
    """`1 chief, 2 workers, 2 ps`."""
    numbers = {role: _number_of(role, tasks) for role in (CHIEF.role, WORKER, PS, EVALUATOR)}
    return ", ".join(f"{n} ps" if role == PS else show_count(n, role) for role, n in numbers.items() if n)


def _number_of(role: str, tasks: Mapping[TaskId, str] | Tasks) -> int:
    return sum(task.role == role for task in tasks)
