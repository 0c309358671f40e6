"""Control training sessions: procsv's side of a Supervisor or of a monitored session.

A Supervisor that belongs to a run makes a SessionController. A monitored session makes the subclass
in monitored_controller.py. The controller connects to the run, and tells the checkpoint service how
to name and keep checkpoints (the *plan*). It gives each session a TrainingRun, which takes the
session's snapshots. It records checkpoints that are on disk and passes on stop requests. At the end
it saves the last state and leaves the run. It never makes or closes a session.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from procsv.base.run.manifest import Reason
from procsv.ipc.messaging.checkpoint_messages import Durable
from procsv.ipc.shm.heartbeat import Phase, Snapshots
from procsv.training.graph.save_config import SaveConfig
from procsv.training.graph.session import call_at_close
from procsv.training.graph.user_saves import UserSaves, written_at
from procsv.training.runtime.bounded_call import call_within
from procsv.training.runtime.context import Runtime
from procsv.training.runtime.log import say
from procsv.training.sessions.session_manager import SessionManager
from procsv.training.snapshots.restore_client import FRESH, Origin
from procsv.training.snapshots.training_run import Lost, TrainingRun
from procsv.training.summaries.marks import SNAPSHOT_INTERVAL, SNAPSHOT_STALL, make_scalar, mark_attempt
from procsv.training.summaries.writer import write_graph_text

tf1 = tf.compat.v1
log = tf1.logging

READ_S_MAX = 2.0  # at the end of a session with servers, for reading its step
CALL_S_MAX = 10.0  # at the interpreter's exit, for another thread to finish its call
NOT_SAVED = -2  # not a valid global step; -1 already means "no global step"


class SessionController:
    """Looks after one session at a time, between `start_session` and `end_session`."""

    def __init__(self, runtime: Runtime, final_checkpoint: bool) -> None:
        self.runtime = runtime
        self.config: SaveConfig | None = None
        self.training: TrainingRun | None = None  # of the session that trains now
        self.manager: SessionManager | None = None  # the session manager that restores the run's newest state
        self.coord: Any = None  # stopped when the process is asked to stop
        self.writer: Any = None  # writes the events that record checkpoints
        self.has_servers = False  # the session's state may lie in other processes
        self.logs_saves = False  # log a line for each checkpoint, as TensorFlow does
        self.is_in_run = False
        self._final_checkpoint = final_checkpoint
        self._user_saves: UserSaves | None = None
        self._watched_session: Any = None  # the session whose state is saved if the program closes it
        # Whether the checkpoint service has the plan, and whether graph.pbtxt is written.
        self._is_introduced = self._is_text_written = False

    @property
    def has_plan(self) -> bool:
        """Whether a plan says how to name and keep checkpoints."""
        return self.config is not None and self.config.plan is not None

    # -- start -------------------------------------------------------------------------------------
    def configure(self, config: SaveConfig, save_path: str | None) -> None:
        """Set how to keep checkpoints. Call this once.

        If `save_path` is given, also prepare to coordinate the program's own calls of its Saver
        with the checkpoint service.
        """
        self.config = config
        if isinstance(config.saver, tf1.train.Saver) and save_path is not None:
            self._user_saves = UserSaves(config.saver, save_path, self.runtime)

    def enter_run(self) -> None:
        """Connect to the run and listen for stop requests, if not yet connected."""
        if not self.is_in_run:
            self.runtime.acquire_run()
            self.is_in_run = True
            self.runtime.begin_session(self.finish_session)
            self.runtime.stops.add_listener(self._on_stop)

    def introduce_plan(self) -> None:
        """Send the plan to the checkpoint service, if there is a plan, and start receiving messages.

        From here on, the program's own calls of its Saver are coordinated with the service.
        """
        if self._user_saves is not None:
            self._user_saves.patch.apply()
        if self.config is not None and self.has_plan and not self._is_introduced:
            self._is_introduced = True
            self.config.introduce(self.runtime)
        self.runtime.connection.start_link()

    def start_session(self, session: Any, saves: bool = True, lost: Lost | None = None) -> TrainingRun:
        """Start the TrainingRun of `session`, whose state is in place, and end the previous one.

        If `saves`, take snapshots of the session. `lost` describes the lost session that this
        session replaces, if any.
        """
        assert self.config is not None
        self.end_session()
        origin = self._origin()
        cadence = self.config.cadence() if saves else None
        source = self.config.source_of(session)
        self.has_servers = bool(getattr(session, "sess_str", b""))
        training = self.training = TrainingRun(self.runtime, source, origin, cadence, self._on_durable, lost)
        if training.counts_calls and training.origin.source == "fresh" and self.runtime.observer is None:
            say("the program has no global step: each call of its session counts as one")
        training.start_training()
        if self.runtime.stops.reason is not None:
            self.coord.request_stop()  # making the session cleared the coordinator's stop
        return training

    def _origin(self) -> Origin:
        """Return where the new session's state came from; FRESH if it was not restored."""
        return (self.manager.origin if self.manager is not None else None) or FRESH

    def start_cadence(self, training: TrainingRun, every_s: float | None) -> None:
        """Start the periodic snapshots.

        Write their interval and cost as scalars every `every_s` seconds; None or 0: never.
        """
        clock, writer, written_s = self.runtime.clock, self.writer, self.runtime.clock.monotonic()

        def write_scalars(figures: Snapshots) -> None:
            nonlocal written_s
            if not writer or not every_s or clock.monotonic() - written_s < every_s:
                # Nothing is written in the first interval, so that a short run's event file has only what TensorFlow
                # would write.
                return
            written_s = clock.monotonic()
            shown = {SNAPSHOT_INTERVAL: figures.interval_s, SNAPSHOT_STALL: figures.mean_stall_s * 1e3}
            values = [make_scalar(tag, value) for tag, value in shown.items()]
            step = training.read_step()
            writer.add_summary(tf1.Summary(value=values), step if step >= 0 else None)

        if training.snapshots is not None:
            training.snapshots.start_cadence(write_scalars)

    def mark_attempt(self, first_step: int) -> None:
        """Write into the event file at which step this attempt resumes.

        Call this after the START record, which would make the mark void.
        """
        mark = mark_attempt(self.runtime, first_step) if self.writer else None
        if mark is not None:
            self.writer.add_summary(mark, first_step)

    def write_graph_text(self, graph: Any, logdir: Any) -> None:
        """Have graph.pbtxt written once. Call this when the graph is final."""
        if not self._is_text_written:
            write_graph_text(self.runtime, graph, logdir)
            self._is_text_written = True

    # -- events ------------------------------------------------------------------------------------
    def _on_durable(self, news: Durable) -> None:
        """Record a checkpoint, now on disk, in the Saver's own list and in the event file."""
        config = self.config
        assert config is not None
        if config.plan is None:
            return
        save_path = config.plan.save_path
        if self.logs_saves:
            log.info("Saving checkpoint to path %s", save_path)
        if self._user_saves is not None:
            self._user_saves.on_durable(news.all_paths)
        else:
            config.saver.set_last_checkpoints_with_time([(path, written_at(path)) for path in news.all_paths])
        is_ours = news.sequence > 0  # like TensorFlow's classes, record none of the program's own saves
        if is_ours and self.writer and config.global_step is not None:
            saved = tf1.SessionLog(status=tf1.SessionLog.CHECKPOINT, checkpoint_path=save_path)
            self.writer.add_session_log(saved, news.step)

    def _on_stop(self, reason: Reason) -> None:
        coord = self.coord  # another thread owns it and may clear it at any time
        if coord is not None:
            coord.request_stop()
        log.info("procsv: asked to stop (%s): saving at the next step", reason)

    # -- end ---------------------------------------------------------------------------------------
    def save_last_state(self, saved_step: int = NOT_SAVED) -> int:
        """Save the last state, unless its step is `saved_step`.

        Return the step of the newest saved state: the last step if it was saved, otherwise
        `saved_step`. If a failed call may have made half a step, save nothing and wait until the
        newest snapshot that was requested is on disk.
        """
        training = self.training
        if training is None or training.snapshots is None or not self._final_checkpoint:
            return saved_step
        if training.boundary.is_torn and self._has_failed():
            log.warning(
                "procsv: the last state is not saved, because the call that failed may have made half a step; the run "
                "resumes from its newest snapshot"
            )
            training.wait_asked(training.final_save_s())
            return saved_step
        try:
            step = self._read_last_step(training)
        except (RuntimeError, TimeoutError, tf.errors.OpError) as error:
            log.warning("procsv: the last state is not saved, because the session is no longer usable: %s", error)
            return saved_step
        if step == saved_step:
            return saved_step
        reason = self.runtime.stops.reason or "final"
        return step if training.save(reason, training.final_save_s()) else saved_step

    def _has_failed(self) -> bool:
        """Whether an error ends the session, so that a call may have made half a step.

        An interrupt does not count: Python raises it only once TensorFlow's call has ended.
        """
        return isinstance(self.runtime.failure, Exception) or bool(getattr(self.coord, "has_error", False))

    def _read_last_step(self, training: TrainingRun) -> int:
        if not self.has_servers:
            return training.read_step()
        return call_within(training.read_step, READ_S_MAX, "reading the last step")

    def finish_session(self) -> None:
        """Save the last state and end the session, if the program has not done so.

        If another thread stays in a call of the session for CALL_S_MAX, only warn.
        """
        self.let_close()  # if the program closes the session now, that must not call this function again
        if self.training is not None and not self.training.boundary.is_reached_within(CALL_S_MAX):
            log.warning(
                "procsv: the last state is not saved, because another thread is still in a call of the session; "
                "the run resumes from its newest snapshot"
            )
            return
        self.save_last_state()
        self.end_session()

    def watch_close(self, session: Any) -> None:
        """Save the last state if the program closes `session` before it ends its supervisor."""
        self._watched_session = session
        call_at_close(session, self._on_close)

    def let_close(self) -> None:
        """Undo `watch_close`: the caller is about to save the last state or end the session."""
        session, self._watched_session = self._watched_session, None
        call_at_close(session, None)

    def _on_close(self) -> None:
        if self.runtime.is_connected:
            self.finish_session()
            self.runtime.heartbeat.enter_phase(Phase.PROGRAM)

    def end_session(self) -> None:
        """End the TrainingRun. The session is about to be closed, and procsv no longer touches it."""
        self.let_close()
        training, self.training = self.training, None
        if training is not None:
            training.end_training()

    def leave_run(self) -> None:
        """Disconnect from the run, and undo the changes to the Saver and the session manager."""
        if not self.is_in_run:
            return
        self.is_in_run = self._is_introduced = False
        self.runtime.end_session()
        if self._user_saves is not None:
            self._user_saves.patch.undo()
        if self.manager is not None:
            self.manager.runtime = None
        self.runtime.stops.remove_listener(self._on_stop)
        self.runtime.heartbeat.enter_phase(Phase.PROGRAM)  # a program without a session may take any time
        self.runtime.release_run()
