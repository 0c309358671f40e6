"""Write the run's metrics, which the watchdog sends, to an event file of their own.

The file also has a layout that groups the metrics' curves on TensorBoard's Custom Scalars page.
process.py uses this module.
"""

from __future__ import annotations

from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import DATA_CLASS_TENSOR, Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.plugins.custom_scalar.layout_pb2 import Category, Chart, Layout, MultilineChartContent

from procsv.ipc.messaging.summary_messages import RunMetrics
from procsv.services.summary.event_file import EventFile, new_name
from procsv.services.summary.stream_file import say

LAYOUT_TAG = "custom_scalars__config__"
CHARTS = {  # title -> regular expression for the tags in that chart
    "What became of the time (s)": r"procsv/seconds/.*",
    "Goodput": r"procsv/goodput",
    "Attempt, over the global step": r"procsv/attempt",
    "Failures": r"procsv/failures",
    "Memory (bytes)": r"procsv/memory_bytes",
}
MEANING = {
    "kept": "Seconds of training whose steps are kept.",
    "redone": "Seconds of training that was lost and done again.",
    "starting": "Seconds of imports, restores, compilations and first steps.",
    "down": "Seconds without a program.",
    "stalled": "Seconds in which the program hung, or was stopped by a signal.",
    "stopped": "Seconds between two launches.",
    "goodput": "Share of the run's time that went into steps which are kept.",
    "failures": "How often the program has failed so far.",
    "lost_steps": "Steps redone so far.",
    "recovery_seconds": "From the last death of the program to the end of its next new step.",
    "memory_bytes": "Resident memory of the program's process.",
}


class MetricsFile:
    """The event file for the run's metrics, in `<logdir>/procsv`.  The first metric creates it.

    The file needs a folder of its own.  TensorBoard reads the files of a folder one after another.
    In the trainer's folder, it could not follow this file and the trainer's while both grow.
    Metrics that cannot be written are dropped, because the next ones replace them.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file: EventFile | None = None
        self._trouble = ""

    def write_record(self, metrics: RunMetrics, wall_s: float) -> None:
        """Writes one record.  `wall_s` is the time in the name and the first events of a new file."""
        values = [
            Summary.Value(tag=tag, simple_value=value, metadata=_describe(tag)) for tag, value in metrics.values.items()
        ]
        event = Event(wall_time=metrics.wall_s, step=max(metrics.step, 0), summary=Summary(value=values))
        try:
            if self._file is not None and self._file.trouble():
                self._file.close()
                self._file = None
            if self._file is None:
                self._file = EventFile(self._directory / new_name(self._directory, wall_s, 0, ".figures"))
                self._file.append_records([_layout_event(wall_s)], wall_s)
            self._file.append_records([event.SerializeToString()], wall_s)
            self._trouble = ""
        except OSError as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                say(f"figures of the run are not written: {error}")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _layout_event(wall_s: float) -> bytes:
    """Returns the layout that groups procsv's curves in TensorBoard's Custom Scalars.

    It goes into this file because a layout among the program's event files would hide the program's
    own layout.
    """
    layout = Layout(
        category=[
            Category(
                title="procsv",
                chart=[Chart(title=title, multiline=MultilineChartContent(tag=[tag])) for title, tag in CHARTS.items()],
            )
        ]
    )
    metadata = SummaryMetadata(
        plugin_data=SummaryMetadata.PluginData(plugin_name="custom_scalars"), data_class=DATA_CLASS_TENSOR
    )
    tensor = TensorProto(dtype=DT_STRING, string_val=[layout.SerializeToString()])
    value = Summary.Value(tag=LAYOUT_TAG, tensor=tensor, metadata=metadata)
    data: bytes = Event(wall_time=wall_s, summary=Summary(value=[value])).SerializeToString()
    return data


def _describe(tag: str) -> SummaryMetadata:
    """Returns the description that TensorBoard shows beside the tag's name."""
    text = MEANING.get(tag.removeprefix("procsv/seconds/").removeprefix("procsv/"), "")
    return SummaryMetadata(summary_description=f"{text} The axis is the run's seconds." if text else "")
