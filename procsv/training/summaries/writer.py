"""Provide SummaryWriter, a FileWriter that needs no thread and opens no file.

TensorFlow builds the events, and the summary service writes them to the event file. A Supervisor
and a monitored session make a SummaryWriter. Hooks and the program write through it before, during
and after sessions. Only `flush` and `close` wait for the service, and only for a limited time.

`write_graph_text` has the service write the file `graph.pbtxt`.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.python.summary.writer.writer import SummaryToEventTransformer

from procsv.base.identity import SUMMARY
from procsv.base.location import local_path
from procsv.ipc.messaging.summary_messages import GraphText
from procsv.training.runtime.event_streams import EventStreams

if TYPE_CHECKING:
    from procsv.training.runtime.context import Runtime


FLUSH_S_MAX = 30.0  # how long `flush` and `close` wait for the service; then they warn, and the records stay queued


class StreamEventWriter:
    """Queues the events that a SummaryToEventTransformer builds, for the summary service.

    Each `reopen` after a `close` opens a new stream of events. The service writes each stream to an
    event file of its own.
    """

    def __init__(self, streams: EventStreams, logdir: str) -> None:
        self._streams, self._logdir = streams, logdir
        tf.io.gfile.makedirs(logdir)
        self._stream = streams.open_stream(logdir)
        self._is_closed = False
        self.held = contextlib.ExitStack()  # `close` releases what the owner has entered here

    def get_logdir(self) -> str:
        return self._logdir

    def add_event(self, event: Any) -> None:
        """Queue an Event as it is now. Drop it if the writer is closed."""
        if not self._is_closed:
            self._streams.add_event(self._stream, event.SerializeToString())

    def flush(self) -> None:
        if not self._is_closed and not self._streams.flush_stream(self._stream, FLUSH_S_MAX):
            self._warn_of_late("flush")

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            with self.held:
                if not self._streams.close_stream(self._stream, FLUSH_S_MAX):
                    self._warn_of_late("close")

    def reopen(self) -> None:
        if self._is_closed:
            self._stream = self._streams.open_stream(self._logdir)
            self._is_closed = False

    def _warn_of_late(self, what: str) -> None:
        tf.compat.v1.logging.warning(
            "procsv: %s of the event file in %s: %d records are not in it yet; they stay queued.",
            what,
            self._logdir,
            self._streams.unwritten(self._stream),
        )


class SummaryWriter(tf.compat.v1.summary.FileWriter):
    """A tf.compat.v1.summary.FileWriter whose file the summary service writes.

    Its methods and events are those of FileWriter. Each `reopen` after a `close` starts a new event
    file, which appears with its first event. `flush` returns when the events are in the file, or
    warns after `FLUSH_S_MAX`. The service cannot reach a remote logdir ("gs://…"), so TensorFlow's
    own writer writes there. Raises RuntimeError under eager execution, as FileWriter does.
    """

    def __init__(self, logdir: str | os.PathLike[str], streams: EventStreams) -> None:
        if local_path(str(logdir)) is None or tf.executing_eagerly():
            super().__init__(logdir)
            return
        self._closed = False
        # Skips FileWriter's own constructor, which would start a thread and open a file.
        SummaryToEventTransformer.__init__(self, StreamEventWriter(streams, str(logdir)))

    def hold_run(self, runtime: Runtime) -> None:
        """Without `procsv launch`, keep the run open until `close`, even when a session ends.

        The program's next session then continues this event file. Under `procsv launch` this does
        nothing, because the run outlives sessions anyway.
        """
        if runtime.observer is not None and isinstance(self.event_writer, StreamEventWriter):
            self.event_writer.held.enter_context(runtime.held_run())


GRAPH_FILE = "graph.pbtxt"
WAITED_FOR_BYTES_MAX = 1 << 20  # training does not wait for a larger graph; the service needs a second for this size
WAIT_S_MAX = 10.0  # after that, training starts without the file, which appears later
FILE_POLL_S = 0.005


def write_graph_text(runtime: Runtime, graph: Any, logdir: str) -> None:
    """Write the text of the finalized `graph` to `graph.pbtxt` in `logdir`.

    The summary service writes the file. This process writes it if `logdir` is remote, or if the
    services are on another machine. Under TensorFlow's classes, a program finds the file as soon as
    it has its session. So this function waits up to `WAIT_S_MAX` for a file that is new and small
    enough to be written soon. It gives up early if the run is stopped or the service is lost.
    """
    graph_def = graph.as_graph_def(add_shapes=True)
    directory = local_path(logdir)
    if directory is None or runtime.connection.start.is_member:
        tf.compat.v1.train.write_graph(graph_def, logdir, GRAPH_FILE)
        return
    data, path = graph_def.SerializeToString(), directory.absolute() / GRAPH_FILE
    is_new = not path.exists()  # otherwise programs find the old file, and a restart does not wait
    parcel = runtime.connection.streams.put_parcel(data)
    runtime.connection.link.send_reliable(SUMMARY, GraphText(parcel, str(path)))
    if not is_new or len(data) > WAITED_FOR_BYTES_MAX:
        return
    deadline_s, pause = runtime.clock.monotonic() + WAIT_S_MAX, threading.Event()
    # The file is replaced whole: once it exists, it is complete.
    while not path.exists() and runtime.clock.monotonic() < deadline_s:
        if runtime.stops.reason is not None or runtime.connection.link.why_lost(SUMMARY):
            return
        pause.wait(FILE_POLL_S)
