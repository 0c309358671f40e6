"""A worker of the table `holds`: makes steps that another process holds, by files or over a socket.

Started by holds.py, with the way, its number, and the directory that stands for the run's.  Says "= " and where it is held, and from then
on, once it is told to end by the end of its input, a line of how late each step was that had to wait, in milliseconds.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from procsv.base.identity import TaskId
from procsv.base.run.paths import RunPaths
from procsv.base.system.system_clock import SystemClock
from procsv.training.holds.held_task import HeldTask
from procsv.training.runtime.step_gate import StepGate

STEP_S, PAUSE_S = 0.005, 0.001  # of the step, in which it waits as for a server; and between two
LATE_S_MIN = 0.0002  # a step that waits less was not held


def paths_in(folder: Path) -> RunPaths:
    (folder / "run").mkdir(exist_ok=True)
    return RunPaths(folder, folder / "run", folder / "shm")


def main() -> None:
    way, task, folder = sys.argv[1], TaskId("worker", int(sys.argv[2])), Path(sys.argv[3])
    over, pause, late = threading.Event(), threading.Event(), list[float]()
    if way == "files":
        passage: Any = StepGate(paths_in(folder), task, (), SystemClock())
        offer = b"null"
    else:
        passage = HeldTask(SystemClock())
        offer = msgspec.json.encode(passage.offer)

    def step(called_s: float) -> None:
        if (late_s := time.perf_counter() - called_s) >= LATE_S_MIN:
            late.append(late_s * 1e3)
        pause.wait(STEP_S)

    passage.open_steps()
    trains = threading.Thread(target=_train, args=(passage.guard(step), over, pause))
    trains.start()
    print("=", offer.decode(), flush=True)
    sys.stdin.read()
    over.set()
    trains.join()
    print("=", msgspec.json.encode(late).decode(), flush=True)


def _train(step: Callable[[float], None], over: threading.Event, pause: threading.Event) -> None:
    while not over.is_set():
        step(time.perf_counter())
        pause.wait(PAUSE_S)


if __name__ == "__main__":
    main()
