"""Let something happen in the middle of other code, as a switch to another thread does."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def happens_meanwhile(change: Callable[[], None]) -> Iterator[None]:
    """Call `change` at each garbage collection, and have one at nearly every allocation."""

    def collect(phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            change()

    thresholds = gc.get_threshold()
    gc.callbacks.append(collect)
    gc.set_threshold(1)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(collect)
