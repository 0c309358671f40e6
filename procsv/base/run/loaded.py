"""Record a trainer's imports for its standby and for the next launch of the same command.

The trainer writes the record once it trains (procsv/training/process/import_record.py): in the run
directory for the standby, and in the logdir's records for a later launch.  With it, a later launch
can make its standby before the first trainer, and can find which of the program's own files have
changed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from procsv.base.encoding import decode_json, encode_json
from procsv.base.run.paths import RunPaths
from procsv.base.system.atomic_file import replace_file
from procsv.base.system.data_file import open_data
from procsv.base.terminal import printable

BYTES_MAX = 2**24
FILES_SHOWN = 8
DIGEST_BYTES_MAX = 2**24  # a larger file counts as unchanged if its size and time are the same


class File(msgspec.Struct, frozen=True, array_like=True):
    """One version of a file."""

    size: int
    mtime_ns: int
    digest: str = ""  # of the content; "" if the content was not read

    def is_as(self, other: File) -> bool:
        """Whether the content is the same.

        Compares the digests if both have one, otherwise size and time.
        """
        if self.digest and other.digest:
            return self.digest == other.digest
        return (self.size, self.mtime_ns) == (other.size, other.mtime_ns)


class LoadedModules(msgspec.Struct, frozen=True):
    """The contents of `paths.loaded` and `paths.imports`."""

    environment: dict[str, str | None] = {}  # the program's changes; None: removed
    modules: tuple[str, ...] = ()  # in the order in which their imports began
    own: tuple[str, ...] = ()  # top-level names of the program's modules
    command: tuple[str, ...] = ()  # interpreter, its version, target and arguments
    files: dict[str, File] = {}  # the program's own, by path
    home: str = ""  # the program's directory, from which its files are found if the project was moved
    attempt: int = 0  # the attempt, of the task whose state is saved, that has imported them; 0 if unknown
    logdir_id: str = ""  # id of the logdir that this was written for (run_id.py); a copy of the logdir has another


def command_of(target: str, args: tuple[str, ...]) -> tuple[str, ...]:
    return sys.executable, sys.version, target, *args


def file_now(path: str) -> File | None:
    """Returns a file's present version, without its digest; None if it is not a file."""
    with contextlib.suppress(OSError, ValueError):
        found = Path(path).stat()
        return File(found.st_size, found.st_mtime_ns)
    return None


def read_file(path: str) -> File | None:
    """Like `file_now`, with the digest of the content."""
    found = file_now(path)
    if found is None or found.size > DIGEST_BYTES_MAX:
        return found
    with contextlib.suppress(OSError):
        if not Path(path).is_file():  # a pipe would block us
            return None
        return msgspec.structs.replace(found, digest=hashlib.sha256(Path(path).read_bytes()).hexdigest()[:32])
    return None


def changed_files(loaded: LoadedModules, home: str) -> tuple[str, ...]:
    """Returns the program's own files that have changed or are gone.

    The names are relative to the program's directory `home`.  If a project was moved or copied, its
    files are found at the same relative paths.
    """
    changed = []
    for path, file in loaded.files.items():
        name = os.path.relpath(path, loaded.home or home)
        now = read_file(os.path.normpath(f"{home}/{name}")) or read_file(path)
        if now is None or not now.is_as(file):
            changed.append(name)
    return tuple(changed)


def list_files(names: Sequence[str]) -> str:
    """Lists files for people.  The names come from a file, so they are made printable."""
    more = f" and {len(names) - FILES_SHOWN} more" if len(names) > FILES_SHOWN else ""
    return ", ".join(map(printable, names[:FILES_SHOWN])) + more


def read_loaded(path: Path) -> LoadedModules:
    """Reads the last trainer's record; an empty one if it is damaged or missing."""
    try:
        return decode_json(path.read_bytes(), LoadedModules)
    except (OSError, msgspec.DecodeError):
        return LoadedModules()


def write_loaded(path: Path, loaded: LoadedModules) -> None:
    """Writes a record.  OSError passes through."""
    replace_file(path, encode_json(loaded), durable=False, mode=0o600)


def take_earlier(paths: RunPaths, command: tuple[str, ...]) -> bool:
    """Takes over the record of an earlier launch of the same command.

    Returns False if there is no usable record.  A record is not usable in three cases.  (1) A file
    of the program has changed, so the program may now set the environment differently before its
    imports.  (2) Another user wrote the record, or it came with a copied logdir, so its author
    would decide what we import.  (3) The program changes the environment before its imports, which
    only the program itself may do.
    """
    loaded = read_own(paths.imports)
    if not loaded.modules or loaded.environment or loaded.command != command or loaded.logdir_id != paths.id:
        return False
    if not _are_unchanged(loaded.files):
        return False
    try:
        write_loaded(paths.loaded, loaded)
    except OSError:  # the first trainer starts without it
        return False
    return True


def _are_unchanged(files: Mapping[str, File]) -> bool:
    now = {path: file_now(path) for path in files}
    return bool(files) and all(
        found is not None and (found.size, found.mtime_ns) == (files[path].size, files[path].mtime_ns)
        for path, found in now.items()
    )


def read_own(path: Path) -> LoadedModules:
    """Reads a record that only we can have written; an empty one otherwise."""
    try:
        fd = open_data(path)
        with os.fdopen(fd, "rb") as stream:
            found = os.fstat(fd)
            if found.st_uid != os.geteuid() or found.st_mode & 0o022:
                return LoadedModules()
            return decode_json(stream.read(BYTES_MAX), LoadedModules)
    except (OSError, msgspec.DecodeError):
        return LoadedModules()
