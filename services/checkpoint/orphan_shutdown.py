"""End a run whose watchdog is dead: wait for the trainer, then remove the run's files.

process.py calls it when the lifeline is cut.  The trainer saves and exits by itself.  If it still
runs after the grace period, this module kills it.  But if the program was started without `procsv
launch`, its trainer trains on.  Then this module never kills the trainer, and waits for it without
limit.

Once the other services have ended, too, this module removes the run's files.  If another launch has
acquired the logdir by then, it removes nothing.
"""

from __future__ import annotations

import contextlib
import math
import signal

from procsv.base.identity import CHECKPOINT
from procsv.base.run.cleanup import is_memory_empty, remove_dirs, remove_run_files, remove_shm_files
from procsv.base.run.lease import LeaseFile, LeaseKeeper
from procsv.base.service_table import SERVICES
from procsv.base.system.locks import FileLock
from procsv.base.system.processes import ExternalProcess
from procsv.ipc.messaging.start import Start

LOOK_AGAIN_S = 0.1
OTHERS_S_MAX = 5.0  # after the grace period: for a killed trainer to vanish and the other services to end


class OrphanShutdown:
    """Ends a run whose watchdog is dead."""

    look_again_s = LOOK_AGAIN_S

    def __init__(self, start: Start, trainers: list[ExternalProcess], now_s: float) -> None:
        self._start = start
        self._kill_at_s = math.inf if start.observes else now_s + start.settings.grace_s
        self._give_up_s = self._kill_at_s + OTHERS_S_MAX
        self._trainers = trainers
        lease = LeaseFile(start.paths).holder()
        is_ours = lease is not None and lease.run == start.run
        self._keeper = LeaseKeeper(start.paths, lease, now_s) if lease is not None and is_ours else None
        self._has_begun_to_finish = False
        self._wake_others()

    def _wake_others(self) -> None:
        """Continues services that a SIGSTOP has stopped, so that they notice that they must end."""
        for lock in self._locks_of_others():
            lock.wake()

    def _locks_of_others(self) -> list[FileLock]:
        return [FileLock(self._start.paths.service_lock(task)) for task in SERVICES if task != CHECKPOINT]

    def renew_lease(self, now_s: float, now_wall_s: float) -> None:
        """Renews the lease in the dead watchdog's place.

        Otherwise another machine could take the logdir while this service saves.
        """
        if self._keeper is not None and self._keeper.is_due(now_s):
            self._keeper.renew(now_s, now_wall_s)

    def may_finish(self, now_s: float) -> bool:
        """Whether this service may finish; True only once.

        True when every trainer that could hand over a snapshot has ended, or when time is up.  After
        the grace period, this also kills the trainers.
        """
        if self._has_begun_to_finish:
            return False
        if now_s >= self._kill_at_s:
            for trainer in self._trainers:
                trainer.signal_tree(signal.SIGKILL)
        if not self._is_trainer_gone() and now_s < self._give_up_s:
            return False
        self._has_begun_to_finish = True
        return True

    def _is_trainer_gone(self) -> bool:
        # The trainer's whole process tree inherits the lock.  So the lock also shows a trainer that never sent Hello.
        is_held = any(FileLock(lock).is_held() for lock in self._start.paths.writer_locks())
        return not is_held and all(trainer.has_ended() for trainer in self._trainers)

    def is_alone(self, now_s: float) -> bool:
        """Whether the other services have ended, or have had enough time to end."""
        return now_s >= self._give_up_s or not any(lock.is_held() for lock in self._locks_of_others())

    def tidy(self, keep_memory: bool, now_wall_s: float) -> None:
        """Removes the run's files, if no new launch has begun.

        `keep_memory`: leave the shared memory, which holds an unsaved snapshot.
        """
        paths = self._start.paths
        lock = FileLock(paths.run_lock)
        with contextlib.suppress(OSError):
            if not lock.try_acquire("procsv checkpoint service, tidying up", now_wall_s, is_brief=True):
                return
            # Killed here or below: the kernel frees the lock, and the next launch removes the other files.
            if not keep_memory or is_memory_empty(paths):
                remove_shm_files(paths)
            remove_run_files(paths, keep=frozenset({paths.run_lock}))
            LeaseFile(paths).remove(self._start.run)
            lock.release()
            remove_dirs(paths)
