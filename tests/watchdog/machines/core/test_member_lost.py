"""A task on a silent machine counts as dead: the run saves what it can and ends for a scheduler to restart."""

from __future__ import annotations

from procsv.base.cluster import CHIEF
from procsv.base.identity import TaskId
from procsv.ipc.messaging.launch_settings import LaunchSettings
from procsv.watchdog.core.actions import StartAttempt
from procsv.watchdog.core.events import NotStarted, RecycleAsked, StopAsked, Ticked, TreeGone
from procsv.watchdog.machines.core.membership import member_lost, spare_lost
from tests.support.naming import Naming
from tests.watchdog.played import DONE, INTERRUPTED, KILLED, Played, journaled, killed, said

WORKER, OTHER = TaskId("worker", 0), TaskId("worker", 1)
LOST = member_lost(WORKER, "n2", 10.0)


def test_a_lost_member_ends_the_run_but_counts_as_no_ones_failure() -> None:
    played = Played(tasks=(CHIEF, WORKER))
    out = played.tell(LOST)

    (exited,) = journaled(out, "exited")
    assert (exited["cause"], exited["evidence"]) == ("lost-peer", Naming("n2 ", " for 10 s"))
    assert journaled(out, "member_lost") == [{"host": "n2", "silent": 10.0, "spare": ""}]
    assert not journaled(out, "restarting")
    assert (Naming("worker.0 ", "n2 ", " for 10 s"), True) in said(out)
    out += played.tell(Ticked())
    assert not [action for action in out if isinstance(action, StartAttempt) and action.task == WORKER]
    assert played.core.is_ending
    assert played.core.tasks[WORKER].ends_run


def test_a_run_with_nothing_saved_that_it_ends_has_70_and_the_reason_and_not_its_interrupted_programs_code() -> None:
    played = Played(tasks=(CHIEF, WORKER), trains=False)
    out = played.tell(LOST, Ticked())
    out += played.end(CHIEF, INTERRUPTED) + played.tell(TreeGone(CHIEF, 1))
    for at_s in (200.0, 300.0):
        out += played.tick(at_s)

    assert played.core.exit_code == 70
    assert any("nothing was saved" in text for text, _ in said(out))


def test_during_a_stop_a_lost_member_only_ends_the_wait_for_it() -> None:
    played = Played(tasks=(CHIEF, WORKER))
    played.stop()
    source = played.core.stop_source

    played.tell(LOST)

    assert played.core.stop_source == source
    played.end(CHIEF, DONE)
    assert not played.core.tasks[WORKER].pid


def test_a_member_that_another_machine_can_replace_ends_the_run_for_a_restart() -> None:
    played = Played(tasks=(CHIEF, WORKER))

    out = played.tell(member_lost(WORKER, "n2", 10.0, "n3"))

    assert journaled(out, "member_lost") == [{"host": "n2", "silent": 10.0, "spare": "n3"}]
    assert (Naming("worker.0 ", "n2 ", " for 10 s", "n3"), True) in said(out)
    assert played.core.restarts_elsewhere
    assert played.core.is_ending


def test_before_a_restart_only_the_members_that_the_chief_needs_for_its_save_are_waited_for() -> None:
    server = TaskId("ps", 0)
    for lost, is_gang, killed_at_once in (
        (OTHER, False, {WORKER}),
        (server, False, {CHIEF, WORKER, OTHER}),
        (OTHER, True, {CHIEF, WORKER}),
    ):
        tasks = (CHIEF, WORKER, OTHER) if is_gang else (CHIEF, WORKER, OTHER, server)
        played = Played(tasks=tasks, launch=LaunchSettings(restart="gang" if is_gang else "task"))
        out = played.tell(member_lost(lost, "n2", 10.0, "n3"), Ticked())
        assert set(killed(out)) - {lost} == killed_at_once, (lost, is_gang)


def test_a_requested_stop_before_or_after_the_loss_of_a_machine_is_the_end() -> None:
    for is_before in (True, False):
        played = Played(tasks=(CHIEF, WORKER))
        for asks in (is_before, not is_before):
            if asks:
                played.stop()
            else:
                played.tell(member_lost(WORKER, "n2", 10.0, "n3"))
        assert not played.core.restarts_elsewhere


def test_a_notice_to_a_machine_that_another_can_replace_stops_everything_for_a_restart() -> None:
    played = Played(tasks=(CHIEF, WORKER))

    out = played.tell(StopAsked("SIGTERM on n2", now=False, is_notice=True, spare="n3"))

    assert played.core.restarts_elsewhere
    assert not killed(out)
    assert (Naming("SIGTERM on n2: ", " 25 s ", "n3"), False) in said(out)
    played.tell(StopAsked("SIGTERM on n4", now=False, is_notice=True, spare="n5"))
    assert played.core.restarts_elsewhere, "there is a spare one for both"
    played.tell(StopAsked("SIGTERM", now=False, is_notice=True))
    assert not played.core.restarts_elsewhere, "the coordinator's machine, too"


def test_the_loss_of_a_machine_without_a_task_is_reported_and_ends_nothing() -> None:
    played = Played(tasks=(CHIEF, WORKER))

    out = played.tell(spare_lost(TaskId("spare", 0), "n4", 10.0))

    assert journaled(out, "spare_lost") == [{"host": "n4", "silent": 10.0}]
    assert not played.core.is_ending


def test_a_member_that_has_already_ended_is_not_ended_again() -> None:
    played = Played(tasks=(CHIEF, WORKER))
    played.end(WORKER, DONE)

    assert not journaled(played.tell(LOST), "exited")


def test_a_member_that_was_being_started_or_cleaned_up_blocks_nothing() -> None:
    for is_clearing in (False, True):
        played = Played(tasks=(CHIEF, WORKER))
        played.end(WORKER, KILLED)
        if is_clearing:
            out = played.tell(LOST, TreeGone(WORKER, 1))
        else:
            spawned = [a for a in played.tell(TreeGone(WORKER, 1), Ticked()) if isinstance(a, StartAttempt)]
            assert [(spawn.task, spawn.incarnation) for spawn in spawned] == [(WORKER, 2)]
            out = played.tell(NotStarted(WORKER, 2, "n2 is lost"), LOST)
        out += played.tick(200.0)
        assert not [action for action in out if isinstance(action, StartAttempt) and action.task == WORKER]
        assert played.core.tasks[WORKER].ends_run


def test_a_task_that_its_machine_could_not_start_while_the_run_ends_has_thereby_ended() -> None:
    played = Played(tasks=(CHIEF, WORKER))
    played.end(WORKER, KILLED)
    played.tell(TreeGone(WORKER, 1), Ticked())
    played.stop()

    out = played.tell(NotStarted(WORKER, 2, "this launch ends (on n2)"))

    assert played.core.tasks[WORKER].ends_run
    assert said(out) == [], "nothing is tried again"


def test_a_task_to_be_restarted_before_its_machine_had_begun_is_started_at_once_without_a_message() -> None:
    played = Played(tasks=(CHIEF, WORKER))
    played.end(WORKER, KILLED)
    played.tell(TreeGone(WORKER, 1), Ticked())
    played.tell(RecycleAsked("procsv restart", by_hand=True, task=WORKER))

    out = played.tell(NotStarted(WORKER, 2, "asked to end (on n2)"), Ticked())

    assert [(action.task, action.incarnation) for action in out if isinstance(action, StartAttempt)] == [(WORKER, 2)]
    assert said(out) == []


def test_two_machines_lost_at_once_while_they_start_their_tasks_end_the_run() -> None:
    played = Played(tasks=(CHIEF, WORKER, OTHER))
    for task in (WORKER, OTHER):
        played.end(task, KILLED)
        played.tell(TreeGone(task, 1), Ticked())

    for task, lost in ((WORKER, LOST), (OTHER, member_lost(OTHER, "n3", 10.0))):
        played.tell(NotStarted(task, 2, "it is lost"), lost)

    assert all(played.core.tasks[task].ends_run for task in (WORKER, OTHER))
