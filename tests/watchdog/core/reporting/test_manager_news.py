"""A service manager is notified of readiness, progress, liveness and the end, at the right times."""

from __future__ import annotations

from typing import Any

import msgspec

from procsv.watchdog.core.reporting.manager_news import STATUS_S, ManagerNews, Standing

IMPORTING = Standing(
    state="importing",
    step=-1,
    durable_step=-1,
    restarts=0,
    save_error=None,
    ground_error=None,
    protected=None,
    exit_code=None,
)


def standing(**changes: Any) -> Standing:
    return msgspec.structs.replace(IMPORTING, **changes)


def test_ready_is_sent_once_at_the_first_step_and_not_after_a_restart() -> None:
    news = ManagerNews(None)
    assert news.lines(standing(), 0.0) == ["STATUS=importing"]
    assert news.lines(standing(state="running", step=1), 1.0) == ["READY=1", "STATUS=running at step 1"]
    assert news.lines(standing(state="backoff", step=9, restarts=1), 2.0) == ["STATUS=backoff at step 9, 1 restart"]
    assert news.lines(standing(state="running", step=9, restarts=1), 3.0) == ["STATUS=running at step 9, 1 restart"]


def test_a_program_without_a_session_and_one_that_succeeded_before_its_first_step_are_ready_as_well() -> None:
    assert "READY=1" in ManagerNews(None).lines(standing(protected=False), 60.0)
    assert ManagerNews(None).lines(standing(state="done", exit_code=0), 1.0)[:2] == ["READY=1", "STOPPING=1"]
    assert "READY=1" not in ManagerNews(None).lines(standing(state="failed", exit_code=70), 1.0)


def test_the_step_is_sent_every_few_seconds_and_only_if_it_has_changed() -> None:
    news = ManagerNews(None)
    news.lines(standing(state="running", step=1), 0.0)
    assert news.lines(standing(state="running", step=2), STATUS_S - 0.1) == []
    moved = standing(state="running", step=3, durable_step=2)
    assert news.lines(moved, STATUS_S) == ["STATUS=running at step 3, step 2 on disk"]
    assert news.lines(moved, 3 * STATUS_S) == []


def test_a_keepalive_is_sent_well_within_the_managers_limit_and_only_if_it_asks_for_one() -> None:
    news, told = ManagerNews(6.0), []
    for second in range(13):
        told += [second for line in news.lines(standing(), float(second)) if line == "WATCHDOG=1"]
    assert told == [0, 2, 4, 6, 8, 10, 12]
    assert all("WATCHDOG=1" not in ManagerNews(None).lines(standing(), now_s) for now_s in (0.0, 1e6))


def test_trouble_is_part_of_the_one_line_status_and_the_end_is_sent_once() -> None:
    news = ManagerNews(None)
    assert news.lines(standing(save_error="disk\nfull \x1b"), 0.0) == ["STATUS=importing, not saved: disk full \\x1b"]
    assert "STOPPING=1" in news.lines(standing(exit_code=75), 1.0)
    assert "STOPPING=1" not in news.lines(standing(exit_code=75), 2.0)


def test_step_0_is_a_step() -> None:
    assert ManagerNews(None).lines(standing(step=0, durable_step=0), 0.0) == [
        "STATUS=importing at step 0, step 0 on disk"
    ]


def test_a_change_of_state_is_sent_at_once_and_a_status_at_most_every_five_seconds() -> None:
    news = ManagerNews(None)
    assert news.lines(standing(step=1), 100.0) == ["STATUS=importing at step 1"]
    assert news.lines(standing(step=2), 104.9) == []
    assert news.lines(standing(state="stopping", step=2), 104.9) == ["STATUS=stopping at step 2"]
    assert news.lines(standing(state="stopping", step=3), 109.8) == []
    assert news.lines(standing(state="stopping", step=3), 109.9) == ["STATUS=stopping at step 3"]
