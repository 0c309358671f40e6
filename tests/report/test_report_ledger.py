"""The ledger: every second of a run is one of six kinds, whatever the journal says."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procsv.report.account import KINDS, Account, lost_share
from procsv.report.time_ledger import take_account, take_accounts

Entry = dict[str, Any]


def _at(time: float, event: str, role: str = "trainer", incarnation: int = 1, **fields: Any) -> Entry:
    return {"time": 1000.0 + time, "event": event, "role": role, "incarnation": incarnation, **fields}


def _start(time: float, incarnation: int, step: int, ready: float, source: str = "memory") -> list[Entry]:
    return [
        _at(time, "spawned", incarnation=incarnation, pid=100 + incarnation),
        _at(ready, "ready", incarnation=incarnation, step=step + 1),
        _at(
            ready, "recovered", incarnation=incarnation, step=step, source=source, seconds=ready - time, **{"from": ""}
        ),
    ]


def _death(time: float, incarnation: int, step: int, cause: str = "killed") -> Entry:
    return _at(
        time, "exited", incarnation=incarnation, step=step, cause=cause, evidence="", code=None, signal="SIGKILL"
    )


def _launch(time: float, **fields: Any) -> Entry:
    return _at(time, "run_started", "watchdog", **fields)


def _done(time: float, incarnation: int, step: int) -> list[Entry]:
    exited = _at(
        time, "exited", incarnation=incarnation, step=step, cause="completed", evidence="", code=0, signal=None
    )
    return [exited, _at(time + 1, "run_completed", incarnation=incarnation, step=step, goodput=1.0)]


def _account(*entries: Entry | list[Entry], **more: Any) -> Account:
    flat = [one for entry in entries for one in (entry if isinstance(entry, list) else [entry])]
    account = take_account(flat, **more)
    assert account is not None
    return account


def _totals(account: Account) -> dict[str, float]:
    return {kind: round(seconds, 6) for kind, seconds in account.totals.items() if seconds}


def test_a_run_without_faults_starts_and_is_kept() -> None:
    account = _account(_launch(0), _start(1, 1, 0, 11, "fresh"), _done(111, 1, 101))
    assert _totals(account) == {"starting": 11, "kept": 100, "down": 1}
    assert account.outcome == "completed"
    assert account.goodput == pytest.approx(100 / 112)
    assert account.failures == account.lost_steps == 0


def test_a_supervisor_without_a_watchdog_has_its_training_counted() -> None:
    trained = _start(0, 1, 0, 10, "fresh")[1:]  # nobody has spawned it
    saved = [_at(109, "checkpoint_durable", step=101), _at(110, "stopped", step=101)]
    account = _account(_at(0, "run_started", pid=7), trained, saved)
    assert _totals(account) == {"starting": 10, "kept": 100}
    assert (account.incarnations[0].pid, account.last_step, account.outcome) == (7, 101, "stopped")


def test_a_program_that_has_saved_and_asks_to_be_started_again_has_not_failed() -> None:
    asked = {**_death(21, 1, 11, "exit-code"), "code": 75, "signal": None}
    account = _account(_launch(0), _start(1, 1, 0, 11, "fresh"), asked, _start(22, 2, 11, 30), _done(111, 2, 101))
    assert (account.failures, account.lost_steps) == (0, 0)


def test_steps_lost_with_a_crash_are_training_redone() -> None:
    first = [*_start(0, 1, 0, 10, "fresh"), _death(110, 1, 101)]
    account = _account(_launch(0), first, _start(112, 2, 91, 120), _done(220, 2, 191))
    assert _totals(account) == {"starting": 18, "kept": 190, "redone": 10, "down": 3}
    assert [one.lost_steps for one in account.incarnations] == [10, 0]
    assert account.failures == 1
    assert account.recoveries_s == [8]


def test_a_restart_from_an_older_checkpoint_makes_several_incarnations_work_redone() -> None:
    first = [*_start(0, 1, 0, 0, "fresh"), _death(100, 1, 101)]
    second = [*_start(100, 2, 100, 100), _death(150, 2, 151)]
    account = _account(_launch(0), first, second, _start(150, 3, 51, 150, "checkpoint"), _done(200, 3, 101))
    assert _totals(account) == {"kept": 100, "redone": 100, "down": 1}


def test_a_hang_is_stalled_from_its_last_progress_to_its_death() -> None:
    hang = _at(160, "hang_detected", phase="step", seconds=50.0, step=101)
    account = _account(_launch(0), _start(0, 1, 0, 10, "fresh"), hang, _death(170, 1, 101, "hang"))
    assert _totals(account) == {"starting": 10, "kept": 100, "stalled": 60}


def test_a_hang_before_the_first_step_is_stalled_too() -> None:
    entries = [_at(0, "spawned", pid=7), _at(60, "hang_detected", phase="restore", seconds=40.0, step=-1)]
    account = _account(_launch(0), entries, _death(70, 1, -1, "hang"))
    assert _totals(account) == {"starting": 20, "stalled": 50}


def test_the_time_between_two_launches_is_stopped_and_does_not_count_against_the_goodput() -> None:
    durable = _at(99, "checkpoint_durable", "checkpoint", step=101)
    stopped = [durable, _death(100, 1, 101, "stopped"), _at(100, "stopped", step=101)]
    account = _account(
        _launch(0), _start(0, 1, 0, 0, "fresh"), stopped, _launch(500), _start(500, 2, 101, 500), _done(600, 2, 201)
    )
    assert _totals(account) == {"kept": 200, "stopped": 400, "down": 1}
    assert account.launches == 2
    assert account.goodput == pytest.approx(200 / 201)
    assert account.failures == 0


def test_a_killed_watchdog_leaves_the_time_until_it_was_seen_last() -> None:
    again = _launch(300, seen_until=1090.0)
    account = _account(_launch(0), _start(0, 1, 0, 0, "fresh"), again, _start(300, 2, 91, 300), _done(400, 2, 191))
    assert _totals(account) == {"kept": 190, "stopped": 210, "down": 1}
    assert account.incarnations[0].last_step == 91


def test_the_start_of_the_watchdog_is_part_of_the_time() -> None:
    asked, again = 1000.0 - 0.5, 1000.0 + 60.0
    stopped = [_death(20, 1, 11, "stopped"), _at(20, "stopped", step=11)]
    account = _account(
        _launch(0, asked_at=asked),
        [*_start(1, 1, 0, 10, "fresh"), _at(15, "checkpoint_durable", "checkpoint", step=11), *stopped],
        _launch(62, asked_at=again),
        _start(63, 2, 11, 65),
        _done(70, 2, 16),
    )
    assert account.start_s == asked
    assert _totals(account) == {"starting": 10.5 + 5, "kept": 15, "stopped": 40, "down": 1}


def test_a_state_further_than_the_last_reading_loses_nothing() -> None:
    first = [*_start(0, 1, 0, 0, "fresh"), _death(100, 1, 90)]
    account = _account(_launch(0), first, _start(100, 2, 95, 100), _done(200, 2, 195))
    assert account.lost_steps == 0
    assert _totals(account) == {"kept": 200, "down": 1}


def test_what_other_tasks_had_trained_while_there_was_no_chief_is_lost_with_their_server() -> None:
    first = [*_start(0, 1, 0, 0, "fresh"), _death(100, 1, 100)]
    second = _start(100, 2, 150, 100)
    second[-1]["lost_steps"] = 10  # the others had come to 160
    account = _account(_launch(0), first, second, _done(200, 2, 250))
    assert account.lost_steps == 10
    assert [one.lost_steps for one in account.incarnations] == [10, 0]


def test_what_a_run_that_gave_up_had_not_saved_is_not_kept() -> None:
    durable = _at(50, "checkpoint_durable", "checkpoint", step=51)
    account = _account(
        _launch(0), _start(0, 1, 0, 0, "fresh"), durable, _death(100, 1, 101), _at(100, "gave_up", why="five times")
    )
    assert account.outcome == "gave up"
    assert account.lost_steps == 50
    assert _totals(account) == {"kept": pytest.approx(50.0), "redone": pytest.approx(50.0)}


def test_a_run_that_goes_on_is_counted_up_to_now() -> None:
    account = _account(_launch(0), _start(0, 1, 0, 10, "fresh"), until_s=1040.0, step=31, is_running=True)
    assert account.outcome == "running"
    assert _totals(account) == {"starting": 10, "kept": 30}
    assert account.last_step == 31


def test_a_run_whose_watchdog_was_killed_ends_where_it_was_seen_last() -> None:
    account = _account(_launch(0), _start(0, 1, 0, 10, "fresh"), until_s=1040.0, step=31)
    assert account.outcome == "interrupted"
    assert account.wall_s == 40
    assert account.incarnations[0].end_s == 1040.0


def test_a_promoted_standby_is_one_start_not_two() -> None:
    entries = [*_start(0, 1, 0, 0, "fresh"), _death(10, 1, 11)]
    promoted = [_at(10, "promoted", incarnation=2, pid=9), *_start(10, 2, 11, 11)]
    spawned_first = [*_start(10, 2, 11, 11), _at(11, "promoted", incarnation=2, pid=9)]
    for order in (promoted, spawned_first):
        account = _account(_launch(0), entries, order, _done(21, 2, 21))
        assert [(one.number, one.is_promoted) for one in account.incarnations] == [(1, False), (2, True)]


def test_the_end_of_a_standby_is_not_that_of_the_trainer_with_the_same_number() -> None:
    standby = {**_death(100, 1, -1, "stopped"), "role": "standby"}
    account = _account(_launch(0), _start(1, 1, 0, 11, "fresh"), standby, _done(111, 1, 101))
    assert (account.incarnations[0].cause, account.last_step) == ("completed", 101)
    assert _totals(account) == {"starting": 11, "kept": 100, "down": 1}


def test_of_several_tasks_the_time_is_that_of_the_one_whose_state_is_saved() -> None:
    chief = [{**entry, "role": "chief"} for entry in _start(1, 1, 0, 11, "fresh")]
    worker = [{**entry, "role": "worker.0"} for entry in (*_start(2, 1, 0, 12), _death(50, 1, 40))]
    done = [{**entry, "role": "chief"} for entry in _done(111, 1, 101)]
    account = _account(
        _launch(0, tasks=["chief", "worker.0"]), sorted([*chief, *worker], key=lambda e: e["time"]), done
    )
    assert _totals(account) == {"starting": 11, "kept": 100, "down": 1}


def test_a_clock_set_back_an_hour_makes_no_negative_time() -> None:
    entries = [_launch(0), *_start(0, 1, 0, 10, "fresh")]
    later = [_death(50 - 3600, 1, 101), *_start(51 - 3600, 2, 101, 61 - 3600), *_done(161 - 3600, 2, 201)]
    account = _account(entries, later)
    assert all(span.seconds >= 0 for span in account.spans)
    assert _totals(account) == {"starting": 20, "kept": 100, "down": 2}


def test_a_lost_session_of_a_trainer_that_goes_on_is_time_down_and_its_lost_steps_are_counted_once() -> None:
    recovered: Entry = {"step": 80, "source": "checkpoint", "from": "", "at": 81, "seconds": 4.0, "lost_steps": 20}
    account = _account(
        _launch(0),
        _start(1, 1, 0, 11, "fresh"),  # ready at step 1
        _at(110, "session_lost", step=100, error="UnavailableError: gone"),
        _at(114, "session_recovered", **recovered),
        _death(214, 1, 181),
        _start(214, 2, 171, 216),
        _done(306, 2, 262),
    )
    assert _totals(account) == {"starting": 13, "kept": 259, "redone": 30, "down": 5}
    assert account.lost_sessions == 1
    assert (account.lost_steps, [one.lost_steps for one in account.incarnations]) == (30, [30, 0])
    assert account.incarnations[0].recovery_seconds == 10, "that of its start"
    assert [remark.event for remark in account.remarks].count("session_lost") == 1


def test_the_time_in_which_a_trainer_was_stopped_by_a_signal_is_no_training() -> None:
    account = _account(
        _launch(0), _start(1, 1, 0, 11, "fresh"), _at(71, "frozen", seconds=20, step=41), _done(131, 1, 101)
    )
    assert _totals(account) == {"starting": 11, "kept": 100, "stalled": 20, "down": 1}
    assert [(span.kind, span.incarnation) for span in account.spans if span.kind == "stalled"] == [("stalled", 1)]

    early = _account(_launch(0), _start(1, 1, 0, 11, "fresh"), _at(12, "frozen", seconds=5, step=1), _done(32, 1, 21))
    assert _totals(early) == {"starting": 11, "kept": 20, "stalled": 1, "down": 1}, "what was before is what it was"


def test_the_time_in_which_an_observed_program_hung_is_no_training() -> None:
    hang = (_at(71, "hang_detected", seconds=20, step=41), _at(91, "hang_over", seconds=40, step=42))
    account = _account(_launch(0), _start(1, 1, 0, 11, "fresh"), *hang, _done(131, 1, 82))

    assert _totals(account) == {"starting": 11, "kept": 80, "stalled": 40, "down": 1}


def test_an_empty_journal_has_no_account() -> None:
    assert take_account([]) is None


def test_a_task_that_is_given_up_ends_nothing_but_its_own_time_and_the_next_launch_tries_it_again() -> None:
    tasks = ("trainer", "worker.0", "worker.1")
    begun = [_at(1, "spawned", "worker.1", pid=7), _at(11, "ready", "worker.1", step=1)]
    exited = _death(21, 1, 30, "exit-code") | {"role": "worker.1"}
    journal = [
        *(_launch(0, tasks=tasks), *_start(1, 1, 0, 11, "fresh"), *begun, exited),
        *(_at(22, "task_given_up", "worker.1", why="five times", workers=1), *_done(111, 1, 101)),
    ]
    journal.sort(key=lambda entry: entry["time"])
    account = _account(journal)
    assert account.outcome == "completed"
    assert account.without == {"worker.1": "five times"}
    assert _totals(account) == {"starting": 11, "kept": 100, "down": 1}
    other = take_accounts(journal)[1]["worker.1"]
    assert _totals(other) == {"starting": 11, "kept": 10, "down": 91}, "the others ended at 112"

    again = _account(journal, _launch(200, tasks=tasks), until_s=1201.0)
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
    """Any order of events, any jumps of the clock: each second is counted once, none twice."""
    now, journal = 0.0, []
    for (event, role), delta, incarnation, step in entries:
        now += delta
        journal.append(
            _at(
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
    account = _account(journal, until_s=1000.0 + now + 5, step=50, is_running=is_running)
    assert set(account.totals) == set(KINDS)
    assert sum(account.totals.values()) == pytest.approx(account.wall_s, abs=1e-6)
    assert all(span.seconds >= 0 for span in account.spans)
    ordered = sorted(account.spans, key=lambda span: (span.start_s, span.end_s))
    assert all(a.end_s <= b.start_s + 1e-9 for a, b in itertools.pairwise(ordered))
    assert 0.0 <= account.goodput <= 1.0


# -- several tasks -------------------------------------------------------------------------------------------------
TASKS = ("chief", "worker.0", "ps.0", "evaluator.0")


def _of(task: str, *entries: Entry | list[Entry]) -> list[Entry]:
    flat = [one for entry in entries for one in (entry if isinstance(entry, list) else [entry])]
    return [entry | ({"role": task} if entry["role"] == "trainer" else {}) for entry in flat]


def _group() -> list[Entry]:
    """A worker is killed, later a server, whose loss costs each a session; the worker ends before the chief."""
    lost = [
        _at(60, "session_lost", error="Unavailable", step=61),
        _at(64, "session_recovered", step=51, at=52, lost_steps=10),
    ]
    entries = [
        *_of("ps.0", _at(1, "spawned", pid=4), _death(60, 1, -1), _at(61, "spawned", incarnation=2, pid=5)),
        *_of("chief", _start(1, 1, 0, 10, "fresh"), lost, _death(100, 1, 101, "completed")),
        *_of("worker.0", _start(1, 1, 0, 10, "chief"), _death(20, 1, 11), _start(21, 2, 15, 25, "chief")),
        *_of("worker.0", [entry | {"incarnation": 2} for entry in lost], _death(90, 2, 91, "stopped")),
        *_of("evaluator.0", _at(2, "spawned", pid=6), _death(95, 1, -1, "completed")),
        *_of("ps.0", _death(101, 2, -1, "stopped")),
    ]
    ended = _at(102, "run_completed", "chief", step=101, goodput=0.9)
    return [_launch(0, tasks=TASKS), *sorted(entries, key=lambda entry: entry["time"]), ended]


def test_each_task_has_an_account_of_its_own_and_the_runs_is_that_of_the_chief() -> None:
    account, tasks = take_accounts(_group())
    assert account is not None
    assert tuple(tasks) == TASKS
    assert _totals(account) == {"starting": 10, "kept": 77.666667, "redone": 8.333333, "down": 6}
    assert _totals(tasks["chief"]) | {"down": 4, "stopped": 2} == _totals(tasks["chief"])
    assert (account.failures, tasks["chief"].failures, tasks["ps.0"].failures) == (2, 0, 1), "of all its tasks"
    worker = tasks["worker.0"]
    assert (worker.failures, [one.source for one in worker.incarnations]) == (1, ["chief", "chief"])
    assert _totals(worker) | {"starting": 14, "down": 5, "stopped": 12} == _totals(worker)
    assert _totals(tasks["ps.0"]) == {"starting": 1, "kept": 99, "down": 1, "stopped": 1}
    assert _totals(tasks["evaluator.0"]) == {"starting": 2, "kept": 93, "stopped": 7}


def test_the_seconds_of_every_task_add_up_to_those_of_the_run() -> None:
    account, tasks = take_accounts(_group())
    assert account is not None
    for one in tasks.values():
        assert sum(one.totals.values()) == pytest.approx(account.wall_s)
    lost_s, ran_s = lost_share(tasks)
    trained = [tasks["chief"], tasks["worker.0"]]
    assert ran_s == pytest.approx(sum(one.wall_s - one.totals["stopped"] for one in trained))
    assert lost_s == pytest.approx(ran_s - sum(one.totals["kept"] for one in trained))


def test_a_task_that_a_later_launch_has_not_is_stopped_in_it_and_a_run_of_one_task_has_none() -> None:
    later = [_launch(200, tasks=("chief",)), *_of("chief", _start(200, 2, 101, 201)), _at(250, "stopped", step=150)]
    _, tasks = take_accounts([*_group(), *later])
    assert _totals(tasks["evaluator.0"]) == {"starting": 2, "kept": 93, "stopped": 155}
    assert take_accounts([_launch(0), *_start(0, 1, 0, 10), *_done(20, 1, 11)])[1] == {}


def test_a_task_that_has_outlived_its_coordinator_has_trained_all_the_time_in_one_attempt() -> None:
    entries = [
        _launch(0, tasks=("chief", "worker.0")),
        *_of("chief", _start(1, 1, 0, 10, "fresh")),
        *_of("worker.0", _start(1, 1, 0, 10, "chief")),
        _launch(60, tasks=("chief", "worker.0")) | {"seen_until": 1050.0},  # its machine was lost
        *_of("worker.0", [_at(60, "adopted", pid=7, host="n2")]),
        *_of("chief", _start(61, 2, 90, 70, "alive")),
        _at(100, "run_completed", "chief", step=120),
    ]
    account, tasks = take_accounts(sorted(entries, key=lambda entry: entry["time"]))
    assert account is not None
    worker = tasks["worker.0"]
    assert len(worker.incarnations) == 1
    assert _totals(worker) == {"starting": 10, "kept": 90}
    assert _totals(account)["stopped"] == 10, "of the chief's time, which is the run's"
    assert (account.failures, worker.failures, account.lost_steps) == (0, 0, 0)


def test_what_outlives_several_coordinators_goes_on_as_it_was_whether_it_served_trained_or_had_not_begun() -> None:
    tasks = ("chief", "worker.0", "worker.1", "ps.0")
    entries = [
        _launch(0, tasks=tasks),
        *_of("ps.0", [_at(1, "spawned", pid=8)]),
        *_of("worker.0", _start(1, 1, 0, 10, "chief")),
        *_of("worker.1", [_at(5, "spawned", pid=9)]),
        _launch(60, tasks=tasks) | {"seen_until": 1050.0},  # it is lost before it has said whom it adopts
        _launch(80, tasks=tasks) | {"seen_until": 1070.0},
        *(line for task in tasks[1:] for line in _of(task, [_at(80, "adopted", pid=7, host="n2")])),
        *_of("worker.0", [_death(90, 1, 95)]),
        *_of("worker.0", _start(92, 2, 95, 95, "chief")),
        _at(100, "run_completed", "chief", step=120),
    ]
    account, of = take_accounts(sorted(entries, key=lambda entry: entry["time"]))
    assert account is not None
    assert _totals(of["ps.0"]) == {"starting": 1, "kept": 99}
    assert _totals(of["worker.0"]) == {"starting": 13, "kept": 85, "down": 2}
    assert _totals(of["worker.1"]) == {"starting": 100}
    assert [one.ended_with_watchdog for one in of["worker.0"].incarnations] == [False, True]
    for one in of.values():
        assert sum(one.totals.values()) == pytest.approx(account.wall_s)


def test_a_task_that_was_not_adopted_has_not_outlived_its_coordinator() -> None:
    tasks = ("chief", "worker.0")
    entries = [
        _launch(0, tasks=tasks),
        *_of("worker.0", _start(1, 1, 0, 10, "chief")),
        _launch(60, tasks=tasks) | {"seen_until": 1050.0},
        *_of("worker.0", _start(61, 2, 41, 70, "chief")),
        _at(100, "run_completed", "chief", step=120),
    ]
    _, of = take_accounts(entries)
    assert _totals(of["worker.0"]) == {"starting": 20, "kept": 70, "stopped": 10}


def test_a_task_that_ended_for_the_loss_of_another_has_not_failed() -> None:
    ends = [_death(20, 1, 11, "lost-peer"), _death(20, 1, 11)]
    entries = [
        _of(task, _start(1, 1, 0, 10, "fresh"), end) for task, end in zip(("chief", "worker.0"), ends, strict=True)
    ]
    again = [_of(task, _start(21, 2, 11, 25)) for task in ("chief", "worker.0")]
    flat = sorted((entry for one in (*entries, *again) for entry in one), key=lambda entry: entry["time"])
    account, tasks = take_accounts([_launch(0, tasks=("chief", "worker.0")), *flat, _at(40, "stopped", step=30)])
    assert account is not None
    assert (account.failures, tasks["chief"].failures, tasks["worker.0"].failures) == (1, 0, 1)
