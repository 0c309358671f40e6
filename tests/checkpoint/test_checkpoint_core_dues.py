"""The service wakes up by itself when something is due, even without messages."""

from __future__ import annotations

import math

from procsv.services.checkpoint.core.directory import RESCAN_S
from tests.support.core_desk import Desk, slot


def test_without_a_plan_nothing_is_due() -> None:
    assert Desk().core.next_due_s() == math.inf


def test_the_directory_is_scanned_every_few_seconds_even_if_nothing_is_to_be_saved() -> None:
    desk = Desk().begun()
    desk.after(10_000.0)
    assert desk.core.next_due_s() == 10_000.0 + RESCAN_S


def test_a_save_is_due_after_save_secs_and_a_failed_one_after_its_back_off() -> None:
    desk = Desk().begun()
    desk.snapshot(slot(1, 10))
    desk.after(597.0)
    assert desk.core.next_due_s() == 600.0
    desk.after(3.0)
    assert desk.core.next_due_s() == 597.0 + RESCAN_S, "while it is saved nothing is due but the next look"
    desk.see(desk.core.save_failed("no room", desk.now_s))
    assert desk.core.next_due_s() == 601.0
