"""The place where a run's checkpoints lie, as far as the store needs it.

There are two: LocalFiles (local_files.py) for a directory, UrlFiles (remote/url_files.py) for a URL that only TensorFlow's
filesystem layer can reach.  The service chooses when it starts (environment.py).  The store makes a checkpoint in a staging
directory on this machine; the place puts it where it belongs, in an order of writes that a kill leaves whole at every line.
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
    """Called on the disk thread alone.  OSError passes through everything here that does not say otherwise."""

    def has_logdir(self) -> bool:
        """False: the program has deleted it, and is about to make it, which is an error to it if we have done so meanwhile."""

    def check_lease(self) -> None:
        """OSError if another machine has taken the logdir: nothing more is written there, and nothing removed."""

    def recover(self) -> None:
        """Finishes what the last service was interrupted in, as far as that is known without a plan."""

    # -- looking ---------------------------------------------------------------------------------------------
    def listing(self, plan: CheckpointPlan) -> Listing:
        """The checkpoints there.  A place that cannot be written is no error: what is whole can still be restored."""

    def own(self, paths: tuple[str, ...], plan: CheckpointPlan) -> tuple[str, ...]:
        """Those of `paths` that belong on the supervised Saver's own list."""

    def run_before(self, plan: CheckpointPlan) -> str:
        """The run on another machine that had the place before ours, as far as the place itself tells; "" if none."""

    def find_checkpoint(self, plan: CheckpointPlan, before: int) -> FoundCheckpoint:
        """The newest good checkpoint, of a step under `before` (-1: of any).  What is bad is moved aside."""

    # -- saving ----------------------------------------------------------------------------------------------
    def path_of(self, plan: CheckpointPlan, name: str) -> str:
        """The path of a plan's checkpoint `name`, as the `checkpoint` file lists it."""

    def new_staging(self, plan: CheckpointPlan, sequence: int, size: int) -> AbstractContextManager[Staging]:
        """An empty directory for the files of a checkpoint of `size` bytes.  After an error within it is removed."""

    def commit(
        self, staging: Staging, plan: CheckpointPlan, path: str, manifest: Manifest, serving: str
    ) -> tuple[str, ...]:
        """Puts the complete and synced files of `staging` in place as checkpoint `path`, lists it, and deletes old ones, but not
        `serving`; the supervised Saver's own list then.  After an error the older checkpoints stand.
        """

    # -- what others have saved ------------------------------------------------------------------------------
    def adopt_checkpoint(
        self, plan: CheckpointPlan, examined: Verified, own: bool, incarnation: int, serving: str
    ) -> AdoptionResult:
        """Gives another writer's checkpoint its manifest, and repairs the list."""

    def make_own(self, plan: CheckpointPlan, path: str, serving: str) -> None:
        """Assigns a checkpoint that was adopted as another Saver's to the supervised one."""
