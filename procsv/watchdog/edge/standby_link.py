"""The watchdog's edge to its standby: hears it, and makes it the trainer.

Used by event_loop.py; decides nothing.  The writer's lock is taken here, as for a cold start, and passed on with the logdir's;
so a new trainer, however it comes to be, starts only when the old one's tree has let go.
"""

from __future__ import annotations

import os

import msgspec

from procsv.base.identity import STANDBY, TaskId
from procsv.base.run.records import open_record
from procsv.ipc.messaging.standby_messages import BecomeTrainer, TrainerBegun, Word
from procsv.watchdog.core.events import Promoted, StandbySaid
from procsv.watchdog.edge.processes import Processes, Running, prune_logs


class StandbyLink:
    """Speaks with the standby that there is."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._number = 0  # of the standby that is to be a task

    def hear(self) -> list[StandbySaid | Promoted]:
        heard: list[StandbySaid | Promoted] = []
        for running in self._processes.running.values():
            try:
                while running.line is not None and (word := running.line.receive()) is not None:
                    heard.append(self._heard(running, word))
            except EOFError:
                self._processes.end_talk(running)
        return heard

    def _heard(self, running: Running, word: Word) -> StandbySaid | Promoted:
        if not isinstance(word, TrainerBegun):
            return StandbySaid(running.incarnation, word)
        self._processes.end_talk(running)
        return Promoted(self._number, running.task, running.incarnation, running.child.pid)

    def promote(self, number: int, task: TaskId, incarnation: int) -> None:
        """Tells standby `number` to be that task, under which it is listed from now on.

        OSError if it is dead, or if an old trainer's tree still holds the lock; then everything is as it was.
        Killed in here: the standby dies with us, or finds the lifeline cut as soon as it is the trainer.
        """
        processes, paths = self._processes, self._processes.start.paths
        running = processes.find(STANDBY, number)
        if running is None or running.line is None:
            raise ProcessLookupError("it is gone")
        log_path, lock = paths.log(task, incarnation), processes.take_writer_lock(task, incarnation)
        try:
            prune_logs(paths.logs, task, log_path)
            log = open_record(log_path, os.O_WRONLY | os.O_APPEND)
            try:
                running.line.send(BecomeTrainer(task, incarnation), (log, lock.fd, processes.heirs.fd))
            finally:
                os.close(log)
        finally:
            lock.let_go()  # from now on it is held by the trainer's tree alone
        del processes.running[STANDBY]
        now_s = processes.clock.monotonic()
        promoted = msgspec.structs.replace(running, task=task, incarnation=incarnation, started_s=now_s)
        processes.running[task], self._number = promoted, number
