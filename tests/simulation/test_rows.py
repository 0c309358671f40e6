"""Fault matrix rows that need no real process, each as a few simulated runs with that fault."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from procsv.base.identity import CHECKPOINT, STANDBY, SUMMARY, TRAINER, WATCHDOG, TaskId
from tests.simulation.model import faults, history
from tests.simulation.model.program import Program, ProgramError
from tests.simulation.model.run import DONE, GAVE_UP, Run, journaled
from tests.simulation.seeds import seeds

SEEDS = 5
Plan = list[tuple[float, faults.Fault]]


def runs(plan: Plan, seeds: int = SEEDS, **program: Any) -> list[Run]:
    """Run the same program and faults to their ends. Every invariant is checked on the way."""
    return [Run(seed, Program(**program), list(plan)).go() for seed in range(seeds)]


@pytest.mark.parametrize("second", [1.0, 2.3, 3.0, 4.0, 9.0, 26.5, 27.5, 28.0])
def test_row_01_a_killed_trainer_costs_one_restart_and_the_steps_since_the_last_snapshot(second: float) -> None:
    for run in runs([(second, faults.kill(TRAINER))]):
        assert run.exit_code == DONE
        assert len(journaled(run, "restarting")) <= 1
        lost = [entry.fields["lost_steps"] for entry in journaled(run, "restarting")]
        assert all(steps <= (run.world.program.snapshot_s + 1.0) / run.world.program.step_s for steps in lost)


def test_row_04_exceptions_at_different_steps_never_end_a_run_that_progresses() -> None:
    flaky = {step: ProgramError(f"{'ABC'[step % 3]}Error", f"at {step}") for step in range(6, 60, 5)}
    run = Run(1, Program(flaky=flaky, save_secs=1.0), []).go()
    assert run.exit_code == DONE
    assert len(journaled(run, "restarting")) == 11


def test_row_55_an_exception_repeated_after_every_few_steps_is_given_up_the_fifth_time() -> None:
    flaky = {step: ProgramError("ValueError", f"at {step}") for step in range(6, 60, 6)}
    run = Run(1, Program(flaky=flaky, save_secs=1.0), []).go()  # launched again and again, it completes
    [why] = [entry.fields["why"] for entry in journaled(run, "gave_up")]
    assert why.startswith("no useful progress: ValueError, 5 times ")
    assert (run.launches, run.exit_code) == (2, DONE)


def test_row_55_external_kills_every_few_seconds_end_no_run_that_progresses() -> None:
    kills: Plan = [(float(second), faults.kill(TRAINER)) for second in range(4, 200, 4)]
    for run in runs(kills, import_s=1.0, compile_s=0.2, snapshot_s=1.0):
        assert not journaled(run, "gave_up")
        assert len(journaled(run, "restarting")) > 5


def test_row_07_complete_training_ends_in_order_with_its_last_step_on_disk() -> None:
    for run in runs([]):
        ends = [fact.task for _, fact in run.world.facts if isinstance(fact, history.Died)]
        assert run.exit_code == DONE
        assert ends[0] == TRAINER
        assert ends[-1] == WATCHDOG


@pytest.mark.parametrize("task", [TRAINER, CHECKPOINT, SUMMARY])
def test_row_09_a_process_stopped_for_a_while_is_not_restarted_and_catches_up(task: TaskId) -> None:
    for run in runs([(8.0, faults.freeze(task))]):
        assert run.exit_code == DONE
        assert not journaled(run, "restarting")
        assert not journaled(run, "service_restarted")


@pytest.mark.parametrize("seconds", [1.5, 8.0])
@pytest.mark.parametrize("task", [CHECKPOINT, SUMMARY])
def test_row_10_a_service_stopped_forever_or_wedged_is_replaced_and_training_does_not_notice(
    task: TaskId, seconds: float
) -> None:
    for run in runs([(seconds, faults.stuck_service(task))], save_secs=3.0):
        assert run.exit_code == DONE
        assert not journaled(run, "restarting")
        names = [entry.event for entry in _of(run, task) if entry.event != "checkpoint_durable"]
        assert names == ["spawned", "hang_detected", "exited", "spawned", "service_restarted", "exited"]
        assert [e.fields["cause"] for e in _of(run, task) if e.event == "exited"] == ["hang", "completed"]


def _of(run: Run, task: TaskId) -> list[history.Journaled]:
    return [fact for _, fact in run.world.facts if isinstance(fact, history.Journaled) and fact.task == task]


@pytest.mark.parametrize("task", [CHECKPOINT, SUMMARY])
@pytest.mark.parametrize("beside", [faults.kill(TRAINER), faults.stop, faults.preempt, faults.kill(WATCHDOG)])
def test_row_10_a_stuck_service_beside_another_fault_blocks_nothing_forever(task: TaskId, beside: faults.Fault) -> None:
    for run in runs([(8.0, faults.stuck_service(task)), (9.0, beside), (27.0, faults.stuck_service(task))]):
        assert run.exit_code == DONE


def test_row_14_a_surviving_grandchild_is_gone_before_the_next_trainer_starts() -> None:
    for run in runs([(9.0, faults.crash)], grandchild=True):  # I1 is checked at every start
        assert run.exit_code == DONE


@pytest.mark.parametrize("seed", seeds(25))
def test_row_15_a_checkpoint_service_killed_at_any_disk_operation_leaves_the_trainer_alone(seed: int) -> None:
    run = Run(seed, Program(save_secs=2.0), [(6.0, faults.kill_at_disk(CHECKPOINT))]).go()
    assert run.exit_code == DONE
    assert not journaled(run, "restarting")


@pytest.mark.parametrize("seed", seeds(25))
def test_row_18_a_power_loss_leaves_what_was_acknowledged(seed: int) -> None:
    assert Run(seed, Program(save_secs=2.0), [(6.0 + seed, faults.lose_power)]).go().exit_code == DONE


def test_row_19_a_damaged_checkpoint_is_skipped_for_the_previous_one() -> None:
    done = runs([(15.0, faults.lose_power), (15.0, faults.spoil_newest)], save_secs=2.0)
    assert {run.exit_code for run in done} == {DONE}
    assert any(
        journaled(run, "checkpoint_rejected") for run in done
    )  # unless a newer one was on disk and not yet reported


def test_row_20_if_all_checkpoints_are_bad_the_run_fails_and_never_starts_over() -> None:
    done = runs([(15.0, faults.lose_power), (15.0, faults.spoil_all)], seeds=8, save_secs=2.0)  # I3: never from step 0
    failed = [run for run in done if any(isinstance(fact, history.Refused) for _, fact in run.world.facts)]
    assert failed, "the power fails now and then over a commit, which is carried to its end; but not always"
    assert {run.exit_code for run in failed} == {GAVE_UP}


@pytest.mark.parametrize("seed", seeds(10))
def test_row_21_a_checkpoint_being_restored_stays_while_old_ones_are_deleted(seed: int) -> None:
    plan: Plan = [(12.0, faults.lose_power), (15.0 + seed / 2, faults.kill(CHECKPOINT))]
    assert Run(seed, Program(save_secs=1.0, max_to_keep=1, restore_s=3.0), plan).go().exit_code == DONE


@pytest.mark.parametrize("seed", seeds(25))
def test_row_23_a_summary_service_killed_at_any_write_loses_and_doubles_no_record(seed: int) -> None:
    run = Run(seed, Program(), [(6.0, faults.kill_at_disk(SUMMARY))]).go()
    finished = [fact for _, fact in run.world.facts if isinstance(fact, history.Finished)]
    assert [fact.unwritten for fact in finished] == [0]
    assert len(run.checker.account.records) == run.world.program.steps + 2  # START, each step, STOP


def test_row_25_the_launch_after_a_killed_watchdog_resumes() -> None:
    for run in runs([(10.0, faults.kill(WATCHDOG))]):
        assert (run.exit_code, run.launches) == (DONE, 2)


def test_row_26_the_launch_after_a_kill_of_the_watchdog_and_another_process_cleans_up_and_resumes() -> None:
    for run in runs([(10.0, faults.kill_both)], seeds=15):
        assert run.exit_code == DONE
        assert run.launches >= 2


@pytest.mark.parametrize("fault", [faults.bad_network, faults.cut, faults.say_again], ids=lambda fault: fault.__name__)
def test_row_32_lost_doubled_late_and_outdated_messages_change_nothing(fault: Callable[..., str]) -> None:
    plan: Plan = [(0.5, fault), (8.0, faults.kill(TRAINER)), (9.0, fault), (13.0, fault), (14.0, fault)]
    for run in runs(plan):
        assert run.exit_code == DONE


def test_row_33_a_jump_of_the_wall_clock_neither_kills_nor_restarts_anything() -> None:
    for run in runs([(5.0, faults.wall_jump), (12.0, faults.wall_jump)]):
        assert run.exit_code == DONE
        assert not journaled(run, "restarting")


def test_row_34_a_system_that_cannot_start_processes_for_a_while_is_waited_for_and_charged_to_nobody() -> None:
    for run in runs([(9.0, faults.no_spawn), (9.0, faults.kill(TRAINER)), (9.0, faults.kill(CHECKPOINT))]):
        assert run.exit_code == DONE
        assert not journaled(run, "gave_up")


def test_a_standby_stopped_as_it_is_to_become_the_trainer_is_killed_and_replaced_by_a_cold_start() -> None:
    def stop_standby(run: Run, rng: Random) -> str:
        process = run.world.find(STANDBY)
        assert process is not None
        process.freeze(20.0)
        return "SIGSTOP to the standby"

    for run in runs([(14.0, stop_standby), (14.5, faults.kill(TRAINER))], seeds=3, standby=True, steps=100):
        assert run.exit_code == DONE
        late = [entry for entry in journaled(run, "exited") if "did not answer" in entry.fields["evidence"]]
        assert [(entry.task, entry.fields["signal"]) for entry in late] == [(STANDBY, "SIGKILL")]
        assert len([entry for entry in journaled(run, "spawned") if entry.task == TRAINER]) == 2
        assert not journaled(run, "promoted")
