"""The figures that scripts/bench prints follow from the times that it measures."""

from __future__ import annotations

import os
from pathlib import Path
from xml.etree import ElementTree

import pytest

from scripts.benchmarks.chart import draw
from scripts.benchmarks.figures import Bar, Chart, Column, Figure, Table, in_words, text_of
from scripts.benchmarks.marks import Marks
from scripts.benchmarks.windows import feel, merge

STEP_S = 0.1


def steps_of(*lengths_s: float) -> list[tuple[float, float]]:
    """Make consecutive steps from time 0 on."""
    steps, at_s = [], 0.0
    for length_s in lengths_s:
        steps.append((at_s, at_s + length_s))
        at_s += length_s
    return steps


def test_touching_spans_make_one_window() -> None:
    assert merge([(5.0, 6.0), (1.0, 2.0), (2.0, 3.0), (1.5, 1.7)]) == [(1.0, 3.0), (5.0, 6.0)]


def test_a_long_step_at_a_checkpoint_is_its_stall() -> None:
    steps = steps_of(*[STEP_S] * 10, 0.6, *[STEP_S] * 10)
    felt = feel(steps, [(1.05, 1.5)])
    assert felt.step_s == pytest.approx(STEP_S)
    assert felt.stalls_s == pytest.approx((0.5,))
    assert felt.lost_s == pytest.approx((0.5,))
    assert felt.jitter_s == pytest.approx(0.0, abs=1e-9)


def test_delays_that_many_steps_owe_to_one_checkpoint_add_up() -> None:
    steps = steps_of(*[STEP_S] * 10, 0.2, 0.2, 0.2, *[STEP_S] * 10)
    felt = feel(steps, [(1.01, 1.59)])
    assert felt.stalls_s == pytest.approx((0.1,))
    assert felt.lost_s == pytest.approx((0.3,))
    assert felt.slowdown == pytest.approx(0.3 / 2.6)


def test_a_long_step_without_a_checkpoint_is_jitter() -> None:
    felt = feel(steps_of(*[STEP_S] * 10, 0.4, *[STEP_S] * 10), [(0.21, 0.22)])
    assert felt.jitter_s == pytest.approx(0.3)
    assert felt.stalls_s == pytest.approx((0.0,), abs=1e-9)


def test_no_other_steps_means_no_statement_about_them() -> None:
    felt = feel(steps_of(*[STEP_S] * 20), [(0.0, 2.0)])
    assert felt.jitter_s is None
    assert felt.slowdown is None


def test_a_checkpoint_after_the_last_step_delays_nothing() -> None:
    assert feel(steps_of(*[STEP_S] * 20), [(7.0, 8.0)]).stalls_s == ()


def test_a_figure_is_a_median_and_its_spread() -> None:
    assert Figure.of([3.0, 1.0, 8.0]) == Figure(3.0, 1.0, 8.0, 3)
    assert Figure.of([]) is None
    assert text_of(Figure.of([3.0, 1.0, 8.0]), Column("ms", "stall", "ms")) == "3.0 (1.0 .. 8.0)"
    assert text_of(Figure.of([3.0]), Column("ms", "stall", "ms", 0)) == "3"
    columns = (Column("arm", "supervisor"), Column("ms", "longest\nstall", "ms"), Column("steps", "steps kept", "", 0))
    row = {"arm": "procsv", "ms": Figure.of([3.0]), "steps": None}
    assert in_words(row, columns) == "procsv, longest stall 3.0 ms"


def test_a_target_is_met_at_its_limit() -> None:
    assert Bar.at_most("stall", 2.0, 2.0, "ms").met
    assert not Bar.at_most("stall", 2.0, 2.1, "ms").met
    assert Bar.at_least("share", 0.98, 0.98, "").met
    assert not Bar.at_least("share", 0.98, 0.97, "").met


def test_marks_that_arrive_in_pieces_are_read_whole(tmp_path: Path) -> None:
    with Marks(tmp_path / "marks") as marks:
        writer = os.open(marks.path, os.O_WRONLY)
        os.write(writer, b"7 1 10.5\n7 2 1")
        assert marks.wait_for(lambda mark: mark.step == 1, 10.0) is not None
        os.write(writer, b"1.5\n8 2 12.5\n")
        found = marks.wait_for_another(7, 10.0)
        os.close(writer)
        assert found is not None
        assert (found.pid, found.step, found.time_s) == (8, 2, 12.5)
        assert [mark.time_s for mark in marks.of(7)] == [10.5, 11.5]


def test_a_charts_bars_are_as_long_as_the_medians() -> None:
    table = Table("goodput", "Goodput", (), chart=Chart("Kept <%>", ("every", "arm"), "goodput", 1))
    for arm, percent in (("procsv", 90.0), ("shell loop", 45.0)):
        table.rows.append({"every": Figure.of([30.0]), "arm": arm, "goodput": Figure.of([percent])})
    table.rows.append({"every": Figure.of([30.0]), "arm": "not measured", "goodput": None})
    drawn = ElementTree.fromstring(draw(table))
    bars = drawn.findall("{*}rect")[1:]
    assert [int(bar.get("width", "")) for bar in bars] == [430, 215]
    texts = [text.text for text in drawn.findall("{*}text")]
    assert texts == ["Kept <%>", "30 s, procsv", "90.0", "30 s, shell loop", "45.0"]
