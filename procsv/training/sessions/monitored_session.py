"""Provide MonitoredSession and SingularMonitoredSession.

Programs and MonitoredTrainingSession use them. After `procsv.install()` they replace TensorFlow's
classes. The order of calls, the layers and the errors are TensorFlow's. `control_session` decides
whether a session gets a MonitoredController, procsv's side of the session.
"""

from __future__ import annotations

import contextlib
import traceback
from types import TracebackType
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import distribute_coordinator_context
from tensorflow.python.training import monitored_session as tf_monitored

from procsv.training.graph.patches import AttributePatch
from procsv.training.runtime.program_calls import FROM_COMMAND_LINE, SnapshotSecs
from procsv.training.sessions.attach import check_graph_mode
from procsv.training.sessions.coordinator import Coordinator
from procsv.training.sessions.monitored_controller import MonitoredController, control_session
from procsv.training.sessions.scaffold import ChiefSessionCreator
from procsv.training.sessions.session_layers import _CoordinatedSession, _HookedSession, _RecoverableSession
from procsv.training.sessions.session_manager import resolve_master

tf1 = tf.compat.v1
log = tf1.logging

SILENT_ENDS = (tf.errors.OutOfRangeError, StopIteration)  # these alone end a `with` block without an error


class CoordinatedSessionCreator(tf_monitored.SessionCreator):
    """Makes a session, starts its threads and passes it to the hooks.

    If a thread does not start or a hook raises an error, it closes the session.
    """

    def __init__(
        self, creator: Any, hooks: list[Any], stop_grace_period_secs: float, controller: MonitoredController | None
    ) -> None:
        self._session_creator, self._hooks, self._controller = creator, hooks, controller
        self._stop_grace_period_secs = stop_grace_period_secs
        self.coord: Any = None
        self.tf_sess: Any = None

    def create_session(self) -> Any:
        """Make a new session, and wrap it in the layers for its coordinator and hooks."""
        controller, creator = self._controller, self._session_creator
        with contextlib.ExitStack() as around:
            if hasattr(creator, "_master"):
                around.enter_context(AttributePatch(creator, "_master", resolve_master))
            if controller is not None:
                controller.prepare_session(creator)
                around.enter_context(controller.waiting(creator))
            self.tf_sess = creator.create_session()
        coord = self.coord = Coordinator(clean_stop_exception_types=[])
        try:
            coord.may_be_idle = bool(getattr(creator, "_master", ""))
            coord.free = self.tf_sess.close
            if controller is not None:
                controller.watch_session(self.tf_sess, coord)
            if tf1.get_collection(tf1.GraphKeys.QUEUE_RUNNERS):
                tf1.train.start_queue_runners(sess=self.tf_sess, coord=coord)
            for hook in self._hooks:
                hook.after_create_session(self.tf_sess, coord)
            if controller is not None:
                controller.begin_training(self.tf_sess.graph)
        except BaseException:
            self._drop()
            raise
        hooked = _HookedSession(self.tf_sess, self._hooks)
        hooked._should_stop = controller is not None and controller.is_at_the_end()
        before_close = () if controller is None else (controller.end_session,)
        return _CoordinatedSession(hooked, coord, self._stop_grace_period_secs, *before_close)

    def _drop(self) -> None:
        """Close what was opened. Suppress further errors, because the caller raises the first."""
        if self._controller is not None:
            self._controller.end_session()
        self.coord.request_stop()
        with contextlib.suppress(Exception):
            self.coord.join(stop_grace_period_secs=self._stop_grace_period_secs, ignore_live_threads=True)
        with contextlib.suppress(Exception):
            self.tf_sess.close()
        self.tf_sess = self.coord = None


class Monitored:
    """What MonitoredSession and SingularMonitoredSession share.

    List it before TensorFlow's class among the bases.
    """

    _CoordinatedSessionCreator = CoordinatedSessionCreator

    def _open(
        self,
        session_creator: Any,
        hooks: Any,
        should_recover: bool,
        stop_grace_period_secs: float,
        snapshot_secs: SnapshotSecs,
        final_checkpoint: bool,
    ) -> None:
        check_graph_mode("Monitored sessions")
        self._graph_was_finalized = tf1.get_default_graph().finalized
        self._hooks = list(hooks or [])
        self._raised_by_run: BaseException | None = None
        self._sess: Any = None
        self._controller = None
        worker_context = distribute_coordinator_context.get_current_worker_context()
        if not worker_context:
            session_creator = session_creator or ChiefSessionCreator()
            self._controller = control_session(self._hooks, session_creator, snapshot_secs, final_checkpoint)
        controller = self._controller
        try:
            if controller is not None:
                controller.open_writers(self._hooks, session_creator)
            for hook in self._hooks:
                hook.begin()
            creator = session_creator or worker_context.session_creator()
            self._coordinated_creator = self._CoordinatedSessionCreator(
                creator, self._hooks, stop_grace_period_secs, controller
            )
            if should_recover:
                callbacks = (controller.pause_recovery, controller.note_lost_session) if controller is not None else ()
                self._sess = _RecoverableSession(self._coordinated_creator, *callbacks)
            else:
                self._sess = self._coordinated_creator.create_session()
        except BaseException as error:
            if controller is not None:
                controller.runtime.record_failure(error)
            self._release_controller()
            raise

    def run(self, fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None) -> Any:
        """Like `tf.compat.v1.Session.run`, with the hooks around it."""
        try:
            return self._sess.run(fetches, feed_dict=feed_dict, options=options, run_metadata=run_metadata)
        except SILENT_ENDS as error:
            self._raised_by_run = error
            raise

    def run_step_fn(self, step_fn: Any) -> Any:
        """Call `step_fn(step_context)`. Raise ValueError if `step_fn` takes other arguments."""
        try:
            return super().run_step_fn(step_fn)  # type: ignore[misc]  # TensorFlow's
        except SILENT_ENDS as error:
            self._raised_by_run = error
            raise

    def __exit__(
        self, exception_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if exception_type in SILENT_ENDS:
            if error is not self._raised_by_run:
                log.warning("Training ends, as at the end of its input, by %s", _describe_error(error, trace))
            exception_type = error = None
        if error is not None and self._controller is not None:
            self._controller.runtime.record_failure(error)
        try:
            self._close_internal(exception_type)
        except Exception as later:
            if exception_type is None or issubclass(exception_type, Exception):
                raise
            # An interrupt or an exit is under way, and no later error may replace it.
            log.error("procsv: closing the session failed, too: %s: %s", type(later).__name__, later)
        return exception_type is None

    def _close_internal(self, exception_type: type[BaseException] | None = None) -> None:
        if self._sess is None:
            raise RuntimeError("Session is already closed.")
        try:
            if self._controller is not None:
                self._controller.mark_final()
            if not exception_type:
                for hook in self._hooks:
                    hook.end(self._coordinated_creator.tf_sess)
        finally:
            try:
                if self._controller is not None:
                    self._controller.save_at_end(exception_type)
            finally:
                self._close_session()

    def _close_session(self) -> None:
        try:
            self._sess.close()
        except BaseException as error:
            if self._controller is not None:
                self._controller.runtime.record_failure(error)
            raise
        finally:
            self._sess = None
            self._coordinated_creator.tf_sess = None
            self._coordinated_creator.coord = None
            if not self._graph_was_finalized:
                tf1.get_default_graph()._unsafe_unfinalize()
            self._release_controller()

    def _release_controller(self) -> None:
        controller, self._controller = self._controller, None
        if controller is not None:
            controller.close_controller()


def _describe_error(error: BaseException | None, trace: TracebackType | None) -> str:
    """Describe an error that no run raised, with the place where it was raised."""
    frames = traceback.extract_tb(trace)
    where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "an unknown place"
    return f"{type(error).__name__}({error}) raised at {where}, not by a run of the session"


class MonitoredSession(Monitored, tf_monitored.MonitoredSession):
    """A session that handles initialization, recovery and hooks.

    It extends `tf.compat.v1.train.MonitoredSession` with two arguments. They take effect if a hook
    is a CheckpointSaverHook:

    Args:
        snapshot_secs: Seconds between snapshots in memory. A crash costs the training since the
            last snapshot. By default `procsv launch --snapshot-secs` decides. "auto": as often as
            possible while snapshots cost at most 1 % of the training time. None: a snapshot only
            for each checkpoint.
        final_checkpoint: Whether every end of the session, also an error, leaves a checkpoint of
            the last state. A call that failed may have made half a step. Then the checkpoint is
            made from the newest snapshot. A model that has diverged is not saved. False: only the
            hooks save at the end, and TensorFlow calls them only if there was no error.
    """

    def __init__(
        self,
        session_creator: Any = None,
        hooks: Any = None,
        stop_grace_period_secs: float = 120,
        *,
        snapshot_secs: SnapshotSecs = FROM_COMMAND_LINE,
        final_checkpoint: bool = True,
    ) -> None:
        self._open(session_creator, hooks, True, stop_grace_period_secs, snapshot_secs, final_checkpoint)


class SingularMonitoredSession(Monitored, tf_monitored.SingularMonitoredSession):
    """A chief's session that does not recover from lost connections, and has `raw_session()`.

    It extends `tf.compat.v1.train.SingularMonitoredSession`. It takes the same keyword-only
    arguments as MonitoredSession.
    """

    def __init__(
        self,
        hooks: Any = None,
        scaffold: Any = None,
        master: Any = "",
        config: Any = None,
        checkpoint_dir: Any = None,
        stop_grace_period_secs: float = 120,
        checkpoint_filename_with_path: Any = None,
        *,
        snapshot_secs: SnapshotSecs = FROM_COMMAND_LINE,
        final_checkpoint: bool = True,
    ) -> None:
        creator = ChiefSessionCreator(scaffold, master, config, checkpoint_dir, checkpoint_filename_with_path)
        self._open(creator, hooks, False, stop_grace_period_secs, snapshot_secs, final_checkpoint)
