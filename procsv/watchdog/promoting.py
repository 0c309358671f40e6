"""A standby becomes the trainer: what the watchdog gives it, and what it keeps of it from then on.

Used by reactor.py.  The writer's lock is taken here, as for a cold start, and passed on; so a new trainer, however it
comes to be, starts only when the old one's tree has let go.
"""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING

from procsv.ipc.locks import FileLock
from procsv.ipc.promotion import Become
from procsv.watchdog.events import STANDBY, TRAINER
from procsv.watchdog.processes import WriterLockHeld, prune_logs

if TYPE_CHECKING:
    from procsv.watchdog.processes import Processes, Running


def promote(processes: Processes, number: int, incarnation: int) -> Running:
    """Tells standby `number` to be trainer `incarnation`, under which it is listed from now on.

    OSError if it is dead, or if an old trainer's tree still holds the lock; then everything is as it was.
    Killed in here: the standby dies with us, or finds the lifeline cut as soon as it is the trainer.
    """
    running = processes.find(STANDBY, number)
    if running is None or running.line is None:
        raise ProcessLookupError("it is gone")
    places = processes.start.places
    log_path, lock = places.log(TRAINER, incarnation), FileLock(places.writer_lock)
    prune_logs(places.logs, TRAINER, log_path)
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        if not lock.try_acquire(f"trainer {incarnation}", processes.clock.wall()):
            raise WriterLockHeld("an older trainer's processes still hold the logdir")
        running.line.say(Become(incarnation), (log, lock.fd))
    finally:
        os.close(log)
        lock.let_go()  # from now on it is held by the trainer's tree alone
    del processes.running[STANDBY]
    trainer = dataclasses.replace(
        running, role=TRAINER, incarnation=incarnation, started_s=processes.clock.monotonic(), log=log_path
    )
    processes.running[TRAINER] = trainer
    return trainer


def let_line_go(running: Running) -> None:
    """The conversation is over: the process is the trainer, or dead."""
    if running.line is not None:
        running.line.close()
        running.line = None
