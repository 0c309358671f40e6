"""Control a monitored session: its checkpoints, event files, recoveries and end.

A monitored session makes a controller if one of its hooks saves checkpoints. Under `procsv launch`
it makes one even without such a hook, unless another session already trains in the process. When
the connection to a server is lost, the monitored session replaces its *raw* session, which is
TensorFlow's. The controller stays, and gives each raw session a TrainingRun of its own. The
controller never calls a hook.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.python.training import basic_session_run_hooks as tf_hooks
from tensorflow.python.training import monitored_session as tf_monitored

from procsv.base import exit_codes
from procsv.base.journal.entries import SessionLost
from procsv.base.outcome import NO_STEP
from procsv.base.run.manifest import Reason
from procsv.base.run.run_file import read_run
from procsv.ipc.shm.heartbeat import Phase
from procsv.training.graph.mixing import may_mix
from procsv.training.graph.patches import AttributePatch, move_paths, set_last_step
from procsv.training.graph.save_config import SaveConfig, plan_of, snapshot_seconds
from procsv.training.runtime.context import Runtime, current
from procsv.training.runtime.program_calls import SnapshotSecs
from procsv.training.sessions.attach import attach
from procsv.training.sessions.hooks import CheckpointSaverHook, SessionWriters
from procsv.training.sessions.scaffold import session_manager
from procsv.training.sessions.session_controller import NOT_SAVED, SessionController
from procsv.training.snapshots.restore_client import BY_CHIEF, Origin
from procsv.training.snapshots.snapshot_queue import SnapshotRequest
from procsv.training.snapshots.snapshot_state import SnapshotState
from procsv.training.snapshots.training_run import FINAL_SAVE_S_MAX, Lost

tf1 = tf.compat.v1
log = tf1.logging

SCALARS_EVERY_S = 30.0  # between snapshot scalars, if no hook writes summaries by time
_USERS_OF_LOGDIR = (
    tf_monitored.ChiefSessionCreator,
    tf_hooks.CheckpointSaverHook,
    tf_hooks.StepCounterHook,
    tf_hooks.SummarySaverHook,
)
_PATHS = ("_checkpoint_dir", "_output_dir", "_save_path")
# Programs expect to find the first checkpoint once they have their session. If the checkpoint takes longer than this,
# the session opens before the checkpoint is on disk.
FIRST_SAVE_S_MAX = 5.0


def control_session(
    hooks: list[Any], creator: Any, snapshot_secs: SnapshotSecs, final_checkpoint: bool
) -> MonitoredController | None:
    """Return the controller for a session with these hooks.

    The controller manages the checkpoints of one hook: the hook that saves into the directory from
    which the session restores. If no hook saves there, it is the first hook that saves. In a
    worker's session, the controller manages no checkpoints, even if a hook saves.

    Return None if no hook saves and `procsv launch` has not started this process, or another
    session already trains in it. Then TensorFlow alone manages the session. Raise UserError if the
    launched run cannot use the hook's directory.
    """
    launched, hook = current(), None
    if not isinstance(creator, tf_monitored.WorkerSessionCreator):
        savers = [hook for hook in hooks if isinstance(hook, CheckpointSaverHook)]
        restored_from = getattr(creator, "_checkpoint_dir", None)
        hook = next((s for s in savers if _is_same(s._checkpoint_dir, restored_from)), next(iter(savers), None))
    if hook is not None:
        runtime, logdir = attach(hook._checkpoint_dir, may_save=True, graph=tf1.get_default_graph())
        users = [user for user in (creator, *hooks) if isinstance(user, _USERS_OF_LOGDIR)]
        if os.fspath(logdir) != os.fspath(hook._checkpoint_dir):  # the run continues in another logdir
            move_paths(users, _PATHS, hook._checkpoint_dir, logdir)
        if launched is not None and launched.connection.start.naming == "mapped":
            _keep_within(users, logdir)
    elif launched is not None and launched.training is None:
        runtime, logdir = launched, launched.connection.start.logdir
    else:
        return None
    return MonitoredController(runtime, logdir, hook, snapshot_secs, final_checkpoint) if runtime is not None else None


def _keep_within(users: list[Any], logdir: str) -> None:
    """Redirect all paths of `users` into `logdir`.

    A path outside `logdir` does not belong to this run. It becomes a subdirectory of `logdir` with
    the same last name.
    """
    for user, name in itertools.product(users, _PATHS):
        path = getattr(user, name, None)
        if path and not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(logdir)):
            own = Path(path).name
            move_paths([user], [name], path, os.path.join(logdir, own))


def _is_same(directory: Any, other: Any) -> bool:
    return bool(other) and os.path.realpath(directory) == os.path.realpath(other)


def _summaries_every_s(hooks: list[Any]) -> float:
    """The shortest interval at which hooks write summaries by time."""
    timers = [getattr(hook, "_timer", None) for hook in hooks if isinstance(hook, tf_hooks.SummarySaverHook)]
    intervals_s = [float(every_s) for timer in timers if (every_s := getattr(timer, "_every_secs", None))]
    return min(intervals_s, default=SCALARS_EVERY_S)


class MonitoredController(SessionController):
    """procsv's side of one monitored session."""

    def __init__(
        self,
        runtime: Runtime,
        logdir: Any,
        hook: CheckpointSaverHook | None,
        snapshot_secs: SnapshotSecs,
        final_checkpoint: bool,
    ) -> None:
        """Prepare for a session. The checkpoints of `hook` become the run's checkpoints.

        If `hook` is None, procsv saves nothing and only watches the session's progress.
        """
        super().__init__(runtime, final_checkpoint)
        self._logdir, self._hook, self._snapshot_secs = logdir, hook, snapshot_secs
        self._writers = SessionWriters(runtime)
        self._hooks: list[Any] = []
        # Why the next save happens: "start" until the first raw session trains, "final" once training has ended.
        self._reason: Reason = "start"
        self._creators_manager: AttributePatch | None = None
        # The step of the newest checkpoint that was requested, or that the session started from.
        self.saved_step = NOT_SAVED
        self._lost: Lost | None = None  # the last lost session that had trained
        self._is_worker = False  # whether this is a worker's session; only the chief saves state
        # The step at which the first raw session resumed. None if it started fresh, or if another one has replaced it.
        self._resumed_at: int | None = None
        # The step at which this session would begin in an uninterrupted run; NO_STEP if unknown.
        self._begins_at = NO_STEP

    # -- start -------------------------------------------------------------------------------------
    def open_writers(self, hooks: list[Any], creator: Any) -> None:
        """Install procsv's event writers where the hooks look for event writers.

        Also give the controller to the hook whose checkpoints it manages. A worker gets no event
        writers, unless it has such a hook. Call this before the hooks begin.
        """
        self._hooks = hooks
        if self._hook is not None:
            self._hook._controller = self
        elif not isinstance(creator, tf_monitored.WorkerSessionCreator):
            return
        steps = (tf_hooks.CheckpointSaverHook, tf_hooks.StepCounterHook, tf_hooks.SummarySaverHook)
        wanted = ("_checkpoint_dir", "_output_dir")
        directories = [vars(h).get(name) for h in hooks if isinstance(h, steps) for name in wanted]
        self._writers.install_writers(dict.fromkeys(d for d in directories if d))

    def prepare_session(self, creator: Any) -> None:
        """Connect to the run. Call this before each raw session is made.

        For a chief, also decide how to keep the checkpoints, and install a session manager. If the
        session restores from the directory of the managed checkpoints, the session manager restores
        the run's newest state.
        """
        restores = isinstance(creator, tf_monitored.ChiefSessionCreator)
        self._is_worker = isinstance(creator, tf_monitored.WorkerSessionCreator)
        if restores:
            creator._scaffold.finalize()  # while the services start
        self.enter_run()
        self.runtime.heartbeat.enter_phase(Phase.CONNECT)
        if not restores:
            return
        self._introduce(tf1.get_default_graph())
        if self.manager is None:
            manager = self.manager = session_manager(creator._scaffold, tf1.get_default_graph())
            self._creators_manager = AttributePatch(creator, "_session_manager", lambda _: manager)
            self._creators_manager.apply()
            if self._hook is not None and _is_same(self._hook._checkpoint_dir, creator._checkpoint_dir):
                self.manager.runtime = self.runtime

    @contextlib.contextmanager
    def waiting(self, creator: Any) -> Iterator[None]:
        """Suspend hang detection while a worker waits for its chief to make the session."""
        if not isinstance(creator, tf_monitored.WorkerSessionCreator):
            yield
            return
        with self.runtime.heartbeat.waiting(creator._max_wait_secs):
            yield
            self.runtime.heartbeat.enter_phase(Phase.COMPILE)

    def _introduce(self, graph: Any) -> None:
        """Decide once how to keep the checkpoints of the finalized `graph`. Tell the service."""
        step, hook = tf1.train.get_global_step(graph), self._hook
        if self.config is None and hook is None:
            self.configure(SaveConfig(saver=None, global_step=step), None)
        elif self.config is None and hook is not None:
            saver = hook._get_saver()
            plan = plan_of(saver, hook._save_path, 0.0, is_mixed=may_mix(graph, os.environ))
            snapshot_s = snapshot_seconds(self._snapshot_secs, 0.0, self.runtime)
            config = SaveConfig.from_graph(saver, graph, step, plan, snapshot_s, has_meta=hook._save_graph_def)
            self.configure(config, hook._save_path)
        self.introduce_plan()

    def watch_session(self, session: Any, coord: Any) -> None:
        """Start the TrainingRun of a new raw session, whose state is restored or initialized."""
        self._introduce(session.graph)
        self.coord, self.writer = coord, self._hook._summary_writer if self._hook is not None else None
        is_recreated = self._reason != "start"
        if self._hook is None and not is_recreated and not self._is_worker:
            log.warning(
                "procsv: no CheckpointSaverHook: nothing of this session is saved, so after a crash the program starts "
                "from the beginning; add this hook, or give a MonitoredTrainingSession a checkpoint_dir, which adds it"
            )
        training = self.start_session(session, lost=self._lost)
        is_resumed = training.origin.source != "fresh"
        # A model that survived on its servers may have trained on since the last capture.
        is_saved = is_resumed and training.origin.source != "alive"
        self.saved_step = training.first_step if is_saved else NOT_SAVED
        self._resumed_at = training.first_step if is_resumed and not is_recreated else None
        if not is_recreated:
            self._begins_at = training.first_step
        if is_resumed and not is_recreated and self.runtime.observer is None:
            self._go_on_counting()
        if is_recreated or (is_resumed and not self._is_first_of_worker()):
            self._writers.mark_start(training.first_step)
            self.mark_attempt(training.first_step)
        elif self.runtime.connection.start.incarnation == 1:
            self.mark_attempt(training.first_step)
        self.start_cadence(training, _summaries_every_s(self._hooks))

    def _origin(self) -> Origin:
        return BY_CHIEF if self._is_worker else super()._origin()

    def _is_first_of_worker(self) -> bool:
        """Return whether this is a worker that starts for the first time in this run.

        Such a worker continues from its chief's steps, so no step in its event files is void.
        """
        return self._is_worker and self.runtime.connection.start.incarnation == 1

    def _go_on_counting(self) -> None:
        """Make hooks count steps from where this session begins in an uninterrupted run.

        Earlier attempts have made steps of this session, and of the sessions before it. Without
        this change, the hooks would count from the step at which this attempt resumes.
        """
        begins_at = self.runtime.planned_step
        if begins_at is None:
            run = read_run(self.runtime.connection.paths.run_json)
            begins_at = NO_STEP if run is None else run.began_step
        if begins_at == NO_STEP:
            return
        self._begins_at = begins_at
        for hook in self._hooks:
            if isinstance(hook, tf_hooks.StopAtStepHook) and hook._num_steps is not None:
                set_last_step(hook, begins_at + hook._num_steps)

    def begin_training(self, graph: Any) -> None:
        """Note that training starts: all hooks have the new session.

        Write the graph to the event files, and report at which step a hook will end the training.
        The chief writes the graph for its workers.
        """
        if not self._is_worker:
            self._writers.describe_graph(graph, None)
        self._reason = "periodic"
        self.runtime.expect_steps(min(self._last_steps(), default=NO_STEP))

    def is_at_the_end(self) -> bool:
        """Return whether the session has resumed at or after the last step of a StopAtStepHook.

        Then nothing is left to train, but TensorFlow's hook would let one more step run. If so,
        also note the step at which the program's next session begins.
        """
        step = self._resumed_at
        ends = [] if step is None else [last for last in self._last_steps() if step >= last]
        if not ends:
            return False
        if self.runtime.planned_step != NO_STEP:
            self.runtime.planned_step = min(ends)  # an earlier attempt has made this session's steps
        log.info("procsv: resumed at the last step, %d: nothing is left to train", step)
        return True

    def _last_steps(self) -> list[int]:
        """Return the last step of each StopAtStepHook that knows its last step yet."""
        stops = [hook._last_step for hook in self._hooks if isinstance(hook, tf_hooks.StopAtStepHook)]
        return [int(last) for last in stops if last is not None]

    # -- for the hook ------------------------------------------------------------------------------
    def describe_graph(self, graph: Any, saver: Any, has_text: bool) -> None:
        """Write the final graph's events, once. If `has_text`, have graph.pbtxt written, too."""
        self._writers.describe_graph(graph, saver)
        if has_text:
            self.write_graph_text(graph, self._logdir)

    def save(self, step: int, exactly: bool, at_once: bool, waits: bool) -> None:
        """Save the state at the end of the training thread's present call.

        With `exactly`, save the state of this very step, even if that means to wait for the
        previous checkpoint. Without `exactly`, a later step is saved if no slot is free now. With
        `waits`, the call ends only when the checkpoint is on disk or has failed.

        With `at_once`, or outside a call, save the present state instead; `exactly` and `waits`
        then have no effect. The save before the first step waits up to FIRST_SAVE_S_MAX until its
        checkpoint is on disk. The end of the session waits for the last checkpoint.
        """
        assert self.training is not None
        assert self.training.snapshots is not None
        snapshots, self.saved_step = self.training.snapshots, step
        if self.training.boundary.inside and not at_once:
            until = SnapshotState.DURABLE if waits else SnapshotState.CAPTURED if exactly else SnapshotState.REQUESTED
            snapshots.request(SnapshotRequest(want="periodic", pinned=exactly, until=until))
            return
        record = snapshots.capture_async(self._save_reason())
        if record.failure is not None:
            self.saved_step = NOT_SAVED  # already logged; the end of the session tries again
        elif self._reason == "start":
            with self.runtime.heartbeat.saving():
                snapshots.wait_settled(record, FIRST_SAVE_S_MAX)

    def save_and_wait(self, step: int) -> bool:
        """Save the present state. Return True once it is on disk, or False if that failed.

        A failure is already logged.
        """
        assert self.training is not None
        assert self.training.snapshots is not None
        snapshots, self.saved_step = self.training.snapshots, step
        with self.runtime.heartbeat.saving():
            return snapshots.wait_settled(snapshots.take_snapshot(self._save_reason()), FINAL_SAVE_S_MAX)

    def _save_reason(self) -> Reason:
        """Return the reason that the manifest of a checkpoint requested now records."""
        return (self.runtime.stops.reason or "final") if self._reason == "final" else self._reason

    def last_due(self, step: int, every: int | None) -> int:
        """Return the last step up to `step` at which a save was due.

        A save is due every `every` steps. The session may have resumed at `step`, from a snapshot
        between two saves. If `every` is None or the session's first step is unknown, return `step`.
        """
        begins_at = self._begins_at
        return step if not every or not 0 <= begins_at <= step else step - (step - begins_at) % every

    # -- events ------------------------------------------------------------------------------------
    def note_lost_session(self, error: Exception) -> None:
        """Record that a server is lost, and the session with it. Another session follows.

        Do nothing if the session has not trained yet.
        """
        if self.training is None or not self.training.is_ready:
            return  # not trained yet: still starting, or still recovering from the previous loss
        self._lost = Lost(self.runtime.clock.monotonic(), self.runtime.heartbeat.step)
        self.runtime.connection.note_entry(SessionLost(error=f"{type(error).__name__}: {error}", step=self._lost.step))

    def pause_recovery(self, seconds: float) -> None:
        """Pause before the next try to make a session. Raise SystemExit if a stop is requested."""
        stop = threading.Event()

        def on_stop(reason: Reason) -> None:
            stop.set()

        self.runtime.heartbeat.enter_phase(Phase.CONNECT)
        self.runtime.stops.add_listener(on_stop)
        try:
            if stop.wait(seconds):
                raise SystemExit(exit_codes.RESUMABLE)
        finally:
            self.runtime.stops.remove_listener(on_stop)

    # -- end ---------------------------------------------------------------------------------------
    def mark_final(self) -> None:
        """Note that training has ended: what the hooks save from here on is the last state."""
        self._reason = "final"

    def save_at_end(self, error: type[BaseException] | None) -> None:
        """Save the last state if `final_checkpoint` is set, and wait for the newest checkpoint.

        The newest checkpoint is the one of the last state, or the last that a hook has requested.
        `error` is the type of the error that ended training, if any. After an error without
        `final_checkpoint`, do nothing. If the model has diverged, do nothing, either.
        """
        training = self.training
        if training is None or training.snapshots is None or (error is not None and not self._final_checkpoint):
            return
        if error is not None and issubclass(error, tf_hooks.NanLossDuringTrainingError):
            log.info("procsv: the model has diverged, so its last state is not saved")
            return
        self._reason = "final"
        self.save_last_state(NOT_SAVED if training.snapshots.owes else self.saved_step)
        training.wait_asked(training.final_save_s())

    def close_controller(self) -> None:
        """Clean up after the monitored session, no matter what ended it."""
        self.end_session()
        self.coord = None
        if self._hook is not None:
            self._hook._controller = None
        if self._creators_manager is not None:
            self._creators_manager.undo()
        try:
            self._writers.release_hooks(self._hooks)
            self._writers.close_writers()
        finally:
            self.leave_run()
