"""The core follows the first plan, ignores a repeated one and starts over for a plan with another place."""

from __future__ import annotations

import msgspec

from procsv.base.identity import TRAINER
from procsv.ipc.messaging.checkpoint_messages import Restored
from procsv.services.checkpoint.core.actions import Acknowledge, ListCheckpoints, Persist
from procsv.services.checkpoint.core.core import CheckpointCore
from procsv.services.checkpoint.core.facts import DiskState
from tests.support.core_desk import NOTHING, PLAN, Desk, only, slot

ELSEWHERE = msgspec.structs.replace(PLAN, save_path="/m/model.ckpt")
SOONER = msgspec.structs.replace(PLAN, save_secs=60.0)
STOCK = DiskState(10, 1, None, ("/l/model.ckpt-10",))


def test_repeating_the_plan_changes_nothing() -> None:
    desk = Desk().begun(STOCK)
    assert [type(action) for action in desk.say(PLAN)] == [Acknowledge]
    assert desk.core.states.kept == STOCK.kept


def test_checkpoints_stay_known_until_the_plan_names_another_place() -> None:
    desk = Desk().begun(STOCK)
    assert ListCheckpoints(SOONER) in desk.say(SOONER)
    assert (desk.core.states.newest_step, desk.core.states.kept) == (10, STOCK.kept)
    assert ListCheckpoints(ELSEWHERE) in desk.say(ELSEWHERE)
    assert (desk.core.states.newest_step, desk.core.states.kept) == (-1, ())


def test_a_snapshots_plan_holds_until_a_trainer_sends_its_own() -> None:
    desk = Desk()
    assert desk.core.plan_seen(SOONER, 0.0) == [ListCheckpoints(SOONER)]
    assert desk.core.plan_seen(ELSEWHERE, 0.0) == []
    assert ListCheckpoints(PLAN) in desk.say(PLAN)
    assert desk.core.plan_seen(SOONER, 0.0) == []


def test_nothing_is_saved_until_the_contents_of_the_new_place_are_known() -> None:
    desk = Desk().begun()
    desk.say(ELSEWHERE)
    desk.snapshot(slot(1, 10), "manual")
    assert not [action for action in desk.out if isinstance(action, Persist)]
    assert only(desk.see(desk.core.stocked(NOTHING, desk.now_s)), Persist).plan == ELSEWHERE


def test_save_secs_count_from_the_first_plan() -> None:
    desk = sooner_after_40_s()
    assert desk.after(19.0) == []
    assert only(desk.after(1.0), Persist).reason == "periodic"


def test_save_secs_start_again_at_each_restore() -> None:
    desk = sooner_after_40_s()
    desk.say(Restored())
    assert desk.after(59.0) == []
    assert only(desk.after(1.0), Persist).reason == "periodic"


def sooner_after_40_s() -> Desk:
    """Return a desk with a state in memory, 40 s on, whose trainer now wants checkpoints more often."""
    desk = Desk().begun()
    desk.snapshot(slot(1, 10))
    desk.now_s = 40.0
    desk.say(SOONER)
    desk.see(desk.core.stocked(NOTHING, desk.now_s))
    return desk


def test_the_present_trainers_memory_is_saved_by_time_alone() -> None:
    desk = Desk().begun()
    desk.say(Restored(), incarnation=2)
    desk.snapshot(slot(1, 10, 2))
    assert desk.after(599.0) == []
    assert only(desk.after(1.0), Persist).reason == "periodic"


def test_memory_left_by_an_earlier_run_is_saved_before_anyone_asks_for_it() -> None:
    desk = Desk(CheckpointCore("r", TRAINER, frozenset({"before"})))
    desk.ready(slot(5, 50, 3, "before"))
    desk.say(PLAN)
    assert only(desk.see(desk.core.stocked(NOTHING, desk.now_s)), Persist).reason == "crash"
