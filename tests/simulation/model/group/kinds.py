"""Choose the process of the model that plays each task of the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from procsv.base.cluster import EVALUATOR, PS
from procsv.base.identity import TaskId
from tests.simulation.model.group.in_step import Follower, InStep
from tests.simulation.model.group.served import Evaluator, ServedChief, ServedWorker, Server
from tests.simulation.model.program_process import ProgramProcess
from tests.simulation.model.trainer import Trainer
from tests.simulation.model.worker import Worker

if TYPE_CHECKING:
    from tests.simulation.model.world import World

_CHIEFS = {"apart": Trainer, "served": ServedChief, "in step": InStep}
_WORKERS: dict[str, type[ProgramProcess]] = {"apart": Worker, "served": ServedWorker, "in step": Follower}
_OTHERS: dict[str, type[ProgramProcess]] = {PS: Server, EVALUATOR: Evaluator}


def kind_of(world: World, task: TaskId) -> type[ProgramProcess]:
    """Choose by the task's duty and by how the training tasks depend on each other."""
    if task == world.chief:
        return _CHIEFS[world.program.together]
    return _OTHERS.get(task.role) or _WORKERS[world.program.together]
