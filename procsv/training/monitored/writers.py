"""Event files of one monitored session, found where hooks look for writers.

Made by MonitoredController.  TensorFlow's hooks, and many of its users', ask `SummaryWriterCache.get(directory)`.  While the
session lasts, that gives a writer to the summary service for each of its directories.  Each graph is written once a file.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import meta_graph
from tensorflow.python.summary.writer.writer_cache import FileWriterCache

from procsv.training.graph.patches import ItemPatch
from procsv.training.runtime.context import Runtime
from procsv.training.summaries.writer import SummaryWriter

tf1 = tf.compat.v1


class SessionWriters:
    """One writer a directory, in the place of TensorFlow's from `install_writers` to `close_writers`."""

    def __init__(self, runtime: Runtime) -> None:
        self._streams = runtime.connection.streams
        self._ours: dict[SummaryWriter, ItemPatch] = {}
        self._is_described = False

    def install_writers(self, directories: Iterable[Any]) -> None:
        """Puts a writer in place for each directory, unless a program's own kind of writer is there."""
        with FileWriterCache._lock:
            for directory in directories:
                before = FileWriterCache._cache.get(directory)
                if "://" in str(directory) or (before is not None and type(before) is not tf1.summary.FileWriter):
                    continue
                writer = SummaryWriter(directory, self._streams)
                self._ours[writer] = ItemPatch(FileWriterCache._cache, directory, writer)
                self._ours[writer].apply()

    def describe_graph(self, graph: Any, saver: Any) -> None:
        """Writes the finalized graph to the files; once, however often the session is made anew."""
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
        """Marks that the session resumes at `step`; what was written of later steps is void."""
        for writer in self._ours:
            writer.add_session_log(tf1.SessionLog(status=tf1.SessionLog.START), step)

    def release_hooks(self, hooks: Iterable[Any]) -> None:
        """Makes the hooks ask for a writer again when they begin again."""
        for hook in hooks:
            if any(writer is getattr(hook, "_summary_writer", None) for writer in self._ours):
                hook._summary_writer = None

    def close_writers(self) -> None:
        """Writes all events to their files and puts TensorFlow's writers back."""
        with FileWriterCache._lock:
            for patch in self._ours.values():
                patch.undo()
        for writer in self._ours:
            writer.close()
        self._ours = {}
