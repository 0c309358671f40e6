"""The master 'local': TensorFlow's in-process server, which the documentation promises and TensorFlow 2 has not.

Called by the Supervisor.  One server a process, as long as the process: TensorFlow cannot stop one.
"""

from __future__ import annotations

import threading
from typing import Any

import tensorflow as tf

LOCAL = "local"

_lock = threading.Lock()
_server: Any = None


def resolve_master(master: Any) -> Any:
    """The target to open a session on; 'local' becomes that of this process's own server, started now if need be."""
    global _server
    if master != LOCAL:
        return master
    with _lock:
        if _server is None:
            _server = tf.compat.v1.train.Server.create_local_server()
        return _server.target
