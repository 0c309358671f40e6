"""Server for the master 'local', which TensorFlow documents and TensorFlow 2 lacks.

Called by the Supervisor and by monitored sessions.  There is one server a process, for as long as the process runs:
TensorFlow cannot stop one.
"""

from __future__ import annotations

import threading
from typing import Any

import tensorflow as tf

LOCAL = "local"

_lock = threading.Lock()
_server: Any = None


def resolve_master(master: Any) -> Any:
    """The target to open a session on; for 'local', that of this process's own server, started if necessary."""
    global _server
    if master != LOCAL:
        return master
    with _lock:
        if _server is None:
            _server = tf.compat.v1.train.Server.create_local_server()
        return _server.target
