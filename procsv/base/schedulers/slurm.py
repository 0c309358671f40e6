"""A Slurm job step, as srun describes it to each of its processes.  Pure.

Called by procsv/base/placement.py.  Reads no node list: Slurm's and a person's order of host names differ (n10 before n2, cyclic
layouts), and a rank is all that is needed to tell the processes of a step apart, two of one node included.
"""

from __future__ import annotations

from typing import NamedTuple

from procsv.base.errors import UserError
from procsv.base.schedulers.variables import Environment, read_number, read_text

SIZE = "SLURM_STEP_NUM_TASKS"  # of steps alone: a batch script has SLURM_NTASKS, and is in no step
_HINT = "--cluster slurm is for processes that srun has started"


class Step(NamedTuple):
    """One process of a step."""

    rank: int  # 0..ranks-1, by Slurm's layout (--distribution)
    ranks: int
    node: str  # Slurm's name for it, which need not be a name of the network
    identity: str  # job, how often it was requeued, step: another one after a requeue, and for a second srun of the job


def has_several_processes(environment: Environment) -> bool:
    """Whether srun has started this process beside others; a batch script and `srun --ntasks=1` are alone."""
    return bool(environment.get(SIZE)) and read_number(environment, SIZE, "srun sets it") > 1


def read_step(environment: Environment) -> Step:
    """The step of this process; UserError if it is in none."""
    ranks, rank = (read_number(environment, name, _HINT) for name in (SIZE, "SLURM_PROCID"))
    if rank >= ranks:  # of a heterogeneous job, whose parts count their processes apart and number them together
        raise UserError(
            f"SLURM_PROCID is {rank} in a step of {ranks} tasks: several parts of a heterogeneous job cannot be one run; "
            "start all tasks in one part"
        )
    job, step = (read_text(environment, name, _HINT) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    requeued = environment.get("SLURM_RESTART_COUNT") or "0"  # set from the first requeue on
    node = environment.get("SLURMD_NODENAME") or environment.get("HOSTNAME", "")
    return Step(rank, ranks, node, f"slurm:{job}.{requeued}.{step}")
