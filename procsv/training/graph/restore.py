"""TensorFlow's session manager with one step replaced: where the state comes from."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import Any, cast

import tensorflow as tf

from procsv.base.text import is_remote
from procsv.training.graph.state import GraphState
from procsv.training.runtime.context import Runtime
from procsv.training.snapshots.restore_client import Origin, restore_newest

tf1 = tf.compat.v1


def restore_into(runtime: Runtime, session: Any, saver: Any) -> Origin:
    """Puts the newest state into `session`, and what there is of checkpoints into the list of `saver`."""
    origin = restore_newest(runtime, GraphState(session, saver))
    if origin.source != "fresh":
        saver.set_last_checkpoints_with_time([(path, written_at(path)) for path in origin.listed])
    return origin


def written_at(path: str) -> float:
    """When checkpoint `path` was written (Unix seconds), as the Saver's list wants it; 0.0 if it is gone."""
    if is_remote(path):
        try:
            return float(tf.io.gfile.stat(f"{path}.index").mtime_nsec) / 1e9
        except tf.errors.OpError:
            return 0.0
    there = Path(path)
    is_pattern = "?" in there.name  # shards of the first format
    first_format: list[Path] = list(there.parent.glob(there.name)) if is_pattern else [there]
    for file in (Path(f"{path}.index"), *first_format):
        with contextlib.suppress(OSError):
            return float(file.stat().st_mtime)
    return 0.0


class SessionManager(tf1.train.SessionManager):  # type: ignore[name-defined]  # tensorflow is untyped
    """TensorFlow's session manager, restoring the newest state that there is, in memory or on disk."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.runtime: Runtime | None = None  # None: as TensorFlow's
        self.origin: Origin | None = None

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
            return cast(
                tuple[Any, bool],
                super()._restore_checkpoint(
                    master,
                    saver,
                    checkpoint_dir=checkpoint_dir,
                    checkpoint_filename_with_path=checkpoint_filename_with_path,
                    wait_for_checkpoint=wait_for_checkpoint,
                    max_wait_secs=max_wait_secs,
                    config=config,
                ),
            )
        self._target = master
        session = tf1.Session(master, graph=self._graph, config=config)
        try:
            self._run_saved_model_initializers(session)
            self.origin = restore_into(self.runtime, session, saver)
            waited_until_s = time.monotonic() + max_wait_secs
            while self.origin.source == "fresh" and wait_for_checkpoint and time.monotonic() < waited_until_s:
                tf1.logging.info("Waiting for checkpoint to be available.")
                self._pause(min(self._recovery_wait_secs, max(0.0, waited_until_s - time.monotonic())))
                self.origin = restore_into(self.runtime, session, saver)
        except BaseException:
            session.close()
            raise
        return session, self.origin.source != "fresh"

    def _run_saved_model_initializers(self, session: Any) -> None:
        initializers = self._graph.get_collection("saved_model_initializers")
        if initializers:
            session.run(initializers)

    def _pause(self, seconds: float) -> None:
        threading.Event().wait(seconds)
