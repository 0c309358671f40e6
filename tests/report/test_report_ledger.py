"""The ledger puts every second of a run into one of six kinds, whatever the journal says."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from procsv.report.account import KINDS
from procsv.report.text import headline, incarnation_row
from procsv.report.time_ledger import take_accounts
from tests.report.journals import account_of, at, completed, died, launched, of_task, started, totals_of


def test_a_run_without_faults_has_only_starting_and_kept_time() -> None:
    account = account_of(launched(0), started(1, 1, 0, 11, "fresh"), completed(111, 1, 101))
    assert totals_of(account) == {"starting": 11, "kept": 100, "down": 1}
    assert account.outcome == "completed"
    assert account.goodput == pytest.approx(100 / 112)
    assert account.failures == account.lost_steps == 0


def test_a_supervisor_without_a_watchdog_has_its_training_counted() -> None:
    trained = started(0, 1, 0, 10, "fresh")[1:]  # no watchdog has spawned it
    saved = [at(109, "checkpoint_durable", step=101), at(110, "stopped", step=101)]
    account = account_of(at(0, "run_started", pid=7), trained, saved)
    assert totals_of(account) == {"starting": 10, "kept": 100}
    assert (account.incarnations[0].pid, account.last_step, account.outcome) == (7, 101, "stopped")


def test_a_program_that_has_saved_and_asks_for_a_restart_has_not_failed() -> None:
    asked = died(21, 1, 11, "exit-code", code=75, signal=None)
    account = account_of(
        launched(0), started(1, 1, 0, 11, "fresh"), asked, started(22, 2, 11, 30), completed(111, 2, 101)
    )
    assert (account.failures, account.lost_steps) == (0, 0)


def test_steps_lost_in_a_crash_count_as_redone_training() -> None:
    first = [*started(0, 1, 0, 10, "fresh"), died(110, 1, 101)]
    account = account_of(launched(0), first, started(112, 2, 91, 120), completed(220, 2, 191))
    assert totals_of(account) == {"starting": 18, "kept": 190, "redone": 10, "down": 3}
    assert [one.lost_steps for one in account.incarnations] == [10, 0]
    assert account.failures == 1
    assert account.recoveries_s == [8]


@pytest.mark.parametrize(("last", "restored", "redone"), [(3, 3, 12), (3, 2, 56), (3, 1, 100), (1, 1, 12)])
def test_if_each_step_is_saved_the_time_since_the_last_save_is_redone_training(
    last: int, restored: int, redone: int
) -> None:
    first = [*started(0, 1, 0, 10, "fresh"), died(110, 1, last), at(110, "restarting", lost_steps=0, lost_seconds=12.0)]
    account = account_of(launched(0), first, started(112, 2, restored, 120, "checkpoint"), completed(220, 2, 5))
    assert totals_of(account)["redone"] == redone
    assert [one.lost_seconds for one in account.incarnations] == [12.0, 0.0]
    assert "12 s of training done again" in headline(account)
    assert "12 s" in incarnation_row(account.incarnations[0])[-1]
    assert totals_of(account)["kept"] == 200 - redone


def test_a_restart_from_an_older_checkpoint_makes_the_work_of_several_attempts_redone() -> None:
    first = [*started(0, 1, 0, 0, "fresh"), died(100, 1, 101)]
    second = [*started(100, 2, 100, 100), died(150, 2, 151)]
    account = account_of(launched(0), first, second, started(150, 3, 51, 150, "checkpoint"), completed(200, 3, 101))
    assert totals_of(account) == {"kept": 100, "redone": 100, "down": 1}


def test_a_hang_is_stalled_time_from_its_last_progress_to_its_death() -> None:
    hang = at(160, "hang_detected", phase="step", seconds=50.0, step=101)
    account = account_of(launched(0), started(0, 1, 0, 10, "fresh"), hang, died(170, 1, 101, "hang"))
    assert totals_of(account) == {"starting": 10, "kept": 100, "stalled": 60}


def test_a_hang_before_the_first_step_is_stalled_time_too() -> None:
    entries = [at(0, "spawned", pid=7), at(60, "hang_detected", phase="restore", seconds=40.0, step=-1)]
    account = account_of(launched(0), entries, died(70, 1, -1, "hang"))
    assert totals_of(account) == {"starting": 20, "stalled": 50}


def test_the_time_between_two_launches_is_stopped_and_does_not_lower_the_goodput() -> None:
    durable = at(99, "checkpoint_durable", "checkpoint", step=101)
    stopped = [durable, died(100, 1, 101, "stopped"), at(100, "stopped", step=101)]
    account = account_of(
        launched(0),
        started(0, 1, 0, 0, "fresh"),
        stopped,
        launched(500),
        started(500, 2, 101, 500),
        completed(600, 2, 201),
    )
    assert totals_of(account) == {"kept": 200, "stopped": 400, "down": 1}
    assert account.launches == 2
    assert account.goodput == pytest.approx(200 / 201)
    assert account.failures == 0


def test_a_killed_watchdog_ends_its_time_when_it_was_last_seen() -> None:
    again = launched(300, seen_until=1090.0)
    account = account_of(
        launched(0), started(0, 1, 0, 0, "fresh"), again, started(300, 2, 91, 300), completed(400, 2, 191)
    )
    assert totals_of(account) == {"kept": 190, "stopped": 210, "down": 1}
    assert account.incarnations[0].last_step == 91


def test_the_watchdogs_start_is_part_of_the_time() -> None:
    asked, again = 1000.0 - 0.5, 1000.0 + 60.0
    stopped = [died(20, 1, 11, "stopped"), at(20, "stopped", step=11)]
    account = account_of(
        launched(0, asked_at=asked),
        [*started(1, 1, 0, 10, "fresh"), at(15, "checkpoint_durable", "checkpoint", step=11), *stopped],
        launched(62, asked_at=again),
        started(63, 2, 11, 65),
        completed(70, 2, 16),
    )
    assert account.start_s == asked
    assert totals_of(account) == {"starting": 10.5 + 5, "kept": 15, "stopped": 40, "down": 1}


def test_a_state_beyond_the_last_reading_loses_nothing() -> None:
    first = [*started(0, 1, 0, 0, "fresh"), died(100, 1, 90)]
    account = account_of(launched(0), first, started(100, 2, 95, 100), completed(200, 2, 195))
    assert account.lost_steps == 0
    assert totals_of(account) == {"kept": 200, "down": 1}


def test_training_of_other_tasks_while_there_was_no_chief_is_lost_with_their_server() -> None:
    first = [*started(0, 1, 0, 0, "fresh"), died(100, 1, 100)]
    second = started(100, 2, 150, 100)[:-1]
    second.append(
        at(100, "recovered", incarnation=2, step=150, source="memory", lost_steps=10)
    )  # the others reached 160
    account = account_of(launched(0), first, second, completed(200, 2, 250))
    assert account.lost_steps == 10
    assert [one.lost_steps for one in account.incarnations] == [10, 0]


def test_a_run_that_gave_up_keeps_nothing_that_it_had_not_saved() -> None:
    durable = at(50, "checkpoint_durable", "checkpoint", step=51)
    account = account_of(
        launched(0), started(0, 1, 0, 0, "fresh"), durable, died(100, 1, 101), at(100, "gave_up", why="five times")
    )
    assert account.outcome == "gave up"
    assert account.lost_steps == 50
    assert totals_of(account) == {"kept": pytest.approx(50.0), "redone": pytest.approx(50.0)}


def test_a_live_run_is_counted_up_to_now() -> None:
    account = account_of(launched(0), started(0, 1, 0, 10, "fresh"), until_s=1040.0, step=31, is_running=True)
    assert account.outcome == "running"
    assert totals_of(account) == {"starting": 10, "kept": 30}
    assert account.last_step == 31


def test_a_run_whose_watchdog_was_killed_ends_when_it_was_last_seen() -> None:
    account = account_of(launched(0), started(0, 1, 0, 10, "fresh"), until_s=1040.0, step=31)
    assert account.outcome == "interrupted"
    assert account.wall_s == 40
    assert account.incarnations[0].end_s == 1040.0


def test_a_promoted_standby_is_one_start_and_not_two() -> None:
    entries = [*started(0, 1, 0, 0, "fresh"), died(10, 1, 11)]
    promoted = [at(10, "promoted", incarnation=2, pid=9), *started(10, 2, 11, 11)]
    spawned_first = [*started(10, 2, 11, 11), at(11, "promoted", incarnation=2, pid=9)]
    for order in (promoted, spawned_first):
        account = account_of(launched(0), entries, order, completed(21, 2, 21))
        assert [(one.number, one.is_promoted) for one in account.incarnations] == [(1, False), (2, True)]


def test_a_standbys_end_is_not_the_end_of_the_trainer_with_the_same_number() -> None:
    standby = replace(died(100, 1, -1, "stopped"), role="standby")
    account = account_of(launched(0), started(1, 1, 0, 11, "fresh"), standby, completed(111, 1, 101))
    assert (account.incarnations[0].cause, account.last_step) == ("completed", 101)
    assert totals_of(account) == {"starting": 11, "kept": 100, "down": 1}


def test_with_several_tasks_the_time_is_the_one_of_the_saved_task() -> None:
    chief, done = of_task("chief", started(1, 1, 0, 11, "fresh")), of_task("chief", completed(111, 1, 101))
    worker = of_task("worker.0", started(2, 1, 0, 12), died(50, 1, 40))
    both = sorted([*chief, *worker], key=lambda line: line.time)
    account = account_of(launched(0, tasks=["chief", "worker.0"]), both, done)
    assert totals_of(account) == {"starting": 11, "kept": 100, "down": 1}


def test_a_clock_set_back_an_hour_gives_no_negative_time() -> None:
    entries = [launched(0), *started(0, 1, 0, 10, "fresh")]
    later = [died(50 - 3600, 1, 101), *started(51 - 3600, 2, 101, 61 - 3600), *completed(161 - 3600, 2, 201)]
    account = account_of(entries, later)
    assert all(span.seconds >= 0 for span in account.spans)
    assert totals_of(account) == {"starting": 20, "kept": 100, "down": 2}


def test_a_lost_session_of_a_living_trainer_is_down_time_and_its_lost_steps_are_counted_once() -> None:
    recovered: dict[str, Any] = {
        "step": 80,
        "source": "checkpoint",
        "from": "",
        "at": 81,
        "seconds": 4.0,
        "lost_steps": 20,
    }
    account = account_of(
        launched(0),
        started(1, 1, 0, 11, "fresh"),  # ready at step 1
        at(110, "session_lost", step=100, error="UnavailableError: gone"),
        at(114, "session_recovered", **recovered),
        died(214, 1, 181),
        started(214, 2, 171, 216),
        completed(306, 2, 262),
    )
    assert totals_of(account) == {"starting": 13, "kept": 259, "redone": 30, "down": 5}
    assert account.lost_sessions == 1
    assert (account.lost_steps, [one.lost_steps for one in account.incarnations]) == (30, [30, 0])
    assert account.incarnations[0].recovery_seconds == 10, "that of its start"
    assert [line.entry.event for line in account.remarks].count("session_lost") == 1


def test_time_in_which_a_signal_had_stopped_the_trainer_is_not_training() -> None:
    account = account_of(
        launched(0), started(1, 1, 0, 11, "fresh"), at(71, "frozen", seconds=20, step=41), completed(131, 1, 101)
    )
    assert totals_of(account) == {"starting": 11, "kept": 100, "stalled": 20, "down": 1}
    assert [(span.kind, span.incarnation) for span in account.spans if span.kind == "stalled"] == [("stalled", 1)]

    early = account_of(
        launched(0), started(1, 1, 0, 11, "fresh"), at(12, "frozen", seconds=5, step=1), completed(32, 1, 21)
    )
    assert totals_of(early) == {"starting": 11, "kept": 20, "stalled": 1, "down": 1}, "what was before is what it was"


def test_time_in_which_an_observed_program_hung_is_not_training() -> None:
    hang = (at(71, "hang_detected", seconds=20, step=41), at(91, "hang_over", seconds=40, step=42))
    account = account_of(launched(0), started(1, 1, 0, 11, "fresh"), *hang, completed(131, 1, 82))

    assert totals_of(account) == {"starting": 11, "kept": 80, "stalled": 40, "down": 1}


def test_an_empty_journal_has_no_account() -> None:
    assert take_accounts([]) == (None, {})


def test_a_task_that_is_given_up_ends_only_its_own_time_and_the_next_launch_retries_it() -> None:
    tasks = ("trainer", "worker.0", "worker.1")
    begun = [at(1, "spawned", "worker.1", pid=7), at(11, "ready", "worker.1", step=1)]
    exited = replace(died(21, 1, 30, "exit-code"), role="worker.1")
    journal = [
        *(launched(0, tasks=tasks), *started(1, 1, 0, 11, "fresh"), *begun, exited),
        *(at(22, "task_given_up", "worker.1", why="five times", workers=1), *completed(111, 1, 101)),
    ]
    journal.sort(key=lambda line: line.time)
    account = account_of(journal)
    assert account.outcome == "completed"
    assert account.without == {"worker.1": "five times"}
    assert totals_of(account) == {"starting": 11, "kept": 100, "down": 1}
    other = take_accounts(journal)[1]["worker.1"]
    assert totals_of(other) == {"starting": 11, "kept": 10, "down": 91}, "the others ended at 112"

    again = account_of(journal, launched(200, tasks=tasks), until_s=1201.0)
    assert again.without == {}


_EVENTS = st.sampled_from(
    [
        ("run_started", "watchdog"),
        ("spawned", "trainer"),
        ("spawned", "checkpoint"),
        ("promoted", "trainer"),
        ("ready", "trainer"),
        ("recovered", "trainer"),
        ("exited", "trainer"),
        ("frozen", "trainer"),
        ("session_lost", "trainer"),
        ("session_recovered", "trainer"),
        ("hang_detected", "trainer"),
        ("hang_over", "trainer"),
        ("checkpoint_durable", "checkpoint"),
        ("stopped", "trainer"),
        ("gave_up", "trainer"),
        ("task_given_up", "worker.0"),
        ("run_completed", "trainer"),
    ]
)


@given(
    st.lists(st.tuples(_EVENTS, st.floats(-50, 100), st.integers(1, 4), st.integers(-1, 300)), min_size=1, max_size=40),
    st.booleans(),
)
def test_the_ledger_adds_up_to_the_wall_time_for_any_journal(entries: list[Any], is_running: bool) -> None:
    """Whatever the order of events and the jumps of the clock, each second counts exactly once."""
    now, journal = 0.0, []
    for (event, role), delta, incarnation, step in entries:
        now += delta
        journal.append(
            at(
                now,
                event,
                role,
                incarnation,
                step=step,
                seconds=abs(delta),
                seen_until=1000.0 + now,
                asked_at=999.0 + now,
                lost_steps=max(step, 0) // 2,
            )
        )
    account = account_of(journal, until_s=1000.0 + now + 5, step=50, is_running=is_running)
    assert set(account.totals) == set(KINDS)
    assert sum(account.totals.values()) == pytest.approx(account.wall_s, abs=1e-6)
    assert all(span.seconds >= 0 for span in account.spans)
    ordered = sorted(account.spans, key=lambda span: (span.start_s, span.end_s))
    assert all(a.end_s <= b.start_s + 1e-9 for a, b in itertools.pairwise(ordered))
    assert 0.0 <= account.goodput <= 1.0
