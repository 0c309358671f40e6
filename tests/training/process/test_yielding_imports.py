"""A standby imports at idle priority, and trainers forked from it do not keep that priority."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
IMPORTING = """
import os, threading
from procsv.training.process.preparation import yielding_imports
with yielding_imports():
    inside = os.sched_getscheduler(0)
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
print(os.sched_getscheduler(0), os.sched_getscheduler(thread.native_id), inside)
ended.set()
"""


@pytest.mark.parametrize(
    ("prefix", "wanted"),
    [
        ((), (os.SCHED_OTHER, os.SCHED_OTHER, os.SCHED_BATCH)),
        (("chrt", "--batch", "0"), (os.SCHED_BATCH,) * 3),
        (("chrt", "--idle", "0"), (os.SCHED_IDLE,) * 3),
    ],
    ids=["other", "batch", "idle"],
)
def test_imports_yield_to_others_and_a_scheduling_class_chosen_by_the_user_stays(
    prefix: tuple[str, ...], wanted: tuple[int, ...]
) -> None:
    done = subprocess.run(
        [*prefix, sys.executable, "-c", IMPORTING], cwd=ROOT, capture_output=True, text=True, timeout=300, check=True
    )
    assert tuple(map(int, done.stdout.split())) == wanted


HURRIED = """
import os, signal, sys
from procsv.base.signals import HURRY_SIGNAL
from procsv.training.process.preparation import yielding_imports
os.kill(os.getpid(), HURRY_SIGNAL)  # by default it is nothing to anybody
with yielding_imports():
    pauses = sys.meta_path[0]
    os.kill(os.getpid(), HURRY_SIGNAL)
    print(os.sched_getscheduler(0), pauses.are_over)
print(signal.getsignal(HURRY_SIGNAL) is signal.SIG_DFL)
"""


def test_a_standby_that_a_task_waits_for_no_longer_yields_its_cores() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HURRIED], cwd=ROOT, capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout.split() == [str(os.SCHED_OTHER), "True", "True"]
