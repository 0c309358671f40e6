"""Read a process's place in a Slurm job step, as srun describes it.  Pure.

procsv/base/placement.py calls it.  It reads no node list, because Slurm orders host names
differently from people (n10 before n2, cyclic layouts).  A rank is enough to distinguish the
processes of a step, even two on one node.
"""

from __future__ import annotations

from typing import NamedTuple

from procsv.base.errors import UserError
from procsv.base.schedulers.variables import Environment, read_number, read_text

SIZE = "SLURM_STEP_NUM_TASKS"  # set only in steps; a batch script has SLURM_NTASKS, but is not in a step
_HINT = "--cluster slurm is for processes that srun has started"


class Step(NamedTuple):
    """One process of a step."""

    rank: int  # 0..ranks-1, by Slurm's layout (--distribution)
    ranks: int
    node: str  # Slurm's name for the machine, which need not resolve
    identity: str  # job, number of requeues, step: changes after a requeue, and with a second srun in the job


def has_several_processes(environment: Environment) -> bool:
    """Whether srun has started several processes; a batch script and `srun --ntasks=1` have one."""
    return bool(environment.get(SIZE)) and read_number(environment, SIZE, "srun sets it") > 1


def read_step(environment: Environment) -> Step:
    """Reads the step of this process; UserError if it is not in one."""
    ranks, rank = (read_number(environment, name, _HINT) for name in (SIZE, "SLURM_PROCID"))
    if rank >= ranks:  # a heterogeneous job counts the processes of each part separately, but numbers them together
        raise UserError(
            f"SLURM_PROCID is {rank} in a step of {ranks} tasks: several parts of a heterogeneous job cannot be one run; "
            "start all tasks in one part"
        )
    job, step = (read_text(environment, name, _HINT) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    requeued = environment.get("SLURM_RESTART_COUNT") or "0"  # set from the first requeue on
    node = environment.get("SLURMD_NODENAME") or environment.get("HOSTNAME", "")
    return Step(rank, ranks, node, f"slurm:{job}.{requeued}.{step}")
