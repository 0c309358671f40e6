"""Manage the staging areas in which a run makes its checkpoints, and check its logdirs' leases.

A staging area is a directory on this machine (commit.py). local_files.py and remote/url_files.py
use this module on the disk thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from procsv.base.run.adoption import root_of
from procsv.base.run.lease import LeaseFile, lost_to
from procsv.base.run.paths import find_paths
from procsv.base.system import disk
from procsv.base.system.failpoints import declare, failpoint
from procsv.base.units import show_size
from procsv.ipc.messaging.start import Start
from procsv.services.checkpoint.store.commit import StagingArea

declare("checkpoint.temporary_created")


class Staging(NamedTuple):
    """A directory with the files of a checkpoint in the making."""

    area: StagingArea
    directory: Path


class StagingAreas:
    """The staging areas of a run. Interrupted commits in an area are finished before it is used."""

    def __init__(self, start: Start) -> None:
        self._run, self._logdir, self._home = start.run, start.paths.logdir, start.paths.home
        # Directory -> its lease: the run's logdir, and logdirs that the run adopts.
        self._leases = {self._logdir: LeaseFile(start.paths)}
        self._recovered: set[Path] = set()

    def heed_lease(self, directory: Path) -> None:
        """If the run has adopted `directory` as its logdir, check its lease, too.

        `check_lease` does so from now on.
        """
        if directory not in self._leases and root_of(directory) == self._logdir:
            self._leases[directory] = LeaseFile(find_paths(directory), has_run_json=False)

    def check_lease(self) -> None:
        """Raise OSError if another machine has taken the logdir.

        Then nothing may be written or removed there.
        """
        for lease in self._leases.values():
            if (taken := lost_to(lease, self._run)) is not None:
                raise OSError(f"{taken.place.host} has taken the logdir")

    def open_home(self) -> StagingArea:
        """Recover and return the staging area in the run's home."""
        disk.make_dirs(self._home)
        area = self.at(self._home)
        self.recover_area(area)
        return area

    def at(self, home: Path) -> StagingArea:
        return StagingArea(home, self._run)

    def recover_area(self, area: StagingArea, elsewhere: Path | None = None) -> None:
        """Finish interrupted commits in `area`; do nothing once none is left.

        `elsewhere`: the plan's checkpoint directory.
        """
        if area.staging not in self._recovered:
            self.check_lease()  # another run may be making a checkpoint there right now
            area.recover_commits(elsewhere)
            if area.is_empty():  # otherwise the next save tries again to remove the rest
                self._recovered.add(area.staging)

    def recover_again(self, area: StagingArea) -> None:
        """Recover `area` again before its next use: a commit may have left remains in it."""
        self._recovered.discard(area.staging)

    @contextlib.contextmanager
    def new_staging(self, area: StagingArea, sequence: int) -> Iterator[Staging]:
        """Create an empty staging directory.

        After an error in the `with` block, the directory is removed now, or by the next save.
        """
        staging = area.begin_commit(sequence)
        failpoint("checkpoint.temporary_created")
        try:
            yield Staging(area, staging)
        except BaseException:
            disk.try_to_remove_tree(staging)
            self.recover_again(area)
            raise


def check_room(directory: Path, size: int) -> None:
    """Raise OSError if a checkpoint of `size` bytes does not fit into `directory`."""
    free = disk.free_bytes(directory)
    if free < size + disk.ROOM_MARGIN_BYTES:
        needed, spare = show_size(size + disk.ROOM_MARGIN_BYTES), show_size(disk.ROOM_MARGIN_BYTES)
        raise OSError(
            f"no room in {directory}: {show_size(free)} are free, {needed} are needed "
            f"({show_size(size)} for the checkpoint, {spare} to spare)"
        )
