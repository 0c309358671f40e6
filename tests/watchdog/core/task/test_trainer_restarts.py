"""The consequences of a trainer's ends, freezes and hangs, to a tenth of a second."""

from __future__ import annotations

import signal
from random import Random

import pytest

from procsv.base.identity import CHECKPOINT, TRAINER
from procsv.base.outcome import NO_STEP, Exit
from procsv.ipc.messaging.checkpoint_messages import Durable
from procsv.ipc.messaging.launch_settings import LaunchSettings
from procsv.ipc.messaging.watchdog_messages import FirstStepDone, StopTraining, TrainerExited
from procsv.ipc.shm.heartbeat import Phase
from procsv.watchdog.core.actions import Action, ClearTree, KillTree, Signal, StartAttempt, Tell
from procsv.watchdog.core.events import (
    Ended,
    NotStarted,
    PreemptAsked,
    RecycleAsked,
    Said,
    Started,
    StopAsked,
    Ticked,
    TreeGone,
)
from procsv.watchdog.core.run import Core
from procsv.watchdog.core.settings import Settings
from procsv.watchdog.core.task.lifecycle import TaskState
from tests.support.naming import Naming
from tests.watchdog.played import KILLED, SAVED, Played, beat, journaled, killed, said


def spawns(actions: list[Action]) -> list[int]:
    return [action.incarnation for action in actions if isinstance(action, StartAttempt) and action.task == TRAINER]


# -- restarts --------------------------------------------------------------------------------------------------
def test_a_trainer_restarts_when_its_delay_is_over_and_its_tree_is_gone() -> None:
    played = Played()
    assert ClearTree(TRAINER, 1) in played.end(TRAINER, SAVED)
    assert spawns(played.tick(105.0)) == []
    played.tell(TreeGone(TRAINER, 7))
    assert spawns(played.tick(105.0)) == []
    played.tell(TreeGone(TRAINER, 1))
    assert played.core.chief.next_due_s() == 100.0
    assert spawns(played.tick(105.0)) == [2]
    assert (played.core.chief.restarts, played.core.chief.incarnation) == (1, 2)


def test_a_start_refused_by_the_system_is_bad_news_and_not_a_restart() -> None:
    played = Played()
    played.end(TRAINER, SAVED)
    played.tell(TreeGone(TRAINER, 1))
    assert spawns(played.tick(100.0)) == [2]
    text = "cannot start the trainer: EAGAIN; trying again"
    assert said(played.tell(NotStarted(TRAINER, 2, "EAGAIN"))) == [(text, True)]
    due_s = played.core.chief.next_due_s()
    assert due_s is not None
    assert 100.8 <= due_s <= 101.2
    assert spawns(played.tick(due_s - 0.01)) == []
    assert spawns(played.tick(due_s)) == [2]
    assert played.core.chief.restarts == 1


def test_a_refused_first_start_is_retried() -> None:
    played = Played(trains=False)
    played.tell(NotStarted(TRAINER, 1, "EAGAIN"))
    assert spawns(played.tick(101.2)) == [1]


def test_a_return_between_two_failures_neither_counts_nor_resets() -> None:
    played = Played(launch=LaunchSettings(repeated_failures=2))
    for incarnation, exit in enumerate((Exit(3, None), SAVED, Exit(3, None)), 1):
        out = played.tell(Ended(TRAINER, incarnation, exit))
        assert bool(journaled(out, "gave_up")) is (incarnation == 3)
        played.tell(TreeGone(TRAINER, incarnation))
        played.tick(played.now_s + 100.0)
        played.tell(Started(TRAINER, incarnation + 1, 2000))


def test_a_trainers_leftover_state_is_settled_once_and_by_its_own_answer() -> None:
    played = Played()
    played.end(TRAINER, KILLED)
    played.answer(TrainerExited(7, False), "gone")
    assert played.core.chief.unsettled is not None
    for error in ("disk full", "gone"):
        played.answer(TrainerExited(1, False), error)
        assert played.core.chief.unsettled is None
        assert played.core.chief.unsaved == "disk full"


def test_a_failure_whose_state_turned_out_to_be_progress_restarts_at_once() -> None:
    played = Played(launch=LaunchSettings(max_failures=1))
    assert not journaled(played.end(TRAINER, KILLED), "gave_up")
    played.tell(Said(CHECKPOINT, 1, Durable(8, 8, 1, "/l/m-8", "crash", 10, 0.1, ("/l/m-8",))))
    (restarting,) = journaled(played.answer(TrainerExited(1, False), ""), "restarting")
    assert restarting["delay"] == 0.0


def test_going_back_to_an_older_state_is_bad_news_and_not_a_clean_end() -> None:
    played = Played(trains=False, launch=LaunchSettings(suspect_crashes=1))
    played.tell(Ticked({TRAINER: beat(Phase.STEP, 7)}))
    played.hear(FirstStepDone(0, "checkpoint", "x", 1, 100.0))
    out = played.end(TRAINER, Exit(None, signal.SIGSEGV))
    assert (Naming("from step 0: "), True) in said(out)
    assert Tell(CHECKPOINT, TrainerExited(1, False, 0)) in out


def test_a_crash_after_a_fresh_start_makes_no_state_suspect() -> None:
    out = Played(launch=LaunchSettings(suspect_crashes=1)).end(TRAINER, Exit(None, signal.SIGSEGV))
    assert not journaled(out, "state_suspected")
    assert said(out)[-1] == (Naming("from the beginning"), False)


def test_a_death_is_reported_at_no_earlier_step_than_the_snapshot_it_left() -> None:
    out = Played().end(TRAINER, KILLED, memory_step=16, taken_step=16)  # its heartbeat says 7
    (exited,), (restarting,) = journaled(out, "exited"), journaled(out, "restarting")
    assert (exited["step"], restarting["lost_steps"]) == (16, 0)
    told = " ".join(text for text, _ in said(out))
    assert "was killed by SIGKILL, sender unknown, at step 16" in told
    assert "from step 16 in memory" in told

    out = Played().end(TRAINER, KILLED, memory_step=16, taken_step=5)  # the newest is of another attempt
    assert journaled(out, "exited")[0]["step"] == 7


def test_a_heartbeat_before_there_is_a_process_belongs_to_nobody() -> None:
    core = Core(Settings(), 1, Random(0), 100.0)
    core.start(100.0)
    assert core.handle(Ticked({TRAINER: beat(Phase.STEP, 7)}), 100.0) == []
    assert not core.chief.is_before_session


def test_a_tree_that_stays_for_30_seconds_is_reported_unkillable_once() -> None:
    played = Played()
    played.end(TRAINER, KILLED)
    assert played.core.chief.next_due_s() == 130.0
    assert said(played.tick(129.9)) == []
    assert said(played.tick(130.0)) == [(Naming("trainer 1", "SIGKILL", "logdir"), True)]
    assert said(played.tick(200.0)) == []


def test_a_manual_restart_asks_for_a_save_and_kills_after_its_share_of_the_grace_period() -> None:
    played = Played()
    out = played.tell(RecycleAsked("procsv restart", by_hand=True))
    assert Tell(TRAINER, StopTraining(17.0, "manual", ends_run=False)) in out
    assert [action.number for action in out if isinstance(action, Signal)] == [signal.SIGTERM, signal.SIGCONT]
    assert said(out) == [("restarting the program: procsv restart", False)]
    assert played.core.chief.next_due_s() == 117.0
    assert killed(played.tick(116.9)) == []
    assert killed(played.tick(117.0)) == [TRAINER]
    assert killed(played.tick(118.0)) == []


def test_a_manual_restart_cuts_a_delay_short_and_causes_none() -> None:
    played = Played()
    played.end(TRAINER, KILLED)
    played.tell(RecycleAsked("procsv restart", by_hand=True), at_s=100.1)
    assert played.core.chief.restart_s == 100.1
    played = Played()
    played.tell(RecycleAsked("procsv restart", by_hand=True))
    assert played.core.chief.restart_s is None


def test_a_restart_for_its_memory_resets_nothing() -> None:
    for by_hand, count in ((False, 1), (True, 0)):
        played = Played()
        played.end(TRAINER, KILLED)
        played.tell(RecycleAsked("memory", by_hand))
        assert played.core.chief.history.no_progress_count == count


@pytest.mark.parametrize("is_asked", [False, True])
def test_a_trainer_that_fails_while_ending_has_failed(is_asked: bool) -> None:
    played = Played(launch=LaunchSettings(repeated_failures=1))
    if is_asked:
        played.tell(RecycleAsked("procsv restart", by_hand=True))
    assert journaled(played.end(TRAINER, Exit(3, None)), "gave_up")


def test_a_trainer_that_is_killed_while_ending_has_not_failed() -> None:
    played = Played(launch=LaunchSettings(repeated_failures=1, max_failures=1))
    played.tell(RecycleAsked("procsv restart", by_hand=True))
    played.tick(117.0)
    (restarting,) = journaled(played.end(TRAINER, KILLED), "restarting")
    assert (restarting["delay"], restarting["why"]) == (0.0, "procsv restart")


def test_a_preemption_kills_after_its_own_grace_period_and_the_next_trainer_has_the_runs() -> None:
    played = Played()
    out = played.tell(PreemptAsked(5.0, "the plan"))
    assert said(out) == [("the plan: preempting the program, 5.0 s of grace", False)]
    assert killed(played.tick(104.9)) == []
    assert killed(played.tick(105.0)) == [TRAINER]
    (exited,) = journaled(played.end(TRAINER, KILLED), "exited")
    assert exited["evidence"] == Naming("SIGKILL", " 5.0 s")
    played.tell(TreeGone(TRAINER, 1))
    assert spawns(played.tick(105.0)) == [2]
    assert played.core.chief.stopping.stop_s == 17.0


def test_a_preemption_of_a_task_that_is_not_running_or_already_ending_does_nothing() -> None:
    played = Played()
    played.tell(RecycleAsked("procsv restart", by_hand=True))
    assert played.tell(PreemptAsked(5.0, "the plan")) == []
    played = Played()
    played.end(TRAINER, KILLED)
    assert played.tell(PreemptAsked(5.0, "the plan")) == []


def test_an_observed_program_that_does_not_stop_is_reported_once_and_left_alone() -> None:
    played = Played(observes=True)
    assert not [action for action in played.stop() if isinstance(action, Signal) and action.task == TRAINER]
    assert said(played.tick(116.9)) == []
    out = played.tick(117.0)
    assert (said(out), killed(out)) == ([(Naming("procsv stop --now"), True)], [])
    assert said(played.tick(118.0)) == []


@pytest.mark.parametrize(("memory_step", "resumes"), [(NO_STEP, False), (0, True), (5, True)])
def test_an_observed_program_that_dies_can_resume_from_any_step(memory_step: int, resumes: bool) -> None:
    out = Played(observes=True).end(TRAINER, KILLED, memory_step=memory_step)
    assert journaled(out, "gave_up")[0]["why"].endswith("it resumes") is resumes
    assert not [text for text, _ in said(out) if text.startswith("gave up")]


def test_only_what_we_kill_is_reported_as_our_kill() -> None:
    played = Played()
    played.stop()
    (exited,) = journaled(played.end(TRAINER, KILLED), "exited")
    assert (exited["cause"], exited["evidence"]) == ("killed", "SIGKILL, sender unknown")


# -- freezes ---------------------------------------------------------------------------------------------------
def freeze(played: Played, is_frozen: bool, at_s: float) -> list[Action]:
    stopped = frozenset({TRAINER}) if is_frozen else frozenset()
    return played.tell(Ticked({TRAINER: beat(Phase.STEP, 7)}, stopped=stopped), at_s=at_s)


def test_frozen_time_is_reported_when_the_trainer_continues() -> None:
    played = Played()
    for at_s in (101.0, 102.0, 103.0):
        assert freeze(played, True, at_s) == []
    out = freeze(played, False, 104.5014)
    assert journaled(out, "frozen") == [{"seconds": 3.501, "step": 7}]
    assert said(out) == [(Naming("goes on: ", " 3.5 s"), False)]
    assert freeze(played, False, 105.0) == []


def test_a_frozen_trainer_that_dies_or_is_ended_did_not_continue() -> None:
    for event in (Ended(TRAINER, 1, KILLED), StopAsked("SIGTERM", now=False)):
        played = Played()
        freeze(played, True, 101.0)
        played.tell(event)
        assert journaled(freeze(played, False, 102.0), "frozen") == []


def test_a_trainer_frozen_before_it_trains_is_not_reported_as_frozen() -> None:
    played = Played(trains=False)
    stopped = Ticked({TRAINER: beat(Phase.COMPILE)}, stopped=frozenset({TRAINER}))
    played.tell(stopped)
    assert journaled(freeze(played, False, 102.0), "frozen") == []


# -- hangs -----------------------------------------------------------------------------------------------------
def hang(played: Played) -> float:
    """Make no step until the hang is found. Return when."""
    at_s = 100.0
    while played.core.chief.life.state is TaskState.RUNNING:
        at_s += 1.0
        played.tell(Ticked({TRAINER: beat(Phase.STEP, 7)}), at_s=at_s)
    return at_s


def test_a_hung_trainer_is_killed_15_seconds_after_the_request_for_its_stacks() -> None:
    played = Played(launch=LaunchSettings(hang_timeout_s=20.0))
    found_s = hang(played)
    assert 120.0 <= found_s <= 123.0
    assert (TRAINER, signal.SIGABRT) in [
        (a.task, a.number) for a in played.tick(found_s + 5.0) if isinstance(a, Signal)
    ]
    assert killed(played.tick(found_s + 14.9)) == []
    assert killed(played.tick(found_s + 15.0)) == [TRAINER]


def test_a_stop_kills_a_hung_trainer() -> None:
    played = Played(launch=LaunchSettings(hang_timeout_s=20.0))
    hang(played)
    assert KillTree(TRAINER, 1) in played.stop()


def test_a_trainer_whose_heartbeat_has_stopped_is_suspect_while_it_lives() -> None:
    played = Played()
    assert not played.core.chief.is_suspect(105.0)
    assert played.core.chief.is_suspect(200.0)
    played.end(TRAINER, KILLED)
    assert not played.core.chief.is_suspect(200.0)


# -- a program without a session -------------------------------------------------------------------------------
def test_only_our_own_program_that_nobody_asked_to_stop_is_reported_to_have_no_session() -> None:
    launch = LaunchSettings(grace_s=1000.0)
    assert said(Played(trains=False, launch=launch).tick(160.0))
    assert not said(Played(trains=False, launch=launch, observes=True).tick(160.0))
    played = Played(trains=False, launch=launch)
    played.stop()
    assert not said(played.tick(160.0))
    played = Played(trains=False, launch=launch)
    played.hear(FirstStepDone(0, "fresh", "x", 1, 100.0))
    assert not said(played.tick(160.0))


def test_the_processes_of_a_program_without_a_session_are_examined_while_it_runs() -> None:
    played = Played(trains=False)
    assert played.core.chief.wants_activity(400.0)
    assert not Played().core.chief.wants_activity(400.0)
    played.stop()
    assert not played.core.chief.wants_activity(400.0)
    played.end(TRAINER, KILLED)
    assert not played.core.chief.wants_activity(400.0)
