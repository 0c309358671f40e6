"""When the service looks around again by itself, if nobody says anything."""

from __future__ import annotations

import math

from procsv.services.checkpoint.core.external_saves import RESCAN_S
from tests.support.core_desk import Desk, slot


def test_without_a_plan_nothing_is_due() -> None:
    assert Desk().core.next_due_s() == math.inf


def test_the_directory_is_looked_at_every_few_seconds_where_nothing_is_to_be_saved_however_long() -> None:
    desk = Desk().begun()
    desk.after(10_000.0)
    assert desk.core.next_due_s() == 10_000.0 + RESCAN_S


def test_a_save_is_due_when_save_secs_have_passed_and_what_failed_after_its_pause() -> None:
    desk = Desk().begun()
    desk.snapshot(slot(1, 10))
    desk.after(597.0)
    assert desk.core.next_due_s() == 600.0
    desk.after(3.0)
    assert desk.core.next_due_s() == 597.0 + RESCAN_S, "while it is saved nothing is due but the next look"
    desk.see(desk.core.save_failed("no room", desk.now_s))
    assert desk.core.next_due_s() == 601.0
