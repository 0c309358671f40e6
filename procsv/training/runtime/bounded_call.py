"""Calls into a runtime that may wait for another process without end: made on a thread of their own, and left behind.

Used where a session with servers elsewhere is read for the last time, and closed.  What is left behind may still wait when the
interpreter ends, which would wait for it: the bootstrap then ends the process by itself (`were_left`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from procsv.base.units import show_duration

T = TypeVar("T")

_left: list[str] = []


class _Call(Generic[T]):
    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self.results: list[T] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.results.append(self._call())
        except BaseException as error:  # noqa: BLE001  it is the caller's, who gets it
            self.error = error


def call_within(call: Callable[[], T], seconds: float, what: str) -> T:
    """What `call` returns or raises; TimeoutError, and it is left behind, after `seconds`.  `what`: for people."""
    made = _Call(call)
    thread = threading.Thread(target=made.run, name=f"procsv-{what}", daemon=True)
    thread.start()
    thread.join(seconds)
    if made.error is not None:
        raise made.error
    if made.results:
        return made.results[0]
    _left.append(what)
    raise TimeoutError(f"{what} has not ended within {show_duration(seconds)}")


def were_left() -> bool:
    """Whether calls of this process were left behind."""
    return bool(_left)
