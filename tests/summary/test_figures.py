"""Figures of the run itself go to an event file beside the program's own that TensorBoard can read."""

import re
from pathlib import Path

import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.plugins.custom_scalar import metadata
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout

from procsv.base.journal.line import Line
from procsv.ipc.messaging.summary_messages import RunMetrics
from procsv.report.account import KINDS
from procsv.services.summary.event_file import read_records
from procsv.services.summary.metrics_file import MEANING, MetricsFile
from procsv.watchdog.edge.metrics import TENSORBOARD_S, RunMeter
from tests.support.journal import an_entry


def test_a_figure_is_a_scalar_at_its_step(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path)
    file.write_record(RunMetrics(12.5, 300, {"procsv/goodput": 0.75, "procsv/failures": 2.0}), 10.0)
    file.close()
    event = Event.FromString(read_records(next(tmp_path.iterdir()))[0][-1])
    assert (event.wall_time, event.step) == (12.5, 300)
    assert all(v.metadata.summary_description for v in event.summary.value)
    assert {v.tag: v.simple_value for v in event.summary.value} == {"procsv/goodput": 0.75, "procsv/failures": 2.0}


def test_figures_are_in_their_own_file_which_the_first_figure_creates(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path)
    assert not list(tmp_path.iterdir())
    for step in (1, 2):
        file.write_record(RunMetrics(10.0, step, {"procsv/goodput": 0.5}), 10.0)
    file.close()
    (path,) = tmp_path.glob("events.out.tfevents.*")
    records, rest = read_records(path)
    assert [Event.FromString(record).step for record in records] == [0, 0, 1, 2], (
        "the version, the layout, and the figures"
    )
    assert rest == 0


def test_the_curve_layout_is_in_the_figures_file_and_names_existing_tags(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path)
    file.write_record(RunMetrics(10.0, 1, {"procsv/goodput": 0.5}), 10.0)
    file.close()
    (value,) = Event.FromString(read_records(next(tmp_path.iterdir()))[0][1]).summary.value
    assert (value.tag, value.metadata.plugin_data.plugin_name) == (metadata.CONFIG_SUMMARY_TAG, metadata.PLUGIN_NAME)
    (category,) = Layout.FromString(value.tensor.string_val[0]).category
    tags = {tag for chart in category.chart for tag in chart.multiline.tag}
    written = {f"procsv/{name}" for name in MEANING} | {f"procsv/seconds/{kind}" for kind in KINDS} | {"procsv/attempt"}
    assert all(any(re.fullmatch(tag, one) for one in written) for tag in tags)


def test_a_disk_that_refuses_figures_is_reported_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = MetricsFile(tmp_path / "is not there")
    for step in (1, 2):
        file.write_record(RunMetrics(10.0, step, {}), 10.0)
    file.close()
    out, err = capfd.readouterr()
    assert (out + err).count("figures of ") == 1


def test_figures_are_written_at_events_of_the_run_and_once_a_minute() -> None:
    meter = RunMeter()
    assert meter.due(0.0, 1000.0, 5, float) is None, "nothing has happened"
    meter.enter(Line(1000.0, "watchdog", 1, an_entry("run_started")))
    meter.enter(Line(1000.0, "trainer", 1, an_entry("spawned")))
    meter.enter(Line(1010.0, "trainer", 1, an_entry("ready", step=1)))
    said = meter.due(1.0, 1040.0, 61, lambda: 5e6)
    assert said is not None
    assert {f"procsv/seconds/{kind}" for kind in KINDS} < set(said.values)
    assert said.values["procsv/seconds/kept"] == pytest.approx(30)
    assert said.values["procsv/memory_bytes"] == 5e6
    assert said.values["procsv/goodput"] == pytest.approx(0.75)
    assert meter.due(2.0, 1041.0, 62, float) is None
    assert meter.due(1.0 + TENSORBOARD_S, 1100.0, 99, float) is not None
    meter.enter(Line(1101.0, "trainer", 1, an_entry("exited", step=99, cause="killed")))
    after = meter.due(2.0 + TENSORBOARD_S, 1102.0, 99, float)
    assert after is not None
    assert after.values["procsv/failures"] == 1
