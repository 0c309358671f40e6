"""Cost of snapshots as scalars for TensorBoard: procsv/snapshot_interval (s) and procsv/snapshot_stall_ms.

Called on the snapshot thread after snapshots by the cadence.  They are written as often as the other summaries, and not before
the first of these intervals is over: a short run's event file holds what TensorFlow's would.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from procsv.base.clock import Clock
from procsv.ipc.shm.heartbeat import Snapshots

INTERVAL, STALL = "procsv/snapshot_interval", "procsv/snapshot_stall_ms"

tf1 = tf.compat.v1


class SnapshotScalars:
    """Writes to `writer` (a FileWriter) at most every `every_s` seconds, at the step that `read_step` gives."""

    def __init__(self, writer: Any, every_s: float, read_step: Callable[[], int], clock: Clock) -> None:
        self._writer, self._every_s, self._read_step, self._clock = writer, every_s, read_step, clock
        self._written_s = clock.monotonic()

    def write(self, told: Snapshots) -> None:
        now_s = self._clock.monotonic()
        if now_s - self._written_s < self._every_s:
            return
        self._written_s = now_s
        shown = {INTERVAL: told.interval_s, STALL: told.mean_stall_s * 1e3}
        values = [tf1.Summary.Value(tag=tag, simple_value=value) for tag, value in shown.items()]
        step = self._read_step()
        self._writer.add_summary(tf1.Summary(value=values), step if step >= 0 else None)
