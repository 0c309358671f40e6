"""Handle a program that deletes its directory at each start.

The bootstrap calls this.  It covers `shutil.rmtree` and TensorFlow's own deletion.  The run's
records lie in that directory, and other processes write to them: a file that appears or disappears
between listing and deletion makes either call fail.  procsv then repeats the call, and reports how
many checkpoints the program has deleted.

With --map-logdir the program works in another directory than it names.  It then deletes the
directory that it names, which may hold a training that the user wants to keep.  A run with this
option, such as a drill, must not destroy that training, so procsv prevents the deletion.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from procsv.base.errors import UserError
from procsv.base.journal.entries import CheckpointsDeleted
from procsv.base.units import show_count
from procsv.ipc.shm.slot_header import scan_slots
from procsv.training.graph.patches import AttributePatch
from procsv.training.process.after_import import call_after_import
from procsv.training.runtime.context import Runtime
from procsv.training.runtime.log import say
from procsv.training.runtime.program_logdir import CarriedCheckpoints

TRIES_MAX = 50
_PATTERNS = ("*.index", "events.out.tfevents.*")

Remove = Callable[..., Any]


def watch_deletions(runtime: Runtime) -> None:
    """Makes deletions of the run's logdir by this trainer succeed, and reports them."""
    logdir, carried = runtime.connection.start.logdir, CarriedCheckpoints(runtime.connection.start)

    def on_begin() -> None:
        if runtime.is_ahead:  # it must not delete what the trainer beside it has saved
            raise SystemExit(
                "procsv: the program deletes its logdir at its start, so it cannot have a hot standby; "
                "use --standby warm"
            )

        if carried.is_due():
            try:
                carried.link_checkpoints()
            except OSError as error:
                say(f"checkpoints in {logdir} cannot be kept from deletion: {error}")

    def on_deleted(count: int) -> None:
        what = ""
        if carried.is_kept:
            what = "; procsv puts them back for its session (for a new run: `procsv launch --new`)"
        elif runtime.training is None and not scan_slots(runtime.connection.paths.shm_dir):
            what = ": it starts from the beginning"
        say(f"the program deleted {show_count(count, 'checkpoint')} in {logdir}{what}")
        runtime.connection.note_entry(CheckpointsDeleted(count=count, kept=carried.is_kept))

    if runtime.connection.start.has_local_logdir:
        LogdirDeletion(runtime.connection.start.checkpoint_dir, on_begin, on_deleted).watch_deletion()


def patch_deletions(wrap: Callable[[Remove], Remove]) -> None:
    """Wraps the functions that delete a directory tree, in shutil and in TensorFlow."""

    def patch_tensorflow() -> None:
        library = sys.modules.get("tensorflow.python.lib.io._pywrap_file_io")
        if library is not None:
            AttributePatch(library, "DeleteRecursively", wrap).apply()

    AttributePatch(shutil, "rmtree", wrap).apply()
    call_after_import("tensorflow", patch_tensorflow)


class LogdirDeletion:
    """Makes deletions of `logdir`, or of a parent, succeed despite the run's own files."""

    def __init__(self, logdir: Path, on_begin: Callable[[], None], on_deleted: Callable[[int], None]) -> None:
        """`on_begin` may raise an error to prevent a deletion.

        `on_deleted` gets the number of checkpoints that a deletion took.
        """
        self._logdir, self._on_begin, self._on_deleted = logdir, on_begin, on_deleted

    def watch_deletion(self) -> None:
        """Handles deletions in this process from here on."""
        patch_deletions(self._repeated)

    def _repeated(self, remove: Remove) -> Remove:
        @functools.wraps(remove)
        def rmtree(path: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._logdir.is_dir() or not self._is_inside(path):
                return remove(path, *args, **kwargs)
            self._on_begin()
            before = self._count_checkpoints()
            result = self._remove(lambda: remove(path, *args, **kwargs))
            if deleted := before - self._count_checkpoints():
                self._on_deleted(deleted)
            return result

        return rmtree

    def _remove(self, remove: Callable[[], Any]) -> Any:
        """Calls `remove`, and repeats it while procsv's own directory is what makes it fail."""
        for _ in range(TRIES_MAX):
            try:
                return remove()
            except Exception:  # noqa: BLE001  from either library; the last try raises what procsv did not cause
                if not self._move_home_away():
                    break
        return remove() if self._logdir.is_dir() else None

    def _move_home_away(self) -> bool:
        """Renames procsv's directory, so that nothing writes to it any more.

        Returns False if the directory does not exist, and so was not in the way.  A file that was
        being opened in it during the move may still appear once.
        """
        home = self._logdir / "procsv"
        moved = home.with_name(f".procsv-deleted-{os.getpid()}")
        with contextlib.suppress(OSError):
            home.rename(moved)
            return True
        return home.is_dir() or moved.is_dir()

    def _is_inside(self, path: Any) -> bool:
        """Whether the logdir is `path` or lies in it."""
        try:
            removed = Path(os.path.realpath(os.fsdecode(path)))
        except (TypeError, ValueError, OSError):  # OSError: a relative path in a working directory that is gone
            return False  # the call itself reports the mistake
        return self._logdir.is_relative_to(removed)

    def _count_checkpoints(self) -> int:
        return sum(1 for _ in self._logdir.glob("*.index"))


def guard_other_trainings(runtime: Runtime) -> None:
    """Prevents this trainer from deleting a directory with an earlier training."""
    if runtime.connection.start.naming != "mapped":
        return
    logdir, began_at = runtime.connection.start.checkpoint_dir, runtime.connection.start.asked_at

    def guarded(remove: Remove) -> Remove:
        @functools.wraps(remove)
        def rmtree(path: Any, *args: Any, **kwargs: Any) -> Any:
            if found := sum(1 for _ in _find_kept(path, logdir, began_at)):
                raise UserError(
                    f"the program is about to delete {os.fsdecode(path)}, which holds {show_count(found, 'file')} of "
                    f"an earlier training, although this run uses {logdir}: move that directory away, or give the "
                    "program {logdir} as the argument that names its directory"
                )
            return remove(path, *args, **kwargs)

        return rmtree

    patch_deletions(guarded)


def _find_kept(path: Any, logdir: Path, began_at: float) -> Iterator[Path]:
    """Checkpoints and event files from before the launch, in `path` or a subdirectory.

    Files in the logdir are left out.
    """
    try:
        place = Path(os.path.realpath(os.fsdecode(path)))
    except (TypeError, ValueError, OSError):
        return  # the call itself reports the mistake
    for pattern in _PATTERNS:
        for file in (*place.glob(pattern), *place.glob(f"*/{pattern}")):
            if not file.is_relative_to(logdir) and _written_at(file) < began_at:
                yield file


def _written_at(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return float("inf")  # just deleted
