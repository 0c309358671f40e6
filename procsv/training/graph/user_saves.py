"""The user's own `saver.save`, at any time and from any thread, beside a checkpoint service that saves there, too.

Put in front of a Supervisor's Saver while it is in use.  One save at a time writes the `checkpoint` file, and each
begins with what is listed there, so that none is forgotten, neither in the list nor when old ones are deleted.  The
service is told of each.  What other Savers have listed there is none of this Saver's: it stays listed, and is not deleted.
Saves to other places, and those that leave the list alone, pass straight through.
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
    """Saves of one Saver into the directory of `save_path`."""

    def __init__(self, saver: Any, save_path: str, runtime: Runtime) -> None:
        self._saver, self._directory, self._runtime = saver, _directory_of(save_path), runtime
        self._own: frozenset[str] = frozenset()  # checkpoints that are this Saver's, besides those it knows itself
        self._save = saver.save
        self.patch = AttributePatch(saver, "save", lambda _: self.save)  # while applied, `saver.save` comes by here
        self._lock = threading.Lock()

    def save(self, sess: Any, save_path: str, *args: Any, **kwargs: Any) -> Any:
        """What Saver.save does, in its turn."""
        if not self._concerns_us(save_path, args, kwargs) or not isinstance(sess, tf1.Session):
            return self._save(sess, save_path, *args, **kwargs)  # which says what is wrong with `sess`
        with self._runtime.heartbeat.saving(), self._lock, hold_checkpoint_lock(local_home(self._directory)):
            external = self._list_checkpoints()
            with sess.graph.as_default():  # a new thread of a plain program is in eager mode
                saved = self._save(sess, save_path, *args, **kwargs)
            if saved:
                self._own |= {anchor(saved)}  # where nothing is ever deleted, the Saver does not remember it
                self._list_too(external, _parent(os.fspath(save_path)))
                if local_path(saved) is not None:  # else there the service sees it when it saves next
                    self._runtime.connection.tell_user_save(os.path.abspath(saved))
            return saved

    def _concerns_us(self, save_path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        # Not the session's boundary, which is taken within: whoever waits for our turn must not hold it.
        latest = args[1] if len(args) > 1 else kwargs.get("latest_filename")
        writes_list = args[4] if len(args) > 4 else kwargs.get("write_state", True)
        here = _directory_of(save_path) == self._directory
        return bool(here and writes_list and latest in (None, STATE_FILE))

    def on_durable(self, own: tuple[str, ...]) -> None:
        """The service has saved, and says which are this Saver's.  Never waits: a save that is going on has counted it in."""
        self._own = frozenset(own)
        if self._lock.acquire(blocking=False):
            try:
                self._list_checkpoints()
            finally:
                self._lock.release()

    def _list_checkpoints(self) -> list[str]:
        """The Saver's list becomes what the `checkpoint` file says is its own; what else is listed there."""
        listed = self._listed()
        if listed is None:
            return []
        known = self._own | {anchor(path) for path in self._saver.last_checkpoints}
        saver_def = getattr(self._saver, "saver_def", None)
        if saver_def is None or saver_def.max_to_keep:  # else it deletes none, and remembers none
            mine = [path for path in listed if path in known]
            self._saver.set_last_checkpoints_with_time([(path, written_at(path)) for path in mine])
        return [path for path in listed if path not in known]

    def _listed(self) -> list[str] | None:
        """What the `checkpoint` file lists that is there; None if there is no such file."""
        state = tf1.train.get_checkpoint_state(self._directory, STATE_FILE)
        if state is None:
            return None
        return [anchor(path) for path in state.all_model_checkpoint_paths if written_at(path)]

    def _list_too(self, external: list[str], save_dir: str) -> None:
        """A Saver lists only its own: puts the others back.  Killed before: the service does it, which knows them, too."""
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
    """When checkpoint `path` was written (Unix seconds), as the Saver's list wants it; 0.0 if it is gone."""
    there = local_path(path)
    if there is None:
        try:
            return float(tf.io.gfile.stat(f"{path}.index").mtime_nsec) / 1e9
        except tf.errors.OpError:
            return 0.0
    # Of the first format: the file itself, or its shards by a pattern.
    first_format: list[Path] = list(there.parent.glob(there.name)) if "?" in there.name else [there]
    for file in (Path(f"{path}.index"), *first_format):
        with contextlib.suppress(OSError):
            return float(file.stat().st_mtime)
    return 0.0


def _directory_of(save_path: str) -> str:
    return _parent(anchor(os.fspath(save_path)))


def _parent(path: str) -> str:
    """As it is spelled; a URL keeps its slashes."""
    local = local_path(path)
    return path.rpartition("/")[0] if local is None else str(local.parent)
