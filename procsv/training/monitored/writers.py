"""The event files of one monitored session: written by the summary service, found where hooks look for writers.

Made by MonitoredController.  TensorFlow's hooks, and many of its users', ask `SummaryWriterCache.get(directory)`; for the session's
directories that is one of ours while the session lasts.  Each graph is written once a file.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import meta_graph
from tensorflow.python.summary.writer.writer_cache import FileWriterCache

from procsv.training.graph.patches import ItemPatch
from procsv.training.runtime.context import Runtime, StartingSink
from procsv.training.summaries.writer import SummaryWriter

tf1 = tf.compat.v1


class SessionWriters:
    """A writer for each directory, in the place of TensorFlow's from `begin` to `end`."""

    def __init__(self, runtime: Runtime) -> None:
        self._sink = StartingSink(runtime)
        self._ours: list[SummaryWriter] = []
        self._patches: list[ItemPatch] = []
        self._is_described = False

    def begin(self, directories: Iterable[Any]) -> None:
        """Writers of other kinds than TensorFlow's own (a test's, say) are left in their place."""
        with FileWriterCache._lock:
            for directory in directories:
                before = FileWriterCache._cache.get(directory)
                if "://" in str(directory) or (before is not None and type(before) is not tf1.summary.FileWriter):
                    continue
                writer = SummaryWriter(directory, sink=self._sink)
                patch = ItemPatch(FileWriterCache._cache, directory, writer)
                patch.apply()
                self._ours.append(writer)
                self._patches.append(patch)

    def describe(self, graph: Any, saver: Any) -> None:
        """Puts the finalized graph into the files; once, however often the session is made anew."""
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
        """What was written of later steps was lost: the session goes on from `step`."""
        for writer in self._ours:
            writer.add_session_log(tf1.SessionLog(status=tf1.SessionLog.START), step)

    def forget(self, hooks: Iterable[Any]) -> None:
        """Hooks ask for a writer again when they begin again."""
        for hook in hooks:
            if any(writer is getattr(hook, "_summary_writer", None) for writer in self._ours):
                hook._summary_writer = None

    def end(self) -> None:
        """All events are in their files, and TensorFlow's writers in their places."""
        with FileWriterCache._lock:
            for patch in self._patches:
                patch.undo()
        for writer in self._ours:
            writer.close()
        self._ours, self._patches = [], []
