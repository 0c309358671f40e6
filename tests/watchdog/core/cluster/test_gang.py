"""A gang ends with its first task to end and restarts together once all old tasks are gone."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from procsv.base.identity import CHECKPOINT, TaskId
from procsv.base.outcome import Exit, LastWords
from procsv.ipc.messaging.checkpoint_messages import Durable
from procsv.ipc.messaging.launch_settings import LaunchSettings
from procsv.ipc.messaging.watchdog_messages import FirstStepDone, FlushDone, StopTraining, TrainerExited, TrainsInStep
from procsv.ipc.shm.heartbeat import Heartbeat, Phase
from procsv.watchdog.core.actions import Action, KillTree, Report, Say, StartAttempt, Tell, WriteEntry
from procsv.watchdog.core.events import Ended, NotStarted, RecycleAsked, Said, Started, Ticked, TreeGone
from procsv.watchdog.core.restarts.restart_table import Policy
from procsv.watchdog.core.task.lifecycle import TaskState
from tests.support.naming import Naming
from tests.watchdog.played import DONE, KILLED, SAVED, Played, journaled, killed, said, told

FIRST, SECOND, EVALUATOR, PS = TaskId("worker", 0), TaskId("worker", 1), TaskId("evaluator", 0), TaskId("ps", 0)


def gang(*others: TaskId, restart: str = "gang", **settings: Any) -> Played:
    return Played(tasks=(FIRST, SECOND, *others), launch=LaunchSettings(restart=restart, **settings))  # type: ignore[arg-type]


def go(played: Played, task: TaskId, incarnation: int = 1) -> list[Action]:
    """Let our kill of `task` end it and its tree."""
    return played.tell(Ended(task, incarnation, KILLED), TreeGone(task, incarnation))


def spawned(actions: list[Action]) -> list[tuple[TaskId, int]]:
    return [(action.task, action.incarnation) for action in actions if isinstance(action, StartAttempt)]


def train(played: Played, incarnation: int, *steps: int) -> list[Action]:
    """Give the members their processes and first steps, starting at `steps`."""
    out = []
    for task, step in zip((FIRST, SECOND), steps, strict=True):
        out += played.tell(
            Started(task, incarnation, 50 + incarnation),
            Ticked({task: Heartbeat(Phase.STEP, step + 1, 1, played.now_s, 0.0)}),
            Said(task, incarnation, FirstStepDone(step, "memory", "x", step + 1, played.now_s)),
        )
    return out


# -- the end of one task ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(("first", "other"), [(SECOND, FIRST), (FIRST, SECOND)])
def test_the_others_are_killed_at_once_and_nothing_starts_before_all_are_gone(first: TaskId, other: TaskId) -> None:
    played = gang(EVALUATOR)
    out = played.end(first, KILLED)
    assert killed(out) == [other]

    assert spawned(played.tell(TreeGone(first, 1), Ticked())) == []
    assert spawned(played.tell(Ended(other, 1, KILLED), Ticked())) == []
    played.tell(TreeGone(other, 1))
    assert sorted(spawned(played.tell(Ticked()))) == [(FIRST, 2), (SECOND, 2)]
    assert played.core.gang.generation == 2


def test_a_gang_that_breaks_before_a_member_has_started_waits_for_no_process_of_it() -> None:
    played = gang()
    played.tell(Ended(SECOND, 1, KILLED), TreeGone(SECOND, 1))
    go(played, FIRST)
    assert sorted(spawned(played.tell(Ticked()))) == [(FIRST, 2), (SECOND, 2)]
    played.tell(Started(FIRST, 2, 60))
    assert killed(played.tell(Ended(FIRST, 2, KILLED))) == [SECOND]
    out = played.tell(NotStarted(SECOND, 2, "withdrawn"), TreeGone(FIRST, 2))

    for _ in range(4):
        out += played.tell(Ticked(), at_s=played.now_s + 20.0)
    assert sorted(task for task, _ in spawned(out)) == [FIRST, SECOND]
    assert not any(action.is_bad for action in out if isinstance(action, Say)), said(out)


def test_one_line_reports_the_first_end_and_the_others_get_their_own_cause() -> None:
    played = gang()
    out = played.end(SECOND, KILLED)
    (line,) = said(out)
    assert line == (Naming("worker.1 1 (pid 1003)", "SIGKILL", "step 7", "all 2 tasks"), True)

    out = go(played, FIRST)
    assert said(out) == []
    assert [action for action in out if isinstance(action, Report)] == []
    (exited,) = journaled(out, "exited")
    assert (exited["cause"], exited["evidence"]) == ("lost-peer", Naming("worker.1", "SIGKILL"))
    (restarting,) = journaled(out, "restarting")
    assert (restarting["delay"], restarting["why"]) == (0.0, "worker.1 is gone")


def test_a_frozen_member_is_reported_as_frozen_and_one_that_ended_by_itself_keeps_its_error() -> None:
    played = gang()
    played.tell(Ticked(stopped=frozenset({SECOND})))
    played.end(FIRST, Exit(1, None), words=LastWords("UnavailableError", "gone", "", 7, lost_peer="worker.1"))
    (exited,) = journaled(go(played, SECOND), "exited")
    assert exited["evidence"] == Naming("SIGSTOP", "worker.0", "SIGKILL")

    played = gang()
    played.end(SECOND, KILLED)
    (exited,) = journaled(
        played.end(FIRST, Exit(1, None), words=LastWords("UnavailableError", "gone", "", 7)), "exited"
    )
    assert (exited["cause"], exited["evidence"]) == ("lost-peer", "worker.1 is gone: UnavailableError: gone")


def test_an_evaluator_and_a_server_end_alone() -> None:
    for task in (EVALUATOR, PS):
        played = gang(EVALUATOR, PS)
        out = played.tell(Ended(task, 1, KILLED), TreeGone(task, 1), Ticked())
        assert killed(out) == []
        assert spawned(out) == [(task, 2)]


# -- what makes a gang -----------------------------------------------------------------------------------------
def test_auto_binds_the_tasks_once_one_has_made_a_collective_strategy() -> None:
    played = gang(restart="auto")
    assert killed(played.end(SECOND, KILLED)) == []
    played = gang(restart="auto")
    played.tell(Said(FIRST, 1, TrainsInStep()))
    assert killed(played.end(SECOND, KILLED)) == [FIRST]


def test_auto_binds_no_tasks_if_there_are_servers_and_task_binds_none_at_all() -> None:
    for played in (gang(PS, restart="auto"), gang(restart="task")):
        played.tell(Said(FIRST, 1, TrainsInStep()))
        assert played.core.gang.policy is Policy.TASK
        assert killed(played.end(SECOND, KILLED)) == []


# -- failures --------------------------------------------------------------------------------------------------
def fail_once(played: Played, task: TaskId, incarnation: int) -> None:
    """Kill `task`, restart all, and train."""
    played.tell(Ended(task, incarnation, KILLED), at_s=played.now_s + 100.0)
    other = FIRST if task == SECOND else SECOND
    played.tell(TreeGone(task, incarnation), Ended(other, incarnation, KILLED), TreeGone(other, incarnation))
    played.tell(Ticked(), at_s=played.now_s + 100.0)
    train(played, incarnation + 1, 7, 7)


def test_one_end_of_a_gang_is_one_failure_whichever_task_ends() -> None:
    played = gang(max_failures=3)
    for incarnation, task in enumerate((SECOND, FIRST), 1):
        fail_once(played, task, incarnation)
    assert played.core.chief.history.no_progress_count == 2
    out = played.tell(Ended(SECOND, 3, KILLED))
    assert journaled(out, "gave_up") == []  # what the chief left may be progress

    out = played.tell(
        Ended(FIRST, 3, KILLED), Said(CHECKPOINT, 1, FlushDone(-1, ""), TrainerExited(3, False, task=FIRST))
    )
    assert journaled(out, "gave_up") == [{"why": Naming("3 failures")}]


def test_what_the_chief_left_counts_as_progress_for_the_worker_that_ended_first() -> None:
    played = gang(max_failures=1)
    played.end(SECOND, KILLED)
    go(played, FIRST)
    durable = Durable(1, 9, 1, "/x-9", "crash", 1, 0.1, ("/x-9",))
    settled = Said(CHECKPOINT, 1, FlushDone(9, ""), TrainerExited(1, False, task=FIRST))
    out = played.tell(Said(CHECKPOINT, 1, durable), settled, TreeGone(SECOND, 1), Ticked())
    assert sorted(spawned(out)) == [(FIRST, 2), (SECOND, 2)]


def test_a_state_that_makes_a_worker_crash_repeatedly_is_left_for_the_one_before() -> None:
    played = gang()
    asked = []
    for incarnation in (1, 2, 3):
        words = LastWords("ValueError", f"nan {incarnation}", "", 9)
        played.tell(Ended(SECOND, incarnation, Exit(1, None), words=words), TreeGone(SECOND, incarnation))
        out = played.tell(Ended(FIRST, incarnation, KILLED), TreeGone(FIRST, incarnation))
        asked += [action.body for action in out if isinstance(action, Tell) and isinstance(action.body, TrainerExited)]
        if incarnation < 3:
            played.tell(Ticked(), at_s=played.now_s + 100.0)
            train(played, incarnation + 1, 7, 7)
    assert asked == [
        TrainerExited(1, False, -1, FIRST),
        TrainerExited(2, False, -1, FIRST),
        TrainerExited(3, False, 7, FIRST),
    ]


# -- generations -----------------------------------------------------------------------------------------------
def test_a_generation_has_formed_when_all_have_ended_their_first_step() -> None:
    played = gang()
    played.tell(Ended(SECOND, 1, KILLED), at_s=200.0)
    go(played, FIRST)
    played.tell(TreeGone(SECOND, 1), Ticked())
    played.now_s = 203.0
    assert journaled(train(played, 2, 7, 7), "gang_formed") == [{"generation": 2, "step": 7, "seconds": 3.0}]


def test_tasks_that_start_at_different_steps_all_restart() -> None:
    played = gang()
    played.end(SECOND, KILLED)
    go(played, FIRST)
    played.tell(TreeGone(SECOND, 1), Ticked())
    out = train(played, 2, 7, 5)
    assert journaled(out, "gang_formed") == []
    assert killed(out) == [FIRST, SECOND]
    assert "worker.0 with step 7, worker.1 with step 5" in said(out)[-1][0]


def test_tasks_that_never_start_at_the_same_step_are_given_up() -> None:
    launch = LaunchSettings(restart="gang", max_failures=1)
    played = Played(trains=False, tasks=(FIRST, SECOND), launch=launch)
    out = train(played, 1, 7, 5)
    assert killed(out) == [FIRST, SECOND]
    assert spawned(out) == []
    assert "worker.0 with step 7" in played.core.failure


# -- requested ends --------------------------------------------------------------------------------------------
def test_a_stop_asks_the_chief_first_and_ends_the_others_once_it_has_saved() -> None:
    played = gang(EVALUATOR)
    out = played.stop()
    assert told(out) == [(EVALUATOR, StopTraining)]
    out = played.end(EVALUATOR, SAVED)
    assert told(out) == [(FIRST, StopTraining)]
    assert killed(out) == []
    assert killed(played.end(FIRST, SAVED)) == [SECOND]


def test_a_chief_that_has_finished_lets_the_others_finish() -> None:
    played = gang()
    out = played.end(FIRST, DONE)
    assert killed(out) == []
    assert (SECOND, StopTraining) in told(out)


def test_a_worker_that_finishes_as_its_chief_dies_restarts_with_it() -> None:
    """It is killed for that and had finished by itself: either end may be seen first."""
    played = gang()
    played.end(FIRST, KILLED)

    played.end(SECOND, DONE)
    out = played.tell(TreeGone(FIRST, 1), TreeGone(SECOND, 1), Ticked(), at_s=played.now_s + 30.0)

    assert sorted(spawned(out)) == [(FIRST, 2), (SECOND, 2)]


def test_a_finished_worker_restarts_with_a_chief_that_had_not_finished() -> None:
    played = gang()
    played.tell(Ended(SECOND, 1, DONE), TreeGone(SECOND, 1))
    out = played.tell(Ended(FIRST, 1, KILLED), TreeGone(FIRST, 1), Ticked())
    assert sorted(spawned(out)) == [(FIRST, 2), (SECOND, 2)]
    assert played.core.tasks[SECOND].life.state is TaskState.PENDING


@pytest.mark.parametrize("name", [None, SECOND])
def test_a_planned_restart_of_any_member_makes_the_chief_save_and_then_restarts_all(name: TaskId | None) -> None:
    played = gang(EVALUATOR)
    out = played.tell(RecycleAsked("procsv restart", by_hand=True, task=name))
    asked = [action.task for action in out if isinstance(action, Tell) and isinstance(action.body, StopTraining)]
    assert asked == ([FIRST] if name else [FIRST, EVALUATOR])
    assert killed(played.end(FIRST, SAVED)) == [SECOND]


def test_a_member_that_is_still_starting_is_ended_with_the_others() -> None:
    played = gang()
    played.core.tasks[FIRST].life.state = TaskState.PENDING
    out = played.end(SECOND, Exit(None, signal.SIGSEGV))
    assert [action for action in out if isinstance(action, KillTree)] == [KillTree(FIRST, 1)]


def test_a_member_that_is_given_up_ends_all_at_once_because_none_can_end_a_step() -> None:
    played = gang()
    out = played.end(SECOND, Exit(78, None))
    assert journaled(out, "gave_up")
    assert killed(out) == [FIRST]


@pytest.mark.parametrize("task", [FIRST, SECOND, EVALUATOR])
def test_once_the_run_is_to_end_no_member_that_dies_unasked_restarts(task: TaskId) -> None:
    played = gang(EVALUATOR)
    played.stop()
    out = played.end(task, KILLED)
    out += played.tell(TreeGone(task, 1))
    for second in range(20):
        out += played.tick(played.now_s + second)
    assert spawned(out) == []
    assert played.core.tasks[task].ends_run


def test_a_member_that_waits_for_anothers_callback_does_not_hang_and_outside_of_callbacks_both_may() -> None:
    played = gang(hang_timeout_s=60.0)
    train(played, 1, 10, 10)

    def hangs(phase: Phase, seconds: int) -> list[str]:
        found: list[str] = []
        for _ in range(seconds):
            played.now_s += 1.0
            beats = {FIRST: Heartbeat(phase, 11, 2, played.now_s, 0.0)}
            beats[SECOND] = Heartbeat(Phase.STEP, 11, 2, played.now_s, 0.0)
            out = [action for action in played.tell(Ticked(beats)) if isinstance(action, WriteEntry)]
            found += [str(entry.task) for entry in out if entry.entry.event == "hang_detected" and entry.task in beats]
        return found

    assert hangs(Phase.PROGRAM, 900) == []
    assert played.core.awaited_by(SECOND, played.now_s) == FIRST
    assert played.core.awaited_by(FIRST, played.now_s) is None
    assert hangs(Phase.STEP, 70) != []
