"""Freeze this process before one of its disk calls, run something else meanwhile, and let it go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from procsv.base.system import disk


class Standstill:
    """Replaces the disk calls. Before call number `at` it runs `happens`, which may take minutes."""

    def __init__(self, at: int, happens: Callable[[], None]) -> None:
        self._at, self._happens, self._real = at, happens, dict[str, Callable[..., Any]]()
        self.calls, self._is_inside = 0, False

    def __enter__(self) -> Standstill:
        for name in disk.CALLS:
            self._real[name] = getattr(disk, name)
            setattr(disk, name, lambda *args, _name=name, **more: self._call(_name, args, more))
        return self

    def __exit__(self, *_: object) -> None:
        for name, call in self._real.items():
            setattr(disk, name, call)

    def _call(self, name: str, args: tuple[Any, ...], more: dict[str, Any]) -> Any:
        if not self._is_inside:
            self.calls += 1
            if self.calls == self._at:
                self._is_inside = True
                self._happens()
                self._is_inside = False
        return self._real[name](*args, **more)

    @property
    def has_happened(self) -> bool:
        return self.calls >= self._at
