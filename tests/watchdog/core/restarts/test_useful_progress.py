"""Restarts must pay: repeated failures with little training between them, or little goodput, end the run."""

from __future__ import annotations

import signal

import pytest

from procsv.base.outcome import Exit, LastWords
from procsv.ipc.messaging.launch_settings import LaunchSettings
from procsv.watchdog.core.hangs.stack_parser import where_it_was_raised
from procsv.watchdog.core.restarts.goodput import Attempts, CountedAttempt
from procsv.watchdog.core.settings import Settings
from tests.support.naming import Naming
from tests.watchdog.world import KILLED, World

FAILED = Exit(1, None)
BOOM, CRASH = "ValueError in step (train.py:7)", "SIGSEGV in step (train.py:9)"

TRACEBACK = """\
Traceback (most recent call last):
  File "/home/me/old.py", line 3, in read
    data[key]
KeyError: 'x'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/home/me/train.py", line 90, in main
    one_step()
  File "/home/me/train.py", line {line}, in one_step
    session.run(train_op)
    ~~~~~~~~~~~^^^^^^^^^^
ValueError: bad {value}
  File "/home/me/graph.py", line 1, in this_is_text_of_the_exception
"""


def failed(failure: str = BOOM, kept_s: float = 1.0, seconds: float = 2.0) -> CountedAttempt:
    return CountedAttempt(seconds, kept_s, failure)


def killed(kept_s: float = 1.0, seconds: float = 2.0) -> CountedAttempt:
    """Return an end by an external kill; a planned end looks the same."""
    return CountedAttempt(seconds, kept_s)


def out_of_memory(kept_s: float = 1.0, seconds: float = 2.0) -> CountedAttempt:
    return CountedAttempt(seconds, kept_s, "out of memory", by_kernel=True)


def told(*attempts: CountedAttempt, **limits: float) -> list[str]:
    past = Attempts(LaunchSettings(**limits))  # type: ignore[arg-type]
    return [past.add_attempt(attempt) for attempt in attempts]


def words(step: int, line: int = 41) -> LastWords:
    return LastWords("ValueError", f"bad {step}", TRACEBACK.format(line=line, value=step), step)


# -- repeated failures -----------------------------------------------------------------------------------------
def test_row_55_five_failures_of_a_kind_that_each_keep_less_than_a_minute_are_no_useful_progress() -> None:
    why = Naming(f"no useful progress: {BOOM}, 5 times ", ", with 5.0 s ")
    assert told(*[failed()] * 5) == ["", "", "", "", why]


def test_an_attempt_that_keeps_a_minute_of_training_ends_the_row() -> None:
    assert not any(told(*([failed()] * 4 + [failed(kept_s=60.0, seconds=61.0)]) * 5))
    assert not any(told(*([failed()] * 4 + [killed(kept_s=60.0, seconds=61.0)]) * 5))


def test_another_failure_ends_the_row_and_starts_a_new_one() -> None:
    assert not any(told(*([failed()] * 4 + [failed(CRASH)]) * 5))
    assert told(*[failed()] * 4, *[failed(CRASH)] * 5)[-1].startswith(f"no useful progress: {CRASH}, 5 times ")


def test_an_external_or_planned_end_neither_counts_nor_ends_a_row() -> None:
    assert not any(told(*[killed()] * 100))
    assert not any(told(*[out_of_memory()] * 100))
    between = [failed(), killed(), out_of_memory()]
    assert told(*between * 4, failed())[-1].startswith(f"no useful progress: {BOOM}, 5 times ")


# -- goodput -----------------------------------------------------------------------------------------------------
def test_row_55_less_than_5_percent_goodput_over_ten_attempts_is_no_useful_progress() -> None:
    attempts = [failed(f"exit code {n % 3}", 0.5, 15.0) for n in range(10)]
    why = told(*attempts)

    assert why[:9] == [""] * 9
    assert why[9] == Naming("no useful progress: ", "10 attempts 5.0 s of 2 min 30 s ", " 4 times, ", "exit code 0")
    assert not any(told(*[failed(f"exit code {n % 3}", 0.8, 15.0) for n in range(100)]))


def test_a_program_that_runs_out_of_memory_after_each_step_is_given_up_for_its_goodput() -> None:
    why = told(*[out_of_memory(0.1, 15.0)] * 10)[-1]
    assert why == Naming("no useful progress: ", "10 attempts 1.0 s of 2 min 30 s ", " 10 times, ", "out of memory")


def test_one_good_attempt_in_ten_is_enough() -> None:
    different = [failed(f"exit code {n}", 0.0, 15.0) for n in range(9)]
    assert not any(told(*[*different, failed("exit code 9", 20.0, 35.0)] * 5))


@pytest.mark.parametrize("kept_s", [0.0, 0.5, 4.0])
def test_a_machine_that_kills_every_20_seconds_may_do_so_forever_whatever_is_kept(kept_s: float) -> None:
    assert not any(told(*[killed(kept_s, seconds=20.0)] * 100))


def test_a_killed_attempt_counts_for_goodput_if_it_kept_training() -> None:
    assert not any(told(*[failed(str(n), 0.0) if n % 2 else killed(10.0, 20.0) for n in range(100)]))


def test_both_limits_can_be_configured_and_switched_off() -> None:
    assert not any(told(*[failed(kept_s=0.0)] * 100, repeated_failures=0, min_goodput=0.0))
    assert [bool(why) for why in told(*[failed()] * 2, repeated_failures=2)] == [False, True]
    assert not any(told(*[failed()] * 100, min_kept_s=1.0))
    assert [bool(why) for why in told(*[out_of_memory()] * 3, min_goodput=0.6, goodput_attempts=3)] == [
        False,
        False,
        True,
    ]


# -- in a run ----------------------------------------------------------------------------------------------------
def fail(world: World, step: int, words: LastWords | None, exit: Exit = FAILED) -> None:
    """Let the trainer end. Its last step is saved and is progress, and the next one trains."""
    world.memory_step = step
    world.crash(exit, words)
    world.advance(2.0)
    if world.exit_code is None:
        world.train(step + 10, restored=step)


def test_row_55_a_program_that_fails_in_one_place_after_each_new_step_is_given_up() -> None:
    world = World().ready().train(10)
    for step in range(10, 60, 10):
        assert world.exit_code is None
        fail(world, step, words(step))

    assert world.exit_code == 70
    why = world.last("gave_up")["why"]
    assert why.startswith("no useful progress: ValueError in one_step (/home/me/train.py:41), 5 times ")
    assert world.said.count(f"gave up: {why}") == 1
    assert sum("bad 50" in text for text in world.said) == 1, "each error is said once"


def test_failures_in_different_places_with_progress_are_not_given_up_while_they_pay() -> None:
    world = World().ready().train(10)
    for step in range(10, 400, 10):
        fail(world, step, words(step, line=step))
    assert world.exit_code is None


@pytest.mark.parametrize("exit", [KILLED, Exit(None, signal.SIGTERM), Exit(75, None)])
def test_external_kills_and_exits_75_with_progress_go_on_forever(exit: Exit) -> None:
    world = World().ready().train(10)
    for step in range(10, 400, 10):
        fail(world, step, None, exit)
    assert world.exit_code is None


def test_a_run_without_saved_steps_whose_last_state_is_progress_is_given_up_too() -> None:
    world = World().ready().train(10)
    for _ in range(4):
        world.crash(Exit(3, None))
        world.advance(70.0)
        world.train(10)
    world.memory_step = 10  # the fifth failure without a newly durable step leaves a step that can be saved
    world.crash(Exit(3, None))

    assert world.exit_code == 70
    assert world.last("gave_up")["why"].startswith("no useful progress: exit code 3, 5 times ")


def test_time_in_which_a_program_hung_is_not_training() -> None:
    world = World(settings=Settings(LaunchSettings(hang_timeout_s=300.0))).ready().train(10)
    for step in range(10, 60, 10):
        assert world.exit_code is None
        world.advance(310.0)
        assert world.core.state_label == "hung"
        fail(world, step, None, Exit(None, signal.SIGABRT))

    assert world.exit_code == 70
    assert world.last("gave_up")["why"] == Naming("no useful progress: ", "phase step, 5 times ")


def test_a_manual_restart_resets_what_did_not_pay() -> None:
    world = World().ready().train(10)
    for step in range(10, 50, 10):
        fail(world, step, words(step))
    world.core.chief.history.forgive()
    fail(world, 50, words(50))
    assert world.exit_code is None


# -- places of exceptions ----------------------------------------------------------------------------------------
def test_an_exception_is_placed_at_the_programs_own_innermost_frame_of_the_last_traceback() -> None:
    library = TRACEBACK.format(line=41, value=1).replace("/home/me/train.py", f"{signal.__file__}")
    assert where_it_was_raised(TRACEBACK.format(line=41, value=1)) == "one_step (/home/me/train.py:41)"
    assert where_it_was_raised(library) == f"one_step ({signal.__file__}:41)"
    assert where_it_was_raised("") == where_it_was_raised("ValueError: boom") == ""
