"""Write checkpoints from snapshots, find and verify them, and delete old ones.

Commits, searches and deletions run only on the disk thread, so they never race. The store makes a
checkpoint's files on this machine, and a CheckpointFiles (checkpoint_files.py) moves them into
place. The store never decides when to save and never talks to a peer.
"""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from procsv.base.clock import Clock
from procsv.base.errors import PeerError
from procsv.base.run.manifest import FileSum, Manifest, Reason
from procsv.base.run.run_file import read_run
from procsv.base.system import disk
from procsv.base.system.failpoints import declare, failpoint
from procsv.ipc.messaging.checkpoint_messages import CheckpointPlan, Durable
from procsv.ipc.messaging.start import Start
from procsv.ipc.shm.slot_header import scan_slots
from procsv.ipc.shm.slot_index import Contents, prefix_of
from procsv.ipc.shm.slot_reader import SlotReader
from procsv.ipc.shm.slot_state import SlotInfo
from procsv.services.checkpoint.core.facts import (
    AdoptionResult,
    Candidate,
    DiskState,
    FoundCheckpoint,
    SavableState,
    Verified,
    WriteMismatch,
    durable_of,
)
from procsv.services.checkpoint.format import names
from procsv.services.checkpoint.format.manifest import MANIFEST_VERSION, BadCheckpoint, sum_file
from procsv.services.checkpoint.store import write
from procsv.services.checkpoint.store.catalog import Catalog
from procsv.services.checkpoint.store.checkpoint_files import CheckpointFiles
from procsv.services.checkpoint.store.rotation import run_began, time_of_external
from procsv.services.checkpoint.store.search import Listing
from procsv.services.checkpoint.store.service_state import StoredState
from procsv.services.checkpoint.store.staging_areas import Staging

declare("checkpoint.before_fsync")

# Another run may have saved at this URL before us, and may still be making a checkpoint on its machine. Skip this many
# sequence numbers, so that its checkpoint does not look newer than ours.
SEQUENCES_SKIPPED = 1000


class SlotGone(Exception):
    """The state is gone.

    Its slot holds or is getting a newer state, or its staged files were removed.
    """


class SlotBad(Exception):
    """The slot's contents, or the staged files, do not match their checksums.

    The text says what is damaged.
    """


class Store:
    """The service's work on checkpoints, wherever they lie."""

    def __init__(self, start: Start, clock: Clock, files: CheckpointFiles) -> None:
        self._start, self._clock, self._files = start, clock, files
        self._paths = start.paths
        self._memory = StoredState(self._paths.home)
        self._serving = ""  # the checkpoint that a trainer is restoring from; it is not deleted

    # -- startup ---------------------------------------------------------------------------------------------
    def lineage(self) -> frozenset[str]:
        """Return the earlier runs of this logdir that left snapshots in shared memory.

        Also record this run for the next service. A snapshot of a run that is not recorded belongs
        to a deleted logdir and is not restored.
        """
        last = read_run(self._paths.run_json)
        known = self._memory.runs() | ({last.run} if last is not None else set())
        there = {info.run for info in scan_slots(self._paths.shm_dir)}
        lineage = frozenset(known & there) - {self._start.run}
        if self._files.has_logdir():
            self._memory.note_runs(sorted({*lineage, self._start.run}))
        return lineage

    def open(self) -> None:
        """Finish the previous service's commits into the logdir itself.

        Commits into other directories are finished once a plan names the directory.
        """
        if self._files.has_logdir():
            self._files.recover()

    def list_checkpoints(self, plan: CheckpointPlan) -> DiskState:
        """List the checkpoints on disk.

        Verify the newest checkpoint if it may be the same state as a snapshot in memory, or if the
        previous service may have died before it announced the save.
        """
        listing = self._files.listing(plan)
        before = self._files.previous_owner(plan)
        top = max((c.sequence for c in listing.candidates), default=0) + (SEQUENCES_SKIPPED if before else 0)
        if not listing.candidates:
            return DiskState(
                newest_step=-1,
                top_sequence=top,
                durable=None,
                kept=(),
                run_began=run_began(self._start),
                previous_owner=before,
            )
        newest, kept = listing.candidates[0], self._files.own(listing.kept, plan)
        durable = self._as_durable(listing, newest, kept)
        return DiskState(
            newest_step=newest.step,
            top_sequence=top,
            durable=durable,
            kept=kept,
            run_began=run_began(self._start),
            previous_owner=before,
            newest_sequence=newest.sequence,
            newest_time=time_of_external(newest),
        )

    def _as_durable(self, listing: Listing, newest: Candidate, kept: tuple[str, ...]) -> Durable | None:
        follows = self._start.incarnation > 1  # the previous service may have died before it announced its save
        if not newest.sequence or not (follows or scan_slots(self._paths.shm_dir)):
            return None  # no snapshot in memory can be the same state
        with contextlib.suppress(BadCheckpoint, OSError):
            listing.verify_checkpoint(newest.path)
            manifest = listing.manifest_of(newest.path)
            return None if manifest is None else durable_of(manifest, newest.path, 0.0, kept)
        return None

    # -- restoring -------------------------------------------------------------------------------------------
    def find_checkpoint(self, plan: CheckpointPlan, before: int = -1) -> FoundCheckpoint:
        """Find the checkpoint to restore from, and protect it from deletion until `release`."""
        found = self._files.find_checkpoint(plan, before)
        self._serving = found.checkpoint.path if found.checkpoint else ""
        return found

    def release(self) -> None:
        """Allow the deletion of the checkpoint that `find_checkpoint` returned.

        The trainer has restored it.
        """
        self._serving = ""

    def verify_slot(self, info: SlotInfo) -> None:
        """Compare a slot with its checksums.

        Raise SlotBad if they differ, SlotGone if the slot holds another state. This reads only
        memory, so it may run on any thread.
        """
        reader = self._read_slot(info)
        try:
            reader.verify_slot()
        except PeerError as error:
            raise SlotBad(str(error)) from error
        finally:
            reader.close()

    # -- checkpoints of other writers -------------------------------------------------------------------------
    def adopt_checkpoint(self, plan: CheckpointPlan, examined: Verified, own: bool, incarnation: int) -> AdoptionResult:
        """Give another writer's checkpoint its manifest."""
        return self._files.adopt_checkpoint(plan, examined, own, incarnation, self._serving)

    def make_own(self, plan: CheckpointPlan, path: str) -> None:
        self._files.make_own(plan, path, self._serving)

    # -- saving ----------------------------------------------------------------------------------------------
    def persist(self, state: SavableState, reason: Reason, plan: CheckpointPlan) -> Durable:
        """Write `state` as a checkpoint.

        After SlotGone, SlotBad or any other error, the checkpoints on disk are as before.
        """
        started_s = self._clock.monotonic()
        self._files.check_lease()
        if state.slot is not None:
            return self._persist_slot(state, state.slot, reason, started_s)
        return self._persist_staged(state, reason, plan, started_s)

    def _read_slot(self, info: SlotInfo) -> SlotReader:
        try:
            return SlotReader(info)
        except PeerError as error:
            there = [i for i in scan_slots(info.path.parent) if i.path == info.path and i.sequence == info.sequence]
            raise (SlotBad if there and "checksum" in str(error) else SlotGone)(str(error)) from error

    def _persist_slot(self, state: SavableState, info: SlotInfo, reason: Reason, started_s: float) -> Durable:
        reader = self._read_slot(info)
        try:
            contents = reader.contents
            size = sum(e.size for shard in contents.shards for e in shard)
            with self._files.new_staging(contents.plan, state.sequence, size) as staging:
                path, sums = self._write_checkpoint(contents, reader, staging.directory, Path(prefix_of(contents)).name)
        finally:
            reader.close()  # from here on the trainer may reuse the slot
        manifest = self._manifest(staging.directory, sums, state, reason, contents.plan, contents)
        return self._commit(staging, contents.plan, path, manifest, started_s)

    def _write_checkpoint(
        self, contents: Contents, reader: SlotReader, staging: Path, name: str
    ) -> tuple[str, dict[str, FileSum]]:
        """Write the files and read them back.

        Return the path to list, and the sums of all files except `.meta`.
        """
        try:
            written = write.write_files(contents, reader.map, str(staging / name))
            _add_meta(contents.plan, staging, name)
            failpoint("checkpoint.before_fsync")
            _sync_and_read_back(written, staging)
        except WriteMismatch:
            try:
                reader.verify_slot()
            except PeerError as error:
                raise SlotBad(str(error)) from error
            raise  # the slot is good but the disk is not, so the files are removed and written again
        # Killed here: the files are complete and synced, but there is no intent, so the next start sweeps them.
        return self._files.path_of(contents.plan, Path(written.path).name), written.sums

    def _persist_staged(self, state: SavableState, reason: Reason, plan: CheckpointPlan, started_s: float) -> Durable:
        files = names.model_files(state.staged)
        if not files:
            raise SlotGone(f"{state.staged} is gone")
        size = sum(file.stat().st_size for file in files)
        with self._files.new_staging(plan, state.sequence, size) as staging:
            directory = staging.directory
            for file in [*files, *[p for p in (Path(names.base_of(state.staged) + ".meta"),) if p.is_file()]]:
                disk.link_or_copy(file, directory / file.name)
            _add_meta(plan, directory, state.staged)
            try:
                Catalog().verify_checkpoint(str(directory / Path(state.staged).name))
            except BadCheckpoint as error:
                raise SlotBad(str(error)) from error
            failpoint("checkpoint.before_fsync")
            disk.fsync_files(directory)
        path = self._files.path_of(plan, Path(state.staged).name)
        manifest = self._manifest(directory, {}, state, reason, plan)
        durable = self._commit(staging, plan, path, manifest, started_s)
        disk.try_to_remove_tree(Path(state.staged).parent)
        return durable

    def _manifest(
        self,
        staging: Path,
        sums: dict[str, FileSum],
        state: SavableState,
        reason: Reason,
        plan: CheckpointPlan,
        contents: Contents | None = None,
    ) -> Manifest:
        there = sorted(entry.name for entry in staging.iterdir())
        sums = {name: sums.get(name) or sum_file(staging / name) for name in there}  # reads only files without one
        return Manifest(
            version=MANIFEST_VERSION,
            step=state.step,
            sequence=state.sequence,
            incarnation=state.incarnation,
            run=state.run,
            reason=reason,
            time=self._clock.wall(),
            files=sums,
            is_mixed=plan.is_mixed,
            logged={} if contents is None else contents.logged,  # the program's own files do not say it
            logged_s=0.0 if contents is None else contents.logged_s,
        )

    def _commit(
        self, staging: Staging, plan: CheckpointPlan, path: str, manifest: Manifest, started_s: float
    ) -> Durable:
        self._files.check_lease()
        kept = self._files.commit(staging, plan, path, manifest, self._serving)
        return durable_of(manifest, path, self._clock.monotonic() - started_s, kept)


def _sync_and_read_back(written: write.WrittenFiles, staging: Path) -> None:
    if written.is_soon_read:
        disk.fsync_files(staging)
        write.read_back(written)
        return
    with ThreadPoolExecutor(1, "fsync") as beside:  # the disk syncs while the files are read back
        flushed = beside.submit(disk.fsync_files, staging)
        write.read_back(written)
    flushed.result()


def _add_meta(plan: CheckpointPlan, staging: Path, path: str) -> None:
    meta = staging / (Path(names.base_of(path)).name + names.META_SUFFIX)
    if plan.meta_path and not meta.exists():
        with contextlib.suppress(FileNotFoundError):  # a checkpoint can be restored without it
            disk.copy(Path(plan.meta_path), meta)
