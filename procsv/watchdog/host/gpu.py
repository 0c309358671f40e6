"""Wait until a dead trainer has left the GPU.

A new trainer that comes too early finds the GPU's memory in use. Used while a dead trainer's tree
is being removed. Needs NVIDIA's own library (`pynvml`, from nvidia-ml-py), which the user may have
installed. Without the library or without a GPU there is no wait.
"""

from __future__ import annotations

import importlib
from typing import Any

LEAVE_S_MAX = 10.0  # the driver needs a moment to release a killed process, and waiting longer does not help


class Gpus:
    """Waits until no dead trainer uses a GPU of this machine any more."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._devices: list[Any] = []
        self._is_known = False  # the GPUs were looked for
        self._leaving: dict[int, float] = {}  # when to stop waiting for each dead process, by pid

    def expect_to_leave(self, pid: int, now_s: float) -> None:
        """Begin to wait for the driver to free the memory of `pid`, which is dead."""
        if not self._is_known:
            self._find()
        self._leaving[pid] = now_s + LEAVE_S_MAX

    def wait_is_over(self, now_s: float) -> bool:
        """Whether no dead process uses a GPU any more, or LEAVE_S_MAX has passed since its death."""
        users = self._users() if self._leaving else set()
        self._leaving = {pid: until_s for pid, until_s in self._leaving.items() if pid in users and now_s < until_s}
        return not self._leaving

    def _find(self) -> None:
        self._is_known = True
        try:
            nvml = importlib.import_module("pynvml")
            nvml.nvmlInit()
            self._devices = [nvml.nvmlDeviceGetHandleByIndex(n) for n in range(nvml.nvmlDeviceGetCount())]
        except Exception:  # noqa: BLE001  not installed, no driver, another version: nothing to query
            return
        self._nvml = nvml

    def _users(self) -> set[int]:
        """Return the pids of the processes that use a GPU of this machine."""
        found = set[int]()
        for device in self._devices:
            try:
                processes = self._nvml.nvmlDeviceGetComputeRunningProcesses(device)
            except Exception:  # noqa: BLE001  do not wait for a GPU that cannot answer
                continue
            found.update(process.pid for process in processes)
        return found
