"""The status line shows the most important parts first and fits its terminal."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from procsv.base.outcome import FitPlace, Loss
from procsv.base.run.run_file import RunFile
from procsv.watchdog.core.reporting.status_line import RATE_S, LineFacts, StatusLine, render
from tests.support.naming import Naming

RUN = RunFile(
    run="r", target="t", logdir="/l", run_dir="/r", shm_dir="/s", pid=1, started=0.0, boot="", state="running",
    incarnation=1, started_at=0.0,
)  # fmt: skip
FACTS = LineFacts(
    "running", 60.0, 3812, 10_000, 124.2, 3800, 12.0, restarts=2, goodput=0.981,
)  # fmt: skip
WAITING = render(replace(FACTS, state="backoff"), 36).removeprefix("▸ ").partition(",")[0]


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (160, "▸ step 3,812 of 10,000 (38%) · 124/s · 50 s left · saved at 3,800, 12 s ago · 2 restarts · goodput 98%"),
        (90, "▸ step 3,812 of 10,000 (38%) · 124/s · 50 s left · saved at 3,800, 12 s ago · 2 restarts"),
        (80, "▸ step 3,812 of 10,000 (38%) · 124/s · 50 s left · saved at 3,800, 12 s ago"),
        (60, "▸ step 3,812 of 10,000 (38%) · 124/s · 50 s left"),
        (30, "▸ step 3,812 of 10,000 (38%)"),
        (12, "▸ step 3,81…"),
    ],
)
def test_the_least_important_parts_are_dropped_first(width: int, line: str) -> None:
    assert render(FACTS, width) == line
    assert len(line) <= width


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (90, "▸ step 3,812 of 10,000 (38%) · loss 0.5312 at 3,800 · 124/s · 50 s left · 2 restarts"),
        (72, "▸ step 3,812 of 10,000 (38%) · loss 0.5312 at 3,800 · 124/s · 50 s left"),
        (70, "▸ step 3,812 of 10,000 (38%) · 124/s · 50 s left"),
    ],
)
def test_a_loss_has_its_name_and_step_and_is_dropped_before_the_time_left(width: int, line: str) -> None:
    facts = replace(FACTS, loss=Loss("loss", 3800, 0.53124), durable_step=-1, goodput=0.0)
    assert render(facts, width) == line
    assert "loss" not in render(replace(facts, state="restoring"), 200)
    long = render(replace(facts, loss=Loss("l" * 300, 3800, 1e9)), 200)
    assert "l 1e+09 at 3,800 · " in long
    assert len(long) < 120


def test_a_part_is_dropped_only_if_it_does_not_fit() -> None:
    for line in {render(FACTS, width) for width in range(40, 161)}:
        assert render(FACTS, len(line)) == line
        assert len(render(FACTS, len(line) - 1)) < len(line)


@pytest.mark.parametrize(
    ("facts", "two", "left"),
    [
        (
            replace(FACTS, state="backoff"),
            f"{WAITING}, 1 min 0 s · step 3,812 of 10,000 (38%)",
            f"{WAITING}, 1 min 0 s",
        ),
        (
            replace(FACTS, trouble="not saved"),
            "step 3,812 of 10,000 (38%) · not saved",
            "step 3,812 of 10,000 (38%)",
        ),
        (
            replace(FACTS, steps_total=-1, fit=FitPlace(1, 3, 50, 7, 20)),
            "step 3,812 (epoch 3 of 50, batch 7 of 20) · 124/s",
            "step 3,812 (epoch 3 of 50, batch 7 of 20)",
        ),
        (replace(FACTS, step=-1, trouble="not saved"), "124/s · not saved", "not saved"),
        (replace(FACTS, step=-1, steps_per_s=60.0, steps_total=599), "60/s · 10 s left", "60/s"),
        (
            replace(FACTS, step=-1, steps_per_s=None),
            "saved at 3,800, 12 s ago · 2 restarts",
            "saved at 3,800, 12 s ago",
        ),
        (replace(FACTS, step=-1, steps_per_s=None, durable_step=-1), "2 restarts · goodput 98%", "2 restarts"),
    ],
)
def test_the_less_important_of_two_parts_is_dropped(facts: LineFacts, two: str, left: str) -> None:
    assert render(facts, len(two) + 2) == f"▸ {two}"
    assert render(facts, len(two) + 1) == f"▸ {left}"


@pytest.mark.parametrize(
    ("step", "total", "text"),
    [
        (-1, 10, "goodput 98%"),
        (0, -1, "step 0"),
        (0, 0, "step 0"),
        (0, 10, "step 0 of 10 (0%)"),
        (1, 1, "step 1 of 1 (100%)"),
        (20, 10, "step 20 of 10 (100%)"),
    ],
)
def test_a_step_is_shown_from_0_on_and_with_its_share_of_a_known_total(step: int, total: int, text: str) -> None:
    facts = LineFacts("running", 1.0, step, total, goodput=0.98)
    assert render(facts, 80) == "▸ " + (text if step < 0 else f"{text} · goodput 98%")


@pytest.mark.parametrize(
    ("steps_per_s", "text"),
    [
        (0.09, "11 s a step"),
        (0.1, "0.1/s"),
        (0.5, "0.5/s"),
        (99.4, "99.4/s"),
        (100.0, "100/s"),
        (1234.4, "1,234/s"),
        (0.0, ""),
    ],
)
def test_a_rate_has_three_digits_and_below_a_tenth_it_is_the_time_of_a_step(steps_per_s: float, text: str) -> None:
    facts = LineFacts("running", 1.0, 7, steps_per_s=steps_per_s)
    assert render(facts, 80) == " · ".join(["▸ step 7", *([text] if text else []), "goodput 0%"])


@pytest.mark.parametrize(("step", "text"), [(9, "1 s left · "), (0, "10 s left · "), (10, ""), (11, "")])
def test_the_rest_is_shown_until_the_last_step(step: int, text: str) -> None:
    line = render(LineFacts("running", 1.0, step, 10, steps_per_s=1.0), 80)
    assert line.endswith(f" · 1/s · {text}goodput 0%" if text else "(100%) · goodput 0%")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (9.4, "9 s"), (9.96, "10 s"), (10.0, "10 s"), (10.4, "10 s"), (60.0, "1 min 0 s")],
)
def test_an_age_is_shown_in_whole_seconds(seconds: float, text: str) -> None:
    assert render(LineFacts("done", seconds), 80) == f"▸ done, {text}"
    assert (
        render(LineFacts("done", 1.0, durable_step=0, durable_s=seconds), 80) == f"▸ done, 1 s · saved at 0, {text} ago"
    )


def test_unknown_parts_are_left_out() -> None:
    assert render(LineFacts("running", 1.0, 5), 80) == "▸ step 5 · goodput 0%"
    assert (
        render(replace(FACTS, steps_total=-1, steps_per_s=0.02), 60)
        == "▸ step 3,812 · 50 s a step · saved at 3,800, 12 s ago"
    )
    assert render(LineFacts("importing", 12.0), 80) == "▸ importing, 12 s"
    assert render(LineFacts("connected", 70.0), 80) == Naming("▸ running", " 1 min 10 s")
    assert render(LineFacts("backoff", 1.0, 7, next_start_s=3.2), 80) == "▸ starting again in 3 s · step 7"
    assert render(LineFacts("backoff", 1.0, 7, next_start_s=0.0), 80) == "▸ starting again · step 7"
    assert "not saved" in render(replace(FACTS, trouble="not saved"), 50), "trouble is not what gives way"


def test_the_rate_covers_the_last_half_minute_of_this_attempt() -> None:
    line, facts = StatusLine(), FACTS
    for second in range(100):
        facts = line.read_facts(
            replace(RUN, step=second * 10 if second < 50 else 500 + (second - 50) * 2), float(second)
        )
    assert facts.steps_per_s == pytest.approx(2.0)
    assert line.read_facts(replace(RUN, step=600, incarnation=2), 100.0).steps_per_s is None
    assert line.read_facts(replace(RUN, step=605, incarnation=2), 101.0).steps_per_s == pytest.approx(5.0)
    assert line.read_facts(replace(RUN, step=605, state="stopping"), 102.0).steps_per_s is None
    assert RATE_S == 30.0


def test_a_checkpoints_age_counts_from_when_it_became_durable_in_this_launch() -> None:
    line = StatusLine()
    assert line.read_facts(replace(RUN, durable_step=10), 5.0).durable_s is None, "an earlier launch has left it"
    assert line.read_facts(replace(RUN, durable_step=20), 6.0).durable_s == 0.0
    assert line.read_facts(replace(RUN, durable_step=20), 9.0).durable_s == 3.0


def test_a_states_age_counts_from_when_it_was_first_seen() -> None:
    line, starting = StatusLine(), replace(RUN, state="importing")
    assert [line.read_facts(starting, now_s).state_s for now_s in (5.0, 8.0)] == [0.0, 3.0]
    assert [line.read_facts(RUN, now_s).state_s for now_s in (9.0, 19.0)] == [0.0, 10.0]


def test_a_step_30_seconds_ago_counts_for_the_rate_and_an_older_one_does_not() -> None:
    line = StatusLine()
    line.read_facts(replace(RUN, step=0), 0.0)
    assert line.read_facts(replace(RUN, step=60), 30.0).steps_per_s == 2.0
    assert line.read_facts(replace(RUN, step=90), 30.5).steps_per_s == 60.0


def test_a_single_instant_or_falling_steps_have_no_rate() -> None:
    line = StatusLine()
    assert line.read_facts(replace(RUN, step=10), 5.0).steps_per_s is None
    assert line.read_facts(replace(RUN, step=20), 5.0).steps_per_s is None
    assert line.read_facts(replace(RUN, step=9), 6.0).steps_per_s is None


@pytest.mark.parametrize(
    ("save_error", "protected", "trouble"),
    [
        (None, None, ""),
        (None, True, ""),
        (None, False, "nothing is saved"),
        ("disk full", True, "not saved"),
        ("disk full", False, "not saved"),
    ],
)
def test_trouble_is_a_failing_save_or_an_unprotected_program(
    save_error: str | None, protected: bool | None, trouble: str
) -> None:
    run = replace(RUN, save_error=save_error, protected=protected)
    assert StatusLine().read_facts(run, 1.0).trouble == trouble


@pytest.mark.parametrize(
    ("fit", "text"),
    [
        (FitPlace(1, 3, 50, 7, 20), " · 7 min 56 s left"),
        (FitPlace(1, 3, 50, 7, 0), ""),
        (FitPlace(1, 2, 2, 20, 20), ""),
    ],
)
def test_the_rest_of_a_fit_follows_from_its_epochs(fit: FitPlace, text: str) -> None:
    line = render(LineFacts("running", 1.0, 47, steps_per_s=2.0, fit=fit), 120)
    assert f"{text} · goodput" in line
    assert ("left" in line) == bool(text)
    assert ("2/s" in line) == (fit.epoch < fit.epochs)
