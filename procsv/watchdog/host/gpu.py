"""Waits until a dead trainer has left the GPU: a new one that comes too early finds its memory taken.

Used by event_loop.py while a dead trainer's tree is being cleared.  Uses NVIDIA's own library where the user has it installed
(`pynvml`, of nvidia-ml-py); without it, or without a GPU, nothing is waited for.
"""

from __future__ import annotations

import importlib
from typing import Any

LEAVE_S_MAX = 10.0  # the driver takes a moment to let go of a killed process; longer, and waiting helps nobody


class Gpus:
    """Who is on the machine's GPUs."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._devices: list[Any] = []
        self._is_known = False
        self._pid, self._until_s = 0, 0.0

    def expect_to_leave(self, pid: int, now_s: float) -> None:
        """`pid` is dead; its memory is freed when the driver comes to it."""
        if not self._is_known:
            self._find()
        self._pid, self._until_s = pid, now_s + LEAVE_S_MAX

    def are_left(self, now_s: float) -> bool:
        """Whether it has gone from every GPU, or has had its time."""
        return now_s >= self._until_s or not self._are_used_by(self._pid)

    def _find(self) -> None:
        self._is_known = True
        try:
            nvml = importlib.import_module("pynvml")
            nvml.nvmlInit()
            self._devices = [nvml.nvmlDeviceGetHandleByIndex(n) for n in range(nvml.nvmlDeviceGetCount())]
        except Exception:  # noqa: BLE001  not installed, no driver, another version: there is nothing to ask
            return
        self._nvml = nvml

    def _are_used_by(self, pid: int) -> bool:
        for device in self._devices:
            try:
                processes = self._nvml.nvmlDeviceGetComputeRunningProcesses(device)
            except Exception:  # noqa: BLE001  a GPU that cannot say is not waited for
                continue
            if any(process.pid == pid for process in processes):
                return True
        return False
