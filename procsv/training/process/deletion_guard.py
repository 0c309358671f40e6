"""Guard of what a program has trained elsewhere, where --map-logdir gives it another directory than it names.

Called by the bootstrap.  Such a program may begin by deleting the directory that it names.  That one is none of this run's, and
may hold a training that somebody wants to keep: a drill of the program must not cost it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from procsv.base.errors import UserError
from procsv.base.units import show_count
from procsv.training.process.logdir_deletion import Remove, patch_deletions
from procsv.training.runtime.context import Runtime

_PATTERNS = ("*.index", "events.out.tfevents.*")


def guard_other_trainings(runtime: Runtime) -> None:
    """From here on, in the trainer: a directory with a training from before this launch is not deleted."""
    if runtime.start.naming != "mapped":
        return
    logdir, began_at = runtime.start.checkpoint_dir, runtime.start.asked_at

    def guarded(remove: Remove) -> Remove:
        @functools.wraps(remove)
        def rmtree(path: Any, *args: Any, **kwargs: Any) -> Any:
            if found := sum(1 for _ in _find_kept(path, logdir, began_at)):
                raise UserError(
                    f"the program deletes {os.fsdecode(path)}, which holds {show_count(found, 'file')} of an earlier training; "
                    f"{logdir} takes its place in this run: move that directory away, or give the program {{logdir}} as an "
                    "argument that names its directory"
                )
            return remove(path, *args, **kwargs)

        return rmtree

    patch_deletions(guarded)


def _find_kept(path: Any, logdir: Path, began_at: float) -> Iterator[Path]:
    """Checkpoints and event files in `path`, or in a directory in it, that were there before the launch; none of the logdir's."""
    try:
        place = Path(os.path.realpath(os.fsdecode(path)))
    except (TypeError, ValueError):
        return  # the call itself says what is wrong
    for pattern in _PATTERNS:
        for file in (*place.glob(pattern), *place.glob(f"*/{pattern}")):
            if not file.is_relative_to(logdir) and _written_at(file) < began_at:
                yield file


def _written_at(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return float("inf")  # gone
