"""The watchdog's edge to its standby: hears it, and makes it the trainer.

Used by event_loop.py; decides nothing.  The writer's lock is taken here, as for a cold start, and passed on; so a new trainer,
however it comes to be, starts only when the old one's tree has let go.
"""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING

from procsv.base.locks import FileLock
from procsv.ipc.messaging.standby_messages import BecomeTrainer, TrainerBegun
from procsv.watchdog.core.events import STANDBY, TRAINER, Event, Promoted, StandbySaid
from procsv.watchdog.edge.processes import WriterLockHeld, prune_logs
from procsv.watchdog.edge.resources.free_memory import room_bytes
from procsv.watchdog.edge.resources.oom import tree_rss

if TYPE_CHECKING:
    from collections.abc import Callable

    from procsv.ipc.messaging.standby_messages import Word
    from procsv.ipc.messaging.zmq_transport import Waiter
    from procsv.watchdog.edge.processes import Processes, Running


class Promoter:
    """Speaks with the standby that there is.  What it says goes to `handle`."""

    def __init__(self, processes: Processes, waiter: Waiter, handle: Callable[[Event], None]) -> None:
        self._processes, self._waiter, self._handle = processes, waiter, handle
        self._number = 0  # of the standby that is to be the trainer

    def begin(self, running: Running) -> None:
        """It has been started."""
        if running.line is not None:
            self._waiter.add(running.line.fd)

    def hear(self) -> None:
        """What it has said by now."""
        for running in list(self._processes.running.values()):
            try:
                while running.line is not None and (word := running.line.receive()) is not None:
                    self._heard(running, word)
            except EOFError:
                self.let_go(running)

    def _heard(self, running: Running, word: Word) -> None:
        if isinstance(word, TrainerBegun):
            self.let_go(running)
            self._handle(Promoted(self._number, running.incarnation, running.child.pid))
        else:
            self._handle(StandbySaid(running.incarnation, word))

    def let_go(self, running: Running) -> None:
        """The conversation is over: the process is the trainer, or dead."""
        if running.line is not None:
            self._waiter.remove(running.line.fd)
            running.line.close()
            running.line = None

    def promote(self, number: int, incarnation: int) -> Running:
        """Tells standby `number` to be trainer `incarnation`, under which it is listed from now on.

        OSError if it is dead, or if an old trainer's tree still holds the lock; then everything is as it was.
        Killed in here: the standby dies with us, or finds the lifeline cut as soon as it is the trainer.
        """
        processes, paths = self._processes, self._processes.start.paths
        running = processes.find(STANDBY, number)
        if running is None or running.line is None:
            raise ProcessLookupError("it is gone")
        log_path, lock = paths.log(TRAINER, incarnation), FileLock(paths.writer_lock)
        paths.heartbeat(TRAINER, incarnation).unlink(missing_ok=True)
        prune_logs(paths.logs, TRAINER, log_path)
        log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            if not lock.try_acquire(f"trainer {incarnation}", processes.clock.wall()):
                raise WriterLockHeld("an older trainer's processes still hold the logdir")
            running.line.say(BecomeTrainer(incarnation), (log, lock.fd))
        finally:
            os.close(log)
            lock.let_go()  # from now on it is held by the trainer's tree alone
        del processes.running[STANDBY]
        now_s = processes.clock.monotonic()
        trainer = dataclasses.replace(running, role=TRAINER, incarnation=incarnation, started_s=now_s, log=log_path)
        processes.running[TRAINER], self._number = trainer, number
        return trainer


def room_for_standby(trainer_pid: int, limit: int) -> int:
    """Free bytes; what the trainer may still use of its limit (0: it has none) counts as used."""
    return room_bytes() - (max(0, limit - tree_rss(trainer_pid)) if limit else 0)
