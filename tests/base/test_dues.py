"""The earliest of several times is due, and "never" is never due."""

from __future__ import annotations

import time

import pytest

from procsv.base.clock import first_due_s
from procsv.base.system.system_clock import SystemClock


def test_the_earliest_time_is_due_wherever_it_is_listed() -> None:
    assert first_due_s((3.0, None, 0.0, 7.0)) == 0.0
    assert first_due_s(iter([None, -1.0, 2.0])) == -1.0


def test_nothing_is_due_if_no_time_ever_comes() -> None:
    assert first_due_s(()) is None
    assert first_due_s((None, None)) is None


def test_a_program_that_stops_the_clocks_of_python_does_not_stop_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    before_s = SystemClock().monotonic()
    for name in ("time", "monotonic"):
        monkeypatch.setattr(time, name, lambda: 0.0)
    assert SystemClock().monotonic() >= before_s
    assert SystemClock().wall() > 0.0
