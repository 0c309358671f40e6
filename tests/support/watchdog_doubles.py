"""Doubles of the watchdog's environment that do nothing: no commands of events, no faults, no terminal, memory for all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

NOTHING_USED: dict[str, float | int] = {"uptime": 0.0, "rss": 0, "cpu": 0.0}


class NoCommands:
    is_busy = False

    def offer(self, entry: dict[str, Any], now_s: float) -> None:
        """Nobody is told."""

    def tick(self, now_s: float) -> None:
        """Nothing runs."""

    def close(self) -> None:
        """Nothing was opened."""


class NoFaults:
    def next_due_s(self, now_s: float) -> float | None:
        return None

    def tick(self, now_s: float, step: int) -> None:
        """There is no plan."""


class NoTerminal:
    def say(self, text: str, is_bad: bool = False, traceback: str = "") -> None:
        """Nobody reads it."""

    def follow(self, log: Path) -> None:
        """There is no log."""


class MemoryForAll:
    room_bytes = 2**40

    def tree_rss(self, pid: int) -> int:
        return 0

    def room_for_standby(self, trainer_pid: int, limit: int) -> int:
        return self.room_bytes

    def host_memory(self) -> dict[str, int]:
        return {}
