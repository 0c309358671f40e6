"""Checkpoints carried over a deletion of the logdir by the program, which begins with an empty one at each start.

Used by logdir_deletion.py and program_logdir.py.  A run that has adopted its logdir has files of its own elsewhere: hard links there
outlive the deletion, and go back when the program names the directory to its session, which is after its start.  Hard links
are safe, as checkpoints are never written in place.  Not for a training that has come to its end: that one is begun anew.
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

_PATTERNS = ("*.data-*", "*.meta", "*.index", f"*{MANIFEST_SUFFIX}", STATE_FILE)  # the order in which they go back

_PART = rf"(\.data-\d+-of-\d+|\.meta|{re.escape(MANIFEST_SUFFIX)})"


class CarriedCheckpoints:
    def __init__(self, start: Start) -> None:
        self._start, self._logdir = start, start.checkpoint_dir
        self._place = start.paths.home / "carried"

    def is_due(self) -> bool:
        """Whether what the program deletes now is to be carried over."""
        run = read_run(self._start.paths.run_json) if self._start.root else None
        return run is not None and run.began_step != NO_STEP and any(self._logdir.glob("*.index"))

    def link_checkpoints(self) -> None:
        """Links the checkpoints of the logdir, while the checkpoint service changes nothing there.  OSError where that cannot be, on another
        filesystem say: then none is kept.

        Killed in here: nothing is deleted yet.  What an interrupted `put_back_links` has left stays.
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
        """All of them; none, if one goes meanwhile: whoever deletes a checkpoint without the lock takes its index first."""
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
        """What a deletion has left where it was stays as it is.  Killed in here: they are all still kept."""
        if not self.is_kept:
            return
        self._logdir.mkdir(parents=True, exist_ok=True)
        with hold_checkpoint_lock(self._logdir):
            for file in _files(self._place):
                with contextlib.suppress(FileExistsError):
                    os.link(file, self._logdir / file.name)
        shutil.rmtree(self._place)


def _parts_of(index: Path) -> list[Path]:
    """The files of the checkpoint with that index, which comes last."""
    is_part = re.compile(re.escape(index.name.removesuffix(".index")) + _PART).fullmatch
    return [*(path for path in index.parent.iterdir() if is_part(path.name)), index]


def _files(directory: Path) -> Iterator[Path]:
    for pattern in _PATTERNS:
        yield from directory.glob(pattern)
