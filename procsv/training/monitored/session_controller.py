"""What procsv does for one monitored session: its run, its checkpoints, its event files, its end.

Made by MonitoredSession when one of its hooks saves checkpoints, or under `procsv launch`; all of it is done by the same
parts as for the Supervisor (keeping, training_run, restore, runtime).  A session that is made anew after a lost
connection keeps its Care: each raw session has a TrainingRun of its own.  Never calls a hook.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.training import basic_session_run_hooks as tf_hooks
from tensorflow.python.training import monitored_session as tf_monitored

from procsv.ipc.messaging.messages import Durable, Reason
from procsv.ipc.shm.heartbeat import Phase
from procsv.training.graph.restore import Origin, SessionManager, written_at
from procsv.training.graph.save_config import SaveConfig, plan_of, snapshot_seconds
from procsv.training.graph.user_saves import UserSaves
from procsv.training.managed.ending import NOT_SAVED, save_last
from procsv.training.monitored.checkpoint_hook import CheckpointSaverHook
from procsv.training.monitored.scaffold import session_manager
from procsv.training.monitored.writers import SessionWriters
from procsv.training.runtime.attach import attach
from procsv.training.runtime.context import Runtime, current
from procsv.training.snapshots.backends import SnapshotBackend
from procsv.training.snapshots.cadence import Cadence
from procsv.training.snapshots.training_run import Lost, SaveSetup, TrainingRun
from procsv.training.summaries.graph_text import lay_graph_text
from procsv.training.summaries.snapshot_scalars import SnapshotScalars

tf1 = tf.compat.v1
log = tf1.logging

FRESH = Origin("fresh", "", -1)
SCALARS_EVERY_S = 30.0  # what snapshots cost, for TensorBoard, where no summaries are written every so many seconds
FIRST_SAVE_S_MAX = 5.0  # programs find the first checkpoint when the session has been made, if it is not a large one
STOPPED = 75  # checkpointed: start me again


def control_session(
    hooks: list[Any], creator: Any, snapshot_secs: Any, final_checkpoint: bool
) -> SessionController | None:
    """Who looks after a session with these hooks; None where TensorFlow's ways do.

    The hook whose checkpoints are kept is the first that saves where the session restores from, else the first that
    saves at all.  UserError under `procsv launch` if that is not the run's logdir.  Of a worker nothing is kept here.
    """
    launched = current()
    if isinstance(creator, tf_monitored.WorkerSessionCreator):
        if launched is None or launched.training is not None:
            return None
        return SessionController(launched, launched.start.logdir, None, snapshot_secs, final_checkpoint)
    savers = [hook for hook in hooks if isinstance(hook, CheckpointSaverHook)]
    restored_from = getattr(creator, "_checkpoint_dir", None)
    hook = next((s for s in savers if _is_same(s._checkpoint_dir, restored_from)), next(iter(savers), None))
    if hook is not None:
        runtime, logdir = attach(hook._checkpoint_dir, may_save=True)
    elif launched is not None and launched.training is None:
        runtime, logdir = launched, launched.start.logdir
    else:
        return None
    return SessionController(runtime, logdir, hook, snapshot_secs, final_checkpoint) if runtime is not None else None


def _no_way(runtime: Runtime) -> SnapshotBackend:
    raise AssertionError("nothing is saved of this session")


def _is_same(directory: Any, other: Any) -> bool:
    return bool(other) and os.path.realpath(directory) == os.path.realpath(other)


def _summaries_every_s(hooks: list[Any]) -> float:
    """How often the hooks write summaries, as far as that is by time."""
    timers = [getattr(hook, "_timer", None) for hook in hooks if isinstance(hook, tf_hooks.SummarySaverHook)]
    told = [float(every_s) for timer in timers if (every_s := getattr(timer, "_every_secs", None))]
    return min(told, default=SCALARS_EVERY_S)


class SessionController:
    """procsv's side of one monitored session."""

    def __init__(
        self,
        runtime: Runtime,
        logdir: Any,
        hook: CheckpointSaverHook | None,
        snapshot_secs: Any,
        final_checkpoint: bool,
    ) -> None:
        """`hook`: the one whose checkpoints are kept; None where there is none, and only progress is watched."""
        self._runtime, self._logdir, self._hook = runtime, logdir, hook
        self._snapshot_secs, self._final_checkpoint = snapshot_secs, final_checkpoint
        self._writers = SessionWriters(runtime)
        self._hooks: list[Any] = []
        self._keeping: SaveConfig | None = None
        self._user_saves: UserSaves | None = None
        self._run: TrainingRun | None = None
        self._coord: Any = None
        self._snapshots: tuple[threading.Event, threading.Thread] | None = None
        self._manager: SessionManager | None = None
        self._has_begun = False
        self._is_text_laid = False
        self._reason: Reason = "start"
        self._saved_step = NOT_SAVED  # of the newest checkpoint that was asked for
        self._lost: Lost | None = None  # the last session that trained and was lost
        self._resumed_at: int | None = (
            None  # the step that the program goes on from; None: it begins, or a session is anew
        )

    # -- beginning -------------------------------------------------------------------------------------------
    def open(self, hooks: list[Any]) -> None:
        """Before the hooks begin: they find our writers."""
        self._hooks = hooks
        if self._hook is not None:
            self._hook._care = self
        steps = (tf_hooks.CheckpointSaverHook, tf_hooks.StepCounterHook, tf_hooks.SummarySaverHook)
        wanted = {"_checkpoint_dir", "_output_dir"}
        directories = [vars(h).get(name) for h in hooks if isinstance(h, steps) for name in sorted(wanted)]
        if self._hook is not None:
            self._writers.begin(dict.fromkeys(d for d in directories if d))

    def before_session(self, creator: Any) -> None:
        """Each time before a session is made: the run has begun, and a chief's state comes from the service."""
        if not self._has_begun:
            self._runtime.begin()
            self._has_begun = True
            self._runtime.on_stop(self._on_stop)
        self._runtime.phase = Phase.CONNECT
        if not isinstance(creator, tf_monitored.ChiefSessionCreator):
            return
        creator._scaffold.finalize()
        self._keep(tf1.get_default_graph())
        if self._manager is None:
            self._manager = creator._session_manager = session_manager(creator._scaffold, tf1.get_default_graph())
            if self._hook is not None and _is_same(self._hook._checkpoint_dir, creator._checkpoint_dir):
                self._manager.runtime = self._runtime

    @contextlib.contextmanager
    def waiting(self, creator: Any) -> Iterator[None]:
        """While `creator` makes the session: a worker's waits for its chief, which is no hang."""
        if not isinstance(creator, tf_monitored.WorkerSessionCreator):
            yield
            return
        with self._runtime.waiting(creator._max_wait_secs):
            yield
            self._runtime.phase = Phase.COMPILE

    def _keep(self, graph: Any) -> None:
        """Decides once how the checkpoints of the finalized `graph` are kept, and says so to the service."""
        if self._keeping is None and self._hook is not None:
            saver, step = self._hook._get_saver(), tf1.train.get_global_step(graph)
            plan = plan_of(saver, self._hook._save_path, 0.0)
            snapshot_s = snapshot_seconds(self._snapshot_secs, 0.0, self._runtime)
            self._keeping = SaveConfig.of(saver, graph, step, plan, snapshot_s, has_meta=self._hook._save_graph_def)
            if isinstance(saver, tf1.train.Saver):
                self._user_saves = UserSaves(saver, self._hook._save_path, self._runtime.tell_user_save)
                self._user_saves.begin()
            self._keeping.introduce(self._runtime)
        self._runtime.talk()

    def begin_run(self, session: Any, coord: Any) -> None:
        """A session holds its state: it is looked after from here on."""
        self._keep(session.graph)
        self._coord = coord
        is_anew = self._reason != "start"
        origin = (self._manager.origin if self._manager is not None else None) or FRESH
        step = tf1.train.get_global_step(session.graph)
        if self._keeping is not None:
            kept = self._keeping.keep(self._on_durable)
        else:
            kept = SaveSetup(None, _no_way, Cadence(0.0), lambda news: None)  # progress is all there is to watch
        self._run = TrainingRun(self._runtime, session, step, origin, kept, self._lost)
        self._run.begin()
        is_resumed = origin.source != "fresh"
        self._saved_step = self._run.first_step if is_resumed else NOT_SAVED
        self._resumed_at = self._run.first_step if is_resumed and not is_anew else None
        if is_anew or is_resumed:
            self._writers.mark_start(self._run.first_step)
        self._begin_snapshots(session.graph)
        if self._runtime.stop_reason is not None:
            coord.request_stop()

    def _begin_snapshots(self, graph: Any) -> None:
        assert self._run is not None
        snapshots, end = self._run.snapshots, threading.Event()
        if snapshots is None:
            return

        writer = self._hook._summary_writer if self._hook is not None else None
        if writer is not None:
            scalars = SnapshotScalars(writer, _summaries_every_s(self._hooks), self._run.read_step, self._runtime.clock)
            snapshots.on_taken = scalars.write

        def work() -> None:
            with graph.as_default():
                snapshots.run(end.wait)

        thread = threading.Thread(target=work, name="procsv-snapshots", daemon=True)
        self._snapshots = (end, thread)
        thread.start()

    def session_is_ready(self, graph: Any) -> None:
        """The hooks have seen the new session: from here on it trains."""
        self._writers.describe(graph, None)
        self._reason = "periodic"

    def is_at_the_end(self) -> bool:
        """Whether the program goes on from the last step that a StopAtStepHook allows: killed then, it would make one more."""
        step = self._resumed_at
        stops = [hook._last_step for hook in self._hooks if isinstance(hook, tf_hooks.StopAtStepHook)]
        if step is None or not any(last is not None and step >= last for last in stops):
            return False
        log.info("procsv: the state is that of the last step, %d: there is nothing left to train", step)
        return True

    # -- for the hook ----------------------------------------------------------------------------------------
    def describe_graph(self, graph: Any, saver: Any, has_text: bool) -> None:
        """Graph events, and graph.pbtxt, whose text the summary service makes; once, as a graph that is final."""
        self._writers.describe(graph, saver)
        if has_text and not self._is_text_laid:
            self._is_text_laid = True
            lay_graph_text(self._runtime, graph, self._logdir)

    def is_saved(self, step: int) -> bool:
        """Whether the state that the session began with is a checkpoint already, or is being made one."""
        return self._saved_step == step

    def save(self, step: int, exactly: bool, at_once: bool, waits: bool) -> None:
        """The state at the end of this call (`at_once`: as it is now) becomes a checkpoint.

        `exactly`: at this very step, which may wait for the checkpoint before it.  `waits`: the call ends when it is on
        disk.  The first of a session is waited for a while; the last one at the end.
        """
        assert self._run is not None
        self._saved_step = step
        if self._run.boundary.inside and not at_once:
            self._run.save_soon(exactly, waits)
        elif not self._run.save_begun(self._why()):
            self._saved_step = NOT_SAVED  # said why: the end tries again
        elif self._reason == "start":
            self._run.wait_begun(FIRST_SAVE_S_MAX)

    def save_and_wait(self, step: int) -> bool:
        """The state as it is now is a durable checkpoint when this returns True; False if that has failed."""
        assert self._run is not None
        self._saved_step = step
        return self._run.save_now(self._why())

    def _why(self) -> Reason:
        return (self._runtime.stop_reason or "final") if self._reason == "final" else self._reason

    # -- news ------------------------------------------------------------------------------------------------
    def _on_durable(self, news: Durable) -> None:
        """A checkpoint is on disk: the Saver's own list and the event file say so."""
        assert self._hook is not None
        assert self._keeping is not None
        if self._user_saves is not None:
            self._user_saves.on_durable(news.all_paths)
        else:
            times = [(path, written_at(path)) for path in news.all_paths]
            self._keeping.saver.set_last_checkpoints_with_time(times)
        saved = tf1.SessionLog(status=tf1.SessionLog.CHECKPOINT, checkpoint_path=self._hook._save_path)
        writer = self._hook._summary_writer
        is_ours = news.sequence > 0  # of what the program saves itself, TensorFlow's hook says nothing
        if writer is not None and is_ours:  # the session may be ending meanwhile
            writer.add_session_log(saved, news.step)

    def _on_stop(self, reason: Reason) -> None:
        log.info("procsv: asked to stop (%s): saving at the next step", reason)
        coord = self._coord
        if coord is not None:
            coord.request_stop()

    def session_lost(self, error: Exception) -> None:
        """The connection to a server is gone, and the session with it: another one is about to be made."""
        if self._run is None or not self._run.is_ready:
            return  # before its first step: the trainer is still starting, or still recovering from the loss before
        self._lost = Lost(self._runtime.clock.monotonic(), self._runtime.step)
        self._runtime.note("session_lost", error=f"{type(error).__name__}: {error}", step=self._lost.step)

    def wait(self, seconds: float) -> None:
        """A pause between two attempts to make a session; SystemExit when the process is asked to stop."""
        stop = threading.Event()

        def hear(reason: Reason) -> None:
            stop.set()

        self._runtime.phase = Phase.CONNECT
        self._runtime.on_stop(hear)
        try:
            if stop.wait(seconds):
                raise SystemExit(STOPPED)
        finally:
            self._runtime.forget_stop(hear)

    # -- the end ---------------------------------------------------------------------------------------------
    def begin_end(self) -> None:
        """The session trains no more: what the hooks save now is the last state."""
        self._reason = "final"

    def save_last(self, error: type[BaseException] | None) -> None:
        """The last checkpoint is durable, whatever ended the training, unless what ended it is a state not worth it."""
        run = self._run
        if run is None or run.snapshots is None or (error is not None and not self._final_checkpoint):
            return
        if error is not None and issubclass(error, tf_hooks.NanLossDuringTrainingError):
            log.info("procsv: no last checkpoint of a model that has diverged")
            return
        self._reason = "final"
        if self._final_checkpoint:
            save_last(run, self._why(), NOT_SAVED if run.snapshots.owes else self._saved_step)
        run.wait_asked(run.final_save_s())

    def end_run(self) -> None:
        """The raw session is about to be closed."""
        self._coord = None
        snapshots, self._snapshots = self._snapshots, None
        if snapshots is not None:
            snapshots[0].set()
            snapshots[1].join()
        run, self._run = self._run, None
        if run is not None:
            run.end()

    def end(self) -> None:
        """The monitored session is over, however it came to that."""
        self.end_run()
        if self._hook is not None:
            self._hook._care = None
        if self._manager is not None:
            self._manager.runtime = None
        try:
            self._writers.forget(self._hooks)
            self._writers.end()
        finally:
            self._end_runtime()

    def _end_runtime(self) -> None:
        if not self._has_begun:
            return
        self._has_begun = False
        if self._user_saves is not None:
            self._user_saves.end()
        self._runtime.forget_stop(self._on_stop)
        self._runtime.phase = Phase.IDLE  # what the program does without a session may take any time
        self._runtime.end()
