"""Run the Supervisor's threads: summaries, step counter, snapshots and `loop` callbacks.

These are TensorFlow's threads with repairs. They work in the supervisor's graph, because new
threads of a plain TensorFlow 2 program are in eager mode. They keep time by the monotonic clock,
and skip the calls that a late call has delayed. If a summary needs input, a training step computes
it, so that the summary takes no batch of its own. If no step can compute the summary, the summary
op runs by itself. If the input is then missing or has ended, the thread logs this, and training
goes on.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tensorflow as tf

from procsv.base.clock import Clock
from procsv.training.graph.session import set_pending_fetch
from procsv.training.sessions.session_controller import SessionController
from procsv.training.snapshots.training_run import TrainingRun
from procsv.training.summaries.piggyback import PendingFetch, PiggybackFetch

tf1 = tf.compat.v1
log = tf1.logging

REPORTS_MAX = 10  # lines that a repeating report may log
SESSION_CHECK_S = 1.0  # how often a waiting thread checks whether another session has replaced its own
PIGGYBACK_POLL_S = 0.05  # how often a due summary checks whether a training step has computed it
# If no run has computed a due summary after this many seconds and this many runs, the summary op runs by itself.
PIGGYBACK_S_MIN, PIGGYBACK_RUNS_MIN = 5.0, 20


class TimedThread(tf1.train.LooperThread):  # type: ignore[name-defined]  # tensorflow is untyped
    """A LooperThread that works in a graph, keeps time by `clock`, and skips missed calls."""

    def __init__(self, coord: Any, graph: Any, clock: Clock, interval_s: float | None, **target: Any) -> None:
        super().__init__(coord, interval_s, **target)
        self._graph, self._clock = graph, clock

    def run(self) -> None:
        with self._coord.stop_on_exception(), self._graph.as_default():
            self.start_loop()
            if self._timer_interval_secs is None:
                while not self._coord.should_stop():
                    self.run_loop()
            else:
                self._run_timed(self._timer_interval_secs)
            self.stop_loop()

    def _run_timed(self, interval_s: float) -> None:
        due_s = self._clock.monotonic()
        while not self._wait_for_end(max(0.0, due_s - self._clock.monotonic())):
            self.run_loop()
            due_s, late_s = due_s + interval_s, self._clock.monotonic() - due_s - interval_s
            if late_s > 0:  # missed ticks are skipped
                due_s += interval_s * math.ceil(late_s / interval_s) if interval_s > 0 else late_s

    def _wait_for_end(self, timeout_s: float) -> bool:
        return bool(self._coord.wait_for_stop(timeout_s))


class ServiceThread(TimedThread):
    """A thread that serves one session. It ends at the stop, or when another session follows."""

    def __init__(self, supervisor: Any, session: Any, training: TrainingRun) -> None:
        self._controller: SessionController = supervisor._controller
        clock = self._controller.runtime.clock
        super().__init__(supervisor.coord, supervisor._graph, clock, supervisor.save_summaries_secs)
        self._supervisor, self._session, self._training = supervisor, session, training

    def _wait_for_end(self, timeout_s: float) -> bool:
        until_s = self._clock.monotonic() + timeout_s
        while not self._training.is_over:
            left_s = until_s - self._clock.monotonic()
            if super()._wait_for_end(max(0.0, min(left_s, SESSION_CHECK_S))):
                return True
            if left_s <= SESSION_CHECK_S:
                break
        return self._training.is_over


def read_step(session: Any, global_step: Any) -> int:
    """Read the global step, of shape [] or [1], as an int. The thread may be in eager mode."""
    return int(np.asarray(session.run(global_step)).reshape(()))


class SVSummaryThread(ServiceThread):
    """Computes the summary op every `save_summaries_secs`.

    If the op would consume input, a training step computes it, when one can.
    """

    def __init__(self, supervisor: Any, session: Any, training: TrainingRun) -> None:
        super().__init__(supervisor, session, training)
        self._piggyback = PiggybackFetch(supervisor.summary_op, supervisor._graph)
        self._reported = 0
        self._is_exhausted = False

    def run_loop(self) -> None:
        if self._piggyback.is_harmless_alone or not self._run_along():
            self._run_alone()

    def _run_along(self) -> bool:
        """Have a training step compute the summary.

        Return False if no step has computed it after PIGGYBACK_S_MIN and PIGGYBACK_RUNS_MIN.
        """
        boundary, clock = self._training.boundary, self._clock
        pending_fetch = PendingFetch(self._piggyback, self._training.read_step)
        from_s, from_runs = clock.monotonic(), boundary.runs + boundary.elsewhere
        set_pending_fetch(self._session, pending_fetch)
        while not pending_fetch.is_over:
            if self._wait_for_end(PIGGYBACK_POLL_S):
                set_pending_fetch(self._session, None)
                return True
            runs = boundary.runs + boundary.elsewhere - from_runs
            if runs >= PIGGYBACK_RUNS_MIN and clock.monotonic() - from_s >= PIGGYBACK_S_MIN:
                set_pending_fetch(self._session, None)
                return False
        if pending_fetch.error is not None:
            # A failing summary ends training like any failing service, and the `with` block raises
            # the error.
            raise pending_fetch.error
        if pending_fetch.value is not None:
            self._write(pending_fetch.value, pending_fetch.step if self._supervisor.global_step is not None else None)
        return True

    def _run_alone(self) -> None:
        supervisor = self._supervisor
        if self._is_exhausted:
            return
        wanted = {"summary": supervisor.summary_op}
        if supervisor.global_step is not None:
            wanted["step"] = supervisor.global_step
        try:
            got = tf1.Session.run(self._session, wanted)
        except tf.errors.InvalidArgumentError as error:
            if not (self._piggyback.needs_feed and "placeholder" in str(error).lower()):
                raise
            # The summary needs a feed that only a training step has.
            if self._reported < REPORTS_MAX:
                self._reported += 1
                log.error("procsv: cannot run the summary op by itself; training continues without it: %s", error)
            return
        except tf.errors.OutOfRangeError as error:
            self._is_exhausted = True
            log.warning("procsv: the summary op has no more input; training continues without it: %s", error)
            return
        self._write(got["summary"], int(np.asarray(got["step"]).reshape(())) if "step" in got else None)

    def _write(self, summary: Any, step: int | None) -> None:
        log.info("Recording summary at step %s.", step)
        self._supervisor.summary_writer.add_summary(summary, step)


class SVStepCounterThread(ServiceThread):
    """Measures steps per second and writes them as a summary."""

    def __init__(self, supervisor: Any, session: Any, training: TrainingRun) -> None:
        super().__init__(supervisor, session, training)
        self._tag = f"{supervisor.global_step.op.name}/sec"
        self._last_s, self._last_step, self._logged, self._has_begun = 0.0, 0, 0, False

    def start_loop(self) -> None:
        self._last_s = self._clock.monotonic()
        self._last_step = self._training.read_step()

    def run_loop(self) -> None:
        step, now_s = self._training.read_step(), self._clock.monotonic()
        if step == self._last_step and not self._has_begun:
            self._last_s = now_s  # compiling the first step is not slow training
            return
        self._has_begun = True
        elapsed_s = now_s - self._last_s
        rate = (step - self._last_step) / elapsed_s if elapsed_s > 0 else float("inf")
        self._last_s, self._last_step = now_s, step
        summary = tf1.Summary(value=[tf1.Summary.Value(tag=self._tag, simple_value=rate)])
        self._supervisor.summary_writer.add_summary(summary, step)
        if self._logged < REPORTS_MAX:
            self._logged += 1
            log.info("%s: %g", self._tag, rate)


class SVTimerCheckpointThread(ServiceThread):
    """Starts the periodic snapshots, and ends them at the stop."""

    def run(self) -> None:
        snapshots = self._training.snapshots
        assert snapshots is not None
        with self._coord.stop_on_exception():
            self._controller.start_cadence(self._training, self._supervisor.save_summaries_secs)
            self._wait_for_end(math.inf)
            snapshots.stop_cadence()


def start_standard(supervisor: Any, session: Any, training: TrainingRun) -> list[ServiceThread]:
    """Start the threads that `supervisor` is set up for, in TensorFlow's order. Return them."""
    kinds: list[type[ServiceThread]] = []
    if supervisor.save_summaries_secs and supervisor.summary_writer:
        if supervisor.summary_op is not None:
            kinds.append(SVSummaryThread)
        if supervisor.global_step is not None:
            kinds.append(SVStepCounterThread)
    if training.snapshots is not None and supervisor.save_model_secs:
        kinds.append(SVTimerCheckpointThread)
    else:
        # With save_model_secs=0 the program saves by itself, and a snapshot becomes a checkpoint only after a crash and
        # at the end. Without a Saver there are no snapshots, and this does nothing.
        supervisor._controller.start_cadence(training, supervisor.save_summaries_secs)
    threads = [kind(supervisor, session, training) for kind in kinds]
    for thread in threads:
        thread.start()
    return threads
