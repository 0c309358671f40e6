"""Adopt an external checkpoint: give it a manifest and its place on the list.

Called by the store, on the disk thread, for what was read whole and found good (scan.py).  Deletes what the supervised
Saver's rule has no room for, and nothing else.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from procsv.base.atomic_file import replace_file
from procsv.base.clock import Clock
from procsv.base.run.checkpoint_lock import is_taken, turn
from procsv.ipc.messaging.messages import CheckpointPlan
from procsv.ipc.messaging.start import Start
from procsv.services.checkpoint.core.facts import Adopted, Manifest, Signature, Verified, durable_of
from procsv.services.checkpoint.store.catalog import Catalog, take_stock
from procsv.services.checkpoint.store.commit import delete_surely, finish_deletions
from procsv.services.checkpoint.store.manifest import MANIFEST_VERSION, encode_manifest, read_manifest
from procsv.services.checkpoint.store.names import absolute_save_path, manifest_of, state_file_of
from procsv.services.checkpoint.store.rotation import Rotation
from procsv.services.checkpoint.store.scan import is_known, signature_of
from procsv.services.checkpoint.store.state_file import write_state

TURN_S_MAX = 1.0  # then the list is left to whoever has the turn, and mended the next time


class Intake:
    """The store's hand for others' checkpoints.  `serving`: what a trainer is restoring from stays."""

    def __init__(self, start: Start, clock: Clock, catalog: Catalog, rotation: Rotation) -> None:
        self._start, self._clock, self._catalog, self._rotation = start, clock, catalog, rotation

    def take_in(self, plan: CheckpointPlan, examined: Verified, own: bool, incarnation: int, serving: str) -> Adopted:
        """Gives a checkpoint its manifest, and mends the list.  OSError passes through: it is as it was.

        `own`: the supervised Saver has saved it.  While somebody has the directory's turn, that may yet turn out, for the
        word of it comes at the end: left for later.
        """
        directory, path = Path(absolute_save_path(plan)).parent, examined.path
        if not own and is_taken(directory):
            return Adopted(examined, own, None)
        with turn(directory, TURN_S_MAX) as is_our_turn:
            if _signature_or_none(path) != examined.signature or is_known(path):
                # Known: one of ours, seen between its files and its manifest.  Its manifest stays what it is.
                return Adopted(examined, own, None)
            guest = not own or self._rotation.is_of_another_name(path, plan)
            files, now = examined.files, examined.time
            manifest = Manifest(
                MANIFEST_VERSION, examined.step, 0, incarnation, self._start.run, "manual", now, files, guest
            )
            replace_file(manifest_of(path), encode_manifest(manifest))
            # killed here: it is known; that others are over `max_to_keep` is seen at the next save
            self._catalog.trust(path)
            listed = self._mend_list(plan, serving) if is_our_turn else take_stock(plan).kept
        durable = durable_of(manifest, path, examined.seconds, self._rotation.own(listed, plan))
        return Adopted(examined, own, durable, is_latest=listed[-1:] == (path,))

    def make_own(self, plan: CheckpointPlan, path: str, serving: str) -> None:
        """What was taken in for another Saver's is the supervised one's after all.  OSError passes through."""
        with turn(Path(absolute_save_path(plan)).parent, TURN_S_MAX) as is_our_turn:
            manifest = read_manifest(manifest_of(path))
            if manifest is None or not manifest.guest or self._rotation.is_of_another_name(path, plan):
                return
            replace_file(manifest_of(path), encode_manifest(msgspec.structs.replace(manifest, guest=False)))
            self._catalog.trust(path)
            if is_our_turn:
                self._mend_list(plan, serving)

    def _mend_list(self, plan: CheckpointPlan, serving: str) -> tuple[str, ...]:
        """Brings `checkpoint` and what is kept in line with what others have saved; what it lists then."""
        listing = take_stock(plan)
        before = listing.kept
        outcome = self._rotation.mended(plan, listing, self._clock.wall())
        served = tuple(p for p in outcome.delete if p == serving)
        listed = served + outcome.listed
        # The excess goes first.  Killed in between: listed, and gone; that is left out by whoever reads the list.
        for path in set(outcome.delete) - set(served):
            with contextlib.suppress(OSError):
                delete_surely(path)
        self._catalog.forget(outcome.delete)
        if listed and listed != before:
            write_state(state_file_of(plan), plan.save_path, list(listed), plan.save_relative_paths)
        self._rotation.is_written(plan, listed, outcome.next_keep)
        save_path = Path(absolute_save_path(plan))
        finish_deletions(save_path.parent, save_path.name, set(listed))  # a Saver that deletes knows of no manifest
        return listed


def _signature_or_none(path: str) -> Signature | None:
    with contextlib.suppress(FileNotFoundError):
        return signature_of(path)
    return None
