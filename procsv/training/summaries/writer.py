"""FileWriter without a thread or a file: TensorFlow builds the events, the summary service writes them.

Used by the Supervisor, the hooks and the program wherever TensorFlow's FileWriter would be.  Only `flush` and `close` block
the caller, and for a limited time.
"""

from __future__ import annotations

import os
from typing import Any

import tensorflow as tf
from tensorflow.python.summary.writer.writer import SummaryToEventTransformer

from procsv.training.runtime.event_streams import EventSink

FLUSH_S_MAX = 30.0  # `flush` and `close` wait so long for the service; then they warn, and the records stay queued


class SinkEventWriter:
    """Receives the events of a SummaryToEventTransformer, for one stream after another of an EventSink."""

    def __init__(self, sink: EventSink, logdir: str, filename_suffix: str, flush_s_max: float) -> None:
        self._sink = sink
        self._logdir = logdir
        self._suffix = filename_suffix
        self._flush_s_max = flush_s_max
        tf.io.gfile.makedirs(logdir)
        self._stream = sink.open_stream(logdir, filename_suffix)
        self._is_closed = False

    def get_logdir(self) -> str:
        return self._logdir

    def add_event(self, event: Any) -> None:
        """Queues an Event as it is now; drops it if the writer is closed."""
        if not self._is_closed:
            self._sink.add_event(self._stream, event.SerializeToString())

    def flush(self) -> None:
        if not self._is_closed and not self._sink.flush_stream(self._stream, self._flush_s_max):
            self._warn_of_late("flush")

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            if not self._sink.close_stream(self._stream, self._flush_s_max):
                self._warn_of_late("close")

    def reopen(self) -> None:
        if self._is_closed:
            self._stream = self._sink.open_stream(self._logdir, self._suffix)
            self._is_closed = False

    def _warn_of_late(self, what: str) -> None:
        tf.compat.v1.logging.warning(
            "procsv: %s of the event file in %s: %d records are not in it yet; they stay queued.",
            what,
            self._logdir,
            self._sink.unwritten(self._stream),
        )


class SummaryWriter(tf.compat.v1.summary.FileWriter):
    """tf.compat.v1.summary.FileWriter over an EventSink, its second argument.

    Interface and events are the same; each `reopen` after a `close` starts a new event file, which appears with its first
    event.  `max_queue` and `flush_secs` are ignored: nothing waits for room in the queue, and events are sent at once.
    `flush` returns when the events are in the file.

    With `session`, or a logdir that is not on a local file system ("gs://…"), TensorFlow's own writer does the
    work, as the service cannot.

    Raises RuntimeError if eager execution is enabled, like FileWriter.
    """

    def __init__(
        self,
        logdir: str | os.PathLike[str],
        sink: EventSink,
        graph: Any = None,
        max_queue: int = 10,
        flush_secs: float = 120,
        graph_def: Any = None,
        filename_suffix: str | None = None,
        session: Any = None,
        *,
        flush_s_max: float = FLUSH_S_MAX,
    ) -> None:
        if session is not None or "://" in str(logdir) or tf.executing_eagerly():
            super().__init__(logdir, graph, max_queue, flush_secs, graph_def, filename_suffix, session)
            return
        writer = SinkEventWriter(sink, str(logdir), filename_suffix or "", flush_s_max)
        self._closed = False
        # Past FileWriter's own constructor, which would start a thread and open a file.
        SummaryToEventTransformer.__init__(self, writer, graph, graph_def)
