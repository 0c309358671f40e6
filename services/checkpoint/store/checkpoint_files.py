"""Define the protocol between the store and the place where a run's checkpoints are.

LocalFiles (local_files.py) implements it for a directory, and UrlFiles (remote/url_files.py) for a
URL that only TensorFlow's filesystem layer can reach. The service chooses one when it starts
(environment.py). The store makes a checkpoint in a staging directory on this machine. The
implementation then moves the files into place, in an order that survives a kill at any line.

The *supervised Saver* is the Saver, or CheckpointManager, whose settings the plan carries. The
program may have other Savers that write to the same directory and the same list.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from procsv.base.run.manifest import Manifest
from procsv.ipc.messaging.checkpoint_messages import CheckpointPlan
from procsv.services.checkpoint.core.facts import AdoptionResult, FoundCheckpoint, Verified
from procsv.services.checkpoint.store.search import Listing
from procsv.services.checkpoint.store.staging_areas import Staging


class CheckpointFiles(Protocol):
    """A place for checkpoints.

    Only the disk thread calls it. Any method may raise OSError.
    """

    def has_logdir(self) -> bool:
        """Whether the logdir exists.

        A program may delete its logdir and create it again. The program would fail if we had
        created the logdir first.
        """

    def check_lease(self) -> None:
        """Raise OSError if another machine has taken the logdir.

        Then nothing may be written or removed there.
        """

    def recover(self) -> None:
        """Finish the previous service's commits into the logdir itself.

        Commits into other directories are finished once a plan names the directory.
        """

    # -- looking ---------------------------------------------------------------------------------------------
    def listing(self, plan: CheckpointPlan) -> Listing:
        """List the checkpoints.

        A read-only place is not an error: whole checkpoints can still be restored from it.
        """

    def own(self, paths: tuple[str, ...], plan: CheckpointPlan) -> tuple[str, ...]:
        """Return the `paths` that belong on the supervised Saver's own list."""

    def previous_owner(self, plan: CheckpointPlan) -> str:
        """Return the run on another machine that saved here before ours.

        Return "" if there was none, or if the directory does not record it.
        """

    def find_checkpoint(self, plan: CheckpointPlan, before: int) -> FoundCheckpoint:
        """Find the newest good checkpoint with a step below `before` (-1: any step).

        Move bad checkpoints aside.
        """

    # -- saving ----------------------------------------------------------------------------------------------
    def path_of(self, plan: CheckpointPlan, name: str) -> str:
        """Return the path of a plan's checkpoint `name`, as the `checkpoint` file lists it."""

    def new_staging(self, plan: CheckpointPlan, sequence: int, size: int) -> AbstractContextManager[Staging]:
        """Create an empty directory for a checkpoint of `size` bytes.

        An error in the `with` block removes it.
        """

    def commit(
        self, staging: Staging, plan: CheckpointPlan, path: str, manifest: Manifest, serving: str
    ) -> tuple[str, ...]:
        """Put the complete and synced files of `staging` in place as checkpoint `path`.

        Then list the checkpoint, and delete old ones except `serving`. Return the supervised
        Saver's own list. After an error the older checkpoints are still there.
        """

    # -- checkpoints of other writers ------------------------------------------------------------------------
    def adopt_checkpoint(
        self, plan: CheckpointPlan, examined: Verified, own: bool, incarnation: int, serving: str
    ) -> AdoptionResult:
        """Give another writer's checkpoint its manifest, and repair the list."""

    def make_own(self, plan: CheckpointPlan, path: str, serving: str) -> None:
        """Assign a checkpoint that was adopted as another Saver's to the supervised Saver."""
