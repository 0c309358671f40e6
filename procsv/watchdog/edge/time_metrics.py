"""Time metrics: the ledger of the run so far, sent to the summary service at intervals, for TensorBoard.

Used by event_loop.py.  Keeps the same book as `procsv report`, so that both say the same.  Decides when; says nothing itself.
"""

from __future__ import annotations

from procsv.base.journal import entries
from procsv.base.journal.line import Line
from procsv.ipc.messaging.summary_messages import RunMetrics
from procsv.report.book import Book

EVERY_S = 60.0
_WORTH_A_POINT = entries.Ready | entries.Exited | entries.RunCompleted | entries.Stopped | entries.GaveUp


class MetricsBook:
    def __init__(self) -> None:
        self._book = Book(keeps_remarks=False)
        self._next_s = 0.0
        self._second = -1

    def enter(self, line: Line) -> None:
        self._book.enter(line)
        if isinstance(line.entry, _WORTH_A_POINT):
            self._next_s = 0.0

    def due(self, now_s: float, wall_s: float, step: int) -> RunMetrics | None:
        """What to say now, if it is time to.  `now_s` monotonic, `wall_s` Unix seconds."""
        if now_s < self._next_s:
            return None
        self._next_s = now_s + EVERY_S
        account = self._book.so_far(wall_s, step)
        if account is None:
            return None
        values = {f"procsv/seconds/{kind}": seconds for kind, seconds in account.totals.items()}
        values["procsv/goodput"] = account.goodput
        values["procsv/failures"] = float(account.failures)
        values["procsv/lost_steps"] = float(account.lost_steps)
        if account.recoveries_s:
            values["procsv/recovery_seconds"] = account.recoveries_s[-1]
        self._second = max(int(account.wall_s), self._second + 1)
        return RunMetrics(wall_s, self._second, values)
