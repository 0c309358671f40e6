"""Remarks of a run: the lines of its journal that are shown in the list of its events.

Used by book.py.  Pure.
"""

from __future__ import annotations

from typing import Any

from procsv.report.account import Remark

REMARKABLE = frozenset(
    {
        "run_started",
        "exited",
        "recovered",
        "restarting",
        "session_lost",
        "session_recovered",
        "fit_begun",
        "checkpoint_durable",
        "checkpoint_failed",
        "checkpoint_rejected",
        "checkpoints_deleted",
        "hang_detected",
        "hang_over",
        "frozen",
        "preempt_notice",
        "service_restarted",
        "promoted",
        "adopted",
        "fault",
        "fault_skipped",
        "member_lost",
        "member_replaced",
        "gave_up",
        "task_given_up",
        "stopped",
        "run_completed",
    }
)


def as_remark(entry: dict[str, Any], now_s: float) -> Remark:
    """`now_s`: its time, corrected."""
    fields = {key: value for key, value in entry.items() if key not in ("time", "event", "role", "incarnation")}
    return Remark(now_s, entry["event"], entry.get("role", ""), entry.get("incarnation", 0), fields)
