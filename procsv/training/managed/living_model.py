"""A model that outlives its chief, and the mark that tells whether it is whole.

Variables on the servers of other processes live on when the chief dies, and workers train them meanwhile: a chief that comes back
must not put an older state over theirs.  That all variables are initialized is not enough to go by: a chief may have died while it
initialized or restored them, with some of them old and some new.  So whoever makes a model whole takes the mark away first and sets it last.
Nor is it for a worker: where one of several servers was lost, the others have their variables while the chief puts all back.

The mark is a variable beside the model's first one, with the life of the process that holds both.  It is made by a graph and a
session of its own: the program's graph, savers and checks of readiness do not know of it.
"""

from __future__ import annotations

import gc
from typing import Any

import tensorflow as tf
from tensorflow.python.training import server_lib

tf1 = tf.compat.v1

NAME = "procsv/model_is_whole"  # shared by all sessions on these servers


class WholeMark:
    """The mark of the model of `graph` behind `master`; ends with `close`."""

    def __init__(self, master: str, graph: Any, config: Any) -> None:
        with tf.Graph().as_default() as own, tf.device(_device_of_first(graph)):
            handle = tf.raw_ops.VarHandleOp(dtype=tf.bool, shape=[], shared_name=NAME, container="")
            self._is_there = tf.raw_ops.VarIsInitializedOp(resource=handle)
            self._value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.bool)
            self._set, self._clear = (
                tf.raw_ops.AssignVariableOp(resource=handle, value=tf.constant(value)) for value in (True, False)
            )
            self._session = tf1.Session(master, graph=own, config=config)

    def is_set(self) -> bool:
        return bool(self._session.run(self._is_there)) and bool(self._session.run(self._value))

    def is_cleared(self) -> bool:
        """Whether a chief is making the model whole, or has died at that.  Of a chief that knows no mark there is none."""
        return bool(self._session.run(self._is_there)) and not bool(self._session.run(self._value))

    def set(self) -> None:
        self._session.run(self._set)

    def clear(self) -> None:
        self._session.run(self._clear)

    def close(self) -> None:
        self._session.close()


def is_elsewhere(graph: Any) -> bool:
    """Whether variables of `graph` lie in other processes.

    Those without a job of their own lie where the session begins: in this process, if it has a server.
    """
    own = _own_tasks()
    for variable in graph.get_collection(tf1.GraphKeys.GLOBAL_VARIABLES):
        place = tf.DeviceSpec.from_string(variable.device or "")
        if (place.job, place.task or 0) not in own if place.job is not None else not own:
            return True
    return False


def _own_tasks() -> set[tuple[str, int]]:
    """Job and task of the servers in this process, of which TensorFlow keeps no list."""
    servers = [found.server_def for found in gc.get_objects() if type(found) is server_lib.Server]
    return {(server.job_name, server.task_index) for server in servers}


def _device_of_first(graph: Any) -> str:
    return next((str(v.device) for v in graph.get_collection(tf1.GraphKeys.GLOBAL_VARIABLES)), "")
