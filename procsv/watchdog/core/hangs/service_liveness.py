"""Judge whether a service is alive: its main loop must run, and its jobs must make progress.

Used by escalation.py, for services.py. Pure: heartbeat, time, and what the process is doing are
arguments.

    until the service                              may pass
    sends its first heartbeat                      300 s    (import)
    ends an iteration of its main loop,            60 s     (service)
    which usually takes less than a second
    ends an iteration that writes records          900 s    (save)
    makes progress in a job: it has written or     300 s    half of the shorter of
    read a MiB, or ended an fsync or a rename               (restore) and (save)

The word in parentheses is the phase of --hang-limits that sets the limit. While a service works on
a job, a trainer may wait for it, in phase restore or save. The job has half of the trainer's limit,
so that a hang is found in the service, not in the trainer.

In a service, a heartbeat shows that the main loop runs, because the main thread of both services
does little work. Two kinds of time do not count. One is the time that a thread of the service waits
for a disk (state D): a disk may be arbitrarily slow, and a thread that waits for it cannot be
killed. The other is the time in which the watchdog itself did not look.
"""

from __future__ import annotations

import msgspec

from procsv.base.units import show_duration
from procsv.ipc.messaging.launch_settings import HANG_LIMITS_S, LaunchSettings
from procsv.ipc.shm.heartbeat import LOOP_AT_DISK, Heartbeat, Phase
from procsv.watchdog.core.hangs.trainer_liveness import LOOK_GAP_S_MAX, Hang

LIMITS_S = {"import": 300.0, "save": 900.0, "restore": 600.0}  # unless the user has set the phase's limit
QUIET_S_MIN = 2.0  # after this long without a heartbeat, or without progress in a job, check what the process is doing
DOUBLED_MAX = 6  # how many times a limit is doubled at most


class ServiceLiveness(msgspec.Struct):
    """The liveness of one service, through all its processes.

    The count of hangs goes on from one process to the next, until a process has finished a job.
    """

    launch: LaunchSettings
    _last: Heartbeat | None = None
    _silent_s: float = 0.0  # observed time since the last beat
    _still_s: float = 0.0  # observed time since the job last progressed
    _looked_s: float = 0.0
    _hangs: int = 0  # in a row, with no job done between them

    def start_watch(self, now_s: float) -> None:
        self._last = None
        self._silent_s = self._still_s = 0.0
        self._looked_s = now_s

    @property
    def is_quiet(self) -> bool:
        """Whether to check what the process is doing: it has shown no progress for QUIET_S_MIN."""
        return max(self._silent_s, self._still_s) >= QUIET_S_MIN

    def read_heartbeat(self, beat: Heartbeat | None, now_s: float, waits_for_disk: bool = False) -> None:
        """Read the current heartbeat; None before the first one.

        `waits_for_disk`: a thread of the process waits for a disk.
        """
        passed_s = min(max(0.0, now_s - self._looked_s), LOOK_GAP_S_MAX)
        self._looked_s, last = now_s, self._last
        self._last = beat or last
        has_beaten = beat is not None and (last is None or beat.beat_s != last.beat_s)
        # 0: no job is running, or none that can show progress.
        has_moved = beat is None or beat.moved in (0, LOOP_AT_DISK) or last is None or beat.moved != last.moved
        self._silent_s = 0.0 if has_beaten or waits_for_disk else self._silent_s + passed_s
        self._still_s = 0.0 if has_moved or waits_for_disk else self._still_s + passed_s
        if beat is not None and beat.work > (last.work if last is not None else 0):
            self._hangs = 0

    def hang(self, now_s: float) -> Hang | None:
        """Return the hang if a limit is exceeded; otherwise None."""
        if not self.launch.watches_for_hangs:
            return None
        begins = self._last is None
        at_disk = self._last is not None and self._last.moved == LOOP_AT_DISK
        silent_s = self.limit_s("import" if begins else "save" if at_disk else "service")
        still_s = min(self.limit_s("restore"), self.limit_s("save")) / 2
        if self._silent_s > silent_s:
            what = "has not begun to serve" if begins else "its main loop has not run"
            return self._found(what, self._silent_s, silent_s)
        if self._still_s > still_s:
            return self._found("its job has made no progress", self._still_s, still_s)
        return None

    def count_hang(self, hang: Hang) -> None:
        """Count a hang for which the process is ended.

        The limits double with each such hang, and are normal again once a process has finished a
        job.
        """
        self._hangs += 1

    def limit_s(self, phase: str) -> float:
        told_s = self.launch.hang_limit_s(phase)
        limit_s = LIMITS_S.get(phase, told_s) if told_s == HANG_LIMITS_S[phase] else told_s
        return float(limit_s * 2 ** min(self._hangs, DOUBLED_MAX))

    def _found(self, what: str, seconds: float, limit_s: float) -> Hang:
        phase, step = (self._last.phase, self._last.step) if self._last is not None else (Phase.IMPORT, -1)
        detail = f"{what} for {show_duration(seconds)}; the limit is {show_duration(limit_s)}"
        return Hang(phase=phase, seconds=seconds, limit_s=limit_s, step=step, detail=detail)
