"""procsv.extend does nothing without a watchdog and refuses what is not a time."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest

import procsv
from procsv.base.system.system_clock import SystemClock
from procsv.ipc.shm.heartbeat_file import HeartbeatReader
from procsv.training.runtime.trainer_heartbeat import TrainerHeartbeat


def test_without_a_watchdog_extend_does_nothing_says_nothing_and_loads_no_tensorflow() -> None:
    program = "import sys, procsv; assert procsv.extend(3600) is None; assert 'tensorflow' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("seconds", [-1.0, math.inf, math.nan])
def test_anything_but_a_time_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="seconds must be"):
        procsv.extend(seconds)


def test_a_time_without_end_is_written_like_any_other(tmp_path: Path) -> None:
    clock, path = SystemClock(), tmp_path / "heartbeat"
    heartbeat = TrainerHeartbeat(clock, lambda: 0, lambda: False)
    heartbeat.open_file(path)
    heartbeat.extend_limit(float(sys.maxsize))
    heartbeat.tick(clock.monotonic())
    beat = HeartbeatReader(path).read_heartbeat()
    assert beat is not None
    assert beat.extended_s > clock.monotonic() + 1e6
    heartbeat.close_file()
