"""Provide `procsv.Supervisor`, a replacement for tf.compat.v1.train.Supervisor.

It works with or without `procsv launch`. It extends TensorFlow's class: it has the same defaults
and services, and it stops and fails in the same way. It has two more arguments. For the user, four
things differ:

* A checkpoint starts as a snapshot between two steps, and the checkpoint service writes its files.
* The summary service writes the events.
* A session starts from the newest state, in memory or on disk.
* When a session ends, procsv writes a final checkpoint (unless `final_checkpoint=False`).
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.training import supervisor as tf_supervisor

from procsv.base.system.system_clock import SystemClock
from procsv.ipc.shm.heartbeat import Phase
from procsv.training.graph.save_config import SaveConfig
from procsv.training.runtime.context import Runtime, current
from procsv.training.runtime.program_calls import FROM_COMMAND_LINE, SnapshotSecs
from procsv.training.sessions import service_threads
from procsv.training.sessions.attach import attach, check_graph_mode
from procsv.training.sessions.coordinator import Coordinator
from procsv.training.sessions.session_controller import SessionController
from procsv.training.sessions.session_manager import SessionManager, resolve_master
from procsv.training.snapshots.restore_client import ask_newest
from procsv.training.summaries.writer import SummaryWriter

tf1 = tf.compat.v1
log = tf1.logging

# TensorFlow's constructor without the decorator that recommends another class.
_construct = getattr(tf_supervisor.Supervisor.__init__, "__wrapped__", tf_supervisor.Supervisor.__init__)
_TENSORFLOWS_ARGUMENTS = frozenset(inspect.signature(_construct).parameters) - {"self"}


class Supervisor(tf_supervisor.Supervisor):
    """A training helper that saves checkpoints and writes summaries in other processes.

    It has all arguments and methods of `tf.compat.v1.train.Supervisor`, and two more arguments:

    Args:
        snapshot_secs: Seconds between snapshots in memory. A crash costs the training since the
            last snapshot. By default `procsv launch --snapshot-secs` decides. "auto": as often as
            fits into 1 % of the training time, but no more than once every 0.1 s. None: a snapshot
            only for each checkpoint.
        final_checkpoint: Whether procsv writes a checkpoint of the last state when a session ends.
    """

    USE_DEFAULT = 0

    def __init__(
        self,
        graph: Any = None,
        ready_op: Any = USE_DEFAULT,
        ready_for_local_init_op: Any = USE_DEFAULT,
        is_chief: bool = True,
        init_op: Any = USE_DEFAULT,
        init_feed_dict: Any = None,
        local_init_op: Any = USE_DEFAULT,
        logdir: Any = None,
        summary_op: Any = USE_DEFAULT,
        saver: Any = USE_DEFAULT,
        global_step: Any = USE_DEFAULT,
        save_summaries_secs: Any = 120,
        save_model_secs: Any = 600,
        recovery_wait_secs: Any = 30,
        stop_grace_secs: Any = 120,
        checkpoint_basename: Any = "model.ckpt",
        session_manager: Any = None,
        summary_writer: Any = USE_DEFAULT,
        init_fn: Any = None,
        local_init_run_options: Any = None,
        *,
        snapshot_secs: SnapshotSecs = FROM_COMMAND_LINE,
        final_checkpoint: bool = True,
    ) -> None:
        given = {name: value for name, value in tuple(locals().items()) if name in _TENSORFLOWS_ARGUMENTS}
        check_graph_mode("Supervisors")
        # A chief without a logdir, or a worker outside `procsv launch`, has no runtime. It behaves like TensorFlow's class.
        self._runtime: Runtime | None = None
        self._controller: SessionController | None = None  # None without a runtime
        self._graph_added_to_summary = False
        self._attach(given)
        _construct(self, **given)
        self._coord = Coordinator()
        if self._runtime is not None:
            self._controller = self._make_controller(self._runtime, snapshot_secs, final_checkpoint)

    def _attach(self, given: dict[str, Any]) -> None:
        """Find this supervisor's run, and make the summary writer if this is a chief.

        Set `graph`, `logdir` and `summary_writer` in `given`, the arguments for TensorFlow's class.
        """
        if given["graph"] is None:
            given["graph"] = tf1.get_default_graph()
        if not given["is_chief"]:
            # A worker has no logdir, but procsv watches its steps and can stop it.
            self._runtime = current()
            return
        self._runtime, given["logdir"] = attach(
            given["logdir"], may_save=given["saver"] is not None, graph=given["graph"]
        )
        if given["summary_writer"] is Supervisor.USE_DEFAULT and self._runtime is not None:
            given["summary_writer"] = SummaryWriter(given["logdir"], self._runtime.connection.streams)

    def _make_controller(
        self, runtime: Runtime, snapshot_secs: SnapshotSecs, final_checkpoint: bool
    ) -> SessionController:
        controller = SessionController(runtime, final_checkpoint)
        controller.configure(SaveConfig.from_supervisor(self, snapshot_secs), self._save_path)
        controller.coord, controller.writer, controller.logs_saves = self._coord, self._summary_writer, True
        if isinstance(self._session_manager, SessionManager):
            controller.manager = self._session_manager
        return controller

    # -- defaults ----------------------------------------------------------------------------------
    def _init_session_manager(self, session_manager: Any = None) -> None:
        if session_manager is None:
            session_manager = SessionManager(
                local_init_op=self._local_init_op,
                ready_op=self._ready_op,
                ready_for_local_init_op=self._ready_for_local_init_op,
                graph=self._graph,
                recovery_wait_secs=self._recovery_wait_secs,
                local_init_run_options=self._local_init_run_options,
            )
        self._session_manager = session_manager

    def _default_global_step_tensor(self) -> Any:
        """Return the tensor or variable named global_step.

        A resource variable's tensor is only a handle, so the variable itself is returned.
        """
        for variable in tf1.global_variables():
            if variable.op.name == "global_step" and variable.dtype.base_dtype in (tf.int32, tf.int64):
                return variable
        return super()._default_global_step_tensor()

    # -- start of a session ------------------------------------------------------------------------
    def prepare_or_wait_for_session(
        self,
        master: str = "",
        config: Any = None,
        wait_for_checkpoint: bool = False,
        max_wait_secs: float = 7200,
        start_standard_services: bool = True,
    ) -> Any:
        """Return a session with the newest state, or with initialized variables.

        A task other than the chief waits until the chief has made the model ready.
        """
        master = resolve_master(master)
        self._coord.may_be_idle = bool(master)  # another process may do the work, so idle does not mean blocked
        # What the coordinator calls to wake blocked threads. `managed_session` sets it to close the session.
        self._coord.free = None
        controller = self._controller
        if controller is None or self._is_beside_its_chief(controller):
            return super().prepare_or_wait_for_session(
                master, config, wait_for_checkpoint, max_wait_secs, start_standard_services
            )
        runtime = controller.runtime
        controller.enter_run()
        controller.introduce_plan()
        runtime.heartbeat.enter_phase(Phase.CONNECT)
        if controller.manager is not None:
            controller.manager.runtime = runtime if controller.has_plan else None
        elif controller.has_plan:
            # This makes the checkpoint service save the last trainer's snapshot as a checkpoint, which the program's own
            # manager then finds.
            ask_newest(runtime, durable_only=True)
        waits = wait_for_checkpoint or not self._is_chief
        with runtime.heartbeat.waiting(max_wait_secs) if waits else contextlib.nullcontext():
            sess = super().prepare_or_wait_for_session(
                master, config, wait_for_checkpoint, max_wait_secs, start_standard_services
            )
            if not start_standard_services or not self._is_chief:
                controller.start_session(sess, saves=False)  # only its steps are watched
        return sess

    def _is_beside_its_chief(self, controller: SessionController) -> bool:
        """Whether this is a worker in the process of its chief, whose session already trains here."""
        return not self._is_chief and controller.runtime.training not in (None, controller.training)

    def _write_graph(self) -> None:
        """Write the events of the graph, and have the summary service write graph.pbtxt."""
        if self._controller is None:
            super()._write_graph()
            return
        self._controller.write_graph_text(self._graph, self._logdir)
        if self._summary_writer and not self._graph_added_to_summary:
            self._summary_writer.add_graph(self._graph)
            self._summary_writer.add_meta_graph(self._meta_graph_def)
            self._graph_added_to_summary = True

    def start_standard_services(self, sess: Any) -> Any:
        """Start the threads for summaries, the step counter and checkpoints, and return them.

        Without a logdir, log a warning and return None. Raise RuntimeError in a task that is not
        the chief.
        """
        if not self._is_chief:
            raise RuntimeError(
                "Only chief supervisor can start standard services. Because only chief supervisors can write events."
            )
        controller = self._controller
        if not self._logdir or controller is None:
            log.warning("Standard services need a 'logdir' passed to the SessionManager")  # TensorFlow's words
            return None
        controller.enter_run()
        controller.introduce_plan()
        if self._global_step is not None and self._summary_writer:
            start = tf1.SessionLog(status=tf1.SessionLog.START)
            first_step = service_threads.read_step(sess, self._global_step)
            self._summary_writer.add_session_log(start, first_step)
            controller.mark_attempt(first_step)
        training = controller.start_session(sess)
        controller.watch_close(sess)
        if self._saver is None:
            log.warning(
                "procsv: saver=None: nothing of this session is saved, so after a crash the program starts from the "
                "beginning; without this argument the Supervisor saves all variables"
            )
        if self._save_model_secs:
            training.save_first_state()
        if self._save_path and self._save_model_secs and getattr(self._saver, "_is_empty", False):
            self._saver.save(sess, self._save_path, global_step=self._global_step)  # writes only a .meta file
        return service_threads.start_standard(self, sess, training)

    # -- training ----------------------------------------------------------------------------------
    def loop(
        self, timer_interval_secs: float | None, target: Any, args: Any = None, kwargs: Any = None
    ) -> service_threads.TimedThread:
        """Start a thread that calls `target` every `timer_interval_secs` until the stop.

        If `timer_interval_secs` is None, the thread calls `target` without pauses.
        """
        clock = SystemClock()
        looper = service_threads.TimedThread(
            self._coord, self._graph, clock, timer_interval_secs, target=target, args=args, kwargs=kwargs
        )
        looper.start()
        return looper

    def summary_computed(self, sess: Any, summary: Any, global_step: Any = None) -> None:
        """Write `summary`, an object or its serialized bytes, at `global_step` or the present step."""
        if global_step is None and self._global_step is not None and self._summary_writer:
            global_step = service_threads.read_step(sess, self._global_step)
        super().summary_computed(sess, summary, global_step)

    # -- end ---------------------------------------------------------------------------------------
    def stop(self, threads: Any = None, close_summary_writer: bool = True, ignore_live_threads: bool = False) -> None:
        """Stop services and threads, save the last state and close the summary writer.

        It does not close the session.
        """
        controller = self._controller
        if controller is None:
            super().stop(threads, close_summary_writer, ignore_live_threads)
            return
        controller.let_close()
        self._coord.request_stop()
        if controller.is_in_run:
            controller.runtime.heartbeat.enter_phase(Phase.STOP)
        saved_step = controller.save_last_state()
        try:
            super().stop(threads, close_summary_writer=False, ignore_live_threads=ignore_live_threads)
        except BaseException as error:
            controller.runtime.record_failure(error)
            raise
        finally:
            controller.save_last_state(saved_step)  # a thread may have gone on training after the stop
            controller.end_session()
            if close_summary_writer and self._summary_writer:
                self._summary_writer.add_session_log(tf1.SessionLog(status=tf1.SessionLog.STOP))
                self._summary_writer.close()
                self._graph_added_to_summary = False
            elif isinstance(self._summary_writer, SummaryWriter) and controller.is_in_run:
                # Without `procsv launch`, the run lasts until the writer is closed. The next session continues the
                # writer's event file.
                self._summary_writer.hold_run(controller.runtime)
            controller.leave_run()

    @contextlib.contextmanager
    def managed_session(
        self,
        master: str = "",
        config: Any = None,
        start_standard_services: bool = True,
        close_summary_writer: bool = True,
    ) -> Iterator[Any]:
        """Open a session with the newest state, and start the services.

        At the end of the block it stops the services, saves the last state, closes the session and
        raises the first error that was reported.
        """
        try:
            session = self.prepare_or_wait_for_session(
                master=master, config=config, start_standard_services=start_standard_services
            )
        except BaseException as error:
            self._abandon(error)
            raise
        self._coord.free = session.close
        try:
            try:
                yield session
            except Exception as error:  # noqa: BLE001  stop() raises it again
                self.request_stop(error)
            except BaseException as exit_error:  # an interrupt or an exit; no later error replaces it
                if self._controller is not None:
                    self._controller.runtime.record_failure(exit_error)
                try:
                    self.stop(close_summary_writer=close_summary_writer)
                except Exception as error:  # noqa: BLE001  the interrupt is raised
                    log.error("procsv: stopping the session failed, too: %s: %s", type(error).__name__, error)
                raise
            self.stop(close_summary_writer=close_summary_writer)
        finally:
            self._coord.free = None
            with contextlib.suppress(Exception):
                session.close()

    def _abandon(self, error: BaseException) -> None:
        """Release all resources of a session that could not be opened."""
        if self._controller is not None:
            self._controller.runtime.record_failure(error)
            self._controller.end_session()
        self._coord.request_stop()
        with contextlib.suppress(Exception):  # the caller raises the first error
            self._coord.join(stop_grace_period_secs=self._stop_grace_secs, ignore_live_threads=True)
        if self._summary_writer:
            self._summary_writer.close()
        if self._controller is not None:
            self._controller.leave_run()


for _name, _alias in (
    ("prepare_or_wait_for_session", "PrepareSession"),
    ("start_queue_runners", "StartQueueRunners"),
    ("start_standard_services", "StartStandardServices"),
    ("stop", "Stop"),
    ("request_stop", "RequestStop"),
    ("loop", "Loop"),
    ("should_stop", "ShouldStop"),
    ("stop_on_exception", "StopOnException"),
    ("wait_for_stop", "WaitForStop"),
    ("summary_computed", "SummaryComputed"),
):
    setattr(Supervisor, _alias, getattr(Supervisor, _name))
