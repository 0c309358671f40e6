"""Adapt TensorFlow's checkpoint, summary and step counter hooks to procsv.

Programs use these hooks like TensorFlow's: timers, listeners and steps are the same. The
CheckpointSaverHook saves through a snapshot. The SummarySaverHook and the StepCounterHook each have
one repair.

In procsv's monitored sessions, all hooks get their event writers from SessionWriters. These writers
send the events to the summary service. The CheckpointSaverHook requests a snapshot, which is taken
between two steps, and the checkpoint service writes the files. While the session trains, the
training thread waits for the disk in only three cases:

* `save_steps` must save exactly every so many steps, and the previous checkpoint is not on disk.
* A listener's `after_save` must find the checkpoint on disk.
* The hook saves after every run, so each checkpoint must be on disk when its run returns.

The training thread also waits for the checkpoint before the first step, but only for some seconds,
and for the last checkpoint.

In any other session, a CheckpointSaverHook behaves exactly like TensorFlow's. So does a second hook
that saves in the same session.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.python.framework import meta_graph
from tensorflow.python.summary.writer.writer_cache import FileWriterCache
from tensorflow.python.training import basic_session_run_hooks as tf_hooks

from procsv.training.graph.patches import ItemPatch
from procsv.training.runtime.context import Runtime
from procsv.training.summaries.graph_walk import elements_of, needed_ops
from procsv.training.summaries.writer import SummaryWriter

if TYPE_CHECKING:
    from procsv.training.sessions.monitored_controller import MonitoredController

tf1 = tf.compat.v1
log = tf1.logging


class CheckpointSaverHook(tf_hooks.CheckpointSaverHook):
    """tf.compat.v1.train.CheckpointSaverHook that does not block training."""

    _controller: MonitoredController | None = None

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Write graph files and events, and save the first state if no checkpoint has it yet.

        If the hook has listeners, save the first state in any case.
        """
        if self._controller is None:
            super().after_create_session(session, coord)
            return
        step = session.run(self._global_step_tensor)
        self._controller.describe_graph(session.graph, self._get_saver(), has_text=self._save_graph_def)
        if self._listeners or self._controller.saved_step != step:
            self._save(session, step)
        every = getattr(self._timer, "_every_steps", None)
        self._timer.update_last_triggered_step(self._controller.last_due(step, every))

    def _save(self, session: Any, step: Any) -> bool:
        """Save the state, and call the listeners. Return True if a listener asks for a stop.

        If a listener has an `after_save`, wait until the checkpoint is on disk.
        """
        if self._controller is None:
            return bool(super()._save(session, step))
        if self._listeners:
            log.info("Calling checkpoint listeners before saving checkpoint %d...", step)
        for listener in self._listeners:
            listener.before_save(session, step)
        log.info("Saving checkpoints for %d into %s.", step, self._save_path)
        inherited = tf_hooks.CheckpointSaverListener.after_save
        waiting = [li for li in self._listeners if getattr(type(li), "after_save", None) is not inherited]
        if not waiting:
            every = getattr(self._timer, "_every_steps", None)
            self._controller.save(
                step,
                exactly=every is not None or bool(self._listeners),
                at_once=bool(self._listeners),
                waits=every is not None and every <= self._steps_per_run,
            )
            return False
        if not self._controller.save_and_wait(step):
            log.error("procsv: checkpoint %d is not on disk; its listeners are not called", step)
            return False
        log.info("Calling checkpoint listeners after saving checkpoint %d...", step)
        stopping = [listener for listener in waiting if listener.after_save(session, step)]
        for listener in stopping:
            log.info("A CheckpointSaverListener requested that training be stopped. listener: %s", listener)
        return bool(stopping)


class SummarySaverHook(tf_hooks.SummarySaverHook):
    """TensorFlow's SummarySaverHook, except that it waits for a run that feeds its summaries.

    TensorFlow's hook makes a run fail if a placeholder of the summaries is not fed.
    """

    _request_summary: bool
    _needed: frozenset[str] | None = None  # names of the placeholders that the summaries need
    _known: dict[Any, bool]  # by what a run fetches and feeds: whether it feeds these placeholders
    _has_reported = False

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Start over, also after a recovery. The first run computes summaries."""
        self._next_step = None
        self._timer.reset()
        self._known = {}
        self._needed = _placeholders_above(self._get_summary_op() or [], frozenset())

    def before_run(self, run_context: Any) -> Any:
        """Request summaries that are due, if this run feeds what they need."""
        request = super().before_run(run_context)
        if self._request_summary and self._needed and not self._is_fed(run_context):
            self._request_summary = False
            request.fetches.pop("summary", None)
            if not self._has_reported:
                self._has_reported = True
                log.info("procsv: summaries are written at the next run that feeds their placeholders")
        return request

    def _is_fed(self, run_context: Any) -> bool:
        """Return whether this run feeds each placeholder of the summaries.

        A placeholder that the program's own fetches need counts as fed: if the program does not
        feed it, another hook must, or the run fails anyway.
        """
        graph, args = run_context.session.graph, run_context.original_args
        known = elements_of(graph, args.fetches, args.feed_dict)
        if known is None:
            return True
        wanted, fed = known
        key = (frozenset(element.name for element in wanted), fed)
        if key not in self._known:
            needed = _placeholders_above(self._get_summary_op(), fed)
            self._known[key] = needed <= _placeholders_above(wanted, fed)
        return self._known[key]


def _placeholders_above(elements: Any, fed: frozenset[str]) -> frozenset[str]:
    """Return the names of the placeholders that must be fed for a run of `elements`.

    Placeholders with a default, and placeholders in `fed`, are left out.
    """
    return frozenset(op.name for op in needed_ops(elements, fed) if op.type == "Placeholder")


class StepCounterHook(tf_hooks.StepCounterHook):
    """tf.compat.v1.train.StepCounterHook, except that a rate never spans a recovery."""

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Restart the count. After a recovery steps may go back, and recovery itself takes time."""
        self._timer.reset()
        self._last_global_step = None


class SessionWriters:
    """The event writers of one monitored session, put where hooks look for writers.

    TensorFlow's hooks, and many users' hooks, call `SummaryWriterCache.get(directory)`. Between
    `install_writers` and `close_writers`, this call returns a SummaryWriter for each of the
    session's directories. A SummaryWriter sends its events to the summary service. Each event file
    gets the graph once.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._streams = runtime.connection.streams
        self._ours: dict[SummaryWriter, ItemPatch] = {}
        self._is_described = False

    def install_writers(self, directories: Iterable[Any]) -> None:
        """Install a SummaryWriter for each directory.

        Leave out remote directories, and directories for which the program has installed a writer
        of another class than TensorFlow's.
        """
        with FileWriterCache._lock:
            for directory in directories:
                before = FileWriterCache._cache.get(directory)
                if "://" in str(directory) or (before is not None and type(before) is not tf1.summary.FileWriter):
                    continue
                writer = SummaryWriter(directory, self._streams)
                self._ours[writer] = ItemPatch(FileWriterCache._cache, directory, writer)
                self._ours[writer].apply()

    def describe_graph(self, graph: Any, saver: Any) -> None:
        """Write the finalized graph to the files once, even if the session is re-created."""
        if self._is_described or not self._ours:
            return
        self._is_described = True
        saver_def = getattr(saver, "saver_def", None)
        graph_def = graph.as_graph_def(add_shapes=True)
        with graph.as_default():
            described = meta_graph.create_meta_graph_def(graph_def=graph_def, saver_def=saver_def)
        for writer in self._ours:
            writer.add_graph(graph)
            writer.add_meta_graph(described)

    def mark_start(self, step: int) -> None:
        """Mark that the session resumes at `step`. Records from this step on become void."""
        for writer in self._ours:
            writer.add_session_log(tf1.SessionLog(status=tf1.SessionLog.START), step)

    def release_hooks(self, hooks: Iterable[Any]) -> None:
        """Make hooks that hold one of our writers ask for another one when they begin again."""
        for hook in hooks:
            if any(writer is getattr(hook, "_summary_writer", None) for writer in self._ours):
                hook._summary_writer = None

    def close_writers(self) -> None:
        """Close the writers, so that all events are in their files, and put TensorFlow's back."""
        with FileWriterCache._lock:
            for patch in self._ours.values():
                patch.undo()
        for writer in self._ours:
            writer.close()
        self._ours = {}
