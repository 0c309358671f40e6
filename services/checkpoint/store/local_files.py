"""Keep checkpoints in an ordinary directory. For a URL, remote/url_files.py does the same.

The store uses this module, which finishes interrupted commits and deletions before it reads or
saves anything. commit.py defines the order of a save's writes.

This module also *adopts* the checkpoints of other writers, after scan.py has verified them: it
gives each a manifest and its place on the list. It deletes only what the settings of the
*supervised* Saver, the one that the session uses, say to delete.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec

from procsv.base.clock import Clock
from procsv.base.run.checkpoint_lock import hold_checkpoint_lock, is_checkpoint_locked
from procsv.base.run.manifest import Manifest
from procsv.base.system import disk, progress_counter
from procsv.base.system.atomic_file import replace_file
from procsv.ipc.messaging.checkpoint_messages import CheckpointPlan
from procsv.ipc.messaging.start import Start
from procsv.services.checkpoint.core.facts import AdoptionResult, FoundCheckpoint, Signature, Verified, durable_of
from procsv.services.checkpoint.format import names
from procsv.services.checkpoint.format.manifest import (
    MANIFEST_VERSION,
    encode_manifest,
    manifest_or_none,
    read_manifest,
    with_index,
)
from procsv.services.checkpoint.store.catalog import Catalog, list_checkpoints
from procsv.services.checkpoint.store.commit import StagingArea, delete_durably, finish_deletions, read_text
from procsv.services.checkpoint.store.intent import Intent
from procsv.services.checkpoint.store.rotation import Rotation
from procsv.services.checkpoint.store.scan import is_known, signature_of_model, trouble_with
from procsv.services.checkpoint.store.search import Listing
from procsv.services.checkpoint.store.service_state import StoredState
from procsv.services.checkpoint.store.staging_areas import Staging, StagingAreas, check_room

LOCK_S_MAX = 1.0  # how long to wait for the lock on the list; then the next adoption or save repairs the list


class LocalFiles:
    """The CheckpointFiles of a directory."""

    def __init__(
        self, start: Start, clock: Clock, on_change: Callable[[Iterable[str]], None] = lambda paths: None
    ) -> None:
        """`on_change`: called before each commit.

        Its argument lists the indexes and the `checkpoint` file that the commit will write or
        remove.
        """
        self._paths, self._run, self._clock, self._on_change = start.paths, start.run, clock, on_change
        self._staging_areas = StagingAreas(start)
        self._catalog = Catalog()
        self._rotation = Rotation(start, StoredState(self._paths.home))
        self._recovered: set[Path] = set()  # directories whose interrupted deletions this process has finished
        self._undeleted: list[str] = []  # checkpoints that the last commit could not delete

    def has_logdir(self) -> bool:
        return self._paths.logdir.is_dir()

    def check_lease(self) -> None:
        self._staging_areas.check_lease()

    def recover(self) -> None:
        self._staging_areas.open_home()

    def _prepare(self, plan: CheckpointPlan) -> StagingArea:
        """Finish interrupted commits and deletions.

        Return the staging area for a plan's checkpoints.
        """
        save_path = names.absolute_save_path(plan)
        directory = Path(save_path).parent
        home = self._paths.home
        if not directory.is_dir():
            return self._staging_areas.at(home)  # there is no checkpoint, and none can be saved
        disk.make_dirs(home)
        same_disk = not home.is_dir() or directory.stat().st_dev == home.stat().st_dev
        area = self._staging_areas.at(home if same_disk else directory / ".procsv")
        self._staging_areas.recover_area(area, directory)
        self._staging_areas.heed_lease(directory)
        listing = None
        if directory not in self._recovered:
            with contextlib.suppress(OSError):
                for leftover in directory.glob(".*.new"):
                    if leftover.name.startswith((f".{Path(save_path).name}", f".{plan.latest_filename}.")):
                        disk.unlink_if_there(leftover)
            listing = list_checkpoints(plan)
            # A listed checkpoint that lacks a file was not deleted by us. Leave it to a search, which reports it.
            finish_deletions(directory, Path(save_path).name, set(listing.listed))
            self._recovered.add(directory)
        self._rotation.adopt_list(plan, listing)
        return area

    # -- looking ---------------------------------------------------------------------------------------------
    def listing(self, plan: CheckpointPlan) -> Listing:
        with contextlib.suppress(OSError):
            self._prepare(plan)
        self._rotation.adopt_list(plan)
        return list_checkpoints(plan, self._catalog)

    def own(self, paths: tuple[str, ...], plan: CheckpointPlan) -> tuple[str, ...]:
        return self._rotation.own(paths, plan, {})

    def previous_owner(self, plan: CheckpointPlan) -> str:
        return ""  # the run files in the logdir record it

    def find_checkpoint(self, plan: CheckpointPlan, before: int) -> FoundCheckpoint:
        self.check_lease()  # the search moves bad checkpoints aside
        found = self.listing(plan).search(plan, before)
        if found.rejected:
            self._rotation.note_relisted(plan, found.kept)
        return msgspec.structs.replace(found, kept=self.own(found.kept, plan))

    # -- saving ----------------------------------------------------------------------------------------------
    def path_of(self, plan: CheckpointPlan, name: str) -> str:
        return str(Path(names.absolute_save_path(plan)).parent / name)

    def new_staging(self, plan: CheckpointPlan, sequence: int, size: int) -> AbstractContextManager[Staging]:
        directory = Path(names.absolute_save_path(plan)).parent
        if trouble := trouble_with(directory):
            raise OSError(trouble)  # worded like a scan's report, so that one cause is reported once
        with progress_counter.untracked():
            area = self._prepare(plan)
        check_room(directory, size)
        return self._staging_areas.new_staging(area, sequence)

    def commit(
        self, staging: Staging, plan: CheckpointPlan, path: str, manifest: Manifest, serving: str
    ) -> tuple[str, ...]:
        """Commit under the lock, so that no other process writes the `checkpoint` file."""
        with progress_counter.untracked(), hold_checkpoint_lock(Path(names.absolute_save_path(plan)).parent):
            return self._commit_locked(staging, plan, path, manifest, serving)

    def _commit_locked(
        self, staging: Staging, plan: CheckpointPlan, path: str, manifest: Manifest, serving: str
    ) -> tuple[str, ...]:
        area, directory = staging
        listing = list_checkpoints(plan)
        # If the new checkpoint replaces another Saver's of the same name, it counts as that Saver's, too.
        is_external = self._rotation.is_known_external(path, listing.manifests)
        manifest = msgspec.structs.replace(manifest, is_external=is_external)
        outcome = self._rotation.with_new(plan, listing, path, manifest.step, manifest.time)
        served = tuple(p for p in outcome.delete if p == serving)
        listed = served + outcome.listed  # a trainer is restoring from `served`, so keep it until the next save
        delete = tuple(p for p in (*self._undeleted, *outcome.delete) if p != serving)
        state_file = names.state_file_of(plan)
        self._on_change([str(state_file), *(f"{changed}.index" for changed in (path, *delete))])
        intent = Intent(
            path=path,
            manifest=manifest,
            state_file=str(state_file),
            save_path=plan.save_path,
            relative=plan.save_relative_paths,
            listed=listed,
            delete=delete,
            state_before=read_text(state_file),
            replaces=bool(names.all_files(path)),
            lists_times=plan.lists_times,
        )
        try:
            self._undeleted = area.commit(directory, intent)
        except Exception:
            self._staging_areas.recover_again(area)  # the commit undoes itself after an exception, which may fail, too
            raise
        if not area.is_empty():
            self._staging_areas.recover_again(area)
        self._catalog.forget_checkpoints(delete)
        self._catalog.trust(path)
        self._rotation.note_written(plan, listed, outcome.next_keep)
        with contextlib.suppress(OSError):
            # When a Saver of the program deletes a checkpoint, it leaves the manifest.
            finish_deletions(Path(path).parent, Path(plan.save_path).name, set(listed))
        return self._rotation.own(listed, plan, {**listing.manifests, path: manifest})

    # -- checkpoints of other writers ------------------------------------------------------------------------
    def adopt_checkpoint(
        self, plan: CheckpointPlan, examined: Verified, own: bool, incarnation: int, serving: str
    ) -> AdoptionResult:
        """Adopt a checkpoint.

        After an OSError, either the checkpoint has no manifest yet, or it has its manifest and the
        next save repairs the list.

        `own`: the supervised Saver has saved it. The trainer reports this only after the save has
        ended. A supervised Saver holds the checkpoint lock while it saves. So if `own` is False and
        the lock is held, the owner is still unknown, and the adoption waits.
        """
        self.check_lease()
        self._prepare(plan)
        directory, path = Path(names.absolute_save_path(plan)).parent, examined.path
        if not own and is_checkpoint_locked(directory):
            return AdoptionResult(examined, own, None)
        with hold_checkpoint_lock(directory, LOCK_S_MAX) as is_locked:
            if _signature_or_none(path) != examined.signature or is_known(path):
                # It has changed since it was examined. Or it is ours, and the scan saw it before it had its manifest.
                return AdoptionResult(examined, own, None)
            there = manifest_or_none(path)
            if not own and there is not None and there.files == examined.files:  # the same files, copied or touched
                replace_file(names.manifest_of(path), encode_manifest(with_index(there, path)))
                return AdoptionResult(examined, own, None)
            is_external = not own or self._rotation.is_of_another_name(path, plan)
            files, now = examined.files, examined.time
            manifest = Manifest(
                version=MANIFEST_VERSION,
                step=examined.step,
                sequence=0,
                incarnation=incarnation,
                run=self._run,
                reason="manual",
                time=now,
                files=files,
                is_external=is_external,
            )
            replace_file(names.manifest_of(path), encode_manifest(with_index(manifest, path)))
            # Killed here: the checkpoint is adopted, and the next save deletes the excess over `max_to_keep`.
            self._catalog.trust(path)
            listed = self._repair_list(plan, serving) if is_locked else list_checkpoints(plan).kept
        own_list = self._rotation.own(listed, plan, {path: manifest})
        durable = durable_of(manifest, path, examined.seconds, own_list)
        return AdoptionResult(examined, own, durable, is_latest=listed[-1:] == (path,))

    def make_own(self, plan: CheckpointPlan, path: str, serving: str) -> None:
        self.check_lease()
        with hold_checkpoint_lock(Path(names.absolute_save_path(plan)).parent, LOCK_S_MAX) as is_locked:
            manifest = read_manifest(names.manifest_of(path))
            if manifest is None or not manifest.is_external or self._rotation.is_of_another_name(path, plan):
                return
            replace_file(names.manifest_of(path), encode_manifest(msgspec.structs.replace(manifest, is_external=False)))
            self._catalog.trust(path)
            if is_locked:
                self._repair_list(plan, serving)

    def _repair_list(self, plan: CheckpointPlan, serving: str) -> tuple[str, ...]:
        """Repair the `checkpoint` file after an external save, and delete the excess.

        Return the listed paths.
        """
        listing = list_checkpoints(plan)
        before = listing.kept
        outcome = self._rotation.repaired(plan, listing, self._clock.wall())
        served = tuple(p for p in outcome.delete if p == serving)
        listed = served + outcome.listed
        # Delete the excess first. Killed in between: every reader of the list skips listed files that are gone.
        for path in set(outcome.delete) - set(served):
            with contextlib.suppress(OSError):
                delete_durably(path)
        self._catalog.forget_checkpoints(outcome.delete)
        if listed and listed != before:
            listing.write_list(plan, listed)
        self._rotation.note_written(plan, listed, outcome.next_keep)
        save_path = Path(names.absolute_save_path(plan))
        # When a Saver of the program deletes a checkpoint, it leaves the manifest.
        finish_deletions(save_path.parent, save_path.name, set(listed))
        return listed


def _signature_or_none(path: str) -> Signature | None:
    with contextlib.suppress(FileNotFoundError):
        return signature_of_model(path)
    return None
