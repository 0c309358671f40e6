"""Work out the list of checkpoints after a save, and which old checkpoints to delete.

retention.py has the rules, and knows no files. This module looks at the files and applies the
rules. It returns what to list and what to delete, and writes and deletes nothing itself.
local_files.py calls it on the disk thread. While the list changes, local_files.py holds the lock
on the `checkpoint` file.

A list belongs to a *plan*, which holds the supervised Saver's settings: a save path, and how many
checkpoints to keep. Other Savers of the program may write to the same list.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

from procsv.base.run.manifest import Manifest
from procsv.base.run.run_file import read_run
from procsv.ipc.messaging.checkpoint_messages import CheckpointPlan
from procsv.ipc.messaging.start import Start
from procsv.services.checkpoint.core.facts import Candidate
from procsv.services.checkpoint.core.retention import (
    ListedCheckpoint,
    RetentionOutcome,
    Rule,
    first_keep,
    repair,
    retain,
)
from procsv.services.checkpoint.format.manifest import manifest_or_none, time_of, written
from procsv.services.checkpoint.format.names import absolute_save_path, base_of, has_files, is_like
from procsv.services.checkpoint.store.catalog import list_checkpoints
from procsv.services.checkpoint.store.search import Listing
from procsv.services.checkpoint.store.service_state import StoredState

_NUMBER = re.compile(r"(-\d+)?")  # follows a Saver's name

Look: TypeAlias = Callable[[str], ListedCheckpoint]  # path -> its checkpoint
Manifests: TypeAlias = Mapping[str, Manifest | None]  # path -> its manifest, or None if it had none when it was read


class Rotation:
    """Each plan's list of checkpoints, as it was last written or read."""

    def __init__(self, start: Start, memory: StoredState) -> None:
        self._start, self._memory = start, memory
        self._before: dict[str, tuple[str, ...]] = {}  # save path -> its list
        self._own: set[str] = set()  # checkpoints from before the run, which are ours even without a manifest

    # -- the writer of a checkpoint ----------------------------------------------------------------------
    def adopt_list(self, plan: CheckpointPlan, listing: Listing | None = None) -> None:
        """Treat listed checkpoints from before the run as ours, as TensorFlow's Saver does.

        The exceptions are those whose manifest says that another Saver wrote them. A checkpoint
        that was saved since the run began is ours only if its manifest says so. Further calls for
        the same save path do nothing. `listing`: the present listing, if the caller has it.
        """
        save_path = absolute_save_path(plan)
        if save_path not in self._before:
            kept = self._before[save_path] = (listing or list_checkpoints(plan)).kept
            began = run_began(self._start)
            self._own |= {base_of(p) for p in kept if began is None or written(p) < began}

    def is_of_another_name(self, path: str, plan: CheckpointPlan) -> bool:
        return not is_like(base_of(path), absolute_save_path(plan), _NUMBER)

    def is_known_external(self, path: str, known: Manifests) -> bool:
        """Whether the checkpoint's manifest says that another Saver wrote it."""
        manifest = _manifest_of(path, known)
        return manifest is not None and manifest.is_external

    def _is_external(self, path: str, plan: CheckpointPlan, manifest: Manifest | None) -> bool:
        """Whether a checkpoint is not ours.

        It has another name, it is another Saver's, or its writer is still unknown.
        """
        return self.is_of_another_name(path, plan) or self._is_of_another(path, manifest)

    def _is_of_another(self, path: str, manifest: Manifest | None) -> bool:
        return base_of(path) not in self._own if manifest is None else manifest.is_external

    def own(self, paths: tuple[str, ...], plan: CheckpointPlan, known: Manifests) -> tuple[str, ...]:
        """Return the `paths` that belong on the supervised Saver's own list."""
        return tuple(p for p in paths if not self._is_external(p, plan, _manifest_of(p, known)))

    # -- changes of the list -----------------------------------------------------------------------------
    def repaired(self, plan: CheckpointPlan, listing: Listing, now: float) -> RetentionOutcome:
        """Return the list and the deletions after another Saver has overwritten the list."""
        return self._repaired(plan, listing, now, self._look_at_list(plan, listing.manifests))

    def _repaired(self, plan: CheckpointPlan, listing: Listing, now: float, look: Look) -> RetentionOutcome:
        before = [p for p in self._before.get(absolute_save_path(plan), ()) if has_files(p)]
        return repair([*map(look, before)], [*map(look, listing.kept)], rule_of(self._memory, plan, now))

    def with_new(self, plan: CheckpointPlan, listing: Listing, path: str, step: int, now: float) -> RetentionOutcome:
        """Return the list and the deletions for our new checkpoint `path` of step `step`.

        The caller is about to put it in place.
        """
        look = self._look_at_list(plan, listing.manifests)
        first = self._repaired(plan, listing, now, look)
        rule = rule_of(self._memory, plan, now, first.next_keep)
        later = later_saves(listing, step, run_began(self._start))
        outcome = retain([*map(look, first.listed)], ListedCheckpoint(path, now), rule, later)
        delete = tuple(p for p in (*first.delete, *outcome.delete) if p not in outcome.listed)
        return RetentionOutcome(outcome.listed, delete, outcome.next_keep)

    def note_relisted(self, plan: CheckpointPlan, listed: tuple[str, ...]) -> None:
        """Note a list that a search rewrote without the bad checkpoints.

        So no repair puts them back.
        """
        self._before[absolute_save_path(plan)] = listed

    def note_written(self, plan: CheckpointPlan, listed: tuple[str, ...], next_keep: float) -> None:
        """Note a list that is now on disk, and when to keep the next checkpoint permanently."""
        save_path = absolute_save_path(plan)
        self._before[save_path] = listed
        self._memory.note_next_keep(Path(save_path).name, next_keep)

    def _look_at_list(self, plan: CheckpointPlan, known: Manifests) -> Look:
        """Return a function that looks up a checkpoint.

        It reads each manifest once, so use it for one change only.
        """

        def look(path: str) -> ListedCheckpoint:
            manifest = _manifest_of(path, known)
            return ListedCheckpoint(path, time_of(path, manifest), self._is_external(path, plan, manifest))

        return functools.cache(look)


def run_began(start: Start) -> float | None:
    """Return when the run began (Unix seconds; None if unknown)."""
    run = read_run(start.paths.run_json)
    return run.started_at if run is not None and run.run == start.run else None


def rule_of(memory: StoredState, plan: CheckpointPlan, now: float, next_keep: float | None = None) -> Rule:
    """Return the rule for a plan's checkpoints. `next_keep` replaces the stored time."""
    if next_keep is None:
        base = Path(absolute_save_path(plan)).name
        next_keep = memory.next_keep(base, first_keep(plan.keep_from or now, plan.keep_every_n_hours))
    return Rule(plan.max_to_keep, plan.keep_every_n_hours, next_keep)


def _manifest_of(path: str, known: Manifests) -> Manifest | None:
    return known[path] if path in known else manifest_or_none(path)


def later_saves(listing: Listing, step: int, began: float | None) -> frozenset[str]:
    """Return the listed checkpoints with a step above `step` that other writers saved in this run.

    Checkpoints from before the run are left out, because the program may have set its step back
    since.
    """
    others = (c for c in listing.candidates if c.listed and c.sequence == 0 and c.step > step)
    return frozenset(c.path for c in others if began is None or time_of_external(c) >= began)


def time_of_external(checkpoint: Candidate) -> float:
    """Return when another writer wrote a checkpoint (Unix seconds).

    Infinity if it is ours, or if its files are not here.
    """
    if checkpoint.sequence:
        return math.inf
    try:
        return written(checkpoint.path) or math.inf
    except FileNotFoundError:  # removed just now
        return math.inf
