"""The heartbeats of a run's processes, by task."""

from __future__ import annotations

import os

from procsv.base.identity import TaskId
from procsv.base.run.paths import RunPaths
from procsv.ipc.shm.heartbeat import Heartbeat
from procsv.ipc.shm.heartbeat_file import HeartbeatReader, allocate_heartbeat


class RunHeartbeats:
    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths
        self._readers: dict[TaskId, HeartbeatReader] = {}

    def follow(self, task: TaskId, incarnation: int) -> None:
        """Reads this process's from now on; what an earlier launch has left under its name goes.

        Its room is taken here: OSError if there is none, before the process is started that would want it.
        """
        path = self._paths.heartbeat(task, incarnation)
        path.unlink(missing_ok=True)
        os.close(allocate_heartbeat(path))
        self._readers[task] = HeartbeatReader(path)

    def read(self) -> dict[TaskId, Heartbeat]:
        return {task: beat for task, reader in self._readers.items() if (beat := reader.read()) is not None}

    def drop(self, task: TaskId) -> Heartbeat | None:
        """The last one of a dead process; its file goes."""
        reader = self._readers.pop(task, None)
        if reader is None:
            return None
        beat = reader.read()
        reader.close()
        reader.path.unlink(missing_ok=True)
        return beat

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()
