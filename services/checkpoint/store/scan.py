"""Scan for external checkpoints: find them by names and times, then verify them.

process.py runs this module outside the disk thread, even during a commit, so it only reads and
fsyncs. core/directory.py decides what to do with the result, and the store does it.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from procsv.base.clock import Clock
from procsv.base.run.manifest import FileSum, Manifest
from procsv.base.system import disk
from procsv.ipc.messaging.checkpoint_messages import CheckpointPlan
from procsv.services.checkpoint.core.facts import Scan, Sighting, Signature, Verified
from procsv.services.checkpoint.format import names
from procsv.services.checkpoint.format.manifest import BadCheckpoint, is_of, manifest_or_none, sum_file
from procsv.services.checkpoint.store.catalog import list_checkpoints, step_of, verify_foreign
from procsv.services.checkpoint.store.rotation import time_of_external

_INDEX = ".index"


def scan_directory(plan: CheckpointPlan) -> Scan:
    """List the external checkpoints.

    If the directory is missing or cannot be written to, the result's `trouble` says so. Other errors
    of the disk raise OSError.
    """
    directory = Path(names.absolute_save_path(plan)).parent
    try:
        trouble = trouble_with(directory)
        return _scan_there(plan, directory, trouble) if directory.is_dir() else Scan((), None, trouble)
    except FileNotFoundError:
        if directory.is_dir():
            raise
        return Scan((), None, _gone(directory))  # the directory vanished during the scan


def _scan_there(plan: CheckpointPlan, directory: Path, trouble: str) -> Scan:
    listing = list_checkpoints(plan)
    listed = {c.path for c in listing.candidates if c.listed}
    newest = next(iter(listing.candidates), None)
    newest_step = -1 if newest is None else newest.step if newest.sequence else step_of(newest.path, newest.step)
    with os.scandir(directory) as entries:
        paths = listed | {entry.path[: -len(_INDEX)] for entry in entries if entry.name.endswith(_INDEX)}
    external = [
        s for path in sorted(paths) if (s := _sighting(path, path in listed, listing.manifests.get(path))) is not None
    ]
    if newest is None:
        return Scan(tuple(external), newest_step, trouble)
    return Scan(tuple(external), newest_step, trouble, newest.sequence, time_of_external(newest))


def trouble_with(directory: Path) -> str:
    """Return why nothing can be saved in `directory`, or "" if saving works."""
    if not directory.is_dir():
        return _gone(directory)
    try:
        is_read_only = bool(os.statvfs(directory).f_flag & os.ST_RDONLY)
    except FileNotFoundError:
        return _gone(directory)
    if is_read_only:
        return f"{directory} is on a filesystem that is read-only"
    if os.access(directory, os.W_OK | os.X_OK):
        return ""
    return f"{directory} cannot be written to: permission denied" if directory.is_dir() else _gone(directory)


def _gone(directory: Path) -> str:
    return f"{directory} does not exist any more"


def _sighting(path: str, listed: bool, manifest: Manifest | None) -> Sighting | None:
    """Return the checkpoint as it is now. None if it has its own manifest, or is gone."""
    with contextlib.suppress(FileNotFoundError):
        if names.has_files(path) and not is_known(path, manifest):
            return Sighting(path, signature_of_model(path), names.index_of(path).stat().st_mtime, listed)
    return None


def is_known(path: str, manifest: Manifest | None = None) -> bool:
    """Whether a checkpoint has a manifest of its own.

    `manifest`: the manifest that the caller has just read, if any.
    """
    try:
        return (manifest is not None and is_of(manifest, path)) or is_of(manifest_or_none(path), path)
    except FileNotFoundError:
        return False


def signature_of_model(path: str) -> Signature:
    """Return the signature of all files except the manifest.

    Raise FileNotFoundError if a file was just removed.
    """
    return names.signature_of([*names.model_files(path), *(p for p in (names.meta_of(path),) if p.is_file())])


def examine(sighting: Sighting, clock: Clock) -> Verified:
    """Verify a whole checkpoint by its own checksums, and sync it.

    The result has neither files nor an error if the checkpoint has changed since the sighting.
    """
    began_s, path, signature = clock.monotonic(), sighting.path, sighting.signature
    step, sums, error, is_read = names.step_in_name(path), dict[str, FileSum](), "", True
    try:
        if signature_of_model(path) == signature:
            step = verify_foreign(path)
            files = [Path(path).parent / name for name, *_ in signature]
            sums = {file.name: sum_file(file) for file in files}
            for file in files:
                _put_on_disk(file)
        if signature_of_model(path) != signature:
            step, sums = names.step_in_name(path), {}
    except FileNotFoundError:
        sums = {}
    except BadCheckpoint as bad:
        sums, error = {}, str(bad)
    except OSError as trouble:
        sums, error, is_read = {}, str(trouble), False
    return Verified(
        path=path,
        signature=signature,
        step=step,
        files=sums,
        time=sighting.time,
        seconds=clock.monotonic() - began_s,
        error=error,
        is_read=is_read,
    )


def _put_on_disk(file: Path) -> None:
    """Sync a file, in case its writer has not.

    Raise BadCheckpoint if the sync fails, even if the bytes look right.
    """
    try:
        disk.fsync_path(file)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise BadCheckpoint(f"{file.name} cannot be put on the disk: {error.strerror}") from error
