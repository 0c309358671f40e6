"""Say what the loss of a member means for the run: events for the core of the watchdog.

Pure. Used by watchdog/machines/remote_tasks.py.
"""

from __future__ import annotations

from procsv.base.identity import TaskId
from procsv.base.journal import entries
from procsv.base.units import show_duration
from procsv.watchdog.core.events import Noted, TaskLost


def member_lost(task: TaskId, host: str, silent_s: float, spare: str = "", *, is_killed: bool = False) -> TaskLost:
    """The machine that has the task is silent, or its launch was killed (`is_killed`), as another
    launch there has shown. `spare`: the host that can take over the task; "" if none.
    """
    why = f"{host} has been silent for {show_duration(silent_s)}"
    if is_killed:
        why = f"the launch on {host} was killed, and the next one there has another address"
    follows = f"all tasks restart, with {spare} in its place" if spare else "the run stops"
    return TaskLost(
        task=task,
        why=why,
        entry=entries.MemberLost(host=host, silent=round(silent_s, 3), spare=spare),
        text=f"{why}, where {task} runs: {follows}",
        host=host,
        spare=spare,
    )


def member_replaced(task: TaskId, host: str, before: int, pid: int) -> TaskLost:
    """The launch that had the task or place, process `before`, was killed, and another launch on
    its machine takes over, process `pid`.
    """
    return TaskLost(
        task=task,
        why=f"its launch on {host} (process {before}) was killed",
        entry=entries.MemberReplaced(host=host, before=before, pid=pid),
        text=f"the launch of {task} on {host} (process {before}) was killed; process {pid} replaces it",
    )


def spare_lost(name: TaskId, host: str, silent_s: float) -> Noted:
    """A machine without a task is silent. `silent_s`: 0.0 if it announced that it leaves."""
    why = f"{host} has been silent for {show_duration(silent_s)}" if silent_s else f"{host} announced its end"
    entry = entries.SpareLost(host=host, silent=round(silent_s, 3))
    text = f"{why}; it is a spare without a task, and will not take one over"
    return Noted(task=name, incarnation=1, entry=entry, text=text, is_bad=True)
