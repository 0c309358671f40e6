"""Measure a run, for TensorBoard and for Prometheus.

Used by run_records.py. TensorBoard gets its metrics through the summary service. Prometheus reads a
file or a port. Except for the program's memory, the metrics come from run.json and from the account
that `procsv report` shows, so they agree with both.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from procsv.base.journal import entries
from procsv.base.journal.line import Line
from procsv.base.run.run_file import RunFile
from procsv.base.terminal import printable
from procsv.ipc.messaging.summary_messages import RunMetrics
from procsv.report.account import Account
from procsv.report.account_builder import AccountBuilder

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

TENSORBOARD_S, PROMETHEUS_S = 60.0, 15.0  # how often each is written
# After one of these entries, the metrics for TensorBoard and for Prometheus are due at once.
_WORTH_A_POINT = entries.Ready | entries.Exited | entries.RunCompleted | entries.Stopped | entries.GaveUp


class RunMeter:
    """Keep the account of the run so far, and decide when metrics are due. It writes nothing."""

    def __init__(self) -> None:
        self._account = AccountBuilder(keeps_remarks=False)
        self._tensorboard_s = self._prometheus_s = 0.0
        self._second = -1  # the step of the last point for TensorBoard: seconds of the run, made to rise

    def enter(self, line: Line) -> None:
        self._account.enter(line)
        if isinstance(line.entry, _WORTH_A_POINT):
            self._tensorboard_s = self._prometheus_s = 0.0

    def due(self, now_s: float, wall_s: float, step: int, memory: Callable[[], float]) -> RunMetrics | None:
        """Return the metrics for TensorBoard; None if they are not due, or before the first start.

        `now_s` is monotonic, `wall_s` is in Unix seconds. `memory` returns the program's memory in
        bytes.
        """
        if now_s < self._tensorboard_s:
            return None
        self._tensorboard_s = now_s + TENSORBOARD_S
        account = self._account.so_far(wall_s, step)
        if account is None:
            return None
        values = {f"procsv/seconds/{kind}": seconds for kind, seconds in account.totals.items()}
        values["procsv/goodput"] = account.goodput
        values["procsv/failures"] = float(account.failures)
        values["procsv/lost_steps"] = float(account.lost_steps)
        if account.recoveries_s:
            values["procsv/recovery_seconds"] = account.recoveries_s[-1]
        if resident := memory():
            values["procsv/memory_bytes"] = resident
        self._second = max(int(account.wall_s), self._second + 1)
        return RunMetrics(wall_s, self._second, values)

    def measure(self, run: RunFile, now_s: float, wall_s: float) -> list[Metric]:
        """Return the metrics for Prometheus; [] if they are not due.

        Once the run has ended, they are always due.
        """
        if now_s < self._prometheus_s and run.ended_at is None:
            return []
        self._prometheus_s = now_s + PROMETHEUS_S
        return measure_run(run, self._account.so_far(wall_s, run.step), wall_s)


# -- Prometheus ----------------------------------------------------------------------------------------------
class Metric(msgspec.Struct, frozen=True):
    """One metric with its samples. A sample is a pair of labels and value.

    Names and units follow Prometheus' conventions.
    """

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    samples: tuple[tuple[Mapping[str, str], float], ...]


def measure_run(run: RunFile, account: Account | None, wall_s: float) -> list[Metric]:
    """Return the metrics of a run. Metrics with an unknown value are left out.

    `account`: None before the first start; then its metrics are left out, too.
    """
    found = [
        _gauge(
            "run_info", "What runs; always 1.", 1, run=run.run, target=printable(run.target), host=socket.gethostname()
        ),
        _gauge("run_state", "The run's state, as procsv status shows it; always 1.", 1, state=run.state),
        _gauge("run_active", "1 while the watchdog has the run, 0 once it has ended.", run.ended_at is None),
        _gauge("exit_code", "Of the watchdog, once the run has ended.", run.exit_code),
        _gauge("run_start_timestamp_seconds", "When this launch began.", run.started_at),
        _gauge("updated_timestamp_seconds", "When these metrics were written.", wall_s),
        _gauge("step", "Global step.", _known(run.step)),
        _gauge("planned_steps", "Global step at which training ends.", _known(run.steps_total)),
        _gauge("durable_step", "Step of the newest checkpoint that is verified on disk.", _known(run.durable_step)),
        _gauge("memory_step", "Step of the newest snapshot in memory.", _known(run.memory_step)),
        _gauge("step_duration_seconds", "Median duration of a step.", run.step_s or None),
        _gauge("attempt", "How many times the program has been started.", run.incarnation),
        _gauge("failures_in_a_row", "Failures since a step last became durable.", run.no_progress_count),
        _gauge("restart_delay_seconds", "Time left before the next start.", run.next_restart_in),
        _gauge("save_failing", "1 while the newest state cannot be saved.", run.save_error is not None),
        _gauge("protected", "1 if the state of the program is saved and restored, 0 if it is not.", run.protected),
        _gauge("goodput_ratio", "Share of the run's time that went into steps which were kept.", run.goodput),
        Metric("procsv_restarts_total", "counter", "Restarts in this launch.", (({}, run.restarts),)),
    ]
    if account is not None:
        causes = Counter(one.cause for one in account.incarnations if one.cause)
        found += [
            Metric(
                "procsv_time_seconds",
                "gauge",
                "What became of the run's time.",
                tuple(({"spent": kind}, seconds) for kind, seconds in account.totals.items()),
            ),
            Metric(
                "procsv_exits_total",
                "counter",
                "Ends of the program, by cause.",
                tuple(({"cause": cause}, count) for cause, count in sorted(causes.items())),
            ),
            Metric("procsv_failures_total", "counter", "Ends that count as failures.", (({}, account.failures),)),
            Metric("procsv_lost_steps_total", "counter", "Steps made again.", (({}, account.lost_steps),)),
            _gauge("recovery_seconds", "From the last death to the next new step.", _last(account.recoveries_s)),
        ]
    return [
        msgspec.structs.replace(
            one, samples=tuple(({"logdir": printable(run.logdir), **labels}, value) for labels, value in one.samples)
        )
        for one in found
        if one.samples
    ]


def _gauge(name: str, what: str, value: float | None, **labels: str) -> Metric:
    return Metric(f"procsv_{name}", "gauge", what, () if value is None else ((labels, value),))


def _known(step: int) -> int | None:
    return step if step >= 0 else None


def _last(values: list[float]) -> float | None:
    return values[-1] if values else None


def show_metrics(metrics: list[Metric]) -> str:
    """Format metrics as Prometheus' text
    (https://prometheus.io/docs/instrumenting/exposition_formats/).
    """
    lines = []
    for metric in metrics:
        lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}"]
        for labels, value in metric.samples:
            pairs = ",".join(f'{name}="{_escape(text)}"' for name, text in labels.items())
            lines.append(f"{metric.name}{{{pairs}}} {float(value)!r}")
    return "".join(f"{line}\n" for line in lines)


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").encode(errors="replace").decode()


class MetricsPort:
    """Serve the latest metrics with prometheus-client, on a thread of its own.

    OSError if the port is taken.
    """

    def __init__(self, address: str) -> None:
        from prometheus_client import CollectorRegistry, start_http_server

        self._shown: list[Metric] = []
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        host, _, port = address.rpartition(":")
        self._server, _ = start_http_server(int(port), host, registry)
        self.number: int = self._server.server_port

    def show(self, metrics: list[Metric]) -> None:
        self._shown = metrics

    def collect(self) -> Iterator[Family]:
        """Yield the latest metrics. prometheus-client calls this at each scrape, on its thread.

        No lock is needed, because `show` replaces the whole list.
        """
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for metric in self._shown:
            family: Any = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            names = list(metric.samples[0][0])
            made = family(metric.name, metric.help, labels=names)
            for labels, value in metric.samples:
                made.add_metric([labels[name] for name in names], value)
            yield made

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
