"""Make calls that may wait for another process forever, and abandon them after a limit.

Each call runs on its own thread.  The last read and the close of a session with remote servers are
such calls.  An abandoned call may still be waiting when the interpreter exits, and the interpreter
would wait for it.  So the bootstrap ends the process itself if `has_abandoned_calls`.
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
        except BaseException as error:  # noqa: BLE001  the caller gets it
            self.error = error


def call_within(call: Callable[[], T], seconds: float, what: str) -> T:
    """Returns what `call` returns, or raises what it raises.

    After `seconds` it abandons the call and raises TimeoutError.  `what` names the call for users.
    """
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


def has_abandoned_calls() -> bool:
    """Whether this process has abandoned calls."""
    return bool(_left)
