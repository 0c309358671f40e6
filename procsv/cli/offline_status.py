"""Status of a run whose watchdog does not respond: from its heartbeat, its snapshots and the machine.

Used by status.py.  Reads the trainer's heartbeat, the headers of the snapshots and the machine's own figures; asks nobody.
"""

from __future__ import annotations

from typing import Any

from procsv.base.identity import TRAINER
from procsv.base.locks import FileLock
from procsv.base.run.run_file import RunFile
from procsv.base.service_table import SERVICES
from procsv.base.system_clock import SystemClock
from procsv.ipc.shm.heartbeat import Heartbeat
from procsv.ipc.shm.heartbeat_file import HeartbeatReader
from procsv.ipc.shm.slot_file import scan_slots


def look_at(run: RunFile) -> dict[str, Any]:
    """The fields of `status --json` that run.json does not have, or has of earlier."""
    reader = HeartbeatReader(run.paths.heartbeat(TRAINER, run.incarnation))
    beat = reader.read()
    reader.close()
    slots = (slot.step for slot in scan_slots(run.paths.shm_dir) if slot.run == run.run)
    return {
        "step": max(run.step, beat.step if beat is not None else run.step),
        "memory_step": max(slots, default=run.memory_step),
        "snapshots": beat.snapshots.as_status() if beat is not None and beat.snapshots.spacing else None,
        "processes": [] if run.paths.control_socket.exists() else _processes(run, beat),
    }


def _processes(run: RunFile, beat: Heartbeat | None) -> list[dict[str, Any]]:
    """The trainer that is its own host, and its services, known by the locks that they hold."""
    phase = beat.phase.name.lower() if beat is not None else ""
    rows = [{"role": "trainer", "pid": run.pid, "state": run.state, "phase": phase, **_usage(run.pid)}]
    for task in SERVICES:
        lock = FileLock(run.paths.service_lock(task))
        holder = lock.holder() if lock.is_held() else None
        if holder is not None:
            rows.append({"role": str(task), "pid": holder.pid, "state": "serving", "phase": "", **_usage(holder.pid)})
    return rows


def _usage(pid: int) -> dict[str, float | int]:
    """Seconds since its start, resident bytes, and percent of a core over all that time."""
    import psutil

    try:
        process = psutil.Process(pid)
        uptime = max(SystemClock().wall() - process.create_time(), 0.01)
        used = process.cpu_times()
        cpu = round(100 * (used.user + used.system) / uptime, 1)
        return {"uptime": round(uptime, 1), "rss": process.memory_info().rss, "cpu": cpu}
    except psutil.Error:
        return {"uptime": 0.0, "rss": 0, "cpu": 0.0}
