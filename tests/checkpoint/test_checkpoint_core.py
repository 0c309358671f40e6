"""The core's decisions, as scenarios: what happens on the left, what is to be done about it on the right."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from procsv.ipc.arena import SlotInfo
from procsv.ipc.channel import Heard
from procsv.ipc.messages import (
    Durable,
    Finish,
    Message,
    Rejected,
    Restore,
    Restored,
    RestoreFrom,
    SaveFailed,
    SaverPlan,
    Settled,
    Snapshot,
    Staged,
    TrainerEnded,
)
from procsv.ipc.slots import SlotState
from procsv.services.checkpoint.actions import (
    Acknowledge,
    Action,
    Announce,
    Find,
    LookAround,
    Persist,
    RemoveStaged,
    Reply,
    Retire,
    TakeStock,
    VerifySlot,
)
from procsv.services.checkpoint.core import Core
from procsv.services.checkpoint.facts import Candidate, Found, Look, Rejection, State, Stock
from procsv.services.checkpoint.restoring import QUIET_S_MAX, TRIES_FOR_RESTORE_MAX
from procsv.services.checkpoint.waiting import TRIES_AT_END_MAX

PLAN = SaverPlan("/l/model.ckpt", "checkpoint", 600.0, 5, 10000.0, False, False, "")
NOTHING = Stock(-1, 0, None, ())
NO_CHECKPOINT = Found(None, (), (), False, "")


def slot(
    sequence: int, step: int, incarnation: int = 1, run: str = "r", state: SlotState = SlotState.READY
) -> SlotInfo:
    return SlotInfo(Path(f"/s/slot.{incarnation}.{sequence % 2}"), state, incarnation, sequence, step, run, 0, 0, 0)


def durable_of(state: State, reason: Any = "periodic") -> Durable:
    path = f"/l/model.ckpt-{state.step}"
    return Durable(state.sequence, state.step, state.incarnation, path, reason, 10, 0.1, (path,))


@dataclass
class Desk:
    """Drives a core; remembers what it wants done, by kind."""

    core: Core = field(default_factory=lambda: Core("r"))
    now_s: float = 0.0
    slots: list[SlotInfo] = field(default_factory=list)
    out: list[Action] = field(default_factory=list)
    seq: int = 0
    leaves_looks: bool = False

    def see(self, actions: list[Action]) -> list[Action]:
        """Remembers what is to be done; looks around at once, and sees nothing new, unless somebody else does."""
        while not self.leaves_looks and (looks := [a for a in actions if isinstance(a, LookAround)]):
            actions = [a for a in actions if a not in looks]
            actions += self.core.looked(Look((), None, ""), self.now_s)
        self.out += actions
        return actions

    def say(self, body: Message, incarnation: int = 1, role: str = "trainer") -> list[Action]:
        self.seq += 1
        self.core.slots_seen(self.slots)
        heard = Heard(b"t", role, incarnation, self.seq, 0, body, None)  # type: ignore[arg-type]
        if isinstance(body, Finish):
            return self.see(self.core.finish(heard, self.now_s))
        return self.see(self.core.handle(heard, self.now_s))

    def ready(self, *slots: SlotInfo) -> None:
        self.slots = list(slots)
        self.core.slots_seen(self.slots)

    def snapshot(self, info: SlotInfo, want: Any = "") -> list[Action]:
        kept = [s for s in self.slots if s.path != info.path]
        self.ready(*kept, info)
        return self.say(Snapshot(str(info.path), info.sequence, info.step, want), info.incarnation)

    def after(self, seconds: float) -> list[Action]:
        self.now_s += seconds
        return self.see(self.core.tick(self.now_s))

    def begun(self, stock: Stock = NOTHING) -> Desk:
        self.say(PLAN)
        self.see(self.core.stocked(stock, self.now_s))
        self.out.clear()
        return self

    def saved(self, action: Persist) -> list[Action]:
        return self.see(self.core.saved(durable_of(action.state, action.reason), self.now_s))


def only(actions: list[Action], kind: type[Any]) -> Any:
    found = [a for a in actions if isinstance(a, kind)]
    assert len(found) == 1, f"{kind.__name__} among {actions}"
    return found[0]


def bodies(actions: list[Action], kind: type[Any]) -> list[Any]:
    return [a.body for a in actions if isinstance(a, (Reply, Announce)) and isinstance(a.body, kind)]


# -- cadence ---------------------------------------------------------------------------------------------------
def test_a_checkpoint_is_due_when_save_secs_have_passed_since_the_last_one() -> None:
    desk = Desk().begun()
    assert [Acknowledge] == [type(a) for a in desk.snapshot(slot(1, 10))]
    assert desk.after(599.0) == []
    first = only(desk.after(1.0), Persist)
    assert (first.reason, first.state.step) == ("periodic", 10)
    desk.now_s += 50.0
    desk.saved(first)
    desk.snapshot(slot(2, 20))
    assert desk.after(599.0) == []
    assert only(desk.after(1.0), Persist).state.sequence == 2


def test_nothing_is_saved_by_time_when_save_secs_is_0() -> None:
    desk = Desk()
    desk.say(SaverPlan("/l/model.ckpt", "checkpoint", 0.0, 5, 1.0, False, False, ""))
    desk.core.stocked(NOTHING, 0.0)
    desk.snapshot(slot(1, 10))
    assert desk.after(1e6) == []


def test_a_wish_is_served_at_once_and_answered_when_the_state_is_durable() -> None:
    desk = Desk().begun()
    persist = only(desk.snapshot(slot(1, 10), "preempt"), Persist)
    assert persist.reason == "preempt"
    out = desk.saved(persist)
    assert [Durable, Durable] == [type(a.body) for a in out if isinstance(a, (Reply, Announce))]
    assert only(out, Reply).to.seq == 2


def test_one_save_at_a_time_then_the_newest_which_satisfies_all_older_wishes_with_the_highest_reason() -> None:
    desk = Desk().begun()
    first = only(desk.snapshot(slot(1, 10), "manual"), Persist)
    assert desk.snapshot(slot(2, 20), "final") == []
    assert desk.snapshot(slot(3, 30), "manual") == []
    second = only(desk.saved(first), Persist)
    assert (second.state.sequence, second.reason) == (3, "final")
    answered = [a.to.seq for a in desk.saved(second) if isinstance(a, Reply)]
    assert answered == [3, 4]


def test_a_wish_for_a_state_that_is_durable_already_is_answered_with_it_at_once() -> None:
    desk = Desk().begun()
    desk.saved(only(desk.snapshot(slot(1, 10), "manual"), Persist))
    out = desk.snapshot(slot(1, 10), "final")
    assert only(out, Reply).body.sequence == 1
    assert not [a for a in out if isinstance(a, Persist)]


def test_a_wish_whose_snapshot_is_nowhere_fails() -> None:
    desk = Desk().begun()
    assert isinstance(only(desk.say(Snapshot("/s/slot.1.1", 1, 10, "manual")), Reply).body, SaveFailed)


# -- failures --------------------------------------------------------------------------------------------------
def test_a_failed_save_is_announced_and_tried_again_after_1_2_4_up_to_60_seconds() -> None:
    desk = Desk().begun()
    desk.snapshot(slot(1, 10), "manual")
    for delay in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0):
        out = desk.see(desk.core.save_failed("disk full", desk.now_s))
        assert [a.body.error for a in out if isinstance(a, Announce) and isinstance(a.body, SaveFailed)] == [
            "disk full"
        ]
        assert desk.after(delay - 0.01) == []
        again = only(desk.after(0.02), Persist)
        assert again.reason == "manual"
    assert not isinstance(desk.saved(again)[0], Persist)


def test_a_newer_snapshot_is_saved_in_place_of_one_that_failed() -> None:
    desk = Desk().begun()
    desk.snapshot(slot(1, 10), "manual")
    desk.core.save_failed("disk full", 0.0)
    desk.snapshot(slot(2, 20))
    assert only(desk.after(1.1), Persist).state.sequence == 2


def test_a_new_wish_does_not_wait_for_the_back_off() -> None:
    desk = Desk().begun()
    desk.snapshot(slot(1, 10), "manual")
    desk.core.save_failed("disk full", 0.0)
    assert only(desk.snapshot(slot(2, 20), "preempt"), Persist).state.sequence == 2


def test_a_slot_that_fails_its_checksums_is_rejected_and_the_older_one_saved() -> None:
    desk = Desk().begun()
    desk.snapshot(slot(1, 10))
    persist = only(desk.snapshot(slot(2, 20), "final"), Persist)
    out = desk.see(desk.core.save_lost(persist.state, "x does not match", True, 0.0))
    assert [b.path for b in bodies(out, Rejected)] == ["/s/slot.1.0"]
    assert only(out, Persist).state.sequence == 1
    assert [b.sequence for b in bodies(out, SaveFailed)] == [2]


def test_a_slot_that_was_overwritten_is_no_failure() -> None:
    desk = Desk().begun()
    persist = only(desk.snapshot(slot(1, 10), "manual"), Persist)
    desk.ready(slot(3, 30))
    again = only(desk.see(desk.core.save_lost(persist.state, "gone", False, 0.0)), Persist)
    assert (again.state.sequence, again.reason) == (3, "manual")


# -- death and the end -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(("clean", "reason"), [(False, "crash"), (True, "final")])
def test_a_dead_trainers_newest_state_is_saved_then_settled(clean: bool, reason: str) -> None:
    desk = Desk().begun()
    desk.snapshot(slot(1, 10))
    desk.say(TrainerEnded(1, clean), role="watchdog")
    desk.after(QUIET_S_MAX)
    persist = only(desk.out, Persist)
    assert reason == persist.reason
    assert [Settled(10, "")] == bodies(desk.saved(persist), Settled)


def test_a_trainer_that_left_nothing_is_settled_at_once() -> None:
    assert [Settled(-1, "")] == bodies(Desk().say(TrainerEnded(1, False)), Settled)


def test_settled_says_what_could_not_be_saved_and_the_save_is_tried_on() -> None:
    desk = Desk().begun()
    desk.snapshot(slot(1, 10))
    desk.say(TrainerEnded(1, False))
    only(desk.after(QUIET_S_MAX), Persist)
    assert [Settled(-1, "no room")] == bodies(desk.see(desk.core.save_failed("no room", desk.now_s)), Settled)
    assert only(desk.after(1.0), Persist).reason == "crash"


def test_a_crashs_state_is_written_once_the_next_trainer_has_it() -> None:
    desk = Desk().begun()
    desk.snapshot(slot(1, 10))
    out = desk.say(TrainerEnded(1, False))
    assert not [a for a in out if isinstance(a, Persist)], "training's memory is for the restore now"
    desk.see(desk.core.slot_verified(only(out, VerifySlot).state, 0.0))
    desk.say(Restore(False), 2)
    assert not [a for a in desk.out if isinstance(a, Persist)]
    assert only(desk.say(Restored("memory", "/s/slot.1.1", 10), 2), Persist).reason == "crash"


def test_a_crashs_state_is_written_after_a_second_whoever_dies_meanwhile() -> None:
    desk = Desk().begun()
    desk.snapshot(slot(1, 10))
    desk.say(TrainerEnded(1, False))
    assert desk.core.next_due_s() == QUIET_S_MAX
    assert not [a for a in desk.after(QUIET_S_MAX / 2) if isinstance(a, Persist)]
    desk.say(Restore(False), 2)
    desk.say(TrainerEnded(2, False))
    assert only(desk.after(QUIET_S_MAX / 2), Persist).state.sequence == 1
    assert desk.core.next_due_s() > desk.now_s, "the service would look again at once, for ever"


def test_a_quiet_that_nobody_needed_is_over_all_the_same() -> None:
    desk = Desk().begun()
    desk.say(TrainerEnded(1, False))
    desk.after(QUIET_S_MAX)
    assert desk.core.next_due_s() > desk.now_s


@pytest.mark.parametrize("body", [Restore(durable_only=True), Finish(), TrainerEnded(1, clean=True)])
def test_a_crashs_state_is_written_at_once_where_somebody_waits_for_it_on_disk(body: Message) -> None:
    desk = Desk().begun()
    desk.snapshot(slot(1, 10))
    desk.say(TrainerEnded(1, False))
    assert only(desk.say(body, 2), Persist).state.sequence == 1


def test_a_service_that_follows_one_that_died_waits_for_no_restore() -> None:
    desk = Desk(Core("r", is_restarted=True))
    desk.ready(slot(1, 10))
    desk.say(PLAN)
    assert only(desk.see(desk.core.stocked(NOTHING, 0.0)), Persist).state.sequence == 1


def test_the_end_of_the_run_tries_some_times_before_it_gives_up() -> None:
    desk = Desk().begun()
    desk.snapshot(slot(1, 10))
    assert only(desk.say(Finish()), Persist).reason == "final"
    for _ in range(TRIES_AT_END_MAX - 1):
        assert bodies(desk.see(desk.core.save_failed("no room", desk.now_s)), Settled) == []
        only(desk.after(60.0), Persist)
    assert [Settled(-1, "no room")] == bodies(desk.see(desk.core.save_failed("no room", desk.now_s)), Settled)
    assert desk.core.settled


def test_the_end_waits_for_a_save_that_runs() -> None:
    desk = Desk().begun()
    persist = only(desk.snapshot(slot(1, 10), "manual"), Persist)
    assert desk.say(Finish()) == []
    assert [Settled(10, "")] == bodies(desk.saved(persist), Settled)
    assert desk.core.settled


def test_a_service_that_follows_a_dead_one_saves_at_once_what_was_not_saved() -> None:
    desk = Desk(Core("r", is_restarted=True))
    desk.ready(slot(4, 40))
    assert [TakeStock(PLAN)] == [a for a in desk.core.plan_seen(PLAN, 0.0) if not isinstance(a, VerifySlot)]
    assert only(desk.see(desk.core.stocked(NOTHING, 0.0)), Persist).state.sequence == 4


def test_what_is_durable_already_is_not_saved_again_after_a_restart() -> None:
    desk = Desk(Core("r", is_restarted=True))
    desk.ready(slot(4, 40))
    desk.core.plan_seen(PLAN, 0.0)
    there = durable_of(State.of_slot(slot(4, 40)))
    told = desk.see(desk.core.stocked(Stock(40, 4, there, there.all_paths), 0.0))
    assert told == [Announce(there)]  # the service before it may have died before it could say so


# -- restoring -------------------------------------------------------------------------------------------------
def test_restore_waits_for_the_plan_and_for_what_is_on_disk() -> None:
    desk = Desk()
    assert desk.say(Restore(False)) == []
    assert [TakeStock(PLAN)] == [a for a in desk.say(PLAN) if not isinstance(a, Acknowledge)]
    assert [Find(PLAN)] == desk.see(desk.core.stocked(NOTHING, 0.0))
    assert [RestoreFrom("fresh", "", -1, 0, (), "")] == bodies(desk.core.found(NO_CHECKPOINT, 0.0), RestoreFrom)


def test_memory_is_preferred_and_does_not_wait_for_the_save_that_runs() -> None:
    desk = Desk().begun()
    desk.snapshot(slot(1, 10))
    desk.say(TrainerEnded(1, False))
    only(desk.after(QUIET_S_MAX), Persist)
    assert desk.say(Restore(False), 2) == []
    verify = only(desk.out, VerifySlot)
    answer = only(desk.see(desk.core.slot_verified(verify.state, 0.0)), Reply).body
    assert (answer.source, answer.path, answer.step, answer.sequence, answer.error) == (
        "memory",
        "/s/slot.1.1",
        10,
        1,
        "",
    )


def test_a_dead_trainers_state_is_verified_before_anybody_asks() -> None:
    desk = Desk().begun()
    desk.snapshot(slot(1, 10))
    verify = only(desk.say(TrainerEnded(1, False)), VerifySlot)
    assert bodies(desk.core.slot_verified(verify.state, 0.0), RestoreFrom) == []
    out = desk.say(Restore(False), 2)
    assert [(body.source, body.step) for body in bodies(out, RestoreFrom)] == [("memory", 10)]
    assert not [a for a in out if isinstance(a, VerifySlot)]


def test_a_state_that_was_left_is_verified_when_the_service_starts() -> None:
    desk = Desk(Core("r", is_restarted=True))
    desk.ready(slot(4, 40))
    assert only(desk.after(0.0), VerifySlot).state.sequence == 4
    assert desk.after(1.0) == []


def test_what_was_read_to_be_saved_is_not_read_again_to_be_restored() -> None:
    desk = Desk().begun()
    desk.saved(only(desk.snapshot(slot(1, 10), "manual"), Persist))
    assert [body.source for body in bodies(desk.say(Restore(False), 2), RestoreFrom)] == ["memory"]


def test_a_slot_that_was_verified_and_filled_again_is_verified_again() -> None:
    desk = Desk().begun()
    desk.saved(only(desk.snapshot(slot(1, 10), "manual"), Persist))
    desk.snapshot(slot(3, 30))
    out = desk.say(Restore(False), 2)
    assert only(out, VerifySlot).state.sequence == 3
    assert bodies(out, RestoreFrom) == []


def test_a_slot_that_both_the_save_and_the_check_find_bad_is_rejected_once() -> None:
    desk = Desk().begun()
    desk.snapshot(slot(1, 10))
    out = desk.say(TrainerEnded(1, False))
    state = only(out, VerifySlot).state
    only(desk.after(QUIET_S_MAX), Persist)
    out = desk.core.verify_lost(state, "w does not match", True, 0.0) + desk.core.save_lost(state, "w", True, 0.0)
    assert len(bodies(out, Rejected)) == 1


def test_a_checkpoint_of_a_later_step_is_preferred_to_memory() -> None:
    desk = Desk().begun(Stock(50, 9, None, ("/l/model.ckpt-50",)))
    desk.ready(slot(10, 40))
    only(desk.say(Restore(False)), Find)
    found = Found(Candidate("/l/model.ckpt-50", 50, 9, True), ("/l/model.ckpt-50",), (), True, "")
    answer = bodies(desk.core.found(found, 0.0), RestoreFrom)[0]
    assert (answer.source, answer.step, answer.sequence) == ("checkpoint", 50, 10)


def test_memory_is_taken_when_the_later_checkpoint_turns_out_bad() -> None:
    desk = Desk().begun(Stock(50, 9, None, ()))
    desk.ready(slot(10, 40))
    desk.say(Restore(False))
    rejected = (Rejection("/l/model.ckpt-50", "truncated"),)
    out = desk.see(desk.core.found(Found(None, (), rejected, True, "none is good"), 0.0))
    assert [Rejected("/l/model.ckpt-50", "truncated")] == bodies(out, Rejected)
    assert only(out, VerifySlot).state.sequence == 10


def test_a_bad_slot_is_rejected_and_the_next_one_verified() -> None:
    desk = Desk().begun()
    desk.snapshot(slot(1, 10))
    desk.snapshot(slot(2, 20))
    verify = only(desk.say(Restore(False), 2), VerifySlot)
    out = desk.see(desk.core.verify_lost(verify.state, "w does not match", True, 0.0))
    assert only(out, VerifySlot).state.sequence == 1
    assert len(bodies(out, Rejected)) == 1


def test_checkpoints_of_which_none_is_good_are_an_error_never_a_fresh_start() -> None:
    desk = Desk().begun(Stock(50, 9, None, ()))
    desk.say(Restore(False))
    answer = bodies(desk.core.found(Found(None, (), (), True, "none is good"), 0.0), RestoreFrom)[0]
    assert (answer.source, answer.error) == ("checkpoint", "none is good")


def test_a_directory_that_cannot_be_read_is_an_error_never_a_fresh_start() -> None:
    desk = Desk()
    desk.say(PLAN)
    desk.say(Restore(False))
    answer = bodies(desk.core.looking_failed("Input/output error", 0.0), RestoreFrom)[0]
    assert "Input/output error" in answer.error
    assert [TakeStock(PLAN)] == desk.after(1.0)


def test_durable_only_saves_first_and_answers_with_the_checkpoint() -> None:
    desk = Desk().begun()
    desk.snapshot(slot(1, 10))
    persist = only(desk.say(Restore(True), 2), Persist)
    assert not [a for a in desk.out if isinstance(a, (Find, VerifySlot))]
    only(desk.saved(persist), Find)


def test_durable_only_falls_back_when_the_state_cannot_be_saved() -> None:
    desk = Desk().begun()
    desk.snapshot(slot(1, 10))
    desk.say(Restore(True), 2)
    for _ in range(TRIES_FOR_RESTORE_MAX - 1):
        assert not [a for a in desk.core.save_failed("no room", desk.now_s) if isinstance(a, Find)]
        desk.after(60.0)
    assert [Find(PLAN)] == [a for a in desk.core.save_failed("no room", desk.now_s) if isinstance(a, Find)]


def test_a_previous_runs_snapshot_is_restored_and_saved_and_a_strangers_removed() -> None:
    desk = Desk(Core("r", frozenset({"before"})))
    left, strange = slot(5, 50, 3, "before"), slot(8, 80, 3, "stranger")
    desk.ready(left, strange)
    desk.begun()
    assert [Retire(strange)] == [a for a in desk.after(0.0) if isinstance(a, Retire)]
    desk.say(Restore(False))
    answer = bodies(desk.core.slot_verified(State.of_slot(left), 0.0), RestoreFrom)[0]
    assert (answer.source, answer.sequence) == ("memory", 5)
    assert desk.core.saving.current is not None
    assert desk.core.saving.current.reason == "crash"


def test_old_slots_are_unlinked_once_durable_and_a_newer_trainer_has_restored() -> None:
    desk = Desk().begun()
    desk.snapshot(slot(1, 10))
    desk.say(TrainerEnded(1, False))
    persist = only(desk.after(QUIET_S_MAX), Persist)
    desk.say(Restore(False), 2)
    desk.core.slot_verified(only(desk.out, VerifySlot).state, 0.0)
    desk.say(Restored("memory", "/s/slot.1.1", 10), 2)
    assert not [a for a in desk.out if isinstance(a, Retire)]
    assert slot(1, 10) == only(desk.saved(persist), Retire).slot


def test_a_slot_that_a_trainer_was_told_of_stays_until_it_has_restored() -> None:
    desk = Desk().begun()
    desk.snapshot(slot(1, 10))
    desk.say(TrainerEnded(1, False))
    persist = only(desk.after(QUIET_S_MAX), Persist)
    desk.say(Restored("fresh", "", 0), 2)
    desk.say(Restore(False), 3)
    desk.core.slot_verified(only(desk.out, VerifySlot).state, 0.0)
    assert not [a for a in desk.saved(persist) if isinstance(a, Retire)]
    assert slot(1, 10) == only(desk.say(Restored("memory", "/s/slot.1.1", 10), 3), Retire).slot


def test_free_slots_of_dead_trainers_go_and_those_of_the_living_stay() -> None:
    desk = Desk().begun()
    dead, alive = slot(0, -1, 1, state=SlotState.FREE), slot(1, -1, 2, state=SlotState.WRITING)
    desk.ready(dead, alive)
    assert dead == only(desk.say(Restored("fresh", "", 0), 2), Retire).slot


# -- staged ----------------------------------------------------------------------------------------------------
def test_staged_files_are_saved_like_slots_and_older_ones_removed() -> None:
    desk = Desk().begun()
    desk.say(Staged("/s/staged.1/model.ckpt-10", 1, 10, ""))
    out = desk.say(Staged("/s/staged.2/model.ckpt-20", 2, 20, "manual"))
    assert only(out, RemoveStaged).state.staged == "/s/staged.1/model.ckpt-10"
    out = desk.saved(only(out, Persist))
    assert only(out, RemoveStaged).state.staged == "/s/staged.2/model.ckpt-20"


def test_staged_files_newer_than_every_slot_are_saved_before_a_restore_is_answered() -> None:
    desk = Desk().begun()
    desk.ready(slot(1, 10))
    desk.say(Staged("/s/staged.2/model.ckpt-20", 2, 20, ""))
    persist = only(desk.say(Restore(False), 2), Persist)
    assert not [a for a in desk.out if isinstance(a, (Find, VerifySlot))]
    found = Found(Candidate("/l/model.ckpt-20", 20, 2, True), ("/l/model.ckpt-20",), (), True, "")
    only(desk.saved(persist), Find)
    assert bodies(desk.core.found(found, 0.0), RestoreFrom)[0].step == 20


# -- any order of events ---------------------------------------------------------------------------------------
class World:
    """Slots, a disk and jobs that may fail, around a core; checks what must hold after every event."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.desk = Desk(leaves_looks=True)
        self.last_asked = 0
        self.user_step = -1  # of what the program has saved by itself
        self.jobs: list[Action] = []
        self.open: dict[int, Message] = {}  # reliable questions without an answer
        self.sequence = self.step = self.on_disk = self.disk_step = 0
        self.incarnation = 1
        self.tell(PLAN)

    def tell(self, body: Message) -> None:
        role = "watchdog" if isinstance(body, (TrainerEnded, Finish)) else "trainer"
        self.open[self.desk.seq + 1] = body
        if isinstance(body, Restore):
            self.last_asked = self.desk.seq + 1
        self.take(self.desk.say(body, self.incarnation, role))

    def take(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Acknowledge(to):
                    self.open.pop(to.seq, None)
                case Reply(to, body):
                    self.open.pop(to.seq, None)
                    self.check_answer(body)
                case Retire(info):
                    assert info.sequence <= self.on_disk, "a state that is nowhere else was removed"
                    self.desk.slots.remove(info)
                    self.desk.core.slots_seen(self.desk.slots)
                case LookAround():
                    assert not any(isinstance(job, LookAround) for job in self.jobs)
                    self.jobs.append(action)
                case Persist() | TakeStock() | Find() | VerifySlot():
                    assert not (isinstance(action, Persist) and any(isinstance(j, Persist) for j in self.jobs))
                    self.jobs.append(action)
                case _:
                    pass

    def check_answer(self, body: Message) -> None:
        if isinstance(body, Durable):
            assert body.sequence <= self.on_disk, "acknowledged and not on disk"
        if isinstance(body, RestoreFrom):
            assert not body.error
            assert body.step >= self.newest_step or body.source == "fresh", "resumed before what was acknowledged"
            assert body.source != "fresh" or self.newest_step < 0
            assert body.sequence >= max([0, *(s.sequence for s in self.desk.slots)])

    @property
    def newest_step(self) -> int:
        return max(self.disk_step if self.on_disk else -1, self.user_step)

    @property
    def is_asked(self) -> bool:
        return self.last_asked in self.open  # those before it are superseded, and never answered

    def act(self) -> None:
        match self.rng.randrange(10):
            case 0 | 1 | 2:
                self.sequence, self.step = self.sequence + 1, self.step + self.rng.randrange(3)
                info = slot(self.sequence, self.step, self.incarnation)
                self.desk.slots = [s for s in self.desk.slots if s.path != info.path] + [info]
                self.tell(
                    Snapshot(str(info.path), info.sequence, info.step, self.rng.choice(["", "", "manual", "final"]))
                )
            case 3:
                self.tell(TrainerEnded(self.incarnation, self.rng.random() < 0.3))
                self.incarnation += 1
                self.tell(Restore(self.rng.random() < 0.3))
            case 4:
                self.tell(Restored("memory", "", 0))
            case 5:
                self.desk.now_s += self.rng.choice([0.1, 5.0, 700.0])
                self.take(self.desk.core.tick(self.desk.now_s))
            case 6 if not self.is_asked:  # the program saves by itself; of no trainer before its state is there
                self.user_step = self.step
                if self.rng.random() < 0.5:
                    self.take(self.desk.core.changed(self.desk.now_s))
            case _:
                self.end_a_job()

    def end_a_job(self, well: bool = False) -> None:
        if not self.jobs:
            return
        job = self.jobs.pop(self.rng.randrange(len(self.jobs)))
        core, now_s = self.desk.core, self.desk.now_s
        core.slots_seen(self.desk.slots)
        match job:
            case Persist(state, reason):
                if well or self.rng.random() < 0.7:
                    self.on_disk, self.disk_step = state.sequence, state.step
                    self.take(core.saved(durable_of(state, reason), now_s))
                else:
                    self.take(core.save_failed("bad luck", now_s))
            case TakeStock():
                self.take(core.stocked(Stock(self.newest_step, self.on_disk, None, ()), now_s))
            case LookAround():
                self.take(core.looked(Look((), self.newest_step, ""), now_s))
            case VerifySlot(state):
                there = any(State.of_slot(info) == state for info in self.desk.slots)
                self.take(core.slot_verified(state, now_s) if there else core.verify_lost(state, "gone", False, now_s))
            case Find():
                step, exists = self.newest_step, self.newest_step >= 0
                sequence = self.on_disk if step == self.disk_step else 0
                good = Candidate(f"/l/model.ckpt-{step}", step, sequence, True)
                found = Found(good if exists else None, (), (), exists, "")
                self.take(core.found(found, now_s))


@pytest.mark.parametrize("seed", range(400))
def test_in_any_order_of_events_nothing_acknowledged_is_lost_and_every_question_is_answered(seed: int) -> None:
    world = World(seed)
    for _ in range(80):
        world.act()
    world.tell(Finish())
    for _ in range(60):  # from now on all goes well
        world.end_a_job(well=True)
        world.desk.now_s += 60.0
        world.take(world.desk.core.tick(world.desk.now_s))
    assert world.desk.core.settled, f"seed {seed}"
    newest = max((s.sequence for s in world.desk.slots), default=0)
    assert world.on_disk >= newest, f"seed {seed}"
    superseded = [b for b in world.open.values() if not isinstance(b, Restore)]
    assert superseded == [], f"seed {seed}"
    assert not world.is_asked, f"seed {seed}: the last trainer's question was not answered"


# -- a state that is suspect -----------------------------------------------------------------------------------
def found(step: int) -> Found:
    return Found(Candidate(f"/l/model.ckpt-{step}", step, step, True), (f"/l/model.ckpt-{step}",), (), True, "")


def test_after_a_suspect_state_the_checkpoint_before_it_is_answered_although_the_slot_is_good() -> None:
    desk = Desk().begun(Stock(840, 84, None, ("/l/model.ckpt-800", "/l/model.ckpt-840")))
    desk.ready(slot(84, 840))
    desk.say(TrainerEnded(1, False, avoid_step=840), role="watchdog")
    assert only(desk.say(Restore(False), incarnation=2), Find).before == 840
    answer = only(bodies(desk.see(desk.core.found(found(800), 0.0)), RestoreFrom), RestoreFrom)

    assert (answer.source, answer.path, answer.step) == ("checkpoint", "/l/model.ckpt-800", 800)


def test_a_suspect_state_with_none_before_it_is_used_after_all() -> None:
    desk = Desk().begun(Stock(840, 84, None, ("/l/model.ckpt-840",)))
    desk.say(TrainerEnded(1, False, avoid_step=840), role="watchdog")
    desk.say(Restore(False), incarnation=2)
    again = desk.see(desk.core.found(Found(None, ("/l/model.ckpt-840",), (), True, "none before it"), 0.0))
    assert only(again, Find).before == -1
    answer = only(bodies(desk.see(desk.core.found(found(840), 0.0)), RestoreFrom), RestoreFrom)

    assert (answer.source, answer.step) == ("checkpoint", 840)


def test_suspicion_ends_with_the_trainer_that_it_was_about() -> None:
    desk = Desk().begun(Stock(840, 84, None, ("/l/model.ckpt-840",)))
    desk.say(TrainerEnded(1, False, avoid_step=840), role="watchdog")
    desk.say(TrainerEnded(2, False), role="watchdog")

    assert only(desk.say(Restore(False), incarnation=3), Find).before == -1
