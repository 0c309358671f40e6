"""graph.pbtxt: hand the graph to the summary service, which writes it as text.

Used once by each Supervisor and monitored session.  As with TensorFlow, programs find the file when they have their session:
it is waited for if it is new and soon written.  Nothing here writes it, except to a logdir that only TensorFlow's filesystem
layer can reach, and on another machine than the service's.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from procsv.base.identity import SUMMARY
from procsv.base.location import local_path
from procsv.ipc.messaging.summary_messages import GraphText

if TYPE_CHECKING:
    from procsv.training.runtime.context import Runtime

NAME = "graph.pbtxt"
WAITED_FOR_BYTES_MAX = 1 << 20  # of the serialized graph: a second's work; a larger one is not waited for
WAIT_S_MAX = 10.0  # then training starts, and the file comes later
FILE_POLL_S = 0.005


def lay_graph_text(runtime: Runtime, graph: Any, logdir: str) -> None:
    """Has the text of the finalized `graph` written to `logdir`."""
    graph_def = graph.as_graph_def(add_shapes=True)
    directory = local_path(logdir)
    if directory is None or runtime.start.is_member:
        tf.compat.v1.train.write_graph(graph_def, logdir, NAME)
        return
    data, path = graph_def.SerializeToString(), directory.absolute() / NAME
    is_new = not path.exists()  # else programs find the old one, and a restart does not wait
    parcel = runtime.streams.put_parcel(data)
    runtime.link.send_reliable(SUMMARY, GraphText(parcel, str(path)))
    if not is_new or len(data) > WAITED_FOR_BYTES_MAX:
        return
    deadline_s, pause = runtime.clock.monotonic() + WAIT_S_MAX, threading.Event()
    while not path.exists() and runtime.clock.monotonic() < deadline_s:  # it is complete then, as it is replaced whole
        if runtime.stop_reason is not None or runtime.link.why_lost(SUMMARY):
            return
        pause.wait(FILE_POLL_S)
