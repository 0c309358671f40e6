"""Scan for external checkpoints: find them by names and times, then read them whole.

Called by process.py, on threads of their own, also during a commit.  Only reads (and fsyncs, which
changes nothing).  external_saves.py decides what follows, and the store does it.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from procsv.base.clock import Clock
from procsv.base.run.manifest import MANIFEST_SUFFIX, FileSum
from procsv.base.system import disk
from procsv.ipc.messaging.messages import CheckpointPlan
from procsv.services.checkpoint.core.facts import Candidate, Scan, Sighting, Signature, Verified
from procsv.services.checkpoint.format.bundle_reader import BadBundle, read_index, scalar_int
from procsv.services.checkpoint.store.catalog import GLOBAL_STEP_KEY, list_checkpoints, verify_foreign
from procsv.services.checkpoint.store.manifest import BadCheckpoint, sum_file
from procsv.services.checkpoint.store.names import (
    absolute_save_path,
    has_files,
    manifest_of,
    meta_of,
    model_files,
    step_in_name,
)

_INDEX = ".index"


def scan_directory(plan: CheckpointPlan) -> Scan:
    """Lists the external checkpoints; OSError if it cannot be read, unless that is because it is gone."""
    directory = Path(absolute_save_path(plan)).parent
    trouble = trouble_with(directory)
    if not directory.is_dir():
        return Scan((), None, trouble)
    listing = list_checkpoints(plan)
    listed = {c.path for c in listing.candidates if c.listed}
    newest_step = _step_of(listing.candidates[0]) if listing.candidates else -1
    with os.scandir(directory) as entries:
        paths = listed | {entry.path[: -len(_INDEX)] for entry in entries if entry.name.endswith(_INDEX)}
    external = [s for path in sorted(paths) if (s := _sighting(path, path in listed)) is not None]
    return Scan(tuple(external), newest_step, trouble)


def trouble_with(directory: Path) -> str:
    """Why nothing can be saved in `directory`; "" if it can."""
    if not directory.is_dir():
        return f"{directory} does not exist any more"
    if os.statvfs(directory).f_flag & os.ST_RDONLY:
        return f"{directory} is on a filesystem that is read-only"
    return "" if os.access(directory, os.W_OK | os.X_OK) else f"{directory} cannot be written to: permission denied"


def _sighting(path: str, listed: bool) -> Sighting | None:
    """None if its manifest says all about it, or it is gone by now."""
    with contextlib.suppress(FileNotFoundError):
        if has_files(path) and not is_known(path):
            return Sighting(path, signature_of(path), _written(path).st_mtime, listed)
    return None


def is_known(path: str) -> bool:
    """Whether checkpoint `path` has a manifest that is no older than itself.  FileNotFoundError if it is gone."""
    written = _written(path)
    try:
        return manifest_of(path).stat().st_mtime_ns >= written.st_mtime_ns
    except FileNotFoundError:
        return False


def _written(path: str) -> os.stat_result:
    index = Path(path + _INDEX)
    files = [index] if index.is_file() else model_files(path)
    if not files:
        raise FileNotFoundError(path)
    return files[0].stat()


def signature_of(path: str) -> Signature:
    """FileNotFoundError if somebody removes it just now."""
    files = [*model_files(path), *(p for p in (meta_of(path),) if p.is_file())]
    found = [(file.name, file.stat()) for file in files if not file.name.endswith(MANIFEST_SUFFIX)]
    return tuple((name, stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in found)


def _step_of(candidate: Candidate) -> int:
    """The step of a checkpoint: its manifest says, or its own global step, or its name."""
    if candidate.sequence == 0:
        with contextlib.suppress(BadBundle, OSError, ValueError):
            step = scalar_int(read_index(candidate.path), GLOBAL_STEP_KEY)
            return candidate.step if step is None else step
    return candidate.step


def examine(sighting: Sighting, clock: Clock) -> Verified:
    """Reads a checkpoint whole, against its own checksums, and has it on the disk: what it is, or what is wrong with it.

    No files, and no error, if it has changed since it was seen, or while it was read.
    """
    began_s, path, signature = clock.monotonic(), sighting.path, sighting.signature
    step, sums, error = step_in_name(path), dict[str, FileSum](), ""
    try:
        if signature_of(path) == signature:
            step = verify_foreign(path)
            files = [Path(path).parent / name for name, *_ in signature]
            sums = {file.name: sum_file(file) for file in files}
            for file in files:
                disk.fsync_path(file)  # its writer has not; failed: of no use, whatever it holds now
        if signature_of(path) != signature:
            step, sums = step_in_name(path), {}
    except FileNotFoundError:
        sums = {}
    except (BadCheckpoint, OSError) as bad:
        sums, error = {}, str(bad)
    return Verified(path, signature, step, sums, sighting.time, clock.monotonic() - began_s, error)
