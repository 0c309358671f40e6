"""Provide SessionManager, which restores the run's newest state for a chief.

It also makes workers wait less for the chief's model. TensorFlow's manager checks only every
`recovery_wait_secs` (30 s) whether the model is ready, so a worker that starts just before its
chief loses half a minute. TensorFlow's manager also gives up one period early. The Supervisor and
monitored sessions use this manager by default.
"""

from __future__ import annotations

import gc
import threading
import time
from typing import Any

import tensorflow as tf
from tensorflow.python.training import server_lib

from procsv.base.system.failpoints import declare, failpoint
from procsv.ipc.messaging.checkpoint_messages import Restored
from procsv.training.graph.state import GraphState
from procsv.training.graph.user_saves import written_at
from procsv.training.runtime.context import Runtime
from procsv.training.snapshots.restore_client import BY_CHIEF, Origin, ask_newest, restore_newest

tf1 = tf.compat.v1

LOCAL = "local"
CONFIG_AT = 6  # index of `config` among the arguments of prepare_session that follow `master`
# A worker's pause after its first check of the model, and the factor by which each further pause grows, up to
# recovery_wait_secs.
FIRST_PAUSE_S, PAUSE_FACTOR = 0.05, 1.5

declare("trainer.before_mark")

_lock = threading.Lock()
_server: Any = None


def resolve_master(master: Any) -> Any:
    """Return the target to open a session on; 'local' means this process's own server.

    TensorFlow documents 'local', but TensorFlow 2 does not support it. The server starts when it is
    first used. It lives as long as the process, because TensorFlow cannot stop it.
    """
    global _server
    if master != LOCAL:
        return master
    with _lock:
        if _server is None:
            _server = tf1.train.Server.create_local_server()
        return _server.target


def restore_into(runtime: Runtime, session: Any, saver: Any) -> Origin:
    """Restore the newest state into `session`, and the list of checkpoints into `saver`."""
    origin = restore_newest(runtime, GraphState(session, saver))
    if origin.source != "fresh":
        saver.set_last_checkpoints_with_time([(path, written_at(path)) for path in origin.listed])
    return origin


class SessionManager(tf1.train.SessionManager):  # type: ignore[name-defined]  # tensorflow is untyped
    """Restores the newest state for a chief, and makes a worker wait for its chief.

    The state comes from memory or disk. A worker checks with growing pauses whether the chief's
    model is ready.

    If servers in other processes hold the variables, the values may have survived an earlier chief.
    The new chief keeps these values if they are complete and not older than the newest saved state.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.runtime: Runtime | None = None  # None: restores like TensorFlow's manager
        self.origin: Origin | None = None  # of the last session's state; None: TensorFlow's manager chose it

    def prepare_session(self, master: str, *args: Any, **kwargs: Any) -> Any:
        """Make a session with the newest state, a surviving model, or initialized variables."""
        if not master or not is_elsewhere(self._graph):
            return super().prepare_session(master, *args, **kwargs)
        config = kwargs.get("config", args[CONFIG_AT] if len(args) > CONFIG_AT else None)
        mark = WholeMark(master, self._graph, config)
        try:
            if mark.is_set() and (session := self._session_on_survivor(master, config)) is not None:
                return session
            mark.clear()  # after a kill from here on, the next chief restores even over a live model
            session = super().prepare_session(master, *args, **kwargs)
            failpoint("trainer.before_mark")
            mark.set()
        finally:
            mark.close()
        return session

    def _session_on_survivor(self, master: str, config: Any) -> Any:
        """Open a session on the model that survived behind `master`.

        Return None if the model is not ready, or is older than the saved state.
        """
        self._target = master
        session = tf1.Session(master, graph=self._graph, config=config)
        try:
            if (
                self._why_not_ready(session) == (None, None)
                and (origin := self._origin_of_survivor(session)) is not None
            ):
                self.origin = origin
                return session
        except BaseException:
            self._safe_close(session)
            raise
        self._safe_close(session)
        return None

    def _origin_of_survivor(self, session: Any) -> Origin | None:
        """Return the origin of the surviving model, on which `session` is open.

        Return None if the model is older than the saved state.
        """
        step = tf1.train.get_global_step(self._graph)
        now = int(session.run(step)) if step is not None else -1
        if self.runtime is None:
            return Origin("alive", "", now)
        saved = ask_newest(self.runtime, durable_only=False)
        if saved.source != "fresh" and 0 <= now < saved.step:
            tf1.logging.warning(
                "procsv: the model on the servers is at step %d, but step %d is saved: restoring the saved one",
                now,
                saved.step,
            )
            return None
        self.runtime.connection.tell_checkpoint(Restored())
        return Origin("alive", "", now, tuple(saved.all_paths))

    def _restore_checkpoint(
        self,
        master: str,
        saver: Any = None,
        checkpoint_dir: str | None = None,
        checkpoint_filename_with_path: str | None = None,
        wait_for_checkpoint: bool = False,
        max_wait_secs: float = 7200,
        config: Any = None,
    ) -> tuple[Any, bool]:
        self.origin = None
        if self.runtime is None or saver is None or not checkpoint_dir or checkpoint_filename_with_path:
            wait = (wait_for_checkpoint, max_wait_secs, config)
            session, is_restored = super()._restore_checkpoint(
                master, saver, checkpoint_dir, checkpoint_filename_with_path, *wait
            )
            return session, is_restored
        self._target = master
        session = tf1.Session(master, graph=self._graph, config=config)
        try:
            initializers = self._graph.get_collection("saved_model_initializers")
            if initializers:
                session.run(initializers)
            self.origin = restore_into(self.runtime, session, saver)
            waited_until_s = time.monotonic() + max_wait_secs
            while self.origin.source == "fresh" and wait_for_checkpoint and time.monotonic() < waited_until_s:
                tf1.logging.info("Waiting for checkpoint to be available.")
                _pause(min(self._recovery_wait_secs, max(0.0, waited_until_s - time.monotonic())))
                self.origin = restore_into(self.runtime, session, saver)
        except BaseException:
            session.close()
            raise
        return session, self.origin.source != "fresh"

    def wait_for_session(self, master: str, config: Any = None, max_wait_secs: float | None = float("inf")) -> Any:
        """Wait until the model is ready, and return a session for it.

        Raise DeadlineExceededError after `max_wait_secs`. None means no limit.
        """
        self._target = master
        limit_s = float("inf") if max_wait_secs is None else max_wait_secs
        deadline_s, pause_s = time.monotonic() + limit_s, min(FIRST_PAUSE_S, self._recovery_wait_secs)
        while True:
            session = tf1.Session(master, graph=self._graph, config=config)
            try:
                why_local, why = self._why_not_ready(session)
                if why_local is None and why is None:  # check the mark last: a chief clears it before it changes values
                    why = self._why_not_whole(master, config)
            except BaseException:
                self._safe_close(session)
                raise
            if why_local is None and why is None:
                self.origin = BY_CHIEF
                return session
            self._safe_close(session)
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise tf.errors.DeadlineExceededError(
                    None, None, f"Session was not ready after waiting {int(limit_s)} secs."
                )
            tf1.logging.info("Waiting for model to be ready.  Ready_for_local_init_op:  %s, ready: %s", why_local, why)
            _pause(min(pause_s, left_s))
            pause_s = min(PAUSE_FACTOR * pause_s, self._recovery_wait_secs)

    def _why_not_whole(self, master: str, config: Any) -> str | None:
        """Return why a model whose variables all have values is incomplete; None if it is whole."""
        if not master or not is_elsewhere(self._graph):
            return None
        mark = WholeMark(master, self._graph, config)
        try:
            return "the chief has not finished initializing the model" if mark.is_cleared() else None
        finally:
            mark.close()

    def _why_not_ready(self, session: Any) -> tuple[str | None, str | None]:
        """Return why the model is not ready for local initialization, and why it is not ready.

        Return (None, None) if the model is ready.
        """
        is_initialized, why_local = self._try_run_local_init_op(session)
        if not is_initialized:
            return why_local or "not ready", None
        is_ready, why = self._model_ready(session)
        return None, None if is_ready else why or "not ready"


def _pause(seconds: float) -> None:
    threading.Event().wait(seconds)


# -- a model that outlives its chief ---------------------------------------------------------------
# Variables on servers in other processes survive the death of the chief, and the workers go on training them. A
# restarted chief must not overwrite these variables with an older state. It cannot rely on the check that all variables
# are initialized: the previous chief may have died while it initialized or restored them, and left some old and some
# new values. So there is a mark beside the model. A chief clears the mark before it touches the model, and sets it when
# the model is whole. A kill in between leaves the mark cleared, and the next chief restores the model. Workers check
# the mark, too. If one of several servers was lost, the variables of the other servers have values while the chief
# restores all variables.
NAME = "procsv/model_is_whole"  # shared by all sessions on these servers


class WholeMark:
    """Marks whether the model of `graph` behind `master` is whole; release it with `close`.

    The mark is a variable on the same device as the model's first variable. It lives as long as the
    process that holds both. The WholeMark accesses it through a graph and a session of its own, so
    the program's graph, savers and readiness checks do not see the mark.
    """

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
        """Return whether a chief is making the model whole, or has died while it did so.

        Return False if there is no mark, because the chief does not use one.
        """
        return bool(self._session.run(self._is_there)) and not bool(self._session.run(self._value))

    def set(self) -> None:
        self._session.run(self._set)

    def clear(self) -> None:
        self._session.run(self._clear)

    def close(self) -> None:
        self._session.close()


def is_elsewhere(graph: Any) -> bool:
    """Return whether variables of `graph` are in other processes.

    A variable whose device names no job is where the session is opened. That is this process if it
    runs a server, and another process if not.
    """
    own = _own_tasks()
    for variable in graph.get_collection(tf1.GraphKeys.GLOBAL_VARIABLES):
        place = tf.DeviceSpec.from_string(variable.device or "")
        if (place.job, place.task or 0) not in own if place.job is not None else not own:
            return True
    return False


def _own_tasks() -> set[tuple[str, int]]:
    """Return job and task of each server in this process. TensorFlow keeps no list of servers."""
    servers = [found.server_def for found in gc.get_objects() if type(found) is server_lib.Server]
    return {(server.job_name, server.task_index) for server in servers}


def _device_of_first(graph: Any) -> str:
    return next((str(v.device) for v in graph.get_collection(tf1.GraphKeys.GLOBAL_VARIABLES)), "")
