"""Provide TensorFlow's Scaffold and session creators, with clearer errors and more patient workers.

Programs and monitored sessions use these classes, which know nothing of procsv's services.
monitored_controller.py gives a chief's creator a session manager, and the session manager decides
where the state comes from.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.training import monitored_session as tf_monitored

from procsv.training.sessions.session_manager import SessionManager

tf1 = tf.compat.v1

RECOVERY_WAIT_SECS = 30  # a worker checks at least this often whether the model is ready, as in TensorFlow

SessionCreator = tf_monitored.SessionCreator


class Scaffold(tf_monitored.Scaffold):
    """tf.compat.v1.train.Scaffold, except that the error for an ambiguous collection names it."""

    _finalized: Any = None  # the graph that `finalize` last finished

    def finalize(self) -> Any:
        """Create the ops that are missing, and finalize the graph.

        Raise RuntimeError if a collection has several candidates for an op.
        """
        graph = tf1.get_default_graph()
        if graph is self._finalized and graph.finalized:
            return self
        keys = tf1.GraphKeys
        for name, key, given in (
            ("init_op", keys.INIT_OP, self._init_op),
            ("ready_op", keys.READY_OP, self._ready_op),
            ("ready_for_local_init_op", keys.READY_FOR_LOCAL_INIT_OP, self._ready_for_local_init_op),
            ("local_init_op", keys.LOCAL_INIT_OP, self._local_init_op),
            ("summary_op", keys.SUMMARY_OP, self._summary_op),
        ):
            if given is None:
                _check_unambiguous(name, key)
        super().finalize()
        self._finalized = graph
        return self

    @staticmethod
    def get_or_default(arg_name: str, collection_key: str, default_constructor: Any) -> Any:
        """Return the item of a collection. If the collection is empty, add a new item first.

        Raise RuntimeError if it has several items.
        """
        _check_unambiguous(arg_name, collection_key)
        return _get_or_default(arg_name, collection_key, default_constructor)


_get_or_default = tf_monitored.Scaffold.get_or_default


def _check_unambiguous(name: str, key: str) -> None:
    if len(tf1.get_collection(key)) > 1:
        raise RuntimeError(
            f'More than one item in the collection "{key}". Please indicate which one to use by passing it to '
            f"the tf.Scaffold constructor as:  tf.Scaffold({name}=item to use)"
        )


def session_manager(scaffold: Any, graph: Any) -> SessionManager:
    """Make the session manager for a finalized scaffold."""
    return SessionManager(
        local_init_op=scaffold.local_init_op,
        local_init_feed_dict=scaffold.local_init_feed_dict,
        ready_op=scaffold.ready_op,
        ready_for_local_init_op=scaffold.ready_for_local_init_op,
        graph=graph,
        recovery_wait_secs=RECOVERY_WAIT_SECS,
    )


class ChiefSessionCreator(tf_monitored.ChiefSessionCreator):
    """tf.compat.v1.train.ChiefSessionCreator with procsv's Scaffold by default."""

    def __init__(
        self,
        scaffold: Any = None,
        master: Any = "",
        config: Any = None,
        checkpoint_dir: Any = None,
        checkpoint_filename_with_path: Any = None,
    ) -> None:
        super().__init__(scaffold or Scaffold(), master, config, checkpoint_dir, checkpoint_filename_with_path)


class WorkerSessionCreator(tf_monitored.WorkerSessionCreator):
    """A WorkerSessionCreator that checks often at first whether the chief's model is ready.

    It gives up after `max_wait_secs`, and not one period earlier as TensorFlow's does.
    """

    def __init__(
        self, scaffold: Any = None, master: Any = "", config: Any = None, max_wait_secs: float = 30 * 60
    ) -> None:
        super().__init__(scaffold or Scaffold(), master, config, max_wait_secs)

    _session_manager: Any

    def _get_session_manager(self) -> Any:
        if self._session_manager is None:
            self._session_manager = session_manager(self._scaffold, tf1.get_default_graph())
        return self._session_manager
