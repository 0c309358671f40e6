"""Checkpoints on a local disk: write them from snapshots, find and verify them, delete the old ones.

Called by the worker, on the disk thread alone, so that nothing here ever races: a commit, a search and a deletion
come one after the other.  Decides nothing about when; never talks to a peer.
"""

from __future__ import annotations

import contextlib
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import msgspec

from procsv.base.clock import Clock
from procsv.base.errors import PeerError
from procsv.base.run.checkpoint_lock import hold_checkpoint_lock
from procsv.base.run.manifest import FileSum, Manifest, Reason
from procsv.base.run.run_file import read_run
from procsv.base.system import disk, progress_counter
from procsv.base.system.failpoints import declare, failpoint
from procsv.base.units import show_size
from procsv.ipc.messaging.messages import CheckpointPlan, Durable
from procsv.ipc.messaging.start import Start
from procsv.ipc.shm.slot_file import SlotReader, scan_slots
from procsv.ipc.shm.slot_index import Contents, prefix_of
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
from procsv.services.checkpoint.store import write
from procsv.services.checkpoint.store.adopt import Adopter
from procsv.services.checkpoint.store.catalog import Catalog, list_checkpoints
from procsv.services.checkpoint.store.commit import Intent, Workshop, finish_deletions, read_text
from procsv.services.checkpoint.store.manifest import MANIFEST_VERSION, BadCheckpoint, read_manifest, sum_file
from procsv.services.checkpoint.store.names import (
    META_SUFFIX,
    absolute_save_path,
    all_files,
    base_of,
    manifest_of,
    model_files,
    state_file_of,
)
from procsv.services.checkpoint.store.rotation import Rotation
from procsv.services.checkpoint.store.scan import trouble_with
from procsv.services.checkpoint.store.service_state import StoredState

ROOM_MARGIN_BYTES = 8 * 2**20  # beside the tensors: index, meta, manifest; less free than that is a full disk

declare("checkpoint.temporary_created", "checkpoint.before_fsync")


class SlotGone(Exception):
    """The slot no longer holds that snapshot: a newer one is READY, or will be."""


class SlotBad(Exception):
    """The slot's contents do not match their checksums.  The text names the tensor."""


class Store:
    """Everything that the service does with files in the logdir."""

    def __init__(self, start: Start, clock: Clock) -> None:
        self._start = start
        self._clock = clock
        self._catalog = Catalog()
        self._memory = StoredState(start.paths.home)
        self._rotation = Rotation(self._memory)
        self._adopter = Adopter(start, clock, self._catalog, self._rotation)
        self._recovered: set[Path] = set()
        self._undeleted: list[str] = []
        self._serving = ""  # the checkpoint that a trainer is restoring from: not deleted meanwhile

    # -- at the start ----------------------------------------------------------------------------------------
    def lineage(self) -> frozenset[str]:
        """The earlier runs in this logdir whose snapshots still lie in shared memory; ours is noted for the next.

        A snapshot of any other run is of a logdir that was deleted since: not to be restored from.
        """
        last = read_run(self._start.paths.run_json)
        known = self._memory.runs() | ({last.run} if last is not None else set())
        there = {info.run for info in scan_slots(self._start.paths.shm_dir)}
        lineage = frozenset(known & there) - {self._start.run}
        self._memory.note_runs(sorted({*lineage, self._start.run}))
        return lineage

    def open(self) -> None:
        """Ends what the last service was interrupted in, as far as it can be known before a plan is."""
        home = self._start.paths.home
        disk.make_dirs(home)
        self._recover(Workshop(home))

    def list_checkpoints(self, plan: CheckpointPlan) -> DiskState:
        """What is there; the newest is verified if it is to be believed that a snapshot is durable."""
        self._prepare_to_look(plan)
        listing = list_checkpoints(plan)
        top = max((c.sequence for c in listing.candidates), default=0)
        if not listing.candidates:
            return DiskState(-1, top, None, (), self._run_began())
        newest, kept = listing.candidates[0], self._rotation.own(listing.kept, plan)
        return DiskState(newest.step, top, self._as_durable(newest, kept), kept, self._run_began())

    def _run_began(self) -> float | None:
        run = read_run(self._start.paths.run_json)
        return run.started_at if run is not None and run.run == self._start.run else None

    def _as_durable(self, newest: Candidate, kept: tuple[str, ...]) -> Durable | None:
        follows = self._start.incarnation > 1  # a service that died: perhaps before it could say what it had saved
        if not newest.sequence or not (follows or scan_slots(self._start.paths.shm_dir)):
            return None  # no snapshot is there that could be the same state
        with contextlib.suppress(BadCheckpoint, OSError):
            self._catalog.verify(newest.path)
            manifest = read_manifest(manifest_of(newest.path))
            if manifest is not None:
                return durable_of(manifest, newest.path, 0.0, kept)
        return None

    def _prepare_to_look(self, plan: CheckpointPlan) -> None:
        """As `_prepare`, as far as it goes: from a disk that cannot be written what is whole can still be restored."""
        with contextlib.suppress(OSError):
            self._prepare(plan)
        self._learn_list(plan)

    def _learn_list(self, plan: CheckpointPlan) -> None:
        if not self._rotation.has_begun(plan):
            self._rotation.start_list(plan, list_checkpoints(plan), self._run_began())

    def _prepare(self, plan: CheckpointPlan) -> Workshop:
        """The workshop for a plan's checkpoints, with what was interrupted there ended."""
        save_path = absolute_save_path(plan)
        directory = Path(save_path).parent
        home = self._start.paths.home
        if not directory.is_dir():
            return Workshop(home)  # nothing is there, and nothing can be saved
        disk.make_dirs(home)
        same_disk = not home.is_dir() or directory.stat().st_dev == home.stat().st_dev
        workshop = Workshop(home if same_disk else directory / ".procsv")
        self._recover(workshop)
        if directory not in self._recovered:
            with contextlib.suppress(OSError):
                for leftover in directory.glob(".*.new"):
                    if leftover.name.startswith((f".{Path(save_path).name}", f".{plan.latest_filename}.")):
                        disk.unlink_if_there(leftover)
            listed = {c.path for c in list_checkpoints(plan).candidates if c.listed}
            finish_deletions(directory, Path(save_path).name, listed)
            self._recovered.add(directory)
        self._learn_list(plan)
        return workshop

    def _recover(self, workshop: Workshop) -> None:
        if workshop.staging not in self._recovered:
            workshop.recover()
            if workshop.is_empty():  # else the disk does not let go of something: tried again with the next save
                self._recovered.add(workshop.staging)

    # -- restoring -------------------------------------------------------------------------------------------
    def find(self, plan: CheckpointPlan, before: int = -1) -> Found:
        """The checkpoint to restore from; it is not deleted until `release`."""
        self._prepare_to_look(plan)
        found = self._catalog.find(plan, before)
        self._serving = found.checkpoint.path if found.checkpoint else ""
        if found.rejected:
            self._rotation.is_relisted(plan, found.kept)
        return replace(found, kept=self._rotation.own(found.kept, plan))

    def release(self) -> None:
        """The trainer has restored."""
        self._serving = ""

    def verify_slot(self, info: SlotInfo) -> None:
        """Reads a slot against its checksums; SlotBad, SlotGone.  Not on the disk thread: touches memory alone."""
        reader = self._read(info)
        try:
            reader.verify()
        except PeerError as error:
            raise SlotBad(str(error)) from error
        finally:
            reader.close()

    # -- what others have saved -------------------------------------------------------------------------------
    def adopt(self, plan: CheckpointPlan, examined: Verified, own: bool, incarnation: int) -> Adopted:
        """Gives a checkpoint that somebody else has saved its manifest; see Adopter."""
        self._prepare(plan)
        return self._adopter.adopt(plan, examined, own, incarnation, self._serving)

    def make_own(self, plan: CheckpointPlan, path: str) -> None:
        self._adopter.make_own(plan, path, self._serving)

    # -- saving ----------------------------------------------------------------------------------------------
    def persist(self, state: State, reason: Reason, plan: CheckpointPlan | None) -> Durable:
        """Makes `state` a checkpoint on disk.  SlotGone, SlotBad, or any error: nothing has changed."""
        started_s = self._clock.monotonic()
        if state.slot is not None:
            return self._persist_slot(state, state.slot, reason, started_s)
        if plan is None:
            raise PeerError("staged files without a plan")
        return self._persist_staged(state, reason, plan, started_s)

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
            workshop = self._begin(contents.plan, sum(e.size for shard in contents.shards for e in shard))
            staging = workshop.begin_commit(state.sequence)
            failpoint("checkpoint.temporary_created")
            try:
                path, sums = self._write(contents, reader, staging, Path(prefix_of(contents)).name)
            except BaseException:
                self._throw_away(workshop, staging)
                raise
        finally:
            reader.close()  # from here on the trainer may have the slot again
        manifest = self._manifest(staging, sums, state, reason)
        return self._commit(workshop, staging, contents.plan, path, manifest, started_s)

    def _write(
        self, contents: Contents, reader: SlotReader, staging: Path, name: str
    ) -> tuple[str, dict[str, FileSum]]:
        """Writes and reads back; the path that the `checkpoint` file will list, and the sums that are known."""
        try:
            written = write.write(contents, reader.map, str(staging / name))
            _add_meta(contents.plan, staging, name)
            failpoint("checkpoint.before_fsync")
            with ThreadPoolExecutor(1, "fsync") as beside:  # the disk works while what was written is read back
                flushed = beside.submit(disk.fsync_files, staging)
                write.read_back(contents, reader.map, written)
            flushed.result()
        except WriteMismatch:
            try:
                reader.verify()
            except PeerError as error:
                raise SlotBad(str(error)) from error
            raise  # the slot is good: the disk is not; the files are thrown away and written again
        # killed here: complete and on the disk, and nothing says so: swept at the next start
        return self._path(contents.plan, Path(written.path).name), written.sums

    def _persist_staged(self, state: State, reason: Reason, plan: CheckpointPlan, started_s: float) -> Durable:
        files = model_files(state.staged)
        if not files:
            raise SlotGone(f"{state.staged} is gone")
        workshop = self._begin(plan, sum(file.stat().st_size for file in files))
        staging = workshop.begin_commit(state.sequence)
        failpoint("checkpoint.temporary_created")
        try:
            for file in [*files, *[p for p in (Path(base_of(state.staged) + ".meta"),) if p.is_file()]]:
                disk.link_or_copy(file, staging / file.name)
            _add_meta(plan, staging, state.staged)
            try:
                self._catalog.verify(str(staging / Path(state.staged).name))
            except BadCheckpoint as error:
                raise SlotBad(str(error)) from error
            failpoint("checkpoint.before_fsync")
            disk.fsync_files(staging)
        except BaseException:
            self._throw_away(workshop, staging)
            raise
        path = self._path(plan, Path(state.staged).name)
        durable = self._commit(workshop, staging, plan, path, self._manifest(staging, {}, state, reason), started_s)
        disk.try_to_remove_tree(Path(state.staged).parent)
        return durable

    def _path(self, plan: CheckpointPlan, name: str) -> str:
        """Where checkpoint `name` of a plan goes."""
        return str(Path(absolute_save_path(plan)).parent / name)

    def _manifest(self, staging: Path, sums: dict[str, FileSum], state: State, reason: Reason) -> Manifest:
        names = sorted(entry.name for entry in staging.iterdir())
        sums = {name: sums.get(name) or sum_file(staging / name) for name in names}  # as read back, where it was
        now = self._clock.wall()
        return Manifest(MANIFEST_VERSION, state.step, state.sequence, state.incarnation, state.run, reason, now, sums)

    def _throw_away(self, workshop: Workshop, staging: Path) -> None:
        """After an error: what the disk does not let go of now is swept before the next save."""
        disk.try_to_remove_tree(staging)
        self._recovered.discard(workshop.staging)

    def _begin(self, plan: CheckpointPlan, size: int) -> Workshop:
        """Looks before it writes: for the directory, and for room."""
        directory = Path(absolute_save_path(plan)).parent
        if trouble := trouble_with(directory):
            raise OSError(trouble)  # as a look at it says: one cause is one piece of news
        with progress_counter.out_of_sight():
            workshop = self._prepare(plan)
        check_room(directory, size)
        return workshop

    def _commit(
        self, workshop: Workshop, staging: Path, plan: CheckpointPlan, path: str, manifest: Manifest, started_s: float
    ) -> Durable:
        """From taking stock to the `checkpoint` file: nobody else writes it meanwhile."""
        with progress_counter.out_of_sight(), hold_checkpoint_lock(Path(absolute_save_path(plan)).parent):
            return self._commit_in_turn(workshop, staging, plan, path, manifest, started_s)

    def _commit_in_turn(
        self, workshop: Workshop, staging: Path, plan: CheckpointPlan, path: str, manifest: Manifest, started_s: float
    ) -> Durable:
        listing = list_checkpoints(plan)
        # One that is replaced stays what it was.
        manifest = msgspec.structs.replace(manifest, is_external=self._rotation.is_known_external(path))
        outcome = self._rotation.with_new(plan, listing, path, manifest.step, manifest.time)
        served = tuple(p for p in outcome.delete if p == self._serving)
        listed = served + outcome.listed  # what is being restored from stays until the next time
        delete = tuple(p for p in (*self._undeleted, *outcome.delete) if p != self._serving)
        state_file = state_file_of(plan)
        intent = Intent(
            path=path,
            manifest=manifest,
            state_file=str(state_file),
            save_path=plan.save_path,
            relative=plan.save_relative_paths,
            listed=listed,
            delete=delete,
            state_before=read_text(state_file),
            replaces=bool(all_files(path)),
        )
        try:
            self._undeleted = workshop.commit(staging, intent)
        except Exception:
            self._recovered.discard(workshop.staging)  # if it could not be undone: before anything else is done
            raise
        if not workshop.is_empty():
            self._recovered.discard(workshop.staging)
        self._catalog.forget(delete)
        self._catalog.trust(path)
        self._rotation.is_written(plan, listed, outcome.next_keep)
        own = self._rotation.own(listed, plan)
        return durable_of(manifest, path, self._clock.monotonic() - started_s, own)


def check_room(directory: Path, size: int) -> None:
    """OSError if a checkpoint of `size` bytes does not fit there."""
    there = os.statvfs(directory)
    free = there.f_bavail * there.f_frsize
    if free < size + ROOM_MARGIN_BYTES:
        raise OSError(f"no room in {directory}: {show_size(free)} are free, the checkpoint needs {show_size(size)}")


def _add_meta(plan: CheckpointPlan, staging: Path, path: str) -> None:
    meta = staging / (Path(base_of(path)).name + META_SUFFIX)
    if plan.meta_path and not meta.exists():
        with contextlib.suppress(FileNotFoundError):  # it makes no difference to what can be restored
            disk.copy(Path(plan.meta_path), meta)
