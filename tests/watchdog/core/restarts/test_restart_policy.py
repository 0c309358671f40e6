"""The restart policy decides the delay before a restart and when to give up."""

from __future__ import annotations

import random
import signal

import pytest

from procsv.base.outcome import Exit, LastWords
from procsv.ipc.messaging.launch_settings import LaunchSettings
from procsv.watchdog.core.restarts.causes import find_cause, name_failure
from procsv.watchdog.core.restarts.goodput import CountedAttempt
from procsv.watchdog.core.restarts.restart_policy import (
    HARMLESS_AT_ONCE,
    Death,
    GiveUp,
    History,
    Restart,
    ServiceDeath,
    ServiceHistory,
    Verdict,
)
from tests.support.naming import Naming


def history(**policy: float) -> History:
    return History(LaunchSettings(**policy), random.Random(1))  # type: ignore[arg-type]


def trained(**policy: float) -> History:
    """Return a history with a first step."""
    made = history(**policy)
    made.ready(0)
    return made


def code(number: int, words: LastWords | None = None, step: int = 10) -> Death:
    return Death(Exit(number, None), words, step)


def killed(number: int = signal.SIGKILL, step: int = 10) -> Death:
    return Death(Exit(None, number), None, step)


def delay_of(verdict: Verdict) -> float:
    assert isinstance(verdict, Restart), verdict
    return verdict.delay_s


def why_of(verdict: Verdict) -> str:
    assert isinstance(verdict, GiveUp), verdict
    return verdict.why


def test_delays_double_up_to_their_limit_and_are_spread() -> None:
    past = trained(max_failures=100)
    delays = [delay_of(past.decide_restart(killed())) for _ in range(12)]

    for delay_s, base_s in zip(delays, [0, 1, 2, 4, 8, 16, 32, 60, 60, 60, 60, 60], strict=True):
        assert 0.8 * base_s <= delay_s <= 1.2 * base_s
    assert len(set(delays)) == 12


def test_the_same_seed_gives_the_same_delays() -> None:
    first, second = trained(max_failures=9), trained(max_failures=9)

    assert [first.decide_restart(killed()) for _ in range(5)] == [second.decide_restart(killed()) for _ in range(5)]


def test_five_failures_without_a_newly_durable_step_are_enough() -> None:
    past = trained()
    for _ in range(4):
        assert isinstance(past.decide_restart(killed()), Restart)

    verdict = past.decide_restart(killed())
    assert why_of(verdict).startswith("5 failures ")
    assert isinstance(verdict, GiveUp)
    assert not verdict.is_final


def test_progress_resets_everything() -> None:
    past = trained()
    for step in range(1, 50):
        delay_s = delay_of(past.decide_restart(killed(step=step)))
        assert delay_s <= 1.2
        assert past.durable(step)
        assert past.no_progress_count == 0


def test_a_step_that_was_already_durable_is_not_progress() -> None:
    past = trained()
    past.durable(100)
    past.decide_restart(killed())

    assert not past.durable(100)
    assert not past.durable(60)
    assert past.no_progress_count == 1


def test_what_a_launch_resumes_from_is_not_its_own_progress() -> None:
    past = history()
    past.ready(1000)

    assert not past.durable(1000)  # the checkpoint at the start
    assert past.durable(1001)


def test_after_falling_back_to_an_older_checkpoint_progress_counts_from_there() -> None:
    past = trained()
    past.durable(500)
    past.ready(400)

    assert past.durable(450)


def lost_peer(step: int = 10) -> Death:
    return code(1, LastWords("UnavailableError", "refused", step=step, lost_peer="ps.0"), step)


def test_the_loss_of_another_task_has_its_own_cause_and_costs_this_one_nothing() -> None:
    death = lost_peer()
    cause = find_cause(death.exit, death.words, False, "")
    assert (cause.word, cause.evidence) == ("lost-peer", "ps.0 is gone: UnavailableError: refused")
    assert name_failure(cause, death.exit, death.words, "") == ""

    past = history(max_failures=2, early_failures=1, same_failures=2, suspect_crashes=1)
    delays = [delay_of(past.decide_restart(lost_peer())) for _ in range(HARMLESS_AT_ONCE + 3)]
    assert delays[:HARMLESS_AT_ONCE] == [0.0] * HARMLESS_AT_ONCE
    assert 0.0 < delays[HARMLESS_AT_ONCE] < delays[-1]
    assert past.no_progress_count == 0
    assert not past.count_crash(death, 10, 10)


def test_a_server_restarts_at_once_and_serving_for_a_minute_is_progress() -> None:
    past = history(max_failures=3)
    past.served()
    assert delay_of(past.decide_restart(killed(step=-1))) == 0.0
    assert delay_of(past.decide_restart(killed(step=-1))) > 0.0
    assert past.end_serving(59.0) == 59.0
    assert past.no_progress_count == 2
    assert past.end_serving(60.0) == 60.0
    assert past.no_progress_count == 0


def test_exit_75_is_free_and_immediate_but_a_loop_of_it_is_slowed_down() -> None:
    past = trained()
    delays = [delay_of(past.decide_restart(code(75))) for _ in range(HARMLESS_AT_ONCE + 3)]

    assert not any(delays[:HARMLESS_AT_ONCE])
    assert delays[HARMLESS_AT_ONCE] >= 0.8
    assert delays[-1] > delays[HARMLESS_AT_ONCE]
    assert past.no_progress_count == 0
    past.durable(5)
    assert delay_of(past.decide_restart(code(75))) == 0.0


@pytest.mark.parametrize("number", [78, 126, 127])
def test_permanent_exits_give_up_at_once(number: int) -> None:
    verdict = trained().decide_restart(code(number))

    assert isinstance(verdict, GiveUp)
    assert verdict.is_final
    assert f"exit code {number}" in verdict.why


@pytest.mark.parametrize(
    "death",
    [
        code(1, LastWords("ImportError", "no module x")),
        code(1, LastWords("ModuleNotFoundError", "no module x")),
        code(1, LastWords("SyntaxError", "bad")),
        code(1, LastWords("my.Error", "bad", permanent=True)),
        code(2),
    ],
)
def test_a_permanent_error_gives_up_at_once_before_the_first_step(death: Death) -> None:
    assert "the first step" in why_of(history().decide_restart(death))
    assert isinstance(trained().decide_restart(death), Restart)  # later it is an ordinary failure


def test_an_exception_before_the_first_step_gets_two_tries() -> None:
    past = history()

    assert isinstance(past.decide_restart(code(1, LastWords("ValueError", "a"))), Restart)
    assert why_of(past.decide_restart(code(1, LastWords("ValueError", "b")))) == Naming("2 failures before")


def test_a_signal_before_the_first_step_is_a_failure_like_any_other() -> None:
    past = history()

    assert all(isinstance(past.decide_restart(killed()), Restart) for _ in range(4))


def test_row_03_the_same_exception_at_the_same_step_three_times_is_deterministic() -> None:
    past = trained()
    verdicts = [past.decide_restart(code(1, LastWords("ValueError", f"at 0x{n:x}", step=840))) for n in range(3)]

    assert [type(verdict) for verdict in verdicts] == [Restart, Restart, GiveUp]
    assert why_of(verdicts[2]) == "deterministic: ValueError at step 840, 3 times"


def test_row_04_the_same_exception_at_different_steps_is_not_deterministic() -> None:
    past = trained()
    for step in range(100, 200, 10):
        assert isinstance(past.decide_restart(code(1, LastWords("ValueError", "boom", step=step))), Restart)
        past.durable(step - 1)


def test_three_failures_in_a_row_at_one_step_are_found_although_a_crash_save_made_progress_once() -> None:
    past = trained()
    words = LastWords("ValueError", "boom", step=840)
    past.decide_restart(code(1, words))
    past.durable(839)  # the crash save of the first failure
    past.decide_restart(code(1, words))

    assert "deterministic" in why_of(past.decide_restart(code(1, words)))


# -- services --------------------------------------------------------------------------------------------------
def test_an_idle_service_may_be_killed_forever() -> None:
    past = ServiceHistory()

    assert {past.died(ServiceDeath.IDLE, now_s=float(n)) for n in range(100)} == {0.0}


def test_the_fifth_failure_within_the_period_fails_the_run() -> None:
    past = ServiceHistory()
    delays = [past.died(ServiceDeath.FAILED, now_s=float(n)) for n in range(5)]

    assert delays[4] is None
    assert delays[:4] == sorted(delay for delay in delays if delay is not None)


def test_a_service_killed_as_it_starts_or_works_gets_more_tries_but_not_forever() -> None:
    past = ServiceHistory()
    delays = [past.died(ServiceDeath.KILLED, now_s=float(n)) for n in range(20)]

    assert all(delays[:19])
    assert delays[19] is None


def test_old_failures_and_failures_before_a_finished_job_do_not_count() -> None:
    past = ServiceHistory()
    assert all(past.died(ServiceDeath.FAILED, now_s=301.0 * n) is not None for n in range(20))

    for n in range(20):
        assert past.died(ServiceDeath.FAILED, now_s=float(n)) is not None
        past.worked()


def test_two_crashes_after_resuming_from_one_state_make_it_suspect() -> None:
    past = trained()
    boom, segfault = code(1, LastWords("ValueError", "boom")), killed(signal.SIGSEGV)

    assert not past.count_crash(boom, resumed_step=840, newest_step=840)
    assert past.count_crash(segfault, resumed_step=840, newest_step=840)


def test_a_newer_state_an_external_kill_and_progress_clear_suspicion_of_a_state() -> None:
    past = trained()
    boom = code(1, LastWords("ValueError", "boom"))

    assert not any(past.count_crash(killed(), 840, 840) for _ in range(9))
    assert not any(past.count_crash(boom, 840, newest_step=845) for _ in range(9))
    assert not any(past.count_crash(boom, -1, -1) for _ in range(9))
    past.count_crash(boom, 840, 840)
    past.durable(841)
    assert not past.count_crash(boom, 840, 840)


def test_a_manual_restart_resets_everything() -> None:
    past = trained()
    for _ in range(4):
        past.decide_restart(killed())
    past.forgive()

    assert all(isinstance(past.decide_restart(killed()), Restart) for _ in range(4))


def test_planned_restarts_are_free_but_a_loop_of_them_is_slowed_down() -> None:
    past = trained()

    assert past.end_planned(CountedAttempt()) == 0.0
    assert past.end_planned(CountedAttempt()) > 0.0
    past.durable(5)
    assert past.end_planned(CountedAttempt()) == 0.0
    assert past.no_progress_count == 0


def test_every_number_of_the_policy_can_be_configured() -> None:
    early = history(early_failures=3)
    assert [type(early.decide_restart(code(1, LastWords("E", "a")))) for _ in range(3)] == [Restart, Restart, GiveUp]
    same = trained(same_failures=2)
    words = LastWords("E", "a", step=7)
    assert [type(same.decide_restart(code(1, words))) for _ in range(2)] == [Restart, GiveUp]
    services = ServiceHistory(LaunchSettings(service_failures=2, service_period_s=10.0))
    assert services.died(ServiceDeath.FAILED, 0.0) is not None
    assert services.died(ServiceDeath.FAILED, 11.0) is not None
    assert services.died(ServiceDeath.FAILED, 12.0) is None


def test_a_crash_at_one_step_is_given_up_although_every_second_attempt_makes_older_steps_durable_again() -> None:
    past = History(LaunchSettings(), random.Random(1))
    past.ready(0)
    assert past.durable(8)
    verdicts: list[Verdict] = []
    resumed = 8
    while not verdicts or isinstance(verdicts[-1], Restart):
        death = Death(Exit(None, signal.SIGSEGV), None, 8)
        verdicts.append(past.decide_restart(death))
        resumed = 0 if past.count_crash(death, resumed, resumed) else 8
        past.ready(resumed)
        past.durable(5)
    assert len(verdicts) == LaunchSettings().max_failures
