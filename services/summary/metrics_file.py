"""Metrics of the run, in an event file of their own: `<logdir>/procsv/events.out.tfevents.*`.

Used by process.py, from one thread.  The folder is its own because TensorBoard reads the files of a folder one after the
other: beside a trainer's, neither would be followed.  A metric that cannot be written is dropped; the next one replaces it.
"""

from __future__ import annotations

from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary

from procsv.ipc.messaging.summary_messages import RunMetrics
from procsv.services.summary.event_file import EventFile, new_name
from procsv.services.summary.stream_file import say


class MetricsFile:
    """Made when there is something to write."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file: EventFile | None = None
        self._trouble = ""

    def write(self, metrics: RunMetrics, wall_s: float) -> None:
        """One record; `wall_s` names the file."""
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in metrics.values.items()]
        event = Event(wall_time=metrics.wall_s, step=max(metrics.step, 0), summary=Summary(value=values))
        try:
            if self._file is not None and self._file.trouble():
                self._file.close()
                self._file = None
            if self._file is None:
                self._file = EventFile(self._directory / new_name(self._directory, wall_s, 0, ".figures"))
            self._file.append([event.SerializeToString()], wall_s)
            self._trouble = ""
        except OSError as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                say(f"figures of the run are not written: {error}")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
