"""The report page's curves combine the event files of several attempts and mark what happened."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary

from procsv.base.identity import CHECKPOINT, TRAINER, WATCHDOG
from procsv.base.journal.file import Journal
from procsv.base.system.system_clock import SystemClock
from procsv.report import curves
from procsv.report.account import Account
from procsv.report.curves import POINTS_MAX, Curve, CurveMark, find_marks, read_curves, thin
from procsv.report.drawing import draw_curve
from procsv.report.event_files import Scalar
from procsv.report.page import make_page
from procsv.report.reading import read_story
from procsv.services.summary.event_file import frame, version_event
from tests.support.fake_clock import FakeClock
from tests.support.journal import append
from tests.support.launched import NEWS_S_MAX, environment, procsv

HOSTILE = "</title><script>alert(1)</script>"


def write_events(path: Path, *points: tuple[str, int, float, float]) -> None:
    """Write `points`, each with tag, step, Unix time and value."""
    path.parent.mkdir(parents=True, exist_ok=True)
    events = [
        Event(wall_time=at_s, step=step, summary=Summary(value=[Summary.Value(tag=tag, simple_value=value)]))
        for tag, step, at_s, value in points
    ]
    path.write_bytes(frame(version_event(1.0)) + b"".join(frame(event.SerializeToString()) for event in events))


@pytest.fixture
def logdir(tmp_path: Path) -> Path:
    """Make a run of 100 s that was killed at step 6, resumed from step 4, was preempted, and completed."""
    clock = FakeClock()
    journal = Journal(tmp_path / "procsv" / "journal.jsonl", clock)
    began_s = clock.wall()
    append(
        journal,
        "run_started",
        WATCHDOG,
        1,
        machine="h: 2 processors",
        versions={"python": "3"},
        options={"x_y": HOSTILE},
    )
    append(journal, "spawned", TRAINER, 1)
    append(journal, "ready", TRAINER, 1, step=1)
    append(journal, "recovered", TRAINER, 1, step=0, source="fresh", seconds=1.0, **{"from": ""})
    clock.advance(40.0)
    append(journal, "checkpoint_durable", CHECKPOINT, 1, step=4, path="model.ckpt-4", reason="periodic")
    append(journal, "exited", TRAINER, 1, code=None, signal="SIGKILL", cause="killed", evidence=HOSTILE, step=6)
    append(journal, "restarting", TRAINER, 1, delay=0.0, lost_steps=2)
    append(journal, "spawned", TRAINER, 2)
    append(journal, "ready", TRAINER, 2, step=5)
    append(journal, "recovered", TRAINER, 2, step=4, source="memory", seconds=1.0, **{"from": "slot"})
    clock.advance(40.0)
    append(journal, "exited", TRAINER, 2, code=75, signal=None, cause="stopped", evidence="asked to stop", step=8)
    append(journal, "spawned", TRAINER, 3)
    append(journal, "ready", TRAINER, 3, step=9)
    append(journal, "recovered", TRAINER, 3, step=8, source="memory", seconds=1.0, **{"from": "slot"})
    clock.advance(20.0)
    append(journal, "exited", TRAINER, 3, code=0, signal=None, cause="completed", evidence="exit code 0", step=10)
    append(journal, "run_completed", TRAINER, 3, step=10, goodput=0.5)
    journal.close()
    first = [("loss", step, began_s + 5 * step, 10.0 / step) for step in range(1, 7)]
    second = [("loss", step, began_s + 40 + 5 * step, 20.0 / step) for step in range(5, 9)]
    write_events(tmp_path / "events.out.tfevents.1.h", *first, ("accuracy", 1, began_s, 0.5))
    write_events(tmp_path / "events.out.tfevents.2.h", *second)
    write_events(
        tmp_path / "validation" / "events.out.tfevents.1.h", (HOSTILE, 1, began_s, 0.5), (HOSTILE, 2, began_s + 9, 0.7)
    )
    write_events(tmp_path / "procsv" / "events.out.tfevents.1.h", ("procsv/memory_bytes", 1, began_s, 2.0**20))
    return tmp_path


def test_a_repeated_step_appears_once_with_its_last_value(logdir: Path) -> None:
    loss, *others = read_curves(logdir)
    assert loss.name == "loss"
    assert [point.step for point in loss.points] == list(range(1, 9))
    assert [point.value for point in loss.points][4:] == pytest.approx([20 / 5, 20 / 6, 20 / 7, 20 / 8])
    assert {curve.name for curve in others} == {"accuracy", f"validation: {HOSTILE}"}


def test_a_rate_is_shown_only_if_the_program_has_written_it(logdir: Path) -> None:
    """Steps of other scalars may be epochs."""
    assert "steps per second" not in {curve.name for curve in read_curves(logdir)}
    write_events(logdir / "events.out.tfevents.3.h", ("global_step/sec", 5, 1.0, 7.0), ("global_step/sec", 9, 2.0, 8.0))
    rate = next(curve for curve in read_curves(logdir) if curve.name == "steps per second")
    assert [point.value for point in rate.points] == [7.0, 8.0]


def test_if_there_are_too_many_event_files_the_newest_are_read(logdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    newest = logdir / "events.out.tfevents.2.h"
    os.utime(newest, (2e9, 2e9))
    monkeypatch.setattr(curves, "BYTES_MAX", newest.stat().st_size)
    (only,) = read_curves(logdir)
    assert [point.step for point in only.points] == [5, 6, 7, 8]


def test_a_curve_of_many_points_keeps_its_peaks() -> None:
    points = [Scalar("x", step, float(step), 1000.0 if step == 777 else step % 7) for step in range(100_000)]
    thinned = thin(points)
    assert len(thinned) <= POINTS_MAX
    assert max(point.value for point in thinned) == 1000.0
    assert [point.step for point in thinned] == sorted(point.step for point in thinned)


def test_crashes_preemptions_and_checkpoints_are_marked_and_the_end_of_training_is_not(logdir: Path) -> None:
    marks = find_marks(read_story(logdir, SystemClock()).account)
    assert sorted(mark.kind for mark in marks) == ["checkpoint", "crash", "preempted"]


def test_a_mark_is_placed_where_the_curve_was_at_its_time_even_if_the_curve_counts_epochs() -> None:
    epochs = Curve("loss", tuple(Scalar("loss", epoch, 100.0 * epoch, 1.0) for epoch in range(1, 6)))
    for at_s, left in ((99.0, None), (100.0, "0.0"), (250.0, "250.0"), (300.0, "500.0")):
        drawn = draw_curve(epochs, [CurveMark("crash", at_s, "at step 3,000")], "step", str)
        assert re.findall(r'class="mark crash" x1="([\d.]+)"', drawn) == ([left] if left else [])


def test_a_curve_describes_its_start_and_end(logdir: Path) -> None:
    loss = read_curves(logdir)[0]
    marks = find_marks(read_story(logdir, SystemClock()).account)
    for over, ends in (("time", 3), ("step", 3)):
        drawn = draw_curve(loss, marks, over, str)  # type: ignore[arg-type]
        assert 'aria-label="loss over' in drawn
        assert drawn.count('class="mark ') == ends
        assert "<script>" not in drawn
    assert "<svg" not in draw_curve(Curve("loss", loss.points[:1]), (), "step", str)


def test_the_page_shows_the_loss_hides_the_rest_and_names_the_settings(logdir: Path) -> None:
    (logdir / "procsv" / "crashes").mkdir()
    (logdir / "procsv" / "crashes" / "1.txt").write_text(f"the stack {HOSTILE}\n")
    page = make_page(read_story(logdir, SystemClock()))
    assert "<details open><summary>loss" in page
    assert page.count("<details open>") == 1
    assert "1.0 MiB" in page, "the memory"
    assert "the stack &lt;/title&gt;" in page
    assert "h: 2 processors" in page
    assert "--x-y" in page
    assert HOSTILE not in page
    assert "step 10" in page.partition('class="lead"')[2].partition("</p>")[0]


def test_the_page_of_a_failed_run_begins_with_the_reason(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "procsv" / "journal.jsonl", SystemClock())
    append(journal, "run_started", WATCHDOG, 1)
    append(journal, "spawned", TRAINER, 1)
    append(journal, "exited", TRAINER, 1, code=1, signal=None, cause="exception", evidence="ValueError: bad", step=-1)
    append(journal, "gave_up", TRAINER, 1, why="ValueError twice")
    journal.close()
    page = make_page(read_story(tmp_path, SystemClock()))
    assert "ValueError twice" in page.partition('class="lead bad"')[2].partition("</p>")[0]


def test_a_page_can_go_to_standard_output_and_a_finished_runs_page_is_not_watched(logdir: Path) -> None:
    said = procsv("report", str(logdir), "--html", "-")
    assert said.stdout.startswith("<!doctype html>")
    assert said.stdout.endswith("</html>\n")
    argv = [sys.executable, "-m", "procsv", "report", str(logdir), "--watch", "--html", str(logdir / "r.html")]
    subprocess.run(argv, env=environment(), check=True, capture_output=True, timeout=NEWS_S_MAX)
    assert "http-equiv" not in (logdir / "r.html").read_text()
    assert procsv("report", str(logdir), "--watch").returncode == 2


def test_the_page_of_a_live_run_reloads_itself(logdir: Path) -> None:
    story = read_story(logdir, SystemClock())
    going_on = type(story)(story.logdir, "t", (), True, Account(1.0, 2.0))
    assert 'http-equiv="refresh" content="5"' in make_page(going_on, again_s=5)
