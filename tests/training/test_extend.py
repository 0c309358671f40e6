"""procsv.extend does nothing without a watchdog and refuses what is not a time."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

import procsv


def test_without_a_watchdog_extend_does_nothing_says_nothing_and_loads_no_tensorflow() -> None:
    program = "import sys, procsv; assert procsv.extend(3600) is None; assert 'tensorflow' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("seconds", [-1.0, math.inf, math.nan])
def test_anything_but_a_time_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="seconds must be"):
        procsv.extend(seconds)
