"""Faults of the matrix, drawn at random and injected into a simulated world. Each describes itself
for the trace.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from random import Random
from typing import TYPE_CHECKING, TypeVar

from procsv.base.identity import CHECKPOINT, STANDBY, SUMMARY, TRAINER, WATCHDOG, TaskId
from procsv.base.outcome import Exit
from procsv.ipc.messaging.watchdog_messages import RestartTrainer
from procsv.ipc.shm.heartbeat import Phase
from tests.simulation.model.checkpoints import SAVE_PATH, files_of
from tests.simulation.model.network import Weather
from tests.simulation.model.processes import FOR_EVER_S, KILLED
from tests.simulation.model.program import ProgramError
from tests.simulation.model.services import ServiceProcess
from tests.simulation.model.trainer import Trainer

if TYPE_CHECKING:
    from tests.simulation.model.run import Run

RECOVERY_S = 30.0  # what a short fault may still disturb: back-off, service restarts, retried saves
HANG_S_MAX = 550.0  # until a hanging program is found and ended the second time
SERVICE_HANG_S_MAX = 400.0  # until a hanging service is, the fourth time

Fault = Callable[["Run", Random], str]
F = TypeVar("F")  # a fault of any kind of run


def _meant(run: Run, task: TaskId) -> TaskId:
    """Return the trainer. In a run of several tasks that is the chief."""
    return run.world.chief if task == TRAINER else task


def kill(task: TaskId) -> Fault:
    def fault(run: Run, rng: Random) -> str:
        process = run.world.find(_meant(run, task))
        if process is None:
            return ""
        run.world.disturb(RECOVERY_S)
        process.die(KILLED, "outside")
        return f"SIGKILL to {process.task} {process.incarnation}"

    return fault


def kill_at_disk(task: TaskId) -> Fault:
    def fault(run: Run, rng: Random) -> str:
        process = run.world.find(task)
        if process is None:
            return ""
        process.kill_in = rng.randrange(30)
        run.world.disturb(RECOVERY_S)
        return f"{task} {process.incarnation} dies before its {process.kill_in}th disk operation from now"

    return fault


def freeze(task: TaskId) -> Fault:
    def fault(run: Run, rng: Random) -> str:
        process = run.world.find(_meant(run, task))
        if process is None or process.is_frozen:
            return ""  # two freezes in a row may be long enough for a hang
        seconds = rng.uniform(0.5, 8.0)
        process.freeze(seconds)
        run.world.disturb(seconds + RECOVERY_S)
        return f"SIGSTOP to {process.task} {process.incarnation} for {seconds:.1f} s"

    return fault


def _trainer(run: Run) -> Trainer | None:
    found = run.world.find(run.world.chief)
    return found if isinstance(found, Trainer) else None


def crash(run: Run, rng: Random) -> str:
    trainer = _trainer(run)
    if trainer is None:
        return ""
    number = rng.choice([signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS])
    run.world.disturb(RECOVERY_S)
    trainer.die(Exit(None, number), "outside")
    return f"{number.name} in trainer {trainer.incarnation}"


def raise_error(run: Run, rng: Random) -> str:
    trainer = _trainer(run)
    if trainer is None:
        return ""
    error = rng.choice([ProgramError("OSError", f"fault {rng.randrange(1000)}"), ProgramError(code=75)])
    trainer.doom(error)
    run.world.disturb(RECOVERY_S)
    return f"trainer {trainer.incarnation} ends with {error}"


def stuck(run: Run, rng: Random) -> str:
    """Let the program hang, or stop it forever."""
    trainer = _trainer(run)
    if trainer is None or trainer.phase is Phase.IMPORT:
        return ""  # before its session it cannot be told from a program that waits
    is_stopped = rng.random() < 0.5
    if is_stopped:
        trainer.freeze(FOR_EVER_S)
    else:
        trainer.hang()
    run.world.disturb(HANG_S_MAX + RECOVERY_S)
    return f"trainer {trainer.incarnation} {'is stopped for ever' if is_stopped else 'hangs'}"


def stuck_service(task: TaskId) -> Fault:
    """Wedge it, or stop it forever."""

    def fault(run: Run, rng: Random) -> str:
        process = run.world.find(task)
        if not isinstance(process, ServiceProcess) or not process.holds_lock:
            return ""  # before it serves, only its own watchdog could know
        is_stopped = rng.random() < 0.5
        if is_stopped:
            process.freeze(FOR_EVER_S)
        else:
            process.wedge()
        run.world.disturb(SERVICE_HANG_S_MAX + RECOVERY_S)
        return f"{task} {process.incarnation} is {'stopped for ever' if is_stopped else 'wedged'}"

    return fault


def bad_network(run: Run, rng: Random) -> str:
    seconds, network = rng.uniform(1.0, 15.0), run.world.network
    network.weather = Weather(rng.choice([0.0, 0.1, 0.4]), rng.choice([0.0, 0.2]), rng.choice([0.0, 0.1, 3.0]))
    run.world.disturb(seconds + RECOVERY_S)

    def clear() -> None:
        network.weather = Weather()

    run.world.clock.after(seconds, clear)
    return f"{network.weather} for {seconds:.1f} s"


def cut(run: Run, rng: Random) -> str:
    task = rng.choice([WATCHDOG, CHECKPOINT, SUMMARY])
    run.world.network.cut(run.world.socket(task))
    return f"every connection to {task} breaks"


def say_again(run: Run, rng: Random) -> str:
    return "said again: " + ", ".join(run.world.network.say_again() for _ in range(rng.randrange(1, 8)))


def no_spawn(run: Run, rng: Random) -> str:
    seconds = rng.uniform(0.5, 5.0)
    run.world.cannot_spawn_until_s = run.world.clock.now_s + seconds
    run.world.disturb(seconds + RECOVERY_S)
    return f"no process can be started for {seconds:.1f} s"


def bad_disk(run: Run, rng: Random) -> str:
    seconds, disk = rng.uniform(0.5, 10.0), run.world.disk
    disk.trouble = rng.choice(["ENOSPC", "EIO", "EROFS", "EDQUOT"])
    disk.trouble_chance = rng.choice([0.05, 0.3, 1.0])
    run.world.disturb(seconds + 60.0 + RECOVERY_S)  # a save is retried after a minute at most

    def repair() -> None:
        disk.trouble = ""
        run.world.disk_bad_until_s = run.world.clock.now_s

    run.world.clock.after(seconds, repair)
    return f"{disk.trouble} for {seconds:.1f} s"


def slow_disk(run: Run, rng: Random) -> str:
    seconds = rng.uniform(2.0, 15.0)
    run.world.slow_disk = 10.0
    run.world.disturb(seconds + RECOVERY_S)

    def repair() -> None:
        run.world.slow_disk = 1.0

    run.world.clock.after(seconds, repair)
    return f"a slow disk for {seconds:.1f} s"


def spoil_newest(run: Run, rng: Random) -> str:
    """Flip bits in the newest checkpoint and kill the trainer. At times the slots are lost, too."""
    best = run.checker.account.best
    if best is None or not _spoil(run, best.path):
        return ""
    return _restart_from_disk(run, rng) + f"{best.path} is spoilt"


def spoil_all(run: Run, rng: Random) -> str:
    there = [name.removesuffix(".data") for name in run.world.disk.under(SAVE_PATH) if name.endswith(".data")]
    spoilt = [path for path in there if _spoil(run, path)]
    return _restart_from_disk(run, rng) + f"{spoilt} are spoilt" if spoilt else ""


def _spoil(run: Run, path: str) -> bool:
    """Damage a checkpoint. One whose acknowledgement is in transit is spared: the invariants do not know it yet."""
    name, account = files_of(path)[0], run.checker.account
    if name not in run.world.disk.files or path in account.spoilt or path not in account.acknowledged:
        return False
    run.checker.account.spoilt.add(path)
    run.world.disk.corrupt_newest(name)
    return True


def _restart_from_disk(run: Run, rng: Random) -> str:
    run.world.disturb(60.0 + RECOVERY_S)
    killed = kill(TRAINER)(run, rng)
    return f"{killed}, " if killed else ""


def spoil_slot(run: Run, rng: Random) -> str:
    slot = run.world.memory.newest_ready(run.world.chief)
    if slot is None:
        return ""
    slot.is_good = False
    return _restart_from_disk(run, rng) + f"{slot.info.path} is spoilt"


def sweep_memory(run: Run, rng: Random) -> str:
    run.world.memory.clear()
    return _restart_from_disk(run, rng) + "shared memory is swept"


def wall_jump(run: Run, rng: Random) -> str:
    seconds = rng.choice([-3600.0, 3600.0])
    run.world.clock.wall_offset_s += seconds
    return f"the wall clock jumps by {seconds:.0f} s"


def stop(run: Run, rng: Random) -> str:
    watchdog = run.world.watchdog
    if watchdog is None or watchdog.is_dead:
        return ""
    now = rng.random() < 0.2
    watchdog.stop("SIGTERM", now)
    run.world.disturb(RECOVERY_S)
    again_s = rng.choice([None, 0.0, 1.0, 10.0])
    if again_s is not None:
        run.world.clock.after(again_s, lambda: None if watchdog.is_dead else watchdog.stop("SIGINT", True))
    return f"stop{' now' if now else ''}" + (f", and again after {again_s} s" if again_s is not None else "")


def preempt(run: Run, rng: Random) -> str:
    watchdog = run.world.watchdog
    if watchdog is None or watchdog.core is None or watchdog.is_dead:
        return ""
    grace_s = rng.choice([1.0, 10.0, 30.0])
    watchdog.preempt(grace_s)
    run.world.disturb(grace_s + RECOVERY_S)
    return f"the trainer is preempted, {grace_s:.0f} s of grace"


def restart(run: Run, rng: Random) -> str:
    watchdog = run.world.watchdog
    if watchdog is None or watchdog.core is None or watchdog.is_dead:
        return ""
    run.world.command(watchdog, RestartTrainer())
    run.world.disturb(RECOVERY_S)
    return "procsv restart"


def kill_both(run: Run, rng: Random) -> str:
    return f"{kill(WATCHDOG)(run, rng)} and {kill(rng.choice([TRAINER, CHECKPOINT, SUMMARY]))(run, rng)}"


def lose_power(run: Run, rng: Random) -> str:
    run.lose_power()
    run.world.disturb(RECOVERY_S)
    return "the power fails"


FAULTS: dict[Fault, int] = {
    kill(TRAINER): 8,
    kill(CHECKPOINT): 5,
    kill(SUMMARY): 4,
    kill(WATCHDOG): 3,
    kill_at_disk(CHECKPOINT): 8,
    kill_at_disk(SUMMARY): 4,
    freeze(TRAINER): 2,
    freeze(CHECKPOINT): 2,
    freeze(SUMMARY): 2,
    freeze(WATCHDOG): 1,
    crash: 3,
    raise_error: 3,
    stuck: 1,
    stuck_service(CHECKPOINT): 1,
    stuck_service(SUMMARY): 1,
    bad_network: 5,
    cut: 2,
    say_again: 4,
    no_spawn: 2,
    bad_disk: 5,
    slow_disk: 2,
    spoil_newest: 3,
    spoil_all: 1,
    spoil_slot: 2,
    sweep_memory: 2,
    wall_jump: 2,
    stop: 3,
    preempt: 3,
    restart: 2,
    kill(STANDBY): 3,
    freeze(STANDBY): 1,
    kill_both: 2,
    lose_power: 2,
}


def draw(rng: Random, choice: Mapping[Fault, int] = FAULTS) -> list[tuple[float, Fault]]:
    """Draw a fault from `choice` by its weights."""
    return draw_plan(rng, choice, rng.uniform(5.0, 40.0), first_s=0.1, most=6)


def draw_plan(
    rng: Random, choice: Mapping[F, int], horizon_s: float, first_s: float, most: int
) -> list[tuple[float, F]]:
    """Draw times (in seconds from the start, before `horizon_s`) and faults, at times two at once."""
    plan: list[tuple[float, F]] = []
    for fault in rng.choices(list(choice), list(choice.values()), k=rng.randrange(1, most + 1)):
        is_at_once = plan and rng.random() < 0.25
        plan.append((plan[-1][0] if is_at_once else rng.uniform(first_s, horizon_s), fault))
    return sorted(plan, key=lambda at: at[0])
