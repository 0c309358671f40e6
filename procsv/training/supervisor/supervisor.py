"""`procsv.Supervisor`: a drop-in for tf.compat.v1.train.Supervisor.

Used by a training program, under `procsv launch` or by itself.  Constructor defaults, services, stop and errors are
those of TensorFlow's class, which it extends; what differs: checkpoints are snapshots taken between two steps and
written by the checkpoint service, events are written by the summary service, a session starts from the newest
state there is (in memory or on disk), and one that ends has a last checkpoint.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import os
from contextlib import AbstractContextManager
from typing import Any, Literal

import tensorflow as tf
from tensorflow.python.training import supervisor as tf_supervisor

from procsv.base.system_clock import SystemClock
from procsv.base.text import is_remote
from procsv.ipc.messaging.messages import Durable, Reason
from procsv.ipc.shm.heartbeat import Phase
from procsv.training.graph.restore import Origin, SessionManager, ask_newest, written_at
from procsv.training.graph.save_config import SaveConfig
from procsv.training.graph.user_saves import UserSaves
from procsv.training.managed.coordinator import Coordinator
from procsv.training.managed.ending import NOT_SAVED, managed, save_last
from procsv.training.managed.local_master import resolve_master
from procsv.training.managed.wait_for_chief import WaitingSessionManager
from procsv.training.runtime.attach import attach
from procsv.training.runtime.context import Runtime, current
from procsv.training.snapshots.training_run import TrainingRun
from procsv.training.summaries.graph_text import lay_graph_text
from procsv.training.summaries.writer import HeldSink, SummaryWriter
from procsv.training.supervisor import service_threads

tf1 = tf.compat.v1
log = tf1.logging

# TensorFlow's constructor without the decorator that tells people to use something else.
_construct = getattr(tf_supervisor.Supervisor.__init__, "__wrapped__", tf_supervisor.Supervisor.__init__)
_TENSORFLOWS_ARGUMENTS = frozenset(inspect.signature(_construct).parameters) - {"self"}


class Supervisor(tf_supervisor.Supervisor):
    """A training helper that checkpoints models and computes summaries, in other processes.

    All arguments and methods are those of `tf.compat.v1.train.Supervisor`.  Keyword-only, besides:

      snapshot_secs: seconds between snapshots in memory, which bound what a crash costs.  "auto" (the default)
        spaces them so that they cost at most 1 % of the training time, never closer than 1 s.  0: none by time.
      final_checkpoint: whether the end of a session leaves a checkpoint of its last state.  Default True.
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
        snapshot_secs: float | Literal["auto"] | int = USE_DEFAULT,
        final_checkpoint: bool = True,
    ) -> None:
        given = {name: value for name, value in tuple(locals().items()) if name in _TENSORFLOWS_ARGUMENTS}
        if tf.executing_eagerly():
            raise RuntimeError("Supervisors are incompatible with eager execution.")
        self._final_checkpoint = final_checkpoint
        self._begin_without_anything()
        self._attach(given)
        _construct(self, **given)
        self._coord = Coordinator()
        self._decide_what_is_kept(snapshot_secs)

    def _begin_without_anything(self) -> None:
        self._runtime: Runtime | None = None  # None: TensorFlow's class would do
        self._sink: HeldSink | None = None
        self._keeping: SaveConfig | None = None
        self._run: TrainingRun | None = None
        self._user_saves: UserSaves | None = None
        self._began = False  # this supervisor is a user of the runtime
        self._graph_text_written = False
        self._graph_added_to_summary = False

    def _attach(self, given: dict[str, Any]) -> None:
        """Finds the run that a chief belongs to, and makes its summary writer; both change what was given."""
        if given["graph"] is None:
            given["graph"] = tf1.get_default_graph()
        if not given["is_chief"]:
            self._runtime = (
                current()
            )  # a worker has no logdir, but steps, which are watched, and an end that is asked for
            return
        self._runtime, given["logdir"] = attach(given["logdir"], may_save=given["saver"] is not None)
        if given["summary_writer"] is Supervisor.USE_DEFAULT and self._runtime is not None:
            self._sink = HeldSink(self._runtime)
            given["summary_writer"] = SummaryWriter(given["logdir"], sink=self._sink)
            if is_remote(os.fspath(given["logdir"])):
                self._sink = None  # TensorFlow's own writer, with its own thread, writes there

    def _decide_what_is_kept(self, snapshot_secs: Any) -> None:
        if self._runtime is None:
            return
        self._keeping = SaveConfig.prepare(self, snapshot_secs)
        if isinstance(self._saver, tf1.train.Saver) and self._save_path is not None:
            self._user_saves = UserSaves(self._saver, self._save_path, self._runtime.tell_user_save)

    # -- defaults --------------------------------------------------------------------------------------------
    def _init_session_manager(self, session_manager: Any = None) -> None:
        if session_manager is None:
            session_manager = WaitingSessionManager(
                local_init_op=self._local_init_op,
                ready_op=self._ready_op,
                ready_for_local_init_op=self._ready_for_local_init_op,
                graph=self._graph,
                recovery_wait_secs=self._recovery_wait_secs,
                local_init_run_options=self._local_init_run_options,
            )
        self._session_manager = session_manager

    def _default_global_step_tensor(self) -> Any:
        """The tensor or variable named global_step; of a resource variable the tensor is only a handle."""
        for variable in tf1.global_variables():
            if variable.op.name == "global_step" and variable.dtype.base_dtype in (tf.int32, tf.int64):
                return variable
        return super()._default_global_step_tensor()

    # -- a session begins ------------------------------------------------------------------------------------
    def prepare_or_wait_for_session(
        self,
        master: str = "",
        config: Any = None,
        wait_for_checkpoint: bool = False,
        max_wait_secs: float = 7200,
        start_standard_services: bool = True,
    ) -> Any:
        """A session with the newest state, or an initialized one; for a non-chief, one whose model is ready."""
        master = resolve_master(master)
        self._coord.may_be_idle = bool(master)
        self._coord.free = None
        runtime = self._runtime
        if runtime is None or (not self._is_chief and runtime.training not in (None, self._run)):  # beside its chief
            return super().prepare_or_wait_for_session(
                master, config, wait_for_checkpoint, max_wait_secs, start_standard_services
            )
        self._begin_runtime(runtime)
        runtime.phase = Phase.CONNECT
        manager = self._session_manager
        is_ours = isinstance(manager, SessionManager)
        if is_ours:
            manager.runtime = runtime if self._keeping is not None and self._keeping.plan is not None else None
        elif self._keeping is not None and self._keeping.plan is not None:
            ask_newest(runtime, durable_only=True)  # what the last trainer left becomes a checkpoint that it will find
        waits = wait_for_checkpoint or not self._is_chief
        with runtime.waiting(max_wait_secs) if waits else contextlib.nullcontext():
            sess = super().prepare_or_wait_for_session(
                master, config, wait_for_checkpoint, max_wait_secs, start_standard_services
            )
            if not start_standard_services or not self._is_chief:
                self._begin_run(runtime, sess, saves=False)  # its steps are seen all the same
        return sess

    def _begin_runtime(self, runtime: Runtime) -> None:
        if not self._began:
            runtime.begin()
            self._began = True
            if self._user_saves is not None:
                self._user_saves.begin()
        if self._keeping is not None and self._keeping.plan is not None:
            self._keeping.introduce(runtime)
        runtime.talk()
        runtime.on_stop(self._on_stop)

    def _on_stop(self, reason: Reason) -> None:
        log.info("procsv: asked to stop (%s): saving at the next step", reason)
        self._coord.request_stop()

    def _write_graph(self) -> None:
        """Graph files and events; the text of the graph is made by the summary service."""
        if self._runtime is None:
            super()._write_graph()
            return
        if not self._graph_text_written:
            lay_graph_text(self._runtime, self._graph, self._logdir)
            self._graph_text_written = True
        if self._summary_writer and not self._graph_added_to_summary:
            self._summary_writer.add_graph(self._graph)
            self._summary_writer.add_meta_graph(self._meta_graph_def)
            self._graph_added_to_summary = True

    def start_standard_services(self, sess: Any) -> Any:
        """Starts the summary, step counter and checkpoint services for `sess`; the list of their threads."""
        if not self._is_chief:
            raise RuntimeError(
                "Only chief supervisor can start standard services. Because only chief supervisors can write events."
            )
        if not self._logdir or self._runtime is None:
            log.warning("Standard services need a 'logdir' passed to the SessionManager")
            return None
        self._begin_runtime(self._runtime)
        if self._global_step is not None and self._summary_writer:
            start = tf1.SessionLog(status=tf1.SessionLog.START)
            self._summary_writer.add_session_log(start, service_threads.read_step(sess, self._global_step))
        run = self._begin_run(self._runtime, sess, saves=True)
        if self._save_path and self._save_model_secs and getattr(self._saver, "_is_empty", False):
            self._saver.save(sess, self._save_path, global_step=self._global_step)  # its .meta is all that there is
        return service_threads.start_standard(self, sess, run, self._runtime.clock)

    def _begin_run(self, runtime: Runtime, sess: Any, saves: bool) -> TrainingRun:
        """What procsv does for `sess` begins; what it does for a session before ends."""
        assert self._keeping is not None
        if self._run is not None:
            self._run.end()
        manager = self._session_manager
        origin = manager.origin if isinstance(manager, SessionManager) else None
        origin = origin or Origin("fresh", "", -1)
        kept = self._keeping.keep(self._on_durable)
        if not saves:
            kept = dataclasses.replace(kept, make_way=None)
        run = self._run = TrainingRun(runtime, sess, self._global_step, origin, kept)
        run.begin()
        run.take_first()
        return run

    def _on_durable(self, news: Durable) -> None:
        """A checkpoint is on disk: the Saver's own list and the event file say so, and the log as TensorFlow's."""
        log.info("Saving checkpoint to path %s", self._save_path)
        if self._user_saves is not None:
            self._user_saves.on_durable(news.all_paths)
        else:
            self._saver.set_last_checkpoints_with_time([(path, written_at(path)) for path in news.all_paths])
        is_ours = news.sequence > 0  # of what the program saves itself, TensorFlow's class says nothing
        if is_ours and self._summary_writer and self._global_step is not None:
            saved = tf1.SessionLog(status=tf1.SessionLog.CHECKPOINT, checkpoint_path=self._save_path)
            self._summary_writer.add_session_log(saved, news.step)

    # -- and goes on -----------------------------------------------------------------------------------------
    def loop(
        self, timer_interval_secs: float | None, target: Any, args: Any = None, kwargs: Any = None
    ) -> service_threads.TimedThread:
        """Starts a thread that calls `target` every `timer_interval_secs`, or without pause if None, until the stop."""
        clock = SystemClock()
        looper = service_threads.TimedThread(
            self._coord, self._graph, clock, timer_interval_secs, target=target, args=args, kwargs=kwargs
        )
        looper.start()
        return looper

    def summary_computed(self, sess: Any, summary: Any, global_step: Any = None) -> None:
        """Writes `summary`, a Summary or a serialized one, at `global_step` (None: the step now)."""
        if global_step is None and self._global_step is not None and self._summary_writer:
            global_step = service_threads.read_step(sess, self._global_step)
        super().summary_computed(sess, summary, global_step)

    # -- and ends --------------------------------------------------------------------------------------------
    def stop(self, threads: Any = None, close_summary_writer: bool = True, ignore_live_threads: bool = False) -> None:
        """Stops services and threads, saves the last state, closes the summary writer.  Does not close the session."""
        self._coord.request_stop()
        run, self._run = self._run, None
        if self._runtime is not None and self._began:
            self._runtime.phase = Phase.STOP
        saved_step = self._save_last(run, NOT_SAVED)
        try:
            super().stop(threads, close_summary_writer=False, ignore_live_threads=ignore_live_threads)
        finally:
            self._save_last(run, saved_step)  # a thread that trained on after the stop
            if run is not None:
                run.end()
            if close_summary_writer and self._summary_writer:
                self._summary_writer.add_session_log(tf1.SessionLog(status=tf1.SessionLog.STOP))
                self._summary_writer.close()
                self._graph_added_to_summary = False
            elif self._sink is not None and self._began:
                self._sink.hold()  # the writer stays open: its file goes on with the next session
            self._end_runtime()

    def _end_runtime(self) -> None:
        if self._runtime is not None and self._began:
            self._began = False
            if self._user_saves is not None:
                self._user_saves.end()
            if isinstance(self._session_manager, SessionManager):
                self._session_manager.runtime = None  # by itself it restores as TensorFlow's
            self._runtime.forget_stop(self._on_stop)
            self._runtime.phase = Phase.IDLE  # what the program does without a session may take any time
            self._runtime.end()

    def _save_last(self, run: TrainingRun | None, saved_step: int) -> int:
        """The last checkpoint, unless step `saved_step` is in one; the step that is now saved."""
        if run is None or self._runtime is None or not self._final_checkpoint:
            return saved_step
        return save_last(run, self._runtime.stop_reason or "final", saved_step)

    def managed_session(
        self,
        master: str = "",
        config: Any = None,
        start_standard_services: bool = True,
        close_summary_writer: bool = True,
    ) -> AbstractContextManager[Any]:
        """A session with the newest state, its services around it; stopped, saved and closed at the end."""
        return managed(self, master, config, start_standard_services, close_summary_writer)

    def _abandon(self) -> None:
        """The session could not be made: nothing of it stays."""
        run, self._run = self._run, None
        if run is not None:
            run.end()
        self._coord.request_stop()
        with contextlib.suppress(Exception):  # what kept the session from being made is what counts
            self._coord.join(stop_grace_period_secs=self._stop_grace_secs, ignore_live_threads=True)
        if self._summary_writer:
            self._summary_writer.close()
        self._end_runtime()


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
