"""Each limit of the restart rules, just below and just above, and what progress or a manual restart resets."""

from __future__ import annotations

import random
import signal
from typing import Any

import pytest

from procsv.base.outcome import Exit, LastWords
from procsv.ipc.messaging.launch_settings import LaunchSettings, Range
from procsv.watchdog.core.restarts.goodput import CountedAttempt
from procsv.watchdog.core.restarts.restart_policy import (
    NOT_OURS,
    Death,
    GiveUp,
    History,
    Restart,
    ServiceDeath,
    ServiceHistory,
    Verdict,
)
from tests.support.naming import Naming

BOOM = LastWords("ValueError", "boom")
SEGFAULT = Death(Exit(None, signal.SIGSEGV), None, 10)
KILLED = Death(Exit(None, signal.SIGKILL), None, 10)
RETURN = Death(Exit(75, None), None, 10)


class Longest(random.Random):
    """Makes every delay as long as it may be."""

    def uniform(self, a: float, b: float) -> float:
        return b


class Shortest(random.Random):
    def uniform(self, a: float, b: float) -> float:
        return a


def raised(words: LastWords | None = BOOM, step: int = 10, exit: Exit | None = None) -> Death:
    return Death(exit or Exit(1, None), words, step)


def history(is_ready: bool = True, rng: random.Random | None = None, **policy: Any) -> History:
    made = History(LaunchSettings(**policy), rng or Longest())
    if is_ready:
        made.ready(0)
    return made


def delays(past: History, death: Death, times: int) -> list[float]:
    verdicts = [past.decide_restart(death) for _ in range(times)]
    return [round(verdict.delay_s, 6) if isinstance(verdict, Restart) else -1.0 for verdict in verdicts]


def kinds(past: History, death: Death, times: int) -> list[type[Verdict]]:
    return [type(past.decide_restart(death)) for _ in range(times)]


# -- delays ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("rng", "expected"),
    [
        (Longest(), [0.0, 1.2, 2.4, 4.8, 9.6, 19.2, 38.4, 72.0, 72.0]),
        (Shortest(), [0.0, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 48.0, 48.0]),
    ],
)
def test_after_the_first_delays_double_from_1_to_60_seconds_plus_or_minus_a_fifth(
    rng: random.Random, expected: list[float]
) -> None:
    assert delays(history(rng=rng, max_failures=100), KILLED, 9) == expected
    assert delays(history(is_ready=False, rng=rng, max_failures=100), KILLED, 8) == expected[1:], "no step was trained"


def test_delays_come_from_the_options_however_many_failures_there_were() -> None:
    past = history(rng=Shortest(), max_failures=10_000, backoff=Range(3.0, 10.0))
    assert delays(past, KILLED, 2000)[:5] == [0.0, 2.4, 4.8, 8.0, 8.0]
    assert past.delay_s() == 8.0


def test_a_failure_that_turned_out_to_be_progress_has_no_delay() -> None:
    past = history()
    for _ in range(2):
        past.decide_restart(KILLED)
    past.durable(5)
    assert past.delay_s() == 0.0


def test_the_first_failure_after_progress_costs_no_delay() -> None:
    past = history()
    for step in (5, 6):
        waits = [past.decide_restart(KILLED) for _ in range(2)]
        assert waits == [Restart(0.0), Restart(1.2)]
        past.durable(step)


def test_five_returns_with_nothing_saved_between_them_are_free_and_then_their_delays_double() -> None:
    assert delays(history(), RETURN, 8) == [0.0, 0.0, 0.0, 0.0, 0.0, 1.2, 2.4, 4.8]


def test_one_planned_restart_with_nothing_saved_is_free_and_then_delays_double() -> None:
    past = history()
    assert [round(past.end_planned(CountedAttempt()), 6) for _ in range(4)] == [0.0, 1.2, 2.4, 4.8]


def test_a_loop_of_returns_keeps_to_the_longest_delay() -> None:
    assert delays(history(), RETURN, 2000)[-1] == 72.0


def test_a_refused_spawn_is_retried_after_the_shortest_delay() -> None:
    assert history().not_spawned_delay_s() == pytest.approx(1.2)
    assert history(rng=Shortest()).not_spawned_delay_s() == pytest.approx(0.8)


# -- giving up -------------------------------------------------------------------------------------------------
def test_a_program_that_a_user_started_is_not_restarted() -> None:
    past = History(LaunchSettings(), Longest(), restarts=False)
    assert past.decide_restart(KILLED) == GiveUp(NOT_OURS, is_final=True)


def test_a_permanent_exit_is_given_up_whatever_was_trained() -> None:
    verdict = history().decide_restart(raised(None, exit=Exit(78, None)))
    assert verdict == GiveUp(Naming("exit code 78"), is_final=True)


@pytest.mark.parametrize(
    "death",
    [
        raised(LastWords("ImportError", "x"), exit=Exit(None, signal.SIGSEGV)),
        raised(LastWords("ValueError", "x"), exit=Exit(2, None)),
        raised(LastWords("my.Import", "x")),
        raised(None),
        raised(LastWords("", "x")),
    ],
)
def test_an_error_that_may_pass_is_retried_once_before_the_first_step(death: Death) -> None:
    assert kinds(history(is_ready=False), death, 1) == [Restart]


@pytest.mark.parametrize(
    ("death", "name"),
    [
        (raised(LastWords("tools.errors.ImportError", "x")), "ImportError before"),
        (raised(LastWords("my.Error", "x", permanent=True)), "Error before"),
        (raised(None, exit=Exit(2, None)), "exit code 2 before"),
        (raised(LastWords("", "x"), exit=Exit(2, None)), "exit code 2 before"),
    ],
)
def test_a_permanent_error_is_given_up_by_its_own_name(death: Death, name: str) -> None:
    verdict = history(is_ready=False).decide_restart(death)

    assert isinstance(verdict, GiveUp)
    assert verdict.why.startswith(name)
    assert verdict.is_final


def test_an_option_of_ours_that_a_program_rejects_is_named() -> None:
    past = History(LaunchSettings(misplaced="--fault"), Longest())
    verdict = past.decide_restart(raised(None, exit=Exit(2, None)))
    assert isinstance(verdict, GiveUp)
    assert "--fault" in verdict.why


def test_signals_before_the_first_step_do_not_use_up_an_exceptions_tries() -> None:
    past = history(is_ready=False)
    assert kinds(past, SEGFAULT, 2) == [Restart, Restart]
    assert kinds(past, raised(), 2) == [Restart, GiveUp]


def test_an_exceptions_step_is_its_own_or_otherwise_the_trainers() -> None:
    assert kinds(history(), raised(LastWords("E", "x", step=7)), 3) == [Restart, Restart, GiveUp]
    past = history()
    assert [kinds(past, raised(LastWords("E", "x"), step), 1) for step in (7, 8, 9)] == 3 * [[Restart]]
    past = history()
    verdicts = [past.decide_restart(raised(LastWords("E", "x", step=7), step)) for step in (8, 9, 10)]
    assert verdicts[2] == GiveUp("deterministic: E at step 7, 3 times", is_final=True)


@pytest.mark.parametrize(
    "death",
    [
        raised(None),
        raised(LastWords("", "x")),
        raised(BOOM, exit=Exit(None, signal.SIGSEGV)),
    ],
)
def test_only_an_exception_can_be_deterministic(death: Death) -> None:
    assert kinds(history(), death, 4) == 4 * [Restart]


def test_another_message_is_another_exception() -> None:
    past = history()
    assert [kinds(past, raised(LastWords("E", text)), 1)[0] for text in "abcd"] == 4 * [Restart]


def test_failures_at_a_step_are_forgotten_once_a_later_one_is_durable() -> None:
    for durable_step, last in ((840, GiveUp), (841, Restart)):
        past = history()
        kinds(past, raised(LastWords("E", "x", step=840)), 2)
        past.durable(durable_step)
        assert kinds(past, raised(LastWords("E", "x", step=840)), 1) == [last]


def test_failures_that_do_not_pay_are_given_up_though_each_made_progress() -> None:
    past = history()
    for step in range(1, 6):
        verdict = past.decide_restart(Death(Exit(1, None), None, step, CountedAttempt(10.0, 1.0, "exit code 1")))
        past.durable(step)
        assert isinstance(verdict, GiveUp) is (step == 5)
    assert isinstance(verdict, GiveUp)
    assert verdict.is_final


# -- progress --------------------------------------------------------------------------------------------------
def test_resuming_from_beyond_the_newest_durable_step_is_progress_once_training_gets_there() -> None:
    past = history()
    past.durable(500)
    past.ready(600)
    assert past.durable(550)


def test_progress_resets_the_returns_before_it() -> None:
    past = history()
    delays(past, RETURN, 7)
    past.durable(5)
    assert delays(past, RETURN, 6) == [0.0, 0.0, 0.0, 0.0, 0.0, 1.2]


@pytest.mark.parametrize("step", [0, 840])
def test_every_saved_state_can_become_suspect_with_the_second_crash_in_a_row(step: int) -> None:
    past = history()
    assert [past.count_crash(SEGFAULT, step, step) for _ in range(2)] == [False, True]


def test_an_older_state_that_was_left_for_the_newest_can_be_suspect_too() -> None:
    past = history()
    assert [past.count_crash(SEGFAULT, 840, -1) for _ in range(2)] == [False, True]


def gone_back() -> History:
    """Return a history that went back from step 500 after two crashes."""
    past = history()
    past.durable(500)
    assert [past.count_crash(SEGFAULT, 500, 500) for _ in range(3)] == [False, True, True]
    assert not past.count_crash(SEGFAULT, 400, 400), "one crash more elsewhere does not undo it"
    past.ready(400)
    return past


def test_repeated_steps_before_a_suspect_state_are_not_progress_until_a_newer_state_is_saved() -> None:
    past = gone_back()
    assert not past.durable(450)
    assert past.durable(501)
    past.ready(400)
    assert past.durable(450)


# -- manual restarts -------------------------------------------------------------------------------------------
def test_a_manual_restart_resets_exceptions_before_the_first_step() -> None:
    past = history(is_ready=False)
    kinds(past, raised(), 1)
    past.forgive()
    assert kinds(past, raised(), 2) == [Restart, GiveUp]


def test_a_manual_restart_resets_failures_delays_and_repeated_exceptions() -> None:
    past = history()
    kinds(past, raised(), 2)
    past.forgive()
    assert delays(past, raised(), 2) == [0.0, 1.2]


def test_a_manual_restart_resets_returns() -> None:
    past = history()
    delays(past, RETURN, 7)
    past.forgive()
    assert delays(past, RETURN, 6) == [0.0, 0.0, 0.0, 0.0, 0.0, 1.2]


def test_a_manual_restart_resets_suspicion_of_a_state() -> None:
    past = gone_back()
    past.forgive()
    past.ready(400)
    assert past.durable(450)
    past = history()
    past.count_crash(SEGFAULT, 840, 840)
    past.forgive()
    assert not past.count_crash(SEGFAULT, 840, 840)


# -- services --------------------------------------------------------------------------------------------------
def test_a_failing_service_waits_four_times_as_long_each_time_and_the_fifth_is_its_last() -> None:
    past = ServiceHistory()
    waits = [past.died(ServiceDeath.FAILED, float(n)) for n in range(5)]

    assert waits == [pytest.approx(0.1), pytest.approx(0.4), pytest.approx(1.6), pytest.approx(6.4), None]


@pytest.mark.parametrize(("apart_s", "is_lost"), [(74.0, True), (75.0, False)])
def test_five_failures_count_within_300_seconds(apart_s: float, is_lost: bool) -> None:
    past = ServiceHistory()
    waits = [past.died(ServiceDeath.FAILED, apart_s * n) for n in range(5)]
    assert (waits[4] is None) is is_lost


def test_a_killed_service_comes_back_after_a_tenth_of_a_second_19_times() -> None:
    past = ServiceHistory()
    assert [past.died(ServiceDeath.KILLED, float(n)) for n in range(20)] == [*[0.1] * 19, None]


def test_hangs_count_however_old_they_are() -> None:
    past = ServiceHistory()
    assert [past.died(ServiceDeath.HUNG, 10_000.0 * n) for n in range(5)] == [*[0.1] * 4, None]


def test_each_kind_of_death_is_counted_separately() -> None:
    past = ServiceHistory()
    for kind in (ServiceDeath.FAILED, ServiceDeath.HUNG):
        assert all(past.died(kind, float(n)) is not None for n in range(4))
    assert past.died(ServiceDeath.KILLED, 5.0) == 0.1
