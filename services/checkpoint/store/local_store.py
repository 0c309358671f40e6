"""Checkpoints on a local disk: write them from snapshots, find and verify them, delete the old ones.

Called on the disk thread alone, so nothing here races: commits, searches and deletions come one after the other.
Never decides when something is saved; never talks to a peer.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
from msgspec.structs import replace

from procsv.base.clock import Clock
from procsv.base.errors import PeerError
from procsv.base.run.adoption import root_of
from procsv.base.run.checkpoint_lock import hold_checkpoint_lock
from procsv.base.run.lease import LeaseFile, lost_to
from procsv.base.run.manifest import FileSum, Manifest, Reason
from procsv.base.run.paths import find_paths
from procsv.base.run.run_file import read_run
from procsv.base.system import disk, progress_counter
from procsv.base.system.failpoints import declare, failpoint
from procsv.base.units import show_size
from procsv.ipc.messaging.messages import CheckpointPlan, Durable
from procsv.ipc.messaging.start import Start
from procsv.ipc.shm.slot_header import scan_slots
from procsv.ipc.shm.slot_index import Contents, prefix_of
from procsv.ipc.shm.slot_reader import SlotReader
from procsv.ipc.shm.slot_state import SlotInfo
from procsv.services.checkpoint.core.facts import (
    Adopted,
    Candidate,
    DiskState,
    Found,
    State,
    Verified,
    WriteMismatch,
    durable_of,
)
from procsv.services.checkpoint.store import names, write
from procsv.services.checkpoint.store.adopt import Adopter
from procsv.services.checkpoint.store.catalog import Catalog, list_checkpoints
from procsv.services.checkpoint.store.commit import Workshop, finish_deletions, read_text
from procsv.services.checkpoint.store.intent import Intent
from procsv.services.checkpoint.store.manifest import MANIFEST_VERSION, BadCheckpoint, sum_file
from procsv.services.checkpoint.store.rotation import Rotation
from procsv.services.checkpoint.store.scan import trouble_with
from procsv.services.checkpoint.store.search import Listing
from procsv.services.checkpoint.store.service_state import StoredState

declare("checkpoint.temporary_created", "checkpoint.before_fsync")


class SlotGone(Exception):
    """The slot no longer holds that snapshot: a newer one is READY, or will be."""


class SlotBad(Exception):
    """The slot's contents do not match their checksums.  The text names the tensor."""


class Store:
    """The service's work on the files in the logdir."""

    def __init__(
        self, start: Start, clock: Clock, on_change: Callable[[Iterable[str]], None] = lambda paths: None
    ) -> None:
        """`on_change` is told which indexes and `checkpoint` files are about to be put in place or removed."""
        self._start = start
        self._on_change = on_change
        self._paths = start.paths
        self._clock = clock
        self._leases = {
            self._paths.logdir: LeaseFile(self._paths)
        }  # by their directories: of the run, of what it adopts
        self._catalog = Catalog()
        self._memory = StoredState(self._paths.home)
        self._rotation = Rotation(self._memory)
        self._adopter = Adopter(start, clock, self._catalog, self._rotation)
        self._recovered: set[Path] = set()
        self._undeleted: list[str] = []
        self._serving = ""  # the checkpoint that a trainer is restoring from: not deleted meanwhile

    # -- at the start ----------------------------------------------------------------------------------------
    def lineage(self) -> frozenset[str]:
        """The earlier runs of this logdir whose snapshots are still in shared memory; this run is noted for the next.

        Snapshots of any other run belong to a logdir that was deleted since, and are not restored.
        """
        last = read_run(self._paths.run_json)
        known = self._memory.runs() | ({last.run} if last is not None else set())
        there = {info.run for info in scan_slots(self._paths.shm_dir)}
        lineage = frozenset(known & there) - {self._start.run}
        if self._has_logdir():
            self._memory.note_runs(sorted({*lineage, self._start.run}))
        return lineage

    def open(self) -> None:
        """Finishes what the last service was interrupted in, as far as that is known without a plan."""
        if self._has_logdir():
            home = self._paths.home
            disk.make_dirs(home)
            self._recover(self._make_workshop(home))

    def _has_logdir(self) -> bool:
        """False: the program has deleted it, and is about to make it, which is an error to it if we have done so meanwhile."""
        return self._paths.logdir.is_dir()

    def _make_workshop(self, home: Path) -> Workshop:
        return Workshop(home, self._start.run)

    def list_checkpoints(self, plan: CheckpointPlan) -> DiskState:
        """The checkpoints on disk; the newest is verified if a snapshot in memory may hold the same state."""
        listing = self._list(plan)
        top = max((c.sequence for c in listing.candidates), default=0)
        if not listing.candidates:
            return DiskState(-1, top, None, (), self._run_began())
        newest, kept = listing.candidates[0], self._own(listing.kept, plan)
        return DiskState(newest.step, top, self._as_durable(listing, newest, kept), kept, self._run_began())

    def _run_began(self) -> float | None:
        run = read_run(self._paths.run_json)
        return run.started_at if run is not None and run.run == self._start.run else None

    def _as_durable(self, listing: Listing, newest: Candidate, kept: tuple[str, ...]) -> Durable | None:
        follows = self._start.incarnation > 1  # a service that died, perhaps before it announced what it had saved
        if not newest.sequence or not (follows or scan_slots(self._paths.shm_dir)):
            return None  # no snapshot in memory can be the same state
        with contextlib.suppress(BadCheckpoint, OSError):
            manifest = self._verified_manifest(listing, newest.path)
            return None if manifest is None else durable_of(manifest, newest.path, 0.0, kept)
        return None

    def _verified_manifest(self, listing: Listing, path: str) -> Manifest | None:
        """BadCheckpoint, OSError."""
        self._catalog.verify(path)
        return listing.manifest_of(path)

    def _own(self, paths: tuple[str, ...], plan: CheckpointPlan) -> tuple[str, ...]:
        """Those of `paths` that belong on the supervised Saver's own list."""
        return self._rotation.own(paths, plan, {})

    def _list(self, plan: CheckpointPlan) -> Listing:
        """The checkpoints on disk.  A disk that cannot be written is no error: what is whole can still be restored."""
        with contextlib.suppress(OSError):
            self._prepare(plan)
        self._rotation.start_list(plan, self._run_began)
        return list_checkpoints(plan)

    def _prepare(self, plan: CheckpointPlan) -> Workshop:
        """The workshop for a plan's checkpoints, after interrupted commits and deletions there are finished."""
        save_path = names.absolute_save_path(plan)
        directory = Path(save_path).parent
        home = self._paths.home
        if not directory.is_dir():
            return self._make_workshop(home)  # there is no checkpoint, and none can be saved
        disk.make_dirs(home)
        same_disk = not home.is_dir() or directory.stat().st_dev == home.stat().st_dev
        workshop = self._make_workshop(home if same_disk else directory / ".procsv")
        self._recover(workshop)
        if directory not in self._leases and root_of(directory) == self._paths.logdir:
            self._leases[directory] = LeaseFile(find_paths(directory), has_run_json=False)
        listing = None
        if directory not in self._recovered:
            with contextlib.suppress(OSError):
                for leftover in directory.glob(".*.new"):
                    if leftover.name.startswith((f".{Path(save_path).name}", f".{plan.latest_filename}.")):
                        disk.unlink_if_there(leftover)
            listing = list_checkpoints(plan)
            # What is listed is left alone, so that the listing still tells of it.
            finish_deletions(directory, Path(save_path).name, set(listing.listed))
            self._recovered.add(directory)
        self._rotation.start_list(plan, self._run_began, listing)
        return workshop

    def _recover(self, workshop: Workshop) -> None:
        if workshop.staging not in self._recovered:
            self._check_lease()  # what lies there may be another run's, which makes it just now
            workshop.recover()
            if workshop.is_empty():  # else something could not be removed: tried again with the next save
                self._recovered.add(workshop.staging)

    # -- restoring -------------------------------------------------------------------------------------------
    def find(self, plan: CheckpointPlan, before: int = -1) -> Found:
        """The checkpoint to restore from.  It is not deleted before `release`."""
        found = self._search(plan, before)
        self._serving = found.checkpoint.path if found.checkpoint else ""
        return replace(found, kept=self._own(found.kept, plan))

    def _search(self, plan: CheckpointPlan, before: int) -> Found:
        self._check_lease()  # it moves aside what is bad
        found = self._catalog.search(plan, self._list(plan), before)
        if found.rejected:
            self._rotation.is_relisted(plan, found.kept)
        return found

    def release(self) -> None:
        """The trainer has restored."""
        self._serving = ""

    def verify_slot(self, info: SlotInfo) -> None:
        """Compares a slot with its checksums; SlotBad, SlotGone.  Needs no disk thread: reads memory alone."""
        reader = self._read(info)
        try:
            reader.verify()
        except PeerError as error:
            raise SlotBad(str(error)) from error
        finally:
            reader.close()

    # -- what others have saved -------------------------------------------------------------------------------
    def adopt(self, plan: CheckpointPlan, examined: Verified, own: bool, incarnation: int) -> Adopted:
        """Gives another writer's checkpoint its manifest; see Adopter."""
        self._check_lease()
        self._prepare(plan)
        return self._adopter.adopt(plan, examined, own, incarnation, self._serving)

    def make_own(self, plan: CheckpointPlan, path: str) -> None:
        self._check_lease()
        self._adopter.make_own(plan, path, self._serving)

    # -- saving ----------------------------------------------------------------------------------------------
    def persist(self, state: State, reason: Reason, plan: CheckpointPlan) -> Durable:
        """Writes `state` as a checkpoint.  After SlotGone, SlotBad or any other error the disk is as it was."""
        started_s = self._clock.monotonic()
        self._check_lease()
        if state.slot is not None:
            return self._persist_slot(state, state.slot, reason, started_s)
        return self._persist_staged(state, reason, plan, started_s)

    def _check_lease(self) -> None:
        """OSError if another machine has taken the logdir: nothing more is written there, and nothing removed."""
        for lease in self._leases.values():
            if (taken := lost_to(lease, self._start.run)) is not None:
                raise OSError(f"{taken.place.host} has taken the logdir")

    def _read(self, info: SlotInfo) -> SlotReader:
        try:
            return SlotReader(info)
        except PeerError as error:
            there = [i for i in scan_slots(info.path.parent) if i.path == info.path and i.sequence == info.sequence]
            raise (SlotBad if there and "checksum" in str(error) else SlotGone)(str(error)) from error

    def _persist_slot(self, state: State, info: SlotInfo, reason: Reason, started_s: float) -> Durable:
        reader = self._read(info)
        try:
            contents = reader.contents
            size = sum(e.size for shard in contents.shards for e in shard)
            with self._new_staging(contents.plan, state.sequence, size) as (workshop, staging):
                path, sums = self._write(contents, reader, staging, Path(prefix_of(contents)).name)
        finally:
            reader.close()  # from here on the trainer may have the slot again
        manifest = self._manifest(staging, sums, state, reason, contents.plan, contents.logged)
        self._check_lease()
        return self._commit(workshop, staging, contents.plan, path, manifest, started_s)

    def _write(
        self, contents: Contents, reader: SlotReader, staging: Path, name: str
    ) -> tuple[str, dict[str, FileSum]]:
        """Writes the files and reads them back; the path for the `checkpoint` file, and the sums known so far."""
        try:
            written = write.write(contents, reader.map, str(staging / name))
            _add_meta(contents.plan, staging, name)
            failpoint("checkpoint.before_fsync")
            _sync_and_read_back(contents, reader, written, staging)
        except WriteMismatch:
            try:
                reader.verify()
            except PeerError as error:
                raise SlotBad(str(error)) from error
            raise  # the slot is good and the disk is not: the files are removed and written again
        # killed here: complete and synced, but without an intent: swept at the next start
        return self._path(contents.plan, Path(written.path).name), written.sums

    def _persist_staged(self, state: State, reason: Reason, plan: CheckpointPlan, started_s: float) -> Durable:
        files = names.model_files(state.staged)
        if not files:
            raise SlotGone(f"{state.staged} is gone")
        size = sum(file.stat().st_size for file in files)
        with self._new_staging(plan, state.sequence, size) as (workshop, staging):
            for file in [*files, *[p for p in (Path(names.base_of(state.staged) + ".meta"),) if p.is_file()]]:
                disk.link_or_copy(file, staging / file.name)
            _add_meta(plan, staging, state.staged)
            try:
                self._catalog.verify(str(staging / Path(state.staged).name))
            except BadCheckpoint as error:
                raise SlotBad(str(error)) from error
            failpoint("checkpoint.before_fsync")
            disk.fsync_files(staging)
        path = self._path(plan, Path(state.staged).name)
        manifest = self._manifest(staging, {}, state, reason, plan, {})
        self._check_lease()
        durable = self._commit(workshop, staging, plan, path, manifest, started_s)
        disk.try_to_remove_tree(Path(state.staged).parent)
        return durable

    def _path(self, plan: CheckpointPlan, name: str) -> str:
        """The path of a plan's checkpoint `name`."""
        return str(Path(names.absolute_save_path(plan)).parent / name)

    def _manifest(
        self,
        staging: Path,
        sums: dict[str, FileSum],
        state: State,
        reason: Reason,
        plan: CheckpointPlan,
        logged: dict[str, int],
    ) -> Manifest:
        there = sorted(entry.name for entry in staging.iterdir())
        sums = {name: sums.get(name) or sum_file(staging / name) for name in there}  # as read back, where it was
        now = self._clock.wall()
        made = (MANIFEST_VERSION, state.step, state.sequence, state.incarnation, state.run, reason, now, sums)
        return Manifest(*made, is_mixed=plan.is_mixed, logged=logged)

    @contextlib.contextmanager
    def _new_staging(self, plan: CheckpointPlan, sequence: int, size: int) -> Iterator[tuple[Workshop, Path]]:
        """An empty staging directory.  After an error it is removed, at the latest before the next save."""
        workshop = self._open_workshop(plan, size)
        staging = workshop.begin_commit(sequence)
        failpoint("checkpoint.temporary_created")
        try:
            yield workshop, staging
        except BaseException:
            disk.try_to_remove_tree(staging)
            self._recovered.discard(workshop.staging)
            raise

    def _open_workshop(self, plan: CheckpointPlan, size: int) -> Workshop:
        """Checks the directory and the free space; the workshop to save in."""
        directory = Path(names.absolute_save_path(plan)).parent
        if trouble := trouble_with(directory):
            raise OSError(trouble)  # in the words of a scan: one cause is one piece of news
        with progress_counter.untracked():
            workshop = self._prepare(plan)
        check_room(directory, size)
        return workshop

    def _commit(
        self, workshop: Workshop, staging: Path, plan: CheckpointPlan, path: str, manifest: Manifest, started_s: float
    ) -> Durable:
        """Commits under the lock: nobody else writes the `checkpoint` file meanwhile."""
        with progress_counter.untracked(), hold_checkpoint_lock(Path(names.absolute_save_path(plan)).parent):
            listing = list_checkpoints(plan)
            # A checkpoint that is replaced keeps its owner.
            is_external = self._rotation.is_known_external(path, listing.manifests)
            manifest = msgspec.structs.replace(manifest, is_external=is_external)
            outcome = self._rotation.with_new(plan, listing, path, manifest.step, manifest.time)
            served = tuple(p for p in outcome.delete if p == self._serving)
            listed = served + outcome.listed  # kept until the next save: a trainer is restoring from it
            delete = tuple(p for p in (*self._undeleted, *outcome.delete) if p != self._serving)
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
                self._undeleted = workshop.commit(staging, intent)
            except Exception:
                self._recovered.discard(
                    workshop.staging
                )  # perhaps it could not be undone: recovered before anything else
                raise
            if not workshop.is_empty():
                self._recovered.discard(workshop.staging)
            self._catalog.forget(delete)
            self._catalog.trust(path)
            self._rotation.is_written(plan, listed, outcome.next_keep)
            with contextlib.suppress(OSError):
                finish_deletions(
                    Path(path).parent, Path(plan.save_path).name, set(listed)
                )  # a Saver deletes no manifest
            own = self._rotation.own(listed, plan, {**listing.manifests, path: manifest})
            return durable_of(manifest, path, self._clock.monotonic() - started_s, own)


def _sync_and_read_back(contents: Contents, reader: SlotReader, written: write.Written, staging: Path) -> None:
    if written.is_soon_read:
        disk.fsync_files(staging)
        write.read_back(contents, reader.map, written)
        return
    with ThreadPoolExecutor(1, "fsync") as beside:  # the disk syncs while the files are read back
        flushed = beside.submit(disk.fsync_files, staging)
        write.read_back(contents, reader.map, written)
    flushed.result()


def check_room(directory: Path, size: int) -> None:
    """OSError if a checkpoint of `size` bytes does not fit there."""
    there = os.statvfs(directory)
    free = there.f_bavail * there.f_frsize
    if free < size + disk.ROOM_MARGIN_BYTES:
        raise OSError(f"no room in {directory}: {show_size(free)} are free, the checkpoint needs {show_size(size)}")


def _add_meta(plan: CheckpointPlan, staging: Path, path: str) -> None:
    meta = staging / (Path(names.base_of(path)).name + names.META_SUFFIX)
    if plan.meta_path and not meta.exists():
        with contextlib.suppress(FileNotFoundError):  # a checkpoint can be restored without it
            disk.copy(Path(plan.meta_path), meta)
