"""A checkpoint that lies here and not on the servers that restore it: read here, and sent to them.

Called by restore.py.  A Saver's restore ops read where their variables are, which with parameter servers may be another
machine that shares no files with the chief.  Only where TensorFlow's way has found no files there; one call sends all, so
that it is limited to what fits into one message (2 GB).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from procsv.training.graph.graph_diff import KeysMissing, restore_checkpoint
from procsv.training.graph.saver_ops import Unsupported, read_restore_graph

tf1 = tf.compat.v1


def restore_or_send(saver: Any, session: Any, path: str) -> None:
    """Restores checkpoint `path`; the error is TensorFlow's if neither way goes."""
    try:
        restore_checkpoint(saver, session, path)
    except KeysMissing:
        raise
    except tf.errors.NotFoundError as not_there:
        if not session.sess_str:
            raise  # this process reads its own files
        try:
            graph = read_restore_graph(saver, session.graph)
            reader = tf.train.load_checkpoint(path)
            feeds = {tensor: _part(reader.get_tensor(key), spec) for (key, spec), tensor in graph.outputs.items()}
            tf1.logging.info("procsv: the servers do not have %s: it is read here and sent to them", path)
            tf1.Session.run(session, session.graph.get_operation_by_name(graph.restore_op), feeds)
        except (Unsupported, ValueError, TypeError, tf.errors.OpError) as why_not:
            tf1.logging.warning("procsv: %s cannot be sent to the servers either: %s", path, why_not)
            raise not_there from why_not


def _part(whole: Any, spec: str) -> Any:
    """What `spec` names of a partitioned variable: its shape, then for each dimension "start,length" or "-" for all."""
    if not spec:
        return whole
    ranges = spec.split()[-1].split(":")
    bounds = [None if r == "-" else [int(x) for x in r.split(",")] for r in ranges]
    return np.asarray(whole)[tuple(slice(None) if b is None else slice(b[0], b[0] + b[1]) for b in bounds)]
