"""The core alone, event by event: its actions, their order, and when its deadlines end."""

from __future__ import annotations

import signal

import pytest

from procsv.base.identity import CHECKPOINT, SUMMARY, TRAINER, WATCHDOG, TaskId
from procsv.base.outcome import Exit, LastWords
from procsv.ipc.messaging.checkpoint_messages import Rejected
from procsv.ipc.messaging.watchdog_messages import Finish, StopTraining, TrainerExited
from procsv.ipc.shm.heartbeat import Heartbeat, Phase
from procsv.watchdog.core.actions import Action, Quit, RestoreFile, Signal, StartAttempt, Tell, WriteRun
from procsv.watchdog.core.events import (
    Ended,
    FileState,
    LogdirTaken,
    NotStarted,
    PreemptAsked,
    RunFilesChecked,
    Said,
    ServiceReady,
    Ticked,
    TreeGone,
)
from tests.support.naming import Naming
from tests.watchdog.played import DONE, KILLED, SAVED, WORKER, Played, beat, journaled, killed, said, told


# -- a stop ----------------------------------------------------------------------------------------------------
def test_a_stop_is_recorded_before_any_signal_and_wakes_the_services() -> None:
    out = Played().stop()

    assert isinstance(out[0], WriteRun)
    woken = [action.task for action in out if isinstance(action, Signal) and action.number == signal.SIGCONT]
    assert woken == [CHECKPOINT, SUMMARY, TRAINER]
    assert said(out) == [(Naming("SIGTERM: saving", " 25 s "), False)]
    assert Tell(TRAINER, StopTraining(17.0, "final", ends_run=True)) in out
    assert not journaled(out, "preempt_notice")


def test_repeating_a_stop_does_nothing_and_one_without_patience_kills() -> None:
    played = Played()
    played.stop()
    assert played.stop() == []
    out = played.stop(now=True)
    assert said(out) == [(Naming("SIGTERM: ", " now"), False)]
    assert killed(out) == [TRAINER]
    (exited,) = journaled(played.end(TRAINER, KILLED), "exited")
    assert exited["evidence"] == Naming("SIGKILL", ": SIGTERM ")


def test_a_trainer_that_does_not_stop_is_killed_for_it() -> None:
    played = Played()
    played.stop()
    assert killed(played.tick(116.9)) == []
    assert killed(played.tick(117.0)) == [TRAINER]
    (exited,) = journaled(played.end(TRAINER, KILLED), "exited")
    assert exited["evidence"] == Naming("SIGKILL", " 25 s")


def test_a_notice_is_journaled_with_its_grace_period_and_names_the_last_checkpoint() -> None:
    out = Played().stop(is_notice=True)
    assert journaled(out, "preempt_notice") == [{"grace": 25.0, "source": "SIGTERM"}]
    assert Tell(TRAINER, StopTraining(17.0, "preempt", ends_run=True)) in out


def test_a_stop_of_a_run_with_complete_training_reports_nothing() -> None:
    played = Played()
    played.end(TRAINER, DONE)
    assert said(played.stop()) == []


def test_a_planned_preemption_is_reported_with_its_whole_grace_period() -> None:
    out = Played().tell(PreemptAsked(10.0, "the plan"))
    assert journaled(out, "preempt_notice") == [{"grace": 10.0, "source": "the plan"}]
    assert Tell(TRAINER, StopTraining(10.0, "preempt")) in out


# -- the end of the services -----------------------------------------------------------------------------------
@pytest.mark.parametrize(("dies_s", "end_s"), [(101.0, 122.0), (116.9, 122.0), (117.5, 122.5), (121.0, 126.0)])
def test_the_services_of_a_stopped_run_get_22_of_25_seconds_and_at_least_5(dies_s: float, end_s: float) -> None:
    played = Played()
    played.stop()
    played.end(TRAINER, SAVED, at_s=dies_s)

    assert played.core.next_due_s() == pytest.approx(end_s)
    assert killed(played.tick(end_s - 0.1)) == []
    assert killed(played.tick(end_s)) == [CHECKPOINT, SUMMARY]
    for task in (CHECKPOINT, SUMMARY):
        out = played.end(task, KILLED)
        assert journaled(out, "exited")[0]["evidence"] == Naming("SIGKILL", " in time")
        assert not [text for text, _ in said(out) if "starting it again" in text]


def test_the_services_get_900_seconds_after_the_end_of_training() -> None:
    played = Played()
    played.end(TRAINER, DONE)
    assert killed(played.tick(999.9)) == []
    assert killed(played.tick(1000.0)) == [CHECKPOINT, SUMMARY]


def test_a_service_that_dies_after_its_time_is_not_restarted() -> None:
    for at_s, is_again in ((121.9, True), (122.0, False)):
        played = Played()
        played.stop()
        played.end(TRAINER, SAVED)
        out = played.end(CHECKPOINT, Exit(1, None), at_s=at_s)
        assert any("starting it again" in text for text, _ in said(out)) is is_again


def test_services_that_do_not_even_die_are_left_after_30_seconds() -> None:
    played = Played()
    played.stop()
    played.end(TRAINER, SAVED)
    played.tick(122.0)
    assert not [action for action in played.tick(151.9) if isinstance(action, Quit)]
    assert [action.exit_code for action in played.tick(152.0) if isinstance(action, Quit)] == [70]


def test_services_still_starting_in_a_run_that_never_spoke_are_ended_at_once() -> None:
    played = Played(is_up=False, trains=False)
    played.stop()
    assert killed(played.end(TRAINER, Exit(None, signal.SIGTERM))) == [CHECKPOINT, SUMMARY]
    (exited,) = journaled(played.end(SUMMARY, KILLED), "exited")
    assert exited["evidence"] == Naming("SIGKILL", "nothing to do")


def test_services_still_starting_after_a_training_that_was_over_before_it_was_heard_are_waited_for() -> None:
    played = Played(is_up=False, trains=False)
    played.tell(Ticked({TRAINER: beat(Phase.STEP, 2)}))
    assert killed(played.end(TRAINER, DONE)) == []
    out = played.tell(ServiceReady(CHECKPOINT, 1), ServiceReady(SUMMARY, 1))
    assert told(out) == [(CHECKPOINT, TrainerExited), (SUMMARY, Finish)]
    played.answer(TrainerExited(1, True), "")
    played.end(CHECKPOINT, DONE)
    assert [action.exit_code for action in played.end(SUMMARY, DONE) if isinstance(action, Quit)] == [0]


def test_only_the_service_that_keeps_the_state_waits_for_what_the_trainer_left() -> None:
    played = Played()
    out = played.end(TRAINER, DONE)
    assert told(out) == [(CHECKPOINT, TrainerExited), (SUMMARY, Finish)]
    assert told(played.answer(TrainerExited(1, True), "")) == [(CHECKPOINT, Finish)]


def test_a_service_that_starts_late_is_asked_to_finish_after_the_other_has() -> None:
    played = Played(is_up=False)
    played.tell(ServiceReady(CHECKPOINT, 1))
    played.end(TRAINER, DONE)
    played.answer(TrainerExited(1, True), "")
    played.end(CHECKPOINT, DONE)
    assert told(played.tell(ServiceReady(SUMMARY, 1))) == [(SUMMARY, Finish)]
    assert [action.exit_code for action in played.end(SUMMARY, DONE) if isinstance(action, Quit)] == [0]


def test_the_first_reason_why_the_newest_state_is_not_on_disk_is_reported() -> None:
    for first, second, why in (("disk full", "gone", "disk full"), ("", "gone", "gone")):
        played = Played()
        played.end(TRAINER, DONE)
        played.answer(TrainerExited(1, True), first)
        played.answer(Finish(), second)
        played.end(CHECKPOINT, DONE)
        out = played.end(SUMMARY, DONE)
        assert (Naming("gave up: ", f": {why}"), True) in said(out)


# -- services ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("fault", "how"), [("", "(SIGKILL)"), ("kill summary at step 3", "(SIGKILL, by ")])
def test_a_services_end_is_reported_with_its_reason(fault: str, how: str) -> None:
    out = Played().end(SUMMARY, KILLED, fault=fault)
    assert said(out) == [(Naming("summary service", how), True)]


def test_a_service_last_seen_working_does_not_come_back_at_once() -> None:
    for phase, is_at_once in ((Phase.IDLE, True), (Phase.SAVE, False)):
        played = Played()
        played.tell(Ticked({CHECKPOINT: Heartbeat(phase, 1, 0, 100.0, 0.0)}))
        out = played.end(CHECKPOINT, KILLED)
        assert any(isinstance(action, StartAttempt) for action in out) is is_at_once


def test_a_service_that_cannot_start_and_a_bad_checkpoint_are_bad_news() -> None:
    played = Played()
    assert said(played.tell(NotStarted(SUMMARY, 1, "EAGAIN"))) == [(Naming("summary service: EAGAIN; "), True)]
    assert said(played.tell(Said(CHECKPOINT, 1, Rejected("/l/m-1", "torn")))) == [(Naming("/l/m-1 ", ": torn"), True)]


def lose(played: Played, task: TaskId) -> list[Action]:
    """Let it fail five times. Return what followed the last time."""
    out: list[Action] = []
    for incarnation in range(1, 6):
        out = played.tell(Ended(task, incarnation, Exit(1, None)))
        played.tick(played.now_s + 10.0)
    return out


@pytest.mark.parametrize(
    ("task", "trains", "is_killed"),
    [(CHECKPOINT, False, True), (CHECKPOINT, True, False), (SUMMARY, False, False), (SUMMARY, True, False)],
)
def test_a_lost_service_ends_the_run_without_waiting_for_a_trainer_that_waits_for_its_state(
    task: TaskId, trains: bool, is_killed: bool
) -> None:
    played = Played(trains=trains)
    out = lose(played, task)

    assert (killed(out) == [TRAINER]) is is_killed
    assert ((TRAINER, StopTraining) in told(out)) is not is_killed
    assert [(text.partition(" service")[0], is_bad) for text, is_bad in said(out)] == [(f"giving up: the {task}", True)]
    assert played.core.stop_source == "a lost service"


def test_a_lost_service_of_an_observed_program_is_bad_news_and_not_the_end() -> None:
    played = Played(observes=True)
    ((text, is_bad),) = said(lose(played, CHECKPOINT))
    assert text.endswith("program continues")
    assert is_bad
    assert not played.core.is_ending


# -- the end of the run ----------------------------------------------------------------------------------------
def test_a_taken_logdir_is_bad_news_and_the_source_of_the_stop_unless_there_was_one() -> None:
    for is_stopped, source in ((False, Naming("logdir")), (True, "SIGTERM")):
        played = Played()
        if is_stopped:
            played.stop()
        ((text, is_bad),) = said(played.tell(LogdirTaken("node17")))
        assert text.startswith("giving up: node17 ")
        assert is_bad
        assert played.core.stop_source == source


@pytest.mark.parametrize(("dies", "who"), [(False, "1002"), (True, "(a child ")])
def test_a_process_that_does_not_die_is_named_and_shown_and_makes_the_run_end_with_70(dies: bool, who: str) -> None:
    played = Played()
    played.stop(now=True)
    assert played.core.state_label == "stopping"
    played.tick(129.9)
    assert played.core.state_label == "stopping"
    if not dies:
        played.tick(130.0)
        assert played.core.state_label == "unkillable"
    else:
        played = Played()
        played.end(TRAINER, KILLED)
        played.tick(130.0)
        assert played.core.state_label == "unkillable"
        played.stop()
    out = played.tick(2000.0)
    assert journaled(out, "gave_up") == [{"why": Naming("process", who)}]
    assert [action.exit_code for action in out if isinstance(action, Quit)] == [70]


def test_the_end_of_the_chief_asks_the_other_tasks_to_stop_and_then_ends_the_run() -> None:
    played = Played(tasks=(TRAINER, WORKER))
    out = played.end(TRAINER, DONE)

    assert (WORKER, StopTraining) in told(out)
    assert killed(out) == []
    assert played.core.state_label == "stopping"
    assert played.tick(101.0) == []
    assert (SUMMARY, Finish) not in told(out)
    out = played.end(WORKER, SAVED)
    assert (SUMMARY, Finish) in told(out)


def test_a_stop_ends_the_workers_then_the_chief_then_the_servers() -> None:
    server = TaskId("ps")
    played = Played(tasks=(TRAINER, WORKER, server))
    assert [task for task, body in told(played.stop()) if body is StopTraining] == [WORKER]
    assert [task for task, body in told(played.end(WORKER, SAVED)) if body is StopTraining] == [TRAINER]
    assert [task for task, body in told(played.end(TRAINER, SAVED)) if body is StopTraining] == [server]


def test_giving_up_an_evaluator_ends_nothing_and_giving_up_a_worker_ends_the_run() -> None:
    words = LastWords("ModuleNotFoundError", "no module", "", -1, True)  # starting it again would not help
    for task, ends in ((TaskId("evaluator"), False), (WORKER, True)):
        played = Played(trains=False, tasks=(TRAINER, task))
        played.end(task, Exit(1, None), words=words)
        played.tell(TreeGone(task, 1))
        assert played.core.tasks[task].gave_up
        assert played.core.is_ending == ends


def test_another_tasks_end_ends_nothing() -> None:
    played = Played(tasks=(TRAINER, WORKER))
    out = played.end(WORKER, KILLED)
    assert told(out) == []
    assert not played.core.is_ending
    played.tell(TreeGone(WORKER, 1))
    assert [action.task for action in played.tick(110.0) if isinstance(action, StartAttempt)] == [WORKER]


# -- the run's files ------------------------------------------------------------------------------------------------
def seen(owner: TaskId, is_there: bool) -> RunFilesChecked:
    return RunFilesChecked((FileState("socket", f"/run/{owner}", (1, 2) if is_there else None, owner),))


def test_a_services_own_files_are_missed_only_while_it_serves() -> None:
    played = Played(is_up=False)
    assert not any(played.tell(seen(CHECKPOINT, is_there)) for is_there in (True, False, False, False))
    played.tell(ServiceReady(CHECKPOINT, 1))
    assert not played.tell(seen(CHECKPOINT, True), seen(CHECKPOINT, False))
    assert journaled(played.tell(seen(CHECKPOINT, False)), "ground_lost")


def test_the_watchdogs_files_are_restored_whichever_service_serves() -> None:
    for is_up in (False, True):
        played = Played(is_up)
        assert RestoreFile("socket", f"/run/{WATCHDOG}") in played.tell(seen(WATCHDOG, False))


def test_a_service_restarted_between_two_looks_has_lost_nothing() -> None:
    played = Played()
    assert not played.tell(seen(CHECKPOINT, True))
    played.end(CHECKPOINT, KILLED)
    played.tick(110.0)  # it is started again
    out = played.tell(
        ServiceReady(CHECKPOINT, 2), RunFilesChecked((FileState("socket", f"/run/{CHECKPOINT}", (1, 9), CHECKPOINT),))
    )
    assert (journaled(out, "ground_lost"), said(out)) == ([], [])
    assert not played.tell(RunFilesChecked((FileState("socket", f"/run/{CHECKPOINT}", (1, 9), CHECKPOINT),)))
    assert journaled(played.tell(seen(CHECKPOINT, True)), "ground_lost"), "another socket in its place is a loss"
