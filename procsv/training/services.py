"""The Supervisor's service threads: summaries, step counter, snapshots.

TensorFlow's own threads with what makes them fail mended: they work in the supervisor's graph (new threads of a
plain TF2 program are in eager mode), keep time by the monotonic clock without bursts after a late call, and a
summary that cannot be computed is reported without ending the training.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from procsv.ipc.clock import Clock

if TYPE_CHECKING:
    from procsv.training.snapshotter import Snapshotter

tf1 = tf.compat.v1
log = tf1.logging

REPORTS_MAX = 10  # lines that a repeating report may log


class ServiceThread(tf1.train.LooperThread):  # type: ignore[name-defined]  # tensorflow is untyped
    """A LooperThread that works in a graph and keeps monotonic time; a missed tick is missed."""

    def __init__(self, supervisor: Any, interval_s: float, clock: Clock) -> None:
        super().__init__(supervisor.coord, interval_s)
        self._supervisor, self._interval_s, self._clock = supervisor, interval_s, clock

    def run(self) -> None:
        with self._coord.stop_on_exception(), self._supervisor._graph.as_default():
            self.start_loop()
            due_s = self._clock.monotonic()
            while not self._coord.wait_for_stop(max(0.0, due_s - self._clock.monotonic())):
                self.run_loop()
                due_s = max(due_s + self._interval_s, self._clock.monotonic())
            self.stop_loop()


def read_step(session: Any, global_step: Any) -> int:
    """The global step as an int, whatever its rank ([] or [1]) and the thread's mode."""
    return int(np.asarray(session.run(global_step)).reshape(()))


class SVSummaryThread(ServiceThread):
    """Computes the summary op every `save_summaries_secs`."""

    def __init__(self, supervisor: Any, session: Any, clock: Clock) -> None:
        super().__init__(supervisor, supervisor.save_summaries_secs, clock)
        self._session = session
        self._reported = 0

    def run_loop(self) -> None:
        supervisor = self._supervisor
        wanted = {"summary": supervisor.summary_op}
        if supervisor.global_step is not None:
            wanted["step"] = supervisor.global_step
        try:
            got = self._session.run(wanted)
        except tf.errors.InvalidArgumentError as error:  # it needs a feed that only a training step has
            if self._reported < REPORTS_MAX:
                self._reported += 1
                log.error("procsv: the summary op cannot be run by itself; training goes on without it: %s", error)
            return
        step = int(np.asarray(got["step"]).reshape(())) if "step" in got else None
        log.info("Recording summary at step %s.", step)
        supervisor.summary_writer.add_summary(got["summary"], step)


class SVStepCounterThread(ServiceThread):
    """Measures steps per second."""

    def __init__(self, supervisor: Any, session: Any, clock: Clock) -> None:
        super().__init__(supervisor, supervisor.save_summaries_secs, clock)
        self._session = session
        self._tag = f"{supervisor.global_step.op.name}/sec"
        self._last_s, self._last_step, self._logged = 0.0, 0, 0

    def start_loop(self) -> None:
        self._last_s = self._clock.monotonic()
        self._last_step = read_step(self._session, self._supervisor.global_step)

    def run_loop(self) -> None:
        step, now_s = read_step(self._session, self._supervisor.global_step), self._clock.monotonic()
        elapsed_s = now_s - self._last_s
        rate = (step - self._last_step) / elapsed_s if elapsed_s > 0 else float("inf")
        self._last_s, self._last_step = now_s, step
        summary = tf1.Summary(value=[tf1.Summary.Value(tag=self._tag, simple_value=rate)])
        self._supervisor.summary_writer.add_summary(summary, step)
        if self._logged < REPORTS_MAX:
            self._logged += 1
            log.info("%s: %g", self._tag, rate)


class SVTimerCheckpointThread(threading.Thread):
    """Takes snapshots by their cadence until the coordinator stops; the checkpoint service saves them."""

    def __init__(self, supervisor: Any, snapshots: Snapshotter) -> None:
        super().__init__(name="procsv-snapshots", daemon=True)
        self._coord, self._graph, self._snapshots = supervisor.coord, supervisor._graph, snapshots
        self._coord.register_thread(self)

    def run(self) -> None:
        with self._coord.stop_on_exception(), self._graph.as_default():
            self._snapshots.run(self._coord.wait_for_stop)
