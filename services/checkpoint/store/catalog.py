"""Catalog of the checkpoints in a directory: find, verify, move the bad ones aside.

Called by the store, on the disk thread.  Never deletes: a checkpoint that must not be used is moved aside, whole, into
`<name>.rejected/` beside it.  Never trusts a name: what is answered was verified file by file.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from procsv.base.system import disk
from procsv.ipc.messaging.messages import CheckpointPlan
from procsv.services.checkpoint.core.facts import Candidate, Found, Rejection
from procsv.services.checkpoint.format.bundle_reader import (
    BadBundle,
    Bundle,
    check_contents,
    check_structure,
    scalar_int,
)
from procsv.services.checkpoint.store.manifest import BadCheckpoint, read_manifest, verify_files
from procsv.services.checkpoint.store.names import (
    absolute_save_path,
    all_files,
    base_of,
    checkpoints_by_name,
    has_files,
    has_leftovers,
    manifest_of,
    model_files,
    state_file_of,
    step_in_name,
)
from procsv.services.checkpoint.store.state_file import GarbledStateFile, StateFile, read_state, write_state

GLOBAL_STEP_KEY = "global_step"
_TABLE_MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)
STEP_UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class Listing:
    """What the files speak of, in the order in which it is to be tried."""

    candidates: tuple[Candidate, ...]
    exists: bool  # something was saved here once: a run must not start from step 0
    trouble: str  # what is wrong with the `checkpoint` file; "" if nothing

    @property
    def kept(self) -> tuple[str, ...]:
        """The checkpoints that are listed and there, oldest first."""
        return tuple(c.path for c in reversed(self.candidates) if c.listed and has_files(c.path))


def list_checkpoints(plan: CheckpointPlan) -> Listing:
    """Looks at names and manifests; reads no tensor."""
    save_path, state_path = absolute_save_path(plan), state_file_of(plan)
    trouble, state = "", None
    try:
        state = read_state(state_path)
    except GarbledStateFile as error:
        trouble = str(error)
    listed = listed_paths(state, state_path.parent) if state else []
    candidates = [_candidate(path, True) for path in listed]
    known = {base_of(path) for path in listed}
    candidates += [_candidate(path, False) for path in checkpoints_by_name(save_path) if path not in known]
    exists = bool(candidates) or state is not None or bool(trouble) or has_leftovers(save_path)
    return Listing(tuple(candidates), exists, trouble)


def listed_paths(state: StateFile, directory: Path) -> list[str]:
    """What the `checkpoint` file lists, the latest first, each where it now is."""
    order = [state.latest] + [path for path in reversed(state.all_paths) if path != state.latest]
    found: dict[
        tuple[Path, str], str
    ] = {}  # each once: TensorFlow's Saver lists in two spellings what it has not saved
    for path in order:
        absolute = path if Path(path).is_absolute() else str(directory / path)
        beside = str(directory / Path(path).name)
        # A logdir that was moved or copied still lists its old paths: what lies here is meant, and the copied one is not
        # to be read, moved aside or deleted by us.
        is_here = Path(absolute).parent.resolve() == directory.resolve()
        meant = beside if not is_here and has_files(beside) else absolute
        found.setdefault((Path(meant).parent.resolve(), Path(meant).name), meant)
    return list(found.values())


def _candidate(path: str, listed: bool) -> Candidate:
    try:
        manifest = read_manifest(manifest_of(path))
    except (BadCheckpoint, OSError):
        manifest = None
    if manifest is not None:
        return Candidate(path, manifest.step, manifest.sequence, listed)
    return Candidate(path, step_in_name(path), 0, listed)


class Catalog:
    """Verifies checkpoints, remembering those whose files have not changed since."""

    def __init__(self) -> None:
        self._good: dict[str, tuple[tuple[str, int, int, int], ...]] = {}

    def find(self, plan: CheckpointPlan, before: int = -1) -> Found:
        """The first good checkpoint in the order of the listing; bad ones on the way are moved aside.

        `before`: those of this step and later are passed over and left as they are (-1: none).
        """
        listing = list_checkpoints(plan)
        rejected: list[Rejection] = []
        for position, candidate in enumerate(listing.candidates):
            if 0 <= before <= candidate.step:
                continue
            try:
                step = self.verify(candidate.path)
            except BadCheckpoint as bad:
                with contextlib.suppress(OSError):  # a disk that cannot be written: it is passed over again next time
                    self._quarantine(candidate.path)
                rejected.append(Rejection(candidate.path, str(bad)))
                continue
            except OSError as trouble:
                # Perhaps only for now (permissions, a disk that comes back): left where it is.
                rejected.append(Rejection(candidate.path, f"it cannot be read: {trouble}"))
                continue
            good = replace(candidate, step=candidate.step if step == STEP_UNKNOWN else step)
            kept = listing.kept
            if (rejected or listing.trouble) and before < 0:
                kept = self._relist(plan, listing, position)
            return Found(good, kept, tuple(rejected), True, "")
        error = _nothing_good(plan, listing, rejected) if listing.exists else ""
        return Found(None, listing.kept if before >= 0 else (), tuple(rejected), listing.exists, error)

    def verify(self, path: str) -> int:
        """The step of a checkpoint that is whole; BadCheckpoint says why one is not; OSError passes through."""
        try:
            manifest = read_manifest(manifest_of(path))
        except BadCheckpoint:
            if not _was_rewritten(path):
                raise
            manifest = None
        if not has_files(path):
            raise BadCheckpoint("its files are gone")
        if manifest is None:
            return verify_foreign(path)
        signature = _signature(path)
        if self._good.get(path) != signature:
            try:
                verify_files(manifest, Path(path).parent)
            except BadCheckpoint:
                if not _was_rewritten(path):
                    raise
                return verify_foreign(path)
            self._good[path] = signature
        return manifest.step

    def trust(self, path: str) -> None:
        """This checkpoint was verified as it was written."""
        self._good[path] = _signature(path)

    def forget(self, paths: Iterable[str]) -> None:
        """These were deleted: a run of weeks does not remember them all."""
        for path in paths:
            self._good.pop(path, None)

    def _quarantine(self, path: str) -> None:
        """Moves a checkpoint's files into `<name>.rejected/`.  Killed in between: the rest follows at the next start."""
        files = all_files(path)
        if not files:
            return
        base = Path(base_of(path))
        target = base.with_name(base.name + ".rejected")
        number = 2
        while target.exists():
            target = base.with_name(f"{base.name}.rejected.{number}")
            number += 1
        disk.mkdir(target)
        for file in files:
            disk.rename(file, target / file.name)

    def _relist(self, plan: CheckpointPlan, listing: Listing, position: int) -> tuple[str, ...]:
        """Writes a `checkpoint` file without what was rejected; the paths it lists."""
        good = listing.candidates[position]
        older = [c for c in listing.candidates[position + 1 :] if has_files(c.path)]
        older = [c for c in older if c.listed] if good.listed and not listing.trouble else older
        older = older[: plan.max_to_keep - 1] if plan.max_to_keep > 0 else []
        paths = [c.path for c in reversed(older)] + [good.path]
        with contextlib.suppress(OSError):  # the same
            write_state(state_file_of(plan), plan.save_path, paths, plan.save_relative_paths)
        return tuple(paths)


def _was_rewritten(path: str) -> bool:
    """Whether somebody else (the user's own Saver.save) has since put another index beside the manifest.

    Then the manifest says nothing, and the checkpoint's own checksums count.
    """
    try:
        return Path(path + ".index").stat().st_mtime_ns > manifest_of(path).stat().st_mtime_ns
    except FileNotFoundError:
        return False


def _signature(path: str) -> tuple[tuple[str, int, int, int], ...]:
    found = [(file.name, file.stat()) for file in all_files(path)]
    return tuple((name, stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in found)


def verify_foreign(path: str) -> int:
    """The step of a checkpoint without manifest: TensorFlow's own, or the user's.  Its own checksums must agree."""
    if not Path(path + ".index").is_file():
        _verify_v1(path)
        return step_in_name(path)
    try:
        bundle = check_structure(path)
        check_contents(bundle)
    except BadBundle as error:
        raise BadCheckpoint(str(error)) from error
    return _step_of(path, bundle)


def _step_of(path: str, bundle: Bundle) -> int:
    step = scalar_int(bundle, GLOBAL_STEP_KEY)
    return step if step is not None else step_in_name(path)


def _verify_v1(path: str) -> None:
    files = model_files(path)
    expected = int(path[-5:]) if path != base_of(path) else 1
    if len(files) != expected:
        raise BadCheckpoint(f"{len(files)} of its {expected} files are there")
    for file in files:
        with file.open("rb") as opened:
            opened.seek(-min(8, file.stat().st_size), os.SEEK_END)
            if opened.read() != _TABLE_MAGIC:
                raise BadCheckpoint(f"{file.name} is not a whole checkpoint file")


def _nothing_good(plan: CheckpointPlan, listing: Listing, rejected: list[Rejection]) -> str:
    state_path = state_file_of(plan)
    lines = [f"{state_path.parent} holds checkpoints, and none of them can be restored:"]
    if listing.trouble:
        lines.append(f"  {listing.trouble}")
    lines += [f"  {rejection.path}: {rejection.why}" for rejection in rejected]
    lines += [] if rejected or listing.trouble else ["  there are only remains of them"]
    name = Path(absolute_save_path(plan)).name
    lines.append(
        f"Put a good checkpoint there and name it in {state_path.name}; or, to begin again from step 0, move "
        f"{state_path} and {state_path.parent / name}* away."
    )
    return "\n".join(lines)
