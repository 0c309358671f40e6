"""Stop processes (SIGSTOP) for planned faults, and continue each when its time is over.

Used by injector.py, and by machines/member_loop.py for the task of its machine.
"""

from __future__ import annotations

import signal

from procsv.watchdog.host.processes import RunningChild


class Freezes:
    def __init__(self) -> None:
        self._until: list[tuple[float, RunningChild]] = []

    def freeze(self, running: RunningChild, until_s: float) -> None:
        # If the watchdog is killed before `end_expired`, the process stays stopped. The next launch ends it.
        self._until.append((until_s, running))
        running.child.signal(signal.SIGSTOP)

    def end_expired(self, now_s: float) -> None:
        for until_s, running in list(self._until):
            if now_s >= until_s:
                self._until.remove((until_s, running))
                running.child.signal(signal.SIGCONT)

    def next_due_s(self) -> float | None:
        return min((until_s for until_s, _ in self._until), default=None)
