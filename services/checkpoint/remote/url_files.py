"""Keep checkpoints in a directory at a URL, so that a kill at any line does no damage.

The store writes and verifies the files in a staging directory in the run's local home.  Then it
calls this module, which uploads them.  Remote filesystems have neither atomic renames nor fsync.
So the order is: upload the files, read them back, write the manifest, and replace the `checkpoint`
file last.  No upload overwrites a whole checkpoint.

An older checkpoint has the same name if the Saver has no global step.  Then the new checkpoint is
first uploaded whole to `procsv-staging/<sequence>/` in the same directory, and copied from there.
"""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from pathlib import Path

from procsv.base.run.checkpoint_lock import hold_checkpoint_lock
from procsv.base.run.manifest import MANIFEST_SUFFIX, Manifest
from procsv.base.system import disk
from procsv.base.system.failpoints import failpoint
from procsv.ipc.messaging.checkpoint_messages import CheckpointPlan
from procsv.ipc.messaging.start import Start
from procsv.services.checkpoint.core.facts import AdoptionResult, FoundCheckpoint, Verified, WriteMismatch
from procsv.services.checkpoint.core.retention import ListedCheckpoint, RetentionOutcome, retain
from procsv.services.checkpoint.format.manifest import BadCheckpoint, decode_manifest, encode_manifest
from procsv.services.checkpoint.format.names import placing_order
from procsv.services.checkpoint.remote import gfile
from procsv.services.checkpoint.remote.catalog import UrlListing, verify_files
from procsv.services.checkpoint.remote.fence import RemoteFence, RemoteFenced
from procsv.services.checkpoint.store.rotation import later_saves, rule_of
from procsv.services.checkpoint.store.service_state import StoredState
from procsv.services.checkpoint.store.staging_areas import Staging, StagingAreas, check_room

STAGING = "procsv-staging"


class UrlFiles:
    """The CheckpointFiles of a URL."""

    def __init__(self, start: Start) -> None:
        self._paths = start.paths
        self._staging_areas = StagingAreas(start)
        self._memory = StoredState(self._paths.home)
        self._fence = RemoteFence(start.run, self._memory)
        self._ended: set[str] = set()  # directories whose interrupted operations this process has finished
        self._undeleted: list[str] = []  # checkpoints that the last commit could not delete
        self._wrote = dict[str, tuple[str, ...]]()  # directory -> the list that we last wrote there

    def has_logdir(self) -> bool:
        return True  # on this machine it is a private directory, which no program deletes

    def check_lease(self) -> None:
        self._staging_areas.check_lease()

    def recover(self) -> None:
        self._staging_areas.open_home()

    # -- looking ------------------------------------------------------------------------------------------------
    def listing(self, plan: CheckpointPlan) -> UrlListing:
        with contextlib.suppress(OSError):  # the place may be read-only, or belong to another run
            self._take_directory(plan)
            self._end_interrupted(plan)
        return UrlListing(plan)

    def _take_directory(self, plan: CheckpointPlan) -> None:
        """Takes the directory once.  RemoteFenced if another run has taken it since."""
        directory = gfile.directory_of(plan.save_path)
        self._fence.claim(directory)
        self._fence.check_fence(directory)

    def own(self, paths: tuple[str, ...], plan: CheckpointPlan) -> tuple[str, ...]:
        return paths

    def previous_owner(self, plan: CheckpointPlan) -> str:
        return self._fence.displaced.get(gfile.directory_of(plan.save_path), "")

    def find_checkpoint(self, plan: CheckpointPlan, before: int) -> FoundCheckpoint:
        return self.listing(plan).search(plan, before)

    # -- saving -------------------------------------------------------------------------------------------------
    def path_of(self, plan: CheckpointPlan, name: str) -> str:
        return gfile.join(gfile.directory_of(plan.save_path), name)

    def new_staging(self, plan: CheckpointPlan, sequence: int, size: int) -> AbstractContextManager[Staging]:
        area = self._staging_areas.open_home()
        check_room(self._paths.home, size)
        self._take_directory(plan)
        self._end_interrupted(plan)
        return self._staging_areas.new_staging(area, sequence)

    def commit(
        self, staging: Staging, plan: CheckpointPlan, path: str, manifest: Manifest, serving: str
    ) -> tuple[str, ...]:
        """Uploads a checkpoint.  WriteMismatch if the upload differs from the local files."""
        try:
            if f"{gfile.name_of(path)}.index" not in manifest.files:
                raise OSError(
                    f"{path}: only checkpoints of the V2 format can be kept there; give the Saver write_version=V2"
                )
            with hold_checkpoint_lock(self._paths.logdir):
                return self._put_files(staging.directory, plan, path, manifest, serving)
        finally:
            disk.try_to_remove_tree(staging.directory)

    def _put_files(
        self, staging: Path, plan: CheckpointPlan, path: str, manifest: Manifest, serving: str
    ) -> tuple[str, ...]:
        """Uploads the files; returns the list that the `checkpoint` file now has."""
        directory = gfile.directory_of(path)
        gfile.make_dirs(directory)
        catalog = UrlListing(plan)
        if catalog.is_there(path):
            self._stage_files(staging, plan, path, manifest)
            self._copy_into_place(plan, path, manifest)
        else:
            try:
                self._upload_files(staging, directory, manifest, directory)
                # Killed here: the files have no manifest and are not listed, but their own checksums prove them whole.
                failpoint("checkpoint.before_manifest")
                self._fence.check_fence(directory)
                gfile.replace(path + MANIFEST_SUFFIX, encode_manifest(manifest))
            except RemoteFenced:
                raise  # the files of that name may belong to the other run
            except BaseException:
                _withdraw(path)
                raise
        # Killed here: the checkpoint is complete and verifiable, but not the latest yet.
        failpoint("checkpoint.before_state")
        outcome = self._retain(plan, catalog, ListedCheckpoint(path, manifest.time), manifest.step)
        # Keep a checkpoint that a trainer is restoring from until the next save.
        listed = tuple(p for p in outcome.delete if p == serving) + outcome.listed
        self._replace_list(plan, catalog, listed)
        # Killed here: the checkpoint is durable but not announced, and too many old ones are kept.
        self._delete_old([p for p in (*self._undeleted, *outcome.delete) if p not in listed])
        self._memory.note_next_keep(gfile.name_of(plan.save_path), outcome.next_keep)
        return listed

    def _retain(self, plan: CheckpointPlan, catalog: UrlListing, new: ListedCheckpoint, step: int) -> RetentionOutcome:
        base, ours = catalog.basename, self._wrote.get(catalog.directory, ())
        # A run that has lost the directory may have replaced our list in its last call.
        missed = tuple(p for p in ours if p not in catalog.kept and catalog.is_there(p))

        def is_external(path: str) -> bool:  # the list is only data and must not cause deletions elsewhere
            return gfile.directory_of(path) != catalog.directory or not gfile.name_of(path).startswith(base)

        kept = [ListedCheckpoint(p, _written(catalog, p), is_external(p)) for p in (*catalog.kept, *missed)]
        return retain(kept, new, rule_of(self._memory, plan, new.time), later_saves(catalog, step, None))

    def _replace_list(self, plan: CheckpointPlan, catalog: UrlListing, listed: tuple[str, ...]) -> None:
        url = gfile.join(catalog.directory, plan.latest_filename)
        before = gfile.read_file(url) if gfile.exists(url) else None
        self._fence.check_fence(catalog.directory)
        catalog.write_list(plan, listed)
        try:
            self._fence.check_fence(catalog.directory)
        except RemoteFenced:
            if before is not None:  # killed before this: the other run's next save restores its list
                gfile.replace(url, before)
            raise
        self._wrote[catalog.directory] = listed

    def _upload_files(self, staging: Path, directory: str, manifest: Manifest, home: str) -> None:
        """Uploads the files to `directory` and reads them back.

        `home`: the directory that the run must own.
        """
        for name in placing_order(list(manifest.files)):
            failpoint("checkpoint.before_rename")
            self._fence.check_fence(home)
            gfile.upload(staging / name, gfile.join(directory, name))
        _read_back(directory, manifest)

    def _stage_files(self, staging: Path, plan: CheckpointPlan, path: str, manifest: Manifest) -> None:
        """Uploads the whole checkpoint, manifest last, to a directory that no search visits."""
        directory = _staging_of(plan, manifest.sequence)
        gfile.make_dirs(directory)
        self._upload_files(staging, directory, manifest, gfile.directory_of(path))
        gfile.replace(gfile.join(directory, gfile.name_of(path) + MANIFEST_SUFFIX), encode_manifest(manifest))
        # Killed from here on: the checkpoint is staged whole, and the next start copies it into place.

    def _copy_into_place(self, plan: CheckpointPlan, path: str, manifest: Manifest) -> None:
        """Replaces the older checkpoint of that name by the staged one.

        Every line can run again after a kill.
        """
        source, target = _staging_of(plan, manifest.sequence), gfile.directory_of(path)
        failpoint("checkpoint.before_directory_fsync")
        for stale in UrlListing(plan).files_of(path):
            if stale.endswith(MANIFEST_SUFFIX) or stale not in manifest.files:
                gfile.remove(gfile.join(target, stale))
        for name in placing_order(list(manifest.files)):
            self._fence.check_fence(target)
            gfile.copy(gfile.join(source, name), gfile.join(target, name))
        _read_back(target, manifest)
        failpoint("checkpoint.before_manifest")
        self._fence.check_fence(target)
        gfile.replace(path + MANIFEST_SUFFIX, encode_manifest(manifest))
        gfile.remove_tree(gfile.directory_of(source))

    def _delete_old(self, paths: list[str]) -> None:
        self._undeleted = []
        for path in dict.fromkeys(paths):
            try:
                failpoint("checkpoint.deleting_old")
                self._fence.check_fence(gfile.directory_of(path))
                # Killed in the middle: a manifest without an index tells the next start what to remove.
                catalog_names = gfile.names_in(gfile.directory_of(path))
                _delete_files(path, catalog_names)
            except OSError:
                self._undeleted.append(path)  # harmless; the next commit tries again

    # -- checkpoints of other writers ---------------------------------------------------------------------------
    def adopt_checkpoint(
        self, plan: CheckpointPlan, examined: Verified, own: bool, incarnation: int, serving: str
    ) -> AdoptionResult:
        return AdoptionResult(examined, own, None)  # at a URL nothing is scanned or adopted

    def make_own(self, plan: CheckpointPlan, path: str, serving: str) -> None:
        """Does nothing: no checkpoint is adopted at a URL."""

    # -- after a kill -------------------------------------------------------------------------------------------
    def _end_interrupted(self, plan: CheckpointPlan) -> None:
        """Finishes interrupted copies and deletions, and removes temporary files.

        Does so once for each directory.
        """
        directory = gfile.directory_of(plan.save_path)
        if directory in self._ended:
            return
        self._end_copies(plan, directory)
        base, names = gfile.name_of(plan.save_path), gfile.names_in(directory)
        for name in names:
            if name.startswith((f".{base}", f".{plan.latest_filename}.")) and name.endswith(".new"):
                gfile.remove(gfile.join(directory, name))
        listed = {c.path for c in UrlListing(plan).candidates if c.listed}
        for name in names:
            path = gfile.join(directory, name.removesuffix(MANIFEST_SUFFIX))
            is_ours = name.endswith(MANIFEST_SUFFIX) and name.startswith(base)
            if is_ours and path not in listed and f"{gfile.name_of(path)}.index" not in names:
                _delete_files(path, names)  # an interrupted deletion
        self._ended.add(directory)

    def _end_copies(self, plan: CheckpointPlan, directory: str) -> None:
        top = gfile.join(directory, STAGING)
        for name in sorted((n for n in gfile.names_in(top) if n.isdecimal()), key=int):
            source = gfile.join(top, name)
            for found in [n for n in gfile.names_in(source) if n.endswith(MANIFEST_SUFFIX)]:
                with contextlib.suppress(BadCheckpoint):  # an incomplete upload is removed below
                    manifest = decode_manifest(gfile.read_file(gfile.join(source, found)))
                    verify_files(manifest, source)
                    path = gfile.join(directory, found.removesuffix(MANIFEST_SUFFIX))
                    self._copy_into_place(plan, path, manifest)
                    catalog = UrlListing(plan)
                    catalog.write_list(plan, (*(p for p in catalog.kept if p != path), path))
        gfile.remove_tree(top)


def _staging_of(plan: CheckpointPlan, sequence: int) -> str:
    return gfile.join(gfile.join(gfile.directory_of(plan.save_path), STAGING), str(sequence))


def _read_back(directory: str, manifest: Manifest) -> None:
    """Raises WriteMismatch if the uploaded files differ from the local ones."""
    try:
        verify_files(manifest, directory)
    except BadCheckpoint as error:
        raise WriteMismatch(f"{directory}: {error}") from error


def _delete_files(path: str, names: list[str]) -> None:
    """Removes a checkpoint.

    The index goes first, so that no torn checkpoint remains.  The manifest goes last.
    """
    name = gfile.name_of(path)
    parts = [n for n in names if n.startswith((f"{name}.data-", f"{name}.meta"))]
    for part in (f"{name}.index", *parts, f"{name}{MANIFEST_SUFFIX}"):
        gfile.remove(gfile.join(gfile.directory_of(path), part))


def _withdraw(path: str) -> None:
    """Removes an upload.

    A file that cannot be removed is on no list, and the next try overwrites it.
    """
    with contextlib.suppress(OSError):
        _delete_files(path, gfile.names_in(gfile.directory_of(path)))


def _written(catalog: UrlListing, path: str) -> float:
    with contextlib.suppress(BadCheckpoint, OSError):
        manifest = catalog.manifest_of(path)
        return manifest.time if manifest is not None else gfile.stat(f"{path}.index")[1]
    return 0.0
