"""Connect the watchdog to its standby: receive its messages, and make it the trainer.

Used by local_host.py. Decides nothing. The task's writer lock is taken here, as for a cold start,
and passed on with the logdir's lock. So a new trainer, however it is made, starts only after the
old one's tree has released the writer lock.
"""

from __future__ import annotations

import contextlib
import os

from procsv.base.identity import STANDBY, TaskId
from procsv.base.run.logs import prune_logs
from procsv.base.run.records import open_record
from procsv.base.system.processes import AdoptedChild, Child
from procsv.ipc.messaging.fd_messages import BecomeTrainer, CannotBecomeTrainer, ImportMore, StandbyWord, TrainerBegun
from procsv.watchdog.host.processes import Processes, RunningChild
from procsv.watchdog.host.standby import NotPromoted, Promoted, StandbySaid


class StandbyLink:
    """The connection to the current standby."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._number, self._started_s = 0, 0.0  # of the standby that is becoming a task

    def poll_standby(self) -> list[StandbySaid | Promoted | NotPromoted]:
        heard: list[StandbySaid | Promoted | NotPromoted] = []
        for running in list(self._processes.running.values()):
            try:
                while running.line is not None and (received := running.line.receive()) is not None:
                    heard.append(self._heard(running, received[0]))
            except EOFError:
                self._processes.end_talk(running)
        return heard

    def _heard(self, running: RunningChild, word: StandbyWord) -> StandbySaid | Promoted | NotPromoted:
        task, incarnation, number = running.task, running.incarnation, self._number
        match word:
            case TrainerBegun(pid=0):
                self._processes.end_talk(running)
                return Promoted(number, task, incarnation, running.child.pid)
            case TrainerBegun(pid=pid):
                self._list_as_standby(running)
                try:
                    self._processes.list_child(task, incarnation, Child(AdoptedChild(pid)))
                except OSError as error:  # no descriptor is left to watch the fork; it ends with the other orphans
                    return NotPromoted(task, incarnation, str(error))
                return Promoted(number, task, incarnation, pid, is_fork=True)
            case CannotBecomeTrainer(why):
                self._list_as_standby(running)
                return NotPromoted(task, incarnation, why)
            case _:
                return StandbySaid(incarnation, word)

    def _list_as_standby(self, running: RunningChild) -> None:
        """List the process as the standby again, and the task as absent."""
        processes = self._processes
        del processes.running[running.task]
        running.task, running.incarnation, running.started_s = STANDBY, self._number, self._started_s
        processes.running[STANDBY] = running

    def import_more(self, number: int) -> None:
        """Tell standby `number` to import more. If it is gone, do nothing: its end is reported."""
        running = self._processes.find(STANDBY, number)
        if running is not None and running.line is not None:
            with contextlib.suppress(OSError):
                running.line.send(ImportMore())

    def promote(self, number: int, task: TaskId, incarnation: int) -> None:
        """Tell standby `number` to become the task, and list it as the task until a fork takes its
        place.

        OSError, and nothing has changed, if the standby is dead or if an older tree of the task
        still holds the writer lock. If we are killed in here, the standby dies with us, or finds
        the lifeline broken as soon as it is the trainer.
        """
        processes, paths = self._processes, self._processes.start.paths
        running = processes.find(STANDBY, number)
        if running is None or running.line is None:
            raise ProcessLookupError("it is gone")
        log_path, lock = paths.log(task, incarnation), processes.take_writer_lock(task, incarnation)
        try:
            prune_logs(log_path)
            log = open_record(log_path, os.O_WRONLY | os.O_APPEND)
            try:
                start = processes.start
                word = BecomeTrainer(task, incarnation, start.logdir, start.root)
                running.line.send(word, (log, lock.fd, processes.heirs.fd))
            finally:
                os.close(log)
        finally:
            lock.release_lock()  # from now on only the trainer's tree holds it
        del processes.running[STANDBY]
        self._number, self._started_s = number, running.started_s
        running.task, running.incarnation, running.started_s = task, incarnation, processes.clock.monotonic()
        processes.running[task] = running
