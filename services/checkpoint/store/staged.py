"""Staged checkpoints: directories `staged.<sequence>` in which a trainer's Saver has written files of its own.

Called by process.py.  They lie on the shared-memory filesystem, or wherever the trainer found room; the service owns
them once it was told of them, and only ever removes a directory of that name.
"""

from __future__ import annotations

import re
from pathlib import Path

from procsv.base.run.paths import RunPaths
from procsv.base.system import disk
from procsv.services.checkpoint.core.facts import State
from procsv.services.checkpoint.store.names import step_in_name

_NAME = re.compile(r"staged\.(\d+)$")


def find_staged(paths: RunPaths, run: str) -> list[State]:
    """What a trainer has staged and a service that is dead was told of.  Unfinished ones fail verification."""
    found = []
    for directory in sorted([*paths.shm_dir.glob("staged.*"), *paths.home.glob("staged.*")]):
        match = _NAME.match(directory.name)
        for index in list(directory.glob("*.index"))[:1] if match else []:
            prefix = str(index)[: -len(".index")]
            assert match is not None
            found.append(State(int(match[1]), step_in_name(prefix), 0, run, None, prefix))
    return found


def remove_staged(prefix: Path, paths: RunPaths) -> None:
    """Removes the staging directory that `prefix` lies in; nothing else is ever removed."""
    directory = prefix.parent
    if _NAME.match(directory.name) and directory.parent in (paths.shm_dir, paths.home):
        disk.try_to_remove_tree(directory)
