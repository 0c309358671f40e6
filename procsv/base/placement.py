"""Find the place of a launch among the launches that a scheduler has started together.

The place says which task the launch has, and which tasks the others have.

Pure: the environment is an argument, and this module asks no scheduler and no name server.  `procsv
launch` calls it before it starts anything.  So if the command line does not fit what the scheduler
has started, all launches fail with the same error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, get_args

import msgspec

from procsv.base.cluster import CHIEF, EVALUATOR, PS, SPARE, WORKER, list_spares, list_tasks, needs_address
from procsv.base.encoding import decode_json
from procsv.base.errors import UserError
from procsv.base.identity import TaskId
from procsv.base.schedulers import indexed_job, slurm, tf_config
from procsv.base.schedulers.variables import Environment, read_port
from procsv.base.units import show_count

LauncherKind = Literal["slurm", "tf-config", "indexed-job"]
CLUSTERS = ("auto", "local", *get_args(LauncherKind))  # the values of --cluster
MOVED = "PROCSV_MOVED"  # holds a Move in the environment of a launch that has restarted
_WHY_NO_SPARES = {
    "local": "all tasks are this launch's here",
    "indexed-job": "Kubernetes replaces a lost pod itself",
}

Tasks = tuple[TaskId, ...]


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """The place of one launch among several.  Each launch has one task, or none yet.

    All launches agree on everything but `rank`, `launch`, `task` and `host`.  Two launches may be
    on one host.

    `launch` is the task that the scheduler gave to the launch, and stays the name of the launch.
    `task` is its present task.  The two differ once the launch has taken over the task of a lost
    machine.

    `host` is the scheduler's name for the launch's machine.  Slurm's node names need not resolve,
    so members report their own addresses.  `addresses` holds the host:port at which TensorFlow
    listens in each task that needs one; None if each task picks its own.  `coordinator` is the
    coordinator's host:port; None if only files in the logdir show it.
    """

    kind: LauncherKind
    rank: int  # of the launch in the original `tasks` and `spares`
    ranks: int
    launch: TaskId
    task: TaskId
    tasks: Tasks  # of the run, in the order of list_tasks; the first task's launch coordinates
    spares: Tasks = ()  # the launches without a task
    scheduler: str  # identifies this start of the job, made from what its scheduler has set
    host: str
    addresses: Mapping[TaskId, str] | None
    coordinator: str | None

    @property
    def has_moved(self) -> bool:
        """Whether the run has restarted without a lost machine."""
        return self.ranks > len(self.tasks) + len(self.spares)

    @property
    def coordinates(self) -> bool:
        """Whether this launch coordinates: it has the task whose state is saved."""
        return self.rank == 0

    def follow(self, task: TaskId, spares: Tasks) -> Move | None:
        """Returns the Move for this launch when the run restarts without a lost machine.

        None if its environment is still right, as in Kubernetes: the pod that replaces a lost one
        has the same name and the same task.
        """
        return None if self.kind == "indexed-job" else Move(self.scheduler, task, spares)

    def as_move(self) -> Move | None:
        """Returns the Move with which this launch keeps its present task when it restarts.

        Its environment may name the task that it had at first.  None if its environment is enough.
        """
        return Move(self.scheduler, self.task, self.spares) if self.addresses is None else None


class Move(msgspec.Struct, frozen=True):
    """The task of a launch when the run restarts after losing a machine.

    The launch passes it to itself, in its environment, when it restarts.
    """

    scheduler: str
    task: TaskId
    spares: Tasks  # the spare launches that remain

    def apply(self, placement: Placement) -> Placement:
        """Returns `placement` with the launch's present task.

        The result has no addresses, because they are no longer valid.
        """
        if placement.scheduler != self.scheduler:
            raise UserError(
                f"{MOVED} is of another start of the run ({self.scheduler}): it is procsv's own, do not set it"
            )
        return msgspec.structs.replace(placement, task=self.task, spares=self.spares, addresses=None)


class BeginAgain(msgspec.Struct, frozen=True):
    """The result of a launch that must restart.

    Nothing of the previous run is left on this machine.
    """

    move: Move | None  # None: the launch's environment is enough


def find_placement(cluster: str, environment: Mapping[str, str], tasks: Tasks, spares: int = 0) -> Placement | None:
    """Finds the place of the launch with this environment.

    None if the launch runs all tasks itself.  `cluster`: one of CLUSTERS.  `tasks`: from --workers,
    --ps and --evaluators; empty without these options.  `spares`: the number of launches without a
    task.  UserError if the environment lacks something that `cluster` needs, or contradicts
    `tasks`.
    """
    kind = _detect(environment, tasks) if cluster == "auto" else cluster
    reader = _READERS.get(kind)
    if spares and kind not in ("slurm", "tf-config"):
        raise UserError(f"--spare-nodes is for launches by srun, or by hand with TF_CONFIG; {_WHY_NO_SPARES[kind]}")
    placement = reader(environment, tasks, spares) if reader is not None else None
    if placement is None or placement.ranks <= 1:
        return None
    if spares and len(placement.tasks) == 1:
        raise UserError(
            "--spare-nodes is for a run of several tasks: if the machine of a single task is lost, no other launch notices"
        )
    told = environment.get(MOVED)
    return decode_json(told.encode(), Move).apply(placement) if told else placement


def _detect(environment: Environment, tasks: Tasks) -> str:
    if environment.get("PROCSV_ROLE"):  # launched by a task of another run, whose variables it has inherited
        return "local"
    if tf_config.names_a_task(environment):
        return "tf-config"
    # Without `tasks`, each process is a training of its own, in a sweep for example.
    if tasks and slurm.has_several_processes(environment):
        return "slurm"
    return "indexed-job" if indexed_job.says_a_task(environment) else "local"


def _place_in_step(environment: Environment, tasks: Tasks, spares: int) -> Placement:
    step = slurm.read_step(environment)
    asked = tasks or (CHIEF,)
    everyone = asked + list_spares(spares)
    if step.ranks != len(everyone):
        beside = f" and --spare-nodes {spares} beside them" if spares else ""
        raise UserError(
            f"the step has {show_count(step.ranks, 'task')}, {_said(tasks)} {len(asked)} ({_count(asked)}){beside}: "
            f"start it with srun --ntasks={len(everyone)}, or change --workers, --ps and --evaluators"
        )
    return Placement(
        kind="slurm",
        rank=step.rank,
        ranks=step.ranks,
        launch=everyone[step.rank],
        task=everyone[step.rank],
        tasks=asked,
        spares=list_spares(spares),
        scheduler=step.identity,
        host=step.node,
        addresses=None,
        coordinator=None,
    )


def _place_in_cluster(environment: Environment, tasks: Tasks, spares: int) -> Placement:
    member = tf_config.read_member(environment)
    addresses, port = member.addresses, read_port(environment, "PROCSV_PORT")
    asked = _tasks_of_cluster(addresses, tasks)
    everyone = asked + list_spares(spares)
    if member.task.role == SPARE and member.task not in everyone:
        raise UserError(
            f"TF_CONFIG makes this {member.task}: give --spare-nodes {member.task.index + 1} to all launches of the run"
        )
    if member.task not in everyone:  # an evaluator: clusters do not list them, so the others would not know of it
        raise UserError(
            f"TF_CONFIG makes this {member.task}, and clusters do not say how many evaluators there are: "
            f"give --evaluators {member.task.index + 1} to all launches of the run"
        )
    hosts = {task: address.rpartition(":")[0] for task, address in addresses.items()}
    return Placement(
        kind="tf-config",
        rank=everyone.index(member.task),
        ranks=len(everyone),
        launch=member.task,
        task=member.task,
        tasks=asked,
        spares=list_spares(spares),
        scheduler=member.identity,
        host=hosts.get(member.task) or environment.get("HOSTNAME", ""),
        addresses=addresses,
        coordinator=f"{hosts[everyone[0]]}:{port or indexed_job.PROCSV_PORT}",
    )


def _tasks_of_cluster(addresses: Mapping[TaskId, str], asked: Tasks) -> Tasks:
    """Returns the cluster's tasks and the requested evaluators.

    UserError if the user asked for other workers or parameter servers than the cluster has.
    """
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


def _place_in_jobset(environment: Environment, tasks: Tasks, spares: int) -> Placement:
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
        ranks=len(everyone) + spares,
        launch=pod.task,
        task=pod.task,
        tasks=everyone,
        scheduler=pod.identity,
        host=pod.host_of(pod.task),
        addresses={task: f"{pod.host_of(task)}:{port}" for task in needing},
        coordinator=f"{pod.host_of(everyone[0])}:{pod.port}",
    )


_READERS: dict[str, Callable[[Environment, Tasks, int], Placement]] = {
    "slurm": _place_in_step,
    "tf-config": _place_in_cluster,
    "indexed-job": _place_in_jobset,
}


def _said(tasks: Tasks) -> str:
    """Returns the options that request `tasks`, and "makes" or "make"."""
    numbers = {role: _number_of(role, tasks) for role in (WORKER, PS, EVALUATOR)}
    options = {WORKER: "--workers", PS: "--ps", EVALUATOR: "--evaluators"}
    words = [f"{options[role]} {number}" for role, number in numbers.items() if number]
    words += ["--no-chief"] if tasks and CHIEF not in tasks else []
    return (
        f"{' '.join(words)} {'makes' if len(words) == 1 else 'make'}" if words else "a command without --workers makes"
    )


def _count(tasks: Mapping[TaskId, str] | Tasks) -> str:
    """Returns the numbers of tasks for people: `1 chief, 2 workers, 2 ps`."""
    numbers = {role: _number_of(role, tasks) for role in (CHIEF.role, WORKER, PS, EVALUATOR)}
    return ", ".join(f"{n} ps" if role == PS else show_count(n, role) for role, n in numbers.items() if n)


def _number_of(role: str, tasks: Mapping[TaskId, str] | Tasks) -> int:
    return sum(task.role == role for task in tasks)
