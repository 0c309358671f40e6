"""Let a program under test stand still, so that a test's fault hits it at work, however late the fault comes.

The environment says where: from step STANDS_AT on, until the file STANDS_UNTIL exists or, in the
disturbed training of a drill, until the journal has STANDS_FOR_FAULTS faults. As a program,
`standing.py EXAMPLE ARGS...` runs that module of procsv.examples, and stands there.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from procsv.training.runtime.context import current

PROGRAM = str(Path(__file__))


def stand(until: Callable[[], bool] = lambda: False) -> None:
    """Wait until `until` returns true or the run is asked to stop."""
    runtime = current()
    while runtime is not None and runtime.stops.reason is None and not until():
        time.sleep(0.01)


def stand_at(step: int) -> None:
    """Wait if the environment says so for this step."""
    if step >= int(os.environ.get("STANDS_AT", sys.maxsize)):
        stand(_has_happened)


def _has_happened() -> bool:
    logdir, faults = Path(os.environ["PROCSV_LOGDIR"]), os.environ.get("STANDS_FOR_FAULTS")
    if faults is None:
        return os.path.exists(os.environ.get("STANDS_UNTIL", ""))  # noqa: PTH110  "" is no path
    if logdir.name != "drilled":
        return True
    return (logdir / "procsv" / "journal.jsonl").read_text().count('"event":"fault"') >= int(faults)


def main(example: str, *args: str) -> int:
    from procsv.examples.progress import Progress

    module = importlib.import_module(f"procsv.examples.{example}")
    show = Progress.show

    def show_and_stand(self: Progress, step: int, text: str = "") -> None:
        show(self, step, text)
        stand_at(step)

    Progress.show = show_and_stand  # type: ignore[method-assign]
    if example == "keras_digits":
        pause = module.Pause.on_train_batch_end

        def pause_and_stand(self: Any, batch: int, logs: Any = None) -> None:
            pause(self, batch, logs)
            stand_at(int(self.model.optimizer.iterations))

        module.Pause.on_train_batch_end = pause_and_stand
    return int(module.main(list(args)))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
