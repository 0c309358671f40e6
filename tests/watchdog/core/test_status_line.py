"""The status line says the most important things first, and fits."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from procsv.base.run.run_file import RunFile
from procsv.watchdog.core.status_line import RATE_S, LineFacts, StatusLine, render

RUN = RunFile(
    run="r", target="t", logdir="/l", run_dir="/r", shm_dir="/s", pid=1, started=0.0, boot="", state="running",
    incarnation=1, started_at=0.0,
)  # fmt: skip
FACTS = LineFacts(
    "running", 60.0, 3812, 10_000, 124.2, 3800, 12.0, restarts=2, goodput=0.981,
)  # fmt: skip


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (160, "▸ step 3,812 of 10,000 (38%) · 124/s · 50 s left · saved 3,800 12 s ago · 2 restarts · goodput 98%"),
        (90, "▸ step 3,812 of 10,000 (38%) · 124/s · 50 s left · saved 3,800 12 s ago · 2 restarts"),
        (80, "▸ step 3,812 of 10,000 (38%) · 124/s · 50 s left · saved 3,800 12 s ago"),
        (60, "▸ step 3,812 of 10,000 (38%) · 124/s · 50 s left"),
        (30, "▸ step 3,812 of 10,000 (38%)"),
        (12, "▸ step 3,81…"),
    ],
)
def test_the_least_important_parts_give_way_first(width: int, line: str) -> None:
    assert render(FACTS, width) == line
    assert len(line) <= width


def test_what_nobody_has_told_is_left_out() -> None:
    assert render(LineFacts("running", 1.0, 5), 80) == "▸ step 5 · goodput 0%"
    assert (
        render(replace(FACTS, steps_total=-1, steps_per_s=0.02), 60)
        == "▸ step 3,812 · 50 s a step · saved 3,800 12 s ago"
    )
    assert render(LineFacts("importing", 12.0), 80) == "▸ importing, 12 s"
    assert render(LineFacts("connected", 70.0), 80) == "▸ no session yet, 1 min 10 s"
    assert render(LineFacts("backoff", 1.0, 7, next_start_s=3.2), 80) == "▸ starting again in 3 s · step 7"
    assert "not saved" in render(replace(FACTS, trouble="not saved"), 50), "trouble is not what gives way"


def test_the_rate_is_that_of_the_last_half_minute_of_this_attempt() -> None:
    line, facts = StatusLine(), FACTS
    for second in range(100):
        facts = line.look(replace(RUN, step=second * 10 if second < 50 else 500 + (second - 50) * 2), float(second))
    assert facts.steps_per_s == pytest.approx(2.0)
    assert line.look(replace(RUN, step=600, incarnation=2), 100.0).steps_per_s is None
    assert line.look(replace(RUN, step=605, incarnation=2), 101.0).steps_per_s == pytest.approx(5.0)
    assert line.look(replace(RUN, step=605, state="stopping"), 102.0).steps_per_s is None
    assert RATE_S == 30.0


def test_a_checkpoint_is_as_old_as_it_was_seen_to_become_durable_in_this_launch() -> None:
    line = StatusLine()
    assert line.look(replace(RUN, durable_step=10), 5.0).durable_s is None, "an earlier launch has left it"
    assert line.look(replace(RUN, durable_step=20), 6.0).durable_s == 0.0
    assert line.look(replace(RUN, durable_step=20), 9.0).durable_s == 3.0
