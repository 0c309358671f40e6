"""Orphans of a run whose watchdog was killed: found by the run's id, and ended before a program starts.

Used by acquire_run.py.  An orphan carries the id in its environment and is in our mount namespace: a run at the same path in another
container, or with a private /tmp, has an id of its own.  Touches no process of another user, none that this launch descends from, and none as
long as anything else of that run holds the logdir: a watchdog, a service, or a program that is to save and end by itself, and has time left.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable

from procsv.base.clock import Clock
from procsv.base.journal.file import read_program_pids
from procsv.base.run.paths import RunPaths
from procsv.base.system.processes import ExternalProcess
from procsv.base.system.tree_mark import find_marked

KILL_S = 2.0  # from SIGTERM to SIGKILL


class Orphans:
    """What a killed run's programs have left alive, whatever session it is in: found by the mark that it has inherited."""

    def __init__(self, paths: RunPaths, clock: Clock, say: Callable[[str], None]) -> None:
        self._paths, self._clock, self._say = paths, clock, say
        self._told: dict[int, float] = {}  # by pid: when it was asked to end
        self.has_program = False

    @property
    def is_ending(self) -> bool:
        """Whether any was asked to end."""
        return bool(self._told)

    def end_orphans(self, heirs: Callable[[], list[int] | None], is_late: bool) -> list[int]:
        """Ends them, once no program lives that they may serve, and that is to save and end by itself; the pids that live.

        `heirs`: those that hold the logdir's lock, None if nobody does; one that is not marked is no orphan, and has orphans of
        its own.  `is_late`: a program had its time, too.
        """
        marked = find_marked(self._paths.id)
        try:
            programs = read_program_pids(self._paths.journal, of_last_launch=True) if marked else set()
            self.has_program = any(one.pid in programs or (not programs and _is_leader(one.pid)) for one in marked)
            if marked and (is_late or not self.has_program) and _are_all_of(marked, heirs()):
                self._end(marked)
            return sorted(one.pid for one in marked)
        finally:
            for one in marked:
                one.close()

    def _end(self, orphans: list[ExternalProcess]) -> None:
        now_s, news = self._clock.monotonic(), [one for one in orphans if one.pid not in self._told]
        if news:
            pids = sorted(one.pid for one in news)
            self._say(f"ending what the program of the run before has left alive: processes {_list(pids)}")
        for one in news:
            self._told[one.pid] = now_s
            one.signal_tree(signal.SIGTERM)
        for one in orphans:
            if now_s - self._told[one.pid] > KILL_S:
                one.signal_tree(signal.SIGKILL)


def _are_all_of(marked: list[ExternalProcess], heirs: list[int] | None) -> bool:
    """Whether nobody but orphans holds the logdir; not if there is somebody whom we cannot see."""
    return heirs is None or (bool(heirs) and set(heirs) <= {one.pid for one in marked})


def _is_leader(pid: int) -> bool:
    """Whether it leads a session, as a program does."""
    with contextlib.suppress(ProcessLookupError):
        return os.getsid(pid) == pid
    return False


def _list(pids: list[int]) -> str:
    return ", ".join(map(str, pids))
