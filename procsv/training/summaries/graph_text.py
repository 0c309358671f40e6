"""graph.pbtxt: the graph as text, which the summary service makes of what is laid down for it here.

Used by Supervisor and monitored sessions, once each.  Programs find the file when their session has been made, as with
TensorFlow: the first time, and for a graph that is soon printed, it is waited for.  Never writes the file itself, but
to a logdir that only TensorFlow's filesystem layer can reach.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from procsv.base.identity import SUMMARY
from procsv.base.text import is_remote
from procsv.ipc.messaging.messages import GraphText

if TYPE_CHECKING:
    from procsv.training.runtime.context import Runtime

NAME = "graph.pbtxt"
WAITED_FOR_BYTES_MAX = 1 << 20  # of the serialized graph: a second's printing; a larger one is not waited for
WAIT_S_MAX = 10.0  # then training begins without it; it comes later
LOOK_S = 0.005


def lay_graph_text(runtime: Runtime, graph: Any, logdir: str) -> None:
    """Has the text of the finalized `graph` put into `logdir`."""
    graph_def = graph.as_graph_def(add_shapes=True)
    if is_remote(logdir):
        tf.compat.v1.train.write_graph(graph_def, logdir, NAME)
        return
    data, path = graph_def.SerializeToString(), Path(logdir) / NAME
    is_new = not path.exists()  # else there is one to be found, and a restart is not to take longer for it
    parcel = runtime.streams.put_parcel(data)
    runtime.link.send_reliable(SUMMARY, GraphText(parcel, str(path)))
    if is_new and len(data) <= WAITED_FOR_BYTES_MAX:
        _wait_for(runtime, path)


def _wait_for(runtime: Runtime, path: Path) -> None:
    """It is replaced whole: once it is there, it is complete."""
    deadline_s, pause = runtime.clock.monotonic() + WAIT_S_MAX, threading.Event()
    while not path.exists() and runtime.clock.monotonic() < deadline_s:
        if runtime.stop_reason is not None or runtime.link.why_lost(SUMMARY):
            return
        pause.wait(LOOK_S)
