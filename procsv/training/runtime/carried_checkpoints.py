"""Carry checkpoints over a deletion of the logdir by the program.

Some programs empty their logdir at each start.  logdir_deletion.py and program_logdir.py use this
module.  A run that has adopted its logdir keeps its own files elsewhere, so hard links there
survive the deletion.  They go back when the program names the directory to its session, which
happens after its start.  Hard links are safe because checkpoints are never written in place.  A
training that has reached its end is not carried over: it starts from the beginning.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from procsv.base.outcome import NO_STEP
from procsv.base.run.checkpoint_lock import hold_checkpoint_lock
from procsv.base.run.manifest import MANIFEST_SUFFIX, STATE_FILE
from procsv.base.run.run_file import read_run
from procsv.ipc.messaging.start import Start

_PATTERNS = ("*.data-*", "*.meta", "*.index", f"*{MANIFEST_SUFFIX}", STATE_FILE)  # in the order in which they go back

_PART = rf"(\.data-\d+-of-\d+|\.meta|{re.escape(MANIFEST_SUFFIX)})"


class CarriedCheckpoints:
    def __init__(self, start: Start) -> None:
        self._start, self._logdir = start, start.checkpoint_dir
        self._place = start.paths.home / "carried"

    def is_due(self) -> bool:
        """Whether to carry over what the program is about to delete."""
        run = read_run(self._start.paths.run_json) if self._start.root else None
        return run is not None and run.began_step != NO_STEP and any(self._logdir.glob("*.index"))

    def link_checkpoints(self) -> None:
        """Links the logdir's checkpoints while the checkpoint service changes nothing there.

        Raises OSError if links are impossible, for example across filesystems; then no link is
        kept.  A kill in here comes before any deletion.  Files of an interrupted `put_back_links`
        stay.
        """
        self._place.mkdir(mode=0o700, exist_ok=True)
        try:
            with hold_checkpoint_lock(self._logdir):
                for index in sorted(self._logdir.glob("*.index")):
                    self._link(_parts_of(index))
                self._link([self._logdir / STATE_FILE])
        except OSError:
            shutil.rmtree(self._place)
            raise

    def _link(self, files: list[Path]) -> None:
        """Links all `files`, or none if one disappears meanwhile.

        A process that deletes a checkpoint without the lock removes its index first, and the index
        comes last here.
        """
        making = self._place / ".new"
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir()
        with contextlib.suppress(FileNotFoundError):
            for file in files:
                os.link(file, making / file.name)
            for file in files:
                (making / file.name).replace(self._place / file.name)
        shutil.rmtree(making)

    @property
    def is_kept(self) -> bool:
        return self._place.is_dir()

    def put_back_links(self) -> None:
        """Links the checkpoints back; files that survived the deletion stay as they are.

        A kill in here loses nothing: all links are still kept.
        """
        if not self.is_kept:
            return
        self._logdir.mkdir(parents=True, exist_ok=True)
        with hold_checkpoint_lock(self._logdir):
            for file in _files(self._place):
                with contextlib.suppress(FileExistsError):
                    os.link(file, self._logdir / file.name)
        shutil.rmtree(self._place)


def _parts_of(index: Path) -> list[Path]:
    """The files of the checkpoint with that index; the index comes last."""
    is_part = re.compile(re.escape(index.name.removesuffix(".index")) + _PART).fullmatch
    return [*(path for path in index.parent.iterdir() if is_part(path.name)), index]


def _files(directory: Path) -> Iterator[Path]:
    for pattern in _PATTERNS:
        yield from directory.glob(pattern)
