"""Let the user's own `saver.save` and the checkpoint service save into the same directory.

The user may save at any time and from any thread. During a session, UserSaves replaces the `save`
of the session's Saver. The replacement lets one save at a time write the `checkpoint` file, which
has the list of checkpoints. Each save starts from the list in this file. So every checkpoint stays
on the list until it is deleted, and old checkpoints are deleted in order. UserSaves reports each
save to the service. The checkpoints of other Savers stay listed, and this Saver does not delete
them. Saves to other directories, and saves that do not write the list, go straight to TensorFlow.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.python.checkpoint import checkpoint_management

from procsv.base.location import local_path
from procsv.base.run.checkpoint_lock import hold_checkpoint_lock
from procsv.base.run.manifest import STATE_FILE
from procsv.base.run.paths import anchor, local_home
from procsv.training.graph.patches import AttributePatch
from procsv.training.runtime.context import Runtime

tf1 = tf.compat.v1


class UserSaves:
    """Coordinates the saves of one Saver into the directory of `save_path`."""

    def __init__(self, saver: Any, save_path: str, runtime: Runtime) -> None:
        self._saver, self._directory, self._runtime = saver, _directory_of(save_path), runtime
        self._own: frozenset[str] = frozenset()  # this Saver's checkpoints, also those that its list lacks
        self._save = saver.save
        self.patch = AttributePatch(saver, "save", lambda _: self.save)  # while applied, `saver.save` calls `self.save`
        self._lock, self._holder = threading.Lock(), 0  # _holder: the thread that saves now, by its id; 0: none

    def save(self, sess: Any, save_path: str, *args: Any, **kwargs: Any) -> Any:
        """Save as Saver.save does, one save at a time."""
        if not self._concerns_us(save_path, args, kwargs) or not isinstance(sess, tf1.Session):
            return self._save(sess, save_path, *args, **kwargs)  # TensorFlow reports what is wrong with `sess`
        if self._holder == threading.get_ident():  # a signal handler has interrupted this thread's save, and saves
            return self._save(sess, save_path, *args, **kwargs)
        # `_save` passes the session's boundary. A thread that waits here for another save must not hold the boundary.
        with self._runtime.heartbeat.saving(), self._lock, hold_checkpoint_lock(local_home(self._directory)):
            external = self._list_checkpoints()
            self._holder = threading.get_ident()
            try:
                with sess.graph.as_default():  # a new thread of a plain program is in eager mode
                    saved = self._save(sess, save_path, *args, **kwargs)
            finally:
                self._holder = 0
            if saved:
                self._own |= {anchor(saved)}  # a Saver that deletes nothing does not remember it
                self._list_external(external, _parent(os.fspath(save_path)))
                if local_path(saved) is not None:  # the service finds a remote one at its own next save
                    self._runtime.connection.tell_user_save(os.path.abspath(saved))
            return saved

    def _concerns_us(self, save_path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Return whether a save into `save_path` writes the `checkpoint` file of our directory.

        `args` and `kwargs` are the other arguments of Saver.save.
        """
        latest = args[1] if len(args) > 1 else kwargs.get("latest_filename")
        writes_list = args[4] if len(args) > 4 else kwargs.get("write_state", True)
        here = _directory_of(save_path) == self._directory
        return bool(here and writes_list and latest in (None, STATE_FILE))

    def on_durable(self, own: tuple[str, ...]) -> None:
        """Adopt the list of this Saver's checkpoints that the service has sent after a save.

        Do not wait for a save of the program that is under way. Such a save sets the list itself,
        from the `checkpoint` file.
        """
        self._own = frozenset(own)
        if self._lock.acquire(blocking=False):
            try:
                self._list_checkpoints()
            finally:
                self._lock.release()

    def _list_checkpoints(self) -> list[str]:
        """Set the Saver's list to those checkpoints in the `checkpoint` file that are its own.

        Return the file's other checkpoints, which other Savers have written.
        """
        listed = self._listed()
        if listed is None:
            return []
        known = self._own | {anchor(path) for path in self._saver.last_checkpoints}
        saver_def = getattr(self._saver, "saver_def", None)
        if saver_def is None or saver_def.max_to_keep:  # otherwise it deletes none, and remembers none
            mine = [path for path in listed if path in known]
            self._saver.set_last_checkpoints_with_time([(path, written_at(path)) for path in mine])
        return [path for path in listed if path not in known]

    def _listed(self) -> list[str] | None:
        """Return the checkpoints that the `checkpoint` file lists and that still exist.

        Return None if there is no such file.
        """
        state = tf1.train.get_checkpoint_state(self._directory, STATE_FILE)
        if state is None:
            return None
        return [anchor(path) for path in state.all_model_checkpoint_paths if written_at(path)]

    def _list_external(self, external: list[str], save_dir: str) -> None:
        """Add the checkpoints of other Savers to the list again: a Saver lists only its own.

        If a kill prevents this, the service adds them, because it knows these checkpoints, too.
        """
        listed = self._listed() or []
        missing = [path for path in external if path not in listed]
        if missing and listed:
            checkpoint_management.update_checkpoint_state_internal(
                save_dir,
                listed[-1],
                [*missing, *listed],
                latest_filename=STATE_FILE,
                save_relative_paths=bool(getattr(self._saver, "_save_relative_paths", False)),
            )


def written_at(path: str) -> float:
    """Return when checkpoint `path` was written, in Unix seconds; 0.0 if it is gone."""
    there = local_path(path)
    if there is None:
        try:
            return float(tf.io.gfile.stat(f"{path}.index").mtime_nsec) / 1e9
        except tf.errors.OpError:
            return 0.0
    # In TensorFlow's V1 format, `path` is the file itself, or a pattern that matches its shards.
    first_format: list[Path] = list(there.parent.glob(there.name)) if "?" in there.name else [there]
    for file in (Path(f"{path}.index"), *first_format):
        with contextlib.suppress(OSError):
            return float(file.stat().st_mtime)
    return 0.0


def _directory_of(save_path: str) -> str:
    return _parent(anchor(os.fspath(save_path)))


def _parent(path: str) -> str:
    """Return the parent directory as it is spelled. A URL keeps its slashes."""
    local = local_path(path)
    return path.rpartition("/")[0] if local is None else str(local.parent)
