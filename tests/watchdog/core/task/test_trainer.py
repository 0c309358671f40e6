"""One trainer and its events: what is known about it, the cause of its end, and what is reported."""

from __future__ import annotations

from typing import Any

import pytest

from procsv.base.identity import CHECKPOINT, TRAINER, TaskId
from procsv.base.journal.entries import PreemptNotice
from procsv.base.outcome import NO_STEP, Exit, LastExit, LastWords, SaveHabit
from procsv.ipc.messaging.checkpoint_messages import Durable
from procsv.ipc.messaging.launch_settings import LaunchSettings
from procsv.ipc.messaging.messages import Hello
from procsv.ipc.messaging.watchdog_messages import FirstStepDone, Note, TrainerExited
from procsv.ipc.shm.heartbeat import Heartbeat, Phase, Snapshots, Spacing
from procsv.watchdog.core.actions import Report, Say, Tell, WriteRun
from procsv.watchdog.core.events import (
    Ended,
    Said,
    Started,
    Ticked,
    TreeGone,
)
from procsv.watchdog.core.task.lifecycle import TaskState
from tests.support.naming import Naming
from tests.watchdog.played import BOOM, DONE, INTERRUPTED, KILLED, SAVED, WORKER, Played, beat, journaled, said


def first_step(restored: int = 0, step: int = 1, **more: Any) -> FirstStepDone:
    return FirstStepDone(restored, "fresh" if restored <= 0 else "checkpoint", "x", step, 100.0, **more)


def durable(step: int, *all_paths: str) -> Durable:
    return Durable(step, step, 1, f"/l/m-{step}", "periodic", 10, 0.1, all_paths)


# -- known state -----------------------------------------------------------------------------------------------
def test_the_heartbeat_leads_a_trainer_through_its_phases_and_each_new_state_is_recorded() -> None:
    played = Played(trains=False)
    for phase, state in (
        (Phase.IMPORT, TaskState.IMPORTING),
        (Phase.CONNECT, TaskState.CONNECTED),
        (Phase.RESTORE, TaskState.RESTORING),
        (Phase.COMPILE, TaskState.COMPILING),
        (Phase.STEP, TaskState.RUNNING),
    ):
        assert WriteRun() in played.tell(Ticked({TRAINER: beat(phase)}))
        assert (played.core.chief.life.state, played.core.chief.progress.phase) == (state, phase)
        assert played.tell(Ticked({TRAINER: beat(phase)})) == []
    played.tell(Ticked({TRAINER: beat(Phase.STOP)}))
    assert played.core.chief.life.state is TaskState.RUNNING


def test_step_0_is_a_step_and_no_step_hides_another() -> None:
    played = Played(trains=False)
    chief = played.core.chief
    for step, known in ((NO_STEP, NO_STEP), (0, 0), (5, 5), (NO_STEP, 5)):
        played.tell(Ticked({TRAINER: beat(Phase.STEP, step)}))
        assert chief.step == known


def test_the_first_beat_with_snapshots_is_reported_after_a_warning() -> None:
    played = Played(trains=False)
    assert [is_bad for _, is_bad in said(played.tick(160.0))] == [True]
    saved = Heartbeat(Phase.STEP, 1, 1, 160.0, 0.0, Snapshots(Spacing.TOLD))
    out = played.tell(Ticked({TRAINER: saved}))
    assert (Naming("session has begun"), False) in said(out)


@pytest.mark.parametrize(("told_total", "total"), [(-1, 100), (0, 0), (500, 500)])
def test_the_end_of_training_is_the_programs_own_number_if_it_gives_one(told_total: int, total: int) -> None:
    played = Played(trains=False, launch=LaunchSettings(steps_total=100))
    played.hear(Hello(1))
    played.hear(first_step(steps_total=told_total))
    assert played.core.chief.progress.steps_total == total


def test_without_a_number_of_steps_the_end_of_training_is_unknown() -> None:
    assert Played(trains=False).core.chief.progress.steps_total == NO_STEP


@pytest.mark.parametrize(("source", "durable_step"), [("checkpoint", 40), ("memory", 30), ("fresh", 30)])
def test_only_a_state_restored_from_a_checkpoint_is_on_disk(source: Any, durable_step: int) -> None:
    played = Played(trains=False, saved_step=30)
    played.hear(Hello(1))
    played.hear(FirstStepDone(40, source, "x", 41, 100.0))
    assert played.core.chief.durable_step == durable_step
    assert played.core.chief.step == 41


def test_a_late_report_of_the_first_step_does_not_go_backwards() -> None:
    played = Played(trains=False)
    played.tell(Ticked({TRAINER: beat(Phase.STEP, 9)}))
    played.hear(first_step(step=1))
    assert played.core.chief.step == 9


def test_when_steps_start_over_the_newest_snapshot_counts_until_something_later_is_on_disk() -> None:
    played = Played(trains=False)
    played.hear(Hello(1))
    played.hear(first_step())
    progress = played.core.chief.progress

    def trains(step: int, memory_step: int) -> tuple[int, int]:
        played.tell(Ticked({TRAINER: beat(Phase.STEP, step)}, memory_step))
        return progress.resume_step, progress.lost_steps

    def saved(step: int) -> int:
        played.tell(Said(CHECKPOINT, 1, durable(step, f"/l/m-{step}")))
        return progress.resume_step

    assert saved(286) == 286
    for _ in range(2):
        assert trains(299, 298) == (298, 1)
    assert saved(300) == 300, "by the program itself, as it may"
    assert trains(1, 0) == (0, 1)
    assert trains(3, 2) == (2, 1)
    assert saved(290) == 2, "it was under way"
    assert trains(50, 49) == (49, 1)
    assert saved(50) == 50
    assert trains(52, 49) == (50, 2)


def test_when_steps_start_over_the_step_on_disk_counts_if_nothing_is_in_memory_and_it_is_restored() -> None:
    played = Played(trains=False)
    played.hear(Hello(1))
    played.hear(first_step())
    played.tell(Said(CHECKPOINT, 1, durable(286, "/l/m-286")))
    for step in (299, 50):
        played.tell(Ticked({TRAINER: beat(Phase.STEP, step)}, 49))
    out = played.end(TRAINER, KILLED, at_s=131.0, memory_step=49, taken_step=50)
    assert journaled(out, "restarting")[0]["lost_steps"] == 1
    assert any(text.endswith("from step 49 in memory") for text, _ in said(out))
    progress = played.core.chief.progress
    progress.snapshots.memory_step = NO_STEP
    assert progress.resume_step == 286
    progress.recovered(first_step(286, 287))
    progress.snapshots.memory_step = 40
    assert progress.resume_step == 286


def test_training_is_reported_and_journaled_once_for_each_attempt() -> None:
    played = Played(trains=False)
    out = played.hear(first_step())
    assert said(out) == [(Naming(" step 1, 0.0 s "), False)]
    assert journaled(out, "ready") == [{"step": 1}]
    assert len(journaled(out, "recovered")) == 1
    assert played.hear(first_step()) == []


def test_training_of_an_observed_program_or_another_task_is_not_reported() -> None:
    assert said(Played(trains=False, observes=True).hear(first_step())) == []
    played = Played(trains=False, tasks=(TRAINER, WORKER))
    assert said(played.tell(Said(WORKER, 1, first_step()))) == []


@pytest.mark.parametrize(
    ("news", "durable_step"),
    [
        (durable(51, "/l/m-50", "/l/m-51"), 51),
        (durable(49, "/l/m-48", "/l/m-49"), 49),
        (durable(49, "/l/m-49", "/l/m-50"), 50),
        (durable(51, "/l/m-51", "/l/m-50"), 51),
    ],
)
def test_the_step_on_disk_is_the_newest_unless_the_last_one_was_repeated(news: Durable, durable_step: int) -> None:
    played = Played(saved_step=50)
    played.core.chief.progress.durable_step = 50
    played.tell(Said(CHECKPOINT, 1, news))
    assert played.core.chief.durable_step == durable_step


def test_our_own_signal_is_no_preemption_notice_and_anothers_is_one() -> None:
    note = Note(PreemptNotice(grace=30.0, source="SIGTERM"))
    played = Played()
    assert len(journaled(played.hear(note), "preempt_notice")) == 1
    played.stop()
    assert journaled(played.hear(note), "preempt_notice") == []


def test_a_program_has_no_session_while_it_imports() -> None:
    played = Played(trains=False)
    chief = played.core.chief
    assert chief.is_before_session
    played.tell(Ticked({TRAINER: beat(Phase.IMPORT)}))
    assert chief.is_before_session
    played.tell(Ticked({TRAINER: beat(Phase.IMPORT, 0)}))
    assert not chief.is_before_session
    played = Played(trains=False)
    played.tell(Ticked({TRAINER: beat(Phase.CONNECT)}))
    assert not played.core.chief.is_before_session
    played = Played(trains=False)
    played.end(TRAINER, KILLED)
    assert not played.core.chief.is_before_session


# -- end -------------------------------------------------------------------------------------------------------
def test_the_last_exit_is_kept_with_its_cause() -> None:
    played = Played()
    out = played.end(TRAINER, Exit(1, None), words=BOOM)
    exit = {"code": 1, "signal": None, "cause": "exception", "evidence": "ValueError: boom", "step": 7}
    assert journaled(out, "exited") == [{"pid": 1002, **exit}]
    assert played.core.chief.record.last_exit == LastExit(1, None, "exception", "ValueError: boom", 7)
    (report,) = [action for action in out if isinstance(action, Report)]
    assert (report.step, report.lost_steps, report.resume_step) == (7, 7, NO_STEP)
    assert report.sentence == "trainer 1 (pid 1002) ended with ValueError: boom, at step 7"
    assert (report.sentence, True) in said(out)


@pytest.mark.parametrize(
    ("is_shown", "detach", "ending"),
    [
        (False, False, "ValueError: boom, at step 7"),
        (True, False, "the error above"),
        (True, True, "ValueError: boom, at step 7"),
    ],
)
def test_an_error_that_the_terminal_has_shown_is_not_repeated(is_shown: bool, detach: bool, ending: str) -> None:
    words = LastWords("ValueError", "boom", "Traceback …", 7, is_shown=is_shown)
    out = Played(launch=LaunchSettings(detach=detach)).end(TRAINER, Exit(1, None), words=words)
    assert (Naming(f"trainer 1 (pid 1002) ended with {ending}"), True) in said(out)


@pytest.mark.parametrize("detach", [False, True])
def test_the_traceback_follows_giving_up_if_no_terminal_has_shown_it(detach: bool) -> None:
    out = Played(launch=LaunchSettings(detach=detach, same_failures=1)).end(TRAINER, Exit(1, None), words=BOOM)
    (last,) = [action for action in out if isinstance(action, Say) and action.text.startswith("gave up")]
    assert (last.traceback, last.is_bad) == (BOOM.traceback if detach else "", True)
    out = Played(launch=LaunchSettings(detach=detach, max_failures=1)).end(TRAINER, Exit(78, None))
    assert [action.traceback for action in out if isinstance(action, Say) and "gave up" in action.text] == [""]


@pytest.mark.parametrize(
    ("trains", "is_stopped", "exit", "observes", "cause"),
    [
        (False, True, INTERRUPTED, False, "stopped"),
        (True, True, INTERRUPTED, False, "exit-code"),
        (False, False, INTERRUPTED, False, "exit-code"),
        (False, True, Exit(1, None), False, "exit-code"),
        (False, True, INTERRUPTED, True, "exit-code"),
        (True, False, DONE, False, "completed"),
        (True, True, DONE, False, "stopped"),
        (True, True, DONE, True, "stopped"),
    ],
)
def test_an_interrupt_before_the_first_session_is_the_requested_stop(
    trains: bool, is_stopped: bool, exit: Exit, observes: bool, cause: str
) -> None:
    played = Played(trains=trains, observes=observes)
    if is_stopped:
        played.stop()
    (exited,) = journaled(played.end(TRAINER, exit), "exited")
    assert exited["cause"] == cause


def test_the_end_of_an_observed_session_is_reported_as_that() -> None:
    (exited,) = journaled(Played(observes=True).end(TRAINER, DONE), "exited")
    assert (exited["cause"], exited["evidence"]) == ("completed", Naming("its session"))
    (exited,) = journaled(Played().end(TRAINER, DONE), "exited")
    assert exited["evidence"] == "exit code 0"


@pytest.mark.parametrize(("exit", "is_reported"), [(SAVED, False), (DONE, False), (KILLED, True)])
def test_a_deliberate_end_is_not_a_crash(exit: Exit, is_reported: bool) -> None:
    played = Played()
    out = played.end(TRAINER, exit)
    assert any(isinstance(action, Report) for action in out) is is_reported
    assert Tell(CHECKPOINT, TrainerExited(1, not is_reported)) in out
    assert played.core.chief.pid == 0


def test_the_death_of_an_older_attempt_changes_nothing() -> None:
    assert Played().tell(Ended(TRAINER, 0, KILLED)) == []


def test_lost_steps_are_those_beyond_what_is_left_and_never_negative() -> None:
    for memory_step, lost in ((NO_STEP, 7), (0, 7), (5, 2), (9, 0)):
        out = Played().end(TRAINER, KILLED, memory_step=memory_step)
        assert [action.lost_steps for action in out if isinstance(action, Report)] == [lost]


def test_a_chief_whose_variables_are_on_servers_loses_nothing_with_its_process() -> None:
    out = Played(tasks=(TRAINER, TaskId("ps"))).end(TRAINER, KILLED, memory_step=5)
    assert [action.lost_steps for action in out if isinstance(action, Report)] == [0]
    assert not any("from step" in text for text, _ in said(out))


@pytest.mark.parametrize(("ended_s", "seconds"), [(112.3456, 12.346), (100.0, 0.0), (99.0, 0.0)])
def test_a_recovery_is_journaled_with_its_time_to_the_millisecond(ended_s: float, seconds: float) -> None:
    played = Played(trains=False)
    played.hear(Hello(1))
    out = played.hear(FirstStepDone(840, "checkpoint", "model.ckpt-840", 841, ended_s), at_s=113.0)
    assert journaled(out, "ready") == [{"step": 841}]
    told = {"step": 840, "source": "checkpoint", "from": "model.ckpt-840", "seconds": seconds}
    assert journaled(out, "recovered") == [told]


def test_a_program_that_saves_each_step_loses_the_time_since_its_last_save() -> None:
    played = Played(trains=False)
    played.hear(Hello(1))
    first = FirstStepDone(0, "fresh", "", 1, 110.0, habit=SaveHabit("save", True))
    assert said(played.hear(first, at_s=110.0)) == [(Naming(" save 1, 10 s "), False)]
    played.tell(Ticked({TRAINER: Heartbeat(Phase.IDLE, 2, 2, 130.0, 0.0)}), at_s=130.0)
    played.tell(Ticked({TRAINER: Heartbeat(Phase.IDLE, 2, 2, 141.0, 0.0)}), at_s=141.0)
    out = played.end(TRAINER, KILLED, at_s=141.4, memory_step=2, taken_step=2)
    (report,) = (action for action in out if isinstance(action, Report))
    assert (report.lost, report.resumes) == (Naming("11 s "), "from save 2")
    assert journaled(out, "restarting") == [{"delay": 0.0, "lost_steps": 0, "lost_seconds": 11.4}]
    assert any("after save 2" in text for text, _ in said(out))
    assert any("from save 2" in text for text, _ in said(out))
    assert played.core.chief.goodput.value(141.4) == pytest.approx(20.0 / 41.4, abs=1e-3)

    played.tell(TreeGone(TRAINER, 1), at_s=141.5)
    played.tick(142.0)
    played.tell(Started(TRAINER, 2, 1007), at_s=142.0)
    played.hear(Hello(1007))
    again = FirstStepDone(2, "checkpoint", "", 3, 160.0, habit=SaveHabit("save", True))
    assert (Naming(" save 3 after 19 s, 11 s redone"), False) in said(played.hear(again, at_s=160.0))


def test_a_program_that_restores_nothing_gets_no_promise_to_resume_and_loses_all_steps() -> None:
    played = Played(trains=False, saved_step=3)
    played.hear(Hello(1))
    out = played.hear(FirstStepDone(0, "fresh", "", 1, 110.0, habit=SaveHabit("step", False)), at_s=110.0)
    assert journaled(out, "not_restored") == [{"step": 3}]
    chief = played.core.chief
    played.tell(Ticked({TRAINER: Heartbeat(Phase.STEP, 9, 9, 130.0, 0.0)}), at_s=130.0)
    assert (chief.progress.resume_step, chief.progress.lost_steps) == (NO_STEP, 9)
    out = played.end(TRAINER, KILLED, at_s=131.0, memory_step=8, taken_step=8)
    assert any(text.endswith("from the beginning") for text, _ in said(out))
    assert journaled(out, "restarting")[0]["lost_steps"] == 9
