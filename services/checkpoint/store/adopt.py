"""Adopt an external checkpoint: give it a manifest and its place on the list.

Called by the store, on the disk thread, for checkpoints that scan.py has verified.  Deletes only what the supervised
Saver's rule has no room for.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from procsv.base.clock import Clock
from procsv.base.run.checkpoint_lock import hold_checkpoint_lock, is_checkpoint_locked
from procsv.base.run.manifest import Manifest
from procsv.base.system.atomic_file import replace_file
from procsv.ipc.messaging.checkpoint_messages import CheckpointPlan
from procsv.ipc.messaging.start import Start
from procsv.services.checkpoint.core.facts import Adopted, Signature, Verified, durable_of
from procsv.services.checkpoint.store.catalog import Catalog, list_checkpoints
from procsv.services.checkpoint.store.commit import delete_surely, finish_deletions
from procsv.services.checkpoint.store.manifest import MANIFEST_VERSION, encode_manifest, read_manifest
from procsv.services.checkpoint.store.names import absolute_save_path, manifest_of, state_file_of
from procsv.services.checkpoint.store.rotation import Rotation
from procsv.services.checkpoint.store.scan import is_known, signature_of_model
from procsv.services.checkpoint.store.state_file import write_state

LOCK_S_MAX = 1.0  # then the list is left to the holder of the lock, and repaired with the next adoption


class Adopter:
    """Adopts external checkpoints.  `serving`: the checkpoint that a trainer is restoring from; it is not deleted."""

    def __init__(self, start: Start, clock: Clock, catalog: Catalog, rotation: Rotation) -> None:
        self._start, self._clock, self._catalog, self._rotation = start, clock, catalog, rotation

    def adopt(self, plan: CheckpointPlan, examined: Verified, own: bool, incarnation: int, serving: str) -> Adopted:
        """Gives a checkpoint its manifest and repairs the list.  OSError passes through; nothing has changed then.

        `own`: the supervised Saver has saved it.  While a Saver holds the lock nobody knows whose it is, since the trainer
        reports a save only when it has ended: the adoption waits.
        """
        directory, path = Path(absolute_save_path(plan)).parent, examined.path
        if not own and is_checkpoint_locked(directory):
            return Adopted(examined, own, None)
        with hold_checkpoint_lock(directory, LOCK_S_MAX) as is_locked:
            if _signature_or_none(path) != examined.signature or is_known(path):
                # Known: one of ours, seen before its manifest was written.  Its manifest stays.
                return Adopted(examined, own, None)
            is_external = not own or self._rotation.is_of_another_name(path, plan)
            files, now = examined.files, examined.time
            manifest = Manifest(
                MANIFEST_VERSION, examined.step, 0, incarnation, self._start.run, "manual", now, files, is_external
            )
            replace_file(manifest_of(path), encode_manifest(manifest))
            # killed here: adopted; the next save deletes what is over `max_to_keep`
            self._catalog.trust(path)
            listed = self._repair_list(plan, serving) if is_locked else list_checkpoints(plan).kept
        own_list = self._rotation.own(listed, plan, {path: manifest})
        durable = durable_of(manifest, path, examined.seconds, own_list)
        return Adopted(examined, own, durable, is_latest=listed[-1:] == (path,))

    def make_own(self, plan: CheckpointPlan, path: str, serving: str) -> None:
        """Assigns a checkpoint that was adopted as another Saver's to the supervised one.  OSError passes through."""
        with hold_checkpoint_lock(Path(absolute_save_path(plan)).parent, LOCK_S_MAX) as is_locked:
            manifest = read_manifest(manifest_of(path))
            if manifest is None or not manifest.is_external or self._rotation.is_of_another_name(path, plan):
                return
            replace_file(manifest_of(path), encode_manifest(msgspec.structs.replace(manifest, is_external=False)))
            self._catalog.trust(path)
            if is_locked:
                self._repair_list(plan, serving)

    def _repair_list(self, plan: CheckpointPlan, serving: str) -> tuple[str, ...]:
        """Brings the `checkpoint` file and the files in line with external saves; the paths it lists then."""
        listing = list_checkpoints(plan)
        before = listing.kept
        outcome = self._rotation.repaired(plan, listing, self._clock.wall())
        served = tuple(p for p in outcome.delete if p == serving)
        listed = served + outcome.listed
        # The excess is deleted first.  Killed in between: listed but gone, which every reader of the list skips.
        for path in set(outcome.delete) - set(served):
            with contextlib.suppress(OSError):
                delete_surely(path)
        self._catalog.forget(outcome.delete)
        if listed and listed != before:
            state_file = state_file_of(plan)
            write_state(state_file, plan.save_path, list(listed), plan.save_relative_paths, plan.lists_times)
        self._rotation.is_written(plan, listed, outcome.next_keep)
        save_path = Path(absolute_save_path(plan))
        finish_deletions(save_path.parent, save_path.name, set(listed))  # a Saver deletes no manifest
        return listed


def _signature_or_none(path: str) -> Signature | None:
    with contextlib.suppress(FileNotFoundError):
        return signature_of_model(path)
    return None
