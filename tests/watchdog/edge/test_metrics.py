"""The Prometheus file and port agree, and the dashboard uses only existing metrics."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from procsv.base.journal.line import Line
from procsv.report.account_builder import AccountBuilder
from procsv.watchdog.edge.metrics import Metric, MetricsPort, RunMeter, measure_run, show_metrics
from tests.cli.test_run_file import a_run
from tests.support.journal import an_entry

ROOT = Path(__file__).parents[3]


def a_builder() -> AccountBuilder:
    builder = AccountBuilder(keeps_remarks=False)
    for time_s, entry in (
        (0.0, an_entry("run_started")),
        (1.0, an_entry("spawned")),
        (2.0, an_entry("ready")),
        (50.0, an_entry("exited", cause="oom")),
        (51.0, an_entry("spawned")),
        (53.0, an_entry("ready")),
        (54.0, an_entry("recovered", seconds=4.0)),
    ):
        builder.enter(Line(time_s, "trainer", 1 if time_s <= 50.0 else 2, entry))
    return builder


def all_there_is() -> list[Metric]:
    run = a_run(
        step=40,
        steps_total=99,
        durable_step=3,
        memory_step=4,
        step_s=0.1,
        exit_code=0,
        next_restart_in=1.0,
        protected=True,
    )
    return measure_run(run, a_builder().so_far(60.0, 40), 60.0)


def samples(text: str) -> dict[str, float]:
    """Return the samples by name and by labels other than the logdir."""
    return {
        " ".join(
            (sample.name, *(value for label, value in sorted(sample.labels.items()) if label != "logdir"))
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_file_is_prometheus_text_with_the_known_values() -> None:
    run = a_run(logdir='/a "quoted"\\path\nof two lines', step=40, durable_step=-1, restarts=2)
    metrics = measure_run(run, a_builder().so_far(60.0, 40), 60.0)
    families = list(text_string_to_metric_families(show_metrics(metrics)))
    assert {sample.labels["logdir"] for family in families for sample in family.samples} == {run.logdir}
    found = samples(show_metrics(metrics))
    assert found["procsv_step"] == 40
    assert "procsv_durable_step" not in found
    assert found["procsv_restarts_total"] == 2
    assert found["procsv_exits_total oom"] == 1
    assert found["procsv_time_seconds starting"] > 0
    assert found["procsv_run_active"] == 1


def test_each_metric_is_named_by_prometheus_conventions() -> None:
    for metric in all_there_is():
        assert re.fullmatch(r"procsv_[a-z_]+", metric.name)
        assert (metric.kind == "counter") == metric.name.endswith("_total")


def test_metrics_are_written_every_fifteen_seconds_and_at_the_end_of_the_run() -> None:
    meter, run = RunMeter(), a_run()
    assert meter.measure(run, 0.0, 100.0)
    assert not meter.measure(run, 14.9, 114.9)
    assert meter.measure(run, 15.0, 115.0)
    over = samples(show_metrics(meter.measure(msgspec.structs.replace(run, ended_at=116.0, exit_code=0), 16.0, 116.0)))
    assert (over["procsv_run_active"], over["procsv_exit_code"]) == (0, 0)


def test_the_port_serves_what_the_file_says() -> None:
    metrics = measure_run(
        a_run(step=7, logdir="/runs/caf\udce9", target="\udce9.py"), a_builder().so_far(60.0, 40), 60.0
    )
    port = MetricsPort("127.0.0.1:0")
    try:
        port.show(metrics)
        with urllib.request.urlopen(f"http://127.0.0.1:{port.number}/metrics", timeout=60) as answer:
            assert samples(answer.read().decode()) == samples(show_metrics(metrics))
    finally:
        port.close()


def test_the_dashboard_asks_only_for_existing_metrics() -> None:
    dashboard = json.loads((ROOT / "docs" / "deploy" / "grafana.json").read_text())
    asked = {
        name
        for panel in dashboard["panels"]
        for one in panel["targets"]
        for name in re.findall(r"procsv_\w+", one["expr"])
    }
    assert asked
    assert asked <= {metric.name for metric in all_there_is()}


def test_the_page_has_every_metric_with_its_type_labels_and_meaning() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    for metric in all_there_is():
        labels = ", ".join(f"`{label}`" for label in list(metric.samples[0][0])[1:])
        by = f" by {labels}" if labels else ""
        assert f"| `{metric.name}`{by} | {metric.kind} | {metric.help} |" in page
