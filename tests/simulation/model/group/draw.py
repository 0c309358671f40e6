"""Draw a run of several tasks: who they are, what they train, and which faults they meet."""

from __future__ import annotations

import signal
from random import Random
from typing import TYPE_CHECKING

import msgspec

from procsv.base.cluster import EVALUATOR, PS, WORKER
from procsv.base.outcome import Exit
from procsv.watchdog.core.settings import Settings
from tests.simulation.model import faults
from tests.simulation.model.processes import FOR_EVER_S, KILLED
from tests.simulation.model.program import Program, ProgramError, draw_program
from tests.simulation.model.program_process import ProgramProcess
from tests.simulation.model.world import HANG_S, HANG_S_WAITING, LAUNCH

if TYPE_CHECKING:
    from tests.simulation.model.run import Run

STEPS_FACTOR = 3  # several tasks train on servers
HANG_FACTOR = 1.5  # a task that others wait for is seen only after a while


def draw_group(rng: Random) -> tuple[Program, Settings]:
    """Draw a program of several tasks and its launch."""
    program = draw_program(rng)
    program.together = rng.choice(["served", "served", "in step"])
    is_served = program.together == "served"
    has_chief = rng.random() < 0.7
    workers, ps, evaluators = rng.randrange(1, 4) + (not has_chief), rng.randrange(1, 3) * is_served, rng.randrange(2)
    if is_served:
        program.steps *= STEPS_FACTOR
        program.poison, program.flaky = {}, {}  # chance decides which task trains a step
    limits_s = dict.fromkeys(LAUNCH.hang_limits_s, HANG_S_WAITING)
    limits_s |= dict.fromkeys(("import", "compile"), HANG_S * HANG_FACTOR) | {"service": HANG_S}
    launch = msgspec.structs.replace(
        LAUNCH,
        standby="warm" if program.standby else "off",
        restart="gang" if not is_served and rng.random() < 0.5 else "auto",
        hang_timeout_s=HANG_S * HANG_FACTOR,
        hang_limits_s=limits_s,
        workers=workers,
        ps=ps,
        evaluators=evaluators,
        has_chief=has_chief,
        min_workers=rng.randrange(1, workers + 1) if is_served and rng.random() < 0.6 else None,
    )
    return program, Settings(launch, knows_imports=rng.random() < 0.3, tasks=launch.tasks)


# -- faults ----------------------------------------------------------------------------------------------------
def _find(run: Run, rng: Random, *roles: str) -> ProgramProcess | None:
    """Return a living task of one of those roles, or without roles any but the chief."""
    tasks = [task for task in run.world.settings.tasks if task != run.world.chief]
    meant = [task for task in tasks if not roles or task.role in roles]
    found = run.world.find(rng.choice(meant)) if meant else None
    return found if isinstance(found, ProgramProcess) else None


def _name(process: ProgramProcess) -> str:
    return f"{process.task} {process.incarnation}"


def kill_one(run: Run, rng: Random) -> str:
    if (process := _find(run, rng)) is None:
        return ""
    run.world.disturb(faults.RECOVERY_S)
    process.die(KILLED, "outside")
    return f"SIGKILL to {_name(process)}"


def kill_server(run: Run, rng: Random) -> str:
    if (process := _find(run, rng, PS)) is None:
        return ""
    run.world.disturb(faults.RECOVERY_S)
    process.die(KILLED, "outside")
    return f"SIGKILL to {_name(process)}"


def kill_many(run: Run, rng: Random) -> str:
    """Kill every task of one role, or every task."""
    role = rng.choice(["", PS, "worker"])
    killed = [
        process
        for process in list(run.world.processes.values())
        if isinstance(process, ProgramProcess) and role in ("", process.task.role)
    ]
    run.world.disturb(faults.RECOVERY_S * 2)
    for process in killed:
        process.die(KILLED, "outside")
    return f"SIGKILL to {', '.join(map(_name, killed))}" if killed else ""


def kill_again(run: Run, rng: Random) -> str:
    """Kill one task, and its successor within seconds."""
    if (process := _find(run, rng)) is None:
        return ""
    task = process.task
    run.world.disturb(faults.RECOVERY_S * 2)
    process.die(KILLED, "outside")

    def again() -> None:
        if run.exit_code is None and (successor := run.world.find(task)) is not None:
            successor.die(KILLED, "outside")

    run.world.clock.after(rng.uniform(0.0, 5.0), again)
    return f"SIGKILL to {_name(process)}, and to its successor"


def crash_one(run: Run, rng: Random) -> str:
    if (process := _find(run, rng)) is None:
        return ""
    number = rng.choice([signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS])
    run.world.disturb(faults.RECOVERY_S)
    process.die(Exit(None, number), "outside")
    return f"{number.name} in {_name(process)}"


def raise_in_one(run: Run, rng: Random) -> str:
    process = _find(run, rng, "worker", EVALUATOR)
    if process is None:
        return ""
    process.doom(rng.choice([ProgramError("OSError", f"fault {rng.randrange(1000)}"), ProgramError(code=75)]))
    run.world.disturb(faults.RECOVERY_S)
    return f"{_name(process)} raises"


def break_worker(run: Run, rng: Random) -> str:
    """Let it end at every start until somebody fixes that."""
    process = _find(run, rng, WORKER)
    if process is None or process.task.role != WORKER or run.world.program.together != "served":
        return ""
    error = rng.choice([ProgramError("OSError", "no such device"), ProgramError(code=3), ProgramError(code=78)])
    run.world.broken[process.task] = error
    process.doom(error)
    run.world.disturb(faults.RECOVERY_S)
    return f"{_name(process)} is broken, and is so whenever it is started"


def end_server(run: Run, rng: Random) -> str:
    """End it with exit code 0, as if it were done."""
    process = _find(run, rng, PS)
    if process is None or not process.is_ready:
        return ""
    process.doom(ProgramError(code=0))
    run.world.disturb(faults.RECOVERY_S)
    return f"{_name(process)} ends by itself"


def freeze_one(run: Run, rng: Random) -> str:
    process = _find(run, rng)
    if process is None or process.is_frozen:
        return ""
    seconds = rng.uniform(0.5, 8.0)
    process.freeze(seconds)
    run.world.disturb(seconds + faults.RECOVERY_S)
    return f"SIGSTOP to {_name(process)} for {seconds:.1f} s"


def stick_one(run: Run, rng: Random) -> str:
    """Stop a task forever, or let it hang. A server can only be stopped, as it does nothing."""
    process = _find(run, rng)
    if process is None or not process.is_ready:
        return ""  # before its session it cannot be told from a program that waits
    if process.task.role == PS or rng.random() < 0.5:
        process.freeze(FOR_EVER_S)
    else:
        process.hang()
    run.world.disturb(faults.HANG_S_MAX * HANG_FACTOR + faults.RECOVERY_S)
    return f"{_name(process)} is stuck"


OF_GROUPS: dict[faults.Fault, int] = {
    kill_one: 16,
    kill_server: 8,
    kill_many: 3,
    kill_again: 5,
    crash_one: 4,
    raise_in_one: 4,
    break_worker: 4,
    end_server: 2,
    freeze_one: 5,
    stick_one: 3,
}


def draw_plan(rng: Random) -> list[tuple[float, faults.Fault]]:
    """Draw faults of groups together with the faults of every run."""
    return faults.draw(rng, faults.FAULTS | OF_GROUPS)
